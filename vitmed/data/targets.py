"""The labels of a table, of the kind that you ask for, or that the table shows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vitmed.core.base_models import CLASSES
from vitmed.core.text import counted
from vitmed.data.finding_labels import BAR, columns_of_findings, read_findings
from vitmed.data.label_kinds import Asked, Read, number_in, read_grades, read_number
from vitmed.data.tables import LABEL_NAMES, Table

MANY_VALUES = 20  # numbers with fractions of more different values are a quantity


def read_targets(table: Table, label: int | None, others: Sequence[int], asked: Asked) -> Read:
    """The labels of every row of a table.

    Args:
        label: the column of labels, if it has one of the usual names.
        others: the columns that are neither path, patient, split nor label.

    Raises:
        DataError: no such column, or a cell that is no label; with the line.
        UsageError: a finding that is no column.
    """
    kind = asked.kind if asked.kind != "auto" else _recognise(table, label, others)
    if kind == "findings":
        return read_findings(table, label, others, asked)
    if kind == "number":
        return read_number(table, label, others, asked)
    label = table.required(label, "label", LABEL_NAMES)
    cells = table.cells(label, "label")
    if kind == "grades":
        return read_grades(table, label, cells, asked)
    source, values = "", {number_in(cell) for cell in cells}
    if asked.kind == "auto" and len(values) > 2 and None not in values:
        source = (
            f"{counted(len(set(cells)), 'class')} without an order, from the numbers in {table.header[label]!r} of "
            f"{table.file.name} (--target grades if they are in order, --target number if they are a quantity)"
        )
    return Read(CLASSES, cells, tuple(sorted(set(cells))), source=source, used=(label,))


def _recognise(table: Table, label: int | None, others: Sequence[int]) -> str:
    """The kind of the labels."""
    if label is None:
        columns_of_findings(table, others)
        return "findings"
    cells = [row[label].strip() for row in table.rows]
    if any(BAR in cell for cell in cells):
        return "findings"
    values = {number_in(cell) for cell in cells}
    numbers = {value for value in values if value is not None and math.isfinite(value)}
    fractions = any(value != int(value) for value in numbers)
    return "number" if None not in values and fractions and len(numbers) > MANY_VALUES else "classes"
