"""What each kind of label gives, as a subclass of `Prepared`, and what is then the same for all of them: `values`
of an epoch, the numbers `without` some patients, `evaluate` with intervals, and `compare` of two models.

Letters: S images, G units, N sums.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.text import counted, counted_doing
from vitmed.metrics.areas import Area
from vitmed.metrics.estimates import FEW_GROUPS, FEW_IMAGES, FEWEST, Estimate, Numbers, estimate
from vitmed.metrics.intervals import LEVEL, Share, Units, jackknife_spread
from vitmed.metrics.metric_table import PER_CLASS, Metric
from vitmed.metrics.paired_comparison import ClassDifference, ComparisonTest, PairedComparison, gap_estimate, tested
from vitmed.metrics.predictions import known_labels

AreaGap = tuple[float | np.ndarray, ComparisonTest]  # how far the interval of a difference reaches, and the test
Gap = AreaGap | tuple[Share, ComparisonTest]  # or the difference of proportions, or of means of them
FEW_POSITIVE = 10  # fewer images of a class hardly show how common it is
BY_PREVALENCE = "PPV, F1, MCC, kappa and average precision"  # numbers that depend on how common a class is


def check_finite(values: np.ndarray, what: str = "score that is not a finite number") -> None:
    """Raise DataError where a value, (S, K), is no finite number."""
    broken = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(broken):
        problem = f"{len(broken):,} of {len(values):,} rows have a {what}, the first is row {broken[0] + 1}"
        raise DataError(problem, "predict these images again, or leave them out")


def below_chance(numbers: Numbers, noun: str = "classes") -> list[str]:
    """A note if the model ranks clearly worse than chance, which a wrong table explains better than a bad model."""
    area = numbers.overall["auroc"]
    if area.value is None or area.low is None or area.high is None or area.high >= 0.5:
        return []
    what = "the two classes" if numbers.positive_class is not None else f"the {noun}"
    return [
        f"The AUROC is {area.value:.3f} ({area.low:.3f} to {area.high:.3f}), clearly below 0.5: the labels, or the "
        f"columns of {what}, may be swapped."
    ]


class Prepared:
    """The labelled predictions of a model, with what their numbers, intervals and comparisons need.

    A kind of label says how each of its `metrics` is computed: by `summands` and `of_sums`, or in `overall_areas`; and
    `overall`, with its interval.
    """

    metrics: ClassVar[dict[str, Metric]]
    tested: ClassVar[tuple[str, ...]]  # numbers with a test of two models; the first decides which is better
    unbounded: ClassVar[tuple[str, ...]] = ()  # numbers whose difference may lie beyond -1..1

    def __init__(self, predictions: Any):
        self.predictions, self.labels = predictions, known_labels(predictions)
        self.units = Units(predictions.units)
        self.patients = None if predictions.groups is None else self.units.count
        self.unit = "image" if self.patients is None else "patient"

    @property
    def summands(self) -> np.ndarray:
        """(S, N) float64: of each image what `of_sums` takes the sums of."""
        return np.empty((len(self.labels), 0))

    def of_sums(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        """Numbers by name, (...) each, from sums (..., N) over images."""
        return {}

    @cached_property
    def overall_areas(self) -> dict[str, Area]:
        """The numbers that are no functions of sums."""
        return {}

    def summed(self, units: Units) -> np.ndarray:
        """(G, N) the sums over the images of each unit."""
        return units.sums(self.summands)

    @cached_property
    def whole(self) -> np.ndarray:
        """(N,) the sums over all images."""
        return self.summed(Units(np.zeros(len(self.labels), np.int64))).sum(axis=0)

    @cached_property
    def point(self) -> dict[str, float]:
        """Every number without an interval; NaN: undefined."""
        numbers = {name: float(number) for name, number in self.of_sums(self.whole).items()}
        return numbers | {name: area.value for name, area in self.overall_areas.items()}

    def without(self, units: Units) -> dict[str, np.ndarray]:
        """Every number without each unit in turn, (G,); of very many units without each of at least 1,000 groups."""
        blocks = units.blocks(max(1000, 2**20 // len(self.predictions.classes) ** 2))
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers = self.of_sums(self.whole - self.summed(blocks))
        areas = self.overall_areas.items()
        return numbers | {name: area.value - blocks.sums(self.leveraged(area)) for name, area in areas}

    def leveraged(self, area: Area) -> np.ndarray:
        """(S,) the influence of each image on one of the `overall_areas`, as leaving out its unit shows it."""
        return area.influence

    def check(self) -> None:
        """Raise DataError for a score that is no finite number."""
        check_finite(self.predictions.logits)

    @cached_property
    def overall(self) -> dict[str, Estimate]:
        """Every number with its interval, in the order of `metrics`."""
        raise NotImplementedError

    def details(self) -> dict[str, Any]:
        """The `sample` behind the accuracy, or what takes its place; and fields that not every kind of label has."""
        raise NotImplementedError

    def parts(self, name: str, entry: Estimate) -> list[str]:
        """The numbers of each class or finding, such as "auroc of ill", whose mean an overall number is."""
        return []

    def why(self, name: str, entry: Estimate, numbers: Numbers) -> str:
        """Why a number has no value, or has one without an interval; "" where nothing is said of it."""
        raise NotImplementedError

    def notes(self, numbers: Numbers) -> list[str]:
        """What a reader must know about the numbers."""
        raise NotImplementedError

    def few_notes(self, numbers: Numbers, holders: Mapping[str, int], noun: str = "class") -> list[str]:
        """Say that patients, or images, are few: in all, and of each class or other `noun`, which `holders` have."""
        units, groups, unit = self.units.count, self.predictions.groups, self.unit
        if units < 2:
            return [f"There is no interval: it needs at least 2 {unit}s and there is {units or 'none'}."]
        notes, enough = list[str](), FEW_IMAGES if groups is None else FEW_GROUPS
        least = FEWEST if units < enough else enough  # another note says that there are few of all
        if few := {c: count for c, count in holders.items() if 0 < count < least}:
            rarest = min(few, key=lambda c: (few[c], numbers.per_class[c].n))
            n, more = numbers.per_class[rarest].n, len(few) - 1
            count = f"{noun.capitalize()} '{rarest}' has only {counted(few[rarest], unit)}"
            count += f" ({counted(n, 'image')})" if n > few[rarest] else ""
            also = f" {counted_doing(more, f'other {noun}', 'also has', 'also have')} few {unit}s." if more else ""
            rest = f"the numbers that depend on this {noun} are uncertain, as their intervals show."
            if few[rarest] < FEWEST:
                rest = "too few to say how well the model finds it."
            if n < FEW_POSITIVE:
                rest += f" Intervals of {BY_PREVALENCE} hold only where the {noun} is as common as in these images."
            notes.append(f"{count}: {rest}{also}")
        if units < enough:
            notes.append(f"There are only {units} {unit}s: the intervals are rough.")
        if unknown := sum(not name for name in groups or ()):
            lack = "has no patient; it" if unknown == 1 else "have no patient; each"
            notes.append(f"{counted(unknown, 'image')} {lack} counts as a patient of its own.")
        return notes

    def gaps(self, other: Any) -> dict[str, Gap]:
        """How each number of two models differs. Of `of_sums`, by default: the jackknife, leaving out each patient in
        turn, with Student's t; NaN where a number is undefined for either model, or without one of the patients."""
        mine, yours = (model.without(self.units) for model in (self, other))
        spreads = {name: jackknife_spread(mine[name] - yours[name]) for name in mine}
        return {name: tested(self.point[name] - other.point[name], of, "jackknife") for name, of in spreads.items()}

    def class_gaps(self, other: Any) -> dict[str, dict[str, ClassDifference]]:
        """How the areas of each class or finding of two models differ: metric -> class -> difference."""
        return {}

    @classmethod
    def values(cls, predictions: Any) -> dict[str, float]:
        """Every number without an interval, for every epoch; NaN: undefined. Raises DataError without labels."""
        point = cls(predictions).point
        return {name: point[name] for name in cls.metrics}

    @classmethod
    def evaluate(cls, predictions: Any) -> Numbers:
        """Every number with its interval; the units are patients where they are known. Raises DataError: no labels, or
        a score that is no finite number."""
        return cls(predictions).numbers

    @cached_property
    def numbers(self) -> Numbers:
        """What `evaluate` returns."""
        self.check()
        numbers = Numbers(
            n=len(self.predictions),
            n_groups=self.patients,
            resampling=f"by {self.unit}",
            level=LEVEL,
            classes=list(self.predictions.classes),
            overall=self.overall,
            **{"positive_class": None, "per_class": {}, "confusion_matrix": []} | self.details(),
        )
        each = {f"{kind} of {c}": rates[kind] for c, rates in numbers.per_class.items() for kind in PER_CLASS}
        undefined, no_interval = dict[str, str](), dict[str, str]()
        for name, entry in (each | numbers.overall).items():
            if entry.value is None or entry.low is None:
                whys = undefined if entry.value is None else no_interval
                parts = (whys[part] for part in self.parts(name, entry) if part in whys) if name not in each else ()
                if why := next(iter(parts), "") or self.why(name, entry, numbers):
                    whys[name] = why
        reasons = {"undefined": undefined, "no_interval": no_interval, "notes": self.notes(numbers)}
        return numbers.model_copy(update=reasons)

    @classmethod
    def compare(cls, predictions: Any, other: Any) -> PairedComparison:
        """The numbers of the other model, and the differences, first minus other, on the same images.

        The interval of a difference is paired, so narrower than the intervals of the two numbers suggest; its `method`
        says how it is computed. Predictions that are all the same differ by exactly 0. Raises DataError: not the same
        images, labels or classes in the same order; or no labels."""
        if predictions.paths != other.paths or predictions.classes != other.classes:
            raise DataError("the two predictions are not of the same images and classes", "predict the same images")
        first, second = cls(predictions), cls(other)
        if not np.array_equal(first.labels, second.labels):
            raise DataError("the two predictions have different labels for the same images", "predict the same images")
        first.check()
        second.check()
        ours, theirs, same = first.overall, second.overall, predictions.same_as(other)
        gaps, difference = first.gaps(second), dict[str, Estimate]()
        for name in (name for name in cls.metrics if name in ours and name in theirs):
            mine, yours = ours[name].value, theirs[name].value
            value = np.nan if mine is None or yours is None else mine - yours
            gap, test = gaps[name]
            if isinstance(gap, Share):
                low, high = (0.0, 0.0) if same else (gap.low, gap.high)
                difference[name] = estimate(gap.value, low, high, gap.method)
            else:
                limit = np.inf if name in cls.unbounded else 1.0
                difference[name] = gap_estimate(value, gap, test, limit, same)
        tests = {name: gaps[name][1] for name in cls.tested}
        return PairedComparison(overall=theirs, difference=difference, tests=tests)
