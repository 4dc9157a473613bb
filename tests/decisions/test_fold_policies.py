"""Pooled folds against means by hand: what each fold decides, and what the reader is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from vitmed.core.config import EvaluateConfig
from vitmed.decisions.evaluation_folder import (
    Fold,
    Folds,
    FoldsAuroc,
    by_fold,
    fold_notes,
    folds_of_classes,
    numbered,
    spread_of,
)
from vitmed.decisions.policy import ClassPolicy, choose_policy
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.predictions import Predictions


def draw(seed: int, size: int = 60, classes: int = 2) -> Predictions:
    rng = np.random.default_rng(seed)
    labels = np.arange(size) % classes
    logits = (rng.normal(size=(size, classes)) + 1.5 * np.eye(classes)[labels]).astype(np.float32)
    names = ("ill", "normal") if classes == 2 else tuple("xyz")
    return Predictions(names, tuple(map(str, range(size))), tuple(f"p{i // 3}" for i in range(size)), labels, logits)


def folded(tests: list[Predictions], auroc: float = 0.9, **asked: Any) -> Folds:
    config = EvaluateConfig(resamples=0, **asked)
    policies: list[ClassPolicy | None] = [
        choose_policy(draw(10 + k, 60, len(t.classes)), config) for k, t in enumerate(tests)
    ]
    return folds_of_classes([evaluate_predictions(t) for t in tests], policies, ("auroc", "accuracy"), auroc, config)


def test_each_fold_has_its_own_numbers_and_decisions() -> None:
    tests = [draw(0), draw(1, 45), draw(2, 30)]
    found = folded(tests, 0.8125, youden=True)
    areas = [roc_auc_score(t.labels == 0, t.probabilities[:, 0]) for t in tests]
    assert [fold.numbers["auroc"].value for fold in found.each] == pytest.approx(areas)
    assert found.auroc == FoldsAuroc(pooled=0.8125, mean=found.auroc.mean) and found.auroc.mean == pytest.approx(
        np.mean(areas)
    )
    assert [(fold.images, fold.patients) for fold in found.each] == [(60, 20), (45, 15), (30, 10)]
    for k, (fold, test) in enumerate(zip(found.each, tests, strict=True)):
        policy = choose_policy(draw(10 + k), EvaluateConfig(resamples=0, youden=True))
        assert (fold.point, fold.threshold, fold.why) == ("youden", policy.operating.threshold, "")
        assert fold.calibration == policy.calibration and list(fold.numbers) == [
            "auroc",
            "accuracy",
            "sensitivity",
            "specificity",
        ]
        assert fold.numbers["sensitivity"].value == pytest.approx((test.predicted[test.labels == 0] == 0).mean())
    assert (found.asked, found.target, found.costs) == ("youden", None, None) and by_fold(found)
    plain = folded(tests)
    assert plain.asked == "default" and not by_fold(plain) and {fold.threshold for fold in plain.each} == {None}


def test_a_fold_without_a_policy_decides_by_the_likeliest_class() -> None:
    numbers = [evaluate_predictions(draw(k)) for k in (0, 1)]
    found = folds_of_classes(numbers, [None, None], ("auroc",), float("nan"), EvaluateConfig(resamples=0))
    assert [(fold.point, fold.threshold, fold.calibration.method) for fold in found.each] == [
        ("default", None, "none")
    ] * 2
    assert found.costs is None and found.auroc.pooled is None


def test_costs_of_three_classes_are_kept() -> None:
    costs = [[0.0, 1.0, 5.0], [1.0, 0.0, 1.0], [4.0, 1.0, 0.0]]
    found = folded([draw(0, 60, 3), draw(1, 60, 3)], cost=costs)
    assert (found.asked, found.costs, found.target) == ("cost", costs, costs)
    assert list(found.each[0].numbers) == ["auroc", "accuracy"]
    assert "the lowest expected cost, by the costs of the configuration" in fold_notes(found)[2]


def test_the_mean_is_undefined_where_a_fold_is() -> None:
    one = draw(1)
    found = folded([draw(0), replace(one, labels=np.zeros(60, np.int64)), draw(2)])
    assert found.auroc.mean is None
    assert [fold.numbers["auroc"].value is None for fold in found.each] == [False, True, False]
    text = spread_of(found.each, "auroc")
    assert text.split(", ")[1] == "undefined" and "±" not in text
    assert fold_notes(found)[2:] == ["The AUROC is undefined in fold 2: a class has no test image there."]


def fold(area: float | None = None, point: str = "default", threshold: float | None = None) -> Fold:
    numbers = {} if area is None else {"auroc": Estimate(value=area, low=None, high=None)}
    return Fold(images=9, patients=None, numbers=numbers, point=point, threshold=threshold)


def folds(
    each: list[Fold], asked: str = "default", pooled: float | None = None, mean: float | None = None, **more: Any
) -> Folds:
    return Folds(
        **({"target": None, "costs": None} | more), asked=asked, each=each, auroc=FoldsAuroc(pooled=pooled, mean=mean)
    )


def test_the_spread_over_folds_is_the_standard_deviation() -> None:
    """0.9, 0.8 and 0.7: mean 0.8, standard deviation 0.1."""
    each = [fold(0.9), fold(0.8), fold(0.7)]
    assert spread_of(each, "auroc") == "0.800 ± 0.100 (0.900, 0.800, 0.700)"
    assert numbered(["a", "b"]) == "fold 1: a, fold 2: b" and numbered(["a", "b"], "; ") == "fold 1: a; fold 2: b"


@pytest.mark.parametrize(
    ("pooled", "mean", "told"),
    [
        (0.85, 0.8, True),
        (0.75, 0.8, True),
        (0.8095, 0.8, False),
        (0.8105, 0.8, True),
        (None, 0.8, False),
        (0.85, None, False),
    ],
)
def test_a_pooled_auroc_unlike_that_of_the_folds_is_told(pooled: float | None, mean: float | None, told: bool) -> None:
    notes = fold_notes(folds([fold(0.9), fold(0.8), fold(0.7)], pooled=pooled, mean=mean))
    assert notes[0] == "Pooled over 3 models, one for each fold; no file of its test was in its training."
    assert [note.startswith("The pooled AUROC is") for note in notes[2:]] == [True] * told


def test_what_decides_is_told() -> None:
    """By findings, by costs, by the ratio of probability and prevalence, or from a threshold; else nothing is said."""
    own = [fold(0.8, "youden", 0.25), fold(0.8)]
    assert fold_notes(folds(own, "youden"))[2:] == [
        "Each fold decides at its own threshold, chosen on its validation (youden index): "
        "fold 1: from 0.25, fold 2: the likelier class."
    ]
    assert "(target sensitivity 0.9)" in fold_notes(folds(own, "target_sensitivity", target=0.9))[2]
    balanced = folds([fold(0.8, "balanced")] * 2, "balanced")
    assert "the largest ratio of probability to prevalence" in fold_notes(balanced)[2] and by_fold(balanced)
    costs = {"costs": [[0.0, 1.0], [1.0, 0.0]], "target": "1:1"}
    assert "lowest expected cost" in fold_notes(folds([fold(0.8, "cost")] * 2, "cost", **costs))[2]
    assert "at its own threshold" in fold_notes(folds([fold(0.8, "cost", 0.3), fold(0.8)], "cost", **costs))[2]
    assert "at its own threshold" in fold_notes(folds([fold(0.8)] * 2, "cost", **costs))[2]  # no fold decides by them
    assert len(fold_notes(folds(own))) == 2
    several = folds([fold(0.8)] * 2, "youden", findings={"edema": folds(own, "youden"), "mass": folds([fold(0.8)] * 2)})
    assert fold_notes(several)[2] == (
        "Each fold calls each finding from its own threshold, chosen on its validation (youden index); "
        "but from 0.5, since none could be chosen: edema in 1 of 2 folds, mass in 2 of 2 folds."
    )
    assert by_fold(several) and not by_fold(folds([fold(0.8)] * 2, findings={"mass": folds([fold(0.8)])}))
    lost = folds(
        [fold(0.8)] * 2,
        findings={
            "edema": folds(
                [Fold(images=9, patients=None, numbers={"auroc": Estimate(value=None, low=None, high=None)})] * 2
            )
        },
    )
    assert fold_notes(lost)[2:] == [
        "The AUROC of edema is undefined in folds 1, 2: no test image has it, or every one has it."
    ]
