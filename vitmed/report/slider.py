"""The numbers behind the threshold slider: counted here, so that the page only looks them up and divides."""

from __future__ import annotations

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.text import format_probability
from vitmed.decisions.operating_results import OperatingPoints
from vitmed.metrics.predictions import Predictions, known_labels, positive_index
from vitmed.report.plots.drawing import plain

STEPS = 1000  # thresholds of the one class of two
STEPS_OF_MANY = 200  # of each of more classes
CLASSES = 20  # that can be chosen; of more, those with the most images
ROWS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of the table that needs no script


class Curve(Frozen):
    """The counts of one class against the others.

    Attributes:
        thresholds: rising; tp, fp: at each.
        start: index of the threshold in use, else of 0.5.
        marks: operating points, by name and index.
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
    """The classes that can be tried.

    Attributes:
        left: how many classes are left out.
        decided: whether `start` is what the model does. Of more than two classes the likeliest wins, which is no
            threshold; pooled folds have one each, and are `by_fold`.
    """

    classes: list[Curve]
    left: int
    decided: bool
    by_fold: bool


class Tried(Frozen):
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
    """Counts of every class that can be tried, at every threshold that can be chosen.

    An image is called the class where its probability is the threshold or more.

    Args:
        predictions: with labels.
        points: are marked.

    Returns:
        None where no class has images of its own and others.
    """
    labels, two = known_labels(predictions), positive_index(predictions)
    counts = np.bincount(labels, minlength=len(predictions.classes))
    fit = [k for k in range(len(counts)) if 0 < counts[k] < len(labels)]
    chosen = fit if two is None else [k for k in fit if k == two]
    chosen = sorted(sorted(chosen, key=lambda k: -counts[k])[:CLASSES])
    if not chosen:
        return None
    steps = STEPS if two is not None else STEPS_OF_MANY
    marks = _marks(points) if points is not None and two is not None else []
    by_fold = predictions.decided is not None
    used = predictions.threshold if two is not None else None
    return Slider(
        classes=[_curve(predictions, k, labels == k, _start(predictions, k, used), marks, steps) for k in chosen],
        left=len(fit) - len(chosen) if two is None else 0,
        decided=two is not None and not by_fold,
        by_fold=two is not None and by_fold,
    )


def _curve(
    predictions: Predictions, k: int, truth: np.ndarray, start: float, marks: list[tuple[str, float]], steps: int
) -> Curve:
    scores = predictions.probabilities[:, k]
    asked = [start, *(at for _, at in marks)]
    thresholds = np.unique([*_grid(scores, steps), *asked])
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


def _grid(scores: np.ndarray, steps: int) -> list[float]:
    """Thresholds that part the images evenly, and the round ones of the table; six digits, to take little room."""
    distinct = np.unique(scores)
    kept = distinct[np.unique(np.linspace(0, len(distinct) - 1, min(steps, len(distinct))).astype(int))]
    return [0.0, *ROWS, *(float(f"{score:.6g}") for score in kept), 1.0]


def _start(predictions: Predictions, k: int, used: float | None) -> float:
    """The threshold in use; else 0.5, or a hair above it where an image of exactly 0.5 goes to the other class."""
    if used is not None:
        return float(used)
    level = predictions.probabilities[:, k] == 0.5
    return float(np.nextafter(0.5, 1)) if level.any() and (predictions.predicted[level] != k).any() else 0.5


def _marks(found: OperatingPoints) -> list[tuple[str, float]]:
    """Name and threshold of the points that have one."""
    return [
        (f"{point.title} {'' if point.asked is None else point.asked}".strip(), point.threshold)
        for point in found.points.values()
        if point.threshold is not None
    ]


def at(curve: Curve, index: int, prevalence: float | None = None) -> Tried:
    """What a threshold gives, as the page computes it: PPV and NPV by Bayes' rule.

    Args:
        prevalence: 0..1, of the place where the model is to work; None: as among these images.
    """
    tp, fp = curve.tp[index], curve.fp[index]
    positives, negatives = curve.positives, curve.negatives
    sensitivity, specificity = tp / positives, (negatives - fp) / negatives
    p = positives / (positives + negatives) if prevalence is None else prevalence
    right, wrong = sensitivity * p, (1 - specificity) * (1 - p)
    kept, missed = specificity * (1 - p), (1 - sensitivity) * p
    return Tried(
        threshold=curve.thresholds[index],
        tp=tp,
        fp=fp,
        fn=positives - tp,
        tn=negatives - fp,
        sensitivity=sensitivity,
        specificity=specificity,
        ppv=right / (right + wrong) if right + wrong > 0 else None,
        npv=kept / (kept + missed) if kept + missed > 0 else None,
    )


def rows(curve: Curve, decided: bool) -> list[tuple[str, Tried]]:
    """The table that needs no script: (what the threshold is, `at` it), the marks and some round ones, rising.

    A round one that prints like a mark is left out.

    Args:
        decided: whether `start` is the threshold by which the model decides.
    """
    names: dict[int, list[str]] = {curve.start: ["in use"]} if decided else {}
    for text, index in curve.marks:
        names.setdefault(index, []).append(text)
    marked = {format_probability(curve.thresholds[index]) for index in names}
    round_ones = [
        curve.thresholds.index(threshold) for threshold in ROWS if format_probability(threshold) not in marked
    ]
    told = []
    for index in sorted({*names, *round_ones}):
        row = at(curve, index)
        name = f" ({', '.join(names[index])})" if index in names else ""
        told.append((f"{format_probability(row.threshold)}{name}", row))
    return told
