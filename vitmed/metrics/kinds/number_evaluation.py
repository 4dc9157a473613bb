"""Every number that judges a predicted quantity with its interval.

Intervals are by the jackknife over patients (Efron 1982), with Student's t: of correlations on Fisher's scale, as Lin,
Biometrics 45 (1989) 255, does for concordance; of mean errors with the skewness of what patients add removed
(`jackknife_interval`). The interval of the median is that of the share of images below it
(Woodruff, J. Am. Stat. Assoc. 47 (1952) 635). benchmarks/number_coverage.py measured how often they hold the truth.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vitmed.core.errors import DataError
from vitmed.metrics.estimates import (
    Estimate,
    ImagesPerPatient,
    Numbers,
    Sample,
    SampleSize,
    estimate,
    of_share,
)
from vitmed.metrics.intervals import (
    LEVEL,
    NONE,
    Units,
    correlation,
    jackknife_interval,
    share,
    spread,
)
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.kinds.number_scoring import inside, of_sums, summands
from vitmed.metrics.metric_table import NUMBER_METRICS
from vitmed.metrics.notes import FEW_IMAGES, few_notes
from vitmed.metrics.predictions import known_labels

Scale = tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]


def evaluate_number(predictions: NumberPredictions, resamples: int = 2000) -> Numbers:
    """Every number of `NUMBER_METRICS` with its interval; the units are patients where they are known.

    Coverage and width are left out where the predictions have no intervals. `sample.accuracy` is the sample behind the
    mean absolute error. `resamples` is only recorded: no interval here needs any.

    Raises:
        DataError: the predictions have no labels, or a number that is not finite.
    """
    labels, units, groups = known_labels(predictions), Units(predictions.units), predictions.groups
    broken = np.flatnonzero(~np.isfinite(np.column_stack([labels, predictions.values, predictions.scales])).all(axis=1))
    if len(broken):
        problem = f"{len(broken):,} of {len(labels):,} rows have a number that is not finite, the first is "
        raise DataError(f"{problem}row {broken[0] + 1}", "predict these images again, or leave them out")
    unit = "image" if groups is None else "patient"
    found = _estimates(predictions, units)
    few = f"it needs at least 2 {unit}s" if units.count < 2 else f"no {unit} shows how much it varies"
    nothing = "all true numbers, or all predicted ones, are the same" if len(labels) else "there are no images"
    numbers = Numbers(
        n=len(labels),
        n_groups=None if groups is None else units.count,
        resampling=f"by {unit}",
        resamples=resamples,
        level=LEVEL,
        classes=list(predictions.classes),
        positive_class=None,
        overall=found,
        per_class={},
        confusion_matrix=[],
        sample=_sample(np.abs(predictions.values - labels), units, groups is not None),
        undefined={name: nothing for name, one in found.items() if one.value is None},
        no_interval={name: few for name, one in found.items() if one.value is not None and one.low is None},
    )
    notes = few_notes(numbers, {}, units.count, groups)
    if 1 < units.count < FEW_IMAGES:
        notes.append(
            f"With fewer than {FEW_IMAGES} {unit}s, the intervals of RMSE, CRPS, log score and the limits of agreement "
            "are too narrow if errors have heavy tails: in simulations they held the truth in 82 to 98 of 100 tests."
        )
    return numbers.model_copy(update={"notes": notes})


# Scale on which a number is nearly normal, and back.
LOG: Scale = (np.log, np.exp)
FISHER: Scale = (np.arctanh, np.tanh)
PLAIN: Scale = (lambda x: x, lambda x: x)
SCALES: dict[str, Scale] = {
    **dict.fromkeys(("mae", "rmse", "crps", "sd"), (lambda x: x, lambda x: np.maximum(x, 0))),
    "width": LOG,
    **dict.fromkeys(("bias", "log_score", "trend"), PLAIN),
    **dict.fromkeys(("ccc", "pearson"), FISHER),
    "r2": (lambda x: -np.log(1 - x), lambda x: 1 - np.exp(-x)),
}
SKEWED = ("mae", "rmse", "crps", "sd", "log_score")  # means of errors, which a few large ones decide


def jackknifed(predictions: NumberPredictions, units: Units) -> dict[str, Estimate]:
    """The numbers of `of_sums` that have a scale, with intervals by leaving out each patient in turn."""
    values = summands(predictions)
    whole, count = values.sum(axis=0), units.count
    with np.errstate(divide="ignore", invalid="ignore"):
        point = of_sums(whole)
        without = of_sums(units.without(values)) if count > 1 else {}
        found = {}
        for name, (to, back) in SCALES.items():
            interval = NONE
            if count > 1 and np.isfinite(to(point[name])):
                ends = jackknife_interval(float(to(point[name])), to(without[name]), name in SKEWED)
                low, high = back(np.array(ends))
                interval = float(low), float(high)
            found[name] = estimate(float(point[name]), *interval, "jackknife-hall" if name in SKEWED else "jackknife")
    return found


def _estimates(predictions: NumberPredictions, units: Units) -> dict[str, Estimate]:
    """The numbers by name, in the order of `NUMBER_METRICS`."""
    labels, values = known_labels(predictions), predictions.values
    found = jackknifed(predictions, units) | {"median_error": of_median(np.abs(values - labels), units)}
    if predictions.intervals is not None:
        found["coverage"] = of_share(share(inside(predictions), np.ones(len(labels), bool), units))
    else:
        del found["width"]
    return {name: found[name] for name in NUMBER_METRICS if name in found}


def of_median(values: np.ndarray, units: Units) -> Estimate:
    """The median of values (S,): the values between which its share of values lies."""
    if not len(values):
        return estimate(np.nan, *NONE, "woodruff")
    value = float(np.median(values))
    below = share(values <= value, np.ones(len(values), bool), units)
    if units.count < 2 or not np.isfinite([below.low, below.high]).all():
        return estimate(value, *NONE, "woodruff")
    half = (below.high - below.low) / 2
    low, high = np.quantile(values, [max(0.0, 0.5 - half), min(1.0, 0.5 + half)], method="weibull")
    return estimate(value, float(low), float(high), "woodruff")


def _sample(error: np.ndarray, units: Units, grouped: bool) -> Sample:
    """The sample behind the mean of absolute errors (S,)."""
    n, sizes, counts = len(error), np.bincount(units.index), None
    if grouped and n:
        counts = ImagesPerPatient(min=int(sizes.min()), median=float(np.median(sizes)), max=int(sizes.max()))
    icc = effect = None
    if units.clustered and units.count > 1 and error.std() > 0:
        likeness = correlation(sizes.astype(float), units.sums(error), units.sums(error**2))
        icc = likeness if np.isfinite(likeness) else None
        effect = spread((error - error.mean()) / n, units).variance / (float(error.var(ddof=1)) / n)
    effective = None if not n else n if effect is None else n / max(1.0, effect)
    size = SampleSize(n=n, units=units.count, icc=icc, design_effect=effect, effective_n=effective)
    patients = units.count if grouped else None
    return Sample(n_images=n, n_patients=patients, images_per_patient=counts, accuracy=size, classes=[])
