"""`NumberPolicy`: what validation chooses for a model of a number: how far its prediction intervals reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vitmed.core.train_config import EvaluateConfig
from vitmed.decisions.conformal import IntervalReach, fit_intervals, with_intervals
from vitmed.decisions.out_of_distribution import OodScore
from vitmed.decisions.policy import (
    DecisionPolicy,
    answers_of,
    policy_settings,
    with_columns,
)
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions_csv import ANSWER


class NumberPolicy(DecisionPolicy):
    """What validation chooses for a number: how far prediction intervals reach; None for too few images."""

    intervals: IntervalReach | None

    def apply(self, predictions: NumberPredictions) -> NumberPredictions:
        """Add the intervals, and the column `answer`: an image unlike those of training is not answered."""
        ours = {ANSWER: answers_of(predictions, [()] * len(predictions))}
        columns = with_columns(predictions.columns, ours)
        return replace(with_intervals(predictions, self.intervals), columns=columns)

    @property
    def summary(self) -> str:
        if self.intervals is None:
            return "no prediction intervals, since there are too few images"
        reach, coverage = self.intervals.reach, self.intervals.coverage
        return f"{coverage:.0%} prediction intervals reach {reach:.3g} predicted scales up and down"

    @property
    def notes(self) -> tuple[str, ...]:
        if self.intervals is None:
            return ("Validation has too few images for prediction intervals.",)
        return (f"Prediction intervals: {self.intervals.note}.",) if self.intervals.note else ()

    def check_classes(self, classes: Sequence[str]) -> None:
        if len(classes) != 1:
            raise ValueError(f"intervals: for one number, and there are {len(classes)} classes")


def choose_number_policy(
    validation: NumberPredictions,
    config: EvaluateConfig,
    ood_score: OodScore | None = None,
    weights_hash: str | None = None,
) -> NumberPolicy:
    """Choose everything on what a model predicts for its validation images; arguments as in `choose_policy`."""
    return NumberPolicy(
        asked=policy_settings(config), n=len(validation), weights_hash=weights_hash,
        intervals=fit_intervals(validation, config.coverage), ood_score=ood_score,
    )  # fmt: skip
