"""Two models of findings: differences against scikit-learn, intervals against a bootstrap of patients and DeLong's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from every_kind import compare_findings, compare_predictions, evaluate_findings
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from vitmed.core.base_models import UNKNOWN
from vitmed.core.errors import DataError
from vitmed.metrics.kinds.findings import FindingPredictions, PreparedFindings
from vitmed.metrics.metric_table import FINDING_METRICS

NAMES, PREVALENCE = ("edema", "mass", "hernia"), np.array([0.5, 0.3, 0.2])


def draw(skill: float, patients: int = 60, each: int = 3, seed: int = 0) -> FindingPredictions:
    """One model's answer to images that are the same for every skill; a label in ten is unknown."""
    rng, size = np.random.default_rng(seed), patients * each
    of = np.repeat(np.arange(patients), each)
    labels = (rng.random((size, 3)) < PREVALENCE).astype(np.int8)
    own = np.random.default_rng([seed, int(10 * skill)])
    scores = skill * labels + 0.7 * rng.normal(size=(size, 3)) + 0.5 * rng.normal(size=(patients, 3))[of]
    scores = scores + 0.5 * own.normal(size=(size, 3)) + 0.5 * own.normal(size=(patients, 3))[of] - skill / 2
    labels[rng.random(labels.shape) < 0.1] = UNKNOWN
    groups = None if each == 1 else tuple(f"P{i}" for i in of)
    return FindingPredictions(NAMES, tuple(map(str, range(size))), groups, labels, scores.astype(np.float32))


def values(found: FindingPredictions, rows: np.ndarray) -> dict[str, float]:
    """The macro AUROC, macro average precision and micro AUROC of some rows, by scikit-learn."""
    areas, precisions = [], []
    for f in range(len(NAMES)):
        own = rows[found.labels[rows, f] != UNKNOWN]
        areas.append(roc_auc_score(found.labels[own, f], found.logits[own, f]))
        precisions.append(average_precision_score(found.labels[own, f], found.logits[own, f]))
    known = found.labels[rows] != UNKNOWN
    micro = roc_auc_score(found.labels[rows][known], found.logits[rows][known])
    return {"auroc": np.mean(areas), "average_precision": np.mean(precisions), "auroc_micro": micro}


@pytest.mark.slow
def test_the_paired_differences_of_means_and_their_intervals_are_those_of_a_bootstrap_of_patients() -> None:
    good, poor = draw(2.0), draw(1.2)
    found = compare_findings(good, poor).difference
    rng, rows = np.random.default_rng(1), np.arange(180).reshape(60, 3)  # the images of each patient
    point = [values(one, rows.ravel()) for one in (good, poor)]
    draws = [rows[rng.integers(60, size=60)].ravel() for _ in range(200)]
    gaps = [{name: a[name] - values(poor, drawn)[name] for name in a} for drawn in draws for a in [values(good, drawn)]]
    for name in point[0]:
        one = found[name]
        assert one.value == pytest.approx(point[0][name] - point[1][name], abs=1e-12)
        assert one.low is not None and one.high is not None
        error = np.std([gap[name] for gap in gaps])
        towards = one.value - one.low  # the test's arm, since p is below 0.05; t of some 60 patients is 2.0
        assert one.low > 0 and towards == pytest.approx(2.0 * error, rel=0.15) and one.high - one.value >= towards, name
    both = [evaluate_findings(one).overall["auroc"] for one in (good, poor)]
    unpaired = np.hypot(*((one.high - one.low) / 2 for one in both if one.high is not None and one.low is not None))
    auroc = found["auroc"]
    assert auroc.low is not None and auroc.high is not None and auroc.value - auroc.low < 0.8 * unpaired


def test_each_finding_has_the_difference_of_two_classes() -> None:
    for each in (1, 3):
        good, poor = draw(2.0, each=each), draw(1.2, each=each)
        found = PreparedFindings(good).class_gaps(PreparedFindings(poor))
        for name in NAMES:
            own = compare_predictions(good.of(name), poor.of(name))
            for number in ("auroc", "average_precision"):
                gap, expected = found[number][name], own.difference[number]
                assert (gap.value, gap.low, gap.high) == (expected.value, expected.low, expected.high)
            assert found["auroc"][name].p == own.tests["auroc"].p


def test_a_finding_of_few_patients_has_a_difference_without_an_interval() -> None:
    good, poor = draw(2.0), draw(1.2)
    labels = good.labels.copy()
    labels[:, 2] = 0
    labels[:12, 2] = 1  # twelve images of four patients
    found = PreparedFindings(replace(good, labels=labels)).class_gaps(PreparedFindings(replace(poor, labels=labels)))
    for number in ("auroc", "average_precision"):
        hernia = found[number]["hernia"]
        assert hernia.value is not None and hernia.low is hernia.high is hernia.p is None
        assert found[number]["edema"].p is not None
    labels[:, 2] = UNKNOWN
    empty = PreparedFindings(replace(good, labels=labels)).class_gaps(PreparedFindings(replace(poor, labels=labels)))[
        "auroc"
    ]["hernia"]
    assert empty.value is empty.low is None
    assert compare_findings(replace(good, labels=labels), replace(poor, labels=labels)).difference["auroc"].low


def test_the_test_of_subset_accuracy_is_mcnemars() -> None:
    good, poor = draw(2.0, each=1), draw(1.2, each=1)
    test = compare_findings(good, poor).tests["subset_accuracy"]
    known = good.labels != UNKNOWN
    right = [((one.logits > 0) == (good.labels == 1)) | ~known for one in (good, poor)]
    a, b = (one.all(axis=1) & known.any(axis=1) for one in right)
    only = int((a & ~b).sum()), int((b & ~a).sum())
    assert (test.only_first, test.only_second) == only
    assert test.p == pytest.approx(stats.chi2.sf((only[0] - only[1]) ** 2 / sum(only), 1), abs=1e-9)


def test_a_model_does_not_differ_from_itself_and_others_are_not_compared() -> None:
    good = draw(2.0)
    same = compare_findings(good, good)
    assert {name: (gap.value, gap.low, gap.high) for name, gap in same.difference.items()} == dict.fromkeys(
        FINDING_METRICS, (0, 0, 0)
    )
    assert {name: test.p for name, test in same.tests.items()} == {
        "auroc": 1, "average_precision": 1, "subset_accuracy": 1,
    }  # fmt: skip
    with pytest.raises(DataError, match="different labels"):
        compare_findings(good, draw(1.0, seed=1))
    with pytest.raises(DataError, match="not of the same images"):
        compare_findings(good, replace(good, classes=("a", "b", "c")))


def test_without_images_no_number_differs_and_none_is_defined() -> None:
    none = draw(1.0).take(np.arange(0))
    assert {gap.value for gap in compare_findings(none, none).difference.values()} == {None}


def test_a_rate_that_no_image_changes_has_no_interval() -> None:
    """Neither model calls anything: that says nothing about how their sensitivities differ."""
    good, poor = (replace(draw(skill), thresholds=(1.0, 1.0, 1.0)) for skill in (2.0, 1.2))
    gap = compare_findings(good, poor).difference["sensitivity_macro"]
    assert gap.value == 0 and gap.low is None


@pytest.mark.slow
def test_equal_models_rarely_differ_where_few_patients_have_a_finding() -> None:
    """50 patients, labels and scores 0.5 alike: the mean average precision of equal models differed in 10 %."""
    rng, shares, tests, wrong = np.random.default_rng(4), np.array([0.3, 0.1, 0.05, 0.03, 0.02]), 200, 0
    for _ in range(tests):
        patient = np.repeat(np.arange(50), rng.integers(1, 21, 50))

        def alike(patient: np.ndarray = patient) -> np.ndarray:
            return (rng.normal(size=(50, 5))[patient] + rng.normal(size=(len(patient), 5))) / 2**0.5

        labels = (alike() < stats.norm.ppf(shares)).astype(np.int8)
        names = tuple(map(str, range(len(patient)))), tuple(map(str, patient))
        first, second = (
            FindingPredictions(tuple("abcde"), *names, labels, (2 * (2 * labels - 1 + alike())).astype(np.float32))
            for _ in range(2)
        )
        p = compare_findings(first, second).tests["average_precision"].p
        wrong += p is not None and p < 0.05
    assert wrong / tests <= 0.08
