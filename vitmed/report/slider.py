"""The numbers behind the threshold slider: counted here, so that the page only looks them up and divides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.text import format_probability
from vitmed.decisions.operating_points import OperatingPoints
from vitmed.metrics.predictions import Predictions, known_labels, positive_index
from vitmed.report.plots.drawing import plain

STEPS = 1000  # thresholds of the one class of two
STEPS_OF_MANY = 200  # of each of more classes
CLASSES = 20  # that can be chosen; of more, those with the most images
ROWS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of the table that needs no script


class Curve(Frozen):
    """The counts of one class against the others, at each of the rising thresholds.

    `start` is the index of the threshold in use, else of 0.5; `marks` are operating points, by name and index.
    """

    name: str
    positives: int
    negatives: int
    thresholds: list[float]
    tp: list[int]
    fp: list[int]
    start: int
    marks: list[tuple[str, int]]


class Slider(Frozen):
    """The classes that can be tried, and how many are `left` out.

    `decided` says whether `start` is what the model does: of more than two classes the likeliest wins, which is no
    threshold, and pooled folds have one each (`by_fold`).
    """

    classes: list[Curve]
    left: int
    decided: bool
    by_fold: bool


class Tried(NamedTuple):
    """What a threshold gives; the rates are 0..1, None where undefined."""

    threshold: float
    tp: int
    fp: int
    fn: int
    tn: int
    sensitivity: float
    specificity: float
    ppv: float | None
    npv: float | None


def slider_data(predictions: Predictions, points: OperatingPoints | None = None) -> Slider | None:
    """Count every class that can be tried, at every threshold that can be chosen; `points` are marked.

    An image is called the class where its probability is the threshold or more. None where no class has images of its
    own and others.
    """
    labels, positive = known_labels(predictions), positive_index(predictions)
    counts = np.bincount(labels, minlength=len(predictions.classes))
    possible = [k for k in range(len(counts)) if 0 < counts[k] < len(labels) and positive in (None, k)]
    chosen = sorted(sorted(possible, key=lambda k: -counts[k])[:CLASSES])
    if not chosen:
        return None
    of_two, by_fold = positive is not None, predictions.decided is not None
    marks = [
        (point.title if point.asked is None else f"{point.title} {point.asked}", point.threshold)
        for point in (points.points.values() if points is not None and of_two else ())
        if point.threshold is not None
    ]
    return Slider(
        classes=[_curve(predictions, k, marks, of_two) for k in chosen],
        left=len(possible) - len(chosen),
        decided=of_two and not by_fold,
        by_fold=of_two and by_fold,
    )


def _curve(predictions: Predictions, k: int, marks: list[tuple[str, float]], of_two: bool) -> Curve:
    scores, truth = predictions.probabilities[:, k], known_labels(predictions) == k
    start = predictions.threshold if of_two and predictions.threshold is not None else 0.5
    distinct, steps = np.unique(scores), STEPS if of_two else STEPS_OF_MANY
    kept = distinct[np.unique(np.linspace(0, len(distinct) - 1, min(steps, len(distinct))).astype(int))]
    evenly = (float(f"{score:.6g}") for score in kept)  # they part the images evenly; six digits take little room
    thresholds = np.unique([0.0, *ROWS, *evenly, 1.0, start, *(at for _, at in marks)])
    hits, false = (np.sort(scores[part]) for part in (truth, ~truth))
    return Curve(
        name=plain(predictions.classes[k]),
        positives=len(hits),
        negatives=len(false),
        thresholds=thresholds.tolist(),
        tp=(len(hits) - np.searchsorted(hits, thresholds)).tolist(),
        fp=(len(false) - np.searchsorted(false, thresholds)).tolist(),
        start=int(np.searchsorted(thresholds, start)),
        marks=[(text, int(np.searchsorted(thresholds, at))) for text, at in marks],
    )


def at(curve: Curve, index: int, prevalence: float | None = None) -> Tried:
    """What a threshold gives, as the page computes it: PPV and NPV by Bayes' rule.

    The prevalence, 0..1, is that of the place where the model is to work; None: as among these images.
    """
    tp, fp = curve.tp[index], curve.fp[index]
    positives, negatives = curve.positives, curve.negatives
    sensitivity, specificity = tp / positives, (negatives - fp) / negatives
    p = positives / (positives + negatives) if prevalence is None else prevalence
    right, wrong = sensitivity * p, (1 - specificity) * (1 - p)
    kept, missed = specificity * (1 - p), (1 - sensitivity) * p
    ppv = right / (right + wrong) if right + wrong > 0 else None
    npv = kept / (kept + missed) if kept + missed > 0 else None
    counts = (tp, fp, positives - tp, negatives - fp)
    return Tried(curve.thresholds[index], *counts, sensitivity, specificity, ppv, npv)


def rows(curve: Curve, decided: bool) -> list[tuple[str, Tried]]:
    """The table that needs no script: (what the threshold is, `at` it), the marks and some round ones, rising.

    A round one that prints like a mark is left out. The start is "in use" if the model decides by it.
    """
    names: dict[int, list[str]] = {curve.start: ["in use"]} if decided else {}
    for text, index in curve.marks:
        names.setdefault(index, []).append(text)
    marked = {format_probability(curve.thresholds[index]) for index in names}
    round_ones = {
        curve.thresholds.index(threshold) for threshold in ROWS if format_probability(threshold) not in marked
    }
    found = [(index, at(curve, index)) for index in sorted(round_ones | set(names))]
    return [
        (format_probability(row.threshold) + (f" ({', '.join(names[index])})" if index in names else ""), row)
        for index, row in found
    ]
