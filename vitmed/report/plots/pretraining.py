"""Figures of `vitmed pretrain`: its losses, and patches as the network fills them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmed.report.plots.drawing import BLUE, ORANGE, gridded, show


def reconstruction_figure(pictures: np.ndarray) -> Figure:
    """`reconstructions` as a sheet: a column per image; rows: the image, its visible patches, the predicted ones."""
    figure = Figure(figsize=(1.3 * len(pictures) + 1.2, 4.1), layout="constrained")
    panels = figure.subplots(3, len(pictures), squeeze=False)
    for column, triple in enumerate(pictures):
        for row, picture in enumerate(triple):
            show(panels[row, column], picture)
            panels[row, column].set(xticks=[], yticks=[], frame_on=False)
    for row, name in enumerate(("image", "visible", "predicted")):
        panels[row, 0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=10)
    return figure


def loss_curves(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Training and validation loss and the learning rate by epoch, of the records of `metrics.jsonl`."""
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
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        gridded(axes)
    return figure
