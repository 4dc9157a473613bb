"""Figures about decisions: PPV and NPV by prevalence, decision curve, calibration, abstention, OOD score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitmed.core.text import counted
from vitmed.decisions.out_of_distribution import scores_of
from vitmed.decisions.reliability import Reliability
from vitmed.metrics.clinical_utility import NetBenefit, percentage
from vitmed.metrics.estimates import Estimate, value_text
from vitmed.metrics.predictions import Predictions, positive_index
from vitmed.report.plots.drawing import BLACK, BLUE, GREY, RED, add_grid, draw_band, legend_below, numbers, plot, short
from vitmed.report.results import Results


def decision_curve(predictions: Predictions, metrics: Results) -> Figure | None:
    """Net benefit of the model, of acting on all and on none; at the intended prevalence above, where one is given."""
    found = metrics.decision_curve
    if found is None or found.prevalence is None:
        return None
    parts: list[tuple[NetBenefit, str]] = [(found, f"{{}} of n = {counted(len(predictions), 'image')}")]
    if found.intended is not None:
        parts.insert(0, (found.intended, "intended prevalence of {}"))
    figure = Figure(figsize=(7.6, 4.6 * len(parts) + 0.6), layout="constrained")
    for axes, (part, what) in zip(figure.subplots(len(parts), squeeze=False).flat, parts, strict=True):
        _net_benefit(axes, part, found.thresholds)
        axes.set(xlabel="threshold probability (act from it upwards)", ylabel="net benefit (true positives per image)")
        assert part.prevalence is not None
        title = f"{short(found.positive, 30)}: {what.format(percentage(part.prevalence))}, band: 95 % interval"
        axes.set_title(title, fontsize=11)
    legend_below(figure, 4)
    return figure


def _net_benefit(axes: Axes, part: NetBenefit, thresholds: Sequence[float]) -> None:
    """The curves at one prevalence, and a bar where the model is clearly better than both alternatives."""
    assert part.prevalence is not None
    top, values = part.prevalence, numbers(net.value for net in part.model)
    add_grid(axes)
    draw_band(axes, thresholds, part.model, BLUE)
    axes.plot(thresholds, values, color=BLUE, linewidth=2, label="model")
    axes.plot(thresholds, part.all, color=RED, linestyle="--", label="act on all")
    axes.axhline(0, color=BLACK, linestyle=":", label="act on none")
    highest = max((net.high for net in part.model if net.high is not None), default=top)
    lowest = min(-0.15 * max(top, 0.05), 1.1 * float(values[numbers(thresholds) <= 0.9].min()))  # beyond, it may plunge
    axes.set(xlim=(0, 1), ylim=(lowest, max(1.15 * top, 1.05 * highest)))
    for low, high in part.useful or ():
        axes.plot([low, high], [0.67 * lowest] * 2, color=BLUE, linewidth=5, solid_capstyle="butt")
    if part.useful:
        axes.plot([], [], color=BLUE, linewidth=5, label="clearly better than both")


def reliability(predictions: Predictions, metrics: Results) -> Figure | None:
    """Predicted against observed frequency in bins of about equally many images; below, the images per probability."""
    found = metrics.calibration
    if found is None or not found.after.curve:
        return None
    after, before = found.after, found.before
    figure = Figure(figsize=(6.4, 8.2), layout="constrained")
    axes, below = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
    axes.set_box_aspect(1)
    below.set_box_aspect(0.22)  # the same width
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="observed frequency in the bin")
    below.set(xlabel=short(found.about, 60), ylabel="images")
    for part in (axes, below):
        add_grid(part)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1)
    if before is not None:
        _bins(axes, before, GREY, "s", 4, "before calibration")
    fitted = {found.method, *(fold.method for fold in found.folds or ())} != {"none"}
    _bins(axes, after, BLUE, "o", 6, "after calibration" if fitted else "not calibrated")
    positive, chances = positive_index(predictions), predictions.probabilities
    scores = chances.max(axis=1) if positive is None else chances[:, positive]
    below.hist(scores, bins=np.linspace(0, 1, 21).tolist(), color=BLUE)
    if len(scores) > 200:
        below.set_yscale("log")
        below.set_ylabel("images (log)")
    title = f"n = {counted(len(predictions), 'image')}, bins of about {len(predictions) // len(after.curve):,}"
    slopes = [own.slope for own in after.per_class.values()]
    if len(slopes) == 1 and slopes[0].value is not None:
        meaning = "" if slopes[0].low is None else "; 1 is right, below 1 too extreme"
        title += f"\nslope {value_text(slopes[0])}{meaning}"
    figure.suptitle(title, fontsize=11)
    axes.legend(loc="upper left", fontsize=9)
    return figure


def _bins(axes: Axes, part: Reliability, colour: str, marker: str, size: int, name: str) -> None:
    seen = [bin.seen for bin in part.curve]
    y, low, high = (numbers(ends) for ends in zip(*((one.value, one.low, one.high) for one in seen), strict=True))
    ends = np.nan_to_num(np.maximum(0, [y - low, high - y]))  # no bar without an interval
    label = f"{name}: ECE {value_text(part.ece)}"
    x = [bin.said for bin in part.curve]
    bars = axes.errorbar(x, y, yerr=ends, label=label, color=colour, linewidth=1, elinewidth=1.2, capsize=2.5)
    bars.lines[0].set(marker=marker, markersize=size)


def risk_coverage(predictions: Predictions, metrics: Results) -> Figure | None:
    """The share of errors among the answered images, the most certain first."""
    found = metrics.abstention
    if found is None or not found.curve.coverage:
        return None
    figure, axes = plot("share of the images that are answered, the most certain first", "share of errors among them")
    curve, chosen, reached = found.curve, found.chosen, found.reached
    low, high = numbers(curve.low), numbers(curve.high)
    banded = bool(np.isfinite([low, high]).all())  # a band with holes would mislead
    if banded:
        axes.fill_between(curve.coverage, low, high, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(curve.coverage, numbers(curve.risk), color=BLUE, linewidth=2, label="this model")
    (rate,) = numbers([found.error_rate.value])
    axes.axhline(rate, color=GREY, linestyle=":", label=f"all answered: {percentage(rate)}")
    if chosen is not None:
        axes.axhline(chosen.max_risk, color=RED, linestyle="--", label=f"maximum risk: {percentage(chosen.max_risk)}")
    if reached is not None and reached.risk.value is not None:
        text = f"chosen on validation: {_share(reached.coverage)} answered"
        axes.plot(numbers([reached.coverage.value]), [reached.risk.value], "o", color=RED, markersize=9, label=text)
    axes.set_xlim(0, 1.01)
    axes.set_ylim(bottom=0)
    title = f"n = {counted(len(predictions), 'image')}, area {value_text(found.area)}"
    axes.set_title(title + ", band: 95 % interval" * banded, fontsize=11)
    axes.legend(fontsize=9, loc="upper left")
    return figure


def out_of_distribution(predictions: Predictions, metrics: Results) -> Figure | None:
    """How unlike the training images the evaluated images are, and other images if any are given."""
    found, scores = metrics.out_of_distribution, scores_of(predictions)
    if found is None or scores is None:
        return None
    figure, axes = plot("OOD score (log scale; above 1: unlike the training images)", "share of the images")
    parts = [("evaluated", scores, found.flagged, BLUE, "//")]
    title = f"features of {counted(found.n, 'training image')}"
    if found.unlike is not None:
        parts.append(("other images", np.array(found.unlike.scores), found.unlike.flagged, RED, "\\\\"))
        title += f"; detected with AUROC {value_text(found.unlike.auroc)}"
    every = np.maximum(np.concatenate([part[1] for part in parts]), 1e-3)
    low, high = min(float(every.min()), 0.9), max(float(every.max()), 1.1) * 1.001
    for name, values, flagged, colour, hatch in parts:
        label = f"{name}, n = {len(values):,}: {_share(flagged)} above 1"
        style: dict[str, Any] = {"color": colour, "alpha": 0.55, "hatch": hatch, "edgecolor": colour, "label": label}
        weights, bins = np.full(len(values), 1 / len(values)), np.geomspace(low, high, 41).tolist()
        axes.hist(np.maximum(values, 1e-3), bins=bins, weights=weights, **style)
    axes.axvline(1, color=BLACK, linestyle="--", label="99 % of the validation images are below")
    axes.set_xscale("log")
    shown = [value for value in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= value <= high]
    axes.set_xticks(shown, [f"{value:g}" for value in shown])
    axes.minorticks_off()
    axes.set_title(title, fontsize=11)
    axes.legend(fontsize=9, loc="upper right")
    return figure


def _share(found: Estimate) -> str:
    return "undefined" if found.value is None else percentage(found.value)
