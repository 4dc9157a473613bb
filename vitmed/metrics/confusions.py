"""Which class is confused with which: the wrong predictions counted by pair."""

from __future__ import annotations

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.metrics.predictions import Predictions, known_labels

PAIRS = 20  # the most frequent that are listed


class Confusion(Frozen):
    """Images of one class that were predicted as another."""

    truth: str
    predicted: str
    n: int
    share: float  # of the images of the true class
    patients: int | None  # None where they are unknown
    confidence: float  # the median


class Mistakes(Frozen):
    """`n` errors among all images, the `PAIRS` most frequent pairs, and the number of errors in further pairs."""

    n: int
    of: int
    pairs: list[Confusion]
    further: int


def error_pairs(predictions: Predictions) -> list[tuple[int, int, np.ndarray]]:
    """(truth, predicted, rows) of each pair, the most frequent first; rows by falling confidence.

    Raises:
        DataError: the predictions have no labels.
    """
    labels, predicted, size = known_labels(predictions), predictions.predicted, len(predictions.classes)
    wrong = np.flatnonzero(labels != predicted)
    wrong = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")]
    codes = labels[wrong] * size + predicted[wrong]
    pairs, counts = np.unique(codes, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:PAIRS]
    return [(int(code) // size, int(code) % size, wrong[codes == code]) for code in pairs[order]]


def mistakes(predictions: Predictions) -> Mistakes | None:
    """The number of errors, by pair; None without images."""
    if not len(predictions):
        return None
    labels, classes = known_labels(predictions), predictions.classes
    units, support = predictions.units, np.bincount(labels)
    pairs = [
        Confusion(
            truth=classes[truth],
            predicted=classes[predicted],
            n=len(rows),
            share=float(len(rows) / support[truth]),
            patients=None if predictions.groups is None else len(np.unique(units[rows])),
            confidence=float(np.median(predictions.confidence[rows])),
        )
        for truth, predicted, rows in error_pairs(predictions)
    ]
    wrong = int(np.sum(labels != predictions.predicted))
    return Mistakes(n=wrong, of=len(labels), pairs=pairs, further=wrong - sum(pair.n for pair in pairs))
