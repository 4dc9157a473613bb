"""Tables (CSV, Excel) with a row for each image: read, and matched with the images."""

import datetime
import itertools
import os
import posixpath
import re
import sys
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitmed.core.dataset_cards import find_card
from vitmed.core.errors import DataError, UsageError
from vitmed.core.places import local_path
from vitmed.core.text import counted_doing, listed, one_spelling
from vitmed.core.text_files import BLANKS, EMPTY, OLD, read_csv, read_text
from vitmed.metrics.predictions_csv import GROUP_NAMES

# The first of these names in a table is used; case, spaces and hyphens do not matter.
_PATHS = "path file filename file_name filepath file_path image image_path image_name image_id image_index img"
PATH_NAMES = tuple(_PATHS.split())
LABEL_NAMES = ("label", "class", "diagnosis", "target", "dx", "finding_labels")
_NUMBER = r"(?:uid|id|nr|no|num(?:ber|ero)?|name|code|key)"
OF_PATIENTS = re.compile(  # participant_id and "Pat. Nr.", not patient_age; a case may be a study
    rf"(?i)(?:(?:uid|id|code|name)[\W_]*)?(?:pa[tzc]ien[a-z]{{0,3}}|pat|pid|mrn|subj|subject|person|participant|proband|"
    rf"donor)[\W_]*{_NUMBER}?[\W_]*"
)
UNSEEN = " \t\r\n\xa0\u200b\u200c\u200d\ufeff"  # at the ends of a cell
FIRST = 5  # most items in one line of a message
MOST = 500_000_000  # bytes of an Excel file, which is a zip archive


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

    def column(self, name: str, flag: str) -> int:
        """The column of exactly this name, for which a flag asks. Raises UsageError if there is none."""
        if name not in self.header:
            raise UsageError(f"{flag} {name}: {self.file} has no such column; it has {self.names}", "name one of them")
        return self.header.index(name)

    def required(self, column: int | None, what: str, names: Sequence[str]) -> int:
        """The column. Raises DataError if there is none."""
        if column is None:
            problem = f"{self.file}: no column for the {what}; it has {self.names}"
            fix = f"name it {names[0]} (or {', '.join(names[1:])}) in the first line"
            counts = [len(set(cells)) for cells in zip(*self.rows, strict=True)]
            shared = [name for name, n in zip(self.header, counts, strict=True) if n < len(self.rows) < 50 * n]
            if what == "patient" and shared:
                fix += f", of a copy of the table if need be; rows share a value of {listed(shared)}"
            raise DataError(problem, fix)
        return column

    def cells(self, column: int, what: str) -> list[str]:
        """The stripped text of a column. Raises DataError, which names the rows with an empty cell."""
        cells = [sys.intern(row[column].strip()) for row in self.rows]
        nothing = {"label": EMPTY, "patient": BLANKS}.get(what, {""})
        if empty := [line for line, cell in zip(self.lines, cells, strict=True) if cell.lower() in nothing]:
            marks = [repr(mark) for mark in dict.fromkeys(cells) if mark and mark.lower() in nothing]
            but = f" but {listed(marks)}" * bool(marks)
            without = f"{counted_doing(len(empty), 'row', 'has', 'have')} no {what}{but}"
            raise DataError(
                f"{self.file}: {without} (column {self.header[column]!r}): line " + ", ".join(map(str, empty[:FIRST])),
                "fill them, or remove the rows",
            )
        return cells

    def patients(self, column: int) -> tuple[Sequence[str | None], list[str]]:
        """The patient of each row, each in one spelling, and notes: some have two spellings; or each row has another
        patient, or a case is one, while a second column of patients joins rows. Errors as in `cells`."""
        cells, loose = self.cells(column, "patient"), self.find(GROUP_NAMES[-3:]) == column
        named, notes = one_spelling(cells, "patient", [f"line {line}" for line in self.lines])
        own = f"each image has a {self.header[column]!r} of its own, which counts as its patient"
        if loose and len({*cells}) < len(cells):
            own = f"{self.header[column]!r} counts as the patient; one person who has several may be in two splits"
        for i in self.of_patients() if loose or len({*cells}) == len(cells) else ():
            pairs = {(row[i], cell) for row, cell in zip(self.rows, cells, strict=True) if row[i].lower() not in BLANKS}
            if len(pairs) > len({patient for patient, _ in pairs}):
                fix = f"if the patient is {self.header[i]!r}, remove or rename the other column"
                notes.append(f"{self.file}: {own}; {fix}")
        return named, notes

    def of_patients(self) -> Iterator[int]:
        """The columns whose name says nothing but that they name patients and in which rows share a value."""
        for i in [i for i, name in enumerate(self.header) if OF_PATIENTS.fullmatch(name)]:
            cells = [row[i] for row in self.rows if row[i].lower() not in BLANKS]
            if 1 < len({*cells}) < len(cells):
                yield i

    def images(self, column: int, root: Path | None, paths: Sequence[str]) -> tuple[list[int | None], list[str]]:
        """The index of each row's image, or None; and the rows without an image, for a message. Without a root, the
        paths start there or in a folder above all images: the one that fits most rows."""
        cells, parts = self.cells(column, "path"), [path.split("/") for path in paths]
        folders = zip(*(part[:-1] for part in parts), strict=False) if root is None else ()
        above = [names[0] for names in itertools.takewhile(lambda names: len(set(names)) == 1, folders)]
        tries = []
        for k in range(len(above) + 1):
            below = ["/".join(part[k:]) for part in parts]
            tries.append(_matches(cells, root or Path("/".join(above[:k]) or "."), self.file, below))
        found = min(tries, key=lambda found: sum(len(which) != 1 for which in found))
        missing = []
        for line, cell, which in zip(self.lines, cells, found, strict=True):
            if len(which) != 1:
                several = f" matches {len(which):,} images: {', '.join(paths[i] for i in which[:FIRST])}"
                missing.append(f"line {line}: {cell}{several * bool(which)}")
        return [which[0] if len(which) == 1 else None for which in found], missing


def read_table(file: str | Path) -> Table:
    """Read a CSV file with the separator (comma, semicolon or tab) most frequent in its header, or the first sheet of
    .xlsx.

    Raises:
        DataError: missing, not text, no rows, a name twice in the header, or a row of another length (with its line).
        UsageError: the package that reads .xlsx is not installed.
    """
    file, notes = local_path(file), tuple[str, ...]()
    lines, rows, header = [], [], None
    if file.suffix.lower() == ".xlsx":
        numbered, notes = sheet_rows(file)
    else:
        text, encoding = read_text(file, "a CSV table", OLD)
        if encoding in OLD:
            notes = (f"{file}: not UTF-8; read as {encoding}: check names with accents, or save it as CSV UTF-8",)
        _, numbered = read_csv(file, text)
    for line, row in numbered:
        if header is None:
            header = [name.strip(UNSEEN) for name in row] if any(cell.strip() for cell in row) else None
        elif len(row) == len(header) and any(map(str.strip, row)):
            lines.append(line)
            rows.append([cell.strip(UNSEEN) for cell in row])
        elif any(cell.strip() for cell in row):
            problem = f"{file}: line {line} has {len(row)} cells, the header {len(header)}"
            raise DataError(problem, "quote cells that hold the separator")
    if header is None or not rows:
        raise DataError(f"{file}: holds no rows below a header", "name a CSV table with a header")
    if twice := sorted({name for name in header if name and header.count(name) > 1}):
        raise DataError(f"{file}: the column {', '.join(twice)} appears twice", "rename one of them")
    return Table(file, header, lines, rows, notes)


def _matches(cells: Sequence[str], root: Path, table: Path, paths: Sequence[str]) -> list[Sequence[int]]:
    """The index of the image that each cell of a table means, or of all that it may mean.

    The cell is a path relative to the data root or to the table's folder, with / or \\; or a file name, with or without
    suffix, that only one image has.
    """
    index = {_plain(path): i for i, path in enumerate(paths)}
    roots = [Path(os.path.abspath(root)).as_posix(), Path(os.path.realpath(root)).as_posix()]  # noqa: PTH100
    folder = Path(os.path.abspath(table)).parent.as_posix()  # noqa: PTH100
    inner = next((f"{folder[len(top) + 1 :]}/" for top in roots if folder.startswith(top + "/")), "")
    by_name = defaultdict[str, list[int]](list)  # file name, with and without suffix -> its images; filled if needed
    matches = list[Sequence[int]]()
    for cell in map(_plain, cells):
        path = posixpath.normpath(cell.replace("\\", "/"))
        if (name := cell if cell in index else path) in index:
            matches.append(sorted({index[name], index.get(inner + path, index[name])}))
            continue
        whole = posixpath.normpath(posixpath.join(folder, path))
        found = [index[name] for top in roots if (name := whole.removeprefix(f"{top}/")) in index]
        if not (found or by_name):
            for i, image in enumerate(paths):
                name = _plain(image).rpartition("/")[2]
                for key in {name, name.rpartition(".")[0]}:
                    by_name[key].append(i)
        matches.append(found[:1] or by_name.get(path, ()))
    return matches


def _plain(path: str) -> str:
    """Normalise accents, which macOS and spreadsheets encode differently."""
    return path if path.isascii() else unicodedata.normalize("NFC", path)


def sheet_rows(file: Path) -> tuple[Iterator[tuple[int, list[str]]], tuple[str, ...]]:
    """The number of each row of an Excel file's first visible sheet, from 1, and its cells (extra `xlsx`); and notes.

    All rows are as long as the longest; empty last columns are left out. Whole numbers are written without a fraction,
    dates as 2026-11-22, TRUE and FALSE as in Excel; of a formula the stored value; merged cells below the heading all
    have their one value. Raises DataError: missing, damaged or too large. UsageError: openpyxl is not installed.
    """
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise UsageError(f"{file}: Excel files need one more package", "pip install 'vitmed[xlsx]'") from None
    try:
        with file.open("rb") as stream:
            with zipfile.ZipFile(stream) as archive:
                size = sum(member.file_size for member in archive.infolist())
                if size > MOST:
                    raise DataError(f"{file}: unpacks to {size:,} bytes, more than {MOST:,}, refused", "save it as CSV")
                sheets = [name for name in archive.namelist() if name.startswith("xl/worksheets/")]
                formulas = any(b"<f" in archive.read(name) for name in sheets)
            sheet = next(s for s in load_workbook(stream, data_only=True).worksheets if s.sheet_state == "visible")
            # A formula without a stored value, as programs write it, would count as empty.
            written = load_workbook(stream)[sheet.title].iter_rows() if formulas else ()
            for cell in (cell for row in written for cell in row if cell.data_type == "f"):
                value = sheet[cell.coordinate]
                if value.value is None and value.data_type == "n":  # "str": an empty text
                    text = f"{file}: the cell {cell.coordinate} holds a formula whose value is not stored"
                    raise DataError(text, "open it in Excel or LibreOffice and save it, or save it as CSV UTF-8")
            rows = [[cell_text(cell) for cell in row] for row in sheet.iter_rows(values_only=True)]
            filled = {i for i, row in enumerate(rows, 1) if any(row)}  # the heading is the first
            head = min(filled, default=0)
            for area in sheet.merged_cells.ranges:
                for row, column in area.cells if area.min_row > head else ():
                    if row in filled:
                        rows[row - 1][column - 1] = rows[area.min_row - 1][area.min_col - 1]
            hidden = sum(any(rows[i - 1]) for i, row in sheet.row_dimensions.items() if row.hidden and i <= len(rows))
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})", "name a table") from None
    except DataError:
        raise
    except Exception as error:  # openpyxl raises errors of every kind for damaged files
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{file}: not an Excel file that can be read ({reason})", "save it as CSV UTF-8") from None
    width = max((i + 1 for row in rows for i, cell in enumerate(row) if cell), default=0)
    are = f"{file}: {counted_doing(hidden, 'row')} hidden in Excel, such as by a filter, and yet used"
    notes = (f"{are}; to leave rows out, delete them",) if hidden else ()
    return enumerate((row[:width] for row in rows), start=1), notes


def cell_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ")
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)
