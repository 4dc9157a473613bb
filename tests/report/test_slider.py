"""The counts behind the slider: scikit-learn's, at thresholds that hold those in use and those that were chosen."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_score

from vitmed.decisions.operating_points import TITLES, OperatingPoint, OperatingPoints
from vitmed.metrics.predictions import Predictions
from vitmed.report.templates import ROWS, Curve, at, rows, slider_data


def predictions(labels: np.ndarray, scores: np.ndarray) -> Predictions:
    """Of two classes; `scores` are the probabilities of the finding, the first one."""
    z = np.log(scores / (1 - scores)).astype(np.float32)
    n = len(labels)
    return Predictions(("ill", "healthy"), ("x",) * n, None, labels, np.stack([z, np.zeros(n, np.float32)], axis=1))


def drawn(n: int = 2000, seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=n)
    return predictions(labels, np.clip(rng.beta(2, 2, n) + 0.2 * (labels == 0), 0.001, 0.999))


def points_at(**thresholds: tuple[float | None, float | None]) -> OperatingPoints:
    """Key -> threshold, and what was asked for."""
    points = {
        key: OperatingPoint(title=TITLES[key], threshold=threshold, asked=asked, why="", reached=None)
        for key, (threshold, asked) in thresholds.items()
    }
    return OperatingPoints(positive="ill", chosen="youden", threshold=0.3123456789, points=points, notes=[])


def curve_of(p: Predictions, points: OperatingPoints | None = None) -> Any:
    curve = slider_data(p, points)
    assert curve is not None and curve.decided
    return curve


def test_counts_are_those_of_scikit_learn_at_every_threshold() -> None:
    p = drawn()
    curve = curve_of(p)
    truth, scores = p.labels == 0, p.probabilities[:, 0]
    assert len(curve["thresholds"]) <= 1100 and curve["thresholds"] == sorted(curve["thresholds"])
    assert len(curve["thresholds"]) > 100
    for i in range(0, len(curve["thresholds"]), 50):
        called = scores >= curve["thresholds"][i]
        tn, fp, fn, tp = confusion_matrix(truth, called, labels=[False, True]).ravel().tolist()
        got = at(curve, i)
        assert (got.tp, got.fp, got.fn, got.tn) == (tp, fp, fn, tn)
        assert called.any() and got.ppv == pytest.approx(precision_score(truth, called))


def test_ppv_at_another_prevalence_is_the_worked_example_of_the_docs() -> None:
    """Sensitivity 0.947 and specificity 0.972: PPV is 97 % at one half and 25 % at 1 %."""
    curve = Curve(name="ill", positives=1000, negatives=1000, thresholds=[0.5], tp=[947], fp=[28], start=0, marks=[])
    assert at(curve, 0, 0.5).ppv == pytest.approx(0.9713, abs=5e-5)
    assert at(curve, 0, 0.01).ppv == pytest.approx(0.2546, abs=5e-5)
    assert at(curve, 0, 0.01).npv == pytest.approx(0.972 * 0.99 / (0.972 * 0.99 + 0.053 * 0.01))
    assert at(curve, 0).ppv == pytest.approx(947 / 975)


def test_the_start_is_what_the_model_does() -> None:
    p = drawn()
    curve = curve_of(p)
    start = at(curve, curve["start"])
    assert start.threshold == 0.5
    assert start.tp == int(((p.predicted == 0) & (p.labels == 0)).sum())
    # level probabilities are called positive, wherever the positive class stands
    z = np.zeros((4, 2), np.float32)
    level = Predictions(("normal", "tumour"), ("x",) * 4, None, np.array([0, 1, 0, 1]), z)
    start = curve_of(level)
    assert at(start, start["start"]).tp == 2 == int(((level.predicted == 1) & (level.labels == 1)).sum())


def test_chosen_points_are_marked_at_their_own_threshold() -> None:
    points = points_at(default=(None, None), youden=(0.3123456789, None), target_sensitivity=(0.123, 0.95))
    curve = curve_of(drawn(), points)
    marks = {text: curve["thresholds"][index] for text, index in curve["marks"]}
    assert marks == {"Youden index": 0.3123456789, "Target sensitivity 0.95": 0.123}
    told = [text for text, _ in rows(curve)]
    assert "0.312 (Youden index)" in told and "0.5 (in use)" in told and len(told) == len(ROWS) + 2


def test_rows_that_print_alike_are_one_and_folds_have_no_threshold_in_use() -> None:
    points = points_at(youden=(0.95004, None))
    curve = curve_of(drawn(), points)
    told = [text for text, _ in rows(curve)]
    assert [text for text in told if text.startswith("0.95")] == ["0.95 (Youden index)"]
    assert not any("in use" in text for text, _ in rows(curve.model_copy(update={"decided": False})))
    same = points_at(youden=(0.5, None))
    told = [text for text, _ in rows(curve_of(drawn(), same))]
    assert "0.5 (in use, Youden index)" in told


@pytest.mark.parametrize("n", [10, 27_558])
def test_it_stays_small(n: int) -> None:
    assert len(json.dumps(slider_data(drawn(n)).to_dict())) < 40_000


def test_more_classes_have_no_slider() -> None:
    """The likeliest class wins, which is no threshold; `--positive` gives one class against the rest."""
    p = Predictions(("a", "b", "c"), ("x",) * 6, None, np.arange(6) % 3, np.zeros((6, 3), np.float32))
    assert slider_data(p) is None and slider_data(p.against_rest("b")) is not None


@pytest.mark.parametrize("labels", [[], [0, 0, 0], [1, 1]])
def test_one_class_alone_has_no_slider(labels: list[int]) -> None:
    p = predictions(np.array(labels, dtype=np.int64), np.full(len(labels), 0.3))
    assert slider_data(p) is None


def test_constant_scores_are_no_problem() -> None:
    curve = curve_of(predictions(np.array([0, 1, 0]), np.full(3, 0.25)))
    first, last = at(curve, 0), at(curve, len(curve["thresholds"]) - 1)
    assert (first.tp, first.fp, last.tp, last.fp) == (2, 1, 0, 0) and last.ppv is None
