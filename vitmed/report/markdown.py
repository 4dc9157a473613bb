"""report.md: the page as Markdown, from the same templates, with links to the figures beside it.

Not by markdownify: it needs the same special cases (intervals, headline numbers, parts that need a script, escaping)
and four more packages.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

LEFT_OUT = {"script", "style", "nav", "head"}
CONTROLS = {"controls", "skip"}  # classes of what needs a script or a browser
BLOCKS = {"p", "div", "section", "details", "figure", "footer", "header", "main", "ul", "dl", "table"}
VOID = {"meta", "img", "br", "wbr", "link", "input"}
PREFIXES = {"h1": "# ", "h2": "## ", "h3": "### ", "li": "- ", "dt": "- "}
OPENING = {"dd": ": ", "small": " ("}
MARKS = {"b": "**", "strong": "**", "i": "*", "em": "*"}


def to_markdown(html: str) -> str:
    """A page of vitmed as Markdown: headings, paragraphs, lists, tables and pictures; names in it are escaped."""
    writer = _Writer()
    writer.feed(html)
    writer.close()
    writer.end_block()
    return "\n".join(writer.lines).strip() + "\n"


class _Writer(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.text = ""
        self.prefix = ""
        self.hidden = 0  # open tags from the one that is left out inwards
        self.rows: list[list[str]] | None = None

    def end_block(self) -> None:
        """Write the collected text as a paragraph, heading or list item."""
        text, self.text = " ".join(self.text.split()), ""
        if text:
            listed = self.prefix == "- " and bool(self.lines) and self.lines[-1].startswith("- ")
            self.lines += [f"{self.prefix}{text}"] if listed else ["", f"{self.prefix}{text}"]
        self.prefix = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if self.hidden or tag in LEFT_OUT or CONTROLS & set(given.get("class", "").split()):
            self.hidden += tag not in VOID
            return
        if (tag in BLOCKS and self.rows is None) or tag in PREFIXES or tag == "img":
            self.end_block()
            self.prefix = PREFIXES.get(tag, "")
        if tag == "table":
            self.rows = []
        elif tag == "tr" and self.rows is not None:
            self.rows.append([])
        elif tag in ("td", "th"):
            self.text = ""
        elif tag == "img":
            self.lines += ["", f"![{escape(given.get('alt', ''))}]({given.get('src', '')})"]
        self.text += MARKS.get(tag, OPENING.get(tag, ""))

    def handle_endtag(self, tag: str) -> None:
        if self.hidden:
            self.hidden -= tag not in VOID
            return
        self.text += MARKS.get(tag, "")
        if tag == "small":
            self.text = self.text[:-2] if self.text.endswith(" (") else self.text + ")"
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append(" ".join(self.text.split()))
            self.text = ""
        elif tag == "caption":
            caption, self.text = self.text, ""
            self.lines += ["", caption]
        elif tag == "table" and self.rows is not None:
            rows, self.rows = self.rows, None
            self.lines += ["", *_table(rows)]
        elif (tag in BLOCKS and self.rows is None) or tag == "dd" or (tag in PREFIXES and tag != "dt"):
            self.end_block()

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.text += escape(data)


def escape(text: str) -> str:
    """Text in which no character has a meaning in Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#~!$&])", r"\\\1", text)


def _table(rows: list[list[str]]) -> list[str]:
    """The lines of a table, as wide as its widest row; the first row is the head."""
    width = max(map(len, rows), default=0)
    filled = [row + [""] * (width - len(row)) for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in filled]
    return [*lines[:1], "|" + "---|" * width, *lines[1:]] if lines else []
