"""Two models on the same images: the differences of their numbers, and the tests of no difference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.errors import DataError
from vitmed.metrics.bootstrap import percentile_interval, widened_level
from vitmed.metrics.estimates import Estimate, estimate
from vitmed.metrics.evaluation import AREAS, PreparedPredictions, bootstrap
from vitmed.metrics.intervals import NONE, Spread, Units, area_spread, class_areas, quantile, spread
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.scoring import known_labels


class ComparisonTest(Frozen):
    """A test of no difference; statistic and p are None where it is undefined."""

    only_first: int | None = None  # of the accuracy: images that only this model gets right
    only_second: int | None = None
    statistic: float | None
    p: float | None
    method: str
    p_holm: float | None = None  # p adjusted for all pairs that are compared


class ComparisonTests(Frozen):
    """The tests of two models: see `area_test` and `accuracy_test`."""

    auroc: ComparisonTest
    accuracy: ComparisonTest


class PairedComparison(Frozen):
    """Two models on the same images; numbers by the names in `METRICS`."""

    overall: dict[str, Estimate]  # of the other model
    difference: dict[str, Estimate]  # the first minus the other
    tests: ComparisonTests


class ClassDifference(Estimate):
    """The difference in AUROC of a class, first minus other, with its p; `p_holm` as in `ComparisonTest`."""

    p: float | None
    p_holm: float | None = None


class ComparedModel(Frozen):
    """One of the models that are compared; a baseline belongs to the model `baseline_of`."""

    baseline_of: str | None
    overall: dict[str, Estimate]


class ComparedPair(Frozen):
    """Two of the models: the differences, first minus second, and which is better, in a sentence."""

    first: str
    second: str
    difference: dict[str, Estimate]
    tests: ComparisonTests
    classes: dict[str, ClassDifference] | None  # None with two classes, and with very many
    verdict: str = ""


class ComparisonResults(Frozen):
    """The content of compare.json."""

    images: int
    patients: int | None  # None where they are unknown
    resampling: str  # "by image" or "by patient"
    level: float
    resamples: int
    classes: list[str]
    positive_class: str | None
    models: dict[str, ComparedModel]
    pairs: list[ComparedPair]
    notes: list[str]
    verdict: str  # on the best model and the next


def compare_predictions(
    predictions: Predictions, other: Predictions, resamples: int = 2000, seed: int = 0
) -> PairedComparison:
    """The numbers of the other model, and the differences, first minus other, on the same images.

    The interval of a difference is paired, so narrower than the intervals of the two numbers suggest. For AUROC and
    average precision it comes from the difference of the influence of each image (DeLong's and Obuchowski's paired
    variance), for the rest from resamples in which both models are evaluated.

    Raises:
        DataError: not the same images, labels or classes in the same order; or no labels.
    """
    labels = known_labels(predictions)
    if predictions.paths != other.paths or predictions.classes != other.classes:
        raise DataError("the two predictions are not of the same images and classes", "predict the same images")
    if not np.array_equal(labels, known_labels(other)):
        raise DataError("the two predictions have different labels for the same images", "predict the same images")
    first, second = PreparedPredictions(predictions), PreparedPredictions(other)
    second.units = first.units
    draws = bootstrap([first, second], resamples, seed)
    own, theirs = (evaluation.estimates(drawn)[0] for evaluation, drawn in zip((first, second), draws, strict=True))
    widen = widened_level(min(first.degrees, second.degrees))
    difference: dict[str, Estimate] = {}
    for name in own:
        one, two = own[name].value, theirs[name].value
        if one is None or two is None:
            difference[name] = estimate(float("nan"), *NONE, "bootstrap")
        elif name in AREAS:
            found, method = area_gap(first, second, name)
            low, high = _around(one - two, found)  # with few images it may reach beyond -1..1
            difference[name] = estimate(one - two, max(-1.0, low), min(1.0, high), method)
        else:
            gap = draws[0][name] - draws[1][name]
            known = len(gap) > 0 and np.isfinite(gap).mean() >= 0.5
            interval = percentile_interval(gap, widen) if known else NONE
            difference[name] = estimate(one - two, *interval, "bootstrap")
    tests = ComparisonTests(auroc=area_test(first, second), accuracy=accuracy_test(first, second))
    return PairedComparison(overall=theirs, difference=difference, tests=tests)


def area_gap(first: PreparedPredictions, second: PreparedPredictions, name: str) -> tuple[Spread, str]:
    """Variance of the difference of an overall area, and the method that gives it."""
    influence = first.overall_areas[name].influence - second.overall_areas[name].influence
    positive = first.scorer.positive
    if name == "auroc" and positive is not None:
        found = area_spread(influence, first.labels == positive, first.units)
        return found, "obuchowski" if first.units.clustered else "delong"
    return spread(influence, first.units), "influence"


def _around(value: float, found: Spread) -> tuple[float, float]:
    reach = quantile(found.degrees) * found.variance**0.5
    return value - reach, value + reach


def area_test(first: PreparedPredictions, second: PreparedPredictions) -> ComparisonTest:
    """Whether the AUROC differs: the difference over its standard error, and its two-sided p.

    DeLong's test, or Obuchowski's where patients have several images, with Student's t there. p is 1 for models that
    rank alike, None where either AUROC or its variance is undefined.
    """
    found, method = area_gap(first, second, "auroc")
    gap = first.overall_areas["auroc"].value - second.overall_areas["auroc"].value
    statistic, p = gap_test(gap, found)
    return ComparisonTest(statistic=statistic, p=p, method=method)


def gap_test(gap: float, found: Spread) -> tuple[float | None, float | None]:
    """A difference over its standard error, and the two-sided p that it is 0; None where that is undefined."""
    from scipy.special import stdtr  # imported here: predict starts without it

    if not np.isfinite(gap) or not np.isfinite(found.variance):
        return None, None
    if found.variance == 0:
        return (0.0, 1.0) if gap == 0 else (None, None)
    statistic = float(gap / found.variance**0.5)
    return statistic, float(2 * stdtr(min(found.degrees, 1e9), -abs(statistic)))


def accuracy_test(first: PreparedPredictions, second: PreparedPredictions) -> ComparisonTest:
    """Whether the accuracy differs, by the images that only one of the two gets right.

    Independent images: McNemar's test, Psychometrika 12 (1947) 153, exact by the binomial distribution. It is not
    valid where patients have several images; there it is that of Obuchowski, Stat. Med. 17 (1998) 1495, in the form
    of Yang, Sun & Hardin, Biom. J. 52 (2010) 638: ((G - 1) / G) (sum d)^2 / sum d^2, chi-squared with one degree of
    freedom, where d of a patient is how many more images the first gets right.
    """
    from scipy.special import bdtr, chdtrc  # imported here: predict starts without it

    right = [evaluation.scorer.predicted == evaluation.labels for evaluation in (first, second)]
    b, c = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    statistic: float | None = float(min(b, c))
    p: float | None = min(1.0, 2 * float(bdtr(min(b, c), b + c, 0.5))) if b + c else 1.0
    p, method = p if len(right[0]) else None, "mcnemar-exact"
    if first.units.clustered:
        d, g = first.units.sums(right[0].astype(float) - right[1]), first.units.count
        statistic, p, method = None, None if g < 2 else 1.0, "obuchowski-1998"
        if g >= 2 and (d**2).sum():
            statistic = float((g - 1) / g * d.sum() ** 2 / (d**2).sum())
            p = float(chdtrc(1, statistic))
    return ComparisonTest(only_first=b, only_second=c, statistic=statistic, p=p, method=method)


def compare_classes(predictions: Predictions, other: Predictions) -> dict[str, ClassDifference]:
    """The difference in AUROC of each class against the rest.

    Raises:
        DataError: no labels. The images must be the same, as for `compare_predictions`.
    """
    labels, units = known_labels(predictions), Units.of(predictions)
    found: dict[str, ClassDifference] = {}
    for c, name in enumerate(predictions.classes):
        positive = labels == c
        areas = [class_areas(p.probabilities[:, c], positive)[0] for p in (predictions, other)]
        gap = areas[0].plus(areas[1], -1)
        spread_of_gap = area_spread(gap.influence, positive, units) if np.isfinite(gap.value) else Spread(*NONE)
        method = "obuchowski" if units.clustered else "delong"
        interval = estimate(gap.value, *_around(gap.value, spread_of_gap), method)
        found[name] = ClassDifference(**dict(interval), p=gap_test(gap.value, spread_of_gap)[1])
    return found


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """p-values adjusted for how many there are; None stays None and is not counted.

    Holm, Scand. J. Stat. 6 (1979) 65: the smallest times their number, the next times one less, never falling.
    """
    known = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    highest = 0.0
    for rank, (p, i) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        adjusted[i] = highest
    return adjusted
