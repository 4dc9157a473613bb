"""Which class is taken for which: the wrong predictions counted by pair."""

from __future__ import annotations

import numpy as np

from vitmed.core.frozen import Frozen
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.resampling import group_index
from vitmed.metrics.scoring import known_labels

PAIRS = 20  # the most frequent that are listed


class Confusion(Frozen):
    """Images of one class that were predicted as another.

    Attributes:
        share: of the images of the true class.
        patients: None where they are unknown.
        confidence: the median.
    """

    truth: str
    predicted: str
    n: int
    share: float
    patients: int | None
    confidence: float


class Mistakes(Frozen):
    """`n` errors of so many images, the `PAIRS` most frequent kinds, and how many errors are of further kinds."""

    n: int
    of: int
    pairs: list[Confusion]
    further: int


def error_pairs(predictions: Predictions) -> list[tuple[int, int, np.ndarray]]:
    """(truth, predicted, rows) of each pair that was seen, the most frequent first; rows from the surest error down.

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
    """How many errors there are, and of which kind; None without images."""
    if not len(predictions):
        return None
    labels = known_labels(predictions)
    units, support = group_index(predictions.groups, len(labels)), np.bincount(labels)
    pairs = [
        Confusion(
            truth=predictions.classes[truth],
            predicted=predictions.classes[predicted],
            n=len(rows),
            share=float(len(rows) / support[truth]),
            patients=None if predictions.groups is None else len(np.unique(units[rows])),
            confidence=float(np.median(predictions.confidence[rows])),
        )
        for truth, predicted, rows in error_pairs(predictions)
    ]
    wrong = int(np.sum(labels != predictions.predicted))
    return Mistakes(n=wrong, of=len(labels), pairs=pairs, further=wrong - sum(pair.n for pair in pairs))
