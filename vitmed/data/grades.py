"""Grades: classes in order, from the lowest to the highest."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vitmed.core.base_models import Target
from vitmed.core.errors import DataError, UsageError
from vitmed.core.text import counted, listed
from vitmed.data.label_kinds import Asked, Read, number_in
from vitmed.data.tables import Table


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
