"""Greedy selection of members, and its optimism."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import log_loss

from vitmed.decisions.selection import greedy_selection, loss_of, nested_predictions
from vitmed.metrics.ensembles import averaged
from vitmed.metrics.predictions import Predictions


def models(signals: list[float], images: int = 200, seed: int = 0, patients: int | None = None) -> list[Predictions]:
    """Models whose log odds are the truth times a signal, with noise of their own."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, images)
    groups = None if patients is None else tuple(f"P{i % patients}" for i in range(images))
    found = []
    for signal in signals:
        odds = signal * (2 * labels - 1) + rng.normal(0, 1, images)
        logits = np.stack([np.zeros(images), odds], axis=1).astype(np.float32)
        found.append(Predictions(("a", "b"), tuple(map(str, range(images))), groups, labels, logits))
    return found


def test_the_loss_is_that_of_scikit_learn() -> None:
    (one,) = models([1.0])
    assert loss_of(one) == pytest.approx(log_loss(one.labels, one.probabilities), abs=1e-6)


def test_good_models_are_taken_and_a_wrong_one_is_not() -> None:
    parts = models([1.5, 1.5, -3.0])
    shares = greedy_selection(parts)
    assert shares.sum() == pytest.approx(1) and shares[2] == 0 and min(shares[:2]) > 0.2
    assert loss_of(averaged(parts, shares)) < min(map(loss_of, parts))


def test_the_first_round_takes_the_best_alone_and_no_round_may_be_worse() -> None:
    parts = models([2.0, 0.1, 0.1])
    assert greedy_selection(parts, rounds=1).tolist() == [1, 0, 0]
    losses = [loss_of(averaged(parts, greedy_selection(parts, rounds))) for rounds in (1, 5, 25)]
    assert losses[0] >= losses[1] >= losses[2]


@pytest.mark.slow
def test_the_nested_loss_has_no_optimism() -> None:
    """Of twenty models of noise the chosen ones look better than chance, but not on images that did not choose them."""
    parts = models([0.0] * 20, images=120, patients=60)
    inside = loss_of(averaged(parts, greedy_selection(parts)))
    nested = nested_predictions(parts)
    assert sorted(nested.paths) == sorted(parts[0].paths)
    assert inside < np.log(2) - 0.01 < loss_of(nested)
    assert nested_predictions(models([1.0, 1.0], images=9)) is None  # too few to leave any out
