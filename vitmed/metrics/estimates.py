"""Numbers with their intervals, as typed results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import SerializerFunctionWrapHandler, model_serializer

from vitmed.core.base_models import Frozen
from vitmed.core.errors import DataError
from vitmed.metrics.areas import Area, area_interval
from vitmed.metrics.intervals import LEVEL, NONE, Share, Units, quantile, spread
from vitmed.metrics.predictions import Predictions


class Estimate(Frozen):
    """A number and its interval; None where it is undefined, or has no interval.

    Attributes:
        method: of the interval, a key of `METHODS` in vitmed.metrics.methods.
        resamples: how many were drawn for it; None, and not in a file, for a method that draws none.
    """

    value: float | None
    low: float | None
    high: float | None
    method: str | None = None
    resamples: int | None = None

    @property
    def reversed(self) -> Estimate:
        """Of a difference, the one the other way round."""
        value, low, high = (None if number is None else 0.0 - number for number in (self.value, self.high, self.low))
        return self.model_copy(update={"value": value, "low": low, "high": high})

    @model_serializer(mode="wrap")
    def _without_no_resamples(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if name != "resamples" or value is not None}


class ClassNumbers(Frozen):
    """The numbers of one class against all others; `n` images are of it."""

    n: int
    sensitivity: Estimate
    specificity: Estimate
    ppv: Estimate
    npv: Estimate
    f1: Estimate
    auroc: Estimate
    average_precision: Estimate


class SampleSize(Frozen):
    """The sample behind a proportion; see `Share`. None where a number is unknown."""

    n: int
    units: int
    icc: float | None
    design_effect: float | None
    effective_n: float | None


class ClassSampleSizes(Frozen):
    """The sample sizes behind the numbers of one class."""

    sensitivity: SampleSize
    specificity: SampleSize


class ImagesPerPatient(Frozen):
    """The fewest, the median and the most images of a patient."""

    min: int
    median: float
    max: int


class Sample(Frozen):
    """What was evaluated: images, patients (None: unknown), and how many independent images they equal."""

    n_images: int
    n_patients: int | None
    images_per_patient: ImagesPerPatient | None
    accuracy: SampleSize
    classes: list[ClassSampleSizes]


class Numbers(Frozen):
    """Every number of a set of predictions, by `evaluate_predictions`."""

    n: int
    n_groups: int | None  # patients; None where they are unknown
    resampling: str  # "by patient" or "by image"
    resamples: int
    level: float
    classes: list[str]
    positive_class: str | None  # None unless there are two classes
    overall: dict[str, Estimate]  # by the names in `METRICS`
    per_class: dict[str, ClassNumbers]
    confusion_matrix: list[list[int]]  # K x K counts, rows are the truth
    sample: Sample
    undefined: dict[str, str] = {}  # number -> why it has no value
    no_interval: dict[str, str] = {}  # number -> why it has a value and no interval
    notes: list[str] = []


def decimals(number: Estimate) -> int:
    """How many decimals a number and its interval are written with: three, or up to five where three mislead.

    Three mislead where both ends of an interval look the same, or a number looks like 0 or 1 and is not.
    """
    value, low, high = number.value, number.low, number.high
    for digits in (3, 4):
        alike = low is not None and high is not None and low < high and f"{low:.{digits}f}" == f"{high:.{digits}f}"
        small = value is not None and 0 < value < 0.1**digits
        nearly_1 = value is not None and value < 1 and float(f"{value:.{digits}f}") == 1
        if not (alike or small or nearly_1):
            return digits
    return 5


def value_text(number: Estimate, sign: str = "") -> str:
    """`0.912 (0.881 to 0.934)`, the value alone if it has no interval, or `undefined`; with "+" the sign of each."""
    if number.value is None:
        return "undefined"
    form = f"{sign}z.{decimals(number)}f"
    interval = "" if number.low is None else f" ({number.low:{form}} to {number.high:{form}})"
    return f"{number.value:{form}}{interval}"


def estimate(value: float, low: float, high: float, method: str, resamples: int | None = None) -> Estimate:
    """A number and its interval; None where it is undefined, or has no interval.

    Args:
        value, low, high: NaN where unknown.
        method, resamples: as in `Estimate`.
    """
    if not np.isfinite([value, low, high]).all():
        low = high = np.nan
    return Estimate(value=finite(value), low=finite(low), high=finite(high), method=method, resamples=resamples)


def finite(value: float) -> float | None:
    """The number; None where it is undefined."""
    return float(value) if np.isfinite(value) else None


def difference(first: Estimate, second: Estimate) -> Estimate:
    """First minus second, of independent samples, with the interval from those of both.

    MOVER: Zou & Donner, Stat. Med. 27 (2008) 1693; of two proportions it is Newcombe's, Stat. Med. 17 (1998) 873.
    """
    a, b = (np.array([one.value, one.low, one.high], dtype=float) for one in (first, second))  # NaN for None
    value = a[0] - b[0]
    low, high = value - np.hypot(a[0] - a[1], b[2] - b[0]), value + np.hypot(a[2] - a[0], b[0] - b[1])
    return estimate(value, low, high, "mover")


def of_mean(values: np.ndarray, units: Units) -> Estimate:
    """The mean of values (S,), such as differences between two models on the same images, by Student's t."""
    value = float(values.mean()) if len(values) else float("nan")
    if units.count < 2:
        return estimate(value, *NONE, "t")
    influence = (values - value) / len(values)
    reach = quantile(units.degrees(influence)) * spread(influence, units).variance ** 0.5
    return estimate(value, value - reach, value + reach, "t")


def of_share(proportion: Share) -> Estimate:
    """The estimate of a proportion."""
    return estimate(proportion.value, proportion.low, proportion.high, proportion.method)


def of_f1(jaccard: Share) -> Estimate:
    """The estimate of F1, a function of the Jaccard index: hits among what is either true or predicted."""
    value, low, high = (2 * x / (1 + x) for x in (jaccard.value, jaccard.low, jaccard.high))
    return estimate(value, low, high, jaccard.method)


def of_auroc(area: Area, positive: np.ndarray, units: Units) -> Estimate:
    """The estimate of an AUROC; `positive` is (S,) bool."""
    return estimate(area.value, *area_interval(area, positive, units))


def sample_size(proportion: Share) -> SampleSize:
    """The sample behind a proportion."""
    more = {name: finite(getattr(proportion, name)) for name in ("icc", "design_effect", "effective_n")}
    return SampleSize(n=proportion.n, units=proportion.units, **more)


def check_finite(values: np.ndarray, what: str = "score that is not a finite number") -> None:
    """Raise DataError where a value, (S, K), is no finite number."""
    broken = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(broken):
        problem = f"{len(broken):,} of {len(values):,} rows have a {what}, the first is row {broken[0] + 1}"
        raise DataError(problem, "predict these images again, or leave them out")


def numbers_of(
    predictions: Predictions,
    overall: dict[str, Estimate],
    resamples: int,
    accuracy: SampleSize,
    shares: Sequence[Mapping[str, Share]] = (),
) -> Numbers:
    """The numbers of predictions of any kind, without classes and reasons.

    Args:
        accuracy: the sample behind the accuracy, or what takes its place; shares: of each class, of `class_shares`.
    """
    units, grouped, counts = Units.of(predictions), predictions.groups is not None, None
    if grouped and len(predictions):
        sizes = np.bincount(units.index)
        counts = ImagesPerPatient(min=int(sizes.min()), median=float(np.median(sizes)), max=int(sizes.max()))
    rates, patients = ("sensitivity", "specificity"), units.count if grouped else None
    return Numbers(
        n=len(predictions),
        n_groups=patients,
        resampling="by patient" if grouped else "by image",
        resamples=resamples,
        level=LEVEL,
        classes=list(predictions.classes),
        positive_class=None,
        overall=overall,
        per_class={},
        confusion_matrix=[],
        sample=Sample(
            n_images=len(predictions),
            n_patients=patients,
            images_per_patient=counts,
            accuracy=accuracy,
            classes=[ClassSampleSizes(**{name: sample_size(own[name]) for name in rates}) for own in shares],
        ),
    )
