"""The picture of a grid of settings: one setting as points with intervals, two as a map of numbers."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from vitmed.metrics.grid_study import CellResult, GridStudy
from vitmed.report.plots.drawing import plot


def grid_figure(study: GridStudy) -> Figure | None:
    """None for more than two settings, whose table has to do."""
    factors = list(study.cells[0].values)
    return {1: _one_setting, 2: _two_settings}.get(len(factors), lambda s, f: None)(study, factors)


def _one_setting(study: GridStudy, factors: list[str]) -> Figure:
    """Each seed as a dot, the mean with its interval over patients, the spread over seeds beside it."""
    figure, axes = plot(factors[0], f"{study.title} on validation")
    for x, cell in enumerate(study.cells):
        if cell.number is None or cell.number.value is None:
            continue
        if cell.number.low is not None and cell.number.high is not None:
            axes.plot([x, x], [cell.number.low, cell.number.high], color="tab:blue", linewidth=1.7, zorder=2)
        axes.plot(x, cell.number.value, "o", color="tab:blue", markersize=6, zorder=3)
        axes.plot(np.full(len(cell.each), x + 0.12), cell.each, ".", color="tab:orange", markersize=7, zorder=3)
    axes.plot([], [], "o-", color="tab:blue", label=f"mean over seeds, 95 % interval by {study.unit}")
    axes.plot([], [], ".", color="tab:orange", label="each seed")
    axes.set_xticks(range(len(study.cells)), [cell.values[factors[0]] for cell in study.cells])
    axes.margins(x=0.1)
    axes.legend(loc="best", fontsize=9)
    return figure


def _two_settings(study: GridStudy, factors: list[str]) -> Figure:
    """A map of means, darker for better; under each its standard deviation over seeds."""
    rows, columns = ([*dict.fromkeys(cell.values[factor] for cell in study.cells)] for factor in factors)
    values = np.full((len(rows), len(columns)), np.nan)
    cells: dict[tuple[int, int], CellResult] = {}
    for cell in study.cells:
        place = rows.index(cell.values[factors[0]]), columns.index(cell.values[factors[1]])
        cells[place] = cell
        if cell.number is not None and cell.number.value is not None:
            values[place] = cell.number.value
    figure, axes = plot(factors[1], factors[0], (2.4 + 1.1 * len(columns), 1.9 + 0.75 * len(rows)))
    axes.grid(False)
    shown = axes.imshow(values if study.higher else -values, cmap="Blues", aspect="auto")
    low, high = np.nanmin(values), np.nanmax(values)
    for (y, x), cell in cells.items():
        spread = "" if cell.sd is None else f"\n± {cell.sd:.3f}"
        text = "–" if np.isnan(values[y, x]) else f"{values[y, x]:.3f}{spread}"
        share = 0.0 if high == low or np.isnan(values[y, x]) else (values[y, x] - low) / (high - low)
        dark = share > 0.55 if study.higher else share < 0.45
        axes.text(x, y, text, ha="center", va="center", fontsize=9, color="white" if dark else "0.1")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    spread = " ± standard deviation over seeds" if study.seeds > 1 else ""
    axes.set_title(f"{study.title} on validation{spread}", fontsize=10)
    shown.set_clim(*((low, high) if study.higher else (-high, -low)))
    return figure
