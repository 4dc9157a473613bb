"""The flow diagram: from the files found to the images evaluated."""

from __future__ import annotations

import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vitmed.core.text import counted
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.predictions import Predictions
from vitmed.report.plots.drawing import BLACK, BLUE, GREY, short
from vitmed.report.results import Count, EvaluatedImages, Flow, Results, SplitFlow

LISTED = 6  # classes that a box lists
LINE = 0.21  # inches that a line of text takes
FOLDS = "test sets of the folds, each by the model that never saw it"
WIDTH = 8.0  # inches
LETTER = 0.088  # inches that a letter takes


def flow(predictions: Predictions, metrics: Results) -> Figure | None:
    """Files found, left out, used, and assigned to the splits, with images and patients; None without splits."""
    if metrics.flow is None or not metrics.flow.splits:  # an exported model lists no images
        return None
    counts, evaluated, unit = metrics.flow, metrics.flow.evaluated, metrics.unit
    noun = TARGETS[metrics.target.kind].words.part
    parts: dict[str, SplitFlow | EvaluatedImages] = dict(counts.splits)
    if evaluated is not None and not evaluated.split:
        parts["others"] = evaluated
    folds = evaluated is not None and evaluated.folds is not None  # any number of them: a line each, in one box
    beside = 1 if folds else len(parts)
    width = (WIDTH - 0.4 - 0.2 * (beside - 1)) / beside
    most = int((width - 0.2) / LETTER)  # letters in a line
    if folds:
        lines_of = {name: ", ".join(_lines(part, noun, unit, 24, False)) for name, part in counts.splits.items()}
        boxes = {FOLDS: [short(f"{name}: {text}", most) for name, text in lines_of.items()]}
    else:
        classes = [line for part in parts.values() for line in _classes(part).items()]
        wrap = any(len(f"{name}: {_numbers(count)}") > most for name, count in classes)
        boxes = {name: _lines(part, noun, unit, most, wrap) for name, part in parts.items()}
    found, left_out, used = _upper_boxes(counts, unit)
    first, second = _height(len(found)), _height(max(len(used), len(left_out)))
    lowest, gap = _height(max(map(len, boxes.values())) + 1), 0.42
    total = (first + gap if found else 0) + second + gap + lowest + 0.2
    figure = Figure(figsize=(WIDTH, total))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, total))
    axes.set_axis_off()
    y = total - 0.1
    if found:
        y -= first
        side = _height(len(left_out))
        _box(axes, (0.2, y, 3.6, first), found)
        _box(axes, (4.4, y - gap / 2 - side / 2, 3.4, side), left_out, GREY)
        _arrow(axes, (2.0, y), (2.0, y - gap))
        _arrow(axes, (2.0, y - gap / 2), (4.4, y - gap / 2))
        y -= gap
    y -= _height(len(used))
    _box(axes, (0.2, y, 3.6, _height(len(used))), used)
    bottom = 0.1 + lowest
    rail = bottom + 0.24
    axes.plot([2.0, 2.0], [y, rail], color=BLACK, linewidth=1)
    for i, (name, lines) in enumerate(boxes.items()):
        x, own = 0.2 + i * (width + 0.2), counts.splits.get(name)
        here = evaluated is not None and (folds or name == (evaluated.split or "others"))
        title = f"{name} (evaluated)" if here else name
        if here and evaluated and own and evaluated.images != own.images:  # rows were removed from the table
            title, lines = f"{name} ({evaluated.images:,} evaluated)", [f"of {lines[0]}", *lines[1:]]
        _box(axes, (x, 0.1, width, lowest), [title, *lines], BLUE if here else BLACK)
        if own or folds:
            axes.plot([2.0, x + width / 2], [rail, rail], color=BLACK, linewidth=1)
            _arrow(axes, (x + width / 2, rail), (x + width / 2, bottom))
    return figure


def _height(lines: int) -> float:
    return LINE * lines + 0.16


def _box(axes: Axes, place: tuple[float, float, float, float], lines: list[str], edge: str = BLACK) -> None:
    """Draw a box with its heading in the first line; its place is left, bottom, width and height in inches."""
    x, y, width, height = place
    fill, thick = ("#EAF3FA", 2) if edge == BLUE else ("white", 1)
    axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, linewidth=thick))
    for i, line in enumerate(lines):
        weight = "bold" if i == 0 else "normal"
        axes.text(x + 0.1, y + height - 0.08 - LINE * (i + 0.5), line, va="center", fontsize=10, fontweight=weight)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": BLACK, "linewidth": 1})


def _people(patients: int | None, unit: str) -> str:
    return "patients unknown" if patients is None else counted(patients, unit)


def _upper_boxes(counts: Flow, unit: str) -> tuple[list[str], list[str], list[str]]:
    """Lines of the files found and left out, none where they were not counted; and of the images used."""
    found, left_out = [], []
    if counts.found is not None:
        unreadable = "unreadable: not counted" if counts.unreadable is None else f"{counts.unreadable:,} unreadable"
        why = f"({counts.why_left_out})" if counts.left_out and counts.why_left_out else ""
        found = ["Found", counted(counts.found, "image file")]
        left_out = ["Left out", unreadable, f"{counts.left_out:,} in no split", *textwrap.wrap(why, 44)]
    used = ["Used", f"{counted(counts.used, 'image')}, {_people(counts.patients, unit)}"]
    if counts.exact_duplicates is not None:
        used.append(f"kept: identical copies {counts.exact_duplicates:,}, alike {counts.near_duplicates:,}")
    return found, left_out, used


def _lines(part: SplitFlow | EvaluatedImages, noun: str, unit: str, most: int, wrap: bool) -> list[str]:
    """Lines of at most `most` letters; with `wrap`, the numbers of a class, or another noun, are below its name."""
    lines = [counted(part.images, "image"), _people(part.patients, unit)]
    if len(part.classes) > LISTED:
        lines.append(counted(len(part.classes), noun))
    for name, count in _classes(part).items():
        text = _numbers(count)
        lines += [f"{short(name, most - 1)}:", f"  {text}"] if wrap else [f"{short(name, most)}: {text}"]
    return lines


def _classes(part: SplitFlow | EvaluatedImages) -> dict[str, Count]:
    return part.classes if len(part.classes) <= LISTED else {}


def _numbers(count: Count) -> str:
    return f"{count.images:,}" if count.patients is None else f"{count.images:,} / {count.patients:,}"
