"""Sensitivity at a fixed specificity: values against scikit-learn's ROC curve, intervals against a slow loop."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binomtest, t
from sklearn.metrics import roc_curve

from vitmed.core.config import EvaluateConfig
from vitmed.metrics.areas import GRID, LEVELS, fixed_rates, reached_at
from vitmed.metrics.bootstrap import bootstrap_weights
from vitmed.metrics.intervals import Units, share
from vitmed.metrics.predictions import Predictions


def draw(positives: int, negatives: int, distance: float = 2.0, seed: int = 0, patients: int = 0) -> Predictions:
    """Rounded scores, so that some tie."""
    rng, n = np.random.default_rng(seed), positives + negatives
    truth = np.arange(n) < positives
    of = rng.integers(max(1, patients), size=n)
    own = np.sqrt(0.4) * rng.normal(size=max(1, patients))[of] if patients else 0.0
    scores = np.round(distance * truth + own + np.sqrt(0.6 if patients else 1.0) * rng.normal(size=n), 1)
    logits = np.stack([np.zeros(n), scores], axis=1).astype(np.float32)
    groups = tuple(f"p{i}" for i in of) if patients else None
    return Predictions(("no", "yes"), tuple(map(str, range(n))), groups, truth.astype(np.int64), logits)


def of_sklearn(p: Predictions, rows: np.ndarray, level: float) -> float:
    fpr, tpr, _ = roc_curve(p.labels[rows] == 1, p.probabilities[rows, 1], drop_intermediate=False)
    return float(tpr[1 - fpr >= level - 1e-9].max())


@pytest.mark.parametrize("patients", [0, 30])
def test_values_are_those_of_scikit_learns_curve(patients: int) -> None:
    p = draw(150, 400, patients=patients)
    found, everything = fixed_rates(p, EvaluateConfig(resamples=20)), np.arange(550)
    assert found.positive == "yes"
    assert [one.fixed for one in found.sensitivity] == list(LEVELS)
    for one in [*found.sensitivity, *found.band]:
        assert one.reached.value == pytest.approx(of_sklearn(p, everything, one.fixed))
    assert [one.fixed for one in found.band] == list(GRID)


@pytest.mark.parametrize("patients", [0, 40])
def test_intervals_are_wilsons_with_the_variance_of_resamples_that_choose_their_own_threshold(patients: int) -> None:
    p = draw(200, 300, patients=patients)
    found = fixed_rates(p, EvaluateConfig(resamples=60))
    one = found.sensitivity[1]  # at 0.9
    slow = []
    for row in np.concatenate(list(bootstrap_weights(p.units, 60, seed=0))):
        slow.append(of_sklearn(p, np.repeat(np.arange(len(p)), row.astype(int)), 0.9))
    sizes = np.bincount(p.units[p.labels == 1])  # of those who have the class, whose images are alike by 0.05
    sizes = sizes[sizes > 0] * (1 + 0.05 * (sizes[sizes > 0] - 1))
    degrees = min(p.units.max(), sizes.sum() ** 2 / (sizes**2).sum() - 1) if patients else p.units.max()
    value, reach = one.reached.value, t.ppf(0.975, degrees)
    effective = value * (1 - value) / np.var(slow, ddof=1)

    def score(true: float) -> float:  # Wilson's limits are the true shares that lie `reach` standard errors away
        return (value - true) ** 2 - reach**2 * true * (1 - true) / effective

    limits = brentq(score, 0, value), brentq(score, value, 1)
    assert (one.reached.low, one.reached.high) == pytest.approx(limits)
    assert one.reached.method == "wilson-bootstrap" and not one.too_few


def test_an_interval_is_no_narrower_than_at_a_known_threshold_and_an_error_does_not_look_better_than_none() -> None:
    """Five patients of one to six images have the class: 16 of 16 above the threshold, 15 of 16, and 14."""
    negatives, sizes = np.repeat(np.arange(5, 155), 2), [1, 2, 3, 4, 6]
    units, lows = Units(np.concatenate([np.repeat(np.arange(5), sizes), negatives])), []
    for wrong in range(3):
        scores = np.concatenate([np.where(np.arange(16) < wrong, -9.0, 9.0), np.linspace(-1, 1, len(negatives))])
        truth = np.arange(len(scores)) < 16
        (one,) = reached_at(scores, truth, (0.8,), units, 100)
        known = share(scores > 1, truth, units)
        assert one.reached.value == known.value == (16 - wrong) / 16
        assert one.reached.low <= known.low and one.reached.high >= known.high
        lows.append(one.reached.low)
    assert lows[0] > max(lows[1:])


def test_too_few_images_give_no_interval() -> None:
    """Of 120 negatives 6 lie above a specificity of 0.95, and 1.2 above 0.99."""
    found = fixed_rates(draw(80, 120), EvaluateConfig(resamples=50))
    assert [one.too_few for one in found.sensitivity] == [False, False, False, True]
    assert found.sensitivity[3].reached.low is None and found.sensitivity[3].reached.value is not None
    few = fixed_rates(draw(4, 500), EvaluateConfig(resamples=50))
    assert all(one.too_few and one.reached.low is None for one in (*few.sensitivity, *few.band))


def test_without_resamples_there_is_no_interval_and_a_perfect_share_has_that_of_a_proportion() -> None:
    p = draw(100, 100, distance=20.0)
    assert fixed_rates(p, EvaluateConfig(resamples=0)).sensitivity[0].reached.low is None
    found = fixed_rates(p, EvaluateConfig(resamples=50)).sensitivity[0].reached
    assert (found.value, found.method) == (1.0, "wilson")
    assert found.low == pytest.approx(binomtest(100, 100).proportion_ci(method="wilson").low)


@pytest.mark.filterwarnings("error")
def test_one_resample_gives_no_interval_and_no_warning() -> None:
    assert fixed_rates(draw(100, 100), EvaluateConfig(resamples=1)).sensitivity[0].reached.low is None


def test_there_is_none_with_more_classes_or_images_of_one() -> None:
    three = Predictions(("a", "b", "c"), ("x",) * 3, None, np.arange(3), np.eye(3, dtype=np.float32))
    assert fixed_rates(three, EvaluateConfig()) is None and fixed_rates(draw(5, 0), EvaluateConfig()) is None
