"""Tables (CSV, Excel) with a row for each image: read, matched with the images, and patients from them."""

from __future__ import annotations

import csv
import io
import os
import posixpath
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vitmed.core.dataset_cards import find_card
from vitmed.core.errors import DataError
from vitmed.core.text import counted_doing, lines_of
from vitmed.core.text_files import OLD, from_cell, read_text

# The first of these names in a table is used; case, spaces and hyphens do not matter.
_PATHS = "path file filename file_name filepath file_path image image_path image_name image_id image_index img"
PATH_NAMES = tuple(_PATHS.split())
GROUP_NAMES = ("patient", "patient_id", "patientid", "group", "subject", "subject_id", "case", "case_id")
LABEL_NAMES = ("label", "class", "diagnosis", "target", "dx", "finding_labels")
FIRST = 5  # most items in one line of a message


@dataclass(frozen=True)
class Table:
    """A table: column names as written, of each row its line in the file and its cells; notes for the user."""

    file: Path
    header: list[str]
    lines: list[int]
    rows: list[list[str]]
    notes: tuple[str, ...] = ()

    def find(self, names: Sequence[str], card: str | None = None) -> int | None:
        """The index of the first of these columns that the table has, or None; a card may name another."""
        if card is not None and (own := find_card(card).columns.get(names[0])) in self.header:  # type: ignore[call-overload]
            return self.header.index(str(own))
        plain = [re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") for name in self.header]
        return next((plain.index(name) for name in names if name in plain), None)

    @property
    def names(self) -> str:
        """The columns, for a message: `'path', 'age', 'Mass' (empty)`."""
        empty = [not any(row[i].strip() for row in self.rows) for i in range(len(self.header))]
        return ", ".join(f"{name!r}{' (empty)' * none}" for name, none in zip(self.header, empty, strict=True))

    def required(self, column: int | None, what: str, names: Sequence[str]) -> int:
        """The column. Raises DataError if there is none."""
        if column is None:
            raise DataError(
                f"{self.file}: no column for the {what}; it has {self.names}",
                f"name it {names[0]} (or {', '.join(names[1:])}) in the first line",
            )
        return column

    def cells(self, column: int, what: str) -> list[str]:
        """The stripped text of a column. Raises DataError, which names the rows with an empty cell."""
        found = [sys.intern(row[column].strip()) for row in self.rows]
        empty = [line for line, cell in zip(self.lines, found, strict=True) if not cell]
        if empty:
            without = f"{counted_doing(len(empty), 'row', 'has', 'have')} no {what}"
            raise DataError(
                f"{self.file}: {without} (column {self.header[column]!r}): line " + ", ".join(map(str, empty[:FIRST])),
                "fill them, or remove the rows",
            )
        return found

    def images(self, column: int, root: Path, paths: Sequence[str]) -> tuple[list[int | None], list[str]]:
        """The index of each row's image, or None; and the rows without an image, for a message."""
        cells, matcher = self.cells(column, "path"), _Matcher(root, self.file, paths)
        found = [matcher.find(cell) for cell in cells]
        rows = zip(self.lines, cells, found, strict=True)
        return found, [f"line {line}: {cell}" for line, cell, image in rows if image is None]


def read_table(file: str | Path) -> Table:
    """Read a CSV file with the separator (comma, semicolon or tab) most frequent in its header, or the first sheet of
    .xlsx.

    Raises:
        DataError: missing, not text, no rows, a name twice in the header, or a row of another length (with its line).
        UsageError: the package that reads .xlsx is not installed.
    """
    file, notes = Path(file), tuple[str, ...]()
    lines, rows, header = [], [], None
    if file.suffix.lower() == ".xlsx":
        numbered = sheet_rows(file)
    else:
        text, encoding = read_text(file, "a CSV table", OLD)
        if encoding in OLD:
            notes = (f"{file}: not UTF-8; read as {encoding}: check names with accents, or save it as CSV UTF-8",)
        numbered = _csv_rows(file, text)
    for line, row in numbered:
        if header is None:
            header = [name.strip() for name in row]
        elif len(row) == len(header):
            lines.append(line)
            rows.append(row)
        elif any(cell.strip() for cell in row):
            raise DataError(
                f"{file}: line {line} has {len(row)} cells, the header {len(header)}",
                "quote cells that hold the separator",
            )
    if header is None or not rows:
        raise DataError(f"{file}: holds no rows below a header", "name a CSV table with a header")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise DataError(f"{file}: the column {', '.join(twice)} appears twice", "rename one of them")
    return Table(file, header, lines, rows, notes)


def _csv_rows(file: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """The line at which each row ends, and its cells. Raises DataError."""
    first = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count), strict=True)
    try:
        for row in reader:
            yield reader.line_num, [from_cell(cell) for cell in row]
    except csv.Error as error:
        raise DataError(f"{file}: line {reader.line_num} is not CSV ({error})", "save it as CSV again") from None


class _Matcher:
    """Finds the image for a cell of a table.

    The cell is a path relative to the data root or to the table's folder, with / or \\; or a file name, with or without
    suffix, that only one image has.
    """

    def __init__(self, root: Path, table: Path, paths: Sequence[str]):
        self.paths = paths
        self.index = {_plain(path): i for i, path in enumerate(paths)}
        self.roots = [Path(os.path.abspath(root)).as_posix(), Path(os.path.realpath(root)).as_posix()]  # noqa: PTH100
        self.folder = Path(os.path.abspath(table)).parent.as_posix()  # noqa: PTH100

    def find(self, cell: str) -> int | None:
        """The index of the image, or None."""
        cell = _plain(cell)
        path = posixpath.normpath(cell.replace("\\", "/"))
        for name in (cell, path):
            if (found := self.index.get(name)) is not None:
                return found
        whole = posixpath.normpath(posixpath.join(self.folder, path))
        for root in self.roots:
            if whole.startswith(root + "/") and (found := self.index.get(whole[len(root) + 1 :])) is not None:
                return found
        return self._unique_names.get(path)

    @cached_property
    def _unique_names(self) -> dict[str, int]:
        """File name, with and without suffix -> index, for the names that only one image has."""
        last = ((_plain(path).rpartition("/")[2], i) for i, path in enumerate(self.paths))
        names = [(key, i) for name, i in last for key in {name, name.rpartition(".")[0]}]
        count = Counter(name for name, _ in names)
        return {name: i for name, i in names if count[name] == 1}


def _plain(path: str) -> str:
    """Normalise accents, which macOS and spreadsheets encode differently."""
    return path if path.isascii() else unicodedata.normalize("NFC", path)


def groups_from_table(
    file: str | Path, root: Path, paths: Sequence[str], card: str | None = None
) -> tuple[list[str], str, list[str]]:
    """The patient of every image from a table of paths and patients, the name of their column, and notes for the user.

    `card`: of the set that the table belongs to; it may name the columns.

    Raises:
        DataError: the table cannot be read, lacks a column, a value or an image, or has two patients for an image.
    """
    table = read_table(file)
    path, group = table.find(PATH_NAMES, card), table.find(GROUP_NAMES, card)
    if len(table.header) == 2 and path is None and group is not None:
        path = 1 - group  # the only other column
    elif len(table.header) == 2 and group is None and path is not None:
        group = 1 - path
    path = table.required(path, "path of an image", PATH_NAMES)
    group = table.required(group, "patient", GROUP_NAMES)
    images, strange = table.images(path, root, paths)
    found: dict[int, str] = {}
    for image, patient, line in zip(images, table.cells(group, "patient"), table.lines, strict=True):
        if image is not None and found.setdefault(image, patient) != patient:
            raise DataError(
                f"{file}: line {line}: {paths[image]} has patient {patient!r} here and {found[image]!r} above",
                "keep one of the rows",
            )
    missing = [path for i, path in enumerate(paths) if i not in found]
    unmatched = f"{counted_doing(len(strange), 'row', 'matches', 'match')} no image"
    if missing:
        rows = f"\n{unmatched}:\n{lines_of(strange)}" if strange else ""
        of = counted_doing(len(paths), "image", "has", "have")
        raise DataError(
            f"{file}: {len(missing):,} of {of} no row:\n{lines_of([*table.notes, *missing])}{rows}",
            f"use paths relative to {root} or to the table, or add the rows",
        )
    notes = [f"{file}: {unmatched}, the first is {strange[0]}"] if strange else []
    return [found[i] for i in range(len(paths))], table.header[group], [*table.notes, *notes]
