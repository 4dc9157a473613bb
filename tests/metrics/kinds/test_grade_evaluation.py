"""Grades with intervals: against scikit-learn, by simulation, and with what a report of readers gives."""

import json
from dataclasses import replace

import numpy as np
import pytest
from every_kind import evaluate_grades, grade_values
from scipy import stats
from sklearn.metrics import cohen_kappa_score, mean_absolute_error, roc_auc_score
from test_grade_scoring import KL, draw

from vitmed.core.config import EvaluateConfig
from vitmed.metrics.bootstrap import Bootstrap, bootstrap_weights
from vitmed.metrics.intervals import Units
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.kinds.grades import (
    grade_costs,
    grade_results,
    kappa_estimate,
    kappa_of_sums,
    kappa_summands,
    ranked_probability_scores,
)
from vitmed.metrics.metric_table import GRADE_METRICS
from vitmed.metrics.readers import agreement


def test_the_values_are_those_of_scikit_learn() -> None:
    p = draw(300, 60)
    found, labels, predicted = grade_results(p, 300), p.labels, p.predicted
    assert found.order == list(KL) and found.why == {}
    assert found.quadratic_kappa.value == pytest.approx(cohen_kappa_score(labels, predicted, weights="quadratic"))
    assert found.linear_kappa.value == pytest.approx(cohen_kappa_score(labels, predicted, weights="linear"))
    assert found.off.value == pytest.approx(mean_absolute_error(labels, predicted))
    assert found.within_one.value == np.mean(np.abs(labels - predicted) <= 1)
    assert found.signed.value == pytest.approx(np.mean(predicted - labels))
    assert found.rps.value == pytest.approx(ranked_probability_scores(p).mean())
    for one in (found.quadratic_kappa, found.linear_kappa, found.off, found.within_one, found.signed, found.rps):
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
        distances = grade_results(p, 50).distances
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
    found, told = grade_results(p, 300), agreement(p, EvaluateConfig(ordinal=[*KL], resamples=300))
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
    found, plain = evaluate_grades(p, 300), evaluate_predictions(p, 300)
    assert list(found.overall) == list(GRADE_METRICS)
    assert {name: one.value for name, one in found.overall.items()} == pytest.approx(grade_values(p))
    assert all(found.overall[name] == plain.overall[name] for name in plain.overall)
    assert found.per_class == plain.per_class and found.no_interval == plain.no_interval
    assert found.overall["quadratic_kappa"] == grade_results(p, 300).quadratic_kappa


def test_kappa_holds_the_truth_by_patient() -> None:
    """30 patients with 7 images each that are graded alike: by image the interval holds the truth half of the time."""
    rng, costs, tests, held = np.random.default_rng(0), grade_costs(5, "squared"), 200, np.zeros(2)
    large = draw(200_000)
    truth = kappa_of_sums(kappa_summands(large.labels, large.predicted, costs).sum(axis=0), costs)
    for _ in range(tests):
        rows = rng.integers(200_000, size=30).repeat(7)
        for i, units in enumerate((np.arange(30).repeat(7), np.arange(210))):
            boot = Bootstrap(Units(units), 150)
            one, why = kappa_estimate(large.labels[rows], large.predicted[rows], costs, boot)
            held[i] += one.low <= truth <= one.high
            assert why == ""
    assert held[0] / tests > 0.9 and held[1] / tests < 0.7, held / tests


def test_the_interval_of_kappa_is_wilsons_with_the_variance_of_resampled_patients() -> None:
    """Five patients: scikit-learn's kappa in each resample, its variance times 5 / 4, and Student's t of 4 degrees."""
    rng = np.random.default_rng(1)
    owner, first = np.repeat(np.arange(5), 8), rng.integers(3, size=40)
    second = np.where(rng.random(40) < 0.4, rng.integers(3, size=40), first)
    one, why = kappa_estimate(first, second, grade_costs(3, "squared"), Bootstrap(Units(owner), 40))
    drawn = [
        cohen_kappa_score(first, second, weights="quadratic", sample_weight=w)
        for weights in bootstrap_weights(owner, 40, seed=0)
        for w in weights
    ]
    value, variance = cohen_kappa_score(first, second, weights="quadratic"), np.var(drawn) * 5 / 4
    share, z = (value + 1) / 2, stats.t.ppf(0.975, 4)
    n = share * (1 - share) * 4 / variance
    middle, reach = share + z**2 / (2 * n), z * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    ends = [2 * (middle + side * reach) / (1 + z**2 / n) - 1 for side in (-1, 1)]
    assert why == "" and len(drawn) == 40
    assert (one.value, one.low, one.high) == pytest.approx((value, *ends))


def test_what_cannot_be_known() -> None:
    p = draw(40)
    same = replace(p, labels=np.full(40, 2), decided=np.full(40, 2))
    found, numbers = grade_results(same, 100), evaluate_grades(same, 100)
    assert found.quadratic_kappa.value is None and found.off.value == 0 and found.off.low is None
    assert (
        found.why["quadratic_kappa"]
        == numbers.undefined["quadratic_kappa"]
        == "both gave the same class to every image"
    )
    assert numbers.no_interval["grade_error"] == "all resamples gave the same"
    assert found.cuts["KL3 or higher"].auroc.value is None and found.cuts["KL3 or higher"].specificity.value == 1
    right = replace(p, decided=p.labels)
    assert (
        grade_results(right, 100).quadratic_kappa.value == 1
        and "no disagreement" in grade_results(right, 100).why["linear_kappa"]
    )
    sure = 9 * np.eye(len(p.classes), dtype=np.float32)
    for above in (0, 1):  # the same error of every image does not show how much others may err: no interval of 0
        grades = replace(p, labels=p.labels % 4, logits=sure[p.labels % 4 + above], calibrated=None)
        alike = grade_results(grades, 100)
        assert (alike.signed.value, alike.signed.low, alike.off.low) == (above, None, None)
        assert (alike.rps.low is None) == (not above)  # as of log loss and Brier score
        assert alike.why.get("rps", "") == ("" if above else evaluate_grades(grades, 100).no_interval["log_loss"])
    nobody = p.take(np.empty(0, int))
    assert grade_results(nobody, 100).rps.value is None and evaluate_grades(nobody, 100).n == 0
    for one in (found, numbers, grade_results(nobody, 100), evaluate_grades(nobody, 100)):
        json.dumps(one.to_dict(), allow_nan=False)


def test_readers_who_always_give_the_other_grade_have_a_kappa_of_minus_one_without_an_interval() -> None:
    first = np.arange(40) % 2
    one, why = kappa_estimate(first, 1 - first, grade_costs(2, "squared"), Bootstrap(Units(np.arange(40)), 100))
    assert (one.value, one.low, one.high) == (-1, None, None) and why
