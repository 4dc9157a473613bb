"""The numbers that judge predictions of a quantity: `NUMBER_METRICS` in milliseconds, without intervals.

All but the median are functions of sums over images, so that each patient can be left out: `number_evaluation`.
Concordance: Lin, Biometrics 45 (1989) 255, with variances over the number of images. Log score and CRPS: Gneiting &
Raftery, J. Am. Stat. Assoc. 102 (2007) 359, with less is better.
"""

from __future__ import annotations

import numpy as np

from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.metric_table import NUMBER_METRICS
from vitmed.metrics.predictions import known_labels
from vitmed.metrics.ranking import ratio


def number_values(predictions: NumberPredictions) -> dict[str, float]:
    """Every number of `NUMBER_METRICS`, without intervals; NaN where it is undefined.

    Raises:
        DataError: the predictions have no labels.
    """
    labels = known_labels(predictions)
    found = {name: float(value) for name, value in of_sums(summands(predictions).sum(axis=0)).items()}
    found["median_error"] = float(np.median(np.abs(predictions.values - labels))) if len(labels) else float("nan")
    return {name: found[name] for name in NUMBER_METRICS}


def drawn_numbers(predictions: NumberPredictions, weights: np.ndarray) -> dict[str, np.ndarray]:
    """The numbers of `of_sums`, (R,) each, for image weights (R, S)."""
    return of_sums(weights @ summands(predictions))


def error_of_mean(predictions: NumberPredictions) -> float:
    """The mean absolute error of predicting the mean of the training labels for every image."""
    labels = known_labels(predictions)
    return float(np.abs(labels - predictions.target.centre).mean()) if len(labels) else float("nan")


def summands(predictions: NumberPredictions) -> np.ndarray:
    """(S, 13) float64: of each image what `of_sums` takes the sums of; numbers are counted from those of the first."""
    labels, values = known_labels(predictions), predictions.values
    error, ends = values - labels, predictions.intervals
    y, x = (own - own[:1].sum() for own in (labels, values))  # numbers that are all alike become exactly 0
    nothing = np.full(len(labels), np.nan)
    width, held = (nothing, nothing) if ends is None else (ends[:, 1] - ends[:, 0], inside(predictions))
    scores = distribution_scores(predictions)
    columns = np.ones(len(labels)), y, x, y * y, x * x, y * x, error, error**2, np.abs(error), *scores, held, width
    return np.column_stack(columns)


def of_sums(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers by name, (...) each, from the sums (..., 13) of `summands`: all but the median, and the trend.

    The trend is the slope of the error on the mean of true and predicted number.
    """
    n, y, x, yy, xx, yx, error, squared, size, crps, log_score, held, width = np.moveaxis(sums, -1, 0)
    of_labels, of_values, both = (ratio(a - ratio(b, n), n) for a, b in ((yy, y * y), (xx, x * x), (yx, y * x)))
    bias, mse = ratio(error, n), ratio(squared, n)
    return {
        "mae": ratio(size, n),
        "rmse": np.sqrt(mse),
        "bias": bias,
        "r2": 1 - ratio(mse, of_labels),
        "ccc": ratio(2 * both, of_labels + of_values + bias**2),
        "pearson": np.where(of_labels > 0, ratio(both, np.sqrt(np.maximum(of_labels * of_values, 0))), np.nan),
        "crps": ratio(crps, n),
        "log_score": ratio(log_score, n),
        "coverage": ratio(held, n),
        "width": ratio(width, n),
        "sd": np.sqrt(np.maximum(mse - bias**2, 0)),
        "trend": ratio((of_values - of_labels) / 2, (of_values + 2 * both + of_labels) / 4),
    }


def inside(predictions: NumberPredictions) -> np.ndarray:
    """(S,) bool: whether the true number lies in the interval, which there must be; its ends belong to it."""
    labels, ends = known_labels(predictions), predictions.intervals
    assert ends is not None
    return (ends[:, 0] <= labels) & (labels <= ends[:, 1])


def distribution_scores(predictions: NumberPredictions) -> tuple[np.ndarray, np.ndarray]:
    """CRPS, in the unit, and log score of each image, (S,) twice: lower is better.

    The log score is that of the standardised number, as in training: -ln of the density in the unit is larger by the
    log of `Target.spread`.
    """
    labels, scales = known_labels(predictions), predictions.scales
    z = (labels - predictions.values) / scales
    log_scale = predictions.logits[:, 1].astype(np.float64)
    from scipy.special import ndtr  # imported here: predict starts without it

    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    crps = scales * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    return crps, 0.5 * z**2 + log_scale + 0.5 * np.log(2 * np.pi)
