"""Tables of labels: class, findings, grade or number of each image, with its patient, split and further columns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitmed.core.errors import DataError, UsageError
from vitmed.core.text import counted_doing, lines_of
from vitmed.core.upgrade import COLUMNS
from vitmed.data.folders import SPLIT_WORDS, split_of
from vitmed.data.label_kinds import Asked, Read
from vitmed.data.label_tables import read_targets
from vitmed.data.patient_names import known_by_column
from vitmed.data.tables import FIRST, GROUP_NAMES, LABEL_NAMES, PATH_NAMES, Table, read_table
from vitmed.metrics.predictions_csv import FIXED_COLUMNS, LABEL, LOGIT, OF_NUMBERS, PROB, WRITTEN

SPLIT_COLUMN_NAMES = ("split", "subset", "partition")
# Column names of predictions.csv and splits.csv.
TAKEN = (*FIXED_COLUMNS, *WRITTEN, *COLUMNS, "error", "sha256", "class", "split")
AUTO = Asked()


@dataclass(frozen=True)
class Labels:
    """The content of a table of labels, in the order of the images' paths.

    Attributes:
        images: index of each image into the given paths.
        read: what the labels are, for these images in this order.
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
        asked: what the labels are.

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

    return Labels(
        images=[image for image, row in row_of.items() if read.labels[row]],
        read=read.of_rows(rows),
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
