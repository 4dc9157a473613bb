"""What `vitmed monitor` watches of the predictions of each kind of label: one chart each, in this order.

Without labels: the predicted probabilities, or the number, and how many images are unlike those of training or not
answered. With labels: calibration, and what the predictions get right.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from vitmed.core.base_models import UNKNOWN
from vitmed.decisions.out_of_distribution import scores_of
from vitmed.decisions.policy import unlike_training
from vitmed.metrics.control_charts import Stream
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions, positive_index
from vitmed.metrics.predictions_csv import ANSWER, YES

LEAST = 0.05  # standard deviation of a probability: of a class that is always clear, a shift of 0.0005 means nothing
Streams = dict[str, Stream]


def watch_classes(predictions: Predictions) -> Streams:
    """Of classes and grades: of two the positive class, of more each class against the others."""
    positive, labels, called = positive_index(predictions), predictions.labels, predictions.predicted
    watched = [k for k in range(len(predictions.classes)) if positive in (None, k)]
    streams = _parts(predictions, watched)
    if labels is None:
        return streams
    for k in watched:
        streams |= _right(predictions, k, np.ones(len(labels), bool), labels == k, called == k)
    if positive is None:
        streams["accuracy"] = Stream(called == labels, ("fall",), share=True)
    return streams


def watch_findings(predictions: FindingPredictions) -> Streams:
    """Of each finding."""
    labels, watched = predictions.labels, range(len(predictions.classes))
    streams = _parts(predictions, watched)
    if labels is not None:
        for f in watched:
            known, true = labels[:, f] != UNKNOWN, labels[:, f] == 1
            streams |= _right(predictions, f, known, true, predictions.predicted[:, f])
    return streams


def watch_number(predictions: NumberPredictions) -> Streams:
    """Of a number, in its unit."""
    streams = {"predicted number": Stream(predictions.values)} | _answers(predictions)
    if predictions.labels is None:
        return streams
    error = predictions.values - predictions.labels
    streams |= {"error": Stream(error), "absolute error": Stream(np.abs(error), ("rise",))}
    if predictions.intervals is not None:
        streams["true numbers inside the intervals"] = Stream(predictions.right, ("fall",), share=True)
    return streams


def _parts(predictions: Any, watched: Iterable[int]) -> Streams:
    """The probability of each of these classes or findings, and `_answers`."""
    names, chances = predictions.classes, predictions.probabilities
    return {f"probability of {names[k]}": Stream(chances[:, k], least=LEAST) for k in watched} | _answers(predictions)


def _right(predictions: Any, k: int, known: np.ndarray, true: np.ndarray, called: np.ndarray) -> Streams:
    """What the predictions of one class or finding against the others get right; all (S,) bool."""

    def where(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.where(rows & known, values.astype(np.float64), np.nan)

    name = predictions.classes[k]
    return {
        f"calibration of {name}": Stream(where(known, true - predictions.probabilities[:, k]), least=LEAST),
        f"sensitivity of {name}": Stream(where(true, called), ("fall",), share=True),
        f"specificity of {name}": Stream(where(~true, ~called), ("fall",), share=True),
    }


def _answers(predictions: Predictions) -> Streams:
    """The shares of images that are unlike those of training, and that are not answered, where the policy says so."""
    streams, cells = dict[str, Stream](), predictions.columns.get(ANSWER)
    if scores_of(predictions) is not None:
        streams["unlike the training images"] = Stream(unlike_training(predictions), ("rise",), share=True)
    if cells is not None:
        streams["not answered"] = Stream(np.array([cell != YES for cell in cells]), ("rise",), share=True)
    return streams
