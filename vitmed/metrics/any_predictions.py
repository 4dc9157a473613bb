"""Predictions of any kind of label."""

from __future__ import annotations

from vitmed.metrics.finding_predictions import FindingPredictions
from vitmed.metrics.number_predictions import NumberPredictions
from vitmed.metrics.predictions import Predictions

AnyPredictions = Predictions | FindingPredictions | NumberPredictions
