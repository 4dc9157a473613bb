"""The policy of findings: what it decides replaces earlier decisions, and few patients choose nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vitmed.core.evaluate_config import EvaluateConfig
from vitmed.decisions.finding_policy import FindingPolicy, choose_finding_policy
from vitmed.metrics.finding_predictions import FindingPredictions


def draw(patients: bool = True) -> FindingPredictions:
    """80 images of 20 patients; "rare" is in all eight images of two patients."""
    rng, owner = np.random.default_rng(0), np.arange(80) // 4
    labels = np.stack([rng.integers(0, 2, 80), owner < 2], axis=1).astype(np.int8)
    logits = (2 * labels - 1 + rng.normal(size=(80, 2))).astype(np.float32)
    groups = tuple(f"P{i}" for i in owner) if patients else None
    return FindingPredictions(("edema", "rare"), tuple(map(str, range(80))), groups, labels, logits)


def test_few_are_counted_by_patient_where_patients_are_known() -> None:
    config = EvaluateConfig(target_sensitivity=0.9)
    by_patient, by_image = (choose_finding_policy(draw(known), config) for known in (True, False))
    assert by_patient.few == ("rare",) and by_patient.findings["rare"].operating.threshold is None
    assert "fewer than 5 patients with, or without, rare" in " ".join(by_patient.notes)
    assert by_image.few == () and by_image.findings["rare"].operating.threshold is not None
    assert FindingPolicy.of(by_patient.model_dump(mode="json"), ("edema", "rare")) == by_patient


def test_a_policy_decides_anew_what_others_decided() -> None:
    p = draw()
    policy = choose_finding_policy(p, EvaluateConfig(target_sensitivity=0.9))
    plain = policy.apply(p)
    again = policy.apply(replace(p, decided=~plain.predicted))
    assert np.array_equal(again.predicted, plain.predicted) and again.columns == plain.columns
    limit = policy.findings["edema"].operating.threshold
    assert np.array_equal(again.predicted[:, 0], again.probabilities[:, 0] >= limit)
