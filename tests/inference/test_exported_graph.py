"""The decisions of an exported graph beside those of the policy, which numpy computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vitmed.core.base_models import Target
from vitmed.core.config import EvaluateConfig
from vitmed.decisions.out_of_distribution import fit_ood_score
from vitmed.decisions.policy import choose_policy
from vitmed.inference.exported_graph import OodScoreGraph, decisions_of
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import ANSWER, SET, YES

S = 400
PATHS = tuple(f"{i}.png" for i in range(S))
RNG = np.random.default_rng(0)


def of_classes(k: int) -> Predictions:
    """Classes that the logits predict in most images; the last class is rare."""
    labels = np.minimum(RNG.integers(0, k + 1, S), k - 1)
    logits = RNG.normal(0, 1.5, (S, k)) + 2.0 * np.eye(k)[labels]
    return Predictions(tuple("abcdefg"[:k]), PATHS, None, labels, logits.astype(np.float32))


def in_graph(graph: nn.Module, logits: np.ndarray) -> dict[str, np.ndarray]:
    *found, answered = graph(torch.from_numpy(logits).double())
    names: Any = graph.outputs
    return {name: value.numpy() for name, value in zip(names, found, strict=True)} | {"answered": answered.numpy()}


@pytest.mark.parametrize(
    ("classes", "settings"),
    [
        (2, {}),
        (2, {"youden": True, "max_risk": 0.1}),
        (2, {"target_sensitivity": 0.95, "calibration": "none"}),
        (5, {"calibration": "vector", "max_risk": 0.2}),
        (5, {"balanced": True}),
        (3, {"cost": [[0, 1, 5], [2, 0, 1], [9, 1, 0]], "calibration": "temperature"}),
    ],
)
def test_decisions_of_classes(classes: int, settings: dict[str, Any]) -> None:
    validation = of_classes(classes)
    policy = choose_policy(validation, EvaluateConfig(**settings))
    other = of_classes(classes).logits
    decided = policy.apply(Predictions(validation.classes, PATHS, None, None, other))
    found = in_graph(decisions_of(policy, Target(), validation.classes), other)
    np.testing.assert_allclose(found["probabilities"], decided.probabilities, atol=1e-6)
    np.testing.assert_array_equal(found["prediction"], decided.predicted)
    members = [" | ".join(np.array(validation.classes)[row]) for row in found["in_set"]]
    assert members == list(decided.columns[SET])
    np.testing.assert_array_equal(found["answered"], [cell == YES for cell in decided.columns[ANSWER]])


def test_decisions_of_findings() -> None:
    names, labels = ("edema", "effusion", "rare"), RNG.integers(0, 2, (S, 3)).astype(np.int8)
    labels[:, 2] = np.arange(S) == 0  # too few for a threshold
    logits = (RNG.normal(0, 1, (S, 3)) + 2.5 * labels - 1).astype(np.float32)
    validation = FindingPredictions(names, PATHS, None, labels, logits)
    policy = choose_policy(validation, EvaluateConfig(target_sensitivity=0.9, max_risk=0.15))
    assert "rare" in policy.few and "edema" not in policy.few
    other = RNG.normal(0, 2, (S, 3)).astype(np.float32)
    decided = policy.apply(FindingPredictions(names, PATHS, None, None, other))
    found = in_graph(decisions_of(policy, Target(kind="findings"), names), other)
    np.testing.assert_allclose(found["probabilities"], decided.probabilities, atol=1e-6)
    np.testing.assert_array_equal(found["prediction"], decided.predicted)
    assert [" | ".join(np.array(names)[row]) for row in found["in_set"]] == list(decided.columns[SET])
    np.testing.assert_array_equal(found["answered"], [cell == YES for cell in decided.columns[ANSWER]])


def test_decisions_of_a_number() -> None:
    target = Target(kind="number", unit="years", centre=50.0, spread=12.0)
    logits = RNG.normal(0, 1, (S, 2)).astype(np.float32)
    ages = 50 + 12 * logits[:, 0] + RNG.normal(0, 5, S)
    validation = NumberPredictions(("age",), PATHS, None, ages, logits, target=target)
    policy = choose_policy(validation, EvaluateConfig())
    decided = policy.apply(validation)
    found = in_graph(decisions_of(policy, target, ("age",)), logits)
    np.testing.assert_allclose(found["value"], decided.values, rtol=1e-6)
    assert decided.intervals is not None
    np.testing.assert_allclose(found["interval"], decided.intervals, rtol=1e-5, atol=1e-4)


def test_the_ood_score_is_that_of_the_policy() -> None:
    train, labels = RNG.normal(0, 1, (300, 8)), RNG.integers(0, 3, 300)
    fitted = fit_ood_score(train, labels, RNG.normal(0, 1, (100, 8)))
    assert fitted is not None
    features = RNG.normal(0, 3, (50, 8)).astype(np.float32)
    found = OodScoreGraph(fitted)(torch.from_numpy(features)).numpy()
    np.testing.assert_allclose(found, fitted.score(features), rtol=1e-5)
