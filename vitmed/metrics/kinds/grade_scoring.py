"""Grades: weighted kappa, the distance of predicted and true grade, and each cut of the grades as two classes.

Grades are classes in order, the lowest first. Kappa with weights: Cohen, Psychol. Bull. 70 (1968) 213: 1 minus the
disagreement over that expected by chance from how often each reader gives each class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vitmed.core.errors import UsageError
from vitmed.core.text import listed
from vitmed.metrics.metric_table import GRADE_METRICS
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.ranking import ratio
from vitmed.metrics.scoring import metric_values


def grade_costs(k: int, error: str) -> tuple[tuple[float, ...], ...]:
    """K x K costs of predicting the column's grade for the row's, for `Predictions.costs`; a value of `GRADE_ERRORS`.

    The cheapest grade is the median of the predicted distribution for absolute errors; for squared errors it is the
    grade nearest to its mean.
    """
    distance = np.abs(np.arange(k)[:, None] - np.arange(k)).astype(np.float64)
    return tuple(map(tuple, (distance if error == "absolute" else distance**2).tolist()))


def grades_of(ordinal: Sequence[str], classes: Sequence[str]) -> np.ndarray | None:
    """(K,) int64 grade of each class, 0 the lowest, from the classes in order; None without an order.

    Raises:
        UsageError: the order does not have each class once.
    """
    if not ordinal:
        return None
    if sorted(ordinal) != sorted(classes):
        raise UsageError(
            f"--ordinal {','.join(ordinal)}: expected each class once, from the lowest grade to the highest",
            f"the classes are {listed(classes)}",
        )
    return np.array([list(ordinal).index(name) for name in classes])


def grade_values(predictions: Predictions) -> dict[str, float]:
    """Every number of `GRADE_METRICS`, without intervals; NaN where it is undefined.

    Raises:
        DataError: the predictions have no labels.
    """
    labels, predicted, k = known_labels(predictions), predictions.predicted, len(predictions.classes)
    found = metric_values(predictions)
    found["quadratic_kappa"] = weighted_kappa(labels, predicted, grade_costs(k, "squared"))
    found["linear_kappa"] = weighted_kappa(labels, predicted, grade_costs(k, "absolute"))
    found["grade_error"] = float(np.abs(predicted - labels).mean()) if len(labels) else float("nan")
    return {name: found[name] for name in GRADE_METRICS}


def weighted_kappa(first: np.ndarray, second: np.ndarray, weights: np.typing.ArrayLike) -> float:
    """Kappa of two readings (S,) int64, from the weight (K, K) of each disagreement.

    NaN where both give one and the same class to all images.
    """
    return float(kappa_of_sums(kappa_summands(first, second, weights).sum(axis=0), weights))


def kappa_summands(first: np.ndarray, second: np.ndarray, weights: np.typing.ArrayLike) -> np.ndarray:
    """(S, 2 + 2 K) float64: of each image what `kappa_of_sums` takes the sums of."""
    costs = np.asarray(weights, dtype=np.float64)
    one, two = (np.eye(len(costs))[seen] for seen in (first, second))
    return np.column_stack([np.ones(len(first)), costs[first, second], one, two])


def kappa_of_sums(sums: np.ndarray, weights: np.typing.ArrayLike) -> np.ndarray:
    """(...) kappa, from sums (..., 2 + 2 K) over images."""
    costs = np.asarray(weights, dtype=np.float64)
    rows, columns = np.split(sums[..., 2:], 2, axis=-1)
    by_chance = np.einsum("...i,ij,...j->...", rows, costs, columns)
    return np.asarray(1 - ratio(sums[..., 0] * sums[..., 1], by_chance))


def ranked_probability_scores(predictions: Predictions) -> np.ndarray:
    """(S,) 0..1, lower is better: the mean over cuts of the squared error of the probability to be above the cut.

    Epstein, J. Appl. Meteorol. 8 (1969) 985, divided by K - 1.
    """
    labels, k = known_labels(predictions), len(predictions.classes)
    below = np.cumsum(predictions.probabilities, axis=1)[:, :-1]  # (S, K - 1) of each cut
    return ((below - (labels[:, None] <= np.arange(k - 1))) ** 2).sum(axis=1) / max(1, k - 1)


def predictions_at_cut(predictions: Predictions, cut: int) -> Predictions:
    """Grades from number `cut`, 1..K-1, as the positive one of two classes, decided as the grades are.

    With `decided=None` the probability decides instead.
    """
    k = len(predictions.classes)
    assert 0 < cut < k, cut
    names = f"below {predictions.classes[cut]}", f"{predictions.classes[cut]} or higher"
    raw = predictions.logits.astype(np.float64)
    odds = np.logaddexp.reduce(raw[:, cut:], axis=1) - np.logaddexp.reduce(raw[:, :cut], axis=1)
    chances = predictions.calibrated
    above = None if chances is None else np.clip(chances[:, cut:].sum(axis=1), 0, 1)
    return replace(
        predictions,
        classes=names,
        labels=None if predictions.labels is None else (predictions.labels >= cut).astype(np.int64),
        logits=np.stack([np.zeros_like(odds), odds], axis=1).astype(np.float32),
        calibrated=None if above is None else np.stack([1 - above, above], axis=1),
        decided=(predictions.predicted >= cut).astype(np.int64),
        positive=names[1],
        threshold=None,
        costs=None,
    )
