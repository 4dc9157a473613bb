"""Figures about several findings: each with its intervals, and which occur together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmed.metrics.estimates import ClassNumbers
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.metric_table import TITLES
from vitmed.report.plots.drawing import BLUE, GREY, add_grid, draw_estimate, percent, short
from vitmed.report.results import Results

MOST, MOST_PAIRED = 60, 24  # findings that a figure of lines and one of pairs show, the most frequent first
COLUMNS = ("auroc", "sensitivity", "specificity")


def by_finding(predictions: FindingPredictions, metrics: Results) -> Figure:
    """AUROC, sensitivity and specificity of each finding with their intervals; the dashed line is the mean."""
    names = sorted(metrics.classes, key=lambda name: -metrics.per_class[name].n)[:MOST]
    figure = Figure(figsize=(9.2, 0.29 * len(names) + 1.2), layout="constrained")
    panels = figure.subplots(1, len(COLUMNS), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, COLUMNS, strict=True):
        mean = metrics.overall.get(kind if kind == "auroc" else f"{kind}_macro")
        if mean is not None and mean.value is not None:
            axes.axvline(mean.value, color=GREY, linestyle="--", linewidth=1)
    draw_rates(panels, {name: metrics.per_class[name] for name in names})
    return figure


def draw_rates(panels: Sequence[Axes], rates: Mapping[str, ClassNumbers]) -> None:
    """The numbers `COLUMNS` with their intervals, one in each panel, a name in each line; the panels share y."""
    for axes, kind in zip(panels, COLUMNS, strict=True):
        for y, found in enumerate(rates.values()):
            draw_estimate(axes, y, found[kind], BLUE)
        axes.set_xlabel(TITLES[kind])
        axes.set_xlim(max(0.0, axes.get_xlim()[0]), 1.0)
        for line in axes.lines:
            line.set_clip_on(False)  # a point at 1 is drawn whole
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        add_grid(axes, "x")
    labels = [f"{short(name, 26)} (n={found.n:,})" for name, found in rates.items()]
    panels[0].set_yticks(range(len(rates)), labels, fontsize=9)
    panels[0].set_ylim(len(rates) - 0.5, -0.5)


def co_occurrence(predictions: FindingPredictions, metrics: Results) -> Figure | None:
    """Share of the images with the row's finding that also have the column's, of those in which both are known; grey
    where there is none. None for a single finding."""
    found = metrics.co_occurrence
    if found is None or len(found.findings) < 2:
        return None
    own = np.diag(found.truth)
    shown = np.argsort(-own, kind="stable")[:MOST_PAIRED]
    counts, share = (np.array(part, dtype=float)[np.ix_(shown, shown)] for part in (found.truth, found.truth_share))
    names, own, size = [found.findings[f] for f in shown], own[shown], max(5.0, 0.42 * len(shown) + 2.2)
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    axes = figure.add_subplot(xlabel="also has", ylabel="images with (n)")
    axes.set_facecolor("0.88")
    axes.imshow(np.ma.masked_invalid(share), cmap="Blues", vmin=0, vmax=1)
    for row, column in np.ndindex(share.shape):
        if len(names) <= 20 and row != column and counts[row, column]:
            colour = "white" if share[row, column] > 0.62 else "black"
            axes.text(
                column, row, percent(float(share[row, column])), ha="center", va="center", fontsize=8, color=colour
            )
    axes.set_xticks(range(len(names)), [short(name, 20) for name in names], rotation=90, fontsize=9)
    axes.set_yticks(range(len(names)), [f"{short(n, 20)} ({own[i]:,})" for i, n in enumerate(names)], fontsize=9)
    return figure
