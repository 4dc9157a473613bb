"""Figures about training and pretraining: curves by epoch, filled-in patches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmed.decisions.targets import ALL_METRICS
from vitmed.report.plots.drawing import BLUE, COLOURS, GREY, ORANGE, Drawn, add_grid, drawn, sheet


def drawn_curves(records: Sequence[Mapping[str, Any]]) -> Drawn:
    """`training_curves` as files; drawn once for the run folder and the reports of one run."""
    return _drawn_curves(json.dumps(list(records)))


@lru_cache(maxsize=1)
def _drawn_curves(records: str) -> Drawn:
    return drawn(training_curves(json.loads(records)))


def training_curves(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Loss, validation metrics and learning rate by epoch, the epoch of best.pt marked.

    Args:
        records: of `metrics.jsonl`: epoch, train_loss, val_loss, val_<metric>, lr; kept, whether best.pt was written;
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
    losses = {"train_loss": "training", "val_loss": "validation"}

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    panels = figure.subplots(1, 3)
    for i, (key, name) in enumerate(losses.items()):
        panels[0].plot(epochs, values(key), color=COLOURS[i], marker=".", linestyle=("-", "--", ":")[i], label=name)
    panels[0].set_ylabel("loss (nats)")
    for i, name in enumerate(bounded):
        line, label = "-" if name == monitor else "--", ALL_METRICS[name].title
        panels[1].plot(epochs, values(f"val_{name}"), color=COLOURS[i], marker=".", linestyle=line, label=label)
    panels[1].set_ylabel("validation metric")
    panels[2].plot(epochs, values("lr"), color=BLUE, marker=".")
    panels[2].set_ylabel("learning rate")
    for axes, free in zip(panels, ("upper right", "lower right", "lower left"), strict=True):
        _by_epoch(axes)
        if best is not None:
            axes.axvline(epochs[best], color=GREY, linestyle=":", linewidth=1.5, label=f"best.pt: epoch {epochs[best]}")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=9, framealpha=0.85, loc=free)
    if best is not None:
        value = f"validation {ALL_METRICS[monitor].title} {values(f'val_{monitor}')[best]:.3f}"
        figure.suptitle(f"best.pt: epoch {epochs[best]}, {value}", fontsize=12)
    return figure


def loss_curves(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Training and validation loss, and the learning rate by epoch, of the records of pretraining."""
    epochs = [record["epoch"] for record in records]
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    loss, rate = figure.subplots(1, 2)
    loss.plot(epochs, [r["train_loss"] for r in records], color=BLUE, label="training")
    loss.plot(epochs, [r["val_loss"] for r in records], color=ORANGE, linestyle="--", label="validation")
    loss.set_ylabel("mean squared error of hidden patches")
    loss.legend(fontsize=9)
    rate.plot(epochs, [r["lr"] for r in records], color=BLUE)
    rate.set_ylabel("learning rate")
    for axes in (loss, rate):
        _by_epoch(axes)
    return figure


def _by_epoch(axes: Axes) -> None:
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    add_grid(axes)


def reconstruction_figure(pictures: np.ndarray) -> Figure:
    """`reconstructions` as a sheet: a column per image; rows: the image, its visible patches, the predicted ones."""
    names = ("image", "visible", "predicted")
    rows = [(name, [triple[i] for triple in pictures]) for i, name in enumerate(names)]
    figure, panels = sheet((1.3 * len(pictures) + 1.2, 4.1), rows)
    for axes in panels.flat:
        axes.set_frame_on(False)
    return figure
