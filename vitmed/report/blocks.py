"""What a report is made of: text, tables, first numbers and figures; and the functions by which a template makes them.

Two renderers draw the same blocks: `html` for report.html, `to_markdown` for report.md. The words of a block are
`Markup` with no other elements than those of a phrase, such as b, i, code and a.
"""

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product, repeat
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from vitmed.core.text import NOTICE
from vitmed.metrics.estimates import Estimate, decimals
from vitmed.report.plots.drawing import Drawn, plain

ROWS = "Row N in a figure is image N of predictions.csv. The whole report is made from that file."
MARKS = {"b": "**", "i": "*"}  # element of a phrase -> what stands around it
_joined = Markup("").join
WIDE = 900  # px; a wider figure takes the whole width of the page instead of one column of two


class Text(NamedTuple):
    """A paragraph, or at a level a heading; `css` is "quiet" for what explains, "note" for a warning."""

    words: Markup
    css: str = ""
    id: str = ""
    level: int = 0


class Items(NamedTuple):
    """A list; its entries follow in the order of the template."""

    entries: list[Markup]
    ordered: bool = False


class Cell(NamedTuple):
    """A cell of a table, over several columns or rows; `small` is the interval beside a number, and `numbers` what both
    say, unrounded: a number, or value, low and high."""

    words: Markup
    small: Markup | None = None
    css: str = ""
    head: bool = False
    columns: int = 1
    rows: int = 1
    numbers: tuple[float | None, ...] = ()


class Table(NamedTuple):
    """Titles of the columns, none for a table of names and values, and rows of cells."""

    head: Sequence[Markup]
    rows: Sequence[Sequence[Cell]]
    css: str = ""


class Headline(NamedTuple):
    """The first numbers, large: (title, number)."""

    entries: Sequence[tuple[Markup, Cell]]


class Picture(NamedTuple):
    """A figure with its title and caption, and the name of its files."""

    name: str
    title: str
    caption: str
    drawn: Drawn

    @property
    def alt(self) -> str:
        return f"{self.title}. {self.drawn.text}"

    @property
    def wide(self) -> bool:
        """Whether it takes the whole width of the page: bytes 16 to 19 of a PNG file are its width."""
        return int.from_bytes(self.drawn.png[16:20]) > WIDE


class Group(NamedTuple):
    """Blocks that belong together: the "verdict"; of `summary`, they are folded below it, and below a title."""

    blocks: Sequence["Block"]
    css: str = ""
    summary: Markup | None = None
    title: Markup | None = None


Block = Text | Items | Table | Headline | Picture | Group


class Chapter(NamedTuple):
    """A chapter; the question stands beside its title, the part above it in the contents list."""

    key: str
    title: str
    question: str
    part: str
    blocks: Sequence[Block]


class Document(NamedTuple):
    """A report, for every renderer; `head` is its title and what it is about."""

    head: Sequence[Block]
    chapters: Sequence[Chapter]


def words(text: object) -> Markup:
    """Text as words of a block: escaped, and of characters that every file can hold."""
    return escape(text if isinstance(text, Markup) else plain(str(text)))


def number(x: float | None, digits: int = 3) -> str:
    """Three decimals, or as many as asked for; "undefined" for None."""
    return "undefined" if x is None else f"{x:z,.{digits}f}"


def value(entry: Estimate, sign: str = "") -> str:
    """The value of an estimate, with as many decimals as its interval."""
    return "undefined" if entry.value is None else f"{entry.value:{sign}z,.{decimals(entry)}f}"


signed = partial(value, sign="+")  # of a difference


def interval(entry: Estimate) -> str:
    """`0.911 to 0.934`; "" where there is none."""
    digits = decimals(entry)
    return "" if entry.low is None else f"{entry.low:z,.{digits}f} to {entry.high:z,.{digits}f}"


def td(text: object, small: object = None, css: str = "", columns: int = 1, rows: int = 1, head: bool = False) -> Cell:
    """A cell, for `row`; a cell as it is."""
    if isinstance(text, Cell):
        return text
    return Cell(words(text), None if small is None else words(small), css, head, columns, rows)


def cell(entry: Estimate, text: Callable[[Estimate], str] = value, why: str = "") -> Cell:
    """A number with its interval, or why it has none."""
    return td(text(entry), interval(entry) or why)._replace(numbers=(entry.value, entry.low, entry.high))


def p_cell(p: float | None) -> Cell:
    """The p of a test; empty where there is none."""
    return td(p_text(p))._replace(numbers=(p,))


def p_text(p: float | None) -> str:
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def p_words(p: float | None) -> str:
    """`p = 0.012`, `p < 0.001`"""
    return f"p {'' if p is not None and p < 0.001 else '= '}{p_text(p)}"


def gap_cell(gap: Estimate, p: float | None) -> Cell:
    """A difference with its interval and p."""
    chance = "" if p is None else f", {p_words(p)}"
    return td(signed(gap), interval(gap) + chance)._replace(numbers=(gap.value, gap.low, gap.high, p))


def cells(entries: Any, names: Iterable[str], why: str = "") -> list[Cell]:
    return [cell(entries[name], why=why * (entries[name].value is not None)) for name in names]


class Sheet:
    """The blocks of a chapter, which its template makes by calling `functions`, in their order."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.rows: list[list[Cell]] = []

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """What a template may call: `quiet("text")`, or `{% call quiet() %}text{% endcall %}`."""
        made = (self.p, self.item, self.table, self.row, self.put, self.headline, self.group)
        styled: dict[str, Callable[..., Any]] = {css: partial(self.p, css=css) for css in ("quiet", "note")}
        styled["h3"] = partial(self.p, level=3)
        return {function.__name__: function for function in (*made, p_cell, gap_cell)} | styled

    def add(self, block: Block) -> str:
        """Append a block; what is returned stands in the text of the template."""
        self.blocks.append(block)
        return ""

    def p(
        self, text: object = "", css: str = "", id: str = "", level: int = 0, caller: Callable[[], str] | None = None
    ) -> str:
        return self.add(Text(words(caller() if caller else text), css, id, level))

    def item(self, text: object = "", ordered: bool = False, caller: Callable[[], str] | None = None) -> str:
        """An entry of a list; entries that follow each other are one list."""
        entry, last = words(caller() if caller else text), self.blocks[-1] if self.blocks else None
        if isinstance(last, Items):
            last.entries.append(entry)
            return ""
        return self.add(Items([entry], ordered))

    def table(self, head: Iterable[str], css: str = "", *, caller: Callable[[], str]) -> str:
        """A table of the rows that stand between {% call %} and {% endcall %}; an empty title is no column."""
        self.rows = []
        caller()
        return self.add(Table([words(title) for title in head if title], self.rows, css))

    def row(self, *cells: object, caller: Callable[[], str] | None = None) -> str:
        """A row of the table around it, whose first text is its heading; None is no cell. `put` may add cells to it."""
        self.rows.append([td(cell, head=k == 0) for k, cell in enumerate(cells) if cell is not None])
        return caller() if caller else ""

    def put(self, cell: object = "", css: str = "", caller: Callable[[], str] | None = None) -> str:
        """One more cell of the row around it."""
        self.rows[-1].append(td(caller() if caller else cell, css=css))
        return ""

    def headline(self, entries: Iterable[tuple[str, str, Estimate]]) -> str:
        """The first numbers, large: (key, title, number)."""
        shown = [(words(title), cells({"": number}, [""], "no interval")[0]) for _, title, number in entries]
        return self.add(Headline(shown))

    def group(self, css: str, summary: object = None, title: object = None, *, caller: Callable[[], str]) -> str:
        """The blocks between {% call %} and {% endcall %} as a group, folded below a summary if there is one."""
        outer, self.blocks = self.blocks, []
        caller()
        inner, self.blocks = self.blocks, outer
        return self.add(Group(inner, css, *(None if text is None else words(text) for text in (summary, title))))


class Page(Sheet):
    """The same functions for a page that is one template: a block stands where it is made."""

    def add(self, block: Block) -> str:
        return html(block)


def html(block: Block) -> Markup:
    match block:
        case Text(text, css, name, level):
            return _element(f"h{level}" if level else "p", text, css, name)
        case Items(entries, ordered):
            return _element("ol" if ordered else "ul", _joined(_element("li", entry) for entry in entries))
        case Table(head, rows, css):
            titles = _joined(Markup('<th scope="col">{}</th>').format(title) for title in head)
            top = _element("thead", _element("tr", titles)) if head else Markup("")
            lines = Markup("\n").join(_element("tr", _joined(map(_cell, row))) for row in rows)
            return _element("div", _element("table", Markup("{}<tbody>{}</tbody>").format(top, lines), css), "scroll")
        case Headline(entries):
            numbers = (_element("dt", title) + _element("dd", _value(cell)) for title, cell in entries)
            return _element("dl", Markup("\n").join(_element("div", number) for number in numbers), "headline")
        case Picture(_, title, caption, drawn):
            image = Markup('<img src="{}" alt="{}">').format(data_uri(drawn.small, drawn.kind), plain(block.alt))
            figure = _element("figure", image, "scroll" if block.wide else "")
            inner = _joined([_element("h3", words(title)), figure, _element("p", words(caption), "quiet")])
            return _element("div", inner, "figure wide" if block.wide else "figure")
        case Group(blocks, css, summary, title):
            inner = _joined(map(html, blocks))
            if summary is None:
                return _element("div", inner, css)
            above = summary if title is None else _element("h3", title) + " " + summary
            return _element("details", _element("summary", above) + inner, css)


def _element(tag: str, inner: Markup, css: str = "", name: str = "") -> Markup:
    facts = (Markup(' {}="{}"').format(fact, text) for fact, text in (("class", css), ("id", name)) if text)
    return Markup("<{}{}>{}</{}>").format(tag, _joined(facts), inner, tag)


def _value(cell: Cell) -> Markup:
    """A blank and brackets: what is copied into a text or into Word has neither the size nor the place of <small>."""
    return cell.words + (Markup(" <small>({})</small>").format(cell.small) if cell.small else "")


def _cell(cell: Cell) -> Markup:
    tag, facts = ("th", Markup(' scope="row"')) if cell.head else ("td", Markup(""))
    for name, fact in (("class", cell.css), ("colspan", cell.columns), ("rowspan", cell.rows)):
        if fact not in ("", 1):
            facts += Markup(' {}="{}"').format(name, fact)
    return Markup("<{}{}>{}</{}>").format(tag, facts, _value(cell), tag)


def data_uri(content: bytes, kind: str = "image/png") -> str:
    """A picture as it stands inside a page that loads nothing."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def to_markdown(document: Document) -> str:
    """A report as Markdown; what is escaped are its words, not its layout."""
    lines = [line for block in document.head for line in _lines(block)]
    for k, chapter in enumerate(document.chapters):
        lines += ["", f"## {escape_markdown(chapter.title)}", *(["", escape_markdown(chapter.question)] if k else [])]
        lines += [line for block in chapter.blocks for line in _lines(block)]
    return "\n".join([*lines, "", escape_markdown(ROWS), "", escape_markdown(NOTICE)]).strip() + "\n"


def escape_markdown(text: str) -> str:
    """Text in which no character has a meaning in Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#~!$&])", r"\\\1", text)


def _lines(block: Block) -> Iterator[str]:
    match block:
        case Text(words, _, _, level):
            yield from ("", f"{'#' * level} {_phrase(words)}" if level else _phrase(words))
        case Items(entries, ordered):
            yield from ("", *(f"{f'{k}.' if ordered else '-'} {_phrase(entry)}" for k, entry in enumerate(entries, 1)))
        case Headline(entries):
            yield from ("", *(f"- {_phrase(title)}: {_cell_text(cell)}" for title, cell in entries))
        case Table(head):
            lines = [[_cell_text(cell) for cell in row] for row in grid(block)]
            width = max(map(len, lines), default=len(head))
            lines = [[*map(_phrase, head), *repeat("", width - len(head))], *lines] if head else lines
            lines.insert(1, ["---"] * width)
            yield from ("", *(f"| {' | '.join(line)} |" for line in lines))
        case Picture(name, title, caption):
            alt = escape_markdown(plain(block.alt))
            yield from ("", f"### {escape_markdown(title)}", "", f"![{alt}]({name}.png)", "", escape_markdown(caption))
        case Group(blocks, _, summary, title):
            yield from ("", f"### {_phrase(title)}") if title else ()
            yield from ("", _phrase(summary)) if summary else ()
            yield from (line for inner in blocks for line in _lines(inner))


def _phrase(words: Markup) -> str:
    """Words in one line, with the marks of their elements."""
    parts = re.split(r"</?(\w+)[^>]*>", words)  # text, and every second the name of an element
    parts[1::2] = [MARKS.get(element, "") for element in parts[1::2]]
    parts[::2] = [escape_markdown(Markup(text).unescape()) for text in parts[::2]]
    return " ".join("".join(parts).split())


def _cell_text(cell: Cell) -> str:
    return _phrase(cell.words) + (f" ({_phrase(cell.small)})" if cell.small else "")


def grid(table: Table) -> list[list[Cell]]:
    """The cells as a rectangle: one over several rows stands in each of them, one over several columns in the first."""
    taken: dict[tuple[int, int], Cell] = {}  # (row, column) -> the cell there
    for k, row in enumerate(table.rows):
        column = 0
        for cell in row:
            while (k, column) in taken:
                column += 1
            places = product(range(k, k + cell.rows), range(column, column + cell.columns))
            taken |= {place: cell if place[1] == column else td("") for place in places}
    width = max([len(table.head), *(column + 1 for _, column in taken)])
    return [[taken.get((k, column), td("")) for column in range(width)] for k in range(len(table.rows))]
