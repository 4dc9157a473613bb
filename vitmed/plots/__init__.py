"""Figures about predictions: pure functions to a matplotlib `Figure`, without pyplot's global state.

Pictures are labelled by their row in `predictions.csv` (the first image is row 1), never by a file name,
which may hold a patient's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from vitmed.plots.classification import confusion_matrix, precision_recall, roc
from vitmed.plots.drawing import BLUE, COLOURS, GREEN, GREY, ORANGE, RED, png
from vitmed.plots.galleries import errors_by_pair, errors_by_patient, suspected_labels
from vitmed.plots.pictures import Read, contact_sheet, errors, grid
from vitmed.plots.strata import forest, patient_spread
from vitmed.plots.training import lr_range, training_curves

__all__ = [
    "BLUE",
    "COLOURS",
    "GREEN",
    "GREY",
    "ORANGE",
    "PLOTS",
    "RED",
    "Plot",
    "Read",
    "confusion_matrix",
    "contact_sheet",
    "errors",
    "errors_by_pair",
    "errors_by_patient",
    "forest",
    "grid",
    "lr_range",
    "patient_spread",
    "png",
    "precision_recall",
    "roc",
    "suspected_labels",
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
    "per_patient": Plot(
        "Patient by patient",
        "Each dot is a patient (a larger one several). The grey band holds 95 % of them if all were alike and only "
        "chance made them differ; a triangle outside it is a patient on whom the model does better or worse.",
        patient_spread,
        section="patients",
    ),
    "subgroups": Plot(
        "Subgroups side by side",
        "Each group with its 95 % interval; the dashed line and the diamond are all images together. Groups of fewer "
        "than 10 images or patients are named and not judged.",
        forest,
        section="subgroups",
    ),
    "errors": Plot(
        "Most confident errors",
        "The wrong predictions in which the model was surest: look here for mislabelled or unusual images.",
        errors,
        pictures=True,
        section="errors",
    ),
    "errors_by_pair": Plot(
        "Errors by pair of classes",
        "The most frequent confusions, a line each, with the errors in which the model was surest.",
        errors_by_pair,
        pictures=True,
        section="errors",
    ),
    "errors_by_patient": Plot(
        "Errors by patient",
        "The patients with the most errors, a line each: truth, prediction and its probability.",
        errors_by_patient,
        pictures=True,
        section="errors",
    ),
    "suspected_labels": Plot(
        "Suspected label errors",
        "Images to look at again, the most doubted label first; nothing was changed. The model may be the one that is "
        "wrong.",
        suspected_labels,
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
