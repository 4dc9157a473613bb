"""Numbers with their intervals, as typed results."""

from __future__ import annotations

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.metrics.intervals import Area, Share, Units, area_interval


class Estimate(Frozen):
    """A number and its interval; None where it is undefined, or has no interval.

    Methods: "wilson", "wilson-cluster", "delong", "obuchowski", "newcombe", "influence", "mover", "bootstrap",
    "sandwich", "t".
    """

    value: float | None
    low: float | None
    high: float | None
    method: str | None = None


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


def estimate(value: float, low: float, high: float, method: str) -> Estimate:
    """A number and its interval; None where it is undefined, or has no interval."""
    if not np.isfinite([value, low, high]).all():
        low = high = np.nan
    return Estimate(value=_known(value), low=_known(low), high=_known(high), method=method)


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def of_share(found: Share) -> Estimate:
    """The estimate of a proportion."""
    return estimate(found.value, found.low, found.high, found.method)


def of_f1(jaccard: Share) -> Estimate:
    """The estimate of F1, a function of the Jaccard index: hits among what is either true or predicted."""
    value, low, high = (2 * x / (1 + x) for x in (jaccard.value, jaccard.low, jaccard.high))
    return estimate(value, low, high, jaccard.method)


def of_auroc(area: Area, positive: np.ndarray, units: Units) -> Estimate:
    """The estimate of an AUROC; `positive` is (S,) bool."""
    return estimate(area.value, *area_interval(area, positive, units))


def sample_size(found: Share) -> SampleSize:
    """The sample behind a proportion."""
    known = {name: _known(getattr(found, name)) for name in ("icc", "design_effect", "effective_n")}
    return SampleSize(n=found.n, units=found.units, **known)
