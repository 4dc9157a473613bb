"""Greedy selection of members, and its optimism."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import log_loss

from vitmed.metrics.ensembles import averaged
from vitmed.metrics.predictions import Predictions
from vitmed.studies.ensemble import greedy_selection, loss_of, nested_predictions


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


def test_each_round_adds_the_model_that_lowers_the_loss_most_by_brute_force() -> None:
    parts = models([1.0, 0.8, 0.9, -1.0], images=60, seed=2)
    counts, best, kept = np.zeros(4), np.inf, None
    for _ in range(7):
        trials = [counts + one for one in np.eye(4)]
        mixed = [sum(n * part.probabilities for n, part in zip(t, parts, strict=True)) / t.sum() for t in trials]
        losses = [log_loss(parts[0].labels, one) for one in mixed]
        counts = trials[int(np.argmin(losses))]
        if min(losses) < best:
            best, kept = min(losses), counts / counts.sum()
    assert greedy_selection(parts, rounds=7) == pytest.approx(kept)


def test_each_image_is_predicted_by_models_chosen_without_its_patient() -> None:
    parts = models([1.0, 0.5], images=40, patients=10)
    found = nested_predictions(parts)
    assert sorted(found.paths) == sorted(parts[0].paths) and len(found) == 40
    owner = np.array([int(path) % 10 for path in found.paths])
    blocks = [set(owner[start : start + 8]) for start in range(0, 40, 8)]  # five parts of two patients
    assert all(len(block) == 2 for block in blocks) and set().union(*blocks) == set(range(10))
    place = {path: row for row, path in enumerate(parts[0].paths)}
    for start, block in zip(range(0, 40, 8), blocks, strict=True):
        rest = np.array([row for row in range(40) if row % 10 not in block])
        shares = greedy_selection([part.take(rest) for part in parts])
        rows = np.array([place[path] for path in found.paths[start : start + 8]])
        expected = averaged([part.take(rows) for part in parts], shares)
        assert found.probabilities[start : start + 8] == pytest.approx(expected.probabilities, abs=1e-6)
    assert (
        nested_predictions(models([1.0], images=9)) is None and nested_predictions(models([1.0], images=10)) is not None
    )


@pytest.mark.slow
def test_the_nested_loss_has_no_optimism() -> None:
    """Of twenty models of noise the chosen ones look better than chance, but not on images that did not choose them."""
    parts = models([0.0] * 20, images=120, patients=60)
    inside = loss_of(averaged(parts, greedy_selection(parts)))
    nested = nested_predictions(parts)
    assert sorted(nested.paths) == sorted(parts[0].paths)
    assert inside < np.log(2) - 0.01 < loss_of(nested)
    assert nested_predictions(models([1.0, 1.0], images=9)) is None  # too few to leave any out
