"""Intervals by formula: of proportions, of areas under a curve, and of means of proportions.

Images are drawn in units: patients, or images where patients are unknown. The formulas work on sums over units.
benchmarks/coverage.py measured how often the intervals hold the truth, and so decided which formula is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from vitmed.metrics.predictions import Predictions

LEVEL = 0.95  # of every interval: the share of samples in which it holds the truth
INFINITE = float("inf")
NONE = (float("nan"), float("nan"))  # no interval
LIKENESS = 0.05  # intraclass correlation of being right that is assumed until errors show another
FEW = 50  # below so many positive or negative images, counted as independent ones, DeLong's interval is too narrow


@dataclass(frozen=True)
class Units:
    """The unit of each image: its patient where patients are known, else the image."""

    index: np.ndarray  # (S,) int64, 0..G-1

    @classmethod
    def of(cls, predictions: Predictions) -> Units:
        """Patients where they are known, else images."""
        return cls(predictions.units)

    @cached_property
    def count(self) -> int:
        """The number of units (G)."""
        return int(self.index.max()) + 1 if len(self.index) else 0

    @cached_property
    def clustered(self) -> bool:
        """Whether a unit has several images."""
        return self.count < len(self.index)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """(G,) sums of the values (S,) over each unit."""
        return np.bincount(self.index, values, minlength=self.count)

    def degrees(self, values: np.ndarray) -> float:
        """Degrees of freedom of the variance of a sum of the values (S,) between units, which are at least 2."""
        return _degrees(self.sums(np.ones(len(values))), self.sums(values), self.sums(values**2))


@dataclass(frozen=True)
class Share:
    """A proportion with its interval, and the size of its sample; NaN for what is unknown."""

    value: float
    low: float
    high: float
    method: str  # "wilson", or "wilson-cluster" where patients have several images
    n: int  # images counted
    units: int  # units counted
    icc: float = float("nan")  # intraclass correlation of being right within a unit, -1..1
    design_effect: float = float("nan")  # variance over that of as many independent images; NaN without a rarer outcome
    effective_n: float = float("nan")  # n / design effect, at most n; the interval rests on it


def share(hits: np.ndarray, counted: np.ndarray, units: Units) -> Share:
    """The proportion of the counted images that are hits.

    Independent images: Wilson, J. Am. Stat. Assoc. 22 (1927) 209. Patients with several images: the same with the
    effective number of images (Rao & Scott, Biometrics 48 (1992) 577) and Student's t with Satterthwaite's degrees of
    freedom in place of the normal quantile. `_design_effect` gives the effective number.

    With few errors the images do not show how alike those of a patient are. Two rules keep one more error from making
    the result look better. The assumed likeness does not depend on the errors that are counted: it is `LIKENESS`, or
    that of the other images where it is higher. And no interval reaches further up than that of as many images without
    an error, or further down than that of as many without a hit.

    Args:
        hits: (S,) bool. Those of images that are not counted only show how alike images of a patient are.
        counted: (S,) bool.
    """
    n = int(counted.sum())
    value = float((hits & counted).sum() / n) if n else float("nan")
    if not units.clustered:
        low, high = wilson(value, n, quantile()) if n > 1 else NONE
        return Share(value, low, high, "wilson", n, n, effective_n=float(n))
    sizes, found = _unit_counts(hits, counted, units)
    if len(sizes) < 2:
        return Share(value, *NONE, "wilson-cluster", n, len(sizes))
    likeness, others = LIKENESS, _unit_counts(hits, ~counted, units)
    if len(others[0]) > 1 and (most := assumed_effect(others[0], 1.0)) > 1:
        likeness = min(1.0, max(LIKENESS, (_design_effect(*others, LIKENESS) - 1) / (most - 1)))
    effect, z = _design_effect(sizes, found, likeness), quantile(satterthwaite(sizes, likeness))
    low, high = wilson(value, n / max(1.0, effect), z)
    flawless, _ = wilson(1.0, n / assumed_effect(sizes, likeness), z)
    shown = effect if 0 < value < 1 else float("nan")
    icc = correlation(sizes, found, found)
    limits = min(low, flawless), max(high, 1 - flawless)
    return Share(value, *limits, "wilson-cluster", n, len(sizes), icc, shown, n / max(1.0, effect))


def _unit_counts(hits: np.ndarray, counted: np.ndarray, units: Units) -> tuple[np.ndarray, np.ndarray]:
    """(G,) each: how many images of each unit are counted, and how many of them are hits; of units with any."""
    sizes, found = units.sums(counted.astype(np.float64)), units.sums((hits & counted).astype(np.float64))
    return sizes[sizes > 0], found[sizes > 0]


def assumed_effect(sizes: np.ndarray, likeness: float) -> float:
    """The design effect of units of these sizes, (G,), at an intraclass correlation: Kish (1965), section 8.2."""
    return float(1 + ((sizes**2).sum() / sizes.sum() - 1) * likeness)


def _design_effect(sizes: np.ndarray, found: np.ndarray, likeness: float) -> float:
    """The variance of a proportion over that of independent images.

    From the variance of a ratio between units, with the correction for large ones by Bell & McCaffrey, Survey
    Methodology 28 (2002) 169, averaged with the effect at the assumed likeness. The former has the weight of as many
    images as have the rarer outcome, the latter of as many as it exceeds 1 by: so many errors are as good as one.

    Args:
        sizes, found: (G,) images and hits of each unit.
        likeness: 0..1.
    """
    n, hits = sizes.sum(), found.sum()
    assumed, rarer, value = assumed_effect(sizes, likeness), min(hits, n - hits), hits / n
    if not rarer:
        return assumed
    variance = ((found - value * sizes) ** 2 / (1 - sizes / n)).sum() / n**2
    own = variance / (value * (1 - value) / n)
    return float((rarer * own + (assumed - 1) * assumed) / (rarer + assumed - 1))


def class_masks(truth: np.ndarray, called: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The hits and the counted images, (S,) bool each, of every proportion of a class, from truth and prediction.

    If all images are of the class, or none, PPV, NPV and the Jaccard index do not depend on the model: they count none.
    """
    both = bool(truth.any()) and not truth.all()
    return {
        "sensitivity": (called, truth),
        "specificity": (~called, ~truth),
        "ppv": (truth, called & both),
        "npv": (~truth, ~called & both),
        "f1": (truth & called, (truth | called) & both),  # F1 is a function of it: `of_f1`
    }


def class_shares(truth: np.ndarray, called: np.ndarray, units: Units) -> dict[str, Share]:
    """Sensitivity, specificity, PPV, NPV and the Jaccard index of a class, from truth and prediction, (S,) bool."""
    return {name: share(*masks, units) for name, masks in class_masks(truth, called).items()}


def wilson(value: float, n: float, z: float) -> tuple[float, float]:
    """The interval of a proportion of n images, z standard errors wide, 0..1."""
    middle, spread = value + z * z / (2 * n), z * np.sqrt(value * (1 - value) / n + z * z / (4 * n * n))
    low, high = (middle - spread) / (1 + z * z / n), (middle + spread) / (1 + z * z / n)
    return (0.0 if value == 0 else max(0.0, float(low))), (1.0 if value == 1 else min(1.0, float(high)))


def within(value: float, lowest: float, variance: float, z: float) -> tuple[float, float]:
    """Wilson's interval of any number within lowest..1: of as many images as give a proportion this variance."""
    scale = 1 - lowest
    share = (value - lowest) / scale
    low, high = wilson(share, share * (1 - share) * scale**2 / variance, z)
    return lowest + scale * low, lowest + scale * high


def correlation(sizes: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> float:
    """Intraclass correlation by analysis of variance (Donner, Int. Stat. Rev. 54 (1986) 67); NaN without any spread.

    Args:
        sizes, sums, squares: (G,) number, sum and sum of squares of the values of each unit, G at least 2.
    """
    n, g = sizes.sum(), len(sizes)
    if n <= g:
        return float("nan")
    between = ((sums / sizes - sums.sum() / n) ** 2 * sizes).sum() / (g - 1)
    within = max(0.0, (squares - sums**2 / sizes).sum()) / (n - g)
    usual = (n - (sizes**2).sum() / n) / (g - 1)
    spread = between + (usual - 1) * within
    return float((between - within) / spread) if spread > 0 else float("nan")


def satterthwaite(sizes: np.ndarray, icc: float) -> float:
    """Degrees of freedom of a variance between units of these sizes, (G,), at this intraclass correlation.

    The sum of n images of a unit has variance n (1 + (n - 1) icc); Satterthwaite, Biometrics Bull. 2 (1946) 110.
    Units of one size give G - 1.
    """
    rho = min(max(icc, 0.0), 1.0) if np.isfinite(icc) else 0.0
    variances = sizes * (1 + (sizes - 1) * rho)
    return max(1.0, float(variances.sum() ** 2 / (variances**2).sum()) - 1)


def quantile(degrees: float = INFINITE) -> float:
    """How many standard errors a two-sided interval reaches: 1.96, by Student's t 2.262 at 9 degrees."""
    if np.isinf(degrees):
        return NormalDist().inv_cdf((1 + LEVEL) / 2)
    from scipy.special import stdtrit  # imported here: predict starts without it

    return float(stdtrit(degrees, (1 + LEVEL) / 2))


def logit_interval(value: float, error: float, z: float) -> tuple[float, float]:
    """value -+ z errors on the scale of log(p / (1 - p)), so that it stays within 0..1; value in (0, 1)."""
    middle, spread = np.log(value / (1 - value)), z * error / (value * (1 - value))
    low, high = 1 / (1 + np.exp(-(middle + np.array([-spread, spread]))))
    return float(low), float(high)


def newcombe_area(value: float, positives: float, negatives: float, z: float) -> tuple[float, float]:
    """The interval of an AUROC by the numbers of images alone: method 5 of Newcombe, Stat. Med. 25 (2006) 559.

    Solves |value - a| = z sqrt(V(a)) for a; V is the variance of Hanley & McNeil (1982) with equal sizes in its
    middle terms. It holds where DeLong's variance is unknown or 0: of few images, and of an AUROC of 0 or 1.
    """
    from scipy.optimize import brentq  # imported here: predict starts without it

    common = (positives + negatives) / 2 - 1

    def end(value: float) -> float:
        """The lower end; the upper one is that of the reversed scores."""

        def excess(a: float) -> float:
            spread = a * (1 - a) * (1 + common * (1 - a) / (2 - a) + common * a / (1 + a)) / (positives * negatives)
            return value - a - z * float(np.sqrt(spread))

        return float(brentq(excess, 0, value * (1 - 1e-9), xtol=1e-14)) if value > 0 else 0.0

    return end(value), 1 - end(1 - value)


class Part(NamedTuple):
    """One of the numbers of which a mean is taken: its estimate, the influence (S,) of each image, and its weight."""

    value: float
    low: float
    high: float
    influence: np.ndarray
    weight: float


def mean_interval(
    parts: Iterable[Part], drift: np.ndarray, z: float, units: Units, lowest: float = 0.0
) -> tuple[float, float]:
    """The interval of a weighted mean of numbers up to 1, such as balanced accuracy, from their own intervals.

    Zou & Donner, Stat. Med. 27 (2008) 1693: the distances from each value to its bounds add up like standard errors,
    here with the correlation due to images, and patients, that several of the numbers count.

    Args:
        parts: the numbers.
        drift: (S,) the influence of each image on the mean through the weights; zeros where these are fixed.
        z: how many standard errors the interval of the drift reaches.
        units: of the images.
        lowest: of the numbers; -1 for differences.
    """
    parts, moved, bounds = list(parts), units.sums(drift) * z, []
    sums = [units.sums(part.influence) for part in parts]
    for side in (-1, 1):
        alone, joint = 0.0, moved.copy()
        for part, own in zip(parts, sums, strict=True):
            arm = part.weight * (part.value - part.low if side < 0 else part.high - part.value)
            error = float(np.linalg.norm(own))
            if error > 0:
                joint += own * (arm / error)
            else:  # no error was seen, so nothing shows what it goes with
                alone += arm**2
        value = sum(part.weight * part.value for part in parts)
        bounds.append(value + side * np.sqrt(alone + float((joint**2).sum())))
    low, high = np.clip(bounds, lowest, 1)
    return float(low), float(high)


def share_ratio(top: np.ndarray, bottom: np.ndarray, hits: np.ndarray, units: Units) -> tuple[float, float, float]:
    """How much commoner a hit is among some images than among others, with its interval: value, low and high, 0..inf.

    MOVER-R: Donner & Zou, Stat. Methods Med. Res. 21 (2012) 347, here with the correlation due to patients who have
    images among both. NaN without a hit among either; the interval is NaN where one of the proportions has none.

    Args:
        top, bottom: (S,) bool, the images of each, none in both.
        hits: (S,) bool.
    """
    a, b = share(hits, top, units), share(hits, bottom, units)
    if not a.value + b.value > 0:
        return float("nan"), *NONE
    if b.value == 0:  # its reverse is 0, and has an interval
        _, low, high = share_ratio(bottom, top, hits, units)
        return float("inf"), (1 / high if high > 0 else float("inf")), (1 / low if low > 0 else float("inf"))
    alike = sum_correlation(np.where(top, hits - a.value, 0), np.where(bottom, hits - b.value, 0), units)

    def bound(side: int) -> float:
        """The ratio R at which a - R b lies as far from 0 as its own interval reaches."""
        arm, other = (a.value - a.low, b.high - b.value) if side < 0 else (a.high - a.value, b.value - b.low)
        middle = a.value * b.value - alike * arm * other
        square, rest = b.value**2 - other**2, a.value**2 - arm**2
        root = float(np.sqrt(max(0.0, middle**2 - square * rest)))
        if side > 0:
            return (middle + root) / square if square > 0 else float("inf")
        return max(0.0, rest / (middle + root)) if middle + root > 0 else 0.0

    known = np.isfinite([a.low, a.high, b.low, b.high]).all()
    return (a.value / b.value, bound(-1), bound(1)) if known else (a.value / b.value, *NONE)


def share_gap(first: np.ndarray, second: np.ndarray, weight: float, units: Units) -> tuple[float, float, float]:
    """share of `first`, (S,) bool, - weight x share of `second` among all images, with its interval: value, low, high.

    From the intervals of both (MOVER: Zou & Donner, Stat. Med. 27 (2008) 1693, with the correlation of the two).
    """
    everyone = np.ones(len(first), bool)
    a, b = share(first, everyone, units), share(second, everyone, units)
    alike, value = sum_correlation(first - a.value, second - b.value, units), a.value - weight * b.value

    def reach(arm: float, other: float) -> float:
        return float(np.sqrt(max(0.0, arm**2 + other**2 - 2 * alike * arm * other)))

    down = reach(a.value - a.low, weight * (b.high - b.value))
    return value, value - down, value + reach(a.high - a.value, weight * (b.value - b.low))


def sum_correlation(first: np.ndarray, second: np.ndarray, units: Units) -> float:
    """Correlation of the sums of values (S,) around 0 over each unit; 0 where one does not vary."""
    x, y = units.sums(first), units.sums(second)
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size > 0 else 0.0


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
    own = (hits / every_to)[::-1].cumsum()[::-1] / m
    diluted = (hits * precision / every_to)[::-1].cumsum()[::-1] / m
    pull = np.where(positive, (precision[tie] - average) / m + own[tie], 0) - diluted[tie]
    return Area(auroc, area), Area(average, pull)


def area_spread(influence: np.ndarray, positive: np.ndarray, units: Units) -> Spread:
    """Variance of an AUROC, or of the difference of two, by the influence (S,) of each image; NaN if undefined.

    Independent images: DeLong et al., Biometrics 44 (1988) 837, eq. 4 to 6. Patients with several: Obuchowski,
    Biometrics 53 (1997) 567, eq. 3 to 6, with Student's in place of her normal quantile. Its degrees of freedom are
    Satterthwaite's, for positive and negative images apart or for patients, whichever are fewer.
    """
    up, down = np.where(positive, influence, 0), np.where(positive, 0, influence)
    sizes = units.sums(positive.astype(np.float64)), units.sums((~positive).astype(np.float64))
    with_up, with_down = (int((size > 0).sum()) for size in sizes)
    if min(with_up, with_down) < 2:
        return Spread(*NONE)
    sums = units.sums(up), units.sums(down)
    parts = [float(g / (g - 1) * (s**2).sum()) for s, g in zip(sums, (with_up, with_down), strict=True)]
    total = sum(parts)
    if not units.clustered:
        return Spread(total, INFINITE)
    both = 2 * units.count / (units.count - 1) * float((sums[0] * sums[1]).sum())
    squares = units.sums(up**2), units.sums(down**2)
    known = [_degrees(*three) for three in zip(sizes, sums, squares, strict=True)]
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
    variance = float(g / (g - 1) * (units.sums(influence) ** 2).sum())
    return Spread(variance, units.degrees(influence) if units.clustered else INFINITE)


def _degrees(sizes: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> float:
    some = sizes > 0
    sizes, sums, squares = sizes[some], sums[some], squares[some]
    return satterthwaite(sizes, correlation(sizes, sums, squares))


def area_interval(area: Area, positive: np.ndarray, units: Units) -> tuple[float, float, str]:
    """The interval of an AUROC and its method.

    Of at least `FEW` positive and negative images: DeLong's (patients: Obuchowski's) on the logit scale. Below, and
    of an AUROC of 0 or 1: Newcombe's, which knows the numbers of images alone. Of patients with several images it
    takes effective numbers and Student's t. As in `share`, no interval reaches further than that of a perfect ranking.
    """
    name, found, value = (
        "obuchowski" if units.clustered else "delong",
        area_spread(area.influence, positive, units),
        area.value,
    )
    if not np.isfinite([value, found.variance]).all() or (0 < value < 1 and found.variance == 0):
        return *NONE, name  # scores that are all alike have no variance
    m, n = (_effective(area.influence, kind, units) for kind in (positive, ~positive))
    z = quantile()
    if units.clustered:
        sizes = (units.sums(kind.astype(np.float64)) for kind in (positive, ~positive))
        z = quantile(min(satterthwaite(size[size > 0], LIKENESS) for size in sizes))
    if min(m, n) < FEW or value in (0, 1):
        return *newcombe_area(value, m, n, z), "newcombe"
    low, high = logit_interval(value, found.variance**0.5, quantile(found.degrees))
    flawless, _ = newcombe_area(1.0, m, n, z)
    return min(low, flawless), max(high, 1 - flawless), name


def _effective(influence: np.ndarray, kind: np.ndarray, units: Units) -> float:
    """As how many independent images those of a kind, (S,) bool, from at least 2 units, rank."""
    m = float(kind.sum())
    if not units.clustered:
        return m
    sizes, own = units.sums(kind.astype(np.float64)), np.where(kind, influence, 0)
    g, alone = int((sizes > 0).sum()), m / (m - 1) * float((own**2).sum())
    seen = g / (g - 1) * float((units.sums(own) ** 2).sum()) / alone if alone > 0 else 1.0
    return max(1.0, m / max(seen, assumed_effect(sizes[sizes > 0], LIKENESS)))


def influence_spread(influence: np.ndarray, units: Units) -> Spread:
    """Variance of any number by the influence (S,) of each image, as in `spread`, with degrees of freedom.

    They are Satterthwaite's, 2 / (relative variance of the variance), by the kurtosis of the influence of the units:
    a number that a few images decide is known as well as their mean. With patients at most those of `spread`.
    """
    found, squares = spread(influence, units), units.sums(influence) ** 2
    if not found.variance > 0:
        return found
    excess = float((squares**2).sum() / squares.sum() ** 2) - 1 / units.count
    return Spread(found.variance, min(found.degrees, max(1.0, 2 / excess)) if excess > 0 else found.degrees)


def log_interval(value: float, found: Spread) -> tuple[float, float]:
    """The interval of a number above 0, such as a mean loss, on the scale of its logarithm: most errors cost little."""
    if not (value > 0 and found.variance > 0):
        return NONE
    reach = quantile(found.degrees) * found.variance**0.5 / value
    return value * float(np.exp(-reach)), value * float(np.exp(reach))
