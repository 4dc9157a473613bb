"""Draws docs/images/architecture.svg, the map of the package, from its imports.

    python docs/architecture.py

A box is a room, with its modules; an arrow on the right goes from a room to a room that it imports from.
"""

import ast
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vitmed"
FILE = ROOT / "docs" / "images" / "architecture.svg"
LAYERS = ast.parse((ROOT / "tests" / "test_layers.py").read_text(encoding="utf-8"))
ROOMS: list[str] = next(
    ast.literal_eval(node.value)
    for node in LAYERS.body
    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "ROOMS"
)
WIDTH, GAP, LINE, TOP = 760, 14, 17, 44  # px: width of a box, space between boxes, height of a line, first line
LETTERS = 116  # of a line of module names
STEP = 13  # px between the lanes of the arrows
FONT = "font-family='Helvetica, Arial, sans-serif'"


def purpose(room: str) -> str:
    """The first sentence of a room's docstring."""
    text = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("`", "")


def modules(room: str) -> list[str]:
    """The names of a room's modules and folders."""
    paths = (p for p in (PACKAGE / room).iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file())
    return sorted(path.stem + ("/" if path.is_dir() else "") for path in paths if path.stem != "__init__")


def imported(room: str) -> set[str]:
    """The rooms that a room imports from."""
    found = set()
    for file in (PACKAGE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vitmed."):
                found.add(str(node.module).split(".")[1])
    return found & set(ROOMS) - {room}


def wrapped(names: list[str]) -> list[str]:
    """The names in lines of at most `LETTERS` letters."""
    lines = [""]
    for name in names:
        if lines[-1] and len(lines[-1]) + 3 + len(name) > LETTERS:
            lines.append("")
        lines[-1] += ("   " if lines[-1] else "") + name
    return lines


def picture() -> str:
    """The SVG as text."""
    boxes, middle, y = [], {}, 8
    for room in ROOMS:
        lines = wrapped(modules(room))
        height = TOP + LINE * len(lines) - 4
        boxes.append(f"<rect x='8' y='{y}' width='{WIDTH}' height='{height}' rx='6' fill='#f4f7fb' stroke='#4a6785'/>")
        boxes.append(f"<text x='20' y='{y + 21}' {FONT} font-size='15' font-weight='bold'>{room}/</text>")
        boxes.append(f"<text x='142' y='{y + 21}' {FONT} font-size='12' fill='#333'>{escape(purpose(room))}</text>")
        for k, line in enumerate(lines):
            text = escape(line).replace("   ", "&#160;&#160;&#160;")
            boxes.append(f"<text x='20' y='{y + TOP + LINE * k}' {FONT} font-size='12' fill='#1c4e80'>{text}</text>")
        middle[room] = y + height / 2
        y += height + GAP
    arrows, right = [], 8 + WIDTH
    for lane, room in enumerate(ROOMS):
        rooms = imported(room)
        below = [other for other in ROOMS[lane:] if other in rooms]
        if below:
            x, begin = right + 14 + STEP * (len(ROOMS) - lane), middle[room] - 4
            end = max(middle[other] for other in below) + 4 - 0.6 * lane
            arrows.append(f"<path d='M{right} {begin:g} H{x} V{end:g}' fill='none' stroke='#8a5a2b'/>")
        for other in below:
            place = middle[other] + 4 - 0.6 * lane
            arrows.append(f"<path d='M{x} {place:g} H{right + 2}' stroke='#8a5a2b' marker-end='url(#head)'/>")
            arrows.append(f"<circle cx='{x}' cy='{place:g}' r='2.2' fill='#8a5a2b'/>")
    width, height = right + 14 + STEP * (len(ROOMS) + 1), y
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
            f"viewBox='0 0 {width} {height}' role='img'>",
            "<title>The rooms of vitmed; imports point down</title>",
            "<defs><marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' "
            "orient='auto'><path d='M0 0 L8 4 L0 8 z' fill='#8a5a2b'/></marker></defs>",
            f"<rect width='{width}' height='{height}' fill='white'/>",
            *boxes,
            *arrows,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    FILE.write_text(picture(), encoding="utf-8")
    print(FILE.relative_to(ROOT))
