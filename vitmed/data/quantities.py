"""A number of each image, such as an age, and the ranges in proportion to which images are split."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.targets import Target
from vitmed.data.label_kinds import Asked, Read, number_in
from vitmed.data.tables import LABEL_NAMES, Table

MOST_BINS, IN_BIN = 10, 10  # ranges, and images that each needs


def read_number(table: Table, label: int | None, others: Sequence[int], asked: Asked) -> Read:
    """A quantity. Empty cells are not known; anything else that is no number is a DataError."""
    if label is None:
        named = [i for i in others if table.header[i] in asked.outputs]
        numeric = named or [i for i in others if _holds_numbers(table, i)]
        label = table.required(numeric[0] if len(numeric) == 1 else None, "number", LABEL_NAMES)
    cells = [row[label].strip() for row in table.rows]
    values = [number_in(cell) for cell in cells]
    for line, cell, value in zip(table.lines, cells, values, strict=True):
        if value is None or math.isinf(value):
            wrong = sum(v is None or math.isinf(v) for v in values)
            more = f", nor are {wrong - 1:,} others" if wrong > 1 else ""
            raise DataError(
                f"{table.file}: line {line}: {cell!r} in the column {table.header[label]!r} is not a number{more}",
                "write numbers such as 63 or 63.5, and nothing where it is not known",
            )
    name = "number" if table.find(LABEL_NAMES) == label else table.header[label]
    name = asked.outputs[0] if asked.outputs else name
    source = f"a number, {name!r}{f' in {asked.unit}' * bool(asked.unit)}, from {table.file.name}"
    return of_numbers(np.array(values, dtype=np.float64), name, asked.unit, source, str(table.file), (label,))


def of_numbers(values: np.ndarray, name: str, unit: str, source: str, where: str, used: tuple[int, ...] = ()) -> Read:
    """Numbers (R,), NaN where not known, as a `Read`. Raises DataError where all are the same."""
    known = np.isfinite(values)
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
    return strata.astype(np.int64), tuple(_apart(names))


def _apart(names: Sequence[str]) -> list[str]:
    """Names that six digits do not tell apart get a number."""
    seen = Counter(names)
    return [name if seen[name] == 1 else f"{name} ({k})" for k, name in enumerate(names)]


def _holds_numbers(table: Table, column: int) -> bool:
    """Whether all cells are numbers or empty, of more than two values."""
    values = {number_in(row[column].strip()) for row in table.rows}
    return None not in values and len({value for value in values if value is not None and math.isfinite(value)}) > 2
