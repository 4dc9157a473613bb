"""One answer per patient: combined by hand, evaluated as scikit-learn does, undefined where it must be."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics as sk
from scipy import stats

from vitmed.metrics.areas import youden_threshold
from vitmed.metrics.patient_level import (
    WAYS,
    combine,
    outside,
    patient_labels,
    patient_level,
    patient_predictions,
    per_patient,
    shares,
)
from vitmed.metrics.predictions import Predictions

INFECTED = ("infected", "uninfected")  # the positive class is the first


def said(positive: list[float], labels: list[int], groups: list[str]) -> Predictions:
    p = np.array(positive)
    logits = np.log(np.stack([p, 1 - p], axis=1)).astype(np.float32)
    return Predictions(INFECTED, tuple(f"{i}.png" for i in range(len(p))), tuple(groups), np.array(labels), logits)


def draw(patients: int = 40, images: int = 6, classes: int = 2, seed: int = 0, skill: float = 1.0) -> Predictions:
    """Patients of one class each, whose images resemble each other."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(patients) % classes, images)
    logits = rng.normal(size=(patients * images, classes))
    logits += np.repeat(rng.normal(size=(patients, classes)), images, axis=0)
    logits[np.arange(len(labels)), labels] += skill
    order = rng.permutation(len(labels))
    names = INFECTED if classes == 2 else tuple(f"c{i}" for i in range(classes))
    groups = tuple(f"SECRET{i // images}" for i in order)
    return Predictions(names, tuple(map(str, order)), groups, labels[order], logits[order].astype(np.float32))


def test_two_images_by_hand() -> None:
    """Of 0.2 and 0.6: mean 0.4, largest 0.6."""
    p = said([0.2, 0.9, 0.6], [1, 0, 1], ["A", "B", "A"])
    for way, expected in (("mean", 0.4), ("max", 0.6)):
        found = np.exp(combine(p, way))
        assert found.sum(axis=1) == pytest.approx(1)
        assert found[:, 0] == pytest.approx([expected, 0.9]), way
        assert patient_predictions(p, way).probabilities[:, 0] == pytest.approx([expected, 0.9], abs=1e-6)


@pytest.mark.parametrize("positive", [0, 1])
def test_the_positive_class_may_stand_first_or_second(positive: int) -> None:
    """Of 0.2 and 0.6: the same as above, in the column of the positive class; a mixed patient counts as positive."""
    p = np.array([0.2, 0.9, 0.6])
    logits = np.log(np.stack([p, 1 - p] if positive == 0 else [1 - p, p], axis=1)).astype(np.float32)
    names, labels = (("ill", "well"), [1, 0, 0]) if positive == 0 else (("well", "ill"), [0, 1, 1])
    q = Predictions(names, tuple("xyz"), ("A", "B", "A"), np.array(labels), logits, positive="ill")
    for way, expected in (("mean", 0.4), ("max", 0.6)):
        found = np.exp(combine(q, way))
        assert found[:, positive] == pytest.approx([expected, 0.9])
        assert found[:, 1 - positive] == pytest.approx([1 - expected, 0.1])
        assert patient_predictions(q, way).labels.tolist() == [positive, positive]


@pytest.mark.parametrize("way", ["mean", "max"])
def test_without_images_there_are_no_patients(way: str) -> None:
    assert combine(said([0.5], [0], ["A"]).take(np.arange(0)), way).shape == (0, 2)


def test_of_more_classes() -> None:
    """Largest of (.5, .3, .2) and (.2, .7, .1): (.5, .7, .2) / 1.4."""
    logits = np.log([[0.5, 0.3, 0.2], [0.2, 0.7, 0.1]]).astype(np.float32)
    p = Predictions(("a", "b", "c"), ("x", "y"), ("A", "A"), np.array([0, 0]), logits)
    assert np.exp(combine(p, "mean"))[0] == pytest.approx([0.35, 0.5, 0.15])
    assert np.exp(combine(p, "max"))[0] == pytest.approx([0.5 / 1.4, 0.5, 0.2 / 1.4])


def test_a_patient_with_one_positive_image_is_positive() -> None:
    p = said([0.5] * 5, [1, 0, 1, 1, 0], ["A", "A", "B", "", ""])
    labels, mixed = patient_labels(p)
    assert p.units.tolist() == [0, 0, 1, 2, 3]  # without a name each is its own
    assert labels.tolist() == [0, 1, 1, 0] and mixed == 1
    of_three = replace(p, classes=("a", "b", "c"), logits=np.zeros((5, 3), np.float32))
    assert patient_labels(of_three)[0].tolist() == [-1, 1, 1, 0]
    assert len(patient_predictions(of_three, "mean")) == 3


def test_the_numbers_are_those_of_sklearn_on_patients() -> None:
    p = draw()
    told = patient_level(p)
    assert told["n"] == told["labelled"] == 40
    names = list(dict.fromkeys(p.groups))
    truth = [int(p.labels[p.groups.index(name)] == 0) for name in names]
    own = [p.probabilities[[g == name for g in p.groups], 0] for name in names]
    by_hand = {
        "mean": [x.mean() for x in own],
        "max": [x.max() for x in own],
    }
    assert set(by_hand) == set(WAYS)
    for way, scores in by_hand.items():
        overall = told[way]["overall"]
        assert overall["auroc"]["value"] == pytest.approx(sk.roc_auc_score(truth, scores)), way
        called = np.array(scores) > 0.5
        assert overall["accuracy"]["value"] == pytest.approx(sk.accuracy_score(truth, called)), way
        sensitivity = told[way]["per_class"]["infected"]["sensitivity"]
        assert sensitivity["value"] == pytest.approx(sk.recall_score(truth, called)), way
        assert sensitivity["low"] <= sensitivity["value"] <= sensitivity["high"]
    assert "SECRET" not in json.dumps(told.to_dict(), allow_nan=False)


def test_youden_by_hand() -> None:
    scores, positive = np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True])
    assert youden_threshold(scores, positive) == pytest.approx(0.6)  # 1/2 + 1 - 1, the first of two as good
    assert youden_threshold(np.array([1.0, 2.0]), np.array([True, False])) is None  # J is 0 at best: nothing is called
    assert youden_threshold(np.array([1.0, 1.0]), np.array([True, False])) is None


@pytest.mark.parametrize(
    ("labels", "groups", "why"),
    [
        ([0, 1, 0, 1], ["A", "A", "B", "B"], r"all 2 patients count as 'infected' \(2 of them have images of both"),
        ([1, 1, 1, 1], ["A", "A", "B", "B"], "all 2 patients count as 'uninfected'$"),
        ([0, 1, 0, 1], ["A", "A", "A", "A"], "the one patient counts as"),
        ([0, 1, 0, 1], ["A", "B", "C", "D"], "each patient has one image"),
    ],
)
def test_where_it_is_undefined_it_says_why(labels: list[int], groups: list[str], why: str) -> None:
    told = patient_level(said([0.1, 0.6, 0.7, 0.2], labels, groups))
    assert re.search(why, told["reason"]) and not set(WAYS) & told.model_fields_set


def test_without_patients_there_is_nothing_to_say() -> None:
    p = draw()
    assert patient_level(replace(p, groups=None)) is None
    none = Predictions(INFECTED, (), (), np.zeros(0, np.int64), np.zeros((0, 2), np.float32))
    assert patient_level(none) is None


def test_few_patients_are_said() -> None:
    few = patient_level(said([0.2, 0.9, 0.6], [1, 0, 1], ["A", "B", "A"]))
    assert any("only 2 patients" in note for note in few["notes"])


def test_constant_scores_and_a_class_without_patients() -> None:
    p = replace(draw(classes=3), logits=np.zeros((240, 3), np.float32))
    told = patient_level(p)
    assert told["mean"]["overall"]["auroc"]["value"] == 0.5
    absent = replace(p, classes=("c0", "c1", "c2", "c3"), logits=np.zeros((240, 4), np.float32))
    told = patient_level(absent)
    assert "auroc of c3" in told["mean"]["undefined"]


def test_a_thousand_classes_stay_small() -> None:
    told = patient_level(draw(patients=200, images=2, classes=1000))
    assert len(json.dumps(told.to_dict())) < 2e5
    assert "reason" in told["max"] and told["mean"]["overall"]["accuracy"]["low"] is not None
    assert not any("no intervals by patient" in note for note in told["notes"])  # they are formulas, and quick


def test_a_class_of_many_patients_is_not_said_to_be_of_one() -> None:
    """Ten patients have a knee of grade c, and one has both; left out are the patients whose knees differ."""
    sides = [[0, 0]] * 8 + [[1, 1]] * 8 + [[2, 1]] * 9 + [[2, 2]]
    rng = np.random.default_rng(0)
    groups = tuple(f"P{i // 2}" for i in range(52))
    p = Predictions(("a", "b", "c"), groups, groups, np.ravel(sides), rng.normal(size=(52, 3)).astype(np.float32))
    notes = " ".join(patient_level(p)["notes"])
    assert "Class 'c' is the label of only 1 patient: " in notes and "come from one patient" not in notes


def test_a_handful_of_labelled_patients_says_nothing() -> None:
    """Of three classes, nearly all patients have images of several, and the others are too few for numbers."""
    p = draw(patients=30, images=3, classes=3)
    labels = np.arange(len(p)) % 3
    mixed = replace(p, labels=labels, groups=(*(f"P{i // 3}" for i in range(len(p) - 2)), "Q", "R"))
    level = patient_level(mixed)
    assert level.mean is None
    assert level.reason == "only 3 of 32 patients have images of one class alone; the others have no label"
    for first, known in (([0, 0, 0], 4), ([0, 0, 0, 1, 1, 1], 5)):  # five are enough
        level = patient_level(replace(mixed, labels=np.append(first, labels[len(first) :])))
        assert level.labelled == known and (level.mean is None) == (known < 5)
    mixed = replace(mixed, labels=np.where(np.arange(len(p)) < 60, labels, 0))
    one = "all 12 patients with images of one class alone count as 'c0'; the others have no label"
    assert patient_level(mixed).reason == one


def patients_with(images: list[int], wrong: list[int]) -> Predictions:
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
    p = patients_with([10, 20, 10], [1, 4, 4])
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
    assert "SECRET" not in json.dumps(told.to_dict(), allow_nan=False)


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


def test_nothing_to_spread() -> None:
    assert per_patient(replace(patients_with([5, 5], [1, 0]), groups=None)) is None
    assert per_patient(patients_with([9], [2]))["reason"] == "there is one patient"  # type: ignore[index]
    assert per_patient(patients_with([1, 1, 1], [1, 0, 0]))["reason"] == "each patient has one image"  # type: ignore[index]
    assert per_patient(patients_with([2, 3, 2], [0, 0, 0]))["worst"] == []  # type: ignore[index]


def test_a_patient_is_decided_with_the_costs_of_the_run() -> None:
    """With three classes, where the third costs most to miss: p @ costs is least, not p largest."""
    costs = ((0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (9.0, 9.0, 0.0))
    p = replace(draw(classes=3), costs=costs)
    patients = patient_predictions(p, "mean")
    expected = (patients.probabilities @ np.array(costs)).argmin(axis=1)
    assert list(patients.predicted) == list(expected) and list(expected) != list(patients.probabilities.argmax(axis=1))
