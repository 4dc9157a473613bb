"""The area under the ROC curve and average precision, the variance of an area, and its interval (DeLong, Newcombe);
sensitivity at a fixed specificity, and so the band of the ROC curve.

The threshold of a fixed specificity is estimated on the same images, and its uncertainty belongs to the interval (Platt
et al., Stat. Med. 19 (2000) 313). So each resample of patients chooses its own threshold; the variance of the
sensitivities that result gives a Wilson interval. With fewer than `LEAST` images expected beyond the threshold there is
no interval: there it held the truth too seldom. benchmarks/fixed_rates.py measures how often it does.
"""

import itertools
from typing import NamedTuple

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.config import EvaluateConfig
from vitmed.metrics import intervals
from vitmed.metrics.bootstrap import MOST, bootstrap_weights
from vitmed.metrics.estimates import FEWEST, Estimate, estimate, of_share
from vitmed.metrics.predictions import Predictions, is_called, known_labels, positive_index

FEW = 50  # with fewer positive or negative images (effective numbers), DeLong's interval is too narrow
LEVELS = (0.8, 0.9, 0.95, 0.99)
GRID = tuple(i / 100 for i in range(1, 100))  # specificities of the band
LEAST = 6  # images, of the effective number, that lie beyond the threshold; 0.99 needs 600


class Area(NamedTuple):
    """A number, mostly an area under a curve, and the influence of each image on it, (S,), which sums to 0."""

    value: float
    influence: np.ndarray

    def plus(self, other: "Area", weight: float) -> "Area":
        return Area(self.value + weight * other.value, self.influence + weight * other.influence)


def class_areas(scores: np.ndarray, positive: np.ndarray) -> tuple[Area, Area]:
    """AUROC and average precision of scores (S,) for the images that are positive, (S,) bool; NaN where undefined. The
    influence on AUROC is DeLong's placement value less the AUROC, over the number of the image's kind."""
    m, n = int(positive.sum()), int((~positive).sum())
    if not m or not n:
        return Area(float("nan"), np.zeros(m + n)), Area(float("nan"), np.zeros(m + n))
    _, tie = np.unique(-scores, return_inverse=True)  # (S,) number of the tie, from the highest score
    hits = np.bincount(tie, positive.astype(np.float64))  # (T,) positives in each tie
    misses = np.bincount(tie, ~positive)
    hits_to, misses_to = np.cumsum(hits), np.cumsum(misses)
    below = n - misses_to + misses / 2  # for a positive: negatives in the right order, a tie counts half
    above = hits_to - hits / 2  # for a negative: positives in the right order
    auroc = float(hits @ below) / (m * n)
    area = np.where(positive, (below[tie] / n - auroc) / m, (above[tie] / m - auroc) / n)
    every_to = hits_to + misses_to
    precision = hits_to / every_to
    average = float(hits @ precision) / m
    # An image adds 1 to the images, and to the hits if it is positive, of every threshold that reaches it.
    gained = (hits / every_to)[::-1].cumsum()[::-1] / m
    diluted = (hits * precision / every_to)[::-1].cumsum()[::-1] / m
    pull = np.where(positive, (precision[tie] - average) / m + gained[tie], 0) - diluted[tie]
    return Area(auroc, area), Area(average, pull)


def area_spread(influence: np.ndarray, positive: np.ndarray, units: intervals.Units) -> intervals.Spread:
    """Variance of an AUROC, or of the difference of two, by the influence (S,) of each image; NaN if undefined.

    Independent images: DeLong et al., Biometrics 44 (1988) 837, eq. 4 to 6. Patients with several: Obuchowski,
    Biometrics 53 (1997) 567, eq. 3 to 6, with Student's in place of her normal quantile. Its degrees of freedom are
    Satterthwaite's, for positive and negative images apart or for patients, whichever are fewer. Patients of whom a few
    hold most images: as `intervals.spread`.
    """
    parts = list[intervals.Spread]()  # of the positive images, and of the negative ones
    for kind in (positive, ~positive):
        sizes, sums, squares = units.moments(influence, kind)
        if (g := len(sizes)) < 2:
            return intervals.Spread(*intervals.NONE)
        degrees = intervals.satterthwaite(sizes, intervals.correlation(sizes, sums, squares))
        parts.append(intervals.Spread(g / (g - 1) * float((sums**2).sum()), degrees))
    if units.uneven:
        return intervals.spread(influence, units)
    total = sum(part.variance for part in parts)
    if not units.clustered:
        return intervals.Spread(total, intervals.INFINITE)
    up, down = (units.sums(np.where(kind, influence, 0)) for kind in (positive, ~positive))
    both = 2 * units.count / (units.count - 1) * float((up * down).sum())
    degrees = total**2 / sum(part.variance**2 / part.degrees for part in parts) if total > 0 else intervals.INFINITE
    return intervals.Spread(max(0.0, total + both), min(degrees, units.degrees(influence)))


def area_interval(area: Area, positive: np.ndarray, units: intervals.Units) -> tuple[float, float, str]:
    """The interval of an AUROC and its method.

    With at least `FEW` positive and negative images: DeLong's (patients: Obuchowski's) on the logit scale. With fewer,
    and for an AUROC of 0 or 1: Newcombe's, from the numbers of images alone; where patients have several images, from
    effective numbers and with Student's t. As in `share`, no interval reaches further than for a perfect ranking.
    """
    name = "obuchowski" if units.clustered else "delong"
    value, (variance, degrees) = area.value, area_spread(area.influence, positive, units)
    if not np.isfinite([value, variance]).all() or (0 < value < 1 and variance == 0):
        return *intervals.NONE, name  # scores that are all alike have no variance
    m, n, z = float(positive.sum()), float((~positive).sum()), intervals.quantile()
    if units.clustered:  # effective numbers, of images from at least 2 units
        effective, freedoms = list[float](), list[float]()
        for images, kind in ((m, positive), (n, ~positive)):
            sizes, sums, squares = units.moments(area.influence, kind)
            g, alone = len(sizes), images / (images - 1) * float(squares.sum())
            seen = g / (g - 1) * float((sums**2).sum()) / alone if alone > 0 else 1.0
            if units.uneven:
                seen = intervals.assumed_effect(sizes, max(0.0, intervals.correlation(sizes, sums, squares)))
            effective.append(max(1.0, images / max(seen, intervals.assumed_effect(sizes, intervals.LIKENESS))))
            freedoms.append(intervals.satterthwaite(sizes, intervals.LIKENESS))
        (m, n), z = effective, intervals.quantile(min(freedoms))
    if min(m, n) < FEW or value in (0, 1):
        return *newcombe_area(value, m, n, z), "newcombe"
    low, high = intervals.logit_interval(value, variance**0.5, intervals.quantile(degrees))
    flawless, _ = newcombe_area(1.0, m, n, z)
    return min(low, flawless), max(high, 1 - flawless), name


def newcombe_area(value: float, positives: float, negatives: float, z: float) -> tuple[float, float]:
    """The interval of an AUROC by the numbers of images alone: method 5 of Newcombe, Stat. Med. 25 (2006) 559.

    Solves |value - a| = z sqrt(V(a)) for a; V is the variance of Hanley & McNeil (1982) with equal sizes in its
    middle terms. It holds where DeLong's variance is unknown or 0: of few images, and of an AUROC of 0 or 1.
    """
    from scipy.optimize import brentq  # imported here: predict starts without it

    common = (positives + negatives) / 2 - 1

    def excess(a: float, value: float) -> float:
        spread = a * (1 - a) * (1 + common * (1 - a) / (2 - a) + common * a / (1 + a)) / (positives * negatives)
        return value - a - z * float(np.sqrt(spread))

    ends = [0.0, 0.0]  # the lower one, and that of the reversed scores
    for k, area in enumerate((value, 1 - value)):
        if area > 0:
            ends[k] = float(brentq(excess, 0, area * (1 - 1e-9), args=(area,), xtol=1e-14))
    return ends[0], 1 - ends[1]


def threshold_counts(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many positives and negatives score at least t, for every distinct score t from high to low: (T + 1,)
    int64 each, opened by 0. Scores and positive images are (S,)."""
    values, tie = np.unique(-scores, return_inverse=True)
    hits, misses = (np.bincount(tie[of], minlength=len(values)).cumsum() for of in (positive, ~positive))
    return np.append(0, hits), np.append(0, misses)


def threshold_after(scores: np.ndarray, count: int) -> float:
    """The threshold that calls the `count` highest of the distinct scores (S,): midway to the next one."""
    high, low = map(float, np.unique(scores)[::-1][count - 1 : count + 1])
    middle = (high + low) / 2
    return middle if middle > low else high


def youden_threshold(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """The threshold with the largest sensitivity + specificity (Youden, Cancer 3 (1950) 32), of those the highest; None
    where none is better than guessing. Scores are (S,), positive images (S,) bool, with both kinds."""
    tp, fp = threshold_counts(scores, positive)
    best = int(np.argmax(np.round(tp / tp[-1] - fp / fp[-1], 12)))
    return None if best in (0, len(tp) - 1) else threshold_after(scores, best)


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
    reached = reached_at(scores, labels == positive, (*LEVELS, *GRID), intervals.Units(predictions.units), resamples)
    head, band = reached[: len(LEVELS)], reached[len(LEVELS) :]
    return FixedRates(positive=predictions.classes[positive], sensitivity=head, band=band)


def reached_at(
    scores: np.ndarray, truth: np.ndarray, levels: tuple[float, ...], units: intervals.Units, resamples: int
) -> list[AtRate]:
    """The largest share of the images of `truth` above a threshold that keeps a share `levels` of the others below it.
    Scores are (S,) of any scale, truth is (S,) bool with both kinds; without resamples of units, no intervals."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)  # the last image of each tie
    hit, below, tables = truth[order], 1 - np.array(levels), list[np.ndarray]()
    as_they_are = np.ones((1, len(scores)))
    for weights in itertools.chain([as_they_are], bootstrap_weights(units.index, resamples, seed=0)):  # (R, S)
        w = weights.take(order, axis=1)
        right, false = (np.cumsum(w * kind, axis=1)[:, last] for kind in (hit, ~hit))
        rows = np.full((len(weights), len(levels)), np.nan)  # NaN in a resample without images of either kind
        for row, hits, alarms in zip(rows, right, false, strict=True):
            place = np.searchsorted(alarms, alarms[-1] * below + 1e-9, side="right")  # of the thresholds
            if hits[-1] > 0 and alarms[-1] > 0:
                row[:] = np.append(0, hits)[place] / hits[-1]
        tables.append(rows)
    table = np.concatenate(tables)  # (1 + R, L)
    _, fp = threshold_counts(scores, truth)
    cuts = np.append(np.inf, np.unique(scores)[::-1])  # (T + 1,) above each, as the counts
    enough = units.fewer(truth) >= FEWEST
    degrees = max(1.0, units.count - 1.0)
    if units.clustered:  # of those who have the class
        degrees = min(degrees, intervals.satterthwaite(units.moments(truth, truth)[0], intervals.LIKENESS))
    rates = []
    for level, value, column in zip(levels, table[0].tolist(), table[1:].T, strict=True):
        # the loosest of the thresholds at which enough of the others are kept
        called = is_called(scores, float(cuts[np.flatnonzero(fp <= fp[-1] * (1 - level) + 1e-9)[-1]]))
        few = not enough or not intervals.share(called, ~truth, units).effective_n * (1 - level) >= LEAST - 1e-9
        reached = estimate(value, *intervals.NONE, "wilson-bootstrap", len(column) or None)
        if len(column) and not few and value in (0, 1):
            # hardly a resample differs; how alike the others are depends on the threshold, and is left out
            reached = of_share(intervals.share(called & truth, truth, units))
        elif len(column) > 1 and not few and (variance := float(np.nanvar(column, ddof=1))) > 0:
            low, high = intervals.within(value, 0, variance, intervals.quantile(degrees))
            at = intervals.share(called & truth, truth, units)  # as if the threshold were known: no narrower than that
            reached = estimate(value, min(low, at.low), max(high, at.high), "wilson-bootstrap", len(column))
        rates.append(AtRate(fixed=level, reached=reached, too_few=few))
    return rates
