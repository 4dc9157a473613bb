"""Figures of `vitmed pretrain`: its losses, and patches as the network fills them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmed.report.plots.drawing import BLUE, ORANGE


def reconstruction_figure(pictures: np.ndarray) -> Figure:
    """`reconstructions` as a sheet: a column an image, one row each for the image, what was seen, what was guessed."""
    figure = Figure(figsize=(1.3 * len(pictures) + 1.2, 4.1), layout="constrained")
    panels = figure.subplots(3, len(pictures), squeeze=False)
    for column, triple in enumerate(pictures):
        for row, picture in enumerate(triple):
            shown = picture[..., :3] if picture.shape[-1] >= 3 else picture[..., 0]
            axes = panels[row, column]
            axes.imshow(shown, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.set_frame_on(False)
    for row, name in enumerate(("image", "seen", "guessed")):
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
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
    return figure
