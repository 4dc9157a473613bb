"""Figures of each kind of label: classes (confusion matrix, ROC, precision and recall), findings, grades, numbers."""

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitmed.core.text import counted
from vitmed.metrics.areas import threshold_counts
from vitmed.metrics.estimates import Numbers, decimals, value_text
from vitmed.metrics.intervals import Units, quantile
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions, total_sd
from vitmed.metrics.metric_table import METRICS
from vitmed.metrics.predictions import Predictions, known_labels, positive_index
from vitmed.report.plots import drawing
from vitmed.report.plots.drawing import BLACK, BLUE, COLOURS, GREEN, GREY, LEGEND, RED
from vitmed.report.results import Results

MOST = 60  # findings that a figure shows, the most frequent first
COLUMNS = ("auroc", "sensitivity", "specificity")


def by_finding(predictions: FindingPredictions, metrics: Results) -> Figure:
    """AUROC, sensitivity and specificity of each finding with their intervals; the dashed line is the mean."""
    names = sorted(metrics.classes, key=lambda name: -metrics.per_class[name].n)[:MOST]
    figure = Figure(figsize=(9.2, 0.29 * len(names) + 1.2), layout="constrained")
    panels = figure.subplots(1, len(COLUMNS), sharey=True, squeeze=False)[0]
    means = {kind: metrics.overall.get(kind if kind == "auroc" else f"{kind}_macro") for kind in COLUMNS}
    rows = [(f"{drawing.short(name, 26)} (n={metrics.per_class[name].n:,})", metrics.per_class[name]) for name in names]
    drawing.forest(panels, rows, means)
    for axes in panels:
        axes.set_xlim(max(0.0, axes.get_xlim()[0]), 1.0)
        for line in axes.lines:
            line.set_clip_on(False)  # a point at 1 is drawn whole
    return figure


def predicted_and_true(predictions: NumberPredictions, metrics: Results) -> Figure | None:
    """The predicted number of each image against the true one; the line is agreement."""
    if not len(predictions) or predictions.labels is None:
        return None
    figure, axes = drawing.plot(f"true {_named(predictions)}", f"predicted {_named(predictions)}", (6.2, 5.6))
    if predictions.intervals is not None and len(predictions) <= 400:  # more bars are a blot
        axes.vlines(predictions.labels, *predictions.intervals.T, color="0.85", linewidth=0.8, zorder=1)
    size = float(np.clip(6000 / len(predictions), 4, 24))
    axes.scatter(predictions.labels, predictions.values, s=size, color=BLUE, alpha=0.5, linewidths=0, zorder=2)
    both = np.concatenate([predictions.labels, predictions.values])
    ends = [both.min(), both.max()]
    axes.plot(ends, ends, color=BLACK, linewidth=1, linestyle="--", zorder=3)
    return figure


def bland_altman(predictions: NumberPredictions, metrics: Results) -> Figure | None:
    """Predicted minus true against the mean of both: bias, limits of agreement, trend, and limits that follow it."""
    agreement = metrics.bland_altman
    if agreement is None or predictions.labels is None:
        return None
    named, name = _named(predictions), predictions.classes[0]
    x, y = f"mean of predicted and true {named}", f"predicted minus true{named.removeprefix(name)}"
    figure, axes = drawing.plot(x, y, (7.2, 5.0))
    error, mean = predictions.values - predictions.labels, (predictions.values + predictions.labels) / 2
    axes.scatter(mean, error, s=float(np.clip(6000 / len(predictions), 4, 24)), color=BLUE, alpha=0.5, linewidths=0)
    axes.axhline(0, color=GREY, linewidth=1)
    for line, colour, label in (
        (agreement.bias, BLACK, f"bias {agreement.bias.value or 0:z,.{decimals(agreement.bias)}f}"),
        (agreement.lower, RED, "95 % limits of agreement"),
        (agreement.upper, RED, None),
    ):
        axes.axhline(*drawing.numbers([line.value]), color=colour, linestyle="--", linewidth=1.3, label=label)
        if line.low is not None and line.high is not None:
            axes.axhspan(line.low, line.high, color=colour, alpha=0.1, linewidth=0)
    if agreement.trend.value is not None:
        fitted = error.mean() + agreement.trend.value * (mean - mean.mean())
        ends, around = [mean.argmin(), mean.argmax()], quantile() * total_sd(error - fitted, Units(predictions.units))
        axes.plot(mean[ends], fitted[ends], color=GREEN, linewidth=2, label=f"trend {agreement.trend.value:+.3g}")
        for reach, label in ((around, "95 % limits that follow the trend"), (-around, None)) * agreement.drifts:
            axes.plot(mean[ends], fitted[ends] + reach, color=GREEN, linestyle=":", linewidth=2, label=label)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
    return figure


def _named(predictions: NumberPredictions) -> str:
    unit = predictions.target.unit
    return predictions.classes[0] + (f" ({unit})" if unit else "")


WRITTEN = 40  # classes: with more, cells have a colour but no number


def confusion_matrix(predictions: Predictions, metrics: Numbers) -> Figure:
    """Counts and their shares of the row (of the truth)."""
    k = len(predictions.classes)
    counts = np.array(metrics.confusion_matrix)
    total = counts.sum(axis=1, keepdims=True)
    share = counts / np.maximum(total, 1)
    cell = float(np.clip(4.2 / k, 0.62, 1.6)) if k <= WRITTEN else 12 / k  # inches
    names = [drawing.short(c, 22) for c in predictions.classes]
    font = 10 if k <= 15 else 13
    longest = max(map(len, names)) * 0.62 * font / 72  # inches
    figure = Figure(figsize=(cell * k + max(2, longest + 1), cell * k + 1.5), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    size = min(13.0, 72 * cell / (0.68 * max(4, len(f"{counts.max(initial=0):,}"))))  # points: the longest text fits
    for row, column in np.ndindex(k, k) if k <= WRITTEN else ():
        if (k > LEGEND and not counts[row, column]) or not total[row]:
            continue  # among hundreds of cells the zeros are clutter; of no images there is no share
        text = f"{counts[row, column]:,}\n{drawing.percent(share[row, column])}"
        colour = "white" if share[row, column] > 0.62 else "black"
        # in_layout: to measure hundreds of texts, all inside the axes, takes seconds
        axes.text(column, row, text, ha="center", va="center", fontsize=size, color=colour, in_layout=False)
    named = range(0, k, -(-k // WRITTEN))  # of very many classes every n-th
    upright = longest > cell  # would touch its neighbour
    axes.set_xticks(named, [names[i] for i in named], fontsize=font, rotation=90 if upright else 0)
    axes.set_yticks(named, [f"{names[i]} (n={total[i, 0]:,})" for i in named], fontsize=font)
    axes.set_xlabel("predicted class", fontsize=font + 1)
    axes.set_ylabel("true class (images)", fontsize=font + 1)
    if k <= WRITTEN:
        axes.set_xticks(np.arange(k + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(k + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)
    title, balanced = f"n = {counted(len(predictions), 'image')}", metrics.overall["balanced_accuracy"]
    title += "" if balanced.value is None else f"\nBalanced accuracy {value_text(balanced)}"
    figure.suptitle(title, fontsize=font + 1)
    return figure


def roc(predictions: Predictions, metrics: Results) -> Figure:
    """Sensitivity against 1 - specificity over all thresholds, and where the model decides; a band of two classes."""
    curves = {c: (fp / fp[-1], tp / tp[-1]) for c, tp, fp in _counts(predictions)}
    names = "1 - specificity (false positive rate)", "sensitivity (true positive rate)"
    figure, axes = _square(*names, predictions, empty=not curves)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1)
    if metrics.fixed_rates is not None:
        band = metrics.fixed_rates.band
        drawing.draw_band(axes, [1 - cut.fixed for cut in band], [cut.reached for cut in band], BLUE)
    for c, colour in _lines(axes, metrics, curves, "auroc").items():
        rates, alone, label = metrics.per_class[metrics.classes[c]], metrics.positive_class is not None, ""
        sensitivity, kept = rates.sensitivity, rates.specificity
        if sensitivity.value is None or kept.value is None:
            continue
        x, y = 1 - kept.value, sensitivity.value
        if alone:
            label = f"decides: sensitivity {value_text(sensitivity)},\nspecificity {value_text(kept)}"
            axes.plot([x, x], drawing.numbers([sensitivity.low, sensitivity.high]), color=BLACK, linewidth=1.2)
            axes.plot(1 - drawing.numbers([kept.low, kept.high]), [y, y], color=BLACK, linewidth=1.2)
        dot = BLACK if alone else colour
        axes.plot(x, y, "o", color=dot, markeredgecolor="white", markersize=7, zorder=3, label=label)
    if len(predictions.classes) > 2 and curves:
        axes.plot([], [], "o", color=GREY, label="dot: where the model decides")
        if len(curves) == len(predictions.classes):  # else there is no mean: metrics.json has none either
            rises = np.linspace(0, 1, 1001)
            mean = np.mean([np.interp(rises, *curve) for curve in curves.values()], axis=0)
            line = np.append(0, rises), np.append(0, mean)
            axes.plot(*line, color="black", linewidth=2.5, linestyle="--", label="mean of classes")
    read = {comparison.number: comparison for comparison in metrics.readers or []}
    if {"sensitivity", "specificity"} <= read.keys():
        n = read["sensitivity"].n + read["specificity"].n
        for (name, sensitivity), marker in zip(read["sensitivity"].readers.items(), cycle("^vsDPX")):
            who = drawing.short(name if name.startswith("reader") else f"reader {name}", 27)
            kept, label = read["specificity"].readers[name], f"{who}, {n:,} images"
            if sensitivity.value is not None and kept.value is not None:
                axes.plot(1 - kept.value, sensitivity.value, marker, color=GREEN, markersize=7, zorder=4, label=label)
    _finish(figure, axes, metrics, "auroc", "AUROC")
    return figure


def precision_recall(predictions: Predictions, metrics: Numbers) -> Figure:
    curves = {}
    for c, tp, fp in _counts(predictions):
        precision = tp[1:] / (tp[1:] + fp[1:])
        curves[c] = tp / tp[-1], np.append(precision[:1], precision)
    positive = positive_index(predictions)
    empty = not curves if positive is None else positive not in curves
    figure, axes = _square("recall (sensitivity)", "precision (PPV)", predictions, empty)
    if positive is not None and len(predictions):
        share = float(np.mean(known_labels(predictions) == positive))
        axes.axhline(share, color=GREY, linestyle=":", linewidth=1, label=f"by chance: prevalence {share:.3g}")
    _lines(axes, metrics, curves, "average_precision", drawstyle="steps-pre")
    _finish(figure, axes, metrics, "average_precision", "average precision")
    return figure


def _square(x: str, y: str, predictions: Predictions, empty: bool) -> tuple[Figure, Axes]:
    """Axes from 0 to 1; where they stay empty, with the reason."""
    figure, axes = drawing.plot(x, y, (5.4, 5.4))
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    if empty:
        names = [predictions.classes[k] for k in np.unique(known_labels(predictions))]
        why = f"all images are of the class {drawing.short(names[0], 26)}" if len(names) == 1 else "there are no images"
        axes.text(0.5, 0.6, f"no curve: {why}", ha="center", va="center", fontsize=11, transform=axes.transAxes)
    return figure, axes


def _counts(predictions: Predictions) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    for c in range(len(predictions.classes)):
        tp, fp = threshold_counts(predictions.probabilities[:, c], known_labels(predictions) == c)
        if tp[-1] and fp[-1]:
            yield c, tp, fp


def _lines(
    axes: Axes, metrics: Numbers, curves: dict[int, tuple[np.ndarray, np.ndarray]], area: str, **style: Any
) -> dict[int, str]:
    """Draw the curves: of two classes the positive one; of many, only the worst four in colour. The colour of each."""
    classes = metrics.classes
    if metrics.positive_class is not None:
        curves = {c: curve for c, curve in curves.items() if classes[c] == metrics.positive_class}
    areas = {c: metrics.per_class[classes[c]][area] for c in curves}
    named = list(curves)
    if len(curves) > LEGEND:
        named = sorted(curves, key=lambda c: areas[c].value or 0.0)[:4]
        axes.plot([], [], color=GREY, linewidth=0.7, label=f"{len(curves) - 4} other classes")
        for c in (c for c in curves if c not in named):
            axes.plot(*curves[c], color=GREY, linewidth=0.7, alpha=0.6, **style)
    colours = dict(zip(named, COLOURS, strict=False))
    for c, colour in colours.items():
        text = f"{drawing.short(classes[c], 26)}: {value_text(areas[c])}, n={metrics.per_class[classes[c]].n:,}"
        axes.plot(*curves[c], color=colour, linewidth=2.2 if len(curves) == 1 else 1.3, label=text, **style)
    return colours


def _finish(figure: Figure, axes: Axes, metrics: Numbers, area: str, name: str) -> None:
    many = len(metrics.classes) > 2
    title = f"n = {counted(metrics.n, 'image')}"
    if many:
        mean = metrics.overall[area]
        title += ", each class against the rest"
        title += "" if mean.value is None else f"\nmean of classes: {METRICS[area].title} {value_text(mean)}"
    axes.set_title(title, fontsize=11)
    handles, texts = axes.get_legend_handles_labels()
    figure.set_figheight((6.0 if many else 5.4) + 0.2 * len(handles))
    if handles:
        title = f"lowest {name}" if len(metrics.classes) > LEGEND else name
        figure.legend(handles, texts, loc="outside lower center", fontsize=9, title=title, title_fontsize=9)
