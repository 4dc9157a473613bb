"""Where and how far a predicted quantity is off: limits of agreement, errors by range and by subgroup.

Limits of agreement: Bland & Altman, Lancet 327 (1986) 307; with several images of a patient by components of variance,
J. Biopharm. Stat. 17 (2007) 571. Their intervals are those of bias and standard deviation combined (MOVER), as in Zou,
Stat. Methods Med. Res. 22 (2013) 630, but with the jackknife for both: heavy tails make chi-squared far too narrow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.metrics.estimates import Estimate, estimate, of_share
from vitmed.metrics.intervals import NONE, Units, quantile, ratio, share
from vitmed.metrics.kinds.number import NumberPredictions, PreparedNumbers, evaluate_number
from vitmed.metrics.predictions import known_labels
from vitmed.metrics.subgroups import PARTS, Stratum, Subgroups, check_columns, evaluate_strata, strata

OF_STRATA = ("mae", "bias", "coverage")


class BlandAltman(Frozen):
    """The errors, predicted minus true number.

    Attributes:
        lower, upper: the limits of agreement, between which 95 % of errors lie if they are normal.
        within: the share of images whose error does.
        trend: by how much the error grows with each unit of the mean of true and predicted number.
        repeated: whether patients have several images, whose errors may be alike.
    """

    bias: Estimate
    lower: Estimate
    upper: Estimate
    within: Estimate
    trend: Estimate
    repeated: bool


def bland_altman(predictions: NumberPredictions) -> BlandAltman | None:
    """Bias and limits of agreement; None with fewer than two patients (or images, where patients are unknown). Raises
    DataError without labels."""
    error, units = predictions.values - known_labels(predictions), Units(predictions.units)
    if units.count < 2:
        return None
    estimates, sd, wide = PreparedNumbers(predictions).jackknifed, total_sd(error, units), quantile()
    bias, of_sd = estimates["bias"], estimates["sd"]
    assert bias.value is not None
    of_images = of_sd.value or np.nan  # the interval of `sd` is in proportion to that of the images
    spread = [np.nan if end is None else end / of_images * sd for end in (of_sd.low, of_sd.high)]
    limits = []
    for times in (-wide, wide):
        value, (low, high) = bias.value + times * sd, NONE
        if bias.low is not None and bias.high is not None:
            ends = sorted(times * (end - sd) for end in spread)
            low = value - float(np.hypot(bias.value - bias.low, ends[0]))
            high = value + float(np.hypot(bias.high - bias.value, ends[1]))
        limits.append(estimate(value, low, high, "mover"))
    hits = np.abs(error - bias.value) <= wide * sd
    return BlandAltman(
        bias=bias,
        lower=limits[0],
        upper=limits[1],
        within=of_share(share(hits, np.ones(len(error), bool), units)),
        trend=estimates["trend"],
        repeated=units.clustered,
    )


def total_sd(error: np.ndarray, units: Units) -> float:
    """The standard deviation of the error (S,) of one image of a new patient: between and within patients. Components
    of variance by analysis of variance, with unequal numbers of images (Bland & Altman 2007, section 3)."""
    sizes = units.sums(np.ones(len(error)))
    n, g, means = len(error), units.count, units.sums(error) / sizes
    within = float(((error - means[units.index]) ** 2).sum()) / max(1, n - g)
    between = float((sizes * (means - error.mean()) ** 2).sum()) / (g - 1)
    usual = float(n - (sizes**2).sum() / n) / (g - 1)
    return (between / usual + (1 - 1 / usual) * within) ** 0.5


def error_by_range(predictions: NumberPredictions) -> Subgroups:
    """The error between the quintiles of the true number, or in fewer parts where patients are few."""
    cells = [repr(number) for number in known_labels(predictions).tolist()]
    for parts in sorted(PARTS, reverse=True):
        errors = _errors(predictions, cells, parts)
        if errors.strata:
            break
    return errors


def error_by_subgroup(predictions: NumberPredictions, column: str) -> Subgroups:
    """The error in each stratum of a further column. Raises UsageError if there is no such column."""
    check_columns([column], predictions.columns)
    return _errors(predictions, predictions.columns[column], 4)


def _errors(predictions: NumberPredictions, cells: Sequence[str], parts: int) -> Subgroups:
    unit = "images" if predictions.groups is None else "patients"
    column = strata(cells, predictions.units.tolist(), unit, parts)

    def evaluate(name: str, part: NumberPredictions) -> Stratum:
        numbers = evaluate_number(part)
        overall = {metric: numbers.overall[metric] for metric in OF_STRATA if metric in numbers.overall}
        return Stratum(name=name, n=len(part), n_groups=numbers.n_groups, overall=overall, notes=numbers.notes)

    return evaluate_strata(predictions, column, evaluate, _Errors)


class _Errors:
    """The mean absolute error of the images in some atoms; see `evaluate_strata`."""

    slow = False

    def __init__(self, predictions: NumberPredictions, atoms: np.ndarray):
        size = np.abs(predictions.values - known_labels(predictions))
        self.images, self.sizes = np.bincount(atoms).astype(float), np.bincount(atoms, size)

    def of(self, inside: np.ndarray) -> dict[str, np.ndarray]:
        """Name -> (R,), from which atoms are inside, (R, A) of 0 and 1."""
        return {"mae": ratio(inside @ self.sizes, inside @ self.images)}
