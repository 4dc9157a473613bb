"""Sensitivity at a fixed specificity, and the band of the ROC curve: of the threshold of these images.

The threshold is estimated on the same images, and its uncertainty belongs to the interval (Platt et al., Stat. Med. 19
(2000) 313). So each resample of patients chooses its own threshold; the variance of the sensitivities that result gives
a Wilson interval. With fewer than `LEAST` images expected beyond the threshold there is no interval: there it held the
truth too seldom. benchmarks/fixed_rates.py measures how often it does.
"""

from __future__ import annotations

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.config import EvaluateConfig
from vitmed.metrics.areas import threshold_counts
from vitmed.metrics.bootstrap import MOST, bootstrap_weights
from vitmed.metrics.estimates import FEWEST, Estimate, estimate, of_share
from vitmed.metrics.intervals import NONE, Units, quantile, share, within
from vitmed.metrics.predictions import Predictions, is_called, known_labels, positive_index

LEVELS = (0.8, 0.9, 0.95, 0.99)
GRID = tuple(i / 100 for i in range(1, 100))  # specificities of the band
LEAST = 6  # images, of the effective number, that lie beyond the threshold; 0.99 needs 600


class AtRate(Frozen):
    """The sensitivity `reached` at a `fixed` specificity; without an interval where there are `too_few` images."""

    fixed: float
    reached: Estimate
    too_few: bool


class FixedRates(Frozen):
    """The sensitivity at each specificity of `LEVELS`, and at each of `GRID`: the pointwise `band` of the ROC curve."""

    positive: str
    sensitivity: list[AtRate]
    band: list[AtRate]


def fixed_rates(predictions: Predictions, config: EvaluateConfig) -> FixedRates | None:
    """The sensitivity at each fixed specificity. None with more than two classes, or with images of one class."""
    positive, labels = positive_index(predictions), known_labels(predictions)
    if positive is None or len(np.unique(labels)) < 2:
        return None
    scores, resamples = predictions.probabilities[:, positive], min(config.resamples, MOST)
    reached = reached_at(scores, labels == positive, (*LEVELS, *GRID), Units(predictions.units), resamples)
    head, band = reached[: len(LEVELS)], reached[len(LEVELS) :]
    return FixedRates(positive=predictions.classes[positive], sensitivity=head, band=band)


def reached_at(
    scores: np.ndarray, truth: np.ndarray, levels: tuple[float, ...], units: Units, resamples: int
) -> list[AtRate]:
    """The largest share of the images of `truth` above a threshold that keeps a share `levels` of the others below it.
    Scores are (S,) of any scale, truth is (S,) bool with both kinds; without resamples of units, no intervals."""
    values, drawn = _drawn(scores, truth, np.array(levels), units, resamples)
    _, fp = threshold_counts(scores, truth)
    cuts = np.append(np.inf, np.unique(scores)[::-1])  # (T + 1,) above each, as the counts
    enough = units.fewer(truth) >= FEWEST
    rates = []
    for level, value, column in zip(levels, values.tolist(), drawn.T, strict=True):
        # the loosest of the thresholds at which enough of the others are kept
        called = is_called(scores, float(cuts[np.flatnonzero(fp <= _allowed(fp[-1], level))[-1]]))
        few = not enough or not share(called, ~truth, units).effective_n * (1 - level) >= LEAST - 1e-9
        reached = estimate(value, *NONE, "wilson-bootstrap", len(column) or None)
        if len(column) and not few and value in (0, 1):
            # hardly a resample differs; how alike the others are depends on the threshold, and is left out
            reached = of_share(share(called & truth, truth, units))
        elif len(column) and not few and (variance := float(np.nanvar(column, ddof=1))) > 0:
            limits = within(value, 0, variance, quantile(max(1, units.count - 1)))
            reached = estimate(value, *limits, "wilson-bootstrap", len(column))
        rates.append(AtRate(fixed=level, reached=reached, too_few=few))
    return rates


def _allowed(others: np.ndarray, level: float | np.ndarray) -> np.ndarray:
    """How many of the others may lie above the threshold."""
    return np.asarray(others * (1 - level) + 1e-9)


def _drawn(
    scores: np.ndarray, truth: np.ndarray, levels: np.ndarray, units: Units, resamples: int
) -> tuple[np.ndarray, np.ndarray]:
    """The shares at every level, (L,), and in each resample, (R, L); NaN in one without images of either kind."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)  # the last image of each tie
    hit = truth[order]

    def of(weights: np.ndarray) -> np.ndarray:
        w = weights.take(order, axis=1)
        right, false = (np.cumsum(w * kind, axis=1)[:, last] for kind in (hit, ~hit))
        rows = np.full((len(weights), len(levels)), np.nan)
        for row, hits, alarms in zip(rows, right, false, strict=True):
            place = np.searchsorted(alarms, _allowed(alarms[-1], levels), side="right")  # thresholds that are allowed
            if hits[-1] > 0 and alarms[-1] > 0:
                row[:] = np.append(0, hits)[place] / hits[-1]
        return rows

    draws = bootstrap_weights(units.index, resamples, seed=0) if resamples else ()
    drawn = [np.empty((0, len(levels))), *(of(weights) for weights in draws)]
    return of(np.ones((1, len(scores))))[0], np.concatenate(drawn)
