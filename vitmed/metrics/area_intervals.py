"""Intervals of AUROC and average precision by the influence of each image, without resampling.

The influence of an image is the derivative of the number by the image's weight; the variance of the number is that of
the sums of the influence over the units that were drawn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vitmed.metrics.intervals import NONE, Units, correlation, logit_interval, perfect_area, quantile, satterthwaite

INFINITE = float("inf")


class Area(NamedTuple):
    """An area under a curve and the influence of each image on it, (S,), which sums to 0."""

    value: float
    influence: np.ndarray

    def plus(self, other: Area, weight: float) -> Area:
        """This area plus `weight` times another."""
        return Area(self.value + weight * other.value, self.influence + weight * other.influence)


class Spread(NamedTuple):
    """Variance of a number, and the degrees of freedom of that variance (infinite: the normal quantile)."""

    variance: float
    degrees: float


def class_areas(scores: np.ndarray, positive: np.ndarray) -> tuple[Area, Area]:
    """AUROC and average precision of scores (S,) for the images that are positive, (S,) bool; NaN where undefined.

    The influence on AUROC is DeLong's placement value less the AUROC, over the number of the image's kind.
    """
    m, n = int(positive.sum()), int((~positive).sum())
    nothing = Area(float("nan"), np.zeros(m + n))
    if not m:
        return nothing, nothing
    _, tie = np.unique(-scores, return_inverse=True)  # (S,) number of the tie, from the highest score
    hits = np.bincount(tie, positive.astype(np.float64))  # (T,) positives in each tie
    misses = np.bincount(tie, ~positive)
    hits_to, misses_to = np.cumsum(hits), np.cumsum(misses)
    below = n - misses_to + misses / 2  # for a positive: negatives in the right order, a tie counts half
    above = hits_to - hits / 2  # for a negative: positives in the right order
    auroc = float(hits @ below) / (m * n) if n else float("nan")
    area = np.where(positive, (below[tie] / n - auroc) / m, (above[tie] / m - auroc) / n) if n else nothing.influence
    every_to = hits_to + misses_to
    precision = hits_to / every_to
    average = float(hits @ precision) / m
    # An image adds 1 to the images, and to the hits if it is positive, of every threshold that reaches it.
    own = (hits / every_to)[::-1].cumsum()[::-1] / m
    diluted = (hits * precision / every_to)[::-1].cumsum()[::-1] / m
    pull = np.where(positive, (precision[tie] - average) / m + own[tie], 0) - diluted[tie]
    return Area(auroc, area), Area(average, pull) if n else nothing


def area_spread(influence: np.ndarray, positive: np.ndarray, units: Units) -> Spread:
    """Variance of an AUROC, or of the difference of two, by the influence (S,) of each image; NaN if undefined.

    Independent images: DeLong et al., Biometrics 44 (1988) 837, eq. 4 to 6. Patients with several: Obuchowski,
    Biometrics 53 (1997) 567, eq. 3 to 6, with Student's in place of her normal quantile. Its degrees of freedom are
    Satterthwaite's, for positive and negative images apart or for patients, whichever are fewer.
    """
    up, down = np.where(positive, influence, 0), np.where(positive, 0, influence)
    m, n = int(positive.sum()), int((~positive).sum())
    if not units.clustered:
        if min(m, n) < 2:
            return Spread(*NONE)
        return Spread(float(m / (m - 1) * (up**2).sum() + n / (n - 1) * (down**2).sum()), INFINITE)
    sizes = units.sums(positive.astype(np.float64)), units.sums((~positive).astype(np.float64))
    with_up, with_down = (int((size > 0).sum()) for size in sizes)
    if min(with_up, with_down) < 2:
        return Spread(*NONE)
    sums = units.sums(up), units.sums(down)
    parts = [float(g / (g - 1) * (s**2).sum()) for s, g in zip(sums, (with_up, with_down), strict=True)]
    both = 2 * units.count / (units.count - 1) * float((sums[0] * sums[1]).sum())
    squares = units.sums(up**2), units.sums(down**2)
    known = [_degrees(*three) for three in zip(sizes, sums, squares, strict=True)]
    total = sum(parts)
    degrees = total**2 / sum(part**2 / d for part, d in zip(parts, known, strict=True)) if total > 0 else INFINITE
    of_patients = _degrees(sizes[0] + sizes[1], sums[0] + sums[1], squares[0] + squares[1])
    return Spread(max(0.0, total + both), min(degrees, of_patients))


def spread(influence: np.ndarray, units: Units) -> Spread:
    """Variance of any number by the influence (S,) of each image; the infinitesimal jackknife by unit.

    Efron, The Jackknife, the Bootstrap and Other Resampling Plans (1982), chapter 6.
    """
    g = units.count
    if g < 2:
        return Spread(*NONE)
    sums = units.sums(influence)
    variance = float(g / (g - 1) * (sums**2).sum())
    if not units.clustered:
        return Spread(variance, INFINITE)
    return Spread(variance, _degrees(units.sums(np.ones(len(influence))), sums, units.sums(influence**2)))


def _degrees(sizes: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> float:
    some = sizes > 0
    sizes, sums, squares = sizes[some], sums[some], squares[some]
    return satterthwaite(sizes, correlation(sizes, sums, squares))


def area_interval(value: float, found: Spread, positive: np.ndarray, units: Units) -> tuple[float, float]:
    """The interval of an AUROC on the logit scale; for an AUROC of 0 or 1, each patient counts as one image."""
    if not np.isfinite(found.variance) or (0 < value < 1 and found.variance == 0):
        return NONE  # scores that are all alike have no variance
    if 0 < value < 1:
        return logit_interval(value, found.variance**0.5, quantile(units.level, found.degrees))
    m, n = (int((units.sums(kind.astype(np.float64)) > 0).sum()) for kind in (positive, ~positive))
    return perfect_area(value, m, n, quantile(units.level))
