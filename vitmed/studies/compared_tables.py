"""The tables that `vitmed compare` reads, on their common images."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.core.csv_files import from_cell
from vitmed.core.errors import DataError, UsageError
from vitmed.core.run_folder import BASELINE, PREDICTIONS, RunFolder
from vitmed.core.targets import Kind
from vitmed.core.text import listed
from vitmed.decisions.evaluation_folder import Evaluated, find_evaluation, read_evaluation, torn_evaluations
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.kinds.any_predictions import AnyPredictions, target_of
from vitmed.metrics.kinds.number_predictions import NumberPredictions
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.report.write import read_baselines

SAME = 1e-6  # a difference of probabilities that can come from rounding


@dataclass(frozen=True)
class Model:
    """A model, or a baseline with the name of its model; `known` is what its report says of it, `file` its table."""

    name: str
    predictions: AnyPredictions
    baseline_of: str | None = None
    known: Evaluated | None = None
    file: Path | None = None

    @property
    def kind(self) -> Kind:
        """Of the labels; a table shows classes where its report says that they are grades."""
        said = {} if self.known is None else self.known.metrics.get("target", {})
        return "grades" if said.get("kind") == "grades" else self.predictions.kind


def read_all(paths: Sequence[Path]) -> list[Model]:
    """The models, then the baselines in their folders, each under a unique name."""
    tables = [table_of(path) for path in paths]
    models: list[Model] = []
    for name, file in zip(_names(tables), tables, strict=True):
        read, own = read_evaluation(file), not file.name.startswith(BASELINE)
        models.append(Model(name, read.predictions, known=read if own else None, file=file if own else None))
    named = [model.predictions for model in models if model.known is None]
    baselines: list[Model] = []
    for model, file in zip(models, tables, strict=True):
        if model.known is None:
            continue
        for key, found in read_baselines(file.parent).items():
            if not any(same_predictions(other, found) for other in (*named, *(b.predictions for b in baselines))):
                taken = any(b.name == key for b in baselines)
                name = f"{key} of {model.name}" if taken else key
                if isinstance(found, Predictions):
                    found = replace(found, positive=positive_of(model.predictions))
                baselines.append(Model(name, found, model.name))
    if len(models) + len(baselines) < 2 or not models:
        raise UsageError("there is nothing to compare: one model without baselines", "vitmed compare RUN_A RUN_B")
    return [*models, *baselines]


def positive_of(predictions: AnyPredictions) -> str | None:
    """The positive class; None where none is known, as of other kinds of label."""
    return predictions.positive if isinstance(predictions, Predictions) else None


def same_predictions(a: AnyPredictions, b: AnyPredictions) -> bool:
    """Whether two tables hold the same probabilities or numbers for the same images, in any order."""
    alike = a.kind == b.kind and set(a.paths) == set(b.paths) and set(a.classes) == set(b.classes)
    if not alike or len(a) != len(b):
        return False
    rows = np.argsort(np.array(a.paths)), np.argsort(np.array(b.paths))
    return np.allclose(_answers(a, a)[rows[0]], _answers(b, a)[rows[1]], rtol=0, atol=SAME)


def _answers(found: Any, first: Any) -> np.ndarray:
    """(S, K) what `same_predictions` compares, in the form of `first`."""
    found = found.like(first)
    return np.asarray(found.logits if isinstance(found, NumberPredictions) else found.probabilities)


def table_of(path: Path) -> Path:
    """The predictions.csv of a report folder or run folder, or the file itself. DataError where there is none."""
    if not path.is_dir():
        return path
    run = RunFolder(path)
    if path in torn_evaluations(RunFolder(path.parent)):
        raise DataError(f"{path}: incomplete, its writing was interrupted", f"vitmed train --resume {path.parent}")
    if (path / PREDICTIONS).is_file():
        return path / PREDICTIONS
    if run.best.is_file():
        saved = load_checkpoint(run.best)
        if file := find_evaluation(run, "test", saved.weights_hash, saved.policy):
            return file
        for torn in torn_evaluations(run):
            raise DataError(f"{torn}: incomplete, its writing was interrupted", f"vitmed train --resume {path}")
        raise DataError(f"{path}: has no evaluation of its best.pt on its test", f"vitmed evaluate {path}")
    if (path / "test" / PREDICTIONS).is_file():  # of folds, or of a run without a network
        return path / "test" / PREDICTIONS
    raise DataError(f"{path}: has no {PREDICTIONS}, nor test/{PREDICTIONS}", "name a predictions.csv, report or run")


def _names(files: Sequence[Path]) -> list[str]:
    """A short name for each table: its run or folder, with as much of the path as makes it unique."""
    parts = []
    for file in files:
        own = [*file.resolve().parent.parts[1:], *([] if file.name == PREDICTIONS else [file.stem])]
        inside_run = file.name == PREDICTIONS and own[-1:] == ["test"] and len(own) > 1
        parts.append(own[:-1] if inside_run else own)
    return short_names(parts)


def short_names(parts: Sequence[Sequence[str]]) -> list[str]:
    """A name for each path: its last part, with as many before it as make the names different."""
    for count in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{part[-1]} ({i})" for i, part in enumerate(parts, start=1)]  # the same table twice


def align(models: Sequence[Model]) -> tuple[list[Model], list[str]]:
    """The models on their common images, in the order and with the patients of the first; and notes.

    The classes are in the order of the first model of grades, else of the first.

    Raises:
        DataError: different kinds of label, classes, findings, units, labels or files, or no common image.
    """
    first = models[0]
    shared = set(first.predictions.paths)
    for model in models[1:]:
        _check_comparable(model, first)
        shared &= set(model.predictions.paths)
    if not shared:
        raise DataError("the predictions have no image in common", "predict the same images with both")
    paths = [path for path in first.predictions.paths if path in shared]
    _check_content(models, paths)
    positive = next((found for m in models if (found := positive_of(m.predictions))), None)
    form = next((m for m in models if m.kind == "grades"), first).predictions
    aligned = [replace(m, predictions=_picked(m.predictions, paths, form, positive)) for m in models]
    labels = known_labels(aligned[0].predictions)
    for model in aligned[1:]:
        other = np.flatnonzero((known_labels(model.predictions) != labels).reshape(len(paths), -1).any(axis=1))
        if len(other):
            raise DataError(
                f"{model.name} and {first.name} differ in the labels of {len(other):,} of {len(paths):,} images, the "
                f"first is {paths[other[0]]}",
                "evaluate both with the same labels",
            )
    notes = []
    left_out = {m.name: len(m.predictions) - len(paths) for m in models if len(m.predictions) > len(paths)}
    if left_out:
        counts = ", ".join(f"{count:,} of {name}" for name, count in left_out.items())
        notes.append(f"{len(paths):,} images are shared; left out because not all have them: {counts}.")
    known = [m for m in aligned if m.predictions.groups is not None]
    if not known:
        return aligned, notes
    groups = known[0].predictions.groups
    same = {m.predictions.units.tobytes() for m in known}
    if len(same) > 1:
        notes.append(f"The tables disagree on the patients; those of {known[0].name} are used.")
    return [replace(m, predictions=replace(m.predictions, groups=groups)) for m in aligned], notes


def _check_comparable(model: Model, first: Model) -> None:
    """Raise DataError where two models do not answer the same question."""
    one, other = model.predictions, first.predictions
    words = {"classes": "classes", "findings": "findings", "number": "a number"}
    if one.kind != other.kind:
        of_finding = "; of one finding: RUN/test/findings/FINDING" if "findings" in (one.kind, other.kind) else ""
        raise DataError(
            f"{model.name} has predictions of {words[one.kind]}, {first.name} of {words[other.kind]}",
            f"compare models of one kind of label{of_finding}",
        )
    if set(one.classes) != set(other.classes):
        what = one.kind
        fix = f"compare models of the same {what}"
        fix += ", or one finding of both: RUN/test/findings/FINDING" * (one.kind == "findings")
        has = f"{model.name} has the {what} {listed(one.classes)}; {first.name} has {listed(other.classes)}"
        raise DataError(has, fix)
    if (unit := target_of(one).unit) != target_of(other).unit:
        has = f"{model.name} predicts in the unit '{unit}', {first.name} in '{target_of(other).unit}'"
        raise DataError(has, "train both with the same --unit")
    if model.kind == first.kind == "grades" and one.classes != other.classes:
        raise DataError(
            f"the grades of {model.name} are in the order {listed(one.classes)}, those of {first.name} in the order "
            f"{listed(other.classes)}",
            "train both with the same --ordinal",
        )
    positive, expected = positive_of(one), positive_of(other)
    if positive not in (None, expected or positive):
        raise DataError(
            f"the positive class of {model.name} is {positive}, that of {first.name} {expected}",
            "train both with the same --positive",
        )


def _check_content(models: Sequence[Model], paths: Sequence[str]) -> None:
    """Raise DataError where two runs know that an image of one path was another file in each."""
    known = [(model.name, found) for model in models if (found := _digests(model))]
    for (first, one), (name, other) in itertools.combinations(known, 2):
        changed = [path for path in paths if path in one and path in other and one[path] != other[path]]
        if changed:
            raise DataError(
                f"{name} and {first} differ in the content of {len(changed):,} of {len(paths):,} images of the same "
                f"path (SHA-256 in splits.csv), the first is {changed[0]}",
                "evaluate both on the same files; to compare versions of the same pictures, name copies of the two "
                "folders of predictions.csv outside the runs",
            )


def _digests(model: Model) -> dict[str, str]:
    """Path -> SHA-256 of each evaluated image, from the splits.csv of the run; {} where it is not known."""
    if model.known is None or model.file is None:
        return {}
    try:
        split = model.known.metrics["flow"]["evaluated"]["split"]  # None: not the run's own
        text = RunFolder(model.file.parent.parent).splits.read_text(encoding="utf-8")
        rows = csv.DictReader(io.StringIO(text, newline=""))
        return {from_cell(row["path"]): row["sha256"] for row in rows if row["split"] == split}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error):  # not there, or not vitmed's
        return {}


def _picked(found: Any, paths: Sequence[str], form: Any, positive: str | None) -> AnyPredictions:
    """The predictions for these paths, in the form of others."""
    rows = {path: row for row, path in enumerate(found.paths)}
    picked: AnyPredictions = replace(found.take(np.array([rows[path] for path in paths], dtype=np.int64)), columns={})
    if isinstance(picked, Predictions):
        picked = replace(picked, positive=positive)
    return picked.like(form)
