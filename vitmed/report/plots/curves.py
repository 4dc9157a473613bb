"""Curves by epoch of training, strength of a corruption, image of a monitored log, and trial of a search."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmed.core.text import counted
from vitmed.decisions.targets import ALL_METRICS, TARGETS
from vitmed.explanation.results import Robustness
from vitmed.metrics.control_charts import Chart, Side
from vitmed.metrics.tuning_study import TuningStudy
from vitmed.report.plots import drawing
from vitmed.report.plots.drawing import BLUE, COLOURS, GREEN, GREY, ORANGE, RED, Drawn


def drawn_curves(records: Sequence[Mapping[str, Any]], pdf: bool = False) -> Drawn:
    """`training_curves` as files; drawn once for the run folder and the reports of one run."""
    return _drawn_curves(json.dumps(list(records)), pdf)


@lru_cache(maxsize=1)
def _drawn_curves(records: str, pdf: bool) -> Drawn:
    return drawing.drawn(training_curves(json.loads(records)), pdf=pdf)


def training_curves(records: Sequence[Mapping[str, Any]], loss: str = "loss (nats)") -> Figure:
    """Loss, validation metrics and learning rate by epoch, the epoch of best.pt marked; pretraining has no metrics.

    Of the records of `metrics.jsonl`: epoch, train_loss, val_loss, val_<metric>, lr; kept, whether best.pt was written;
    and monitor, the name of the watched metric. Missing or null values are gaps.
    """
    epochs = [record["epoch"] for record in records]
    monitor = next((str(r["monitor"]) for r in records if r.get("monitor") in ALL_METRICS), "auroc")

    def values(key: str) -> np.ndarray:
        return np.array([np.nan if r.get(key) is None else float(r[key]) for r in records])

    kept = [i for i, record in enumerate(records) if record.get("kept")]
    best = kept[-1] if kept else None
    usual = ("auroc", "balanced_accuracy", "accuracy", "mcc", "subset_accuracy", "r2", "ccc")
    bounded = [name for name in usual if any(f"val_{name}" in record for record in records)][:4]
    if monitor not in bounded:  # an error has a scale of its own
        bounded = [monitor, *bounded[:3]] if ALL_METRICS[monitor].higher_is_better else [monitor]

    watched = any("monitor" in record for record in records) or not records
    figure = Figure(figsize=(12 if watched else 9, 4.2), layout="constrained")
    panels = figure.subplots(1, 3 if watched else 2)
    for i, (key, name) in enumerate({"train_loss": "training", "val_loss": "validation"}.items()):
        panels[0].plot(epochs, values(key), color=COLOURS[i], marker=".", linestyle=("-", "--", ":")[i], label=name)
    panels[0].set_ylabel(loss)
    for i, name in enumerate(bounded if watched else ()):
        line, label = "-" if name == monitor else "--", ALL_METRICS[name].title
        panels[1].plot(epochs, values(f"val_{name}"), color=COLOURS[i], marker=".", linestyle=line, label=label)
    panels[1].set_ylabel("validation metric")
    panels[-1].plot(epochs, values("lr"), color=BLUE, marker=".")
    panels[-1].set_ylabel("learning rate")
    for axes in panels:
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
        drawing.add_grid(axes)
        if best is not None:
            axes.axvline(epochs[best], color=GREY, linestyle=":", linewidth=1.5, label=f"best.pt: epoch {epochs[best]}")
        if axes is not panels[-1] and axes.get_legend_handles_labels()[0]:  # below: it would hide the last points
            axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)
    if best is not None:
        reached = values(f"val_{monitor}")[best]
        value = f"validation {ALL_METRICS[monitor].title} {'undefined' if np.isnan(reached) else f'{reached:.3f}'}"
        figure.suptitle(f"best.pt: epoch {epochs[best]}, {value}", fontsize=12)
    return figure


OF_NUMBERS = ((BLUE, "-", "o"), (ORANGE, "--", "s"))  # of the first two numbers


def stress_curves(robustness: Robustness | None, group: str = "patient") -> Figure | None:
    """A panel for each corruption: the first two numbers by strength, with bands; None without a corruption."""
    if robustness is None or not robustness.corruptions:
        return None
    kind = TARGETS[robustness.target.kind]
    metric, unit = kind.metrics[robustness.number], f" ({robustness.target.unit})" if robustness.target.unit else ""
    parts = sorted(robustness.corruptions.values(), key=lambda part: -(part.lost.value or 0))
    x, sizes = "strength (0: original)", ((2.6, 2.25), (0.6, 1.0))
    figure, panels, beside = drawing.small_panels(len(parts), 4, *sizes, x, sharex=True, sharey=True)
    for axes, part in zip(panels, parts, strict=True):
        for name, style in zip(kind.stress, OF_NUMBERS, strict=False):
            shown = [robustness.clean[name], *(row[name] for row in part.strengths)]
            if shown[0].value is not None:
                strength, (colour, line, marker) = range(len(shown)), style
                values, label = drawing.numbers(number.value for number in shown), kind.metrics[name].phrase + unit
                axes.plot(strength, values, line, color=colour, marker=marker, markersize=3.5, label=label)
                drawing.draw_band(axes, strength, shown, colour)
        if robustness.guess is not None:
            guessing = f"guessing ({metric.phrase})"
            axes.axhline(robustness.guess, color=GREY, linestyle=":", linewidth=1.2, label=guessing)
        change = 0.0 if part.lost.value is None else round(part.lost.value, 3) * (1 - 2 * metric.higher_is_better)
        axes.set_title(part.title + ("" if part.lost.value is None else f": {change + 0:+.3f}"), fontsize=10)
        drawing.add_grid(axes)
    panels[0].set(xticks=range(6), ylim=(None, 1.02 if metric.higher_is_better else None))
    patients = "" if robustness.n_groups is None else f" of {counted(robustness.n_groups, group)}"
    title = f"n = {counted(robustness.n, 'image')}{patients}; in the titles: mean change of {metric.phrase}"
    figure.suptitle(textwrap.fill(title, 32 * beside), fontsize=11)
    drawing.legend_below(figure, min(3, beside))
    return figure


MOST_CHARTS = 24  # panels
OF_SIDES: dict[Side, tuple[str, str]] = {"rise": (BLUE, "-"), "fall": (ORANGE, "--")}


def control_charts(charts: Sequence[Chart], sums: Mapping[str, Mapping[Side, np.ndarray]]) -> Figure | None:
    """A panel for each chart: its sums by image, the limit, and the alarm; None where nothing is watched.

    Of many charts, those that come nearest to their limit, or go furthest above it.
    """
    heights = {one.name: (one.peak or 0.0) / one.limit for one in charts if one.limit}
    watched = sorted(heights, key=heights.__getitem__, reverse=True)[:MOST_CHARTS]
    if not watched:
        return None
    shown = [one for one in charts if one.name in watched]
    sizes = (3.6, 2.2), (0.4, 0.7)
    figure, panels, beside = drawing.small_panels(len(shown), 3, *sizes, "new image", sharex=True)
    for axes, chart in zip(panels, shown, strict=True):
        for side, values in sums[chart.name].items():
            colour, line = OF_SIDES[side]
            place = np.arange(1, len(values) + 1)
            axes.plot(place, values, line, color=colour, linewidth=1.3, label=f"{side} of the mean")
        assert chart.limit is not None
        axes.axhline(chart.limit, color=GREY, linestyle=":", linewidth=1.4, label="limit")
        if chart.alarm is not None:
            high = sums[chart.name][chart.alarm.side][chart.alarm.row - 1]
            axes.plot([chart.alarm.row], [high], "X", color=RED, markersize=8, label="alarm")
        axes.set_ylim(0, max(chart.limit, chart.peak or 0) * 1.1)
        axes.set_title(chart.name, fontsize=10)
        drawing.add_grid(axes)
    began = [int((values > 0).argmax()) for one in shown for values in sums[one.name].values()]
    panels[0].set_xlim(left=min(began))  # the axes share it
    for axes in panels[::beside]:
        axes.set_ylabel("CUSUM / SD", fontsize=9)
    drawing.legend_below(figure, 4)
    return figure


NAMED = 24  # combinations of a grid whose settings stand below them


def history_figure(study: TuningStudy) -> Figure:
    """Draw each combination, the best so far (of a grid interval and seeds), the plan, the winner trained once more."""
    figure, axes = drawing.plot("" if study.seeds else "trial", study.title)
    ended = [(point.state, point.number, point.value) for point in study.combinations if point.value is not None]
    points = [np.array([row[1:] for row in ended if row[0] == state]).reshape(-1, 2).T for state in ("done", "stopped")]
    (x, y), (stopped, values) = points
    again = [(study.refit_val, "D", "validation", 1.5), (study.test, "s", "test", 2.5)]
    last = max(point.number for point in study.combinations)
    scale = max(1, last / 25)
    if len(x) and not study.seeds:
        best = np.maximum.accumulate(y) if study.higher else np.minimum.accumulate(y)
        style: dict[str, Any] = {"color": BLUE, "linewidth": 1.2, "alpha": 0.6, "label": "best so far"}
        axes.step([*x, last], [*best, best[-1]], where="post", **style)
    for point in study.combinations if study.seeds else []:
        if point.estimate is not None:
            ends = drawing.numbers([point.estimate.low, point.estimate.high])
            axes.plot([point.number] * 2, ends, color=BLUE, linewidth=1.7)
        each = [trial.value for trial in study.trials if trial.number in point.trials and trial.state == "done"]
        label = "each seed, validation" * (point is study.combinations[0])
        axes.plot([point.number + 0.15] * len(each), drawing.numbers(each), ".", color=GREY, label=label)
    if len(x):
        axes.plot(x, y, "o", color=BLUE, label=f"{'mean and 95 % interval' if study.seeds else 'finished'}, validation")
    if len(stopped):  # where they are far from all others, at the edge, so that these stay apart
        ends = drawing.numbers(end for found, *_ in again if found for end in (found.value, found.low, found.high))
        others = np.concatenate([y, ends]) if len(x) else values
        low, high = np.nanmin(others), np.nanmax(others)
        edge = 0.1 * (high - low) or 0.1
        at = np.clip(values, low - edge, high + edge)
        label = "stopped early (at the edge: worse)" if (at != values).any() else "stopped early"
        axes.plot(stopped, at, "v", color=GREY, fillstyle="none", label=label)
    if failed := [point.number for point in study.combinations if point.state == "failed"]:
        axes.plot(failed, [0.02] * len(failed), "x", color=RED, transform=axes.get_xaxis_transform(), label="failed")
    if study.plan is not None and (planned := study.of(study.plan).value) is not None:
        axes.axhline(planned, color=ORANGE, linestyle="--", linewidth=1.2, label="the plan's settings")
    for found, marker, name, place in again:
        if found is not None and found.value is not None:
            at_x = last + place * scale
            axes.plot([at_x, at_x], drawing.numbers([found.low, found.high]), color=GREEN, linewidth=1.7)
            axes.plot(at_x, found.value, marker, color=GREEN, label=f"the winner trained once more: {name}")
    axes.set_xlim(0, last + 3.5 * scale)
    axes.set_xticks([tick for tick in MaxNLocator(10, integer=True).tick_values(1, last) if 1 <= tick <= last])
    if study.seeds and len(study.combinations) <= NAMED:
        names = [", ".join(f"{p.partition('.')[2]} {v}" for p, v in pt.values.items()) for pt in study.combinations]
        labels = [drawing.short(name, 40) for name in names]
        axes.set_xticks([point.number for point in study.combinations], labels, rotation=90)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure
