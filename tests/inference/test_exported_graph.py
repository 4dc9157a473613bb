"""The decisions of an exported graph beside those of the policy, which numpy computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from vitmed.core.base_models import Target
from vitmed.core.config import EvaluateConfig
from vitmed.decisions.calibration import Calibration
from vitmed.decisions.out_of_distribution import fit_ood_score
from vitmed.decisions.policy import choose_policy
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.exported_graph import OodScoreGraph, PillowResize, decisions_of
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
        (5, {"max_risk": 0.2}),
        (5, {"balanced": True}),
        (3, {"cost": [[0, 1, 5], [2, 0, 1], [9, 1, 0]], "calibration": "temperature"}),
    ],
)
def test_decisions_of_classes(classes: int, settings: dict[str, Any]) -> None:
    validation = of_classes(classes)
    policy = choose_policy(validation, EvaluateConfig(**settings))
    if "max_risk" in settings and classes > 2:  # as 0.2.0 stored it
        scaled = Calibration(method="vector", scale=(2.0, 1.0, 0.5, 1.0, 1.5), bias=(0.5, 0.0, -1.0, 0.3, 0.0))
        policy = policy.model_copy(update={"calibration": scaled})
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


# (height, width), smaller and larger than 32; Pillow 13 takes the height of some tall ones first, and not of 131 x 90
SIZES = ((32, 32), (90, 131), (131, 90), (153, 90), (40, 300), (25, 21), (64, 17), (301, 12))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
@pytest.mark.parametrize("resize", ["pad", "squash", "crop"])
def test_the_square_is_that_of_pillow(resize: str, interpolation: str, channels: int) -> None:
    """To the bit, in the order of the Pillow that is installed."""
    how = Preprocessing(32, channels, resize, "half", interpolation=interpolation)
    rng, network = np.random.default_rng(0), PillowResize(how)
    for height, width in SIZES:
        coarse = rng.integers(0, 256, (max(1, height // 4), max(1, width // 4), channels), dtype=np.uint8)
        smooth = Image.fromarray(coarse.squeeze(2) if channels == 1 else coarse).resize((width, height))
        theirs = how.fit(smooth)
        images = torch.from_numpy(np.asarray(smooth).reshape(1, height, width, channels).copy())
        ours = network(images.expand(2, -1, -1, -1)).numpy()
        assert ours.shape == (2, 32, 32, channels) and (ours[0] == ours[1]).all()
        np.testing.assert_array_equal(ours[0], theirs, f"{height} x {width}")


@pytest.mark.parametrize("resize", ["pad", "squash", "crop"])
def test_the_nearest_pixel_is_that_of_pillow_where_a_centre_lies_between_two(resize: str) -> None:
    """Pillow adds up steps of 640 / 224 pixels, so the fourth centre lies just below 10."""
    how = Preprocessing(224, 3, resize, "half", interpolation="nearest")
    pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    for turned in (pixels, pixels.transpose(1, 0, 2).copy()):
        found = PillowResize(how)(torch.from_numpy(turned)[None])[0].numpy()
        assert np.array_equal(found, how.fit(Image.fromarray(turned)))


def test_a_square_of_the_right_size_is_unchanged() -> None:
    images = torch.randint(0, 256, (3, 24, 24, 3), dtype=torch.uint8)
    for interpolation in ("bilinear", "bicubic", "lanczos", "nearest"):
        how = Preprocessing(24, 3, "pad", "half", interpolation=interpolation)
        assert torch.equal(PillowResize(how)(images), images)
