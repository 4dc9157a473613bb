"""The numbers behind the threshold slider: counted here, so that the page only looks them up and divides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.text import format_probability
from vitmed.decisions.operating_points import OperatingPoints
from vitmed.metrics.predictions import Predictions, known_labels, positive_index
from vitmed.report.plots.drawing import plain

STEPS = 1000  # thresholds
ROWS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of the table that needs no script


class Curve(Frozen):
    """The counts of the positive class of two, at each of the rising thresholds.

    `start` is the index of the threshold in use, else of 0.5; `marks` are operating points, by name and index.
    `decided` says whether `start` is what the model does: pooled folds have a threshold each.
    """

    name: str
    positives: int
    negatives: int
    thresholds: list[float]
    tp: list[int]
    fp: list[int]
    start: int
    marks: list[tuple[str, int]]
    decided: bool = True


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


def slider_data(predictions: Predictions, points: OperatingPoints | None = None) -> Curve | None:
    """Count the images that are called positive, with a probability of the threshold or more, at every threshold that
    can be chosen; `points` are marked. None without two classes that both have images."""
    labels, positive = known_labels(predictions), positive_index(predictions)
    if positive is None or len(np.unique(labels)) < 2:
        return None
    marks = [
        (point.title if point.asked is None else f"{point.title} {point.asked}", point.threshold)
        for point in (() if points is None else points.points.values())
        if point.threshold is not None
    ]
    scores, truth = predictions.probabilities[:, positive], labels == positive
    start, distinct = 0.5 if predictions.threshold is None else predictions.threshold, np.unique(scores)
    kept = distinct[np.unique(np.linspace(0, len(distinct) - 1, min(STEPS, len(distinct))).astype(int))]
    evenly = (float(f"{score:.6g}") for score in kept)  # they part the images evenly; six digits take little room
    thresholds = np.unique([0.0, *ROWS, *evenly, 1.0, start, *(at for _, at in marks)])
    hits, false = (np.sort(scores[part]) for part in (truth, ~truth))
    return Curve(
        name=plain(predictions.classes[positive]),
        positives=len(hits),
        negatives=len(false),
        thresholds=thresholds.tolist(),
        tp=(len(hits) - np.searchsorted(hits, thresholds)).tolist(),
        fp=(len(false) - np.searchsorted(false, thresholds)).tolist(),
        start=int(np.searchsorted(thresholds, start)),
        marks=[(text, int(np.searchsorted(thresholds, at))) for text, at in marks],
        decided=predictions.decided is None,
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


def rows(curve: Curve) -> list[tuple[str, Tried]]:
    """The table that needs no script: (what the threshold is, `at` it), the marks and some round ones, rising.

    A round one that prints like a mark is left out. The start is "in use" if the model decides by it.
    """
    names: dict[int, list[str]] = {curve.start: ["in use"]} if curve.decided else {}
    for text, index in curve.marks:
        names.setdefault(index, []).append(text)
    marked = {format_probability(curve.thresholds[index]) for index in names}
    others = {curve.thresholds.index(round_one) for round_one in ROWS if format_probability(round_one) not in marked}
    return [
        (format_probability(curve.thresholds[i]) + (f" ({', '.join(names[i])})" if i in names else ""), at(curve, i))
        for i in sorted(others | set(names))
    ]
