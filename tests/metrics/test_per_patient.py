"""The spread over patients, against binomial tests and by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from vitmed.metrics.patient_level import outside, per_patient, shares
from vitmed.metrics.predictions import Predictions


def draw(images: list[int], wrong: list[int]) -> Predictions:
    """Patients in order, with that many images and wrong ones; half of the images are of each class."""
    labels = np.concatenate([np.arange(n) % 2 for n in images])
    predicted = labels.copy()
    start = 0
    for n, bad in zip(images, wrong, strict=True):
        predicted[start : start + bad] = 1 - labels[start : start + bad]
        start += n
    groups = tuple(f"SECRET{i}" for i, n in enumerate(images) for _ in range(n))
    return Predictions(("no", "yes"), groups, groups, labels, np.eye(2, dtype=np.float32)[predicted])


def test_shares_and_the_worst_by_hand() -> None:
    p = draw([10, 20, 10], [1, 4, 4])
    images, right = shares(p)["accuracy"]
    assert images.tolist() == [10, 20, 10] and right.tolist() == [9, 16, 6]
    images, right = shares(p)["sensitivity"]
    assert images.tolist() == [5, 10, 5] and right.tolist() == [5, 8, 3]
    told = per_patient(p)
    assert told["errors"] == 9
    assert [worst.to_dict() for worst in told["worst"]] == [  # of as many errors, first who has fewer images
        {"patient": 3, "n": 10, "errors": 4, "accuracy": 0.6},
        {"patient": 2, "n": 20, "errors": 4, "accuracy": 0.8},
        {"patient": 1, "n": 10, "errors": 1, "accuracy": 0.9},
    ]
    spread = told["spread"]["accuracy"]
    assert (spread["n"], spread["min"], spread["median"], spread["max"]) == (3, 0.6, 0.8, 0.9)
    assert "heap" not in told and "SECRET" not in json.dumps(told.to_dict(), allow_nan=False)


def test_who_is_outside_the_limits() -> None:
    images, right = np.array([40, 40, 40, 40]), np.array([39, 38, 37, 20])
    overall = right.sum() / images.sum()
    expected = [
        min(stats.binom.cdf(k, n, overall), stats.binom.sf(k - 1, n, overall)) < 0.025
        for n, k in zip(images, right, strict=True)
    ]
    assert outside(images, right).tolist() == expected and expected[-1]
    assert not outside(images, images).any()  # all right: nobody differs
    rng = np.random.default_rng(0)
    alike = outside(np.full(5000, 100), rng.binomial(100, 0.8, 5000))
    assert 0.02 < alike.mean() < 0.055  # discrete, so at most 5 %


def test_the_share_of_the_worst_beside_chance() -> None:
    wrong = [18, 15, 12, 9, 6] + [0] * 15
    told = per_patient(draw([20] * 20, wrong))
    assert told["heap"]["share"] == 1.0 and told["heap"]["images"] == pytest.approx(0.25)
    assert 0.3 < told["heap"]["by_chance"] < 0.5  # more than a quarter: the worst are picked
    rng = np.random.default_rng(1)
    alike = per_patient(draw([50] * 40, rng.binomial(50, 0.2, 40).tolist()))
    assert alike["heap"]["share"] == pytest.approx(alike["heap"]["by_chance"], abs=0.04)


def test_nothing_to_spread() -> None:
    assert per_patient(replace(draw([5, 5], [1, 0]), groups=None)) is None
    assert per_patient(draw([9], [2]))["reason"] == "there is one patient"  # type: ignore[index]
    assert per_patient(draw([1, 1, 1], [1, 0, 0]))["reason"] == "each patient has one image"  # type: ignore[index]
    few = per_patient(draw([2, 3, 2], [0, 0, 0]))
    assert "fewer than two patients" in few["spread"]["accuracy"]["reason"] and few["worst"] == []
    many = per_patient(replace(draw([8, 8], [1, 0]), classes=("a", "b", "c"), logits=np.zeros((16, 3), np.float32)))
    assert list(many["spread"]) == ["accuracy"]
