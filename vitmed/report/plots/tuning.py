"""The picture of a search over settings."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmed.metrics.tuning_study import TuningStudy
from vitmed.report.plots.drawing import BLUE, GREEN, GREY, ORANGE, RED, numbers, plot, short

NAMED = 24  # combinations of a grid whose settings stand below them


def history_figure(study: TuningStudy) -> Figure:
    """Each combination: finished, stopped early or failed; the best so far, or of a grid the interval and every seed;
    the plan; the winner trained once more."""
    figure, axes = plot("" if study.seeds else "trial", f"{study.title} on validation")
    known = [(one.state, one.number, one.value) for one in study.combinations if one.value is not None]
    points = [np.array([row[1:] for row in known if row[0] == state]).reshape(-1, 2).T for state in ("done", "stopped")]
    (x, y), (stopped, values) = points
    again = [(study.refit_val, "D", "validation", 1.5), (study.test, "s", "test", 2.5)]
    last = max(one.number for one in study.combinations)
    scale = max(1, last / 25)
    if len(x) and not study.seeds:
        best = np.maximum.accumulate(y) if study.higher else np.minimum.accumulate(y)
        axes.step(
            [*x, last], [*best, best[-1]], where="post", color=BLUE, linewidth=1.2, alpha=0.6, label="best so far"
        )
    for one in study.combinations if study.seeds else []:
        if one.estimate is not None:
            axes.plot([one.number] * 2, numbers([one.estimate.low, one.estimate.high]), color=BLUE, linewidth=1.7)
        each = [trial.value for trial in study.trials if trial.number in one.trials and trial.state == "done"]
        axes.plot([one.number + 0.15] * len(each), numbers(each), ".", color=GREY)
    if len(x):
        axes.plot(x, y, "o", color=BLUE, label="mean over seeds, 95 % interval" if study.seeds else "finished")
    if len(stopped):  # where they are far from all others, at the edge, so that these stay apart
        ends = numbers(end for found, *_ in again if found for end in (found.value, found.low, found.high))
        others = np.concatenate([y, ends]) if len(x) else values
        low, high = np.nanmin(others), np.nanmax(others)
        edge = 0.1 * (high - low) or 0.1
        at = np.clip(values, low - edge, high + edge)
        label = "stopped early (at the edge: worse)" if (at != values).any() else "stopped early"
        axes.plot(stopped, at, "v", color=GREY, fillstyle="none", label=label)
    if failed := [one.number for one in study.combinations if one.state == "failed"]:
        axes.plot(failed, [0.02] * len(failed), "x", color=RED, transform=axes.get_xaxis_transform(), label="failed")
    if study.plan is not None and (planned := study.of(study.plan).value) is not None:
        axes.axhline(planned, color=ORANGE, linestyle="--", linewidth=1.2, label="the plan's settings")
    for found, marker, name, place in again:
        if found is not None and found.value is not None:
            at_x = last + place * scale
            axes.plot([at_x, at_x], numbers([found.low, found.high]), color=GREEN, linewidth=1.7)
            axes.plot(at_x, found.value, marker, color=GREEN, label=f"the winner trained once more: {name}")
    axes.set_xlim(0, last + 3.5 * scale)
    axes.set_xticks([tick for tick in MaxNLocator(10, integer=True).tick_values(1, last) if 1 <= tick <= last])
    if study.seeds and len(study.combinations) <= NAMED:
        names = [", ".join(f"{p.partition('.')[2]} {v}" for p, v in one.values.items()) for one in study.combinations]
        axes.set_xticks([one.number for one in study.combinations], [short(name, 40) for name in names], rotation=90)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure
