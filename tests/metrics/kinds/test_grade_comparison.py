"""Two models of grades: differences against scikit-learn, intervals against a bootstrap of patients."""

from dataclasses import replace

import numpy as np
import pytest
from every_kind import compare_grades, compare_predictions
from sklearn.metrics import cohen_kappa_score, mean_absolute_error
from test_grade_scoring import draw

from vitmed.core.errors import DataError
from vitmed.metrics.kinds.grades import PreparedGrades
from vitmed.metrics.metric_table import GRADE_METRICS
from vitmed.metrics.predictions import Predictions

REFERENCES = {
    "quadratic_kappa": lambda truth, seen: cohen_kappa_score(truth, seen, weights="quadratic"),
    "linear_kappa": lambda truth, seen: cohen_kappa_score(truth, seen, weights="linear"),
    "grade_error": mean_absolute_error,
}


def pair() -> tuple[Predictions, Predictions]:
    """Two models of 90 patients with 4 images each; the second is blurred by a noise of its own."""
    first = draw(360, 90)
    noise = np.random.default_rng(5).normal(0, 1.6, (360, 5)).astype(np.float32)
    return first, replace(first, logits=first.logits + noise, calibrated=None)


@pytest.mark.slow
def test_differences_are_scikit_learns_and_intervals_those_of_a_bootstrap_of_patients() -> None:
    first, second = pair()
    found, rng, truth = compare_grades(first, second), np.random.default_rng(1), first.labels
    rows = [np.flatnonzero(first.units == patient) for patient in range(90)]
    draws = [np.concatenate([rows[i] for i in rng.integers(90, size=90)]) for _ in range(200)]
    for name, reference in REFERENCES.items():
        gap = found.difference[name]
        value = reference(truth, first.predicted) - reference(truth, second.predicted)
        assert gap.value == pytest.approx(value, abs=1e-12) and gap.low is not None and gap.high is not None
        gaps = [reference(truth[d], first.predicted[d]) - reference(truth[d], second.predicted[d]) for d in draws]
        low, high = np.quantile(gaps, [0.025, 0.975])
        assert (gap.low, gap.high) == pytest.approx((low, high), abs=0.12 * (high - low)), name
        assert found.overall[name].value == pytest.approx(reference(truth, second.predicted))


def test_the_numbers_of_classes_stay_and_kappa_decides() -> None:
    first, second = pair()
    found, plain = compare_grades(first, second), compare_predictions(first, second)
    assert list(found.difference) == list(found.overall) == list(GRADE_METRICS)
    assert list(found.tests) == ["quadratic_kappa", "grade_error", "auroc", "accuracy"]
    assert {name: found.difference[name] for name in plain.difference} == plain.difference
    for name in ("quadratic_kappa", "grade_error"):
        gap, p = found.difference[name], found.tests[name].p
        assert gap.low is not None and gap.high is not None
        assert (p < 0.05) == (gap.low > 0 or gap.high < 0)


def test_the_same_grades_differ_by_nothing_and_other_images_are_refused() -> None:
    first, second = pair()
    found = compare_grades(first, first)
    for name in REFERENCES:
        assert (found.difference[name].value, found.difference[name].low, found.difference[name].high) == (0, 0, 0)
    assert found.tests["quadratic_kappa"].p == 1
    with pytest.raises(DataError, match="not of the same images"):
        compare_grades(first, second.take(np.arange(10)))


def test_the_kappa_of_a_baseline_has_the_interval_of_its_own_report() -> None:
    rng = np.random.default_rng(0)
    labels, logits = rng.integers(3, size=90), rng.normal(size=(90, 3)).astype(np.float32)
    p = Predictions(tuple("abc"), tuple(map(str, range(90))), None, labels, logits)
    other = replace(p, logits=logits[::-1].copy())
    beside = PreparedGrades.compare(p, other).overall["quadratic_kappa"]
    assert beside == PreparedGrades.evaluate(other).overall["quadratic_kappa"] and beside.low is not None
