"""The figures of a report: `PLOTS`.

Pictures are labelled by their row in `predictions.csv` (the first image is row 1), never by a file name, which may
contain the name of a patient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from vitmed.report.plots import (
    attention,
    classification,
    comparisons,
    decisions,
    findings,
    grades,
    numbers,
    participant_flow,
    patients,
    pictures,
    robustness,
    training,
)

MANY = 12  # own reports of findings, beyond which each has the figures in `MAIN` alone: drawing takes 2 s a report
MAIN = ("roc", "precision_recall", "reliability")


@dataclass(frozen=True)
class Plot:
    """A figure of the report.

    Attributes:
        text: one to three sentences below it, for a reader who sees such a figure for the first time.
        draw: (predictions, metrics) -> Figure; with `pictures` (predictions, read), with `maps` (predictions, maps).
            None if there is nothing to draw. `metrics` are the `Results`.
        pictures: it shows the images themselves.
        section: the chapter that shows it; a key of `report.page.SECTIONS`.
        maps: it shows attention maps.
        kinds: of labels that have it, keys of `TARGETS`.
    """

    title: str
    text: str
    draw: Callable[..., Figure | None]
    pictures: bool = False
    section: str = "results"
    maps: bool = False
    kinds: tuple[str, ...] = ("classes", "grades")


PLOTS: dict[str, Plot] = {
    "flow": Plot(
        "Flow of images and patients",
        "From the files in the data folder to the images evaluated here. The box of a split gives its images and "
        "patients, then images / patients of each class, finding, grade or range of a number.",
        participant_flow.flow,
        section="flow",
        kinds=("classes", "grades", "findings", "number"),
    ),
    "by_finding": Plot(
        "Finding by finding",
        "Each finding with its 95 % interval, the most frequent first. The dashed line is the mean over findings.",
        findings.by_finding,
        section="findings",
        kinds=("findings",),
    ),
    "co_occurrence": Plot(
        "Findings that occur together",
        "Share of the images with the finding of the row that also have the finding of the column, by the labels; the "
        "most frequent first, 24 at most. Images in which the column is not known do not count. Grey: there is no such "
        "image.",
        findings.co_occurrence,
        section="findings",
        kinds=("findings",),
    ),
    "cuts": Plot(
        "Cut by cut",
        "Left: each cut of the grades as a decision between two classes, with 95 % intervals. Right: by how many "
        "grades the prediction is off; below 0 it is too low.",
        grades.cuts,
        section="grades",
        kinds=("grades",),
    ),
    "worst_errors": Plot(
        "Worst errors by finding",
        "The findings with the most errors. Missed: the finding is there, and the probability is the lowest. False "
        "alarm: it is absent, and the probability is the highest. Look for wrong labels and unusual images.",
        pictures.finding_errors,
        pictures=True,
        section="finding_errors",
        kinds=("findings",),
    ),
    "predicted_and_true": Plot(
        "Predicted and true",
        "Each dot is an image; on the dashed line, prediction and truth agree. Grey: prediction intervals, where there "
        "are at most 400 images.",
        numbers.predicted_and_true,
        section="number",
        kinds=("number",),
    ),
    "bland_altman": Plot(
        "Bland-Altman",
        "The error against the size. Black: the mean error (bias); red: between these limits lie 95 % of the errors. "
        "Bands are 95 % intervals.",
        numbers.bland_altman,
        section="number",
        kinds=("number",),
    ),
    "confusion_matrix": Plot(
        "Confusion matrix",
        "Rows are the true classes, columns the predicted ones. A cell gives the number of images and their share of "
        "the row. The diagonal holds the right predictions. With many classes, an empty cell is 0.",
        classification.confusion_matrix,
        section="summary",
    ),
    "roc": Plot(
        "ROC curve",
        "Sensitivity against the false positive rate at every threshold. The dotted diagonal is guessing. The area "
        "does not depend on how common a class is. Dot: where the model decides. Band (two classes): 95 % interval of "
        "the sensitivity at each false positive rate on its own (pointwise); there is none where images are too few.",
        classification.roc,
        section="summary",
    ),
    "precision_recall": Plot(
        "Precision and recall",
        "Precision: how many of the images called positive are positive. Recall: how many of the positive images are "
        "found. The curve depends on how common the class is in these images.",
        classification.precision_recall,
    ),
    "per_patient": Plot(
        "Patient by patient",
        "Each dot is a patient; a larger dot is several. If patients differed by chance alone, about 95 % would lie in "
        "the grey band, and about 1 in 20 outside it, as a triangle. Only more triangles than that show that the model "
        "is better for some patients than for others.",
        patients.patient_spread,
        section="patients",
    ),
    "subgroups": Plot(
        "Subgroups side by side",
        "Each group with its 95 % interval. The dashed line and the diamond are all images together. Groups with fewer "
        "than 10 images or patients are listed but not evaluated.",
        patients.forest,
        section="subgroups",
    ),
    "beside_own_test": Plot(
        "Own test and these images",
        "Results on the held-out test set of the model's own run, and on the images evaluated here.",
        comparisons.beside_own_test,
        section="external",
    ),
    "prevalence": Plot(
        "PPV and NPV by prevalence",
        "How many positive and negative results are true where the positive class is rarer or more common than in "
        "these images, at the same sensitivity and specificity.",
        decisions.prevalence,
        section="operating",
    ),
    "decision_curve": Plot(
        "Decision curve",
        "Net benefit of acting on the model, compared with acting on every image or on none. To act from a probability "
        "of 10 % means that a missed positive is nine times as bad as a needless action. With an intended prevalence, "
        "the upper curve holds there: it comes from the sensitivity and specificity at each threshold.",
        decisions.decision_curve,
        section="operating",
    ),
    "decision_curves": Plot(
        "Decision curves of each class",
        "Net benefit of acting on the probability of one class, compared with acting on every image or on none, at the "
        "share that the class has in these images. The bar marks where the model is clearly better than both.",
        decisions.one_against_rest,
        section="operating",
    ),
    "reliability": Plot(
        "Reliability diagram",
        "Predicted probability against how often the class was true. On the diagonal, probabilities mean what they "
        "say; below it, they are too high. Bars: 95 % intervals. Lower panel: images with each probability.",
        decisions.reliability,
        section="calibration",
    ),
    "risk_coverage": Plot(
        "Risk and coverage",
        "Share of errors among the answered images when the model abstains on the least certain ones. If the curve "
        "falls towards the left, the model knows when it is unsure.",
        decisions.risk_coverage,
        section="uncertainty",
    ),
    "out_of_distribution": Plot(
        "Unlike the training images",
        "Out-of-distribution (OOD) score: distance of an image's features from those of the training images. Of images "
        "like those of training, 99 of 100 lie below 1.",
        decisions.out_of_distribution,
        section="uncertainty",
        kinds=("classes", "grades", "findings", "number"),
    ),
    "errors": Plot(
        "Most confident errors",
        "The wrong predictions with the highest confidence. Look for wrong labels and unusual images.",
        pictures.errors,
        pictures=True,
        section="errors",
    ),
    "errors_by_pair": Plot(
        "Errors by pair of classes",
        "The most frequent confusions, one per line, with their most confident errors.",
        pictures.errors_by_pair,
        pictures=True,
        section="errors",
    ),
    "errors_by_patient": Plot(
        "Errors by patient",
        "The patients with the most errors, one per line: true class, predicted class and its probability.",
        pictures.errors_by_patient,
        pictures=True,
        section="errors",
    ),
    "suspected_labels": Plot(
        "Suspected label errors",
        "Images to look at again, the most doubtful label first. No label was changed. The model may be wrong instead.",
        pictures.suspected_labels,
        pictures=True,
        section="errors",
    ),
    "grid": Plot(
        "Predictions and truth",
        "A random sample. A green border and ✓ mark a right prediction, an orange border and ✗ a wrong one.",
        pictures.grid,
        pictures=True,
        section="errors",
    ),
    "attention_maps": Plot(
        "Attention maps",
        "The most confident errors (of a number the largest outside its intervals) and some right predictions, as the "
        "network sees them. Each map is for the answer "
        "above the image, and yellow is its strongest patch. Read the verdict above first.",
        attention.attention_maps,
        section="attention",
        maps=True,
        kinds=("classes", "findings", "number"),
    ),
    "robustness": Plot(
        "Corrupted images",
        "The results as the image quality falls, by strength; 0 is the original image. Bands are 95 % intervals.",
        robustness.robustness,
        section="robustness",
        kinds=("classes", "findings", "number"),
    ),
}
TRAINING_CURVES = Plot(  # drawn from the records of training, not from predictions
    "Training",
    "Loss, validation metrics and learning rate by epoch. The training loss is of augmented images, with the "
    "smoothing and weights that you set. The validation loss is the plain log loss, or the log score of a number.",
    training.training_curves,
    section="training",
)
