"""Figures of attention maps: the image as the network sees it, and beside it the map of each method."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from vitmed.explanation.results import TITLES, Maps, cells
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.report.plots.drawing import path_label, percent, short, show
from vitmed.report.plots.pictures import label_outcome

COLOURS = "cividis"  # dark blue to yellow: made for colour-blind readers, and it rises in lightness


def attention_maps(predictions: AnyPredictions, maps: Maps) -> Figure | None:
    """One line of panels for every image, two images beside each other where there are several; None without images.

    Args:
        predictions: of all images.
        maps: of some of them.
    """
    count, across = len(maps.rows), 1 + len(maps.grids)
    if not count:
        return None
    beside = min(2, count)
    lines = -(-count // beside)
    size = 2.4 if beside == 1 else 1.32  # inches a panel
    width, height = (size + 0.08) * across * beside + 1.0, (size + 0.68) * lines + 0.18
    # Placed by hand: the layout "constrained" takes a second and a half.
    figure = Figure(figsize=(width, height))
    places = {"left": 0.1 / width, "right": 1 - 0.9 / width, "top": 1 - 0.42 / height, "bottom": 0.44 / height}
    panels = figure.subplots(
        lines, across * beside, squeeze=False, gridspec_kw=places | {"wspace": 0.08 / size, "hspace": 0.68 / size}
    )
    for axes in panels.flat:
        axes.set_axis_off()
    for i, row in enumerate(maps.rows):
        line, column = i // beside, i % beside * across
        picture = panels[line, column]
        picture.set_axis_on()
        show(picture, maps.images[i])
        _label(picture, predictions, int(row), int(maps.targets[i]), 16 if beside == 2 else 30)
        for axes, (name, grid) in zip(panels[line, column + 1 : column + across], maps.grids.items(), strict=True):
            overlay(axes, maps.images[i], grid[i], maps.shift)
            if line == 0 or beside == 1:
                axes.set_title(TITLES[name].replace("-weighted ", "-weighted\n"), fontsize=8 if beside == 2 else 10)
    place = figure.add_axes((1 - 0.78 / width, places["bottom"], 0.16 / width, min(3, height - 0.86) / height))
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), COLOURS), cax=place)
    bar.set_ticks([0, 1], labels=["least", "most"])
    bar.set_label("attention, within one map", fontsize=8, labelpad=-14)
    bar.ax.tick_params(labelsize=8)
    return figure


def overlay(axes: Axes, image: np.ndarray, grid: np.ndarray, shift: float) -> None:
    """A map (h, w) over its image in grey. It is not smoothed, which would suggest more detail than there is."""
    near = cells(image.shape[0], grid.shape[0], shift)
    values = grid[np.ix_(near, near)]  # (S, S)
    colour = image[..., :3] if image.shape[2] >= 3 else image[..., :1]
    axes.set_axis_on()
    axes.imshow(colour.mean(axis=2), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.imshow(values, cmap=COLOURS, vmin=0, vmax=1, alpha=0.25 + 0.5 * values, interpolation="nearest")
    axes.set(xticks=[], yticks=[])


def _label(axes: Axes, predictions: AnyPredictions, row: int, target: int, most: int) -> None:
    """The prediction, the truth, and what the maps are for where the prediction does not say it."""
    label_outcome(axes, predictions, row, most)
    text = path_label(predictions.name(row), 24)
    if isinstance(predictions, NumberPredictions):
        mean = f"{predictions.target.centre:.3g} {predictions.target.unit}".rstrip()
        text += f"\nmaps for {predictions.answers[target]} than {mean}"
    elif target != predictions.explained[row]:
        sure = percent(predictions.probabilities[row, target])
        text += f"\nmaps for {short(predictions.classes[target], most)} {sure}"
    axes.set_xlabel(text, fontsize=8)
    axes.set(xticks=[], yticks=[])
