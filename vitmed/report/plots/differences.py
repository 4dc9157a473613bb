"""The picture of `vitmed compare`: the differences of all pairs, each with its interval."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure

from vitmed.metrics.metric_table import METRICS
from vitmed.metrics.paired_comparison import ComparisonResults
from vitmed.report.plots.drawing import BLUE, GREY, RED, gridded, short

SHOWN = ("auroc", "balanced_accuracy", "accuracy")


def differences(content: ComparisonResults) -> Figure:
    """A row for each pair and a column for each of three numbers; a filled blue dot is a clear difference."""
    pairs, count = content.pairs, len(content.pairs)
    height = max(2.6, 0.62 * count + 1.9)  # inches
    figure = Figure(figsize=(10, height), layout="constrained")
    columns = figure.subplots(1, len(SHOWN), sharey=True)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for axes, name in zip(columns, SHOWN, strict=True):
        write = partial(axes.text, 0.5, ha="center", va="center", fontsize=8, transform=axes.get_yaxis_transform())
        axes.axvline(0, color=GREY, linewidth=1)
        for row, pair in enumerate(pairs):
            entry = pair.difference[name]
            if entry.value is None:
                write(row, "undefined")
                continue
            clear = entry.low is not None and entry.high is not None and (entry.low > 0 or entry.high < 0)
            colour, face = (BLUE, BLUE) if clear else (RED, "white")
            if entry.low is not None:
                axes.plot([entry.low, entry.high], [row, row], color=colour, linewidth=1.8)
                text = f"{entry.value:+.3f} [{entry.low:+.3f}, {entry.high:+.3f}]"
            else:
                text = f"{entry.value:+.3f}, no interval"
            axes.plot(entry.value, row, "o", color=colour, markerfacecolor=face, markersize=6)
            write(row - 0.32, text, bbox=box)
        axes.set_title(METRICS[name].title, fontsize=10)
        axes.set_ylim(count - 0.4, -0.7)
        gridded(axes, "x")
        axes.margins(x=0.12)
        axes.tick_params(axis="x", labelsize=8)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    names = [f"{short(pair.first, 26)}\nminus {short(pair.second, 26)}" for pair in pairs]
    columns[0].set_yticks(range(count), names, fontsize=8)
    patients = "" if content.patients is None else f" of {content.patients:,} patients"
    unknown = "; patients unknown, likely too narrow" if content.patients is None else ""
    figure.suptitle(f"n = {content.images:,} images{patients}; {content.level:.0%} intervals{unknown}", fontsize=10)
    meaning = "filled: the interval does not contain 0; not adjusted for several pairs"
    figure.supxlabel(f"difference (first minus second); {meaning}", fontsize=9)
    return figure
