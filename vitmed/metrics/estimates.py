"""Numbers with their intervals, as typed results, and two notes beside them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import SerializerFunctionWrapHandler, model_serializer

from vitmed.core.base_models import Frozen
from vitmed.metrics.intervals import NONE, Share, Units, quantile, spread


class Estimate(Frozen):
    """A number and its interval; None where it is undefined, or has no interval.

    Attributes:
        method: of the interval, a key of `intervals` in methods.yaml.
        resamples: how many were drawn for it; None, and not in a file, for a method that draws none.
    """

    value: float | None
    low: float | None
    high: float | None
    method: str | None = None
    resamples: int | None = None

    @property
    def reversed(self) -> "Estimate":
        """The difference with its sign changed."""
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

    @classmethod
    def of(
        cls, units: Units, patients: int | None, accuracy: Share, class_shares: Sequence[Mapping[str, Share]]
    ) -> "Sample":
        """From the units of the images, how many patients they are, and the proportions of all and of each class."""
        each, rates = None, ("sensitivity", "specificity")
        if patients:
            sizes = np.bincount(units.index)
            each = ImagesPerPatient(min=int(sizes.min()), median=float(np.median(sizes)), max=int(sizes.max()))
        classes = [ClassSampleSizes(**{name: sample_size(shares[name]) for name in rates}) for shares in class_shares]
        images: dict[str, Any] = {"n_images": len(units.index), "n_patients": patients, "images_per_patient": each}
        return cls(**images, accuracy=sample_size(accuracy), classes=classes)


class Numbers(Frozen):
    """Every number of a set of predictions, by `evaluate_predictions`."""

    n: int
    n_groups: int | None  # patients; None where they are unknown
    resampling: str  # "by patient" or "by image"
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
    """How many decimals a number and its interval are written with: three, or up to five where three mislead; none from
    10,000, one from 1,000. Few mislead where two of the three look the same and are not, a number looks like 0 or 1 and
    is not, or an end like 0. What five decimals do not show counts as 0."""
    value, ends = number.value, [end for end in (number.low, number.high) if end is not None]
    shown = [one for one in (*ends, value) if one is not None]
    largest = max(map(abs, shown), default=0.0)
    for digits in (0,) * (largest >= 1e4) + (1,) * (largest >= 1e3) + (3, 4):
        least, texts = 0.1**digits, {f"{one:.{digits}f}" for one in shown}
        alike = len(ends) == 2 and len(texts) < len({round(one, 5) for one in shown})
        small = value is not None and 5e-6 <= abs(value) < least
        nearly_1 = value is not None and abs(value) < 1 - 1e-12 and abs(float(f"{value:.{digits}f}")) == 1
        at_0 = any(5e-6 <= abs(end) < 0.5 * least for end in ends)
        if not (alike or small or nearly_1 or at_0):
            return digits
    return 5


def value_text(number: Estimate, sign: str = "") -> str:
    """`0.912 (0.881 to 0.934)`, the value alone if it has no interval, or `undefined`; with "+" the sign of each."""
    if number.value is None:
        return "undefined"
    form = f"{sign}z,.{decimals(number)}f"
    interval = "" if number.low is None else f" ({number.low:{form}} to {number.high:{form}})"
    return f"{number.value:{form}}{interval}"


def estimate(value: float, low: float, high: float, method: str, resamples: int | None = None) -> Estimate:
    """A number and its interval, NaN where unknown, as an `Estimate`, whose interval is whole or None."""
    if not np.isfinite([value, low, high]).all():
        low = high = np.nan
    return Estimate(value=finite(value), low=finite(low), high=finite(high), method=method, resamples=resamples)


def finite(value: float) -> float | None:
    """The number; None where it is undefined."""
    return float(value) if np.isfinite(value) else None


def difference(first: Estimate, second: Estimate, alike: float = 0.0) -> Estimate:
    """First minus second, with the interval from those of both. MOVER: Zou & Donner, Stat. Med. 27 (2008) 1693; of two
    independent proportions it is Newcombe's, Stat. Med. 17 (1998) 873. Errors with the correlation `alike` lie on an
    ellipse, each scaled by the arm of its side: numbers that err together do not err to opposite sides."""
    a, b = (np.array([one.value, one.low, one.high], dtype=float) for one in (first, second))  # NaN for None
    turn, kinks = np.arccos(np.clip(alike, -1, 1)), np.array([0.5, 1.5]) * np.pi
    angles = np.concatenate([np.linspace(0, 2 * np.pi, 7201), kinks, kinks + turn])
    x, y = np.cos(angles), np.cos(angles - turn)
    off = np.where(x < 0, a[0] - a[1], a[2] - a[0]) * x - np.where(y < 0, b[0] - b[1], b[2] - b[0]) * y
    return estimate(a[0] - b[0], a[0] - b[0] + off.min(), a[0] - b[0] + off.max(), "mover")


def of_mean(values: np.ndarray, units: Units) -> Estimate:
    """The mean of values (S,), such as differences of two models, by Student's t; no interval where all are alike."""
    value = float(values.mean()) if len(values) else float("nan")
    if units.count < 2:
        return estimate(value, *NONE, "t")
    influence = (values - value) / len(values)
    reach = quantile(units.degrees(influence)) * spread(influence, units).variance ** 0.5
    low, high = (value - reach, value + reach) if reach > 1e-12 * np.abs(values).max() else NONE
    return estimate(value, low, high, "t")


def of_share(proportion: Share) -> Estimate:
    """The estimate of a proportion."""
    return estimate(proportion.value, proportion.low, proportion.high, proportion.method)


def of_shares(shares: Mapping[str, Share]) -> dict[str, Estimate]:
    """The estimates of `class_shares`; F1 is 2 J / (1 + J) of the Jaccard index J, which stands under "f1" there."""
    jaccard = shares["f1"]
    value, low, high = (2 * x / (1 + x) for x in (jaccard.value, jaccard.low, jaccard.high))
    return {name: of_share(rate) for name, rate in shares.items()} | {"f1": estimate(value, low, high, jaccard.method)}


def sample_size(proportion: Share) -> SampleSize:
    """The sample behind a proportion."""
    more = {name: finite(getattr(proportion, name)) for name in ("icc", "design_effect", "effective_n")}
    return SampleSize(n=proportion.n, units=proportion.units, **more)


FEW_GROUPS = 10  # below this many groups the spread between them is itself hardly known
FEW_IMAGES = 30  # the same of independent images
APART = 5  # images of the commonest class for each of the rarest, beyond which plan and report speak of imbalance
NEARLY_ALL = 0.95  # share of the images: a model that gives them all one class has learned nothing
FEWEST = 5  # with fewer patients (or independent images) of a class, only intervals of proportions and AUROC hold


def learnt_nothing(found: Numbers) -> list[str]:
    """A note if the predictions hardly depend on the image: nearly all are one class (which is not that of the images),
    hardly any finding is called, or one number would do as well; empty otherwise."""
    few = 1 - NEARLY_ALL
    if found.confusion_matrix:
        cells, n = np.asarray(found.confusion_matrix), found.n
        called = cells.sum(axis=0)
        top = int(called.argmax())
        others = n - int(cells[top].sum())  # images of other classes
        many, wrong = NEARLY_ALL * max(1, n), called[top] - cells[top, top]
        if np.count_nonzero(cells.sum(axis=1)) < 2 or called[top] < many or wrong < NEARLY_ALL * others:
            return []
        every = "Every image is" if called[top] == n else f"{called[top]:,} of {n:,} images are"
        how = f"{every} predicted as '{found.classes[top]}': the model does not distinguish the classes"
        return [f"{how}{', or its threshold is wrong' * (len(found.classes) == 2)}."]
    if "r2" in found.overall:
        r2 = found.overall["r2"].value
        if r2 is None or r2 > few:
            return []
        alike = f"would be {'better' if r2 < -few else 'about as good'}, so the model does not predict it"
        return [f"R2 is {r2:.3f}: one number for all images {alike}."]
    held = [rates for rates in found.per_class.values() if rates.n and rates.sensitivity.value is not None]
    present = sum(rates.n for rates in held)
    hits = round(sum(rates.n * (rates.sensitivity.value or 0.0) for rates in held))
    specific = [rates.specificity.value for rates in found.per_class.values() if rates.specificity.value is not None]
    if not present or hits > few * present or min(specific, default=1.0) < NEARLY_ALL:
        return []
    what = "No finding is called" if not hits and min(specific, default=1.0) == 1 else "Hardly any finding is called"
    return [
        f"{what}: the model finds {hits:,} of {present:,} that are there. It does not distinguish the images, or its "
        "thresholds are wrong."
    ]


def missing_interval_note(found: Numbers) -> list[str]:
    """A note if numbers have a value and no interval; `no_interval` has the reasons. Empty otherwise."""
    count = len(found.no_interval)
    lack, whose = ("1 number has", "its") if count == 1 else (f"{count:,} numbers have", "their")
    text = f"{lack} no interval: {whose} uncertainty is unknown, not small. "
    return [f"{text}The report gives the reason{'s' * (count > 1)} below 'All numbers'."] if count else []
