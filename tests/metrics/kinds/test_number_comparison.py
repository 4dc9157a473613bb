"""Two models of a number: differences against scikit-learn and by hand, intervals against a bootstrap of patients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from every_kind import compare_numbers
from scipy import stats
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from vitmed.core.base_models import Target
from vitmed.core.errors import DataError
from vitmed.metrics.kinds.number import NumberPredictions

AGE = Target(kind="number", unit="years", centre=50, spread=10)
REFERENCES = {"mae": mean_absolute_error, "rmse": root_mean_squared_error, "r2": r2_score}


def made(labels: np.ndarray, numbers: np.ndarray, each: int, **more: object) -> NumberPredictions:
    logits = np.stack([(numbers - 50) / 10, np.zeros(len(labels))], axis=1).astype(np.float32)
    groups = None if each == 1 else tuple(f"P{i // each}" for i in range(len(labels)))
    paths = tuple(map(str, range(len(labels))))
    return NumberPredictions(("age",), paths, groups, labels, logits, target=AGE, **more)  # type: ignore[arg-type]


def draw(patients: int = 80, each: int = 3, seed: int = 0) -> tuple[NumberPredictions, NumberPredictions]:
    """Two models whose errors go together; the second has larger ones."""
    rng, of = np.random.default_rng(seed), np.repeat(np.arange(patients), each)
    labels = 50 + 10 * rng.normal(size=patients)[of] + 3 * rng.normal(size=len(of))
    shared = rng.normal(size=len(of)) + rng.normal(size=patients)[of]
    numbers = [labels + scale * (shared + 0.7 * rng.normal(size=len(of))) for scale in (3, 4)]
    return made(labels, numbers[0], each), made(labels, numbers[1], each)


def test_differences_are_scikit_learns_and_intervals_those_of_a_bootstrap_of_patients() -> None:
    first, second = draw()
    found, rng = compare_numbers(first, second), np.random.default_rng(1)
    truth, rows = first.labels, np.arange(240).reshape(80, 3)
    draws = [rows[rng.integers(80, size=80)].ravel() for _ in range(250)]
    for name, reference in REFERENCES.items():
        gap = found.difference[name]
        value = reference(truth, first.values) - reference(truth, second.values)
        assert gap.value == pytest.approx(value, rel=1e-9) and gap.low is not None and gap.high is not None
        gaps = [reference(truth[d], first.values[d]) - reference(truth[d], second.values[d]) for d in draws]
        assert (gap.high - gap.low) / 2 == pytest.approx(2.0 * np.std(gaps), rel=0.15), name
        test = found.tests[name]
        assert test.p is not None and (test.p < 0.05) == (gap.low > 0 or gap.high < 0)
    assert list(found.tests)[:2] == ["mae", "rmse"]  # the first decides which is better


def test_the_difference_of_mean_absolute_errors_is_the_paired_t_test() -> None:
    """One image of each patient: the mean of differences of absolute errors, whose jackknife is the usual variance."""
    first, second = draw(each=1)
    found, labels = compare_numbers(first, second), first.labels
    errors = [np.abs(one.values - labels) for one in (first, second)]
    test, gap = found.tests["mae"], found.difference["mae"]
    assert test.statistic == pytest.approx(stats.ttest_rel(*errors).statistic, rel=1e-9)
    assert gap.value == pytest.approx(errors[0].mean() - errors[1].mean())
    assert gap.value is not None and gap.low is not None and gap.high is not None
    assert gap.high - gap.value == pytest.approx(gap.value - gap.low)


def test_coverage_and_width_need_the_intervals_of_both() -> None:
    first, second = draw()
    assert "coverage" not in compare_numbers(replace(first, reach=1.0), second).difference
    both = compare_numbers(replace(first, reach=1.0), replace(second, reach=2.0)).difference
    assert both["width"].value == pytest.approx(-20)  # scales of 10 years: 20 years wide, and 40
    assert both["coverage"].value is not None and both["coverage"].value < 0


def test_a_model_does_not_differ_from_itself_and_one_patient_shows_nothing() -> None:
    first, second = draw()
    same = compare_numbers(first, first)
    names = ("mae", "rmse", "bias", "r2", "ccc", "pearson", "crps", "log_score")  # coverage needs intervals
    assert {name: (gap.value, gap.low, gap.high) for name, gap in same.difference.items()} == dict.fromkeys(
        names, (0, 0, 0)
    )
    assert {name: test.p for name, test in same.tests.items()} == {"mae": 1, "rmse": 1, "r2": 1, "ccc": 1}
    alone = compare_numbers(*(replace(one, groups=("A",) * 240) for one in (first, second)))
    assert alone.difference["mae"].value is not None and alone.difference["mae"].low is alone.tests["mae"].p is None
    with pytest.raises(DataError, match="different labels"):
        compare_numbers(first, draw(seed=1)[0])


def test_other_standardisation_changes_no_number() -> None:
    first, _ = draw()
    other = first.like(replace(first, target=first.target.model_copy(update={"centre": 40.0, "spread": 25.0})))
    assert np.allclose(other.values, first.values, rtol=0, atol=1e-5) and np.allclose(other.scales, first.scales)
    assert (other.target.centre, other.target.spread, other.target.unit) == (40, 25, "years")
    assert first.like(first) is first
    back = other.like(first)
    assert back.target == first.target and np.allclose(back.logits, first.logits, atol=1e-6)
