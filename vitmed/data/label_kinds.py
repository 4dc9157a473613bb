"""The kinds of labels: what you ask of the labels of images, what was read, and how a table holds grades or a number.

Grades are classes in order. A number, such as an age, has ranges in proportion to which images are split. Findings are
in `finding_labels`.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vitmed.core.base_models import Target
from vitmed.core.errors import DataError, UsageError
from vitmed.core.sections import DataConfig
from vitmed.core.text import counted, counted_doing, listed
from vitmed.data.tables import LABEL_NAMES, Table

CLEAR = 0.9  # share of numbers, or of 1 and 0, in a column from which another cell looks like a mistake
MOST = 1e15  # beyond it, squares lose the digits of other numbers
MOST_BINS, IN_BIN = 10, 10  # ranges of a number, and images that each needs
MISSING = {"", "nan", "na", "n/a", "null", "unknown", "?"}  # cells of which the label is not known


class Asked(NamedTuple):
    """What you ask of the labels: fields of `DataConfig`; the grades in order; the outputs of a model to evaluate.

    The findings of a model that a table lacks are not known; other findings of the table do not count. A card may name
    the columns of the table.
    """

    kind: str = "auto"
    findings: tuple[str, ...] = ()
    uncertain: str = "ignore"
    unit: str = ""
    order: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    card: str | None = None

    @classmethod
    def of(cls, config: DataConfig, ordinal: Sequence[str] = ()) -> Asked:
        """As configured. Raises UsageError for fields that do not go together."""
        kind: str = config.target
        for flag, given, needed in (
            ("--finding", config.findings, "findings"),
            ("--unit", config.unit, "number"),
            ("--ordinal", ordinal, "grades"),
        ):
            if given and kind not in ("auto", needed) and (flag, kind) != ("--ordinal", "classes"):
                raise UsageError(f"{flag} is for --target {needed}, not for --target {kind}", f"omit {flag}")
            kind = needed if given and kind == "auto" else kind
        order = tuple(ordinal) if kind == "grades" else ()
        return cls(kind, tuple(config.findings), config.uncertain, config.unit, order, card=config.card)

    def check_folders(self) -> None:
        """Raises UsageError for labels that no folder can name."""
        if self.kind in ("findings", "number"):
            raise UsageError(f"--target {self.kind}: folders name one class of an image", "add --labels TABLE")


@dataclass(frozen=True)
class Read:
    """The labels of R rows, or of R images.

    Attributes:
        labels: names of the class, the grade, or the stratum of each; "" where nothing is known.
        classes: these names in order.
        outputs: names of the findings, or of the number; () for classes and grades.
        values: of findings (R, F) 1, 0 or `UNKNOWN`, of a number (R, 1); None for classes and grades.
        source: what was recognised, in words; notes: warnings for the user.
        used: the columns that hold the labels.
    """

    target: Target
    labels: list[str]
    classes: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    values: np.ndarray | None = None
    source: str = ""
    notes: tuple[str, ...] = ()
    used: tuple[int, ...] = ()


def number_in(cell: str) -> float | None:
    """The number in a cell, NaN for an empty one; None for anything else."""
    if cell.lower() in MISSING:
        return math.nan
    with contextlib.suppress(ValueError):
        return float(cell) if "_" not in cell else None
    return None


def read_grades(table: Table, label: int, cells: Sequence[str], asked: Asked) -> Read:
    """Classes in order. Raises DataError for one that is not on the scale, with its line."""
    order, names = asked.order or asked.outputs, {cell: plain_grade(cell) for cell in cells}
    if order:
        scale = {plain_grade(name): name for name in order}
        for line, cell in zip(table.lines, cells, strict=True):
            if names[cell] not in scale:
                raise DataError(
                    f"{table.file}: line {line}: the grade {cell!r} is not on the scale {', '.join(order)}",
                    "correct the grade, or remove its row" + (", or add it to --ordinal" * (not asked.outputs)),
                )
        names = {cell: scale[name] for cell, name in names.items()}
    labels = [names[cell] for cell in cells]
    classes = asked.outputs or grade_order(sorted(set(labels)), asked.order, str(table.file))
    source = f"{counted(len(classes), 'grade')}, from {table.header[label]!r} of {table.file.name}"
    return Read(Target(kind="grades"), labels, classes, source=source, used=(label,))


def plain_grade(name: str) -> str:
    """The name of a grade, without the fraction that a program wrote: "2.0" -> "2"."""
    value = number_in(name)
    return str(int(value)) if value is not None and value == value // 1 else name


def grade_order(classes: Sequence[str], order: Sequence[str], where: str) -> tuple[str, ...]:
    """The classes from the lowest grade to the highest: as `order` says, else by the one number in each name.

    Raises:
        DataError: a class that is not in the order, or no order in the names.
        UsageError: an order with a class that is not there.
    """
    if order:
        if strange := [name for name in classes if name not in order]:
            raise DataError(
                f"{where}: the grade {strange[0]!r} is not on the scale {', '.join(order)}",
                "rename it, remove it, or add it to --ordinal",
            )
        if missing := [name for name in order if name not in classes]:
            raise UsageError(
                f"--ordinal {','.join(order)}: no image has the grade {missing[0]!r}; there are {listed(classes)}",
                "omit it, or correct the name",
            )
        return tuple(dict.fromkeys(order))
    numbers = [re.findall(r"\d+(?:\.\d+)?", name) for name in classes]
    if any(len(found) != 1 for found in numbers) or len({float(found[0]) for found in numbers}) < len(classes):
        raise DataError(
            f"{where}: the names of the grades have no order: {listed([*map(repr, classes)])}",
            f"name them from the lowest to the highest: --ordinal {','.join(classes)}",
        )
    return tuple(sorted(classes, key=lambda name: float(numbers[classes.index(name)][0])))


def read_number(table: Table, label: int | None, others: Sequence[int], asked: Asked) -> Read:
    """A quantity. Empty cells are not known; anything else that is no number is a DataError."""
    if label is None:
        label = table.required(_column_of_numbers(table, others, asked), "number", LABEL_NAMES)
    cells = [row[label].strip() for row in table.rows]
    values = [number_in(cell) for cell in cells]
    for line, cell, value in zip(table.lines, cells, values, strict=True):
        if value is None or math.isinf(value):
            wrong = sum(v is None or math.isinf(v) for v in values)
            more = f", and {counted_doing(wrong - 1, 'other cell', 'is', 'are')} not either" if wrong > 1 else ""
            raise DataError(
                f"{table.file}: line {line}: {cell!r} in the column {table.header[label]!r} is not a number{more}",
                "write numbers such as 63 or 63.5, with a point and without a unit, and nothing where it is not known",
            )
    name = "number" if table.find(LABEL_NAMES) == label else table.header[label]
    name = asked.outputs[0] if asked.outputs else name
    source = f"a number, {name!r}{f' in {asked.unit}' * bool(asked.unit)}, from {table.file.name}"
    return _of_numbers(table, np.array(values, dtype=np.float64), name, asked.unit, source, (label,))


def _of_numbers(table: Table, values: np.ndarray, name: str, unit: str, source: str, used: tuple[int, ...]) -> Read:
    """Numbers (R,), NaN where not known, as a `Read`. Raises DataError where all are the same, or one is too large."""
    known = np.isfinite(values)
    if (large := values[known & (np.abs(values) > MOST)]).size:
        problem = f"{table.file}: the number {large[0]:g} is too large to compute with"
        raise DataError(problem, "correct it, or choose a larger unit")
    if len(np.unique(values[known])) < 2:
        what = f"all numbers are {values[known][0]:g}" if known.any() else "no number is known"
        raise DataError(f"{table.file}: {what}", "a model of a number needs different ones")
    strata, names = number_strata(values[known])
    labels = np.full(len(values), "", dtype=object)
    labels[known] = [names[k] for k in strata.tolist()]
    target = Target(kind="number", unit=unit)
    return Read(target, labels.tolist(), names, (name,), values[:, None], source, used=used)


def number_strata(values: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Ranges with about as many of the numbers (S,) in each: the index of each number's range, and their names."""
    bins = max(1, min(MOST_BINS, len(values) // IN_BIN))
    edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)))
    strata = np.searchsorted(edges[1:-1], values, side="right")
    strata = np.unique(strata, return_inverse=True)[1]  # no range without a number
    inside = [values[strata == k] for k in range(int(strata.max()) + 1)]
    names = [f"{part.min():g} to {part.max():g}" if part.min() < part.max() else f"{part[0]:g}" for part in inside]
    seen = Counter(names)
    apart = (name if seen[name] == 1 else f"{name} ({k})" for k, name in enumerate(names))
    return strata.astype(np.int64), tuple(apart)


def _column_of_numbers(table: Table, others: Sequence[int], asked: Asked) -> int | None:
    """The number of a model; else the one column of more than two numbers, or of little else than numbers, whose other
    cells are mistakes; None for none or several."""
    if named := [i for i in others if table.header[i] in asked.outputs]:
        return named[0]
    cells = {i: [number_in(cell) for row in table.rows if (cell := row[i].strip())] for i in others}
    numbers = {i: [value for value in own if value is not None and math.isfinite(value)] for i, own in cells.items()}
    clear = [i for i in others if None not in cells[i] and len(set(numbers[i])) > 2]
    near = [i for i in others if numbers[i] and len(numbers[i]) >= CLEAR * len(cells[i])]
    return next((found[0] for found in (clear, near) if len(found) == 1), None)
