"""Two models on the same images: the differences of their numbers, and the tests of no difference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.errors import DataError
from vitmed.core.text import identity
from vitmed.metrics.bootstrap import percentile_interval, widened_level
from vitmed.metrics.estimates import Estimate, estimate
from vitmed.metrics.evaluation import AREAS, PreparedPredictions, bootstrap
from vitmed.metrics.intervals import NONE, Area, Units, area_spread, class_areas, quantile, spread
from vitmed.metrics.predictions import Predictions, known_labels


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
    """One of the models that are compared; a baseline belongs to the model `baseline_of`.

    `run`, `created` and `weights_hash` are those of its report, as in metrics.json, where they are known.
    """

    baseline_of: str | None
    run: str = ""
    created: str | None = None
    weights_hash: str | None = None
    overall: dict[str, Estimate]

    @property
    def identity(self) -> str:
        """What tells two models of the same name apart, in a line; "" where nothing is known."""
        return identity(self.run, self.created, self.weights_hash)


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
    average precision it comes from `area_gap`, for the rest from resamples in which both models are evaluated.

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
    own, theirs = (evaluation.estimates()[0] for evaluation in (first, second))
    positive = None if first.scorer.positive is None else labels == first.scorer.positive
    areas = {
        name: area_gap(
            first.overall_areas[name], second.overall_areas[name], positive if name == "auroc" else None, first.units
        )
        for name in AREAS
    }
    widen = widened_level(min(first.degrees, second.degrees))
    difference: dict[str, Estimate] = {}
    for name in own:
        one, two = own[name].value, theirs[name].value
        if one is None or two is None:
            difference[name] = estimate(float("nan"), *NONE, "bootstrap")
        elif name in AREAS:
            reach, test = areas[name]
            difference[name] = estimate(one - two, *_around(one - two, reach), test.method)
        else:
            gap = draws[0][name] - draws[1][name]
            known = len(gap) > 0 and np.isfinite(gap).mean() >= 0.5
            interval = percentile_interval(gap, widen) if known else NONE
            difference[name] = estimate(one - two, *interval, "bootstrap")
    accuracy = accuracy_test(predictions.predicted == labels, other.predicted == labels, first.units)
    tests = ComparisonTests(auroc=areas["auroc"][1], accuracy=accuracy)
    return PairedComparison(overall=theirs, difference=difference, tests=tests)


def area_gap(first: Area, second: Area, positive: np.ndarray | None, units: Units) -> tuple[float, ComparisonTest]:
    """How far the interval of the difference of two areas reaches to either side, and the test of no difference.

    The variance is that of the difference of the influence of each image: for an AUROC DeLong's, or Obuchowski's where
    patients have several images, with Student's t there. The statistic is the difference over its standard error,
    p is two-sided: 1 for models that rank alike, None where either area or the variance is undefined.

    Args:
        first, second: of the same images.
        positive: (S,) bool, of the AUROC of one class against the rest; None for other areas.
        units: of the images.
    """
    from scipy.special import stdtr  # imported here: predict starts without it

    gap, statistic, p = first.plus(second, -1), None, None
    if positive is None:
        found, method = spread(gap.influence, units), "influence"
    else:
        found, method = area_spread(gap.influence, positive, units), "obuchowski" if units.clustered else "delong"
    if np.isfinite(gap.value) and found.variance > 0:
        statistic = float(gap.value / found.variance**0.5)
        p = float(2 * stdtr(min(found.degrees, 1e9), -abs(statistic)))
    elif gap.value == 0 and found.variance == 0:
        statistic, p = 0.0, 1.0
    reach = quantile(found.degrees) * found.variance**0.5
    return reach, ComparisonTest(statistic=statistic, p=p, method=method)


def accuracy_test(first: np.ndarray, second: np.ndarray, units: Units) -> ComparisonTest:
    """Whether the accuracy differs, by the images that only one of two models gets right, (S,) bool each.

    Independent images: McNemar's test, Psychometrika 12 (1947) 153, exact by the binomial distribution. It is not
    valid where patients have several images; there it is that of Obuchowski, Stat. Med. 17 (1998) 1495, in the form
    of Yang, Sun & Hardin, Biom. J. 52 (2010) 638: ((G - 1) / G) (sum d)^2 / sum d^2, chi-squared with one degree of
    freedom, where d of a patient is how many more images the first gets right.
    """
    from scipy.special import bdtr, chdtrc  # imported here: predict starts without it

    b, c = int((first & ~second).sum()), int((second & ~first).sum())
    found: tuple[float | None, float | None] = (float(min(b, c)), 1.0 if len(first) else None)
    if units.clustered:
        d, g = units.sums(first.astype(float) - second), units.count
        found = None, 1.0 if g > 1 else None
        if g > 1 and d.any():
            statistic = float((g - 1) / g * d.sum() ** 2 / (d**2).sum())
            found = statistic, float(chdtrc(1, statistic))
    elif b + c:
        found = float(min(b, c)), min(1.0, 2 * float(bdtr(min(b, c), b + c, 0.5)))
    method = "obuchowski-1998" if units.clustered else "mcnemar-exact"
    return ComparisonTest(only_first=b, only_second=c, statistic=found[0], p=found[1], method=method)


def compare_classes(predictions: Predictions, other: Predictions) -> dict[str, ClassDifference]:
    """The difference in AUROC of each class against the rest.

    Raises:
        DataError: no labels. The images must be the same, as for `compare_predictions`.
    """
    labels, units = known_labels(predictions), Units.of(predictions)
    found: dict[str, ClassDifference] = {}
    for c, name in enumerate(predictions.classes):
        first, second = (class_areas(p.probabilities[:, c], labels == c)[0] for p in (predictions, other))
        reach, test = area_gap(first, second, labels == c, units)
        gap = first.value - second.value
        found[name] = ClassDifference(**dict(estimate(gap, *_around(gap, reach), test.method)), p=test.p)
    return found


def _around(gap: float, reach: float) -> tuple[float, float]:
    """The interval of a difference of areas, within -1..1, which few images may exceed; NaN where it is unknown."""
    low, high = np.clip([gap - reach, gap + reach], -1, 1)
    return float(low), float(high)


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
