"""Text files of other programs: CSV as spreadsheets save it, and YAML; and CSV in which a spreadsheet runs nothing."""

import contextlib
import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any

import yaml

from vitmed.core.errors import DataError
from vitmed.core.files import why_unreadable

# --- CSV
#
# A spreadsheet takes a cell that begins with =, +, -, @, a tab or a carriage return for a formula. Unless it is a
# number, it is written with an apostrophe before it, as is a cell that begins with apostrophes and such a character.
# Characters that are not Unicode, which stand for the bytes of a file name that is not UTF-8, are written as \udce9.
# Reading takes away exactly what writing added.

EMPTY = {"", "nan", "na", "n/a", "#n/a", "<na>", "null"}  # cells for which other programs read nothing
EMPTY |= {"#ref!", "#div/0!", "#value!", "#name?", "#num!", "#null!"}  # errors of Excel
MISSING = EMPTY | {"unknown", "?"}  # the label is not known; either may also be the name of a class
NO_NUMBER = MISSING | {"-"}
BLANKS = NO_NUMBER | {"none"}  # no patient or site; either may also be the name of a class, and none of a grade
OLD = ("cp1252", "latin-1")  # of Windows in western Europe, and what also names its five missing characters
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")  # in no table of those
NUL = re.compile("\0")  # in no table
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}  # the first where a header has none
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_NO_UNICODE = re.compile("(\\\\*)([\ud800-\udfff]|ud[89a-f][0-9a-f]{2})")  # or what such a character is written as


def to_cell(text: str) -> str:
    if not text.isascii() or "\\ud" in text:  # \udce9 for characters that are not Unicode
        # Twice the backslashes before, so that their number tells the two apart.
        text = _NO_UNICODE.sub(lambda m: m[1] * 2 + (m[2] if len(m[2]) > 1 else f"\\u{ord(m[2]):x}"), text)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def from_cell(cell: str) -> str:
    """The text of a cell that `to_cell` wrote."""
    text = cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell
    if "\\ud" not in text:
        return text
    return _NO_UNICODE.sub(
        lambda m: "\\" * (len(m[1]) // 2) + (chr(int(m[2][1:], 16)) if len(m[1]) % 2 else m[2]), text
    )


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """The text of a CSV file, NUL as U+FFFD. Lines end in CR LF, so that a cell that holds either is quoted."""
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows([to_cell(str(cell).replace("\0", "\ufffd")) for cell in row] for row in rows)
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
        fix = "join its parts: vitmed merge FOLDER" * (data[:4] == b"PAR1")
        raise DataError(f"{file}: not UTF-8 text", fix or "save it as CSV in UTF-8 (in Excel: CSV UTF-8)")
    if not text.strip(" \t\r\n,;"):
        raise DataError(f"{file}: the file is empty", f"name {what}")
    return text, encoding


def read_csv(file: Path, text: str) -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """The separator of a table, the most frequent in its header of those as frequent in the first row; and from
    the header on the line at which each row ends and its cells, without spaces after a separator if the header has
    them. A row that is not CSV raises DataError."""
    text = re.sub(r"(?i)\Asep=.(?=[\r\n])", "", text)  # which tells Excel the separator
    first, second, *_ = [*re.sub('"[^"]*"', "", text.lstrip("\r\n")[:100_000]).split("\n", 2), ""]  # without quotes
    separator = max(SEPARATORS, key=lambda mark: (first.count(mark) == second.count(mark) > 0, first.count(mark)))
    blanks = any(cell.startswith(" ") for cell in first.split(separator)[1:])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=blanks, strict=True)

    def rows() -> Iterator[tuple[int, list[str]]]:
        try:
            for row in dropwhile(lambda row: not row, reader):
                yield reader.line_num, [from_cell(cell) for cell in row]
        except csv.Error as error:
            raise DataError(f"{file}: line {reader.line_num} is not CSV ({error})", "save it as CSV again") from None

    return separator, rows()


# --- YAML: duplicate keys, deep nesting and aliases that multiply are errors

MOST_BYTES = 1_000_000
MOST_DEPTH = 20
MOST_NODES = 100_000  # with every alias written out


class YamlError(ValueError):
    """Text that is not YAML as vitmed reads it; `fix` says how to mend it."""

    def __init__(self, problem: str, fix: str = "correct the file"):
        super().__init__(problem)
        self.fix = fix


def read_yaml(path: Path) -> Any:
    """The plain values in a file. Raises YamlError if it cannot be read, is no UTF-8 text or no YAML."""
    if reason := why_unreadable(path):
        raise YamlError(*reason)
    if path.stat().st_size > MOST_BYTES:
        raise YamlError(f"{path.stat().st_size:,} bytes, expected at most {MOST_BYTES:,}", "name a configuration file")
    try:
        return parse_yaml(path.read_bytes().decode())
    except UnicodeDecodeError as error:
        raise YamlError(f"not UTF-8 text (byte {error.start})", "save it as UTF-8") from None
    except OSError as error:
        raise YamlError(str(error.strerror), "check the disk") from None


def packaged(folder: str) -> dict[str, Path]:
    """Name -> YAML file, sorted, of a folder inside the wheel, else beside the package."""
    here = Path(__file__).parents[1]
    place = here / folder if (here / folder).is_dir() else here.parent / folder
    return {file.stem: file for file in sorted(place.glob("*.yaml"))}


def parse_yaml(text: str) -> Any:
    """The plain values in a text. Raises YamlError, which names the line."""
    if yaml.__with_libyaml__:  # seven times as fast, but it names the line where a text ends, not where it went wrong
        with contextlib.suppress(yaml.YAMLError, ValueError, LookupError):
            return _parse(text, yaml.CSafeLoader)
    try:
        return _parse(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise YamlError(f"{place}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, LookupError) as error:  # dates and numbers that do not exist
        raise YamlError(str(error).partition("\n")[0] or type(error).__name__) from None


def _parse(text: str, kind: Any) -> Any:
    """The values, by a kind of loader. Raises yaml.YAMLError, ValueError or LookupError."""
    depth, events = 0, yaml.parse(text, kind)  # type: Any, Any
    for event in events:  # before the loader calls itself once for each level
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth >= MOST_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MOST_DEPTH} levels", problem_mark=event.start_mark)
    loader = kind(text)
    if (node := loader.get_single_node()) is None:
        return None
    _count(node, {})
    return loader.construct_document(node)


def _count(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """The number of nodes with every alias written out. Raises MarkedYAMLError for a key that is there twice."""
    if node not in known:
        known[node] = MOST_NODES + 1  # what a node counts that lies inside itself
        total, keys = 1, dict[tuple[str, str], int]()
        for part in node.value if isinstance(node, yaml.CollectionNode) else ():
            key, value = part if isinstance(node, yaml.MappingNode) else (None, part)
            if isinstance(key, yaml.ScalarNode):
                if first := keys.get((key.tag, key.value)):
                    twice = f"the key '{key.value}' is there twice, first in line {first}"
                    raise yaml.MarkedYAMLError(problem=twice, problem_mark=key.start_mark)
                keys[key.tag, key.value] = key.start_mark.line + 1
            total += _count(value, known) + (0 if key is None else _count(key, known))
        known[node] = total
    if known[node] > MOST_NODES:
        many = f"more than {MOST_NODES:,} values, with aliases written out"
        raise yaml.MarkedYAMLError(problem=many, problem_mark=node.start_mark)
    return known[node]
