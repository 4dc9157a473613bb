"""Grades against scikit-learn and by hand: kappa, costs and cuts."""

from dataclasses import replace

import numpy as np
import pytest
from every_kind import grade_values
from sklearn.metrics import cohen_kappa_score, roc_auc_score

from vitmed.metrics.kinds.classes import evaluate_predictions, metric_values
from vitmed.metrics.kinds.grades import grade_costs, kappa_of_sums, kappa_summands, predictions_at_cut
from vitmed.metrics.metric_table import GRADE_METRICS, METRICS
from vitmed.metrics.predictions import Predictions, softmax

KL = ("KL0", "KL1", "KL2", "KL3", "KL4")


def draw(size: int = 400, patients: int | None = None, seed: int = 0) -> Predictions:
    """Five grades with a noisy model; the calibrated probabilities differ from the softmax of the logits."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(5, size, p=[0.35, 0.15, 0.25, 0.15, 0.1])
    seen = labels + rng.normal(0, 0.9, size)
    logits = (-1.2 * (seen[:, None] - np.arange(5)) ** 2).astype(np.float32)
    groups = None if patients is None else tuple(f"P{i % patients}" for i in range(size))
    paths = tuple(f"{i}.png" for i in range(size))
    return Predictions(KL, paths, groups, labels, logits, calibrated=softmax(0.6 * logits.astype(np.float64)))


def test_the_values_are_scikit_learns_beside_those_of_classes() -> None:
    p = draw()
    found = grade_values(p)
    assert list(found) == list(GRADE_METRICS) and {name: found[name] for name in METRICS} == metric_values(p)
    for name, weights in (("quadratic_kappa", "quadratic"), ("linear_kappa", "linear")):
        assert found[name] == pytest.approx(cohen_kappa_score(p.labels, p.predicted, weights=weights))
    assert found["grade_error"] == np.abs(p.labels - p.predicted).mean()


def test_kappa_by_hand_and_without_a_choice() -> None:
    """Grades 0 1 2 2 and 0 2 2 1: squared distances sum to 2, by chance to (9 + 3 + 10) / 4: 1 - 2 / 5.5."""
    first, second = np.array([0, 1, 2, 2]), np.array([0, 2, 2, 1])
    costs = grade_costs(3, "squared")
    assert kappa_of_sums(kappa_summands(first, second, costs).sum(axis=0), costs) == pytest.approx(1 - 2 / 5.5)
    alike, unweighted = np.array([1, 1]), 1 - np.eye(2)
    assert np.isnan(kappa_of_sums(kappa_summands(alike, alike, unweighted).sum(axis=0), unweighted))


def test_costs_decide_for_the_median_and_for_the_grade_nearest_to_the_mean() -> None:
    rng = np.random.default_rng(3)
    chances = rng.dirichlet(np.full(6, 0.4), 2000)
    p = Predictions(tuple("abcdef"), ("x",) * 2000, None, None, np.log(chances).astype(np.float32), calibrated=chances)
    median = (np.cumsum(chances, axis=1) < 0.5).sum(axis=1)
    nearest = np.rint(chances @ np.arange(6))
    absolute, squared = (replace(p, costs=grade_costs(6, kind)).predicted for kind in ("absolute", "squared"))
    assert absolute.tolist() == median.tolist() and squared.tolist() == nearest.tolist()
    assert (p.predicted != median).mean() > 0.1 and (p.predicted != nearest).mean() > 0.1


def test_a_cut_is_a_prediction_of_two_classes() -> None:
    p = draw()
    for cut in range(1, 5):
        two = predictions_at_cut(p, cut)
        assert two.classes == (f"below KL{cut}", f"KL{cut} or higher") and two.positive == two.classes[1]
        assert two.probabilities[:, 1] == pytest.approx(p.probabilities[:, cut:].sum(axis=1))
        assert softmax(two.logits)[:, 1] == pytest.approx(softmax(p.logits)[:, cut:].sum(axis=1), abs=1e-6)
        found = evaluate_predictions(two)
        own = found.per_class[two.classes[1]]
        assert own.auroc.value == pytest.approx(roc_auc_score(p.labels >= cut, p.probabilities[:, cut:].sum(axis=1)))
        assert own.sensitivity.value == pytest.approx((p.predicted >= cut)[p.labels >= cut].mean())
        assert own.specificity.value == pytest.approx((p.predicted < cut)[p.labels < cut].mean())
        by_probability = replace(two, decided=None)
        assert by_probability.predicted.tolist() == (two.probabilities[:, 1] >= 0.5).astype(int).tolist()
        costed = replace(p, costs=grade_costs(5, "squared").tolist())  # the costs of five grades decide no cut
        assert (
            replace(predictions_at_cut(costed, cut), decided=None).predicted.tolist()
            == by_probability.predicted.tolist()
        )


def test_a_grade_that_is_certain_keeps_its_cut() -> None:
    logits = np.array([[0.0, -400.0, -800.0]], np.float32)
    two = predictions_at_cut(Predictions(("a", "b", "c"), ("x",), None, None, logits), 2)
    assert two.logits.tolist() == [[0.0, -800.0]] and two.probabilities.tolist() == [[1.0, 0.0]]
