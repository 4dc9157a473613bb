"""The reliability diagram."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitmed.core.text import counted
from vitmed.decisions.reliability import Bin, Reliability
from vitmed.metrics.predictions import Predictions, positive_index
from vitmed.report.plots.drawing import BLUE, GREY, gridded, interval, short
from vitmed.report.results import Results


def reliability(predictions: Predictions, metrics: Results | None = None) -> Figure | None:
    """Predicted against observed frequency in bins of about equally many images; below, the images per probability."""
    found = None if metrics is None else metrics.calibration
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
        gridded(part)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1)
    if before is not None:
        _points(axes, before.curve, GREY, "s", f"before calibration: {_ece(before)}", 4)
    fitted = {found.method, *(fold.method for fold in found.folds or ())} != {"none"}
    name = "after calibration" if fitted else "not calibrated"
    _points(axes, after.curve, BLUE, "o", f"{name}: {_ece(after)}", 6)
    scores = _scores(predictions)
    below.hist(scores, bins=np.linspace(0, 1, 21).tolist(), color=BLUE)
    if len(scores) > 200:
        below.set_yscale("log")
        below.set_ylabel("images (log)")
    slopes = [own.slope for own in after.per_class.values()]
    title = f"n = {counted(len(predictions), 'image')}, bins of about {len(predictions) // len(after.curve):,}"
    if len(slopes) == 1 and slopes[0].value is not None:
        title += f"\nslope {slopes[0].value:.2f}"
        if slopes[0].low is not None:
            title += f" ({slopes[0].low:.2f} to {slopes[0].high:.2f}); 1 is right, below 1 too extreme"
    figure.suptitle(title, fontsize=11)
    axes.legend(loc="upper left", fontsize=9)
    return figure


def _ece(part: Reliability) -> str:
    return "ECE undefined" if part.ece.value is None else f"ECE {part.ece.value:.3f}{interval(part.ece)}"


def _points(axes: Axes, curve: list[Bin], colour: str, marker: str, label: str, size: int) -> None:
    """A point for each bin with the interval of the observed frequency."""
    x, y = [bin.said for bin in curve], [bin.seen.value or 0.0 for bin in curve]
    ends = [
        [0.0 if bin.seen.low is None else max(0.0, v - bin.seen.low) for v, bin in zip(y, curve, strict=True)],
        [0.0 if bin.seen.high is None else max(0.0, bin.seen.high - v) for v, bin in zip(y, curve, strict=True)],
    ]
    bars = axes.errorbar(x, y, yerr=ends, label=label, color=colour, linewidth=1, elinewidth=1.2, capsize=2.5)
    bars.lines[0].set(marker=marker, markersize=size)


def _scores(predictions: Predictions) -> np.ndarray:
    """(S,) of two classes the probability of the positive class, of more the largest."""
    positive = positive_index(predictions)
    return predictions.probabilities.max(axis=1) if positive is None else predictions.probabilities[:, positive]
