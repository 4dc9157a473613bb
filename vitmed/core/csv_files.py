"""CSV files: read with the encodings and separators of common spreadsheets, written so that a spreadsheet runs nothing.

A spreadsheet takes a cell that begins with =, +, -, @, a tab or a carriage return for a formula. Such a cell, unless it
is a number, is written with an apostrophe before it; so is one that begins with apostrophes and such a character.
Characters that are not Unicode, which stand for the bytes of a file name that is not UTF-8, are written as \\udce9.
Reading takes away exactly what writing added.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from vitmed.core.errors import DataError
from vitmed.core.files import why_unreadable

OLD = ("cp1252", "latin-1")  # of Windows in western Europe, and what also names its five missing characters
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")  # in no table of those
NUL = re.compile("\0")  # in no table
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_NO_UNICODE = re.compile("(\\\\*)([\ud800-\udfff]|ud[89a-f][0-9a-f]{2})")  # or what such a character is written as


def to_cell(text: str) -> str:
    """The cell of a text; `from_cell` gives the text back."""
    if not text.isascii() or "\\ud" in text:  # \udce9 for characters that are not Unicode
        text = _NO_UNICODE.sub(_escaped, text)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def from_cell(cell: str) -> str:
    """The text of a cell that `to_cell` wrote."""
    text = cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell
    return _NO_UNICODE.sub(_unescaped, text) if "\\ud" in text else text


def _escaped(match: re.Match[str]) -> str:
    """Twice the backslashes before, so that their number tells the two apart."""
    return match[1] * 2 + (match[2] if len(match[2]) > 1 else f"\\u{ord(match[2]):x}")


def _unescaped(match: re.Match[str]) -> str:
    half, odd = divmod(len(match[1]), 2)
    return "\\" * half + (chr(int(match[2][1:], 16)) if odd else match[2])


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """The text of a CSV file. Lines end in CR LF, so that a cell that holds either is quoted."""
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows([to_cell(str(cell)) for cell in row] for row in rows)
    return stream.getvalue()


def read_text(file: Path, what: str, others: Sequence[str] = ()) -> tuple[str, str]:
    """The text of a table, and its encoding: UTF-8, UTF-16 with a byte order mark, or the first of `others` that fits.

    Raises DataError, which names `what` is expected: missing, empty, or in another encoding.
    """
    if reason := why_unreadable(file):
        problem, fix = reason
        raise DataError(f"{file}: cannot be read ({problem})", f"name {what}" if fix == "check the path" else fix)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})", "check the disk") from None
    text = encoding = None
    for encoding in ("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", *others):
        with contextlib.suppress(UnicodeDecodeError):
            text = data.decode(encoding)
            break
    if text is None or encoding is None or (CONTROL if encoding in OLD else NUL).search(text):
        raise DataError(f"{file}: not UTF-8 text", "save it as CSV in UTF-8 (in Excel: CSV UTF-8)")
    if not text.strip(" \t\r\n,;"):
        raise DataError(f"{file}: the file is empty", f"name {what}")
    return text, encoding


def separator_of(text: str, known: Callable[[str], bool]) -> str:
    """The separator that splits the first line into most names of columns (for which `known` is true), else comma."""
    return max(SEPARATORS, key=lambda mark: sum(known(name.strip()) for name in next(rows_of(text, mark), [])))


def rows_of(text: str, separator: str) -> Iterator[list[str]]:
    """The rows of a table. Spaces after a separator are dropped if the header has them too."""
    first = next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), [])
    blanks = any(cell.startswith(" ") for cell in first[1:])
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=blanks)


def describe_header(header: Sequence[str], separator: str) -> str:
    """The first line in words, for the message that a column is missing."""
    names = ", ".join(repr(name) for name in header[:12]) + (", ..." if len(header) > 12 else "")
    return f"its first line, split at {SEPARATORS[separator]}, has {names}"
