"""Tables of labels: class, findings, grade or number of each image, with its patient, split and further columns."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitmed.core.base_models import CLASSES
from vitmed.core.errors import DataError, UsageError
from vitmed.core.text import counted, counted_doing, lines_of
from vitmed.core.upgrade import COLUMNS
from vitmed.data.folders import SPLIT_WORDS, split_of
from vitmed.data.label_kinds import (
    BAR,
    Asked,
    Read,
    bit_columns,
    cells_of_finding,
    number_in,
    read_findings,
    read_grades,
    read_number,
)
from vitmed.data.patient_names import known_by_column
from vitmed.data.tables import FIRST, GROUP_NAMES, LABEL_NAMES, PATH_NAMES, Table, read_table
from vitmed.metrics.predictions_csv import FIXED_COLUMNS, LABEL, LOGIT, OF_NUMBERS, PROB, WRITTEN

SPLIT_COLUMN_NAMES = ("split", "subset", "partition")
# Column names of predictions.csv and splits.csv.
TAKEN = (*FIXED_COLUMNS, *WRITTEN, *COLUMNS, "error", "sha256", "class", "split")
MANY_VALUES = 20  # numbers with fractions of more different values are a quantity
AUTO = Asked()


@dataclass(frozen=True)
class Labels:
    """The content of a table of labels, in the order of the images' paths.

    Attributes:
        images: index of each image into the given paths; read: what the labels are, of these images.
        groups: patients, or None; known: how they are known, in words.
        splits: train, val or test for each image, or None.
        columns: names of the further columns; rows: their cells.
        notes: messages for the user.
    """

    images: list[int]
    read: Read
    groups: list[str] | None
    splits: list[str] | None
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...]
    known: str = ""


def labels_from_table(
    file: str | Path, root: Path, paths: Sequence[str], own_groups: bool = True, asked: Asked = AUTO
) -> Labels:
    """The labels of every image that a table names, with patient, split and further columns if it has them.

    Images of which nothing is known are left out, with a note.

    Args:
        own_groups: whether to use the table's patient column; otherwise it is a further column.

    Raises:
        DataError: the table cannot be read, lacks a column or a value, names a missing file or an image twice, has a
            label that is none, or a further column with a name that vitmed uses.
        UsageError: as `read_targets`; or a finding is the column of paths, patients or splits.
    """
    table = read_table(file)
    path = table.required(table.find(PATH_NAMES, asked.card), "path of an image", PATH_NAMES)
    label = table.find(LABEL_NAMES, asked.card)
    split, group = table.find(SPLIT_COLUMN_NAMES), table.find(GROUP_NAMES, asked.card) if own_groups else None
    for column, what in ((path, "path"), (group, "patient"), (split, "split")):
        if column is not None and table.header[column] in asked.findings:
            name = table.header[column]
            problem = f"{table.file}: the column {name!r} holds the {what} of each image, so it cannot be a finding"
            raise UsageError(problem, "omit it from --finding, or rename the column")
    others = [i for i, name in enumerate(table.header) if name and i not in (path, label, group, split)]
    read = read_targets(table, label, others, asked)
    further = [i for i in others if i not in read.used]
    columns = tuple(table.header[i] for i in further)
    own = OF_NUMBERS if read.target.kind == "number" else [LABEL + name for name in read.outputs]
    taken = [name for name in columns if name in (*TAKEN, *own) or name.startswith((PROB, LOGIT))]
    if taken:
        of_label = "" if label is None else f" (the label comes from {table.header[label]!r})"
        raise DataError(
            f"{table.file}: the column {', '.join(taken)} has a name that predictions.csv uses itself",
            f"rename or remove it{of_label}",
        )
    row_of = _rows_by_image(table, path, root, paths, read)
    left = len(paths) - len(row_of)
    notes = [f"{left:,} of {len(paths):,} images are not in {table.file} and are left out"] if left else []
    rows = [row for row in row_of.values() if read.labels[row]]
    if unknown := [row for row in row_of.values() if not read.labels[row]]:
        lines = ", ".join(str(table.lines[row]) for row in unknown[:FIRST])
        are = counted_doing(len(unknown), "image", "has no label and is", "have no label and are")
        notes.append(f"{table.file}: {are} left out: line {lines}{', ...' * (len(unknown) > FIRST)}")

    def sorted_cells(column: int, what: str) -> list[str]:
        cells = table.cells(column, what)
        return [cells[row] for row in rows]

    values = None if read.values is None else read.values[rows]
    return Labels(
        images=[image for image, row in row_of.items() if read.labels[row]],
        read=replace(read, labels=[read.labels[row] for row in rows], values=values),
        groups=None if group is None else sorted_cells(group, "patient"),
        splits=None if split is None else _splits(table, split, sorted_cells(split, "split")),
        columns=columns,
        rows=[tuple(sys.intern(table.rows[row][i].strip()) for i in further) for row in rows],
        notes=(*table.notes, *read.notes, *notes),
        known="" if group is None else known_by_column(table.header[group], "--labels"),
    )


def _rows_by_image(table: Table, column: int, root: Path, paths: Sequence[str], read: Read) -> dict[int, int]:
    """Index of an image -> its row, ascending. Raises DataError for a row without an image, or an image with two."""
    images, missing = table.images(column, root, paths)
    rows: dict[int, int] = {}
    for row, image in enumerate(images):
        if image is not None and rows.setdefault(image, row) != row:
            lines = f"in line {table.lines[rows[image]]} and in line {table.lines[row]}"
            both = [(table.rows[rows[image]][i].strip(), table.rows[row][i].strip(), i) for i in read.used]
            if wrong := next((pair for pair in both if pair[0] != pair[1]), None):
                lines += f", which disagree: {table.header[wrong[2]]!r} is {wrong[0]!r} and {wrong[1]!r}"
            raise DataError(f"{table.file}: {paths[image]} is named {lines}", "keep one of the rows")
    if missing:
        raise DataError(
            f"{table.file}: {counted_doing(len(missing), 'row', 'matches', 'match')} no image below {root}:\n"
            + lines_of([*table.notes, *missing]),
            f"use paths relative to {root} or to the table, or remove the rows",
        )
    return dict(sorted(rows.items()))


def _splits(table: Table, column: int, cells: Sequence[str]) -> list[str]:
    names = {cell: split_of(cell) for cell in set(cells)}
    unknown = sorted(cell for cell, name in names.items() if name is None)
    if unknown:
        raise DataError(
            f"{table.file}: {', '.join(map(repr, unknown[:FIRST]))} in column {table.header[column]!r} is not a split",
            f"use one of {', '.join(SPLIT_WORDS)}; or rename the column",
        )
    return [str(names[cell]) for cell in cells]


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
    """The kind of the labels. Raises DataError for no column of labels, nor two of findings."""
    if label is None:
        columns, doubtful = bit_columns(table, others)
        if len(columns) < 2:
            for column in doubtful if len(columns) + len(doubtful) > 1 else ():
                cells_of_finding(table, column)  # raises
            raise DataError(
                f"{table.file}: no column for the label, nor two of 1 and 0 (findings); it has {table.names}",
                f"name it {LABEL_NAMES[0]} (or {', '.join(LABEL_NAMES[1:])}) in the first line, or --finding COLUMN",
            )
        return "findings"
    cells = [row[label].strip() for row in table.rows]
    if any(BAR in cell for cell in cells):
        return "findings"
    values = {number_in(cell) for cell in cells}
    numbers = {value for value in values if value is not None and math.isfinite(value)}
    fractions = any(value != int(value) for value in numbers)
    return "number" if None not in values and fractions and len(numbers) > MANY_VALUES else "classes"
