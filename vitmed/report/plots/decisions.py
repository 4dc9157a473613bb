"""Figures about use: results by prevalence, whether acting on the model pays, and giving no answer."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitmed.core.text import counted
from vitmed.decisions.out_of_distribution import scores_of
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.predictions import Predictions
from vitmed.report.plots.drawing import BLUE, GREY, RED, interval, short
from vitmed.report.results import Results

BLACK = "#000000"


def prevalence(predictions: Predictions, metrics: Results | None = None) -> Figure | None:
    """PPV and NPV against how common the finding is."""
    found = None if metrics is None else metrics.prevalence
    if found is None or not found.rows or found.observed is None:
        return None
    figure, axes = _wide("prevalence of the finding (log scale)", "share of the results that are true")
    axes.set_xscale("log")
    x, at = ([row.prevalence for row in part] for part in (found.curve, found.rows))
    for key, name, colour, marker in (
        ("ppv", "PPV, of positive results", BLUE, "o"),
        ("npv", "NPV, of negative", RED, "s"),
    ):
        _band(axes, x, [row[key] for row in found.curve], colour)
        axes.plot(x, [_number(row[key]) for row in found.curve], color=colour)
        points = [_number(row[key]) for row in found.rows]
        axes.plot(at, points, color=colour, marker=marker, markersize=5, linestyle="", label=name)
    axes.axvline(found.observed, color=GREY, linestyle=":", label=f"in these images: {_percent(found.observed)}")
    if found.intended is not None:
        axes.axvline(found.intended, color=BLACK, linestyle="--", label=f"intended: {_percent(found.intended)}")
    usual = [value for value in (0.001, 0.01, 0.05, 0.1, 0.2, 0.5) if min(x) <= value <= max(x)]
    axes.set_xticks(usual, [_percent(value) for value in usual])
    axes.minorticks_off()
    axes.set_ylim(-0.02, 1.02)
    axes.set_title(
        f"{short(found.positive, 30)}, n = {counted(len(predictions), 'image')}, band: 95 % interval", fontsize=11
    )
    axes.legend(fontsize=9, loc="best")
    return figure


def decision_curve(predictions: Predictions, metrics: Results | None = None) -> Figure | None:
    """Net benefit of the model, of acting on all and on none, over threshold probabilities."""
    found = None if metrics is None else metrics.decision_curve
    if found is None or not found.thresholds or found.prevalence is None:
        return None
    figure, axes = _wide("threshold probability (from which one would act)", "net benefit (true positives per image)")
    x = found.thresholds
    _band(axes, x, found.model, BLUE)
    axes.plot(x, [_number(net) for net in found.model], color=BLUE, linewidth=2, label="model")
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
    """The share of errors among the images that are answered, the surest first."""
    found = None if metrics is None else metrics.abstention
    if found is None or not found.curve.coverage:
        return None
    figure, axes = _wide("share of the images that are answered, the surest first", "share of errors among them")
    curve = found.curve
    x, low, high = curve.coverage, _numbers(curve.low), _numbers(curve.high)
    if not np.isnan([*low, *high]).any():
        axes.fill_between(x, low, high, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(x, _numbers(curve.risk), color=BLUE, linewidth=2, label="this model")
    rate = _number(found.error_rate)
    axes.axhline(rate, color=GREY, linestyle=":", label=f"all answered: {_percent(rate)}")
    chosen, reached = found.chosen, found.reached
    if chosen is not None:
        axes.axhline(chosen.max_risk, color=RED, linestyle="--", label=f"risk asked for: {_percent(chosen.max_risk)}")
    if reached is not None and reached.risk.value is not None:
        told = f"chosen on validation: {_percent(_number(reached.coverage))} answered"
        axes.plot(_number(reached.coverage), reached.risk.value, "o", color=RED, markersize=9, label=told)
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
    figure, axes = _wide("out-of-distribution score (log scale; above 1: unlike training)", "share of the images")
    parts = [(scores, BLUE, "/", f"evaluated, n = {len(scores):,}: {_percent(_number(found.flagged))} above 1")]
    if found.unlike is not None:
        others = np.array(found.unlike.scores)
        told = f"other images, n = {len(others):,}: {_percent(_number(found.unlike.flagged))} above 1"
        parts.append((others, RED, "\\", told))
    every = np.maximum(np.concatenate([part[0] for part in parts]), 1e-3)
    bins = np.geomspace(min(float(every.min()), 0.9), max(float(every.max()), 1.1) * 1.001, 41)
    for values, colour, hatch, label in parts:
        weights = np.full(len(values), 1 / len(values))
        axes.hist(
            np.maximum(values, 1e-3), bins=bins.tolist(), weights=weights, color=colour, alpha=0.55, hatch=hatch * 2,
            edgecolor=colour, label=label,
        )  # fmt: skip
    axes.axvline(1, color=BLACK, linestyle="--", label="99 % of validation lie below")
    axes.set_xscale("log")
    low, high = bins[0], bins[-1]
    ticks = [value for value in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= value <= high]
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axes.minorticks_off()
    told = ""
    if found.unlike is not None:
        area = found.unlike.auroc
        told = f"; detected with AUROC {area.value:.3f}{interval(area)}"
    axes.set_title(f"features of {found.n:,} training images{told}", fontsize=11)
    axes.legend(fontsize=9, loc="upper right")
    return figure


def _wide(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.6, 5.2), layout="constrained")
    axes = figure.add_subplot(xlabel=x, ylabel=y)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    return figure, axes


def _band(axes: Axes, x: list[float], found: list[Estimate], colour: str) -> None:
    low, high = _numbers([one.low for one in found]), _numbers([one.high for one in found])
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def _number(found: Estimate) -> float:
    return float("nan") if found.value is None else found.value


def _numbers(found: list[float | None]) -> list[float]:
    return [float("nan") if one is None else one for one in found]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
