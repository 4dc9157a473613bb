"""What operating points reach on the evaluated images, as typed results; also of pooled folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import ConfigDict

from vitmed.core.base_models import Frozen
from vitmed.core.config import EvaluateConfig
from vitmed.decisions.evaluation_folder import Folds, by_fold
from vitmed.decisions.operating_points import (
    LIKELIEST,
    TITLES,
    PolicyPoint,
    PolicyPoints,
    Rates,
    costs_of_balance,
    rates,
)
from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.intervals import Units, ratio
from vitmed.metrics.kinds.classes import PreparedPredictions
from vitmed.metrics.predictions import Predictions, is_called, known_labels, positive_index

Costs = Sequence[Sequence[float]]


class DecisionCost(Frozen):
    """What decisions cost; see `decision_cost`."""

    expected_cost: Estimate
    normalised_cost: Estimate
    accuracy: Estimate


class DecisionShares(Frozen):
    """How often decisions between three classes or more are right: of all images, and on average over the classes."""

    accuracy: Estimate
    balanced_accuracy: Estimate


class SharesAndCost(DecisionCost, DecisionShares):
    """What decisions between three classes or more reach where costs are given."""


class RatesAndCost(DecisionCost, Rates):
    """What decisions between two classes reach where costs are given."""


class OperatingPoint(PolicyPoint):
    """One operating point.

    Attributes:
        threshold: None where the likelier class decides, or the lowest expected cost.
        asked: its target; why: why it cannot be chosen, "" where it can.
        promised: what it reaches on validation; None where that is not known.
        reached: on the evaluated images; None where it cannot be chosen.
    """

    model_config = ConfigDict(strict=False, extra="forbid")

    title: str
    reached: RatesAndCost | Rates | SharesAndCost | DecisionShares | DecisionCost | None


class OperatingPoints(Frozen):
    """Every operating point by its key in `TITLES`; the `chosen` one decides.

    Attributes:
        positive: the positive class; None with more than two classes.
        by_fold: of pooled folds, the threshold of each.
    """

    positive: str | None
    chosen: str
    threshold: float | None
    points: dict[str, OperatingPoint]
    notes: list[str]
    by_fold: list[float | None] | None = None


def report_points(
    predictions: Predictions, operating: PolicyPoints | None, config: EvaluateConfig
) -> OperatingPoints | None:
    """What each operating point reaches on the evaluated images, beside what it reaches on validation.

    Without operating points the likeliest class alone is reported, or None with more than two classes.
    """
    positive, points = positive_index(predictions), dict[str, OperatingPoint]()
    if positive is None:
        return None if operating is None else _report_classes(predictions, operating, config)
    name, scores = predictions.classes[positive], predictions.probabilities[:, positive]
    if operating is None or operating.positive != name:
        operating = PolicyPoints(positive=None, chosen="default", points={"default": LIKELIEST}, costs=None, notes=())
    for key, point in operating.points.items():
        called = is_called(scores, point.threshold)
        reached = None if point.why else _reached(predictions, called, operating.costs, config)
        points[key] = OperatingPoint(title=TITLES[key], **dict(point), reached=reached)
    chosen, threshold, notes = operating.chosen, predictions.threshold, list(operating.notes)
    return OperatingPoints(positive=name, chosen=chosen, threshold=threshold, points=points, notes=notes)


def _reached(predictions: Predictions, called: np.ndarray, costs: Costs | None, config: EvaluateConfig) -> Rates:
    """The rates of decisions (S,) bool between two classes, and their cost where costs are given."""
    positive = positive_index(predictions)
    reached = rates(called, known_labels(predictions) == positive, Units.of(predictions))
    if not costs or positive is None:
        return reached
    taken = np.where(called, positive, 1 - positive)
    return RatesAndCost(**dict(reached), **dict(decision_cost(costs, predictions, taken, config)))


def _report_classes(
    predictions: Predictions, operating: PolicyPoints, config: EvaluateConfig
) -> OperatingPoints | None:
    """What decisions between more than two classes reach; None where there is but one way to decide."""
    points, ways = {}, {"default": predictions.likeliest}
    if operating.expected is not None:
        ways["balanced"] = replace(predictions, costs=costs_of_balance(operating.expected), decided=None).predicted
    ways[operating.chosen] = predictions.predicted
    for key, called in ways.items():
        overall, _ = PreparedPredictions(replace(predictions, decided=called)).estimates()
        reached = DecisionShares(accuracy=overall["accuracy"], balanced_accuracy=overall["balanced_accuracy"])
        if operating.costs:
            cost = decision_cost(operating.costs, predictions, called, config)
            reached = SharesAndCost(**{**dict(cost), **dict(reached)})
        points[key] = OperatingPoint(title=TITLES[key], threshold=None, asked=None, why="", reached=reached)
    if len(points) == 1:
        return None
    notes = list(operating.notes)
    return OperatingPoints(positive=None, chosen=operating.chosen, threshold=None, points=points, notes=notes)


def report_fold_points(predictions: Predictions, folds: Folds, config: EvaluateConfig) -> OperatingPoints | None:
    """`report_points` of pooled folds: the likeliest class, and the decisions of each fold at its own threshold."""
    asked, positive = folds.asked, positive_index(predictions)
    if positive is None:
        costs = None if folds.costs is None else [tuple(row) for row in folds.costs]
        operating = PolicyPoints(positive=None, chosen=asked, points={}, costs=costs, notes=())
        return report_points(predictions, operating, config)
    report = report_points(predictions, None, config)
    if not by_fold(folds) or report is None:
        return report
    reached = _reached(predictions, predictions.predicted == positive, folds.costs, config)
    point = OperatingPoint(
        title=TITLES[asked], promised=None, threshold=None, asked=folds.target, why="", reached=reached
    )
    thresholds = [fold.threshold for fold in folds.each]
    return report.model_copy(update={"chosen": asked, "by_fold": thresholds, "points": {**report.points, asked: point}})


def decision_cost(costs: Costs, predictions: Predictions, called: np.ndarray, config: EvaluateConfig) -> DecisionCost:
    """What decisions cost, and their accuracy on these images.

    `expected_cost` is by image; `normalised_cost` divides it by the expected cost of predicting the cheapest class for
    every image (Ferrer, arXiv 2209.05355: above 1 the model is worth less than no model). Two classes are as common as
    `config.prevalence` states, where it is given; else classes are as common as on these images. `called` (S,) int64 is
    the class that is predicted.
    """
    matrix, labels = np.array(costs, dtype=np.float64), known_labels(predictions)
    boot, positive = Bootstrap.of(predictions, config.resamples), positive_index(predictions)
    kinds = np.eye(len(matrix))[labels]  # (S, K)
    whole, drawn = boot.sums(np.concatenate([kinds, kinds * matrix[labels, called][:, None]], axis=1))

    def costs_of(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Expected and normalised cost (...) from sums (..., 2 K)."""
        images, lost = np.split(sums, 2, axis=-1)
        common = ratio(images, images.sum(axis=-1, keepdims=True))
        if positive is not None and config.prevalence is not None:
            common = np.where(np.arange(2) == positive, config.prevalence, 1 - config.prevalence) + 0 * images
        expected = np.where(common > 0, common * ratio(lost, images), 0.0).sum(axis=-1)
        return expected, ratio(expected, (common @ matrix).min(axis=-1))

    pairs = zip(costs_of(whole), costs_of(drawn), strict=True)
    expected, normalised = (boot.estimate(float(value), resampled) for value, resampled in pairs)
    accuracy = boot.proportion(called == labels, np.ones(len(labels), bool))
    return DecisionCost(expected_cost=expected, normalised_cost=normalised, accuracy=accuracy)
