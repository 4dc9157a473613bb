"""The numbers that judge predictions of a quantity, without intervals: `NUMBER_METRICS` in milliseconds.

Concordance: Lin, Biometrics 45 (1989) 255, with variances over the number of images. Log score and CRPS: Gneiting &
Raftery, J. Am. Stat. Assoc. 102 (2007) 359, with less is better; of a Laplace distribution Jordan, Krueger & Lerch,
J. Stat. Softw. 90 (2019) 12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vitmed.metrics.metric_table import NUMBER_METRICS
from vitmed.metrics.number_predictions import NumberPredictions, known_numbers


def number_values(predictions: NumberPredictions) -> dict[str, float]:
    """Every number of `NUMBER_METRICS`, without intervals; NaN where it is undefined.

    Raises:
        DataError: the predictions have no labels.
    """
    labels, values, nan = known_numbers(predictions), predictions.values, float("nan")
    if not len(labels):
        return dict.fromkeys(NUMBER_METRICS, nan)
    error = values - labels
    crps, log_score = distribution_scores(predictions)
    ends = predictions.intervals
    found = {
        "mae": np.abs(error).mean(), "rmse": np.sqrt((error**2).mean()), "median_error": np.median(np.abs(error)),
        "bias": error.mean(), **{name: of(labels, values).value for name, of in CORRELATIONS.items()},
        "crps": crps.mean(), "log_score": log_score.mean(),
        "coverage": nan if ends is None else inside(predictions).mean(),
        "width": nan if ends is None else (ends[:, 1] - ends[:, 0]).mean(),
    }  # fmt: skip
    return {name: float(found[name]) for name in NUMBER_METRICS}


def inside(predictions: NumberPredictions) -> np.ndarray:
    """(S,) bool: whether the true number lies in the interval, which there must be; its ends belong to it."""
    labels, ends = known_numbers(predictions), predictions.intervals
    assert ends is not None
    return (ends[:, 0] <= labels) & (labels <= ends[:, 1])


def distribution_scores(predictions: NumberPredictions) -> tuple[np.ndarray, np.ndarray]:
    """CRPS, in the unit, and log score of each image, (S,) twice: lower is better.

    The log score is that of the standardised number, as in training: -ln of the density in the unit is larger by the
    log of `Target.spread`.
    """
    labels, scales, target = known_numbers(predictions), predictions.scales, predictions.target
    z = (labels - predictions.values) / scales
    log_scale = predictions.logits[:, 1].astype(np.float64)
    if target.distribution == "laplace":
        return scales * (np.abs(z) + np.exp(-np.abs(z)) - 0.75), np.abs(z) + log_scale + np.log(2)
    from scipy.special import ndtr  # imported here: predict starts without it

    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    crps = scales * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    return crps, 0.5 * z**2 + log_scale + 0.5 * np.log(2 * np.pi)


class Influenced(NamedTuple):
    """A number and the influence (S,) of each image: its derivative by the weight of the image; the sum is 0."""

    value: float
    influence: np.ndarray


def r2(labels: np.ndarray, values: np.ndarray) -> Influenced:
    """The coefficient of determination of true and predicted numbers (S,); NaN where the labels do not vary."""
    squares, spread = (values - labels) ** 2, (labels - labels.mean()) ** 2
    lost, variance = float(squares.mean()), float(spread.mean())
    if variance == 0:
        return _undefined(labels)
    return Influenced(1 - lost / variance, (lost / variance * spread - squares) / variance / len(labels))


def concordance(labels: np.ndarray, values: np.ndarray) -> Influenced:
    """Lin's concordance correlation of true and predicted numbers (S,); NaN where neither varies and both agree."""
    x, y, apart = labels - labels.mean(), values - values.mean(), float(values.mean() - labels.mean())
    products, squares = 2 * x * y, x**2 + y**2 + 2 * apart * (y - x) + apart**2
    top, bottom = float(products.mean()), float(squares.mean())
    if bottom == 0:
        return _undefined(labels)
    value = top / bottom
    return Influenced(value, (products - value * squares) / bottom / len(labels))


def pearson(labels: np.ndarray, values: np.ndarray) -> Influenced:
    """The linear correlation of true and predicted numbers (S,); NaN where one of them does not vary."""
    sizes = labels.std(), values.std()
    if not min(sizes) > 0:
        return _undefined(labels)
    x, y = (labels - labels.mean()) / sizes[0], (values - values.mean()) / sizes[1]
    value = float((x * y).mean())
    return Influenced(value, (x * y - value * (x**2 + y**2) / 2) / len(labels))


def _undefined(labels: np.ndarray) -> Influenced:
    return Influenced(float("nan"), np.zeros(len(labels)))


CORRELATIONS: dict[str, Callable[[np.ndarray, np.ndarray], Influenced]] = {
    "r2": r2,
    "ccc": concordance,
    "pearson": pearson,
}
