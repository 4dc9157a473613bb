"""Figures of findings, grades and numbers: each finding or cut with its intervals, and the errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmed.metrics.estimates import ClassNumbers
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.metric_table import TITLES
from vitmed.metrics.predictions import Predictions
from vitmed.report.plots.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    add_grid,
    draw_estimate,
    numbers,
    percent,
    plot,
    short,
)
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


def cuts(predictions: Predictions, metrics: Results) -> Figure | None:
    """AUROC, sensitivity and specificity of each cut with intervals, and the share of images by error in grades with
    intervals."""
    found = metrics.grades
    if found is None or not found.distances:
        return None
    figure = Figure(figsize=(12, max(2.6, 0.4 * len(found.cuts) + 1.3)), layout="constrained")
    left, right = np.asarray(figure.subfigures(1, 2, width_ratios=(3, 1.3)))
    draw_rates(left.subplots(1, len(COLUMNS), sharey=True), found.cuts)
    most = max(abs(one.grades) for one in found.distances)
    share = {one.grades: one.share.value or 0.0 for one in found.distances}
    top = {one.grades: one.share.high or one.share.value or 0.0 for one in found.distances}
    axes = right.subplots()
    for error in range(-most, most + 1):
        colour = GREEN if error == 0 else BLUE if abs(error) == 1 else ORANGE
        height, place = share.get(error, 0), (error, top.get(error, 0))
        axes.bar(error, height, color=colour, width=0.8)
        axes.annotate(percent(height), place, (0, 2), textcoords="offset points", ha="center", fontsize=8)
    for one in found.distances:
        if one.share.low is not None:
            axes.plot([one.grades] * 2, numbers([one.share.low, one.share.high]), color="0.25", linewidth=1.2)
    axes.set_xticks(range(-most, most + 1), [f"{error:+d}" if error else "0" for error in range(-most, most + 1)])
    axes.set_xlabel("predicted minus true grade")
    axes.set_ylabel("share of images")
    axes.set_ylim(top=1.12 * max(top.values()))
    add_grid(axes, "y")
    return figure


MOST_BARS = 400  # images whose intervals are drawn


def predicted_and_true(predictions: NumberPredictions, metrics: Results) -> Figure | None:
    """The predicted number of each image against the true one; the line is agreement."""
    if not len(predictions) or predictions.labels is None:
        return None
    figure, axes = plot(f"true {_named(predictions)}", f"predicted {_named(predictions)}", (6.2, 5.6))
    if predictions.intervals is not None and len(predictions) <= MOST_BARS:
        axes.vlines(predictions.labels, *predictions.intervals.T, color="0.85", linewidth=0.8, zorder=1)
    size = float(np.clip(6000 / len(predictions), 4, 24))
    axes.scatter(predictions.labels, predictions.values, s=size, color=BLUE, alpha=0.5, linewidths=0, zorder=2)
    both = np.concatenate([predictions.labels, predictions.values])
    ends = [both.min(), both.max()]
    axes.plot(ends, ends, color=BLACK, linewidth=1, linestyle="--", zorder=3)
    return figure


def bland_altman(predictions: NumberPredictions, metrics: Results) -> Figure | None:
    """Predicted minus true against the mean of both, with bias and limits of agreement."""
    found = metrics.bland_altman
    if found is None or predictions.labels is None:
        return None
    figure, axes = plot(f"mean of predicted and true {_named(predictions)}", "predicted minus true", (7.2, 5.0))
    error, mean = predictions.values - predictions.labels, (predictions.values + predictions.labels) / 2
    size = float(np.clip(6000 / len(predictions), 4, 24))
    axes.scatter(mean, error, s=size, color=BLUE, alpha=0.5, linewidths=0)
    axes.axhline(0, color=GREY, linewidth=1)
    for one, colour, name in (
        (found.bias, BLACK, "bias"),
        (found.lower, RED, "95 % limits of agreement"),
        (found.upper, RED, ""),
    ):
        if one.value is None:
            continue
        label = f"{name} {one.value:.3g}" if name == "bias" else name
        axes.axhline(one.value, color=colour, linestyle="--", linewidth=1.3, label=label or None)
        if one.low is not None and one.high is not None:
            axes.axhspan(one.low, one.high, color=colour, alpha=0.1, linewidth=0)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
    return figure


def _named(predictions: NumberPredictions) -> str:
    unit = predictions.target.unit
    return predictions.classes[0] + (f" ({unit})" if unit else "")
