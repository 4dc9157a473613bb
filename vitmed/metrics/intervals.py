"""Intervals by formula: of proportions, of means of numbers, and of any number by the influence of each image.

Images are drawn in units: patients, or images where patients are unknown. The formulas work on sums over units.
benchmarks/coverage.py measured how often the intervals hold the truth, and so decided which formula is used.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

LEVEL = 0.95  # of every interval: the share of samples in which it holds the truth
INFINITE = float("inf")
ROUNDING = 1e-9  # sums of influences below it are 0 but for rounding
NONE = (float("nan"), float("nan"))  # no interval
LIKENESS = 0.05  # intraclass correlation of being right that is assumed until errors show another
FEWEST_DEGREES = 8  # of freedom, of a proportion: with fewer, one error would give a wider interval than two
LEAST_DEGREES = 4  # of freedom: if a few units hold so many images that there are fewer, see `uneven`


@dataclass(frozen=True)
class Units:
    """The unit of each image: its patient where patients are known, else the image."""

    index: np.ndarray  # (S,) int64, 0..G-1

    @cached_property
    def count(self) -> int:
        """The number of units (G)."""
        return int(self.index.max()) + 1 if len(self.index) else 0

    @cached_property
    def clustered(self) -> bool:
        """Whether a unit has several images."""
        return self.count < len(self.index)

    @cached_property
    def ordered(self) -> tuple[np.ndarray, np.ndarray]:
        """The images (S,) in the order of the units, and where each unit begins, (G,)."""
        order = np.argsort(self.index, kind="stable")
        return order, np.searchsorted(self.index[order], np.arange(self.count))

    def sums(self, values: np.ndarray) -> np.ndarray:
        """(G,) or (G, F) sums of the values, (S,) or (S, F), over each unit."""
        if values.ndim == 2:
            return np.stack([self.sums(column) for column in values.T], axis=1)
        return np.bincount(self.index, values, minlength=self.count)

    def moments(
        self, values: np.ndarray, counted: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Number, sum and sum of squares, (H,) each, of the values (S,) that are counted, (S,) bool, or of all, over
        each of the H units that have any."""
        counted = np.ones(len(values), bool) if counted is None else counted
        sizes, kept = self.sums(counted.astype(np.float64)), (values * counted).astype(np.float64)
        some, sums = sizes > 0, self.sums(kept)
        squares = sums if values.dtype == bool else self.sums(kept**2)  # to square bools takes as long as all the rest
        return sizes[some], sums[some], squares[some]

    @cached_property
    def uneven(self) -> bool:
        """Whether a few units hold so many images that a variance between units is hardly known: `uneven`."""
        return self.clustered and uneven(self.sums(np.ones(len(self.index))))

    def blocks(self, most: int) -> "Units":
        """The units; of more than `most` as many random groups of them, alike in size."""
        if self.count <= most:
            return self
        return Units(np.random.default_rng(0).permutation(self.count)[self.index] % most)

    def fewer(self, images: np.ndarray) -> int:
        """How many units have any of the images, (S,) bool, or any of the others: the fewer of the two."""
        return min(len(np.unique(self.index[part])) for part in (images, ~images))

    def leveraged(self, influence: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """The influence (S,) of each image as leaving out its unit shows it: over 1 - the unit's share of the images of
        its kind, (S,) int64; at most twice as large. Where few units have a kind, their influence hides how much the
        number would be without them: MacKinnon & White, J. Econometrics 29 (1985) 305 (HC3). Not of `uneven` units."""
        if self.uneven:
            return influence
        _, cell, held = np.unique(kinds * self.count + self.index, return_inverse=True, return_counts=True)
        return influence / np.maximum(0.5, 1 - held[cell] / np.bincount(kinds)[kinds])

    def degrees(self, values: np.ndarray) -> float:
        """Degrees of freedom of the variance of a sum of the values (S,) between units, which are at least 2."""
        sizes, sums, squares = self.moments(values)
        return satterthwaite(sizes, correlation(sizes, sums, squares))


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


def share(hits: np.ndarray, counted: np.ndarray | None, units: Units) -> Share:
    """The proportion of the counted images that are hits; None counts all.

    Independent images: Wilson, J. Am. Stat. Assoc. 22 (1927) 209. Patients with several images: the same with the
    effective number of images (Rao & Scott, Biometrics 48 (1992) 577) and Student's t with Satterthwaite's degrees of
    freedom in place of the normal quantile, or those of `kurtosis_degrees` where a few patients have most of the
    errors. `_design_effect` gives the effective number.

    With few errors the images do not show how alike the images of a patient are. Two rules keep one more error from
    making the result look better. The assumed intraclass correlation does not depend on the errors that are counted: it
    is `LIKENESS`, or that of the other images where it is higher. And no interval reaches further up than if no image
    were wrong, or further down than if all were.

    Hits and counted images are (S,) bool. Hits that are not counted only show how alike images of a patient are.
    """
    counted = np.ones(len(hits), bool) if counted is None else counted
    n = int(counted.sum())
    value = float((hits & counted).sum() / n) if n else float("nan")
    if not units.clustered:
        low, high = wilson(value, n, quantile()) if n > 1 else NONE
        return Share(value, low, high, "wilson", n, n, effective_n=float(n))
    (sizes, hit, _), (beside, others, _) = (units.moments(hits, images) for images in (counted, ~counted))
    if len(sizes) < 2:
        return Share(value, *NONE, "wilson-cluster", n, len(sizes))
    likeness = LIKENESS
    if len(beside) > 1 and (most := assumed_effect(beside, 1.0)) > 1:
        likeness = min(1.0, max(LIKENESS, (_design_effect(beside, others, LIKENESS) - 1) / (most - 1)))
    effect, degrees = _design_effect(sizes, hit, likeness), satterthwaite(sizes, likeness)
    seen = max(FEWEST_DEGREES, kurtosis_degrees(hit - value * sizes)) if 0 < value < 1 else INFINITE
    low, high = wilson(value, n / max(1.0, effect), quantile(min(degrees, seen)))
    flawless, _ = wilson(1.0, n / assumed_effect(sizes, likeness), quantile(degrees))
    shown = effect if 0 < value < 1 else float("nan")
    icc = correlation(sizes, hit, hit)
    limits = min(low, flawless), max(high, 1 - flawless)
    return Share(value, *limits, "wilson-cluster", n, len(sizes), icc, shown, n / max(1.0, effect))


def assumed_effect(sizes: np.ndarray, likeness: float) -> float:
    """Design effect of units of these sizes, (G,), at an intraclass correlation: Kish, Survey Sampling (1965), 8.2."""
    return float(1 + ((sizes**2).sum() / sizes.sum() - 1) * likeness)


def _design_effect(sizes: np.ndarray, hits: np.ndarray, likeness: float) -> float:
    """The variance of a proportion over that of independent images, from the images and hits of each unit, (G,).

    A weighted mean of two effects. One comes from the variance of a ratio between units, with the correction for large
    units by Bell & McCaffrey, Survey Methodology 28 (2002) 169; its weight is the number of images with the rarer
    outcome. The other is the assumed effect; its weight is its excess over 1, as if it were that many such images. For
    `uneven` units, `uneven_effect` takes the place of the first.
    """
    n, total = sizes.sum(), hits.sum()
    assumed, rarer, value = assumed_effect(sizes, likeness), min(total, n - total), total / n
    if not rarer:
        return assumed
    variance = ((hits - value * sizes) ** 2 / (1 - sizes / n)).sum() / n**2
    seen = uneven_effect(sizes, hits, hits) or variance / (value * (1 - value) / n)
    return float((rarer * seen + (assumed - 1) * assumed) / (rarer + assumed - 1))


def rates_of(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, tn: np.ndarray) -> dict[str, np.ndarray]:
    """Sensitivity, specificity, PPV, NPV and F1, (...) each, from hits, false calls, misses and right absences."""
    return {
        "sensitivity": ratio(tp, tp + fn),
        "specificity": ratio(tn, tn + fp),
        "ppv": ratio(tp, tp + fp),
        "npv": ratio(tn, tn + fn),
        "f1": ratio(2 * tp, 2 * tp + fp + fn),
    }


def class_masks(truth: np.ndarray, called: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The hits and the counted images, (S,) bool each, of every proportion of a class, from truth and prediction. If
    all images are of the class, or none, PPV, NPV and the Jaccard index do not depend on the model: they count none."""
    both = bool(truth.any()) and not truth.all()
    return {
        "sensitivity": (called, truth),
        "specificity": (~called, ~truth),
        "ppv": (truth, called & both),
        "npv": (~truth, ~called & both),
        "f1": (truth & called, (truth | called) & both),  # F1 is a function of it: `of_shares`
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
    """Wilson's interval of any number within lowest..1, with the n at which a proportion has this variance."""
    scale = 1 - lowest
    share = (value - lowest) / scale
    low, high = wilson(share, share * (1 - share) * scale**2 / variance, z)
    return lowest + scale * low, lowest + scale * high


def correlation(sizes: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> float:
    """Intraclass correlation by analysis of variance (Donner, Int. Stat. Rev. 54 (1986) 67); NaN without any spread.
    From number, sum and sum of squares of the values of each unit, (G,), G at least 2."""
    n, g = sizes.sum(), len(sizes)
    if n <= g:
        return float("nan")
    between = ((sums / sizes - sums.sum() / n) ** 2 * sizes).sum() / (g - 1)
    within = max(0.0, (squares - sums**2 / sizes).sum()) / (n - g)
    usual = (n - (sizes**2).sum() / n) / (g - 1)
    spread = between + (usual - 1) * within
    return float((between - within) / spread) if spread > 0 else float("nan")


def satterthwaite(sizes: np.ndarray, icc: float) -> float:
    """Degrees of freedom of a variance between units of these sizes, (G,), at this intraclass correlation: the sum of n
    images of a unit has variance n (1 + (n - 1) icc); Satterthwaite, Biometrics Bull. 2 (1946) 110. Of `uneven` units,
    whose variance mostly is that of `uneven_effect`, at least `LEAST_DEGREES`."""
    rho = min(max(icc, 0.0), 1.0) if np.isfinite(icc) else 0.0
    return max(LEAST_DEGREES if uneven(sizes) else 1.0, _degrees(sizes * (1 + (sizes - 1) * rho)))


def _degrees(variances: np.ndarray) -> float:
    return float(variances.sum() ** 2 / (variances**2).sum()) - 1


def uneven(sizes: np.ndarray) -> bool:
    """Whether a few of the units, (G,), hold so many images that a variance of sums has fewer than `LEAST_DEGREES` of
    freedom, while the mean square between the units of several images, which show the likeness, has more."""
    effects = 1 + (sizes - 1) * LIKENESS
    several = effects[sizes > 1]
    return len(several) > 1 and _degrees(sizes * effects) < LEAST_DEGREES <= _degrees(several)


def uneven_effect(sizes: np.ndarray, sums: np.ndarray, squares: np.ndarray, least: float = LIKENESS) -> float:
    """The design effect of a mean of values if the units are `uneven`, from (G,) each, as in `correlation`; else 0.

    A variance of sums is then the square of what one unit happens to add. But all units show how alike the images of a
    unit are: Kish's effect at their intraclass correlation (Donner & Klar, Cluster Randomization Trials (2000), 5.2),
    or at `least` if that is higher."""
    return assumed_effect(sizes, max(least, correlation(sizes, sums, squares))) if uneven(sizes) else 0.0


def quantile(degrees: float = INFINITE, tests: int = 1) -> float:
    """How many standard errors an interval reaches: 1.96, by Student's t 2.262 at 9 degrees; more for `tests`."""
    below = (1 + LEVEL) / 2 + (1 - LEVEL) / 2 * (1 - 1 / tests)
    if np.isinf(degrees):
        return NormalDist().inv_cdf(below)
    from scipy.special import stdtrit  # imported here: predict starts without it

    return float(stdtrit(degrees, below))


def logit_interval(value: float, error: float, z: float) -> tuple[float, float]:
    """value -+ z errors on the scale of log(p / (1 - p)), so that it stays within 0..1; value in (0, 1)."""
    middle, spread = np.log(value / (1 - value)), z * error / (value * (1 - value))
    low, high = 1 / (1 + np.exp(-(middle + np.array([-spread, spread]))))
    return float(low), float(high)


class Part(NamedTuple):
    """One of the numbers of which a mean is taken: its estimate, the influence (S,) of each image, its weight, and for
    `mean_interval` which images (S,) count in it."""

    value: float
    low: float
    high: float
    influence: np.ndarray
    weight: float
    images: np.ndarray = np.zeros(0)


def mean_interval(value: float, parts: Iterable[Part], units: Units, shared: int = 1) -> tuple[float, float]:
    """The interval of a mean of numbers within 0..1 with weights of sum 1, such as balanced accuracy: Wilson's, with
    the n at which a proportion has the variance of the mean.

    The interval of each number tells its own n. Its variance is that of a proportion of n images at the number moved
    towards the mean as by z^2 more images (Agresti & Coull, Am. Stat. 52 (1998) 119, towards 1/2), so that a class
    without an error has one too. The variances add up with the correlation due to images, and patients, that several of
    the numbers count. Where no error shows it, images of a patient are as alike as `LIKENESS`, in whichever numbers,
    and an error counts in `shared` numbers. Nearly as in `share`, no interval reaches further up than without an error,
    or further down than if all were wrong. NaN where the mean does not vary.
    """
    alone, equal, joint = np.zeros(2), np.zeros(2), np.zeros((2, units.count))  # by the lower ends, and the upper ones
    single, apart, together = 0.0, 0.0, np.zeros(units.count)
    for part in parts:  # one at a time: the parts of a thousand classes do not fit into memory together
        both = part.low if part.value > 0 else part.high, part.high if part.value < 1 else part.low
        ends = np.clip(both, ROUNDING, 1 - ROUNDING)
        each = (part.value - ends) ** 2 / (ends * (1 - ends))  # z^2 / n
        moved, equal = (part.value + each * value) / (1 + each), equal + part.weight**2 * each
        reach, sums = part.weight * np.sqrt(each * moved * (1 - moved)), units.sums(part.influence)
        if (error := float(np.linalg.norm(sums))) > ROUNDING:
            joint += np.outer(reach / error, sums)
        else:
            alone += reach**2
        of_units = part.weight * units.sums(part.images * 1.0) / np.sum(part.images)
        single += (1 / LIKENESS - 1) * part.weight**2 / np.sum(part.images)
        apart, together = apart + float(of_units @ of_units), together + of_units
    alike = shared * ((single + float(together @ together)) / (single + apart) if units.clustered else 1.0)
    flawless = wilson(1.0, 1 / (alike * equal[0]), 1.0)[0]
    most, variance = value * (1 - value), (joint**2).sum(axis=1) + alike * alone
    if not variance.min() > ROUNDING**2 < most:
        return (flawless, 1.0) if value > 1 - ROUNDING else (0.0, 1 - flawless) if value < ROUNDING else NONE
    low, high = (wilson(value, n, 1.0) for n in most / variance)
    return min(low[0], flawless), max(high[1], 1 - flawless)


def mean_gap_interval(parts: Iterable[Part], units: Units) -> tuple[float, float]:
    """The interval of a weighted mean of differences, from their own intervals.

    Zou & Donner, Stat. Med. 27 (2008) 1693: the distances from each value to its bounds add up like standard errors,
    here with the correlation due to images, and patients, that several of the differences count.
    """
    value, alone, joint = 0.0, np.zeros(2), np.zeros((2, units.count))  # of the lower arms, and the upper ones
    for part in parts:
        sums, value = units.sums(part.influence), value + part.weight * part.value
        arms = part.weight * np.array([part.value - part.low, part.high - part.value])
        if (error := float(np.linalg.norm(sums))) > ROUNDING:
            joint += np.outer(arms / error, sums)
        else:
            alone += arms**2
    down, up = np.sqrt(alone + (joint**2).sum(axis=1))
    low, high = np.clip([value - down, value + up], -1, 1)
    return float(low), float(high)


def share_ratio(top: np.ndarray, bottom: np.ndarray, hits: np.ndarray, units: Units) -> tuple[float, float, float]:
    """How much commoner a hit is among some images than among others, with its interval: value, low and high, 0..inf.

    MOVER-R: Donner & Zou, Stat. Methods Med. Res. 21 (2012) 347, here with the correlation due to patients who have
    images among both. NaN without a hit among either; the interval is NaN where one of the proportions has none.
    All are (S,) bool; no image is in both `top` and `bottom`.
    """
    a, b = share(hits, top, units), share(hits, bottom, units)
    if not a.value + b.value > 0:
        return float("nan"), *NONE
    if b.value == 0:  # its reverse is 0, and has an interval
        _, low, high = share_ratio(bottom, top, hits, units)
        if np.isnan(high):
            return float("inf"), *NONE
        return float("inf"), (1 / high if high > 0 else float("inf")), (1 / low if low > 0 else float("inf"))
    alike = sum_correlation(np.where(top, hits - a.value, 0), np.where(bottom, hits - b.value, 0), units)
    if not np.isfinite([a.low, a.high, b.low, b.high]).all():
        return a.value / b.value, *NONE
    bounds = list[float]()  # the ratio R at which a - R b lies as far from 0 as its own interval reaches
    for upper in (False, True):
        arm, other = (a.high - a.value, b.value - b.low) if upper else (a.value - a.low, b.high - b.value)
        middle = a.value * b.value - alike * arm * other
        square, rest = b.value**2 - other**2, a.value**2 - arm**2
        root = float(np.sqrt(max(0.0, middle**2 - square * rest)))
        if upper:
            bounds.append((middle + root) / square if square > 0 else float("inf"))
        else:
            bounds.append(max(0.0, rest / (middle + root)) if middle + root > 0 else 0.0)
    return a.value / b.value, bounds[0], bounds[1]


Counted = tuple[np.ndarray, np.ndarray]  # hits, and the images that are counted, (S,) bool each


def share_gap(first: Counted, second: Counted, gain: float, loss: np.ndarray, units: Units) -> np.ndarray:
    """gain x the first share - loss (T,) x the second, and its interval: (3, T), value, low, high. From the intervals
    of both (MOVER: Zou & Donner, Stat. Med. 27 (2008) 1693, with the correlation due to images, and patients, that both
    count)."""
    a, b = share(*first, units), share(*second, units)
    x, y = (np.where(counted, hits - of.value, 0) for (hits, counted), of in ((first, a), (second, b)))
    alike, value = sum_correlation(x, y, units), gain * a.value - loss * b.value
    arms = (a.value - a.low, b.high - b.value), (a.high - a.value, b.value - b.low)
    squares = [(gain * x) ** 2 + (loss * y) ** 2 - 2 * alike * gain * x * loss * y for x, y in arms]
    down, up = (np.sqrt(np.maximum(0.0, square)) for square in squares)
    return np.stack([value, value - down, value + up])


def sum_correlation(first: np.ndarray, second: np.ndarray, units: Units) -> float:
    """Correlation of the sums of values (S,) around 0 over each unit; 0 where one does not vary."""
    x, y = units.sums(first), units.sums(second)
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size > 0 else 0.0


class Spread(NamedTuple):
    """Variance of a number, and the degrees of freedom of that variance (infinite: the normal quantile)."""

    variance: float
    degrees: float


def spread(influence: np.ndarray, units: Units) -> Spread:
    """Variance of any number by the influence (S,) of each image; the infinitesimal jackknife by unit (Efron, The
    Jackknife, the Bootstrap and Other Resampling Plans (1982), chapter 6). Of `uneven` units, that of independent
    images times `uneven_effect`."""
    g, n = units.count, len(influence)
    if g < 2:
        return Spread(*NONE)
    sums, squares = units.sums(influence), units.sums(influence**2)
    variance = float(g / (g - 1) * (sums**2).sum())
    if units.uneven:
        variance = n / (n - 1) * float(squares.sum()) * uneven_effect(units.sums(np.ones(n)), sums, squares)
    return Spread(variance, units.degrees(influence) if units.clustered else INFINITE)


def influence_spread(influence: np.ndarray, units: Units) -> Spread:
    """Variance of any number by the influence (S,) of each image, as in `spread`, with the degrees of freedom of
    `kurtosis_degrees`; with patients at most those of `spread`, and of `uneven` units these."""
    by_unit = spread(influence, units)
    if units.uneven or not by_unit.variance > 0:
        return by_unit
    return Spread(by_unit.variance, min(by_unit.degrees, kurtosis_degrees(units.sums(influence))))


def kurtosis_degrees(sums: np.ndarray) -> float:
    """Degrees of freedom of the variance of a sum by what each unit adds to it, (G,), around 0: Satterthwaite's, 2 /
    (relative variance of the variance), by the kurtosis. They are few where a few units decide the number."""
    squares = sums**2
    excess = float(ratio((squares**2).sum(), squares.sum() ** 2)) - 1 / len(sums)
    return max(1.0, 2 / excess) if excess > 0 else INFINITE


def jackknife_spread(moved: np.ndarray) -> Spread:
    """Variance of a number by its values (G,) without each of G units (Efron 1982, chapter 3), as
    `influence_spread`."""
    count = len(moved)
    if count < 2:
        return Spread(*NONE)
    pull = np.where(np.isclose(moved, moved.mean(), 1e-12, 0), 0.0, moved.mean() - moved)  # without rounding errors
    between = influence_spread(pull * (count - 1) / count, Units(np.arange(count)))
    return Spread(between.variance, min(between.degrees, count - 1))


def jackknife_interval(value: float, moved: np.ndarray, skewed: bool, tests: int = 1) -> tuple[float, float]:
    """The interval of a number by its values (G,) without each of G units, as `jackknife_spread`, with Student's t.

    Of a mean error, which a few units with large errors may decide, that interval ends too low: with `skewed`, Hall's
    transformation, J. R. Stat. Soc. B 54 (1992) 221, removes the skewness of what the units add.
    """
    between = jackknife_spread(moved)
    if not (np.isfinite(value) and between.variance > 0):
        return NONE
    pull = moved.mean() - moved
    skewness = float((pull**3).sum() / (pull**2).sum() ** 1.5) if skewed else 0.0
    reach = quantile(between.degrees, tests) * np.array([1.0, -1.0])
    if abs(skewness) > 1e-6:
        reach = 3 / skewness * (np.cbrt(1 + skewness * (reach - skewness / 6)) - 1)
    low, high = value - reach * between.variance**0.5
    return float(low), float(high)


def log_interval(value: float, between: Spread, most: float = np.inf) -> tuple[float, float]:
    """The interval of a number above 0, such as a mean loss, on the scale of its logarithm. It ends at `most`, the
    largest possible value, at the latest."""
    if not (value > 0 and between.variance > 0):
        return NONE
    reach = quantile(between.degrees) * between.variance**0.5 / value
    return value * float(np.exp(-reach)), min(most, value * float(np.exp(reach)))


def ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """top / bottom, NaN where bottom is not above 0."""
    top, bottom = np.broadcast_arrays(top, bottom)
    return np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)
