"""Where the images of a run come from and where they go: what was found, left out and dealt to which split.

The numbers of a flow diagram as STARD (item 24 of STARD-AI), CLAIM 2024 (35) and TRIPOD+AI (20a) ask for one, and the
proof that no patient and no file is in two splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vitmed.checks.data_check import COUNTS
from vitmed.core.files import json_of
from vitmed.core.run_folder import RunFolder
from vitmed.core.sections import DataConfig
from vitmed.data.samples import Splits
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.subgroups import FEWEST, MOST, strata
from vitmed.report.results import Cell, Characteristic, Count, EvaluatedImages, Flow, Seen, SplitFlow, Value

if TYPE_CHECKING:  # it imports torch, which a report made from a table does not need
    from vitmed.inference.saved_model import SavedModel


def flow_of(
    splits: Splits, hashes: Mapping[str, Sequence[str]], counts: Mapping[str, int] | None = None, why_left_out: str = ""
) -> Flow:
    """The flow of a run, without a path or the name of a patient.

    Args:
        hashes: split name -> sha256 of its files.
        counts: what the check before the training counted, by the names in `COUNTS`; nothing where nobody counted.
        why_left_out: why files that were found are in no split, in words.
    """
    known: dict[str, Any] = {name: (counts or {}).get(name) for name in COUNTS}
    used, grouped, shared = sum(map(len, splits.samples.values())), splits.grouped, len(splits.shared())
    everyone: set[str] = set().union(*splits.groups().values())
    return Flow(
        **known,
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
    q)) / 2) (Austin, Commun. Stat. Simul. Comput. 38 (2009) 1228); beyond 0.1 it is usually called an imbalance. Values
    of fewer than `FEWEST` patients in every split are left out.
    """
    parts = splits.samples.items()
    split_of = [name for name, samples in parts for _ in samples]
    samples = [sample for _, part in parts for sample in part]
    owners = [sample.group or sample.path for sample in samples]
    sizes = {name: len({sample.group or sample.path for sample in part}) for name, part in parts}
    unit = "patients" if splits.grouped else "images"
    found: dict[str, Characteristic] = {}
    for column in columns:
        place = splits.columns.index(column)
        cut = strata([sample.columns[place] for sample in samples], owners, unit)
        members = set(zip(split_of, cut.of.tolist(), owners, strict=True))
        count = Counter((split, stratum) for split, stratum, _ in members)
        values = []
        for stratum, name in enumerate(cut.names):
            counts = {split: count[split, stratum] for split, _ in parts}
            if max(counts.values()) >= FEWEST:
                cells = {split: _cell(split, counts, sizes) for split in counts}
                values.append(Value(name=name, splits=cells))
        rare = len(cut.names) - len(values[:MOST])
        reason = {"reason": cut.why} if cut.why else {}
        found[column] = Characteristic(unit=unit, cut=cut.cut, rows=values[:MOST], rare=rare, **reason)
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
    patients = [sample.group for sample in samples] if grouped else None
    classes: Sequence[str] = splits.strata
    labels: list[Sequence[int]] = [[sample.label] for sample in samples]
    if splits.target.kind == "findings":
        classes, labels = splits.classes, [_present(sample.targets) for sample in samples]
    return SplitFlow(made=splits.made.get(name, ""), **_counts(labels, patients, classes))


def _present(targets: Iterable[float]) -> list[int]:
    return [f for f, value in enumerate(targets) if value == 1]


def _counts(
    labels: Sequence[Sequence[int]], patients: Sequence[Hashable] | None, classes: Sequence[str]
) -> dict[str, Any]:
    """The fields `images`, `patients` and `classes`, from the labels and the patient of each image."""
    images = Counter(label for own in labels for label in own)
    people = None
    if patients is not None:
        pairs = {(label, one) for own, one in zip(labels, patients, strict=True) for label in own}
        people = Counter(label for label, _ in pairs)
    return {
        "images": len(labels),
        "patients": None if patients is None else len(set(patients)),
        "classes": {
            c: Count(images=images[k], patients=None if people is None else people[k]) for k, c in enumerate(classes)
        },
    }


def run_flow(
    saved: SavedModel,
    run: RunFolder,
    split: str | None,
    predictions: Predictions,
    columns: Sequence[str],
    seen: Mapping[str, int | None],
) -> Flow:
    """`flow_of` of a run, with the images that this report is about, and the characteristics of the splits.

    Args:
        split: the evaluated split of the run; None for other images, of which `EvaluationImages` knows what is `seen`.
        columns: that subgroups were asked for; those that the run's own table has not are left out.
    """
    flow = flow_of(saved.splits, saved.hashes, data_counts(run), why_left_out(saved.config.data))
    known = [name for name in columns if name in saved.splits.columns]
    about = evaluated_images(predictions, split, Seen.model_validate(dict(seen)))
    return flow.model_copy(update={"evaluated": about, "characteristics": characteristics(saved.splits, known)})


def evaluated_images(
    predictions: Predictions, split: str | None, seen: Seen | None = None, folds: int | None = None
) -> EvaluatedImages:
    """Which images a report is about: of which split or how many folds, how many, by class, and what of them the model
    had seen."""
    patients = None
    if predictions.groups is not None:
        patients = predictions.units.tolist()
    labels: list[Sequence[int]] = []
    if predictions.kind == "findings":
        labels = [_present(row) for row in known_labels(predictions).tolist()]
    elif predictions.kind == "classes":
        labels = [[label] for label in known_labels(predictions).tolist()]
    else:
        labels = [[0]] * len(predictions)
    counts = _counts(labels, patients, predictions.classes)
    return EvaluatedImages(split=split, seen=seen or Seen(), folds=folds, **counts)


def folds_flow(
    folds: Sequence[SavedModel], runs: Sequence[RunFolder], predictions: Predictions, columns: Sequence[str]
) -> Flow:
    """The flow of pooled folds: the test of each takes the place of a split; `predictions` are of all.

    Patients and files count as in two where they are in two tests, or in two splits of one fold.
    """
    first, names = folds[0].splits, [f"fold {number}" for number in range(1, len(folds) + 1)]
    named = dict(zip(names, folds, strict=True))
    tests = replace(
        first,
        samples={name: fold.splits.samples["test"] for name, fold in named.items()},
        made={name: fold.splits.made.get("test", "") for name, fold in named.items()},
    )
    hashes = {name: fold.hashes["test"] for name, fold in named.items()}
    counts = [data_counts(run) for run in runs]
    crossing = [count["duplicates_across_splits"] for count in counts if "duplicates_across_splits" in count]
    flow = flow_of(tests, hashes, counts[0], why_left_out(folds[0].config.data))
    shared = set(tests.shared()).union(*(fold.splits.shared() for fold in folds))
    known = [name for name in columns if name in first.columns]
    update: dict[str, object] = {
        "copies_in_two": len(copies_in_two(hashes).union(*(copies_in_two(fold.hashes) for fold in folds))),
        "evaluated": evaluated_images(predictions, "test", folds=len(folds)),
        "characteristics": characteristics(tests, known),
        "duplicates_across_splits": max(crossing) if len(crossing) == len(folds) else None,
    }
    if tests.grouped:
        update |= {"level": "none" if shared else "patient", "patients_in_two": len(shared)}
    return flow.model_copy(update=update)


def data_counts(run: RunFolder) -> dict[str, int]:
    """What the check before the training counted; nothing for a run of before there was such a file."""
    try:
        counts = dict(json_of(run.data_check.read_text(encoding="utf-8"))["counts"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def why_left_out(data: DataConfig) -> str:
    """Why files of the data folder are in no split, in words."""
    reasons = [] if data.max_train is None else [f"a sample of {data.max_train:,} for training was asked for"]
    if data.on_bad_file == "skip":
        reasons.append("unreadable")
    reasons.append("not named in the table of labels" if data.labels else "outside the folders of classes and splits")
    return ", or ".join(reasons)
