"""Two models on the same images: the differences of their numbers, and the tests of no difference. Of trainings that
differ by their seed only: how much a number varies between them, apart from its interval over patients."""

from collections.abc import Mapping, Sequence

import numpy as np

from vitmed.core.base_models import Frozen, Kind
from vitmed.core.text import identity, listed
from vitmed.metrics import intervals
from vitmed.metrics.areas import Area, area_spread
from vitmed.metrics.estimates import ClassNumbers, Estimate, difference, estimate, finite
from vitmed.metrics.intervals import INFINITE, NONE, Share, Spread, Units
from vitmed.metrics.metric_table import Metric

Reach = float | np.ndarray  # of the interval of a difference: how far to either side, or (2,) down and up
FEW = 10  # patients with an image that only one model gets right, below which they do not show a design effect


class ComparisonTest(Frozen):
    """A test of no difference; statistic and p are None where it is undefined."""

    only_first: int | None = None  # of the accuracy: images that only this model gets right
    only_second: int | None = None
    statistic: float | None
    p: float | None
    method: str
    p_holm: float | None = None  # p adjusted for all pairs of `compare`; None in a report


class PairedComparison(Frozen):
    """Two models on the same images; numbers by the names in `METRICS`, or in the table of their kind of label.

    The first of the `tests` decides which model is better; the second, where the first number is undefined or the same.
    """

    overall: dict[str, Estimate]  # of the other model
    difference: dict[str, Estimate]  # the first minus the other
    tests: dict[str, ComparisonTest]  # by number


class ClassDifference(Estimate):
    """The difference in a number of a class or finding, first minus other, with its p, as in `ComparisonTest`."""

    p: float | None
    p_holm: float | None = None


class ModelNumbers(Frozen):
    """The numbers of a model, over all classes or findings and of each."""

    overall: dict[str, Estimate]
    per_class: dict[str, ClassNumbers] = {}


class ComparedModel(ModelNumbers):
    """One of the models that are compared, with its own numbers.

    `run`, `created` and `weights_hash` come from its report, as in metrics.json, where they are known. `point` says
    what decides, "" for the likeliest class; `likeliest` are its numbers by the likeliest class, if a pair needs them.
    """

    run: str = ""
    created: str | None = None
    weights_hash: str | None = None
    point: str = ""
    likeliest: ModelNumbers | None = None

    @property
    def identity(self) -> str:
        """What distinguishes two models of the same name, and what decides, in a line; "" where nothing is known."""
        return "; ".join(filter(None, (identity(self.run, self.created, self.weights_hash), self.point)))


class ComparedPair(Frozen):
    """Two of the models: the differences, first minus second, and which is better, in a sentence. `likeliest`: whether
    the likeliest class decides, since their operating points differ."""

    first: str
    second: str
    likeliest: bool = False
    difference: dict[str, Estimate]
    tests: dict[str, ComparisonTest]
    classes: dict[str, ClassDifference] | None  # AUROC; None with two classes, and with very many
    average_precision: dict[str, ClassDifference] | None = None  # of findings
    sensitivity: dict[str, ClassDifference] | None = None  # of the positive class of two, and specificity
    specificity: dict[str, ClassDifference] | None = None
    verdict: str = ""


class SeedNumber(Frozen):
    """A number over several trainings.

    `mean`, `sd` (n - 1 in the denominator), `smallest` and `largest` are over seeds. `low` and `high` are the mean ends
    of the intervals of the single runs, which say how the number of one run varies with other patients; None where a
    run has no interval.
    """

    mean: float
    sd: float
    smallest: float
    largest: float
    low: float | None
    high: float | None


class SeedSpread(Frozen):
    """Runs that differ by their seed only: model -> seed, and the numbers that are defined for all of them."""

    seeds: dict[str, int]
    numbers: dict[str, SeedNumber]
    text: str


class ComparisonResults(Frozen):
    """The content of compare.json."""

    kind: Kind = "classes"  # of labels
    images: int
    patients: int | None  # None where they are unknown
    resampling: str  # "by image", "by patient" or by another group, such as "by original"
    level: float
    classes: list[str]
    positive_class: str | None
    models: dict[str, ComparedModel]
    pairs: list[ComparedPair]
    notes: list[str]
    verdict: str  # on the best model and the next; where all differ by the seed only, on the spread over seeds
    seeds: list[SeedSpread] = []  # of each group of runs that differ by the seed only


def area_gap(
    first: Area, second: Area, ends: tuple[Estimate, Estimate], positive: np.ndarray | None, units: Units
) -> tuple[Reach, ComparisonTest]:
    """How far the interval of the difference of two areas, with their own in `ends`, reaches, and the test: `tested`.

    The variance comes from the difference of the influence of each image. For an AUROC it is DeLong's, or, where
    patients have several images, Obuchowski's with Student's t; for other areas the infinitesimal jackknife's, always
    with Student's t. For models that rank alike p is 1; where either area or the variance is undefined it is None.
    `positive` are (S,) bool, of the AUROC of one class against the rest; None for other areas, of leveraged influence.
    """
    gap, alike = first.plus(second, -1), intervals.sum_correlation(first.influence, second.influence, units)
    spread, method = intervals.influence_spread(gap.influence, units), "influence"
    if positive is not None:
        spread, method = area_spread(gap.influence, positive, units), "obuchowski" if units.clustered else "delong"
    spread = spread._replace(variance=0.0) if spread.variance < intervals.ROUNDING**2 else spread  # 0 but for rounding
    return tested(gap.value, spread, method, difference(ends[0], ends[1], alike))


def tested(gap: float, spread: Spread, method: str, apart: Estimate | None = None) -> tuple[Reach, ComparisonTest]:
    """How far the interval of a difference reaches, and the test of no difference. A difference without any variance
    has neither, because no image shows how it varies, unless it is 0: the models are equal.
    With few images, or numbers near 1, the variance is often far too small; the intervals of both numbers are not. So
    no arm is shorter than that of `apart`, their `difference`; but the arm towards 0 is the test's where that rejects
    no difference, since it rejects all beyond 0 with it. The interval excludes 0 exactly where p is below 0.05."""
    statistic = p = None
    if np.isfinite(gap) and spread.variance > 0:
        statistic = float(gap / spread.variance**0.5)
        p = two_sided_p(statistic, spread.degrees)
    elif gap == 0 and spread.variance == 0:
        statistic, p = 0.0, 1.0
    reach = float("nan") if statistic is None else intervals.quantile(spread.degrees) * spread.variance**0.5
    test = ComparisonTest(statistic=statistic, p=p, method=method)
    if apart is None or apart.low is None or apart.high is None or not reach > 0:
        return reach, test
    return np.where([gap > reach, -gap > reach], reach, np.maximum(reach, [gap - apart.low, apart.high - gap])), test


def two_sided_p(statistic: float, degrees: float) -> float:
    """By Student's t, or the normal distribution at infinite degrees of freedom."""
    from scipy.special import stdtr  # imported here: predict starts without it

    return float(2 * stdtr(min(degrees, 1e9), -abs(statistic)))


def share_difference(
    first: np.ndarray, second: np.ndarray, counted: np.ndarray, units: Units
) -> tuple[Share, ComparisonTest]:
    """Difference of two paired proportions: how often each of two models is right; its interval and test.

    Independent images: the score interval of Tango, Stat. Med. 17 (1998) 891, which inverts McNemar's test,
    Psychometrika 12 (1947) 153, without a continuity correction. Patients with several images: both with the effective
    number of images and Student's t, as in `share` (a design effect in McNemar's test: Eliasziw & Donner, Stat. Med. 10
    (1991) 1981). So the interval excludes 0 exactly where p is below 0.05. Where fewer than `FEW` patients have an
    image that only one model gets right, the design effect is at least that of the errors of either model.

    `first` and `second` are (S,) bool, where each model is right; `counted` the images that matter.
    """
    d = np.where(counted, first.astype(np.float64) - second, 0.0)
    n, plus, minus = float(counted.sum()), float((d > 0).sum()), float((d < 0).sum())
    value, effect, degrees = (plus - minus) / n if n else float("nan"), 1.0, INFINITE
    sizes, sums, squares = units.moments(d, counted)
    method = "mcnemar-cluster" if units.clustered else "mcnemar"
    test = ComparisonTest(only_first=int(plus), only_second=int(minus), statistic=None, p=None, method=method)
    if len(sizes) < 2:
        return Share(value, *NONE, "tango", int(n), len(sizes)), test
    if units.clustered:
        alone = (plus + minus) / n - value**2
        variance = float(((sums - value * sizes) ** 2 / (1 - sizes / n)).sum()) / n
        effects = [variance / alone if alone > 0 else float("nan")]
        if alone > 0 and (shown := intervals.uneven_effect(sizes, sums, squares, least=0.0)):  # as of one proportion
            assumed = intervals.assumed_effect(sizes, intervals.LIKENESS)
            effects = [np.average([shown, assumed], weights=[plus + minus, assumed - 1])]
        elif (squares > 0).sum() < FEW:
            effects += [intervals.share(right, counted, units).design_effect for right in (first, second)]
        finite = [e for e in effects if np.isfinite(e)]
        effect = max(1.0, *finite) if finite else n / len(sizes)  # without any error, each patient counts once
        if effect > 1:  # else the images count as independent
            degrees = intervals.satterthwaite(sizes, intervals.correlation(sizes, sums, squares))
    plus, minus, independent = plus / effect, minus / effect, n / effect
    statistic = tango_score(0.0, plus, minus, independent)
    p = two_sided_p(statistic, degrees)
    low, high = tango(plus, minus, independent, intervals.quantile(degrees))
    method = "tango-cluster" if units.clustered else "tango"
    return Share(value, low, high, method, int(n), len(sizes)), test.model_copy(update={"statistic": statistic, "p": p})


def tango_score(gap: float, plus: float, minus: float, n: float) -> float:
    """By how many standard errors (plus - minus) / n lies above `gap`, with the variance that `gap` implies. Tango
    (1998): plus and minus of n pairs have only the first, or only the second, right; -1 < gap < 1."""
    b, c = -plus - minus + (2 * n - plus + minus) * gap, -minus * gap * (1 - gap)
    only_second = (np.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
    variance = n * (2 * only_second + gap * (1 - gap))
    return float((plus - minus - n * gap) / np.sqrt(variance)) if variance > 0 else 0.0


def tango(plus: float, minus: float, n: float, z: float) -> tuple[float, float]:
    """The gaps at which `tango_score` lies within z standard errors, -1..1."""
    from scipy.optimize import brentq  # imported here: predict starts without it

    def end(side: int) -> float:
        """The score falls as the gap grows; at the estimate it is 0."""
        value, far = (plus - minus) / n, side * (1 - 1e-12)
        if -side * tango_score(far, plus, minus, n) < z:
            return float(side)
        return float(brentq(lambda gap: tango_score(gap, plus, minus, n) + side * z, value, far, xtol=1e-14))

    return end(-1), end(1)


def gap_estimate(gap: float, reach: Reach, test: ComparisonTest, limit: float = 1.0, same: bool = False) -> Estimate:
    """A difference with its interval, within -limit..limit, which few images may exceed; none where it is unknown, or
    no image shows how much the difference varies, unless both are the `same`."""
    low, high = np.clip(gap + np.array([-1, 1]) * reach, -limit, limit) if same or np.all(reach > 0) else NONE
    return estimate(gap, float(low), float(high), f"mover-{test.method}" if np.ndim(reach) else test.method)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """p-values adjusted for how many there are; None stays None and is not counted. Holm, Scand. J. Stat. 6 (1979) 65:
    the smallest times their number, the next times one less, never falling."""
    ranked = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    times = [min(1.0, p * (len(ranked) - rank)) for rank, (p, _) in enumerate(ranked)]
    adjusted = {i: p for (_, i), p in zip(ranked, np.maximum.accumulate(times).tolist(), strict=True)}
    return [adjusted.get(i) for i in range(len(ps))]


def seed_spread(
    seeds: Mapping[str, int],
    overall: Sequence[Mapping[str, Estimate]],
    unit: str,
    metrics: Mapping[str, Metric],
    first: Sequence[str],
) -> SeedSpread:
    """The spread of every number over seeds (model -> seed, at least two), from the numbers `overall` of each model.
    The text is about the first of the numbers `first` that is defined; `unit` is what the intervals count."""
    numbers = {}
    for name in overall[0]:
        estimates = [of_run[name] for of_run in overall if name in of_run]
        values, lows, highs = np.array([(e.value, e.low, e.high) for e in estimates], float).reshape(-1, 3).T.copy()
        if len(values) == len(overall) and np.isfinite(values).all():  # NaN for None
            numbers[name] = SeedNumber(
                mean=float(values.mean()),
                sd=float(values.std(ddof=1)),
                smallest=float(values.min()),
                largest=float(values.max()),
                low=finite(lows.mean()),
                high=finite(highs.mean()),
            )
    text = f"{listed(list(seeds))} differ by the training seed only ({listed([str(seed) for seed in seeds.values()])})"
    name = next((name for name in first if name in numbers), "")
    if not name:
        return SeedSpread(seeds=dict(seeds), numbers=numbers, text=f"{text}: no number is defined for all of them")
    number = numbers[name]
    text += f": {metrics[name].phrase} mean {number.mean:.3f}, SD over {len(seeds)} seeds {number.sd:.3f}"
    if number.low is not None and number.high is not None:
        text += f"; 95 % interval of one run over {unit}s [{number.low:.3f}, {number.high:.3f}] on average"
    return SeedSpread(seeds=dict(seeds), numbers=numbers, text=text)
