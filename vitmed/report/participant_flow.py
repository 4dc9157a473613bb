"""Where the images of a run come from and where they go: found, left out, dealt to which split; and the figure of it.

The numbers of a flow diagram as STARD (item 24 of STARD-AI), CLAIM 2024 (35) and TRIPOD+AI (20a) ask for one, and the
proof that no patient and no file is in two splits.
"""

import textwrap
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from vitmed.checks.data_check import COUNTS
from vitmed.core.config import DataConfig
from vitmed.core.files import json_of
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted
from vitmed.data.samples import Sample, Splits
from vitmed.decisions.targets import TARGETS
from vitmed.inference.saved_model import SavedModel
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.subgroups import FEWEST, MOST, strata
from vitmed.report.plots.drawing import BLACK, BLUE, GREY, short
from vitmed.report.results import Cell, Characteristic, Count, EvaluatedImages, Flow, Results, Seen, SplitFlow, Value


def flow_of(
    splits: Splits, hashes: Mapping[str, Sequence[str]], counts: Mapping[str, int] | None = None, why_left_out: str = ""
) -> Flow:
    """Count the flow of a run, without a path or the name of a patient: from split name -> sha256 of its files, what
    the check before training counted (`COUNTS`), and why files that were found are in no split."""
    checked: dict[str, Any] = {name: (counts or {}).get(name) for name in COUNTS}
    grouped, shared = splits.grouped and splits.patients != "", len(splits.shared())
    used = sum(map(len, (splits.samples or hashes).values()))  # an exported model names no images
    everyone: set[str] = set().union(*splits.groups().values())
    parts, several = dict[str, SplitFlow](), splits.target.kind == "findings"
    for name, samples in splits.samples.items():
        patients = [sample.group for sample in samples] if grouped else None
        labels = [[f for f, x in enumerate(s.targets) if x == 1] if several else [s.label] for s in samples]
        counted_in = _counts(labels, patients, splits.classes if several else splits.strata)
        parts[name] = SplitFlow(made=splits.made.get(name, ""), **counted_in)
    return Flow(
        **checked,
        used=used,
        left_out=None if checked["found"] is None else max(0, checked["found"] - used - (checked["unreadable"] or 0)),
        why_left_out=why_left_out,
        level="image" if not grouped else "none" if shared else "patient",
        how=splits.patients if grouped else "",
        patients=len(everyone) if grouped and everyone else None,
        patients_in_two=shared if grouped and everyone else None,
        copies_in_two=len(copies_in_two(hashes)),
        splits=parts,
    )


def copies_in_two(hashes: Mapping[str, Sequence[str]]) -> set[str]:
    """The sha256 that are in more than one split, from split name -> sha256 of its files."""
    count = Counter(digest for digests in hashes.values() for digest in set(digests))
    return {digest for digest, splits in count.items() if splits > 1}


def characteristics(splits: Splits, columns: Sequence[str]) -> dict[str, Characteristic]:
    """What the patients (images, where patients are unknown) of each split are like, by those columns that the run has.

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
    for column in (name for name in columns if name in splits.columns):
        place = splits.columns.index(column)
        cut = strata([sample.columns[place] for sample in samples], owners, unit)
        members = set(zip(split_of, cut.of.tolist(), owners, strict=True))
        count = Counter((split, stratum) for split, stratum, _ in members)
        values = []
        for stratum, name in enumerate(cut.names):
            counts, cells = {split: count[split, stratum] for split, _ in parts}, dict[str, Cell]()
            for split, n in counts.items():
                share, difference = None, None
                if n >= FEWEST:
                    share = n / sizes[split]
                    if split != "train" and counts.get("train", 0) >= FEWEST:
                        other = counts["train"] / sizes["train"]
                        spread = ((share * (1 - share) + other * (1 - other)) / 2) ** 0.5
                        difference = (share - other) / spread if spread > 0 else 0.0
                cells[split] = Cell(n=n if n >= FEWEST else None, share=share, difference=difference)
            if max(counts.values()) >= FEWEST:
                values.append(Value(name=name, splits=cells))
        rare = len(cut.names) - len(values[:MOST])
        reason = {"reason": cut.why} if cut.why else {}
        found[column] = Characteristic(unit=unit, cut=cut.cut, rows=values[:MOST], rare=rare, **reason)
    return found


def _counts(
    labels: Sequence[Sequence[int]], patients: Sequence[Hashable] | None, classes: Sequence[str]
) -> dict[str, Any]:
    """The fields `images`, `patients` and `classes`, from the labels and the patient of each image."""
    images = Counter(label for own in labels for label in own)
    people = None
    if patients is not None:
        pairs = {(label, one) for own, one in zip(labels, patients, strict=True) for label in own}
        people = Counter(label for label, _ in pairs)
    each = {c: Count(images=images[k], patients=None if people is None else people[k]) for k, c in enumerate(classes)}
    return {"images": len(labels), "patients": None if patients is None else len(set(patients)), "classes": each}


def evaluated_images(
    predictions: Predictions, split: str | None, seen: Seen | None = None, folds: int | None = None
) -> EvaluatedImages:
    """Count the images of a report: of which split or how many folds, by class, and those that the model had seen."""
    patients = None if predictions.groups is None else predictions.units.tolist()
    labels, kind = known_labels(predictions).tolist(), predictions.kind
    if kind == "findings":
        present = [[f for f, x in enumerate(row) if x == 1] for row in labels]
    else:
        present = [[k if kind == "classes" else 0] for k in labels]  # a number is of one class
    counts = _counts(present, patients, predictions.classes)
    return EvaluatedImages(split=split, seen=seen or Seen(), folds=folds, **counts)


def counted_again(flow: Flow | None, predictions: Predictions) -> Flow | None:
    """The flow of a report about other rows, or one finding, of the same images."""
    if flow is None or (old := flow.evaluated) is None:
        return flow
    return flow.model_copy(update={"evaluated": evaluated_images(predictions, old.split, old.seen, old.folds)})


def folds_flow(
    folds: Sequence[SavedModel], runs: Sequence[RunFolder], predictions: Predictions, held_out: Sequence[Sample]
) -> Flow:
    """The flow of pooled folds, with the test of each in place of a split; `predictions` are of all. Images
    that validate every fold, and images held out of all folds, stand beside them.

    Patients and files count as shared if they are in two tests, or in two splits of one fold.
    """
    first, names = folds[0].splits, [f"fold {number}" for number in range(1, len(folds) + 1)]
    named = dict(zip(names, folds, strict=True))
    tests = replace(
        first,
        samples={name: fold.splits.samples["test"] for name, fold in named.items()},
        made={name: fold.splits.made.get("test", "") for name, fold in named.items()},
    )
    hashes = {name: fold.hashes["test"] for name, fold in named.items()}
    counts = [data_check_of(run)[1] for run in runs]
    crossing = [count["duplicates_across_splits"] for count in counts if "duplicates_across_splits" in count]
    tested = {sample.path for sample in tests.every}
    val = tuple(sample for sample in first.samples["val"] if sample.path not in tested)
    beside = {name: samples for name, samples in (("val", val), ("held out", tuple(held_out))) if samples}
    made = {"val": f"{first.made.get('val', '')}; validates every fold", "held out": "in no fold; tests their ensemble"}
    images = replace(tests, samples=tests.samples | beside, made=tests.made | made)
    data = folds[0].config.data.model_copy(update={"folds": None, "sites": None})  # what is held out is counted here
    flow = flow_of(images, hashes, counts[0], why_left_out(data))
    shared = set(images.shared()).union(*(fold.splits.shared() for fold in folds))
    update: dict[str, object] = {
        "copies_in_two": len(copies_in_two(hashes).union(*(copies_in_two(fold.hashes) for fold in folds))),
        "evaluated": evaluated_images(predictions, "test", folds=len(folds)),
        "characteristics": characteristics(images, folds[0].config.evaluate.subgroups),
        "duplicates_across_splits": max(crossing) if len(crossing) == len(folds) else None,
    }
    if tests.grouped:
        update |= {"level": "none" if shared else "patient", "patients_in_two": len(shared)}
    return flow.model_copy(update=update)


def data_check_of(run: RunFolder) -> tuple[list[str], dict[str, int]]:
    """The notes of the check before the training, and what it counted; nothing of a run without its file."""
    try:
        content = json_of(run.data_check.read_text(encoding="utf-8"))
        notes, counts = map(str, content.get("notes", ())), dict(content.get("counts", {}))
        return [*notes], {name: count for name, count in counts.items() if isinstance(count, int)}
    except (OSError, ValueError, AttributeError, TypeError):
        return [], {}


def why_left_out(data: DataConfig) -> str:
    """Why readable files of the data folder are in no split, in words."""
    reasons = [] if data.max_train is None else [f"a sample of {data.max_train:,} for training was asked for"]
    reasons += ["held out of all folds"] if data.divided else []
    reasons.append("not named in the table of labels" if data.labels else "outside the folders of classes and splits")
    return ", or ".join(reasons)


LISTED = 6  # classes that a box lists
LETTERS = 60  # of a line
LINE, GAP = 0.21, 0.35  # inches that a line of text takes, and between boxes
FOLDS = "test sets of the folds, each by the model that never saw it"
WIDTH = 8.0  # inches


def flow(predictions: Predictions, metrics: Results) -> Figure | None:
    """Files found, left out, used, and assigned to the splits, with images and patients; None without splits."""
    if metrics.flow is None or not metrics.flow.splits:  # an exported model lists no images
        return None
    counts, evaluated, unit = metrics.flow, metrics.flow.evaluated, metrics.unit
    noun = TARGETS[metrics.target.kind].words.part
    parts: dict[str, SplitFlow | EvaluatedImages] = dict(counts.splits)
    if evaluated is not None and not evaluated.split:
        parts["others"] = evaluated
    boxes = list[tuple[int, str, list[str]]]()  # how far to the right, edge, lines
    if counts.found is not None:  # the files were counted
        unreadable = "unreadable: not counted" if counts.unreadable is None else f"{counts.unreadable:,} unreadable"
        why = f"({counts.why_left_out})" if counts.left_out and counts.why_left_out else ""
        boxes.append((0, BLACK, ["Found", counted(counts.found, "image file")]))
        left_out = [unreadable, f"{counts.left_out:,} in no split", *textwrap.wrap(why, LETTERS)]
        boxes.append((1, GREY, ["Left out", *left_out]))
    people = "patients unknown" if counts.patients is None else counted(counts.patients, unit)
    used = ["Used", f"{counted(counts.used, 'image')}, {people}"]
    beside = [name for name in counts.splits if "fold 1" in counts.splits and not name.startswith("fold")]
    used += [f"{name}: {_lines(counts.splits[name], '', unit)[0]}" for name in beside]
    if counts.exact_duplicates is not None:
        used.append(f"kept: identical copies {counts.exact_duplicates:,}, alike {counts.near_duplicates:,}")
    boxes.append((0, BLACK, used))
    if evaluated is not None and evaluated.folds is not None:  # any number of them: a line each, in one box
        tests = {name: _lines(part, noun, unit) for name, part in parts.items() if name.startswith("fold")}
        rows = [f"{name}: " + ", ".join(line.replace(" ", "\xa0") for line in lines) for name, lines in tests.items()]
        wrapped = [line for row in rows for line in textwrap.wrap(row, LETTERS, subsequent_indent="    ")]
        boxes.append((1, BLUE, [f"{FOLDS} (evaluated)", *wrapped]))
        parts = {}
    for name, part in parts.items():
        title, lines, here = name, _lines(part, noun, unit), False
        if evaluated is not None and name == (evaluated.split or "others"):
            title, here = f"{name} (evaluated)", True
            if evaluated.images != part.images:  # rows were removed from the table
                title, lines[0] = f"{name} ({evaluated.images:,} evaluated)", f"of {lines[0]}"
        boxes.append((1, BLUE if here else BLACK, [title, *lines]))
    total = sum(LINE * len(lines) + GAP for *_, lines in boxes)
    figure = Figure(figsize=(WIDTH, total))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, total))
    axes.set_axis_off()
    top, ends = total, list[float]()
    for right, edge, lines in boxes:
        middle, x = top - (LINE * len(lines) + GAP) / 2, 0.3 + right
        if right and lines[0] != "others (evaluated)":  # which come from elsewhere
            arrow = {"arrowstyle": "-|>", "color": BLACK, "shrinkA": 0}
            axes.annotate("", (x - 0.1, middle), (0.6, middle), arrowprops=arrow)
            ends.append(middle)
        fill = "#EAF3FA" if edge == BLUE else "white"
        box = {"facecolor": fill, "edgecolor": edge, "boxstyle": "square,pad=0.5"}
        axes.text(x, middle, "\n".join(lines).replace("\xa0", " "), va="center", fontsize=10, linespacing=1.4, bbox=box)
        top -= LINE * len(lines) + GAP
    axes.plot([0.6, 0.6], [total - GAP, min(ends)], color=BLACK, linewidth=1, zorder=0)
    return figure


def _lines(part: SplitFlow | EvaluatedImages, noun: str, unit: str) -> list[str]:
    people = "patients unknown" if part.patients is None else counted(part.patients, unit)
    lines = [f"{counted(part.images, 'image')}, {people}"]
    if len(part.classes) > LISTED:
        return [*lines, counted(len(part.classes), noun)]
    for name, count in part.classes.items():
        both = f"{count.images:,}" if count.patients is None else f"{count.images:,} / {count.patients:,}"
        lines.append(f"{short(name, LETTERS)}: {both}")
    return lines
