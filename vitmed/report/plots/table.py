"""Figures about predictions: pure functions to a matplotlib `Figure`, without pyplot's global state.

Pictures are labelled by their row in `predictions.csv` (the first image is row 1), never by a file name,
which may hold a patient's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from vitmed.report.plots.attention import attention_maps
from vitmed.report.plots.calibration import reliability
from vitmed.report.plots.classification import confusion_matrix, precision_recall, roc
from vitmed.report.plots.decisions import decision_curve, familiarity, prevalence, risk_coverage
from vitmed.report.plots.drawing import BLUE, COLOURS, GREEN, GREY, ORANGE, RED, Drawn, drawn, png
from vitmed.report.plots.external_data import beside_own_test
from vitmed.report.plots.galleries import errors_by_pair, errors_by_patient, suspected_labels
from vitmed.report.plots.participant_flow import flow
from vitmed.report.plots.patients import forest, patient_spread
from vitmed.report.plots.pictures import Read, contact_sheet, errors, grid
from vitmed.report.plots.robustness import robustness, stress_curves, stress_samples
from vitmed.report.plots.training import lr_range, training_curves

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
    "attention_maps",
    "confusion_matrix",
    "contact_sheet",
    "decision_curve",
    "drawn",
    "errors",
    "errors_by_pair",
    "errors_by_patient",
    "familiarity",
    "flow",
    "forest",
    "grid",
    "lr_range",
    "patient_spread",
    "png",
    "precision_recall",
    "prevalence",
    "reliability",
    "risk_coverage",
    "roc",
    "stress_curves",
    "stress_samples",
    "suspected_labels",
    "training_curves",
]


@dataclass(frozen=True)
class Plot:
    """A figure of the report.

    Attributes:
        title: its heading.
        text: one or two sentences under it, for a reader who sees such a figure for the first time.
        draw: (predictions, metrics) -> Figure, or (predictions, read) -> Figure where `pictures` is set, or
            (predictions, maps) -> Figure where `maps` is; None where there is nothing to draw. `metrics` are the
            `Results`.
        pictures: it shows the images themselves.
        maps: it shows maps of attention, which a model has made.
        section: where in the report it stands; a key of `report.page.SECTIONS`.
    """

    title: str
    text: str
    draw: Callable[..., Figure | None]
    pictures: bool = False
    section: str = "results"
    maps: bool = False


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
    "beside_own_test": Plot(
        "Own test and these images",
        "What the model does on the held-out test of its own run, and on the images judged here.",
        beside_own_test,
        section="external",
    ),
    "prevalence": Plot(
        "PPV and NPV by prevalence",
        "How many of the positive and of the negative results are true where the finding is rarer or commoner than in "
        "these images, with the same sensitivity and specificity.",
        prevalence,
        section="operating",
    ),
    "decision_curve": Plot(
        "Decision curve",
        "Whether acting on the model does more good than acting on all or on none. Whoever acts from a probability of "
        "10 % on holds a missed finding to be nine times as bad as a needless action.",
        decision_curve,
        section="operating",
    ),
    "reliability": Plot(
        "Reliability diagram",
        "What the model said against how often it was true. On the diagonal a probability means what it says; below it "
        "the model is too sure. Bars: 95 % intervals. Below: how many images got such a probability.",
        reliability,
        section="calibration",
    ),
    "risk_coverage": Plot(
        "Risk and coverage",
        "Errors among the images that are answered if the least sure are left to a person. A curve that falls to the "
        "left means that the model knows when it is unsure.",
        risk_coverage,
        section="uncertainty",
    ),
    "familiarity": Plot(
        "Unlike the training images",
        "How far the features of an image lie from those of the training images. Known images lie below 1, but for one "
        "in a hundred.",
        familiarity,
        section="uncertainty",
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
    "attention_maps": Plot(
        "Maps of attention",
        "The most confident errors and some images that are right, as the network sees them. A map is of the predicted "
        "class; yellow patches are marked most, within that map. Read the verdict above first.",
        attention_maps,
        section="attention",
        maps=True,
    ),
    "robustness": Plot(
        "Corrupted images",
        "Balanced accuracy and AUROC when the images get worse, by strength; 0 is the image as it is. "
        "Bands are 95 % intervals.",
        robustness,
        section="robustness",
    ),
}
