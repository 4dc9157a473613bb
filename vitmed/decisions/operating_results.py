"""What operating points reach on the evaluated images, as typed results; also of pooled folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.config import EvaluateConfig
from vitmed.decisions.calibration import CalibrationResult
from vitmed.decisions.operating_points import LIKELIEST, TITLES, PolicyPoints, Reached, is_called, rates
from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.intervals import Units
from vitmed.metrics.predictions import Predictions, known_labels, positive_index
from vitmed.metrics.ranking import ratio

Costs = Sequence[Sequence[float]]


class OperatingPoint(Frozen):
    """One operating point.

    Attributes:
        promised: what it reaches on validation; None where that is not known.
        threshold: None where the likelier class decides, or the lowest expected cost.
        asked: its target.
        why: why the point cannot be chosen; "" where it can.
        reached: on the evaluated images; None where the point cannot be chosen.
    """

    title: str
    promised: Reached | None = None
    threshold: float | None
    asked: float | str | list[list[float]] | None
    why: str
    reached: Reached | None


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


class Fold(Frozen):
    """One fold: its calibration, the key of the point that decides, and its numbers.

    Attributes:
        patients: None where they are unknown.
        why: why the point that you asked for does not decide; "" where it does.
    """

    images: int
    patients: int | None
    calibration: CalibrationResult
    point: str
    threshold: float | None
    why: str
    numbers: dict[str, Estimate]


class FoldsAuroc(Frozen):
    """AUROC of the pooled images, and the mean over the folds; None where undefined."""

    pooled: float | None
    mean: float | None


class Folds(Frozen):
    """Pooled folds: the key of the operating point that was `asked` for, its target and the costs, and `each` fold."""

    asked: str
    target: float | str | list[list[float]] | None
    costs: list[list[float]] | None
    each: list[Fold]
    auroc: FoldsAuroc | None = None


def report_points(
    predictions: Predictions, operating: PolicyPoints | None, config: EvaluateConfig
) -> OperatingPoints | None:
    """What each operating point reaches on the evaluated images, beside what it reaches on validation.

    Without operating points the likeliest class alone is reported. None with more than two classes and no costs.
    """
    positive = positive_index(predictions)
    if positive is None:
        return _report_costs(predictions, operating, config)
    if operating is None or operating.positive != predictions.classes[positive]:
        operating = PolicyPoints(positive=None, chosen="default", points={"default": LIKELIEST}, costs=None, notes=())
    scores, points = predictions.probabilities[:, positive], {}
    for key, point in operating.points.items():
        called = is_called(scores, point.threshold)
        reached = _reached(predictions, called, positive, operating.costs, config) if point.usable else None
        points[key] = OperatingPoint(title=TITLES[key], **dict(point), reached=reached)
    return OperatingPoints(
        positive=predictions.classes[positive],
        chosen=operating.chosen,
        threshold=predictions.threshold,
        points=points,
        notes=list(operating.notes),
    )


def _reached(
    predictions: Predictions, called: np.ndarray, positive: int, costs: Costs | None, config: EvaluateConfig
) -> Reached:
    """The rates of decisions (S,) bool between two classes, and their cost where costs are given."""
    found = rates(called, known_labels(predictions) == positive, Units.of(predictions))
    taken = np.where(called, positive, 1 - positive)
    return found.model_copy(update=spent(costs, predictions, taken, config)) if costs else found


def by_fold(folds: Folds | None) -> bool:
    """Whether a fold decides at a point of its own validation and not by the likeliest class."""
    return folds is not None and any(fold.point != "default" for fold in folds.each)


def report_fold_points(predictions: Predictions, folds: Folds, config: EvaluateConfig) -> OperatingPoints | None:
    """`report_points` of pooled folds: the likeliest class, and the decisions of each fold at its own threshold.

    Args:
        predictions: as the folds `decided`.
    """
    asked, positive = folds.asked, positive_index(predictions)
    if not by_fold(folds) or positive is None:
        rows = None if folds.costs is None else [tuple(row) for row in folds.costs]
        return report_points(
            predictions, PolicyPoints(positive=None, chosen=asked, points={}, costs=rows, notes=()), config
        )
    found = report_points(replace(predictions, decided=None), None, config)
    assert found is not None
    reached = _reached(predictions, predictions.predicted == positive, positive, folds.costs, config)
    point = OperatingPoint(
        title=TITLES[asked], promised=None, threshold=None, asked=folds.target, why="", reached=reached
    )
    thresholds = [fold.threshold for fold in folds.each]
    return found.model_copy(update={"chosen": asked, "by_fold": thresholds, "points": {**found.points, asked: point}})


def _report_costs(
    predictions: Predictions, operating: PolicyPoints | None, config: EvaluateConfig
) -> OperatingPoints | None:
    if operating is None or not operating.costs:
        return None
    points = {}
    for key, called in (("default", predictions.likeliest), ("cost", predictions.predicted)):
        reached = Reached.model_validate(spent(operating.costs, predictions, called, config))
        points[key] = OperatingPoint(title=TITLES[key], threshold=None, asked=None, why="", reached=reached)
    return OperatingPoints(positive=None, chosen=operating.chosen, threshold=None, points=points, notes=[])


def spent(costs: Costs, predictions: Predictions, called: np.ndarray, config: EvaluateConfig) -> dict[str, Estimate]:
    """What decisions cost, as fields of `Reached`, and their accuracy on these images.

    `expected_cost` is by image; `normalised_cost` divides it by the expected cost of predicting the cheapest class for
    every image (Ferrer, arXiv 2209.05355: above 1 the model is worth less than no model). Two classes are as common as
    `config.prevalence` states, where it is given; else classes are as common as on these images.

    Args:
        costs: K x K.
        called: (S,) int64, the class that is predicted.
    """
    matrix, labels, k = np.array(costs, dtype=np.float64), known_labels(predictions), len(predictions.classes)
    boot, positive = Bootstrap.of(predictions, config.resamples), positive_index(predictions)
    kinds = np.eye(k)[labels]  # (S, K)
    whole, drawn = boot.sums(np.concatenate([kinds, kinds * matrix[labels, called][:, None]], axis=1))

    def common(sums: np.ndarray) -> np.ndarray:
        """(..., K) how common each class is."""
        if positive is None or config.prevalence is None:
            return ratio(sums[..., :k], sums[..., :k].sum(axis=-1, keepdims=True))
        two = np.where(np.arange(2) == positive, config.prevalence, 1 - config.prevalence)
        return np.broadcast_to(two, sums[..., :k].shape)

    def expected(sums: np.ndarray) -> np.ndarray:
        shares = common(sums)
        return np.where(shares > 0, shares * ratio(sums[..., k:], sums[..., :k]), 0.0).sum(axis=-1)

    def normalised(sums: np.ndarray) -> np.ndarray:
        return ratio(expected(sums), (common(sums) @ matrix).min(axis=-1))

    return {
        "expected_cost": boot.estimate(float(expected(whole)), expected(drawn)),
        "normalised_cost": boot.estimate(float(normalised(whole)), normalised(drawn)),
        "accuracy": boot.proportion(called == labels, np.ones(len(labels), bool)),
    }
