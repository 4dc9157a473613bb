"""Which class is taken for which: the wrong predictions counted by pair."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitmed.metrics.predictions import Predictions
from vitmed.metrics.resampling import group_index
from vitmed.metrics.scoring import known_labels

PAIRS = 20  # the most frequent that are told


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


def mistakes(predictions: Predictions) -> dict[str, Any] | None:
    """How many errors there are, and of which kind.

    Returns:
        A dict for JSON; None without images. n (errors), of (images), pairs [{truth, predicted, n, share (of the
        images of the true class), patients (None where unknown), confidence (median)}], the `PAIRS` most frequent, and
        further (errors of other pairs).
    """
    if not len(predictions):
        return None
    labels = known_labels(predictions)
    units, support = group_index(predictions.groups, len(labels)), np.bincount(labels)
    pairs: list[dict[str, Any]] = [
        {
            "truth": predictions.classes[truth],
            "predicted": predictions.classes[predicted],
            "n": len(rows),
            "share": float(len(rows) / support[truth]),
            "patients": None if predictions.groups is None else len(np.unique(units[rows])),
            "confidence": float(np.median(predictions.confidence[rows])),
        }
        for truth, predicted, rows in error_pairs(predictions)
    ]
    wrong = int(np.sum(labels != predictions.predicted))
    return {"n": wrong, "of": len(labels), "pairs": pairs, "further": wrong - sum(pair["n"] for pair in pairs)}
