"""Draws docs/images/ensembles.svg from the table of docs/many-runs.md: what an ensemble gains in AUROC.

python docs/ensembles.py
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

PAGE = Path(__file__).with_name("many-runs.md")
FILE = PAGE.parent / "images" / "ensembles.svg"
ROWS = {"the ensemble": "#0072b2", "mirrored copies of each image": "#d55e00"}
LEFT, STEP, SCALE, LOW, HIGH = 150, 22, 6500, -0.03, 0.06  # px, px, px per AUROC, AUROC, AUROC


def text() -> str:
    """The picture: for each set a line with the 95 % interval of each way."""
    interval = r"([+-][\d.]+) \(([+-][\d.]+) to ([+-][\d.]+)\)"
    rows = re.findall(rf"^\| (\w+) \| ({'|'.join(ROWS)}) \| {interval}", PAGE.read_text(encoding="utf-8"), re.M)

    def x(value: float) -> float:
        return round(LEFT + (value - LOW) * SCALE, 1)

    def words(where: float, y: float, content: str, anchor: str = "middle", colour: str = "#333") -> str:
        return f'<text x="{where}" y="{y}" text-anchor="{anchor}" fill="{colour}">{escape(content)}</text>'

    bottom = 40 + STEP * len(rows)
    parts = []
    for k in range(-3, 7):
        colour = "#888" if k == 0 else "#ddd"
        parts.append(f'<line x1="{x(k / 100)}" x2="{x(k / 100)}" y1="34" y2="{bottom}" stroke="{colour}"/>')
        parts.append(words(x(k / 100), bottom + 16, f"{k / 100:+.2f}" if k else "0"))
    for k, (name, way, *numbers) in enumerate(rows):
        value, low, high = map(float, numbers)
        y, colour = 45 + STEP * k, ROWS[way]
        parts += [words(LEFT - 10, y + STEP / 2 + 4, name, "end")] if k % len(ROWS) == 0 else []
        parts.append(f'<line x1="{x(low)}" x2="{x(high)}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<circle cx="{x(value)}" cy="{y}" r="4" fill="{colour}"/>')
    for k, (way, colour) in enumerate(ROWS.items()):
        parts.append(words(x(LOW) + 230 * k, 20, f"\N{BLACK CIRCLE} {way}", "start", colour))
    parts.append(words(x((LOW + HIGH) / 2), bottom + 36, "AUROC, less that of one model (95 % interval)"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {x(HIGH) + 30:.0f} {bottom + 46}"'
    white = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([f'{head} font-family="sans-serif" font-size="13">', white, *parts, "</svg>\n"])


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(FILE.name)
