"""The card of weights: its program calibrates as the policy does; its header states the licence that must travel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from conftest import Trained

from vitmed.core.config import EvaluateConfig
from vitmed.decisions.calibration import Calibration
from vitmed.decisions.policy import choose_policy
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.report.model_card import program, weights_card


@pytest.mark.parametrize("method", ["temperature", "none", "vector"])
def test_findings_are_calibrated_as_the_policy_does(method: str) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (300, 2)).astype(np.int8)
    logits = (3 * labels - 1 + 2 * rng.normal(size=(300, 2))).astype(np.float32)
    predictions = FindingPredictions(("edema", "rare"), tuple(map(str, range(300))), None, labels, logits)
    policy = choose_policy(predictions, EvaluateConfig(calibration="none" if method == "vector" else method))
    if method == "vector":  # as 0.2.0 stored it
        fitted = Calibration(method=method, scale=(0.5, 2.0), bias=(0.3, -0.4))
        mended = {name: one.model_copy(update={"calibration": fitted}) for name, one in policy.findings.items()}
        policy = policy.model_copy(update={"findings": mended})
    text = program(Preprocessing(16, 3, "pad", "imagenet"), policy, "x")
    expression = text.splitlines()[-1].removeprefix("probabilities = ")
    found = eval(expression, {"logits": torch.from_numpy(logits), "torch": torch})
    np.testing.assert_allclose(found.numpy(), policy.apply(predictions).probabilities, atol=1e-6)


@pytest.mark.parametrize(
    ("weights", "licence", "stated", "words"),
    [
        (None, None, {"license": "unknown"}, "started from random weights"),
        ("/home/me/encoder.pt", None, {"license": "unknown"}, "started from encoder.pt, whose licence is not known"),
        (
            "dinov3_vits16", "LicenseRef-DINOv3",
            {"license": "other", "license_name": "dinov3", "base_model": "facebook/dinov3-vits16-pretrain-lvd1689m"},
            "only under this licence and with a copy of it",
        ),
        ("mae_vit_base", "CC-BY-NC-4.0", {"license": "unknown"}, "whose licence is CC-BY-NC-4.0"),
    ],
)  # fmt: skip
def test_the_licence_of_the_starting_weights(
    trained: Trained, weights: str | None, licence: str | None, stated: dict[str, str], words: str
) -> None:
    saved = load_checkpoint(trained.best)
    model = saved.config.model.model_copy(update={"weights": weights, "licence": licence})
    saved = replace(saved, config=saved.config.model_copy(update={"model": model}))
    card = weights_card(saved, "first", None)
    header = yaml.safe_load(card.split("---\n")[1])
    assert {name: header.get(name) for name in stated} == stated and words in card
    assert "padded with black, exactly as in training" in card and "may decide otherwise" in card
    assert "/home/me" not in card and "No test of these weights is known." in card
