"""Figures that compare: models in `vitmed compare`, and other images with the run's own test set."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmed.core.text import counted
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.paired_comparison import ComparisonResults
from vitmed.metrics.predictions import Predictions
from vitmed.report.plots.drawing import BLUE, GREY, ORANGE, RED, add_grid, draw_estimate, short
from vitmed.report.results import Results

OWN_TEST = {  # number -> its name beside the axis
    "auroc": "AUROC",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
}


def differences(content: ComparisonResults) -> Figure:
    """A row for each pair and a column for each of three numbers; a filled blue dot is a clear difference."""
    pairs, count, kind = content.pairs, len(content.pairs), TARGETS[content.kind]
    figure = Figure(figsize=(10, max(2.6, 0.62 * count + 1.9)), layout="constrained")
    columns = figure.subplots(1, 3, sharey=True)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for axes, name in zip(columns, kind.headline[:3], strict=True):
        write = partial(axes.text, 0.5, ha="center", va="center", fontsize=8, transform=axes.get_yaxis_transform())
        axes.axvline(0, color=GREY, linewidth=1)
        for row, pair in enumerate(pairs):
            entry = pair.difference[name]
            if entry.value is None:
                write(row, "undefined")
                continue
            clear, text = False, f"{entry.value:+.3f}, no interval"
            if entry.low is not None and entry.high is not None:
                clear = entry.low > 0 or entry.high < 0
                text = f"{entry.value:+.3f} ({entry.low:+.3f} to {entry.high:+.3f})"
                axes.plot([entry.low, entry.high], [row, row], color=BLUE if clear else RED, linewidth=1.8)
            colour, face = (BLUE, BLUE) if clear else (RED, "white")
            axes.plot(entry.value, row, "o", color=colour, markerfacecolor=face, markersize=6)
            write(row - 0.32, text, bbox=box)
        axes.set_title(kind.metrics[name].title, fontsize=10)
        axes.set_ylim(count - 0.4, -0.7)
        add_grid(axes, "x")
        axes.margins(x=0.12)
        axes.tick_params(axis="x", labelsize=8)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    names = [f"{short(pair.first, 26)}\nminus {short(pair.second, 26)}" for pair in pairs]
    columns[0].set_yticks(range(count), names, fontsize=8)
    patients = "" if content.patients is None else f" of {counted(content.patients, 'patient')}"
    unknown = "; patients unknown, likely too narrow" if content.patients is None else ""
    images = f"n = {counted(content.images, 'image')}{patients}"
    figure.suptitle(f"{images}; {content.level:.0%} intervals{unknown}", fontsize=10)
    meaning = "filled: the interval does not contain 0; not adjusted for several pairs"
    figure.supxlabel(f"difference (first minus second); {meaning}", fontsize=9)
    return figure


def beside_own_test(predictions: Predictions, metrics: Results) -> Figure | None:
    """A line for each number: the run's own test set and the evaluated images; None without `external`."""
    found = metrics.external
    if found is None:
        return None
    rows = [name for name in OWN_TEST if name in found.numbers]
    figure = Figure(figsize=(6.4, 0.5 * len(rows) + 1.5), layout="constrained")
    axes = figure.subplots()
    for kind, title, counts, colour, marker, shift in (
        ("internal", "own test set", found, BLUE, "D", -0.13),
        ("external", "these images", metrics, ORANGE, "o", 0.13),
    ):
        for y, name in enumerate(rows):
            draw_estimate(axes, y + shift, found.numbers[name][kind], colour, marker, f"{title}: ")
        patients = "" if counts.n_groups is None else f", {counted(counts.n_groups, 'patient')}"
        axes.plot([], [], marker, linestyle="-", color=colour, label=f"{title} (n={counts.n:,}{patients})")
    axes.set_yticks(range(len(rows)), [OWN_TEST[name] for name in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("value, with 95 % interval")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    add_grid(axes, "x")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, frameon=False, fontsize=9)
    return figure
