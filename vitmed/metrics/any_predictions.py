"""Predictions of any kind of label."""

from __future__ import annotations

from vitmed.core.targets import Kind, Target
from vitmed.metrics.finding_predictions import FindingPredictions
from vitmed.metrics.number_predictions import NumberPredictions
from vitmed.metrics.predictions import Predictions

AnyPredictions = Predictions | FindingPredictions | NumberPredictions


def target_of(predictions: AnyPredictions) -> Target:
    """What the labels are."""
    return predictions.target if isinstance(predictions, NumberPredictions) else Target(kind=predictions.kind)
