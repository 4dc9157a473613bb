"""Figures of `vitmed stress`: the curves, and what the corruptions look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitmed.core.text import counted
from vitmed.decisions.targets import TARGETS
from vitmed.explanation.results import Robustness
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.predictions import Predictions
from vitmed.report.plots.drawing import BLUE, GREY, ORANGE, add_grid, draw_band, numbers, sheet
from vitmed.report.results import Results

COLUMNS = 4
STYLES = ((BLUE, "-", "o"), (ORANGE, "--", "s"))  # of the first two numbers


def robustness(predictions: Predictions, metrics: Results) -> Figure | None:
    """`stress_curves` of a report; None without a stress test."""
    return None if metrics.robustness is None else stress_curves(metrics.robustness)


def stress_curves(found: Robustness) -> Figure | None:
    """A panel for each corruption: the first two numbers by strength, with bands; None without a corruption."""
    if not found.corruptions:
        return None
    kind = TARGETS[found.target.kind]
    metric, unit = kind.metrics[found.number], f" ({found.target.unit})" if found.target.unit else ""
    parts = sorted(found.corruptions.values(), key=lambda part: -(part.lost.value or 0))
    columns = min(COLUMNS, len(parts))
    lines = -(-len(parts) // columns)
    figure = Figure(figsize=(2.6 * columns + 0.6, 2.25 * lines + 1.0), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(parts) :]:
        axes.set_axis_off()
    for axes, part in zip(panels.flat, parts, strict=False):
        for name, style in zip(kind.stress.names, STYLES, strict=False):
            shown = [found.clean[name], *(row[name] for row in part.strengths)]
            _curve(axes, kind.metrics[name].phrase + unit, style, shown)
        if found.guess is not None:
            guessing = f"guessing ({metric.phrase})"
            axes.axhline(found.guess, color=GREY, linestyle=":", linewidth=1.2, label=guessing)
        change = 0.0 if part.lost.value is None else round(part.lost.value, 3) * (1 - 2 * metric.higher_is_better)
        axes.set_title(part.title + ("" if part.lost.value is None else f": {change + 0:+.3f}"), fontsize=10)
        add_grid(axes)
    panels[0, 0].set(xticks=range(6), ylim=(None, 1.02 if metric.higher_is_better else None))
    for i, axes in enumerate(panels.flat[: len(parts)]):
        if i + columns >= len(parts):  # the lowest of its column
            axes.set_xlabel("strength (0: original)", fontsize=9)
            axes.tick_params(labelbottom=True)
    patients = "" if found.n_groups is None else f" of {counted(found.n_groups, 'patient')}"
    images = f"n = {counted(found.n, 'image')}{patients}"
    between = "; " if columns > 2 else "\n"
    figure.suptitle(f"{images}{between}in the titles: mean change of {metric.phrase}", fontsize=11)
    handles = panels[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=min(3, columns), fontsize=9)
    return figure


def _curve(axes: Axes, label: str, style: tuple[str, str, str], shown: Sequence[Estimate]) -> None:
    if shown[0].value is None:
        return
    strength, values, (colour, line, marker) = range(len(shown)), numbers(one.value for one in shown), style
    axes.plot(strength, values, line, color=colour, marker=marker, markersize=3.5, label=label)
    draw_band(axes, strength, shown, colour)


def stress_samples(pictures: Mapping[str, Sequence[np.ndarray]]) -> Figure:
    """One image under every corruption: a line each, the original and then strength 1 to 5.

    Args:
        pictures: title -> six uint8 arrays (H, W) or (H, W, C), of the same size.
    """
    columns = max(map(len, pictures.values()))
    figure, panels = sheet((1.35 * columns + 1.5, 1.35 * len(pictures) + 0.4), list(pictures.items()))
    for i, axes in enumerate(panels[0]):
        axes.set_title("original" if i == 0 else f"strength {i}", fontsize=10)
    return figure
