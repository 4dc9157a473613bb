"""Read CSV files with the encodings and separators of common spreadsheets."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from vitmed.core.errors import DataError

OLD = ("cp1252", "latin-1")  # of Windows in western Europe, and what also names its five missing characters
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")  # in no table
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def read_text(file: Path, what: str, others: Sequence[str] = ()) -> tuple[str, str]:
    """The text of a table, and its encoding: UTF-8, UTF-16 with a byte order mark, or the first of `others` that fits.

    Args:
        what: a name for the file that is expected, for the message.
        others: names of encodings, such as those of `OLD`.

    Raises:
        DataError: missing, empty, or in another encoding.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})", f"name {what}") from None
    text = encoding = None
    for encoding in ("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", *others):
        with contextlib.suppress(UnicodeDecodeError):
            text = data.decode(encoding)
            break
    if text is None or encoding is None or CONTROL.search(text):
        raise DataError(f"{file}: not UTF-8 text", "save it as CSV in UTF-8 (in Excel: CSV UTF-8)")
    if not text.strip(" \t\r\n,;"):
        raise DataError(f"{file}: the file is empty", f"name {what}")
    return text, encoding


def separator_of(text: str, known: Callable[[str], bool]) -> str:
    """The separator that splits the first line into most names of columns (for which `known` is true), else comma."""

    def count(separator: str) -> int:
        return sum(known(name.strip()) for name in next(rows_of(text, separator), []))

    return max(SEPARATORS, key=count)


def rows_of(text: str, separator: str) -> Iterator[list[str]]:
    """The rows of a table. Spaces after a separator are dropped if the header has them too."""
    first = next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), [])
    blanks = any(cell.startswith(" ") for cell in first[1:])
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=blanks)


def describe_header(header: Sequence[str], separator: str) -> str:
    """The first line in words, for the message that a column is missing."""
    names = ", ".join(repr(name) for name in header[:12]) + (", ..." if len(header) > 12 else "")
    return f"its first line, split at {SEPARATORS[separator]}, has {names}"
