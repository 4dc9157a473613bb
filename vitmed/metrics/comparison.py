"""Two models on the same images: by how much one is above the other, and whether that can be chance."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitmed.errors import DataError
from vitmed.metrics.areas import Spread, area_spread, quantile, spread
from vitmed.metrics.evaluation import AREAS, Entry, Judged, bootstrap, entry
from vitmed.metrics.intervals import NONE
from vitmed.metrics.resampling import percentile_interval, widened
from vitmed.metrics.scoring import known_labels
from vitmed.predictions import Predictions


def compare_predictions(
    predictions: Predictions, other: Predictions, resamples: int = 2000, seed: int = 0, level: float = 0.95
) -> dict[str, Any]:
    """Two models on the same images: the numbers of the other, and by how much the first is above it.

    Both are judged on the same images, so the interval of a difference is that of the difference, narrower than
    those of the two numbers suggest. Of AUROC and average precision it comes from the difference of the pulls of each
    image (DeLong's and Obuchowski's paired variance), of the rest from resamples in which both are judged.

    Returns:
        overall {name: {value, low, high, method}} of `other`; difference {name: the same}, first - other;
        tests {"auroc", "accuracy": {statistic, p, method}} of no difference, see `area_test` and `accuracy_test`.

    Raises:
        DataError: not the same images, labels or classes in the same order; or no labels.
    """
    labels = known_labels(predictions)
    if predictions.paths != other.paths or predictions.classes != other.classes:
        raise DataError("the two predictions are not of the same images and classes", "predict the same images")
    if not np.array_equal(labels, known_labels(other)):
        raise DataError("the two predictions have different labels for the same images", "predict the same images")
    first, second = Judged(predictions, level), Judged(other, level)
    second.units = first.units
    draws = bootstrap([first, second], resamples, seed)
    entries = [judged.entries(drawn)[0] for judged, drawn in zip((first, second), draws, strict=True)]
    widen = widened(level, min(first.degrees, second.degrees))
    difference: dict[str, Entry] = {}
    for name in entries[0]:
        values = [found[name]["value"] for found in entries]
        if None in values:
            difference[name] = entry(float("nan"), *NONE, "bootstrap")
        elif name in AREAS:
            difference[name] = _area_difference(first, second, name, values[0] - values[1])
        else:
            gap = draws[0][name] - draws[1][name]
            known = len(gap) > 0 and np.isfinite(gap).mean() >= 0.5
            interval = percentile_interval(gap, widen) if known else NONE
            difference[name] = entry(values[0] - values[1], *interval, "bootstrap")
    return {
        "overall": entries[1],
        "difference": difference,
        "tests": {"auroc": area_test(first, second), "accuracy": accuracy_test(first, second)},
    }


def _area_difference(first: Judged, second: Judged, name: str, value: float) -> Entry:
    found, method = area_gap(first, second, name)
    reach = quantile(first.level, found.degrees) * found.variance**0.5
    return entry(value, value - reach, value + reach, method)


def area_gap(first: Judged, second: Judged, name: str) -> tuple[Spread, str]:
    """Variance of the difference of an overall area, and by whose formula."""
    pulls = first.pulled[name].pulls - second.pulled[name].pulls
    positive = first.scorer.positive
    if name == "auroc" and positive is not None:
        found = area_spread(pulls, first.labels == positive, first.units)
        return found, "obuchowski" if first.units.clustered else "delong"
    return spread(pulls, first.units), "influence"


def area_test(first: Judged, second: Judged) -> dict[str, Any]:
    """Whether the AUROC differs: the difference over its standard error, and its two-sided p.

    DeLong's test, or Obuchowski's where patients have several images, with Student's t there. p is 1 for models that
    rank alike, None where either AUROC or its variance is undefined.
    """
    from scipy.special import stdtr  # only who needs it waits for it

    found, method = area_gap(first, second, "auroc")
    gap = first.pulled["auroc"].value - second.pulled["auroc"].value
    if not np.isfinite(gap) or not np.isfinite(found.variance):
        return {"statistic": None, "p": None, "method": method}
    if found.variance == 0:
        return {"statistic": 0.0 if gap == 0 else None, "p": 1.0 if gap == 0 else None, "method": method}
    statistic = float(gap / found.variance**0.5)
    degrees = min(found.degrees, 1e9)
    return {"statistic": statistic, "p": float(2 * stdtr(degrees, -abs(statistic))), "method": method}


def accuracy_test(first: Judged, second: Judged) -> dict[str, Any]:
    """Whether the accuracy differs, by the images that only one of the two gets right.

    Independent images: McNemar's test, Psychometrika 12 (1947) 153, exact by the binomial distribution. It is not
    valid where patients have several images; there it is that of Obuchowski, Stat. Med. 17 (1998) 1495, in the form
    of Yang, Sun & Hardin, Biom. J. 52 (2010) 638: ((G - 1) / G) (sum d)^2 / sum d^2, chi-squared with one degree of
    freedom, where d of a patient is how many more images the first gets right.

    Returns:
        only_first, only_second (images that only one gets right), statistic, p (None where it is undefined), method.
    """
    from scipy.special import bdtr, chdtrc  # only who needs it waits for it

    right = [judged.scorer.predicted == judged.labels for judged in (first, second)]
    b, c = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    told: dict[str, Any] = {"only_first": b, "only_second": c}
    if not first.units.clustered:
        p = min(1.0, 2 * float(bdtr(min(b, c), b + c, 0.5))) if b + c else 1.0
        return {**told, "statistic": float(min(b, c)), "p": p if len(right[0]) else None, "method": "mcnemar-exact"}
    d, g = first.units.sums(right[0].astype(float) - right[1]), first.units.count
    method = "obuchowski-1998"
    if g < 2 or not (d**2).sum():
        return {**told, "statistic": None, "p": None if g < 2 else 1.0, "method": method}
    statistic = float((g - 1) / g * d.sum() ** 2 / (d**2).sum())
    return {**told, "statistic": statistic, "p": float(chdtrc(1, statistic)), "method": method}
