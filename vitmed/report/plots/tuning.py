"""The pictures of a search over settings: its history, and which settings mattered."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmed.core.text import counted
from vitmed.metrics.tuning_study import TrialResult, TuningStudy
from vitmed.report.plots.drawing import BLUE, GREEN, GREY, ORANGE, RED, numbers, plot, short

NAMED = 24  # combinations of a grid whose settings stand below them


def history_figure(study: TuningStudy) -> Figure:
    """Each combination: finished, stopped early or failed; the best so far, or of a grid the interval and every seed;
    the plan; the winner trained once more."""
    figure, axes = plot("" if study.seeds else "trial", f"{study.title} on validation")
    (x, y), (stopped, values) = _points(study, "done"), _points(study, "stopped")
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
        names = [short(_name(one), 40) for one in study.combinations]
        axes.set_xticks([one.number for one in study.combinations], names, rotation=90)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure


def _name(one: TrialResult) -> str:
    return ", ".join(f"{place.partition('.')[2]} {value}" for place, value in one.values.items())


def _points(study: TuningStudy, state: str) -> tuple[np.ndarray, np.ndarray]:
    """The numbers and values of the combinations in a state that have a value."""
    found = [(one.number, one.value) for one in study.combinations if one.state == state and one.value is not None]
    return np.array([number for number, _ in found]), np.array([value for _, value in found], dtype=float)


def importance_figure(study: TuningStudy) -> Figure | None:
    """The share of the variance between finished trials that each setting explains; None where it is not known."""
    if not study.importance:
        return None
    ranked = sorted(study.importance.items(), key=lambda one: one[1])
    finished = sum(trial.state == "done" for trial in study.trials)
    label = f"share of the variance of {study.title} between {counted(finished, 'finished trial')}"
    figure, axes = plot(label, "", (7.6, 1.4 + 0.42 * len(ranked)))
    axes.grid(axis="y", visible=False)
    axes.barh([short(place, 40) for place, _ in ranked], [share for _, share in ranked], color=BLUE, height=0.6)
    for row, (_, share) in enumerate(ranked):
        axes.text(share + 0.01, row, f"{share:.0%}", va="center", fontsize=9)
    axes.set_xlim(0, 1.08)
    return figure
