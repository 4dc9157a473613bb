"""The figure that compares other images with the run's own test set."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmed.metrics.predictions import Predictions
from vitmed.report.plots.drawing import BLUE, ORANGE, gridded, level
from vitmed.report.results import Results

SHOWN = {
    "auroc": "AUROC",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
}
KINDS = (("internal", "own test set", BLUE, "D", -0.13), ("external", "these images", ORANGE, "o", 0.13))


def beside_own_test(predictions: Predictions | None, metrics: Results | None) -> Figure | None:
    """A line for each number: the run's own test set and the evaluated images; None without `external`."""
    if metrics is None or metrics.external is None:
        return None
    found = metrics.external
    rows = [name for name in SHOWN if name in found.numbers]
    figure = Figure(figsize=(6.4, 0.5 * len(rows) + 1.5), layout="constrained")
    axes = figure.subplots()
    for kind, title, colour, marker, shift in KINDS:
        n, patients = (found.n, found.n_groups) if kind == "internal" else (metrics.n, metrics.n_groups)
        known = "" if patients is None else f", {patients:,} patients"
        for y, name in enumerate(rows):
            entry = found.numbers[name].internal if kind == "internal" else found.numbers[name].external
            level(axes, y + shift, entry, colour, marker, f"{title}: ")
        axes.plot([], [], marker, linestyle="-", color=colour, label=f"{title} (n={n:,}{known})")
    axes.set_yticks(range(len(rows)), [SHOWN[name] for name in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("value, with 95 % interval")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    gridded(axes, "x")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, frameon=False, fontsize=9)
    return figure
