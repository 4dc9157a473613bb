"""A number of each image, such as an age, and the ranges in proportion to which images are split."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from vitmed.core.base_models import Target
from vitmed.core.errors import DataError
from vitmed.core.text import counted_doing
from vitmed.data.label_kinds import Asked, Read, number_in
from vitmed.data.tables import LABEL_NAMES, Table

CLEAR = 0.9  # share of numbers among the cells of a column from which another cell looks like a mistake
MOST = 1e15  # beyond it, squares lose the digits of other numbers
MOST_BINS, IN_BIN = 10, 10  # ranges, and images that each needs


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
    return of_numbers(np.array(values, dtype=np.float64), name, asked.unit, source, str(table.file), (label,))


def of_numbers(values: np.ndarray, name: str, unit: str, source: str, where: str, used: tuple[int, ...] = ()) -> Read:
    """Numbers (R,), NaN where not known, as a `Read`. Raises DataError where all are the same, or one is too large."""
    known = np.isfinite(values)
    if (large := values[known & (np.abs(values) > MOST)]).size:
        problem = f"{where}: the number {large[0]:g} is too large to compute with"
        raise DataError(problem, "correct it, or choose a larger unit")
    if len(np.unique(values[known])) < 2:
        raise DataError(
            f"{where}: all numbers are {values[known][0]:g}" if known.any() else f"{where}: no number is known",
            "a model of a number needs different ones",
        )
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
