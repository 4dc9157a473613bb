"""The figure of grades: what each cut is worth, and how far off the predictions are."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from vitmed.metrics.predictions import Predictions
from vitmed.report.plots.drawing import BLUE, GREEN, ORANGE, add_grid, numbers, percent
from vitmed.report.plots.kinds import COLUMNS, draw_rates
from vitmed.report.results import Results


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
        axes.bar(error, share.get(error, 0), color=colour, width=0.8)
        axes.annotate(
            percent(share.get(error, 0)), (error, top.get(error, 0)), (0, 2), textcoords="offset points", ha="center",
            fontsize=8,
        )  # fmt: skip
    for one in found.distances:
        if one.share.low is not None:
            axes.plot([one.grades] * 2, numbers([one.share.low, one.share.high]), color="0.25", linewidth=1.2)
    axes.set_xticks(range(-most, most + 1), [f"{error:+d}" if error else "0" for error in range(-most, most + 1)])
    axes.set_xlabel("predicted minus true grade")
    axes.set_ylabel("share of images")
    axes.set_ylim(top=1.12 * max(top.values()))
    add_grid(axes, "y")
    return figure
