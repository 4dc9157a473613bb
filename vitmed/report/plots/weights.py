"""The figure of `vitmed probe` for several weights."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitmed.core.text import counted
from vitmed.decisions.targets import TARGETS
from vitmed.report.plots.drawing import BLUE, GREY, ORANGE, RED, add_grid, draw_estimate, short
from vitmed.report.weights_ranking import WeightsRanking


def ranking_picture(found: WeightsRanking) -> Figure:
    """A row for each weights: the number that ranks, the difference from the best, and the time for an image."""
    rows, number, kind = found.ranking, found.number, TARGETS[found.kind]
    figure = Figure(figsize=(10, 0.5 * len(rows) + 2.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3, sharey=True, width_ratios=(4, 4, 2))
    for y, one in enumerate(rows):
        draw_estimate(left, y - 0.12, one.logistic[number], BLUE)
        if one.neighbours is not None:
            draw_estimate(left, y + 0.16, one.neighbours[number], ORANGE, "D")
        if one.minus_best is not None:
            draw_estimate(
                middle, y, one.minus_best[number], RED if one.like_best else BLUE, "s" if one.like_best else "o"
            )
        else:
            middle.plot(0, y, "*", color=BLUE, markersize=10)
        right.barh(y, 1000 * one.seconds, color=GREY, height=0.5)
        right.annotate(f" {1000 * one.seconds:,.1f}", (1000 * one.seconds, y), va="center", fontsize=8)
    for marker, colour, label in (("o", BLUE, kind.linear), ("D", ORANGE, "nearest neighbours")):
        left.plot([], [], marker, linestyle="-", color=colour, label=label)
    for marker, colour, label in (("*", BLUE, "best"), ("s", RED, "cannot be told apart"), ("o", BLUE, "differs")):
        middle.plot([], [], marker, linestyle="none", color=colour, label=label)
    middle.axvline(0, color=GREY, linewidth=1)
    left.set_yticks(range(len(rows)), [short(one.name, 28) for one in rows], fontsize=9)
    left.set_ylim(len(rows) - 0.5, -0.6)
    for axes, title in (
        (left, f"{kind.metrics[number].title}, 95 % interval"),
        (middle, "difference from the best"),
        (right, "ms for an image"),
    ):
        axes.set_xlabel(title, fontsize=9)
        axes.tick_params(axis="x", labelsize=8)
        add_grid(axes, "x")
        axes.spines[["top", "right"]].set_visible(False)
    right.margins(x=0.25)
    figure.legend(*_handles(left, middle), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    patients = "" if found.patients is None else f" of {counted(found.patients, 'patient')}"
    figure.suptitle(f"frozen features; {found.held_out}{patients}", fontsize=10)
    return figure


def _handles(*several: Axes) -> tuple[list[Any], list[Any]]:
    """The entries of the legends of several axes."""
    both = [axes.get_legend_handles_labels() for axes in several]
    return [handle for handles, _ in both for handle in handles], [text for _, texts in both for text in texts]
