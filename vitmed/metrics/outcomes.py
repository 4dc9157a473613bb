"""What an attention map explains of each image: one output of the network, and whether the answer is right."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vitmed.core.targets import UNKNOWN
from vitmed.metrics.finding_predictions import FindingPredictions
from vitmed.metrics.number_predictions import NumberPredictions
from vitmed.metrics.number_scoring import inside
from vitmed.metrics.predictions import Predictions


class Outcomes(NamedTuple):
    """The answers of S images.

    Attributes:
        explained: (S,) int64, the output of the network that a map explains.
        said: (S,) bool, whether the model asserts it, as it does of a finding that it calls.
        right: (S,) bool, whether it is right; None without labels. An unknown label counts as right.
        sure: (S,) float64; of the errors, the surest are shown first.
        strata: (S,) int64; a sample of images takes them in turn.
    """

    explained: np.ndarray
    said: np.ndarray
    right: np.ndarray | None
    sure: np.ndarray
    strata: np.ndarray


def class_outcomes(predictions: Predictions) -> Outcomes:
    """Of the predicted class."""
    predicted, labels = predictions.predicted, predictions.labels
    right = None if labels is None else predicted == labels
    strata = predicted if labels is None else labels
    return Outcomes(predicted, np.ones(len(predicted), bool), right, predictions.confidence, strata)


def finding_outcomes(predictions: FindingPredictions) -> Outcomes:
    """Of the finding that is likeliest beside its threshold."""
    limits = [0.5 if limit is None else limit for limit in predictions.thresholds or (None,) * len(predictions.classes)]
    likeliest = (predictions.probabilities / np.maximum(limits, 1e-12)).argmax(axis=1).astype(np.int64)
    place = np.arange(len(predictions)), likeliest
    called, chance = predictions.predicted[place], predictions.probabilities[place]
    right = None
    if predictions.labels is not None:
        label = predictions.labels[place]
        right = (label == UNKNOWN) | (called == (label == 1))
    return Outcomes(likeliest, called, right, np.where(called, chance, 1 - chance), likeliest)


def number_outcomes(predictions: NumberPredictions) -> Outcomes:
    """Of the number; right where the prediction interval holds the truth, or without intervals where the error is no
    larger than the median one. The largest errors are the surest."""
    zeros, right, error = np.zeros(len(predictions), np.int64), None, np.zeros(len(predictions))
    if predictions.labels is not None and len(predictions):
        error = np.abs(predictions.values - predictions.labels)
        right = error <= np.median(error) if predictions.intervals is None else inside(predictions)
    return Outcomes(zeros, np.ones(len(predictions), bool), right, error, zeros)
