"""The figure of `vitmed monitor`: the CUSUM charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitmed.metrics.control_charts import Side
from vitmed.metrics.monitoring import Chart
from vitmed.report.plots.drawing import BLUE, GREY, ORANGE, RED, add_grid

COLUMNS, MOST = 3, 24  # panels
STYLES: dict[Side, tuple[str, str]] = {"rise": (BLUE, "-"), "fall": (ORANGE, "--")}


def control_charts(charts: Sequence[Chart], sums: Mapping[str, Mapping[Side, np.ndarray]]) -> Figure | None:
    """A panel for each chart: its sums by image, the limit, and the alarm; None where nothing is watched.

    Of many charts, those that come nearest to their limit, or go furthest above it.
    """
    watched = sorted((one for one in charts if one.limit), key=_height, reverse=True)[:MOST]
    if not watched:
        return None
    shown = [one for one in charts if one in watched]
    columns = min(COLUMNS, len(shown))
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(3.6 * columns + 0.4, 2.2 * lines + 0.7), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True)
    for axes in panels.flat[len(shown) :]:
        axes.set_axis_off()
    for axes, chart in zip(panels.flat, shown, strict=False):
        _panel(axes, chart, sums[chart.name])
    began = [int((values > 0).argmax()) for one in shown for values in sums[one.name].values()]
    panels.flat[0].set_xlim(left=min(began))  # the axes share it
    for i, axes in enumerate(panels.flat[: len(shown)]):
        if i + columns >= len(shown):
            axes.set_xlabel("new image", fontsize=9)
            axes.tick_params(labelbottom=True)
    for axes in panels[:, 0]:
        axes.set_ylabel("CUSUM / SD", fontsize=9)
    handles = {label: handle for axes in panels.flat for handle, label in zip(*axes.get_legend_handles_labels())}  # noqa: B905
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4, fontsize=9)
    return figure


def _height(chart: Chart) -> float:
    return (chart.peak or 0.0) / (chart.limit or np.inf)


def _panel(axes: Axes, chart: Chart, sums: Mapping[Side, np.ndarray]) -> None:
    for side, values in sums.items():
        colour, line = STYLES[side]
        axes.plot(np.arange(1, len(values) + 1), values, line, color=colour, linewidth=1.3, label=f"{side} of the mean")
    assert chart.limit is not None
    axes.axhline(chart.limit, color=GREY, linestyle=":", linewidth=1.4, label="limit")
    if chart.alarm is not None:
        high = sums[chart.alarm.side][chart.alarm.row - 1]
        axes.plot([chart.alarm.row], [high], "X", color=RED, markersize=8, label="alarm")
    axes.set_ylim(0, max(chart.limit, chart.peak or 0) * 1.1)
    axes.set_title(chart.name, fontsize=10)
    add_grid(axes)
