"""The policy of findings: what it decides replaces earlier decisions, and few patients choose nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitmed.core.config import EvaluateConfig
from vitmed.decisions.policy import UNLIKE, UNSURE, choose_policy, count_answers, policy_of
from vitmed.metrics.kinds.findings import FindingPredictions


def draw(patients: bool = True) -> FindingPredictions:
    """80 images of 20 patients; "rare" is in all eight images of two patients."""
    rng, owner = np.random.default_rng(0), np.arange(80) // 4
    labels = np.stack([rng.integers(0, 2, 80), owner < 2], axis=1).astype(np.int8)
    logits = (2 * labels - 1 + rng.normal(size=(80, 2))).astype(np.float32)
    groups = tuple(f"P{i}" for i in owner) if patients else None
    return FindingPredictions(("edema", "rare"), tuple(map(str, range(80))), groups, labels, logits)


def test_few_are_counted_by_patient_where_patients_are_known() -> None:
    config = EvaluateConfig(target_sensitivity=0.9)
    by_patient, by_image = (choose_policy(draw(known), config) for known in (True, False))
    assert by_patient.few == ("rare",) and by_patient.findings["rare"].operating.threshold is None
    assert "For rare, validation has fewer than 5 patients with the finding, or without it" in " ".join(
        by_patient.notes
    )
    assert by_image.few == () and by_image.findings["rare"].operating.threshold is not None
    assert policy_of(by_patient.model_dump(mode="json"), ("edema", "rare")) == by_patient


@pytest.mark.parametrize(("holders", "few"), [(4, ("rare",)), (5, ()), (15, ()), (16, ("rare",))])
def test_five_patients_with_a_finding_and_five_without_are_enough(holders: int, few: tuple[str, ...]) -> None:
    p = draw()
    labels = p.labels.copy()
    labels[:, 1] = np.arange(80) // 4 < holders
    found = choose_policy(replace(p, labels=labels), EvaluateConfig(youden=True))
    assert (found.few, found.unit, found.n) == (few, "patients", 80)
    assert found.findings["rare"].calibration.note == (
        "switched off" if few else found.findings["rare"].calibration.note
    )
    assert (found.findings["rare"].operating.chosen == "youden") == (not few)
    assert ("a probability of 0.5 decides, without calibration" in " ".join(found.notes)) == bool(few)


def test_what_is_not_answered_and_what_cannot_be_excluded() -> None:
    """By finding: the reason names the findings that are too unsure, and the set those that are possible."""
    p = draw()
    policy = choose_policy(p, EvaluateConfig(coverage=0.9, max_risk=0.4, calibration="none"))
    found = policy.apply(replace(p, columns={"ood_score": ("0.5",) * 79 + ("2",), "site": ("N",) * 80}))
    assert list(found.columns) == ["ood_score", "set", "answer", "site"]
    for f, name in enumerate(p.classes):
        own = policy.findings[name].apply(replace(p, labels=None).of(name))
        unsure = ["too unsure" in cell for cell in own.columns["answer"]]
        assert [f"{name} is too unsure" in cell for cell in found.columns["answer"]] == unsure
        assert found.probabilities[:, f].tolist() == own.probabilities[:, 1].tolist()
        members = own.members[:, 1] if own.members is not None else own.predicted == 1
        assert found.members[:, f].tolist() == members.tolist()
        assert [name in cell.split(" | ") for cell in found.columns["set"]] == members.tolist()
    assert found.columns["answer"][79].startswith("no: unlike the training images")
    assert {"yes"} < set(found.columns["answer"]) and (found.labels == p.labels).all()
    with pytest.raises(ValueError, match="findings: expected edema, mass, found edema, rare"):
        policy_of(policy.model_dump(mode="json"), ("edema", "mass"))
    limited = choose_policy(p, EvaluateConfig(target_sensitivity=0.9, calibration="temperature"))
    at = limited.findings["edema"].operating.threshold
    assert limited.summary == f"1 of 2 findings calibrated; called at a probability of: edema {at:.3g}"
    assert policy.summary == "0 of 2 findings calibrated"


def test_without_sets_the_findings_that_are_called_are_those_that_cannot_be_excluded() -> None:
    p = draw(patients=False)
    policy = choose_policy(p, EvaluateConfig(coverage=0.999))  # 80 images are too few for it
    assert all(one.prediction_sets is None for one in policy.findings.values())
    found = policy.apply(p)
    assert np.array_equal(found.members, found.predicted) and found.predicted.any() and not found.predicted.all()


def test_a_policy_decides_anew_what_others_decided() -> None:
    p = draw()
    policy = choose_policy(p, EvaluateConfig(target_sensitivity=0.9))
    plain = policy.apply(p)
    again = policy.apply(replace(p, decided=~plain.predicted))
    assert np.array_equal(again.predicted, plain.predicted) and again.columns == plain.columns
    limit = policy.findings["edema"].operating.threshold
    assert np.array_equal(again.predicted[:, 0], again.probabilities[:, 0] >= limit)


def test_a_finding_of_too_few_patients_is_never_excluded() -> None:
    """Of 80 images, 8 have it: 9 are the fewest from which a set of 90 % excludes anything."""
    p = replace(draw(), groups=None)
    found = choose_policy(p, EvaluateConfig(coverage=0.9)).apply(replace(p, labels=None))
    assert found.members[:, 1].all() and not found.predicted[:, 1].all() and not found.members[:, 0].all()


def test_a_finding_with_a_comma_is_one_reason() -> None:
    cells = (f"no: {UNLIKE}, fracture, old is {UNSURE}, rare is {UNSURE}", f"no: fracture, old is {UNSURE}", "yes")
    p = draw().take(np.arange(3))
    found = count_answers(replace(p, columns={"answer": cells}))
    assert found is not None
    assert found.unanswered == {f"fracture, old is {UNSURE}": 2, UNLIKE: 1, f"rare is {UNSURE}": 1}
