"""Grades: classes in order, from the lowest to the highest."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vitmed.core.errors import DataError, UsageError
from vitmed.core.targets import Target
from vitmed.core.text import counted, listed
from vitmed.data.label_kinds import Asked, Read, number_in
from vitmed.data.tables import Table


def read_grades(table: Table, label: int, cells: Sequence[str], asked: Asked) -> Read:
    """Classes in order. Raises DataError for one that is not on the scale, with its line."""
    names = plain_grades([*dict.fromkeys(cells)])
    order = asked.order or asked.outputs
    if order:
        scale = plain_grades(order)
        strange = [cell for cell, name in names.items() if name not in scale.values()]
        if strange:
            line = next(line for line, cell in zip(table.lines, cells, strict=True) if cell in strange)
            cell = cells[table.lines.index(line)]
            raise DataError(
                f"{table.file}: line {line}: the grade {cell!r} is not on the scale {', '.join(order)}",
                "correct the grade, remove its row, or add it to --ordinal",
            )
        given = {plain: name for name, plain in scale.items()}
        names = {cell: given[name] for cell, name in names.items()}
    labels = [names[cell] for cell in cells]
    classes = grade_order(sorted(set(labels)), () if asked.outputs else asked.order, str(table.file))
    source = f"{counted(len(classes), 'grade')}, from {table.header[label]!r} of {table.file.name}"
    return Read(Target(kind="grades"), labels, asked.outputs or classes, source=source, used=(label,))


def plain_grades(names: Sequence[str]) -> dict[str, str]:
    """Name -> the same without the fraction that a program wrote: "2.0" -> "2", where all are such numbers."""
    values = {name: number_in(name) for name in names}
    if all(value is not None and value == value // 1 for value in values.values()):
        return {name: str(int(value or 0)) for name, value in values.items()}
    return {name: name for name in names}


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
