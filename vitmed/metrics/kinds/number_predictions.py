"""`NumberPredictions`: what a model predicts of a quantity, such as an age, with its uncertainty.

Its table: path, label, group, prediction, low, high (of the interval; empty without), raw_location, raw_log_scale (the
outputs of the network); then the same in every row: reach, target_name, the fields of `Target`; then further columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from vitmed.core.base_models import SIDES, Kind, Target
from vitmed.core.errors import DataError
from vitmed.core.upgrade import READER
from vitmed.metrics.predictions import PerImage, known_labels
from vitmed.metrics.predictions_csv import FIXED_COLUMNS, OF_NUMBERS, RAW, TARGET, Table, read_table

FIRST = FIXED_COLUMNS[:4]
ENDS = ("low", "high")  # columns of the interval
TINY = float(np.finfo(np.float64).tiny)
NEAR = 1e-4  # of the spread: a prediction that differs by more does not follow from the outputs of the network


@dataclass(frozen=True)
class NumberPredictions(PerImage):
    """What a model predicts of a number for S images; the table does not keep `notes` and `named`."""

    classes: tuple[str, ...]  # the name of the number alone
    paths: tuple[str, ...]  # S, relative to the data root, with forward slashes
    groups: tuple[str, ...] | None  # S group (patient) names; None: unknown
    labels: np.ndarray | None  # (S,) float64, in the unit; None: unknown
    logits: np.ndarray  # (S, 2) float32, the raw output of the network: location, log of the scale, both standardised
    target: Target  # unit, centre and spread of the number
    errors: tuple[tuple[str, str], ...] = ()  # path and problem of each unreadable image, which has no row here
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)  # further columns of the table: name -> S cells
    reach: float | None = None  # the interval reaches so many scales up and down; None: no interval
    decided: np.ndarray | None = None  # (S, 2) ends of intervals, in the unit, where each of several models has its own
    notes: tuple[str, ...] = ()  # what a reader must know about the table
    named: bool = False  # whether figures and tables may show paths

    kind: ClassVar[Kind] = "number"  # a key of `TARGETS`
    UNLABELLED: ClassVar[str] = "give the true number of every image"
    BY_ROW: ClassVar[tuple[str, ...]] = ("labels", "logits", "decided")

    def __post_init__(self) -> None:
        size = len(self.paths)
        assert self.logits.shape == (size, 2), self.logits.shape
        assert self.labels is None or self.labels.shape == (size,)
        assert self.decided is None or self.decided.shape == (size, 2)
        assert self.groups is None or len(self.groups) == size
        assert all(len(cells) == size for cells in self.columns.values())

    def like(self, other: NumberPredictions) -> NumberPredictions:
        """The same numbers and scales in the unit, standardised as those of another."""
        return self.standardised(other.target.centre, other.target.spread)

    def standardised(self, centre: float, spread: float) -> NumberPredictions:
        """The same numbers and scales in the unit, by another centre and spread; to the rounding of `logits`."""
        target = self.target.model_copy(update={"centre": centre, "spread": spread})
        if target == self.target:
            return self
        logits = np.stack([(self.values - centre) / spread, np.log(self.scales / spread)], axis=1)
        return replace(self, logits=logits.astype(np.float32), target=target)

    @cached_property
    def values(self) -> np.ndarray:
        """(S,) float64: the predicted numbers, in the unit."""
        return self.target.centre + self.target.spread * self.logits[:, 0].astype(np.float64)

    @cached_property
    def scales(self) -> np.ndarray:
        """(S,) float64: the predicted scale of the error, in the unit; above 0."""
        with np.errstate(over="ignore"):
            return self.target.spread * np.exp(self.logits[:, 1].astype(np.float64))

    @cached_property
    def intervals(self) -> np.ndarray | None:
        """(S, 2) float64: lower and upper end of the prediction intervals, in the unit; None where there are none."""
        if self.reach is None:
            return self.decided
        return np.stack([self.values - self.reach * self.scales, self.values + self.reach * self.scales], axis=1)

    @property
    def answers(self) -> tuple[str, ...]:
        """What an attention map can explain: why the number is lower, or higher, than the mean of training."""
        return SIDES

    @cached_property
    def explained(self) -> np.ndarray:
        """(S,) int64: which of `answers` it explains, unless you name another: the side of the prediction."""
        return (self.logits[:, 0] >= 0).astype(np.int64)

    @cached_property
    def right(self) -> np.ndarray:
        """(S,) bool: whether the true number is in the prediction interval; False where there are no intervals."""
        ends, labels = self.intervals, known_labels(self)
        return np.zeros(len(self), bool) if ends is None else (ends[:, 0] <= labels) & (labels <= ends[:, 1])

    def mistakes(self) -> np.ndarray:
        """(N,) the rows that are not `right`, the largest error first."""
        wrong = np.flatnonzero(~self.right)
        return wrong[np.argsort(-np.abs(self.values - known_labels(self))[wrong], kind="stable")]

    def undecided(self) -> NumberPredictions:
        """The outputs of the network alone: without intervals."""
        return replace(self, reach=None, decided=None)

    def header(self) -> list[str]:
        """Column names of `predictions.csv`, in order."""
        return [*FIRST, *OF_NUMBERS, *self.columns]

    def rows(self) -> list[list[str]]:
        """One row of text per image; floats are written so that they read back to the same bits."""
        unknown = np.full(len(self), np.nan)
        labels = unknown if self.labels is None else self.labels
        ends = np.stack([unknown, unknown], axis=1) if self.intervals is None else self.intervals
        numbers = np.column_stack([labels, self.values, ends, self.logits]).tolist()
        target = self.target
        same = ["" if self.reach is None else repr(self.reach), self.classes[0], target.unit]
        same += [repr(target.centre), repr(target.spread), target.distribution]
        rows = []
        for i, path in enumerate(self.paths):
            label, *others = ("" if np.isnan(number) else repr(number) for number in numbers[i])
            group = "" if self.groups is None else self.groups[i]
            rows.append([path, label, group, *others, *same, *(cells[i] for cells in self.columns.values())])
        return rows

    def numbers(self) -> dict[str, np.ndarray]:
        """The columns of `predictions.csv` that hold numbers, (S,) float64, or float32 of the network; NaN: empty."""
        unknown = np.full(len(self), np.nan)
        ends = [unknown, unknown] if self.intervals is None else self.intervals.T
        same = [np.nan if self.reach is None else self.reach, self.target.centre, self.target.spread]
        names = ["prediction", *ENDS, *RAW, "reach", TARGET + "centre", TARGET + "spread"]
        columns = [self.values, *ends, *self.logits.T, *(np.full(len(self), one) for one in same)]
        return dict(zip(names, columns, strict=True))

    @classmethod
    def from_csv(
        cls,
        file: str | Path | Table,
        labelled: bool = False,
        as_decided: bool = False,
        calibrate: Callable[[NumberPredictions], NumberPredictions] | None = None,
        target: Target | None = None,
    ) -> NumberPredictions:
        """Read a `predictions.csv` back; labels, outputs of the network and intervals come out with the same bits.

        Args:
            labelled: whether every image must have a label.
            as_decided: keep the intervals of the table, which several models made, whatever `calibrate` gives.
            calibrate: adds the intervals of the decision policy that made the table.
            target: what is known of the number; None: the table states it.

        Raises:
            DataError: the file is missing, lacks a column, or holds a value that is not what it must be.
        """
        table = read_table(file)
        needed = [*RAW, *([TARGET + "centre", TARGET + "spread"] if target is None else [])]
        if missing := [name for name in needed if name not in table.header]:
            expected = f"give a predictions.csv with the columns {', '.join(FIRST + OF_NUMBERS)}"
            raise DataError(f"{file}: lacks the column {', '.join(missing)}; {table.found}", expected)
        labels, (groups, joined) = _labels(table), table.patients()
        if labelled and labels is None:
            raise table.unlabelled("label", "label" in table.header, "give the true number of every image")
        read = cls(
            classes=(_same(table, TARGET + "name") or "number",),
            paths=table.paths(),
            groups=groups,
            labels=labels,
            logits=table.logits(RAW).astype(np.float32),
            target=_target(table) if target is None else target,
            errors=table.errors,
            columns=table.further([*FIRST, *OF_NUMBERS], ()),
            reach=_float(table, "reach", 0.0) if _same(table, "reach") else None,
        )
        if calibrate is not None and not as_decided:
            read = calibrate(read)
        ends = table.floats(ENDS)
        if as_decided and read.reach is None and np.isfinite(ends).all():
            read = replace(read, decided=ends)
        off = np.abs(table.floats(["prediction"])[:, 0] - read.values) > NEAR * read.target.spread
        notes = [*table.prediction_note(off, " and ".join(RAW)), *table.ood_note()]
        return replace(read, notes=(*joined, *notes))


def is_of_number(header: Sequence[str]) -> bool:
    """Whether the columns, as `Table.header` names them, are those of predictions of a number."""
    return set(RAW) <= set(header)


def _labels(table: Table) -> np.ndarray | None:
    """(S,) float64; None where no image has one."""
    cells = table.cells("label")
    if not any(cell.strip() for cell in cells):
        return None
    labels = table.floats(["label"])[:, 0]
    for row in np.flatnonzero(~np.isfinite(labels))[:1]:
        if not cells[row].strip():
            problem = f"{table.file}: some rows have a label and some have none, the first is row {table.numbers[row]}"
            raise DataError(problem, "fill the label column, or empty it")
        raise table.wrong(int(row), "label", "a finite number")
    return labels


def _same(table: Table, column: str) -> str:
    """The cell that all rows of a column have; "" without a row. Raises DataError where they differ."""
    cells = table.cells(column)
    for row, cell in enumerate(cells):
        if cell != cells[0]:
            raise table.wrong(row, column, f"'{cells[0]}' as in the first row")
    return cells[0] if cells else ""


def _float(table: Table, column: str, least: float = -np.inf) -> float:
    """The number, not below `least`, that all rows of a column have."""
    _same(table, column)
    value = float(table.floats([column])[0, 0])
    if not (np.isfinite(value) and value >= least):
        raise table.wrong(0, column, "a finite number" + (f" of at least {least:g}" if least > -np.inf else ""))
    return value


def _target(table: Table) -> Target:
    """What a table states of its number."""
    if not table.rows:
        return Target(kind="number")
    centre, spread = _float(table, TARGET + "centre"), _float(table, TARGET + "spread", TINY)
    if _same(table, TARGET + "distribution") not in ("", "gaussian"):
        raise table.wrong(0, TARGET + "distribution", f"gaussian (vitmed {READER} reads laplace)")
    return Target(kind="number", unit=_same(table, TARGET + "unit"), centre=centre, spread=spread)
