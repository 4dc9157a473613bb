"""What a paper takes from a report: one sentence of results, its tables as LaTeX and CSV, its figures as PDF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup

from vitmed.core.files import make_folder, write_bytes, write_text
from vitmed.core.text_files import csv_text
from vitmed.report.blocks import Block, Cell, Document, Group, Picture, Table, grid, words
from vitmed.report.results import Results
from vitmed.report.templates import results_sentence

FOLDER = "paper"
SENTENCE, LATEX = "results.txt", "tables.tex"
LEFT_OUT, CHECKLIST = "prose", "checklist"  # tables of explanations, which methods.md has; those of text, no LaTeX
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def write_paper(folder: Path, metrics: Results, content: Document) -> None:
    """Write the sentence, every table (CHAPTER-1.csv; those of numbers also in tables.tex), and every figure as PDF."""
    make_folder(folder)
    latex = ["% \\usepackage{booktabs}; in brackets: confidence intervals"]
    write_text(folder / SENTENCE, results_sentence(metrics) + "\n")
    for chapter in content.chapters:
        blocks = list(_inside(chapter.blocks))
        tables = [block for block in blocks if isinstance(block, Table) and block.head and block.css != LEFT_OUT]
        for number, table in enumerate(tables, 1):
            write_text(folder / f"{chapter.key}-{number}.csv", csv_text(_columns(table)))
            latex += [] if table.css == CHECKLIST else ["", *_latex(table, f"{chapter.title} ({number})")]
        for picture in (block for block in blocks if isinstance(block, Picture)):
            write_bytes(folder / f"{picture.name}.pdf", picture.drawn.pdf)
    write_text(folder / LATEX, "\n".join(latex) + "\n")


def _inside(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield from _inside(block.blocks) if isinstance(block, Group) else (block,)


def _text(found: Markup) -> str:
    return " ".join(found.striptags().split())


def _columns(table: Table) -> list[list[str]]:
    """Title and cells of a table; the intervals of a column stand in a column of their own."""
    rows = [[Cell(title) for title in table.head], *grid(table)]
    lines: list[list[str]] = [[] for _ in rows]
    for column in zip(*rows, strict=True):
        with_interval = any(cell.small for cell in column)
        for k, (line, cell) in enumerate(zip(lines, column, strict=True)):
            line.append(_text(cell.words))
            if with_interval:
                line.append(_text(cell.small or words("")) if k else f"{_text(cell.words)}, interval")
    return lines


def _latex(table: Table, caption: str) -> Iterator[str]:
    def row(cells: list[Cell]) -> str:
        texts = [_text(cell.words) + (f" ({_text(cell.small)})" if cell.small else "") for cell in cells]
        return " & ".join(map(_escaped, texts)) + r" \\"

    rows = grid(table)
    yield from (r"\begin{table}", r"\centering", rf"\caption{{{_escaped(caption)}}}")
    yield from (rf"\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}", r"\toprule")
    yield from (row([Cell(title) for title in table.head]), r"\midrule", *map(row, rows))
    yield from (r"\bottomrule", r"\end{tabular}", r"\end{table}")


def _escaped(text: str) -> str:
    return re.sub(r"[\\~^&%$#_{}]", lambda m: SPECIAL.get(m[0], "\\" + m[0]), text)
