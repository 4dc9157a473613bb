"""report.md: the blocks of a report as Markdown, with links to the figures beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import repeat

from markupsafe import Markup

from vitmed.report import blocks as b
from vitmed.report.plots.drawing import plain

MARKS = {"b": "**", "i": "*"}  # element of a phrase -> what stands around it


def to_markdown(document: b.Document) -> str:
    """A report as Markdown; what is escaped are its words, not its layout."""
    lines = [line for block in document.head for line in _lines(block)]
    for k, chapter in enumerate(document.chapters):
        lines += ["", f"## {escape(chapter.title)}", *(["", escape(chapter.question)] if k else [])]
        lines += [line for block in chapter.blocks for line in _lines(block)]
    return "\n".join([*lines, "", escape(b.ROWS), "", escape(b.NOTICE)]).strip() + "\n"


def escape(text: str) -> str:
    """Text in which no character has a meaning in Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#~!$&])", r"\\\1", text)


def _lines(block: b.Block) -> Iterator[str]:
    match block:
        case b.Text(words):
            yield from ("", _phrase(words))
        case b.Heading(words, level):
            yield from ("", f"{'#' * level} {_phrase(words)}")
        case b.Items(entries):
            yield from ("", *(f"- {_phrase(entry)}" for entry in entries))
        case b.Headline(entries):
            cells = ((title, b.td(b.value(entry), b.interval(entry) or "no interval")) for title, entry in entries)
            yield from ("", *(f"- {_phrase(title)}: {_cell(cell)}" for title, cell in cells))
        case b.Table(head, rows):
            yield from ("", *_table([[_phrase(title) for title in head]] if head else [], rows))
        case b.Picture(name, title, caption):
            alt = escape(plain(block.alt))
            yield from ("", f"### {escape(title)}", "", f"![{alt}]({name}.png)", "", escape(caption))
        case b.Group(blocks, _, summary, title):
            yield from ("", f"### {_phrase(title)}") if title else ()
            yield from ("", _phrase(summary)) if summary else ()
            yield from (line for inner in blocks for line in _lines(inner))
        case b.Widget(_, blocks):
            yield from (line for inner in blocks for line in _lines(inner))


def _phrase(words: Markup) -> str:
    """Words in one line, with the marks of their elements."""
    parts = re.split(r"</?(\w+)[^>]*>", words)  # text, and every second the name of an element
    marked = (MARKS.get(part, "") if k % 2 else escape(Markup(part).unescape()) for k, part in enumerate(parts))
    return " ".join("".join(marked).split())


def _cell(cell: b.Cell) -> str:
    return _phrase(cell.words) + (f" ({_phrase(cell.small)})" if cell.small else "")


def _table(lines: list[list[str]], rows: Sequence[Sequence[b.Cell]]) -> Iterator[str]:
    """The lines of a table, as wide as its widest row; the first is the head. A cell stands in the first of its columns
    and rows, and the others are empty.
    """
    below: dict[int, int] = {}  # column -> further rows that a cell above takes
    for row in rows:
        line: list[str] = []
        skipped = 0  # columns of the cell before
        for cell in row:
            line += repeat("", skipped)
            while below.get(len(line)):
                below[len(line)] -= 1
                line.append("")
            below |= dict.fromkeys(range(len(line), len(line) + cell.columns), cell.rows - 1)
            line.append(_cell(cell))
            skipped = cell.columns - 1
        lines.append(line)
    width = max(map(len, lines), default=0)
    for k, line in enumerate(lines):
        yield "| " + " | ".join([*line, *repeat("", width - len(line))]) + " |"
        if k == 0:
            yield "|" + "---|" * width
