"""Figures about decisions: PPV and NPV by prevalence, decision curve, abstention, OOD score."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from vitmed.core.text import counted
from vitmed.decisions.out_of_distribution import scores_of
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.predictions import Predictions
from vitmed.report.plots.drawing import BLUE, GREY, RED, band, interval, numbers, plot, short
from vitmed.report.results import Results

BLACK = "#000000"


def prevalence(predictions: Predictions, metrics: Results | None = None) -> Figure | None:
    """PPV and NPV against the prevalence of the positive class."""
    found = None if metrics is None else metrics.prevalence
    if found is None or not found.rows or found.observed is None:
        return None
    figure, axes = plot("prevalence of the positive class (log scale)", "share of the results that is true")
    axes.set_xscale("log")
    x, at = ([row.prevalence for row in part] for part in (found.curve, found.rows))
    kinds = (("ppv", "PPV (of positive results)", BLUE, "o"), ("npv", "NPV (of negative results)", RED, "s"))
    for key, name, colour, marker in kinds:
        band(axes, x, [row[key] for row in found.curve], colour)
        axes.plot(x, numbers(row[key].value for row in found.curve), color=colour)
        points = numbers(row[key].value for row in found.rows)
        axes.plot(at, points, color=colour, marker=marker, markersize=5, linestyle="", label=name)
    axes.axvline(found.observed, color=GREY, linestyle=":", label=f"in these images: {_percent(found.observed)}")
    if found.intended is not None:
        axes.axvline(found.intended, color=BLACK, linestyle="--", label=f"intended: {_percent(found.intended)}")
    usual = [value for value in (0.001, 0.01, 0.05, 0.1, 0.2, 0.5) if min(x) <= value <= max(x)]
    axes.set_xticks(usual, [_percent(value) for value in usual])
    axes.minorticks_off()
    axes.set_ylim(-0.02, 1.02)
    title = f"{short(found.positive, 30)}, n = {counted(len(predictions), 'image')}, band: 95 % interval"
    axes.set_title(title, fontsize=11)
    axes.legend(fontsize=9, loc="best")
    return figure


def decision_curve(predictions: Predictions, metrics: Results | None = None) -> Figure | None:
    """Net benefit of the model, of acting on all and on none, over threshold probabilities."""
    found = None if metrics is None else metrics.decision_curve
    if found is None or not found.thresholds or found.prevalence is None:
        return None
    figure, axes = plot("threshold probability (act from it upwards)", "net benefit (true positives per image)")
    x = found.thresholds
    band(axes, x, found.model, BLUE)
    axes.plot(x, numbers(net.value for net in found.model), color=BLUE, linewidth=2, label="model")
    axes.plot(x, found.all, color=RED, linestyle="--", label="act on all")
    axes.axhline(0, color=BLACK, linestyle=":", label="act on none")
    top = found.prevalence
    highest = max((net.high for net in found.model if net.high is not None), default=top)
    axes.set(xlim=(0, 1), ylim=(-0.15 * max(top, 0.05), max(1.15 * top, 1.05 * highest)))
    if found.useful:
        for low, high in found.useful:
            axes.plot([low, high], [-0.1 * max(top, 0.05)] * 2, color=BLUE, linewidth=5, solid_capstyle="butt")
        axes.plot([], [], color=BLUE, linewidth=5, label="clearly better than both")
    images = counted(len(predictions), "image")
    title = f"{short(found.positive, 30)}: {_percent(top)} of n = {images}, band: 95 % interval"
    axes.set_title(title, fontsize=11)
    figure.legend(fontsize=9, loc="outside lower center", ncols=4)  # below, where it hides no curve
    return figure


def risk_coverage(predictions: Predictions, metrics: Results | None = None) -> Figure | None:
    """The share of errors among the answered images, the most certain first."""
    found = None if metrics is None else metrics.abstention
    if found is None or not found.curve.coverage:
        return None
    figure, axes = plot("share of the images that are answered, the most certain first", "share of errors among them")
    curve = found.curve
    x, low, high = curve.coverage, numbers(curve.low), numbers(curve.high)
    if not np.isnan([*low, *high]).any():
        axes.fill_between(x, low, high, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(x, numbers(curve.risk), color=BLUE, linewidth=2, label="this model")
    (rate,) = numbers([found.error_rate.value])
    axes.axhline(rate, color=GREY, linestyle=":", label=f"all answered: {_percent(rate)}")
    chosen, reached = found.chosen, found.reached
    if chosen is not None:
        axes.axhline(chosen.max_risk, color=RED, linestyle="--", label=f"maximum risk: {_percent(chosen.max_risk)}")
    if reached is not None and reached.risk.value is not None:
        text = f"chosen on validation: {_share(reached.coverage)} answered"
        axes.plot(numbers([reached.coverage.value]), [reached.risk.value], "o", color=RED, markersize=9, label=text)
    axes.set_xlim(0, 1.01)
    axes.set_ylim(bottom=0)
    area = f"{found.area.value:.4f}"
    if found.area.low is not None:
        area += f" ({found.area.low:.4f} to {found.area.high:.4f})"
    axes.set_title(f"n = {counted(len(predictions), 'image')}, area {area}, band: 95 % interval", fontsize=11)
    axes.legend(fontsize=9, loc="upper left")
    return figure


def out_of_distribution(predictions: Predictions, metrics: Results | None = None) -> Figure | None:
    """How unlike the training images the evaluated images are, and other images if any are given."""
    found, scores = None if metrics is None else metrics.out_of_distribution, scores_of(predictions)
    if found is None or scores is None or not len(scores):
        return None
    figure, axes = plot("OOD score (log scale; above 1: unlike the training images)", "share of the images")
    parts = [(scores, BLUE, "/", f"evaluated, n = {len(scores):,}: {_share(found.flagged)} above 1")]
    if found.unlike is not None:
        others = np.array(found.unlike.scores)
        text = f"other images, n = {len(others):,}: {_share(found.unlike.flagged)} above 1"
        parts.append((others, RED, "\\", text))
    every = np.maximum(np.concatenate([part[0] for part in parts]), 1e-3)
    bins = np.geomspace(min(float(every.min()), 0.9), max(float(every.max()), 1.1) * 1.001, 41)
    for values, colour, hatch, label in parts:
        weights = np.full(len(values), 1 / len(values))
        axes.hist(
            np.maximum(values, 1e-3), bins=bins.tolist(), weights=weights, color=colour, alpha=0.55, hatch=hatch * 2,
            edgecolor=colour, label=label,
        )  # fmt: skip
    axes.axvline(1, color=BLACK, linestyle="--", label="99 % of the validation images are below")
    axes.set_xscale("log")
    low, high = bins[0], bins[-1]
    ticks = [value for value in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= value <= high]
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axes.minorticks_off()
    title = f"features of {found.n:,} training images"
    if found.unlike is not None:
        title += f"; detected with AUROC {found.unlike.auroc.value:.3f}{interval(found.unlike.auroc)}"
    axes.set_title(title, fontsize=11)
    axes.legend(fontsize=9, loc="upper right")
    return figure


def _share(found: Estimate) -> str:
    return "undefined" if found.value is None else _percent(found.value)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
