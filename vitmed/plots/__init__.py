"""Figures about predictions: pure functions to a matplotlib `Figure`, without pyplot's global state.

Pictures are labelled by their row in `predictions.csv` (the first image is row 1), never by a file name,
which may hold a patient's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from vitmed.plots.classification import confusion_matrix, precision_recall, roc
from vitmed.plots.drawing import BLUE, COLOURS, GREEN, GREY, ORANGE, RED, Drawn, drawn, png
from vitmed.plots.flow import flow
from vitmed.plots.pictures import Read, contact_sheet, errors, grid
from vitmed.plots.training import lr_range, training_curves

__all__ = [
    "BLUE",
    "COLOURS",
    "GREEN",
    "GREY",
    "ORANGE",
    "PLOTS",
    "RED",
    "Drawn",
    "Plot",
    "Read",
    "confusion_matrix",
    "contact_sheet",
    "drawn",
    "errors",
    "flow",
    "grid",
    "lr_range",
    "png",
    "precision_recall",
    "roc",
    "training_curves",
]


@dataclass(frozen=True)
class Plot:
    """A figure of the report.

    Attributes:
        title: its heading.
        text: one or two sentences under it, for a reader who sees such a figure for the first time.
        draw: (predictions, metrics) -> Figure, or (predictions, read) -> Figure where `pictures` is set; None where
            there is nothing to draw. `metrics` is all that metrics.json holds so far.
        pictures: it shows the images themselves.
        section: where in the report it stands; a key of `report.page.SECTIONS`.
    """

    title: str
    text: str
    draw: Callable[..., Figure | None]
    pictures: bool = False
    section: str = "results"


PLOTS: dict[str, Plot] = {
    "flow": Plot(
        "Flow of images and patients",
        "From the files in the data folder to the images judged here. In a box of a split: images, patients, and by "
        "class images / patients.",
        flow,
        section="flow",
    ),
    "confusion_matrix": Plot(
        "Confusion matrix",
        "Each row is a true class; a cell holds the number of images that were predicted as the column's class and "
        "their share of the row. The diagonal is right. Of many classes, an empty cell is 0.",
        confusion_matrix,
    ),
    "roc": Plot(
        "ROC curve",
        "Sensitivity against false alarms over all thresholds. The dotted diagonal is guessing. The area does not "
        "depend on how common a class is.",
        roc,
    ),
    "precision_recall": Plot(
        "Precision and recall",
        "How many of the images that were called positive are, against how many of the positive were found. It "
        "depends on how common the class is in these images.",
        precision_recall,
    ),
    "errors": Plot(
        "Most confident errors",
        "The wrong predictions in which the model was surest: look here for mislabelled or unusual images.",
        errors,
        pictures=True,
        section="errors",
    ),
    "grid": Plot(
        "Predictions and truth",
        "A random sample; a green border and ✓ are right, a red border and ✗ wrong.",
        grid,
        pictures=True,
        section="errors",
    ),
}
