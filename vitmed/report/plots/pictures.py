"""Figures that show the images: galleries and contact sheets. A picture is labelled by its row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitmed.core.errors import VitmedError
from vitmed.core.text import counted
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.scoring import known_labels
from vitmed.report.plots.drawing import GREEN, GREY, RED, bare, percent, place, short, show

PICTURES = 24  # images in a gallery
Read = Callable[[str], np.ndarray]  # path of an image -> uint8 (H, W) or (H, W, 3)


def errors(predictions: Predictions, read: Read) -> Figure:
    """The wrong predictions with the highest confidence, the most confident first."""
    wrong = np.flatnonzero(predictions.predicted != known_labels(predictions))
    shown = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")][:PICTURES]
    if not len(shown):
        figure = Figure(figsize=(8, 1.5))
        text = f"no errors among {counted(len(predictions), 'image')}"
        figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=14)
        return figure
    figure = _gallery(predictions, read, shown)
    order = ", the most confident first" if len(shown) > 1 else ""
    figure.suptitle(f"{len(shown)} of {len(wrong):,} error{'s' * (len(wrong) > 1)}{order}", fontsize=12)
    return figure


def grid(predictions: Predictions, read: Read) -> Figure:
    """Images drawn at random (always the same ones), with prediction and truth; without labels, the prediction.

    Args:
        predictions: of one image or more.
    """
    shown = np.sort(np.random.default_rng(0).permutation(len(predictions))[:PICTURES])
    figure = _gallery(predictions, read, shown)
    if len(shown) < len(predictions):
        figure.suptitle(f"{len(shown)} of {len(predictions):,} images, drawn at random", fontsize=12)
    return figure


def contact_sheet(images: Mapping[str, Sequence[np.ndarray]]) -> Figure:
    """What the network is shown: one row of images per class.

    Args:
        images: class name -> uint8 arrays (H, W) or (H, W, 3).
    """
    columns = max([1, *(len(row) for row in images.values())])
    figure = Figure(figsize=(1.2 * columns + 1.6, max(1.0, 1.2 * len(images))), layout="constrained")
    panels = figure.subplots(max(1, len(images)), columns, squeeze=False)
    for row, (name, pictures) in zip(panels, images.items(), strict=False):
        for axes, picture in zip(row, pictures, strict=False):
            show(axes, picture)
        row[0].set_ylabel(short(name, 20), rotation=0, ha="right", va="center", fontsize=10)
    bare(panels.flat)
    return figure


def _gallery(predictions: Predictions, read: Read, rows: np.ndarray) -> Figure:
    """Images of the given rows with what was predicted and what is true."""
    columns = int(np.clip(len(rows), 1, 6))
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(max(4.5, 1.75 * columns + 0.4), 2.35 * lines + 0.5), layout="constrained")
    panels = figure.subplots(max(1, lines), columns, squeeze=False)
    for axes, i in zip(panels.flat, rows, strict=False):
        show_row(axes, predictions, read, i)
        outcome(axes, predictions, i, 16)
    bare(panels.flat)
    return figure


def outcome(axes: Axes, predictions: Predictions, row: int, most: int) -> None:
    """What was predicted and, with labels, the truth; in a frame that is green where they agree."""
    predicted, sure = short(predictions.classes[predictions.predicted[row]], most), percent(predictions.confidence[row])
    title, colour = f"{predicted}\n{sure}", GREY
    if predictions.labels is not None:
        right, truth = predictions.predicted[row] == predictions.labels[row], predictions.labels[row]
        title = f"{'✓' if right else '✗'} {predicted} {sure}\ntruth: {short(predictions.classes[truth], most)}"
        colour = GREEN if right else RED
    axes.set_title(title, fontsize=8)
    axes.spines[:].set(color=colour, linewidth=3)


def show_row(axes: Axes, predictions: Predictions, read: Read, row: int) -> None:
    """The image of a row, or a grey field where it cannot be read, with its name beneath."""
    try:
        show(axes, read(predictions.paths[row]))
    except (VitmedError, OSError, ValueError):
        show(axes, np.full((8, 8), 200, np.uint8))
        axes.text(0.5, 0.5, "cannot be read", transform=axes.transAxes, ha="center", va="center", fontsize=8)
    axes.set_anchor("N")  # the titles of a line are level
    axes.set_xlabel(place(predictions.name(int(row)), 24), fontsize=8)
