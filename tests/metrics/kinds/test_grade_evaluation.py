"""Grades with intervals: against scikit-learn, by simulation, and with what a report of readers gives."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from every_kind import evaluate_grades, grade_values
from scipy import stats
from sklearn.metrics import cohen_kappa_score, mean_absolute_error, roc_auc_score
from test_grade_scoring import KL, draw

from vitmed.core.config import EvaluateConfig
from vitmed.metrics.intervals import Units
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.kinds.grades import (
    grade_costs,
    grade_errors,
    grade_results,
    kappa_estimate,
    kappa_of_sums,
    kappa_summands,
)
from vitmed.metrics.metric_table import GRADE_METRICS
from vitmed.metrics.readers import agreement


def test_the_values_are_those_of_scikit_learn() -> None:
    p = draw(300, 60)
    found, labels, predicted = grade_results(p), p.labels, p.predicted
    assert found.order == list(KL) and found.why == {}
    assert found.quadratic_kappa.value == pytest.approx(cohen_kappa_score(labels, predicted, weights="quadratic"))
    assert found.linear_kappa.value == pytest.approx(cohen_kappa_score(labels, predicted, weights="linear"))
    assert found.off.value == pytest.approx(mean_absolute_error(labels, predicted))
    assert found.within_one.value == np.mean(np.abs(labels - predicted) <= 1)
    assert found.signed.value == pytest.approx(np.mean(predicted - labels))
    for one in (found.quadratic_kappa, found.linear_kappa, found.off, found.within_one, found.signed):
        assert one.low < one.value < one.high
    apart = {one.grades: one.n for one in found.distances}
    assert sum(apart.values()) == 300 and apart[1] == np.sum(predicted - labels == 1) and list(apart) == sorted(apart)
    assert list(found.cuts) == [f"KL{cut} or higher" for cut in range(1, 5)]
    for cut, own in enumerate(found.cuts.values(), 1):
        assert own.auroc.value == pytest.approx(roc_auc_score(labels >= cut, p.probabilities[:, cut:].sum(axis=1)))
        assert own.sensitivity.value == pytest.approx((predicted >= cut)[labels >= cut].mean()) and own.auroc.low > 0.5
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_shares_by_error_have_the_intervals_of_proportions() -> None:
    """One image of each patient: Wilson's, as scipy has it."""
    for patients, method in ((None, "wilson"), (60, "wilson-cluster")):
        p = draw(300, patients)
        distances = grade_results(p).distances
        assert [one.grades for one in distances] == np.unique(p.predicted - p.labels).tolist()
        for one in distances:
            count = int(np.sum(p.predicted - p.labels == one.grades))
            assert (one.n, one.share.value, one.share.method) == (count, count / 300, method)
            if patients is None:
                expected = stats.binomtest(count, 300).proportion_ci(method="wilson")
                assert (one.share.low, one.share.high) == pytest.approx((expected.low, expected.high), rel=1e-6)


def test_the_report_of_readers_has_the_same_numbers() -> None:
    """Classes sorted by name are no matter to `--ordinal`; in order they give what grades give, to the bit."""
    p = draw(200, 40)
    found, told = grade_results(p), agreement(p, EvaluateConfig(ordinal=[*KL], resamples=300))
    assert told.grades is not None
    assert told.pairs[-1].kappa == found.quadratic_kappa
    assert (told.grades.off, told.grades.within_one) == (found.off, found.within_one)
    mixed = np.array([2, 0, 4, 1, 3])  # the class at each place of another order
    place = np.argsort(mixed)
    q = replace(p, classes=tuple(KL[k] for k in mixed), labels=place[p.labels], calibrated=p.calibrated[:, mixed],
                logits=p.logits[:, mixed])  # fmt: skip
    other = agreement(q, EvaluateConfig(ordinal=[*KL], resamples=300))
    assert other.grades == told.grades
    assert other.pairs[-1].kappa.value == pytest.approx(found.quadratic_kappa.value)


def test_the_metrics_of_grades() -> None:
    p = draw(200, 40)
    found, plain = evaluate_grades(p), evaluate_predictions(p)
    assert list(found.overall) == list(GRADE_METRICS)
    assert {name: one.value for name, one in found.overall.items()} == pytest.approx(grade_values(p))
    assert all(found.overall[name] == plain.overall[name] for name in plain.overall)
    assert found.per_class == plain.per_class and found.no_interval == plain.no_interval
    assert found.overall["quadratic_kappa"] == grade_results(p).quadratic_kappa


def test_kappa_holds_the_truth_by_patient() -> None:
    """30 patients with 7 images each that are graded alike: by image the interval holds the truth half of the time."""
    rng, costs, tests, held = np.random.default_rng(0), grade_costs(5, "squared"), 200, np.zeros(2)
    large = draw(200_000)
    truth = kappa_of_sums(kappa_summands(large.labels, large.predicted, costs).sum(axis=0), costs)
    for _ in range(tests):
        rows = rng.integers(200_000, size=30).repeat(7)
        for i, units in enumerate((np.arange(30).repeat(7), np.arange(210))):
            one, why = kappa_estimate(large.labels[rows], large.predicted[rows], costs, Units(units))
            held[i] += one.low <= truth <= one.high
            assert why == ""
    assert held[0] / tests > 0.9 and held[1] / tests < 0.7, held / tests


def test_the_intervals_are_wilsons_by_the_influence_of_patients() -> None:
    """Twelve patients of eight images: the derivative of scikit-learn's number by the weight of each image, over 1 -
    the patient's share of the images of the grade (of all for the error in grades), and Student's t."""
    rng = np.random.default_rng(1)
    owner, first = np.repeat(np.arange(12), 8), rng.integers(3, size=96)
    second = np.where(rng.random(96) < 0.4, rng.integers(3, size=96), first)
    t = stats.t.ppf(0.975, Units(owner).degrees((first == second) * 1.0))

    def expected(number: Callable[[np.ndarray], float], kinds: np.ndarray, least: float, most: float) -> list[float]:
        ones, step, spans = np.ones(96), 1e-5, most - least
        pull = [(number(ones + step * image) - number(ones - step * image)) / (2 * step) for image in np.eye(96)]
        held = [np.mean(owner[kinds == kind] == one) for kind, one in zip(kinds, owner, strict=True)]
        variance = 12 / 11 * np.sum(np.bincount(owner, pull / (1 - np.array(held))) ** 2) / spans**2
        share = (number(ones) - least) / spans
        n = share * (1 - share) / variance
        middle, reach = share + t**2 / (2 * n), t * (share * (1 - share) / n + t**2 / (4 * n**2)) ** 0.5
        return [number(ones), *(least + spans * (middle + side * reach) / (1 + t**2 / n) for side in (-1, 1))]

    def kappa(weights: np.ndarray) -> float:
        return cohen_kappa_score(first, second, weights="quadratic", sample_weight=weights)

    one, why = kappa_estimate(first, second, grade_costs(3, "squared"), Units(owner))
    assert why == "" and (one.value, one.low, one.high) == pytest.approx(expected(kappa, first, -1, 1), rel=1e-6)

    def error(weights: np.ndarray) -> float:
        return mean_absolute_error(first, second, sample_weight=weights)

    off = grade_errors(first - second, "abc", Units(owner)).off
    assert (off.value, off.low, off.high) == pytest.approx(expected(error, 0 * first, 0, 2), rel=1e-6)
    assert off.method == one.method == "influence"


def test_where_a_patient_has_half_of_the_images_the_intervals_are_wide_enough() -> None:
    """40 patients, each of one grade, errors of its own and of images: a bootstrap held the truth in 88 to 91."""
    rng, costs, tests, held = np.random.default_rng(0), grade_costs(4, "squared"), 300, np.zeros(2)

    def drawn(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, Units]:
        owner = np.repeat(np.arange(len(sizes)), sizes)
        labels, shift = rng.integers(4, size=len(sizes))[owner], rng.normal(0, 0.7, len(sizes))[owner]
        seen = np.clip(np.rint(labels + shift + rng.normal(0, 0.7, len(owner))), 0, 3).astype(np.int64)
        return labels, seen, Units(owner)

    labels, seen, _ = drawn(np.full(200_000, 1))
    kappa = kappa_of_sums(kappa_summands(labels, seen, costs).sum(axis=0), costs)
    error = np.abs(seen - labels).mean()
    for _ in range(tests):
        sizes = rng.integers(1, 6, 40)
        sizes[0] = sizes.sum() // 2
        labels, seen, units = drawn(sizes)
        ends = kappa_estimate(labels, seen, costs, units)[0], grade_errors(seen - labels, "abcd", units).off
        held += [one.low <= truth <= one.high for one, truth in zip(ends, (kappa, error), strict=True)]
    assert held.min() / tests >= 0.95, held / tests


def test_what_cannot_be_known() -> None:
    p = draw(40)
    same = replace(p, labels=np.full(40, 2), decided=np.full(40, 2))
    found, numbers = grade_results(same), evaluate_grades(same)
    assert found.quadratic_kappa.value is None and found.off.value == 0 and found.off.low is None
    assert (
        found.why["quadratic_kappa"]
        == numbers.undefined["quadratic_kappa"]
        == "both gave the same class to every image"
    )
    assert numbers.no_interval["grade_error"] == "the error of every image is the same"
    assert found.cuts["KL3 or higher"].auroc.value is None and found.cuts["KL3 or higher"].specificity.value == 1
    right = replace(p, decided=p.labels)
    assert (
        grade_results(right).quadratic_kappa.value == 1
        and "no disagreement" in grade_results(right).why["linear_kappa"]
    )
    sure = 9 * np.eye(len(p.classes), dtype=np.float32)
    for above in (0, 1):  # the same error of every image does not show how much others may err: no interval of 0
        grades = replace(p, labels=p.labels % 4, logits=sure[p.labels % 4 + above], calibrated=None)
        alike = grade_results(grades)
        assert (alike.signed.value, alike.signed.low, alike.off.low) == (above, None, None)
    nobody = p.take(np.empty(0, int))
    assert grade_results(nobody).signed.value is None and evaluate_grades(nobody).n == 0
    for one in (found, numbers, grade_results(nobody), evaluate_grades(nobody)):
        json.dumps(one.to_dict(), allow_nan=False)


def test_readers_who_always_give_the_other_grade_have_a_kappa_of_minus_one_without_an_interval() -> None:
    first = np.arange(40) % 2
    one, why = kappa_estimate(first, 1 - first, grade_costs(2, "squared"), Units(np.arange(40)))
    assert (one.value, one.low, one.high) == (-1, None, None) and why


def test_patients_who_all_have_the_same_errors_show_no_spread() -> None:
    """Each of ten patients has an error in one of three images: a rounding error of the variance was an interval."""
    off = np.tile([0, 0, 1], 10)
    found = grade_errors(off, ("none", "mild", "severe"), Units(np.repeat(np.arange(10), 3)))
    assert found.off.value == pytest.approx(1 / 3) and found.off.low is None and found.off.high is None
