"""CSV tables with patient, label, split and further columns for each image."""

from __future__ import annotations

import csv
import io
import os
import posixpath
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitmed.core.aliases import COLUMNS
from vitmed.core.csv_files import read_text
from vitmed.core.errors import DataError
from vitmed.data.split_names import SPLIT_NAMES, split_of
from vitmed.metrics.predictions_csv import FIXED_COLUMNS, OOD_SCORE

# The first of these names in a table is used; case, spaces and hyphens do not matter.
PATH_NAMES = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "image_name",
              "image_id", "image_index", "img")  # fmt: skip
GROUP_NAMES = ("patient", "patient_id", "patientid", "group", "subject", "subject_id", "case", "case_id")
LABEL_NAMES = ("label", "class", "diagnosis", "target", "dx")
SPLIT_COLUMN_NAMES = ("split", "subset", "partition")
# Column names of predictions.csv and splits.csv.
TAKEN = (*FIXED_COLUMNS, OOD_SCORE, *COLUMNS, "error", "sha256", "class", "split")
FIRST = 5  # most items that a message lists


@dataclass(frozen=True)
class Table:
    """A CSV file with a header.

    Attributes:
        file: its path.
        header: column names, as written.
        lines: line number of each row in the file, 1-based.
        rows: their cells, one per column.
    """

    file: Path
    header: list[str]
    lines: list[int]
    rows: list[list[str]]

    def find(self, names: Sequence[str]) -> int | None:
        """The index of the first of these columns that the table has, or None."""
        plain = [re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") for name in self.header]
        return next((plain.index(name) for name in names if name in plain), None)

    def cells(self, column: int, what: str) -> list[str]:
        """The stripped text of a column. Raises DataError, which names the rows with an empty cell."""
        found = [sys.intern(row[column].strip()) for row in self.rows]
        empty = [line for line, cell in zip(self.lines, found, strict=True) if not cell]
        if empty:
            raise DataError(
                f"{self.file}: {len(empty):,} rows have no {what} (column {self.header[column]!r}): line "
                + ", ".join(map(str, empty[:FIRST])),
                "fill them, or remove the rows",
            )
        return found

    def missing_column(self, what: str, names: Sequence[str]) -> DataError:
        """The error for a missing column."""
        return DataError(
            f"{self.file}: no column for the {what}; it has {', '.join(map(repr, self.header))}",
            f"name it {names[0]} (or {', '.join(names[1:])}) in the first line",
        )


def read_table(file: str | Path) -> Table:
    """Read a CSV file, with the separator (comma, semicolon or tab) that is most frequent in the header.

    Raises:
        DataError: missing, not text, no rows, a name twice in the header, or a row of another length (with its line).
    """
    file = Path(file)
    text = read_text(file, "a CSV table")
    first = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count), strict=True)
    lines, rows, header = [], [], None
    try:
        for row in reader:
            if header is None:
                header = [name.strip() for name in row]
            elif len(row) == len(header):
                lines.append(reader.line_num)
                rows.append(row)
            elif any(cell.strip() for cell in row):
                raise DataError(
                    f"{file}: line {reader.line_num} has {len(row)} cells, the header {len(header)}",
                    "quote cells that hold the separator",
                )
    except csv.Error as error:
        raise DataError(f"{file}: line {reader.line_num} is not CSV ({error})", "save it as CSV again") from None
    if header is None or not rows:
        raise DataError(f"{file}: holds no rows below a header", "name a CSV table with a header")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise DataError(f"{file}: the column {', '.join(twice)} appears twice", "rename one of them")
    return Table(file, header, lines, rows)


class Matcher:
    """Finds the image for a cell of a table.

    The cell is a path relative to the data root or to the table's folder, with / or \\; or a file name, with or without
    suffix, that only one image has.

    Args:
        root: the data folder; table: the file; paths: of all images, relative to the root.
    """

    def __init__(self, root: Path, table: Path, paths: Sequence[str]):
        self.paths = paths
        self.index = {_plain(path): i for i, path in enumerate(paths)}
        self.roots = [Path(os.path.abspath(root)).as_posix(), Path(os.path.realpath(root)).as_posix()]  # noqa: PTH100
        self.folder = Path(os.path.abspath(table)).parent.as_posix()  # noqa: PTH100
        self.names: dict[str, int] | None = None

    def find(self, cell: str) -> int | None:
        """The index of the image, or None."""
        cell = _plain(cell)
        if (found := self.index.get(cell)) is not None:
            return found
        path = posixpath.normpath(cell.replace("\\", "/"))
        if (found := self.index.get(path)) is not None:
            return found
        whole = posixpath.normpath(posixpath.join(self.folder, path))
        for root in self.roots:
            if whole.startswith(root + "/") and (found := self.index.get(whole[len(root) + 1 :])) is not None:
                return found
        return self._by_name(path) if "/" not in path else None

    def _by_name(self, name: str) -> int | None:
        if self.names is None:
            self.names = {}
            for i, path in enumerate(self.paths):
                last = _plain(path).rpartition("/")[2]
                for key in {last, last.rpartition(".")[0]}:
                    self.names[key] = -1 if key in self.names else i  # -1: ambiguous
        found = self.names.get(name, -1)
        return None if found < 0 else found


def _plain(path: str) -> str:
    """Normalise accents, which macOS and spreadsheets encode differently."""
    return path if path.isascii() else unicodedata.normalize("NFC", path)


def first_of(names: Iterable[str], count: int) -> str:
    """The first few names, one per line, and how many more there are."""
    shown = [name for name, _ in zip(names, range(FIRST), strict=False)]
    return "\n".join(shown) + (f"\n... and {count - len(shown):,} more" if count > len(shown) else "")


def groups_from_table(file: str | Path, root: Path, paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """The patient of every image, from a table with a column for the path and one for the patient.

    Returns:
        patients in the order of `paths`, and notes for the user.

    Raises:
        DataError: the table cannot be read, lacks a column, a value or an image, or has two patients for an image.
    """
    table = read_table(file)
    path, group = table.find(PATH_NAMES), table.find(GROUP_NAMES)
    if len(table.header) == 2 and (path is None) != (group is None):  # the only other column
        path, group = (1 - group, group) if path is None and group is not None else (path, 1 - (path or 0))
    if path is None:
        raise table.missing_column("path of an image", PATH_NAMES)
    if group is None or group == path:
        raise table.missing_column("patient", GROUP_NAMES)
    matcher = Matcher(root, table.file, paths)
    found: list[str | None] = [None] * len(paths)
    strange: list[str] = []
    cells = zip(table.cells(path, "path"), table.cells(group, "patient"), table.lines, strict=True)
    for cell, patient, line in cells:
        image = matcher.find(cell)
        if image is None:
            strange.append(f"line {line}: {cell}")
        elif found[image] not in (None, patient):
            raise DataError(
                f"{file}: line {line}: {paths[image]} has patient {patient!r} here and {found[image]!r} above",
                "keep one of the rows",
            )
        else:
            found[image] = patient
    missing = [paths[i] for i, patient in enumerate(found) if patient is None]
    if missing:
        rows = f"\n{len(strange):,} rows match no image:\n{first_of(strange, len(strange))}" if strange else ""
        raise DataError(
            f"{file}: {len(missing):,} of {len(paths):,} images have no row:\n{first_of(missing, len(missing))}{rows}",
            f"use paths relative to {root} or to the table, or add the rows",
        )
    notes = [f"{file}: {len(strange):,} rows match no image, the first is {strange[0]}"] if strange else []
    return [str(patient) for patient in found], notes


@dataclass(frozen=True)
class Labels:
    """The content of a table of labels, in the order of the images' paths.

    Attributes:
        images: index of each image into the given paths.
        labels: class names.
        groups: patients, or None.
        splits: train, val or test for each image, or None.
        columns: names of the further columns; rows: their cells.
        notes: messages for the user.
    """

    images: list[int]
    labels: list[str]
    groups: list[str] | None
    splits: list[str] | None
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...]


def labels_from_table(file: str | Path, root: Path, paths: Sequence[str], own_groups: bool = True) -> Labels:
    """The class of every image that a table names, with patient, split and further columns if it has them.

    Args:
        own_groups: whether to use the table's patient column; otherwise it is a further column.

    Raises:
        DataError: the table cannot be read, lacks a column or a value, names a missing file or an image twice, or has a
            further column with a name that vitmed uses.
    """
    table = read_table(file)
    path, label, split = table.find(PATH_NAMES), table.find(LABEL_NAMES), table.find(SPLIT_COLUMN_NAMES)
    group = table.find(GROUP_NAMES) if own_groups else None
    if path is None:
        raise table.missing_column("path of an image", PATH_NAMES)
    if label is None:
        raise table.missing_column("label", LABEL_NAMES)
    further = [i for i, name in enumerate(table.header) if name and i not in (path, label, group, split)]
    columns = tuple(table.header[i] for i in further)
    taken = [name for name in columns if name in TAKEN or name.startswith(("prob_", "logit_"))]
    if taken:
        raise DataError(
            f"{table.file}: the column {', '.join(taken)} has a name that predictions.csv uses itself",
            f"rename or remove it (the label comes from {table.header[label]!r})",
        )
    matcher = Matcher(root, table.file, paths)
    row_of: dict[int, int] = {}
    missing: list[str] = []
    for row, cell in enumerate(table.cells(path, "path")):
        image = matcher.find(cell)
        if image is None:
            missing.append(f"line {table.lines[row]}: {cell}")
        elif row_of.setdefault(image, row) != row:
            first = table.lines[row_of[image]]
            raise DataError(
                f"{table.file}: {paths[image]} is named in line {first} and in line {table.lines[row]}",
                "keep one of the rows",
            )
    if missing:
        raise DataError(
            f"{table.file}: {len(missing):,} rows match no image below {root}:\n{first_of(missing, len(missing))}",
            f"use paths relative to {root} or to the table, or remove the rows",
        )
    images = sorted(row_of)
    rows = [row_of[image] for image in images]

    def column(number: int | None, what: str) -> list[str] | None:
        if number is None:
            return None
        cells = table.cells(number, what)
        return [cells[row] for row in rows]

    cells = [tuple(sys.intern(table.rows[row][i].strip()) for i in further) for row in rows]
    left = len(paths) - len(images)
    notes = (f"{left:,} of {len(paths):,} images are not in {table.file} and are left out",) if left else ()
    return Labels(
        images=images,
        labels=column(label, "label") or [],
        groups=column(group, "patient"),
        splits=_splits(table, split, rows),
        columns=columns,
        rows=cells,
        notes=notes,
    )


def _splits(table: Table, column: int | None, rows: Sequence[int]) -> list[str] | None:
    if column is None:
        return None
    cells = table.cells(column, "split")
    names = {cell: split_of(cell) for cell in set(cells)}
    unknown = sorted(cell for cell, name in names.items() if name is None)
    if unknown:
        known = ", ".join(word for words in SPLIT_NAMES.values() for word in words)
        raise DataError(
            f"{table.file}: {', '.join(map(repr, unknown[:FIRST]))} in column {table.header[column]!r} is not a split",
            f"use one of {known}; or rename the column",
        )
    return [str(names[cells[row]]) for row in rows]
