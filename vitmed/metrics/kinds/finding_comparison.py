"""Two models of the same findings on the same images: the differences of their numbers, and the tests of none."""

from __future__ import annotations

from functools import partial

import numpy as np

from vitmed.metrics.estimates import Estimate, estimate
from vitmed.metrics.kinds.finding_scoring import of_sums, summands
from vitmed.metrics.kinds.findings import FindingPredictions, PreparedFindings, images_right, in_means
from vitmed.metrics.metric_table import FINDING_METRICS
from vitmed.metrics.notes import FEWEST
from vitmed.metrics.paired_comparison import (
    ClassDifference,
    PairedComparison,
    area_gap,
    check_alike,
    class_difference,
    gap_of,
    jackknifed_gaps,
    right_difference,
)

AREAS = ("auroc", "average_precision")


def compare_findings(
    predictions: FindingPredictions, other: FindingPredictions, resamples: int = 2000
) -> PairedComparison:
    """The numbers of the other model, and the differences, first minus other, on the same images.

    As `compare_predictions`, but no interval needs resamples: those of areas are by the influence of each image on the
    mean over findings, or on that of all labels together, that of subset accuracy by `share_difference`, and the rest
    by `jackknifed_gaps`. Every mean is over the findings of `in_means`, which depend on the labels alone.

    Raises:
        DataError: not the same images, labels or findings in the same order; or no labels.
    """
    check_alike(predictions, other)
    first, second = PreparedFindings(predictions), PreparedFindings(other)
    own, theirs = (one.numbers(resamples).overall for one in (first, second))
    found = jackknifed_gaps(
        summands(predictions), summands(other), partial(of_sums, means=in_means(predictions)), first.units
    )
    for name in AREAS:
        found[name] = area_gap(first.mean_area(name), second.mean_area(name), None, first.units)
        areas = first.cells.overall_areas[name], second.cells.overall_areas[name]
        found[f"{name}_micro"] = area_gap(*areas, None, first.cells.units)
    same = np.array_equal(predictions.probabilities, other.probabilities) and np.array_equal(
        predictions.predicted, other.predicted
    )
    difference: dict[str, Estimate] = {}
    for name in FINDING_METRICS:
        reach, test = found[name]
        if test.method == "jackknife" and not (same or reach > 0):  # no image shows how much the difference varies
            reach = np.nan
        limit = np.inf if name == "log_loss" else 1.0
        difference[name] = gap_of(own[name], theirs[name], (reach, test), limit)
    right, others = (images_right(first.labels, p.predicted) for p in (predictions, other))
    gap, test = right_difference(right, others, first.known.any(axis=1), first.units)
    low, high = (0.0, 0.0) if same else (gap.low, gap.high)
    difference["subset_accuracy"] = estimate(gap.value, low, high, gap.method)
    tests = {"auroc": found["auroc"][1], "subset_accuracy": test, "average_precision": found["average_precision"][1]}
    return PairedComparison(overall=theirs, difference=difference, tests=tests)


def compare_each_finding(
    predictions: FindingPredictions, other: FindingPredictions
) -> dict[str, dict[str, ClassDifference]]:
    """The differences in AUROC and in average precision of each finding, on the images whose label is known.

    There is an interval, and a p, where at least `FEWEST` patients (or images) have the finding, and as many have
    images without it.

    Raises:
        DataError: no labels. The images must be the same, as for `compare_findings`.
    """
    first, second = PreparedFindings(predictions), PreparedFindings(other)
    found: dict[str, dict[str, ClassDifference]] = {name: {} for name in AREAS}
    for finding, one, two in zip(predictions.classes, first.each, second.each, strict=True):
        for name in AREAS:
            areas = one.overall_areas[name], two.overall_areas[name]
            positive = one.labels == 1 if name == "auroc" else None
            gap = class_difference(*areas, positive, one.units, one.labels)
            if min(one.holders) < FEWEST:
                gap = ClassDifference(**dict(gap) | {"low": None, "high": None, "p": None})
            found[name][finding] = gap
    return found
