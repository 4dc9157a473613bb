"""Where the images of a run come from and where they go: what was found, left out and dealt to which split.

The numbers of a flow diagram as STARD (item 24 of STARD-AI), CLAIM 2024 (35) and TRIPOD+AI (20a) ask for one, and the
proof that no patient and no file is in two splits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from vitmed.checks.data_check import COUNTS
from vitmed.core.config import DataConfig
from vitmed.core.run_folder import RunFolder
from vitmed.data.samples import Splits
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.scoring import known_labels
from vitmed.metrics.subgroups import FEWEST, MOST, strata
from vitmed.report.results import Cell, Characteristic, Count, EvaluatedImages, Flow, Seen, SplitFlow, Value
from vitmed.training.checkpoint import Checkpoint


def flow_of(
    splits: Splits,
    hashes: Mapping[str, Sequence[str]],
    counts: Mapping[str, object] | None = None,
    why_left_out: str = "",
) -> Flow:
    """The flow of a run, without a path or the name of a patient.

    Args:
        splits: who is in which split.
        hashes: split name -> sha256 of its files.
        counts: what the check before the training counted, by the names in `COUNTS`; None or without a name where
            nobody counted.
        why_left_out: why files that were found are in no split, in words.
    """
    given = {name: (counts or {}).get(name) for name in COUNTS}
    known = {name: value if isinstance(value, int) else None for name, value in given.items()}
    used = sum(map(len, splits.samples.values()))
    grouped, shared = splits.grouped, len(splits.shared())
    everyone: set[str] = set().union(*splits.groups().values())
    return Flow(
        found=known["found"],
        unreadable=known["unreadable"],
        exact_duplicates=known["exact_duplicates"],
        near_duplicates=known["near_duplicates"],
        duplicates_across_splits=known["duplicates_across_splits"],
        used=used,
        left_out=None if known["found"] is None else max(0, known["found"] - used),
        why_left_out=why_left_out,
        level="image" if not grouped else "none" if shared else "patient",
        how=splits.patients if grouped else "",
        patients=len(everyone) if grouped else None,
        patients_in_two=shared if grouped else None,
        copies_in_two=len(copies_in_two(hashes)),
        splits={name: _split(splits, name, grouped) for name in splits.samples},
    )


def copies_in_two(hashes: Mapping[str, Sequence[str]]) -> set[str]:
    """Of split name -> sha256 of its files: those that are in more than one."""
    count = Counter(digest for digests in hashes.values() for digest in set(digests))
    return {digest for digest, splits in count.items() if splits > 1}


def characteristics(splits: Splits, columns: Sequence[str]) -> dict[str, Characteristic]:
    """What the patients (images, where patients are unknown) of each split are like, by columns of the table of labels.

    The standardised difference is that of a proportion between a split and train: (p - q) / sqrt((p (1 - p) + q (1 -
    q)) / 2) (Austin, Commun. Stat. Simul. Comput. 38 (2009) 1228); beyond 0.1 it is usually called an imbalance.

    Returns:
        by column. Values of fewer than `FEWEST` patients in every split are left out.
    """
    found: dict[str, Characteristic] = {}
    for column in columns:
        place = splits.columns.index(column)
        cells = [sample.columns[place] for samples in splits.samples.values() for sample in samples]
        everyone = [sample.group or sample.path for samples in splits.samples.values() for sample in samples]
        unit = "patients" if splits.grouped else "images"
        cut = strata(cells, everyone, unit)
        if cut.why:
            found[column] = Characteristic(unit=unit, cut=cut.cut, rows=[], rare=0, reason=cut.why)
            continue
        of, sizes = iter(cut.of.tolist()), {}
        rows: list[dict[str, int]] = [{} for _ in cut.names]
        for split, samples in splits.samples.items():
            members = {(sample.group or sample.path, next(of)) for sample in samples}
            count = Counter(stratum for _, stratum in members)
            sizes[split] = len({member for member, _ in members})
            for stratum, counts in enumerate(rows):
                counts[split] = count[stratum]
        told = [
            Value(name=name, splits={split: _cell(split, counts, sizes) for split in counts})
            for name, counts in zip(cut.names, rows, strict=True)
            if max(counts.values()) >= FEWEST
        ]
        rare = len(rows) - len(told[:MOST])
        found[column] = Characteristic(unit=unit, cut=cut.cut, rows=told[:MOST], rare=rare)
    return found


def _cell(split: str, counts: Mapping[str, int], sizes: Mapping[str, int]) -> Cell:
    n = counts[split]
    if n < FEWEST:
        return Cell(n=None, share=None, difference=None)
    share, difference = n / sizes[split], None
    if split != "train" and counts.get("train", 0) >= FEWEST:
        other = counts["train"] / sizes["train"]
        spread = ((share * (1 - share) + other * (1 - other)) / 2) ** 0.5
        difference = (share - other) / spread if spread > 0 else 0.0
    return Cell(n=n, share=share, difference=difference)


def _split(splits: Splits, name: str, grouped: bool) -> SplitFlow:
    samples = splits.samples[name]
    images = Counter(sample.label for sample in samples)
    people = Counter(label for label, _ in {(sample.label, sample.group) for sample in samples})
    return SplitFlow(
        images=len(samples),
        patients=len({sample.group for sample in samples}) if grouped else None,
        made=splits.made.get(name, ""),
        classes={
            c: Count(images=images[k], patients=people[k] if grouped else None) for k, c in enumerate(splits.classes)
        },
    )


def run_flow(
    saved: Checkpoint,
    run: RunFolder,
    split: str | None,
    predictions: Predictions,
    columns: Sequence[str],
    seen: Mapping[str, int | None],
) -> Flow:
    """`flow_of` of a run, with the images that this report is about, and the characteristics of the splits.

    Args:
        split: the evaluated split of the run; None for other images.
        columns: that subgroups were asked for; those that the run's own table has not are left out.
        seen: of other images, as `EvaluationImages.seen`.
    """
    flow = flow_of(saved.splits, saved.hashes, data_counts(run), why_left_out(saved.config.data))
    known = [name for name in columns if name in saved.splits.columns]
    about = evaluated_images(predictions, split, Seen.model_validate(dict(seen)))
    return flow.model_copy(update={"evaluated": about, "characteristics": characteristics(saved.splits, known)})


def evaluated_images(predictions: Predictions, split: str | None, seen: Seen | None = None) -> EvaluatedImages:
    """Which images a report is about: of which split, how many, by class, and what of them the model had seen."""
    labels = known_labels(predictions)
    units = None if predictions.groups is None else predictions.units
    images = {c: labels == k for k, c in enumerate(predictions.classes)}
    return EvaluatedImages(
        split=split,
        images=len(predictions),
        patients=None if units is None else len(np.unique(units)),
        classes={
            c: Count(images=int(of.sum()), patients=None if units is None else len(np.unique(units[of])))
            for c, of in images.items()
        },
        seen=seen or Seen(),
    )


def folds_flow(
    folds: Sequence[Checkpoint], runs: Sequence[RunFolder], predictions: Predictions, columns: Sequence[str]
) -> Flow:
    """The flow of pooled folds: the test of each takes the place of a split.

    Patients and files count as in two where they are in two tests, or in two splits of one fold.

    Args:
        predictions: of all folds.
        columns: as of `run_flow`.
    """
    first, names = folds[0].splits, [f"fold {number}" for number in range(1, len(folds) + 1)]
    tests = replace(
        first,
        samples={name: fold.splits.samples["test"] for name, fold in zip(names, folds, strict=True)},
        made={name: fold.splits.made.get("test", "") for name, fold in zip(names, folds, strict=True)},
    )
    hashes = {name: fold.hashes["test"] for name, fold in zip(names, folds, strict=True)}
    counts = [data_counts(run) for run in runs]
    crossing = [int(count["duplicates_across_splits"]) for count in counts if "duplicates_across_splits" in count]
    most = {"duplicates_across_splits": max(crossing) if len(crossing) == len(folds) else None}
    flow = flow_of(tests, hashes, {**counts[0], **most}, why_left_out(folds[0].config.data))
    shared = set(tests.shared()).union(*(fold.splits.shared() for fold in folds))
    known = [name for name in columns if name in first.columns]
    update: dict[str, object] = {
        "copies_in_two": len(copies_in_two(hashes).union(*(copies_in_two(fold.hashes) for fold in folds))),
        "evaluated": evaluated_images(predictions, "test").model_copy(update={"folds": len(folds)}),
        "characteristics": characteristics(tests, known),
    }
    if tests.grouped:
        update |= {"level": "none" if shared else "patient", "patients_in_two": len(shared)}
    return flow.model_copy(update=update)


def data_counts(run: RunFolder) -> dict[str, int]:
    """What the check before the training counted; nothing for a run of before there was such a file."""
    try:
        counts = json.loads(run.data_check.read_text(encoding="utf-8"))["counts"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return counts if isinstance(counts, dict) else {}


def why_left_out(data: DataConfig) -> str:
    """Why files of the data folder are in no split, in words."""
    reasons = [] if data.max_train is None else [f"a sample of {data.max_train:,} for training was asked for"]
    reasons.append("not named in the table of labels" if data.labels else "outside the folders of classes and splits")
    return ", or ".join(reasons)
