"""Intervals around a predicted number that hold the true one with a chosen probability, for any model.

Split conformal with residuals over the predicted scale: Lei, G'Sell, Rinaldo, Tibshirani & Wasserman, J. Am. Stat.
Assoc. 113 (2018) 1094, section 5.2. Patients count as in `conformal`, with the same guarantee: it holds on average over
all numbers, so the intervals of some ranges or subgroups may hold fewer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vitmed.core.base_models import Frozen, Stored
from vitmed.decisions.conformal import guaranteed_score
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.kinds.number import NumberPredictions, evaluate_number
from vitmed.metrics.predictions import known_labels


class IntervalReach(Stored):
    """How far intervals reach.

    Attributes:
        coverage: how often an interval is to hold the true number.
        by: "patient" or "image", the unit of the guarantee; note: what a reader must know about it, or "".
        reach: how many predicted scales an interval reaches up and down.
        units: patients or images of validation behind it.
    """

    coverage: float
    by: str
    note: str
    reach: float
    units: int


class IntervalResults(Frozen):
    """How often the intervals hold the true number, and how wide they are; the rest as in `IntervalReach`."""

    asked: float
    by: str
    note: str
    calibrated_on: int
    coverage: Estimate
    width: Estimate


def fit_intervals(validation: NumberPredictions, coverage: float) -> IntervalReach | None:
    """Choose how far intervals reach; None where validation has too few images for any guarantee.

    Raises:
        DataError: the predictions have no labels.
    """
    residuals = np.abs(known_labels(validation) - validation.values) / validation.scales
    least, units, by, note = guaranteed_score(-residuals, validation, coverage)
    if least is None:
        return None
    return IntervalReach(coverage=coverage, by=by, note=note, reach=-least, units=len(np.unique(units)))


def with_intervals(predictions: NumberPredictions, fitted: IntervalReach | None) -> NumberPredictions:
    """The predictions with these intervals; without any for None."""
    return replace(predictions.undecided(), reach=None if fitted is None else fitted.reach)


def report_intervals(predictions: NumberPredictions, fitted: IntervalReach | None) -> IntervalResults | None:
    """What the intervals reach on the evaluated images; None without them.

    Raises:
        DataError: the predictions have no labels.
    """
    if fitted is None:
        return None
    found = evaluate_number(with_intervals(predictions, fitted)).overall
    return IntervalResults(
        asked=fitted.coverage, by=fitted.by, note=fitted.note, calibrated_on=fitted.units,
        coverage=found["coverage"], width=found["width"],
    )  # fmt: skip
