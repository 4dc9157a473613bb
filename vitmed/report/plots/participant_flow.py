"""The flow diagram: from the files found to the images evaluated."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vitmed.core.text import counted
from vitmed.metrics.predictions import Predictions
from vitmed.report.plots.drawing import BLUE, GREY, short
from vitmed.report.results import Count, EvaluatedImages, Flow, Results, SplitFlow

LISTED = 6  # classes that a box lists
LINE = 0.21  # inches that a line of text takes
FOLDS = "test sets of the folds, each by the model that never saw it"
WIDTH = 8.0  # inches
LETTER = 0.088  # inches that a letter takes


def flow(predictions: Predictions, metrics: Results | None) -> Figure | None:
    """Files found, left out, used, and assigned to the splits, with images and patients; None without a flow."""
    if metrics is None or metrics.flow is None:
        return None
    told = metrics.flow
    evaluated = told.evaluated
    other = [("others", evaluated)] if evaluated is not None and not evaluated.split else []
    count = len(told.splits) + len(other)
    width = (WIDTH - 0.4 - 0.2 * (count - 1)) / count
    if evaluated is not None and evaluated.folds is not None:  # any number of them: a line each, in one box
        width = WIDTH - 0.4
        every = [(FOLDS, _fold_lines(told.splits, int((width - 0.2) / LETTER)))]
    else:
        parts: dict[str, SplitFlow | EvaluatedImages] = dict([*told.splits.items(), *other])
        most = int((width - 0.2) / LETTER)
        classes = [line for part in parts.values() for line in _classes(part).items()]
        wrap = any(len(name + _numbers(count)) > most for name, count in classes)
        every = [(name, _lines(part, most, wrap)) for name, part in parts.items()]
    top, side, middle = _found(told), _left_out(told), _used(told)
    low = max(len(lines) for _, lines in every) + 1
    heights = [_height(len(top)) if top else 0.0, _height(max(len(middle), len(side) if top else 0)), _height(low)]
    gap = 0.42
    total = sum(heights) + gap * (2 if top else 1) + 0.2
    figure = Figure(figsize=(WIDTH, total))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, total))
    axes.set_axis_off()
    y = total - 0.1
    if top:
        _box(axes, 0.2, y - heights[0], 3.6, heights[0], top)
        _box(axes, 4.4, y - heights[0] - gap / 2 - _height(len(side)) / 2, 3.4, _height(len(side)), side, GREY)
        _arrow(axes, (2.0, y - heights[0]), (2.0, y - heights[0] - gap))
        _arrow(axes, (2.0, y - heights[0] - gap / 2), (4.4, y - heights[0] - gap / 2))
        y -= heights[0] + gap
    own = _height(len(middle))
    _box(axes, 0.2, y - own, 3.6, own, middle)
    y -= own
    bottom = 0.1 + heights[2]
    rail = bottom + 0.24
    axes.plot([2.0, 2.0], [y, rail], color="black", linewidth=1)
    for i, (name, lines) in enumerate(every):
        x = 0.2 + i * (width + 0.2)
        apart = name not in told.splits and name != FOLDS
        here = evaluated is not None and (apart or name in (evaluated.split, FOLDS))
        title = f"{name} (evaluated)" if here else name
        part = told.splits.get(name)
        if here and evaluated and part and evaluated.images != part.images:  # rows were removed from the table
            title, lines = f"{name} ({evaluated.images:,} evaluated)", [f"of {lines[0]}", *lines[1:]]
        _box(axes, x, 0.1, width, heights[2], [title, *lines], BLUE if here else "black", here)
        if not apart:
            axes.plot([2.0, x + width / 2], [rail, rail], color="black", linewidth=1)
            _arrow(axes, (x + width / 2, rail), (x + width / 2, bottom))
    return figure


def _height(lines: int) -> float:
    return LINE * lines + 0.16


def _box(
    axes: Axes, x: float, y: float, width: float, height: float, lines: list[str],
    edge: str = "black", bold: bool = False,
) -> None:  # fmt: skip
    """A box with its heading in the first line; (x, y) is its lower left corner, all in inches."""
    fill, thick = ("#EAF3FA", 2) if bold else ("white", 1)
    axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, linewidth=thick))
    for i, line in enumerate(lines):
        weight = "bold" if i == 0 else "normal"
        axes.text(x + 0.1, y + height - 0.08 - LINE * (i + 0.5), line, va="center", fontsize=10, fontweight=weight)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "black", "linewidth": 1})


def _people(patients: int | None) -> str:
    return "patients unknown" if patients is None else counted(patients, "patient")


def _found(told: Flow) -> list[str]:
    return [] if told.found is None else ["Found", counted(told.found, "image file")]


def _left_out(told: Flow) -> list[str]:
    if told.left_out is None:
        return []
    unreadable = "unreadable: not counted" if told.unreadable is None else f"{told.unreadable:,} unreadable"
    lines = ["Left out", unreadable, f"{told.left_out:,} in no split"]
    why = told.why_left_out if told.left_out else ""
    return [*lines, *textwrap.wrap(f"({why})" if why else "", 44)]


def _used(told: Flow) -> list[str]:
    lines = ["Used", f"{counted(told.used, 'image')}, {_people(told.patients)}"]
    if told.exact_duplicates is not None:
        lines.append(f"kept: identical copies {told.exact_duplicates:,}, alike {told.near_duplicates:,}")
    return lines


def _lines(part: SplitFlow | EvaluatedImages, most: int, wrap: bool) -> list[str]:
    """Lines of at most `most` letters; with `wrap`, the numbers of a class are below its name."""
    lines = [counted(part.images, "image"), _people(part.patients)]
    if len(part.classes) > LISTED:
        return [*lines, f"{len(part.classes):,} classes"]
    for name, count in _classes(part).items():
        numbers = _numbers(count)
        lines += [f"{short(name, most - 1)}:", f"  {numbers[2:]}"] if wrap else [short(name, most) + numbers]
    return lines


def _classes(part: SplitFlow | EvaluatedImages) -> Mapping[str, Count]:
    """The classes that a box lists; none if there are many."""
    return part.classes if len(part.classes) <= LISTED else {}


def _numbers(count: Count) -> str:
    people = "" if count.patients is None else f" / {count.patients:,}"
    return f": {count.images:,}{people}"


def _fold_lines(parts: Mapping[str, SplitFlow], most: int) -> list[str]:
    """A line for the test set of each fold."""
    return [short(f"{name}: {', '.join(_lines(part, 24, False))}", most) for name, part in parts.items()]
