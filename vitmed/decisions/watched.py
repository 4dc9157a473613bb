"""What `vitmed monitor` watches of the predictions of each kind of label: one chart each, in this order.

Without labels: the predicted probabilities, or the number, and how many images are unlike those of training or not
answered. With labels: calibration, and what the predictions get right.
"""

from __future__ import annotations

import numpy as np

from vitmed.core.targets import UNKNOWN
from vitmed.decisions.out_of_distribution import scores_of
from vitmed.decisions.policy import unlike_training
from vitmed.metrics.control_charts import Stream
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions, positive_index
from vitmed.metrics.predictions_csv import ANSWER, YES

LEAST = 0.05  # standard deviation of a probability: of a class that is always clear, a shift of 0.0005 means nothing
Streams = dict[str, Stream]


def watch_classes(predictions: Predictions) -> Streams:
    """Of classes and grades: of two the positive class, of more each class against the others."""
    positive = positive_index(predictions)
    watched = range(len(predictions.classes)) if positive is None else [positive]
    chances, called = predictions.probabilities, predictions.predicted
    names = {k: predictions.classes[k] for k in watched}
    found = {f"probability of {name}": Stream(chances[:, k], least=LEAST) for k, name in names.items()} | _answers(
        predictions
    )
    labels = predictions.labels
    if labels is None:
        return found
    for k, name in names.items():
        found |= _of_one(f" of {name}", labels == k, chances[:, k], called == k, np.ones(len(labels), bool))
    return found if positive is not None else found | {"accuracy": Stream(called == labels, ("fall",), share=True)}


def watch_findings(predictions: FindingPredictions) -> Streams:
    """Of each finding."""
    chances, labels = predictions.probabilities, predictions.labels
    found = {f"probability of {name}": Stream(chances[:, f], least=LEAST) for f, name in enumerate(predictions.classes)}
    found |= _answers(predictions)
    if labels is not None:
        for f, name in enumerate(predictions.classes):
            known = labels[:, f] != UNKNOWN
            found |= _of_one(f" of {name}", labels[:, f] == 1, chances[:, f], predictions.predicted[:, f], known)
    return found


def watch_number(predictions: NumberPredictions) -> Streams:
    """Of a number, in its unit."""
    found = {"predicted number": Stream(predictions.values)} | _answers(predictions)
    if predictions.labels is None:
        return found
    error = predictions.values - predictions.labels
    found |= {"error": Stream(error), "absolute error": Stream(np.abs(error), ("rise",))}
    if predictions.intervals is not None:
        found["true numbers inside the intervals"] = Stream(predictions.right, ("fall",), share=True)
    return found


def _of_one(of: str, true: np.ndarray, chances: np.ndarray, called: np.ndarray, known: np.ndarray) -> Streams:
    """Of one class or finding against the others; all (S,), bool but for the probabilities."""

    def where(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.where(rows & known, values.astype(np.float64), np.nan)

    return {
        f"calibration{of}": Stream(where(known, true - chances), least=LEAST),
        f"sensitivity{of}": Stream(where(true, called), ("fall",), share=True),
        f"specificity{of}": Stream(where(~true, ~called), ("fall",), share=True),
    }


def _answers(predictions: AnyPredictions) -> Streams:
    """The shares of images that are unlike those of training, and that are not answered, where the policy says so."""
    found, cells = dict[str, Stream](), predictions.columns.get(ANSWER)
    if scores_of(predictions) is not None:
        found["unlike the training images"] = Stream(unlike_training(predictions), ("rise",), share=True)
    if cells is not None:
        found["not answered"] = Stream(np.array([cell != YES for cell in cells]), ("rise",), share=True)
    return found
