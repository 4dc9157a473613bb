"""`Predictions`: what a model predicts for a set of images. Everything after the network starts from it.

Validation, evaluation and prediction all end in one of these, and every metric, figure and report is a
pure function of it. `predictions.csv` holds it completely, so a report can be rebuilt without a model.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from vitmed.core.aliases import COLUMNS, report_alias
from vitmed.core.csv_files import describe_header, read_text, rows_of, separator_of
from vitmed.core.errors import DataError

FIXED_COLUMNS = ("path", "label", "group", "prediction", "confidence")
OOD_SCORE = "ood_score"  # a further column, which a model with an out-of-distribution score writes
PROB, LOGIT = "prob_", "logit_"  # with the name of a class, the columns of its numbers
TEXTS = ("path", "label", "group", "prediction", "error")  # columns that hold no numbers of the model
LEAST = float(np.finfo(np.float32).tiny)  # stands for a probability of 0
NEAR = 1e-4  # a probability that differs by more than this does not follow from the logits


def softmax(logits: np.ndarray) -> np.ndarray:
    """(S, K) -> (S, K) float64 probabilities; rows sum to 1."""
    z = logits.astype(np.float64)
    z = np.exp(z - z.max(axis=1, keepdims=True)) if len(z) else z
    return z / z.sum(axis=1, keepdims=True) if len(z) else z


@dataclass(frozen=True)
class Predictions:
    """What a model predicts for S images, in one class order.

    Attributes:
        classes: the K class names, in the model's order.
        paths: S image paths, relative to the data root, with forward slashes.
        groups: S group (patient) names, or None where patients are unknown.
        labels: (S,) int64 indices into `classes`, or None where the truth is unknown.
        logits: (S, K) float32, the raw output of the network.
        calibrated: (S, K) float64, the probabilities after calibration; None: the softmax of the logits.
        positive: of two classes the name of the positive one; None: the names of the classes decide.
        columns: further columns of the table: name -> S cells.
        threshold: of two classes, the probability of `positive` from which an image is predicted positive; None: the
            likeliest class is predicted.
        costs: of more classes, K x K: the cost of predicting the column's class for an image of the row's; the class
            with the lowest expected cost is predicted.
        decided: (S,) int64, the predicted classes, where each of several models decided by a policy of its own;
            None: `threshold`, `costs` or the likeliest class decides.
        errors: per unreadable image, path -> what is wrong with it; such images have no row here.
        notes: what a reader must know about the table that they come from; not kept in the table.
        named: whether figures and tables may show paths; not kept in the table.
    """

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    groups: tuple[str, ...] | None
    labels: np.ndarray | None
    logits: np.ndarray
    errors: tuple[tuple[str, str], ...] = ()
    positive: str | None = None
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    threshold: float | None = None
    costs: tuple[tuple[float, ...], ...] | None = None
    notes: tuple[str, ...] = ()
    decided: np.ndarray | None = None
    named: bool = False
    calibrated: np.ndarray | None = None

    def __post_init__(self) -> None:
        size = len(self.paths)
        assert self.logits.shape == (size, len(self.classes)), self.logits.shape
        assert self.calibrated is None or self.calibrated.shape == self.logits.shape
        assert self.labels is None or self.labels.shape == (size,)
        assert self.groups is None or len(self.groups) == size
        assert all(len(cells) == size for cells in self.columns.values())
        assert self.threshold is None or (len(self.classes) == 2 and self.positive in self.classes)
        assert self.decided is None or self.decided.shape == (size,)
        assert self.costs is None or np.shape(self.costs) == (len(self.classes),) * 2

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: np.ndarray) -> Predictions:
        """Those of the given rows alone, in that order; without the unreadable images."""
        return replace(
            self,
            paths=tuple(self.paths[i] for i in rows),
            groups=None if self.groups is None else tuple(self.groups[i] for i in rows),
            labels=None if self.labels is None else self.labels[rows],
            logits=self.logits[rows],
            calibrated=None if self.calibrated is None else self.calibrated[rows],
            decided=None if self.decided is None else self.decided[rows],
            columns={name: tuple(cells[i] for i in rows) for name, cells in self.columns.items()},
            errors=(),
        )

    @cached_property
    def probabilities(self) -> np.ndarray:
        """(S, K) float64, rows sum to 1: calibrated where there is a calibration, else the softmax of the logits."""
        return softmax(self.logits) if self.calibrated is None else self.calibrated

    @cached_property
    def calibrated_logits(self) -> np.ndarray:
        """(S, K) float64: their softmax is `probabilities`."""
        if self.calibrated is None:
            return self.logits.astype(np.float64)
        return np.log(np.maximum(self.calibrated, np.finfo(np.float64).tiny))

    @cached_property
    def likeliest(self) -> np.ndarray:
        """(S,) int64: the class with the largest probability."""
        return self.calibrated_logits.argmax(axis=1).astype(np.int64)

    @cached_property
    def predicted(self) -> np.ndarray:
        """(S,) int64: the predicted class: as `decided`, by `threshold` or `costs`, else the likeliest."""
        if self.decided is not None:
            return self.decided
        if self.threshold is not None and self.positive is not None:
            positive = self.classes.index(self.positive)
            return np.where(self.probabilities[:, positive] >= self.threshold, positive, 1 - positive).astype(np.int64)
        if self.costs is not None:
            return (self.probabilities @ np.array(self.costs, dtype=np.float64)).argmin(axis=1).astype(np.int64)
        return self.likeliest

    @cached_property
    def confidence(self) -> np.ndarray:
        """(S,) float64: the probability of the predicted class."""
        return self.probabilities[np.arange(len(self)), self.predicted]

    def undecided(self) -> Predictions:
        """The raw logits alone: without calibration and decisions."""
        return replace(self, calibrated=None, threshold=None, costs=None, decided=None)

    def name(self, row: int) -> str:
        """The name of an image in a report: "row 7" for the seventh; its path if the user asks for paths."""
        return self.paths[row] if self.named else f"row {row + 1}"

    def header(self) -> list[str]:
        """Column names of `predictions.csv`, in order; those of `columns` stand at the end."""
        own = [f"{kind}_{name}" for kind in ("prob", "logit") for name in self.classes]
        return [*FIXED_COLUMNS, *own, *self.columns]

    def rows(self) -> list[list[str]]:
        """One row of text per image; floats are written so that they read back to the same bits."""
        rows = []
        for i, path in enumerate(self.paths):
            label = "" if self.labels is None else self.classes[self.labels[i]]
            group = "" if self.groups is None else self.groups[i]
            row = [path, label, group, self.classes[self.predicted[i]], repr(float(self.confidence[i]))]
            row += [repr(float(p)) for p in self.probabilities[i]]
            row += [repr(float(z)) for z in self.logits[i]]  # a float32 is exact as a float64
            row += [cells[i] for cells in self.columns.values()]
            rows.append(row)
        return rows

    def to_csv(self, errors: bool = False) -> str:
        """The text of `predictions.csv`. A file name that is no valid Unicode is written with backslashes.

        Args:
            errors: with a last column `error`, and a row with path and error for every unreadable image.
        """
        stream = io.StringIO(newline="")
        writer = csv.writer(stream)  # lines end in CR LF, so that a name that holds either is quoted
        columns, last = self.header(), ([""] if errors else [])
        writer.writerow([*columns, *(["error"] if errors else [])])
        writer.writerows([*row, *last] for row in self.rows())
        if errors:
            writer.writerows([path, *[""] * (len(columns) - 1), problem] for path, problem in self.errors)
        return stream.getvalue().encode("utf-8", "backslashreplace").decode("utf-8")

    @classmethod
    def from_csv(
        cls,
        file: str | Path,
        labelled: bool = False,
        as_decided: bool = False,
        calibrate: Callable[[Predictions], Predictions] | None = None,
    ) -> Predictions:
        """Read a `predictions.csv` back; labels, groups, logits and probabilities come out with the same bits.

        Without `calibrate` the probabilities of the table count where they differ from the softmax of its logits. In a
        table without logits, the logarithms of the probabilities stand for them. A row with an `error` is an
        image that could not be read. `notes` names contradictions and missing parts.

        Args:
            labelled: whether every image must have a label, since it is to be evaluated.
            as_decided: take predicted classes and probabilities as they stand: several models made them.
            calibrate: adds the probabilities of the decision policy that made the table.

        Raises:
            DataError: the file is missing, lacks a column, or holds a value that is not what it must be.
        """
        file = Path(file)
        table = _read(file)
        named = {kind: [name for name in table.header if name.startswith(kind)] for kind in (LOGIT, PROB)}
        kind = LOGIT if table.has(named[LOGIT]) or not table.has(named[PROB]) else PROB
        classes = tuple(name.removeprefix(kind) for name in named[kind])
        lacking = [LOGIT + name.removeprefix(PROB) for name in named[PROB] if name.removeprefix(PROB) not in classes]
        if lacking or not classes:
            raise DataError(
                f"{file}: lacks the column {', '.join(lacking) or 'logit_<class>'}; {table.found}",
                "give a predictions.csv, with commas, semicolons or tabs between the cells, and a logit_ column for "
                "every class",
            )
        chances = _probabilities(table, classes) if kind == PROB else None
        logits = _logits(table, named[LOGIT]) if chances is None else np.log(np.maximum(chances, LEAST))
        labels, groups = _labels(table, classes), tuple(table.cells("group"))
        if labelled and labels is None:
            found, fix = "it has no column label", "give the true class of every image"
            if not table.rows:
                found, fix = "it has no rows", "give a row for every image"
                found = f"none of its {len(table.errors):,} images could be read" if table.errors else found
            elif "label" in table.header:
                found = "its column label is empty"
            raise DataError(f"{file}: nothing can be evaluated, since {found}", fix)
        taken = {*FIXED_COLUMNS, "error", "", *named[LOGIT], *named[PROB]}
        read = cls(
            classes=classes,
            paths=tuple(path or str(number) for number, path in zip(table.numbers, table.cells("path"), strict=True)),
            groups=groups if any(groups) else None,
            labels=labels,
            logits=logits.astype(np.float32),
            errors=table.errors,
            columns={name: tuple(table.cells(name)) for name in table.header if name not in taken},
        )
        if calibrate is not None and not as_decided:
            read = calibrate(read)
        elif kind == LOGIT and _is_calibrated(table, read, as_decided):
            read = replace(read, calibrated=_probabilities(table, classes))
        decided = _decided(table, classes) if as_decided else None
        return replace(read, notes=tuple(_notes(table, read, kind)), decided=decided)


@dataclass(frozen=True)
class _Table:
    """The rows of a `predictions.csv`, of images that could be read.

    Attributes:
        file: where it was read; found: its first line, in words.
        header: names of the columns.
        numbers: which row below the first line each is, from 1; rows: name -> cell of each.
        errors: path and problem of the images that could not be read.
    """

    file: Path
    found: str
    header: list[str]
    numbers: list[int]
    rows: list[dict[str, str]]
    errors: tuple[tuple[str, str], ...]

    def has(self, columns: Sequence[str]) -> bool:
        """Whether there are such columns and, if there are rows, any cell in them is filled."""
        return bool(columns) and (not self.rows or any(row.get(name) for row in self.rows for name in columns))

    def cells(self, column: str) -> list[str]:
        """A column; empty where it is not there."""
        return [row.get(column, "") for row in self.rows]

    def floats(self, columns: Sequence[str]) -> np.ndarray:
        """(S, C) float64; NaN where a cell holds no number."""
        values = [[_float(row.get(name)) for name in columns] for row in self.rows]
        return np.array(values, dtype=np.float64).reshape(len(self.rows), len(columns))

    def wrong(self, row: int, column: str, expected: str) -> DataError:
        """The error for a cell that holds something else."""
        cell = self.rows[row].get(column)
        shown = "no cell" if cell is None else f"'{cell}'"
        return DataError(
            f"{self.file}: row {self.numbers[row]} has {shown} as {column}, expected {expected}",
            "correct it, or write the table again with vitmed evaluate",
        )


def _read(file: Path) -> _Table:
    """Rows and header of a table in any of the forms in which a spreadsheet saves it."""
    text = read_text(file, "a predictions.csv")
    separator = separator_of(text, _is_ours)
    try:
        lines = list(rows_of(text, separator))
    except csv.Error as error:
        raise DataError(f"{file}: is not CSV ({error})", "give a predictions.csv") from None
    header = _usual(lines[0])
    if twice := sorted({name for name in header if name and header.count(name) > 1}):
        raise DataError(f"{file}: has the column {', '.join(twice)} twice", "rename or remove one of them")
    numbers, rows, errors = [], [], []
    for number, cells in enumerate(lines[1:], start=1):
        if not any(cell.strip() for cell in cells):
            continue
        if any(cell.strip() for cell in cells[len(header) :]):
            raise DataError(
                f"{file}: row {number} has more cells than the table has columns",
                f"quote a cell that holds a {separator!r}",
            )
        row = dict(zip(header, cells, strict=False))
        if row.get("error", "").strip():
            errors.append((row.get("path") or str(number), row["error"]))
        else:
            numbers.append(number)
            rows.append(row)
    if separator != ",":
        _take_decimal_commas(header, rows)
    return _Table(file, describe_header(lines[0], separator), header, numbers, rows, tuple(errors))


def _is_ours(name: str) -> bool:
    return name.lower() in (*FIXED_COLUMNS, OOD_SCORE, *COLUMNS) or name.lower().startswith((PROB, LOGIT))


def _usual(header: Sequence[str]) -> list[str]:
    """The names of columns, of which ours may be written in capitals or with blanks around them."""
    names = []
    for name in header:
        low = name.strip().lower()
        if low in (*FIXED_COLUMNS, OOD_SCORE, "error") and low not in header:
            name = low
        if low in COLUMNS and COLUMNS[low] not in header:
            report_alias(low, name := COLUMNS[low])
        for kind in (PROB, LOGIT):
            if low.startswith(kind) and not any(other.startswith(kind) for other in header):
                name = kind + name.lstrip()[len(kind) :]
        names.append(name)
    return names


def _take_decimal_commas(header: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
    """Write 0,5 as 0.5 where the numbers of the model are written so; in place."""
    comma = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
    ours = [name for name in header if name == "confidence" or name.startswith((PROB, LOGIT))]
    if any(comma.fullmatch(row.get(name, "").strip()) for row in rows for name in ours):
        for row in rows:
            for name, cell in row.items():
                if name not in TEXTS and comma.fullmatch(cell.strip()):
                    row[name] = cell.strip().replace(",", ".")


def _float(cell: str | None) -> float:
    try:
        return float(cell or "")
    except ValueError:
        return math.nan


def _logits(table: _Table, columns: Sequence[str]) -> np.ndarray:
    """(S, K) float64, each finite as a float32 too."""
    logits = table.floats(columns)
    with np.errstate(over="ignore"):
        wrong = np.argwhere(~np.isfinite(logits.astype(np.float32)))
    if len(wrong):
        raise table.wrong(int(wrong[0][0]), columns[wrong[0][1]], "a finite number")
    return logits


def _is_calibrated(table: _Table, read: Predictions, known: bool) -> bool:
    """Whether the probabilities of a table are others than the softmax of its logits; if `known`, whether it has any.

    A row in which somebody edited a cell does not sum to 1 and does not count.
    """
    columns = [PROB + name for name in read.classes]
    if not set(columns) <= set(table.header) or not table.has(columns):
        return False
    if known:
        return True
    chances = table.floats(columns)
    whole = np.abs(chances.sum(axis=1) - 1) < 1e-6
    return bool((np.abs(chances - read.probabilities) > NEAR)[whole].any())


def _probabilities(table: _Table, classes: Sequence[str]) -> np.ndarray:
    """(S, K) float64, the `prob_` columns."""
    columns = [PROB + name for name in classes]
    chances = table.floats(columns)
    wrong = np.argwhere(~((chances >= 0) & (chances <= 1)))
    if len(wrong):
        raise table.wrong(int(wrong[0][0]), columns[wrong[0][1]], "a probability from 0 to 1")
    sums = chances.sum(axis=1)
    far = np.flatnonzero(np.abs(sums - 1) > 1e-3)
    if len(far):
        raise DataError(
            f"{table.file}: row {table.numbers[far[0]]} has probabilities that sum to {sums[far[0]]:.4g}, expected 1",
            "correct it, or give the probabilities of every class",
        )
    return chances


def _labels(table: _Table, classes: tuple[str, ...]) -> np.ndarray | None:
    """(S,) int64; None where no image has one."""
    index, cells = {name: i for i, name in enumerate(classes)}, table.cells("label")
    for number, cell in zip(table.numbers, cells, strict=True):
        if cell and cell not in index:
            raise DataError(
                f"{table.file}: row {number} has the label '{cell}', expected one of {', '.join(classes[:20])} (or the "
                f"table lacks the column logit_{cell})",
                "correct the label, or write the table again with vitmed evaluate",
            )
    if not any(cells):
        return None
    if "" in cells:
        raise DataError(
            f"{table.file}: some rows have a label and some have none, the first is row "
            f"{table.numbers[cells.index('')]}",
            "fill the label column, or empty it",
        )
    return np.array([index[cell] for cell in cells], dtype=np.int64)


def _decided(table: _Table, classes: tuple[str, ...]) -> np.ndarray:
    """(S,) int64, the column `prediction`; DataError where a cell is no class."""
    index = {name: k for k, name in enumerate(classes)}
    for row, cell in enumerate(table.cells("prediction")):
        if cell not in index:
            raise table.wrong(row, "prediction", f"one of {', '.join(classes[:20])}")
    return np.array([index[cell] for cell in table.cells("prediction")], dtype=np.int64)


def _notes(table: _Table, found: Predictions, kind: str) -> list[str]:
    """Notes on cells that contradict the logits (or probabilities) that count, and on scores that are no numbers."""
    source, near = ("logits", NEAR) if kind == LOGIT else ("probabilities", 1e-3)
    notes = [] if kind == LOGIT else ["The table has no logits: the logarithms of its probabilities stand for them."]
    first: dict[int, str] = {}  # row -> column that contradicts
    off = {"probability": 0, "prediction": 0, "confidence": 0}
    columns = [PROB + name for name in found.classes if PROB + name in table.header]
    if kind == LOGIT and table.has(columns):
        place = [found.classes.index(name.removeprefix(PROB)) for name in columns]
        wrong = ~(np.abs(table.floats(columns) - found.probabilities[:, place]) <= near)
        off["probability"] = int(wrong.any(axis=1).sum())
        first = {int(row): columns[int(wrong[row].argmax())] for row in np.flatnonzero(wrong.any(axis=1))}
    predicted = table.cells("prediction")
    if table.has(["prediction"]):  # which class it is, a threshold may have decided
        for row, cell in enumerate(predicted):
            if cell not in found.classes:
                off["prediction"] += 1
                first.setdefault(row, "prediction")
    if table.has(["confidence"]):
        for row, value in enumerate(table.floats(["confidence"])[:, 0]):
            chances = found.probabilities[row]
            own = chances[[found.classes.index(predicted[row])]] if predicted[row] in found.classes else chances
            if not (np.abs(own - value) <= near).any():
                off["confidence"] += 1
                first.setdefault(row, "confidence")
    if first:
        row = min(first)
        notes.append(
            f"{_rows(len(first))} a {' or '.join(what for what, n in off.items() if n)} that does not follow from the "
            f"{source}, the first is row {table.numbers[row]} ({first[row]}); the {source} count. Edit those"
            f"{', or remove the logit_ columns' if kind == LOGIT else ''}."
        )
    strange = np.flatnonzero(~np.isfinite(table.floats([OOD_SCORE])[:, 0]))
    if len(strange) and OOD_SCORE in table.header:
        notes.append(
            f"{_rows(len(strange))} an {OOD_SCORE} that is not a number, the first is row {table.numbers[strange[0]]}; "
            "so the report leaves the out-of-distribution scores out."
        )
    return notes


def _rows(count: int) -> str:
    return "1 row of the table has" if count == 1 else f"{count:,} rows of the table have"
