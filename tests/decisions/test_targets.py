"""What is watched of each kind of label, against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitmed.core.base_models import Target
from vitmed.decisions.targets import TARGETS, watch_classes, watch_number
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions

CHANCES = np.array([0.9, 0.2, 0.6, 0.4])  # of sick


def two_classes(labels: list[int] | None = None) -> Predictions:
    logits = np.stack([np.zeros(4), np.log(CHANCES / (1 - CHANCES))], axis=1).astype(np.float32)
    columns = {"ood_score": ("0.5", "1.5", "0.9", "1.0"), "answer": ("yes", "no: unlike", "yes", "yes")}
    known = None if labels is None else np.array(labels)
    return Predictions(("healthy", "sick"), tuple("abcd"), None, known, logits, columns=columns)


def test_classes_without_labels() -> None:
    found = watch_classes(two_classes())
    assert list(found) == ["probability of sick", "unlike the training images", "not answered"]
    assert found["probability of sick"].values == pytest.approx(CHANCES)
    assert found["unlike the training images"].values.tolist() == [False, True, False, False]
    assert found["not answered"].values.tolist() == [False, True, False, False]


def test_classes_with_labels() -> None:
    found = watch_classes(two_classes([1, 1, 0, 0]))  # predicted: sick, healthy, sick, healthy
    assert found["calibration of sick"].values == pytest.approx([0.1, 0.8, -0.6, -0.4])
    assert found["sensitivity of sick"].values[:2].tolist() == [1, 0]
    assert np.isnan(found["sensitivity of sick"].values[2:]).all()
    assert found["specificity of sick"].values[2:].tolist() == [0, 1]
    assert (found["probability of sick"].ends, found["calibration of sick"].ends) == ((0, 1), (-1, 1))
    assert {name: (one.sides, one.share, one.least) for name, one in found.items()} == {
        "probability of sick": (("rise", "fall"), False, 0.05),
        "unlike the training images": (("rise",), True, 0),
        "not answered": (("rise",), True, 0),
        "calibration of sick": (("rise", "fall"), False, 0.05),
        "sensitivity of sick": (("fall",), True, 0),
        "specificity of sick": (("fall",), True, 0),
    }  # of two classes there is no accuracy


def test_of_three_classes_each_is_watched() -> None:
    logits = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    p = Predictions(tuple("xyz"), tuple("abcd"), None, np.array([0, 1, 1, 0]), logits)
    found = watch_classes(p)
    assert found["accuracy"].values.tolist() == [True, True, False, True]
    assert (found["accuracy"].sides, found["accuracy"].share) == (("fall",), True)
    assert [name for name in found if name.startswith("sensitivity")] == [f"sensitivity of {name}" for name in "xyz"]
    assert np.nanmean(found["sensitivity of y"].values) == 0.5
    assert np.nanmean(found["specificity of z"].values) == 0.75
    assert TARGETS["classes"].guess(p) == 1 / 3  # balanced accuracy of one answer for all images


def test_an_unknown_finding_does_not_count() -> None:
    logits = np.array([[2.0, -2.0], [-2.0, 2.0]], dtype=np.float32)
    labels = np.array([[1, -1], [1, 0]], dtype=np.int8)
    p = FindingPredictions(("edema", "mass"), ("a", "b"), None, labels, logits)
    found = watch_classes(p)
    assert TARGETS["findings"].guess(p) == 0.5  # an AUROC
    assert found["sensitivity of edema"].values.tolist() == [1, 0]
    assert np.isnan(found["sensitivity of mass"].values).all()
    calibration = found["calibration of mass"].values
    assert np.isnan(calibration[0]) and calibration[1] == pytest.approx(-1 / (1 + np.exp(-2)))
    assert found["probability of edema"].least == 0.05
    assert np.isnan(found["specificity of mass"].values[0]) and found["specificity of mass"].values[1] == 0


def test_a_number() -> None:
    target = Target(kind="number", unit="years", centre=50, spread=10)
    logits = np.array([[0.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    p = NumberPredictions(("age",), ("a", "b"), None, np.array([52.0, 75.0]), logits, target=target, reach=1.0)
    found = watch_number(p)
    assert list(watch_number(replace(p, reach=None))) == ["predicted number", "error", "absolute error"]
    assert list(watch_number(replace(p, labels=None))) == ["predicted number"]
    assert found["predicted number"].values.tolist() == [50, 60]
    assert TARGETS["number"].guess(p) == 13.5  # MAE of 50, the mean of the training images
    assert found["error"].values.tolist() == [-2, -15] and found["absolute error"].values.tolist() == [2, 15]
    assert found["true numbers inside the intervals"].values.tolist() == [True, False]
    assert {name: (one.sides, one.share, one.least) for name, one in found.items()} == {
        "predicted number": (("rise", "fall"), False, 0),
        "error": (("rise", "fall"), False, 0),
        "absolute error": (("rise",), False, 0),
        "true numbers inside the intervals": (("fall",), True, 0),
    }


def test_every_kind_of_label_is_watched() -> None:
    assert {name: kind.watch.__name__ for name, kind in TARGETS.items()} == {
        "classes": "watch_classes", "grades": "watch_classes", "findings": "watch_classes", "number": "watch_number",
    }  # fmt: skip


@pytest.mark.parametrize("kind", TARGETS)
def test_the_metric_that_chooses_the_epoch_is_printed_and_exists(kind: str) -> None:
    target = TARGETS[kind]
    assert target.monitor in target.headline
    assert {target.val_loss, *target.headline, *target.stress} <= set(target.metrics)
