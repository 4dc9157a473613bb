"""Read the first sheet of an Excel file (.xlsx) as text. Needs openpyxl, the extra `xlsx`."""

from __future__ import annotations

import datetime
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitmed.core.errors import DataError, UsageError

MOST = 500_000_000  # bytes of the unpacked file


def sheet_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The number of each row, from 1, and its cells, all rows as long as the longest; empty last columns are left out.

    Whole numbers are written without a fraction, dates as 2026-11-22, TRUE and FALSE as in Excel; of a formula the
    value that Excel stored.

    Raises:
        DataError: missing, damaged or too large. UsageError: openpyxl is not installed.
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
            sheet = load_workbook(stream, data_only=True).worksheets[0]
            if formulas:
                _require_values(file, sheet, load_workbook(stream).worksheets[0])
            rows = [[cell_text(cell) for cell in row] for row in sheet.iter_rows(values_only=True)]
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})", "name a table") from None
    except DataError:
        raise
    except Exception as error:  # openpyxl raises errors of every kind for damaged files
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{file}: not an Excel file that can be read ({reason})", "save it as CSV UTF-8") from None
    width = max((i + 1 for row in rows for i, cell in enumerate(row) if cell), default=0)
    yield from enumerate((row[:width] for row in rows), start=1)


def _require_values(file: Path, sheet: Any, formulas: Any) -> None:
    """Refuse a formula without a stored value, as programs write it: its cell would count as empty."""
    for cell in (cell for row in formulas.iter_rows() for cell in row if cell.data_type == "f"):
        value = sheet[cell.coordinate]
        if value.value is None and value.data_type == "n":  # "str": an empty text
            text = f"{file}: the cell {cell.coordinate} holds a formula whose value is not stored"
            raise DataError(text, "open it in Excel or LibreOffice and save it, or save it as CSV UTF-8")


def cell_text(value: Any) -> str:
    """The text of a cell, from its typed value."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ")
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)
