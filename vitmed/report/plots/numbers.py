"""Figures about a predicted number: against the truth, and the error against the size."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.report.plots.drawing import BLACK, BLUE, GREY, RED, plot
from vitmed.report.results import Results

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
