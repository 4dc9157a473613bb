"""Means of models, and predictions in other orders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitmed.core.base_models import Target
from vitmed.core.errors import DataError
from vitmed.metrics.ensembles import aligned, averaged, out_of_fold, pool
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions


def classes(probabilities: list[list[float]], names: str = "ab", paths: str = "", **fields: object) -> Predictions:
    logits = np.log(np.array(probabilities, np.float32))
    images = tuple(paths or "uvwxyz"[: len(logits)])
    return Predictions(tuple(names), images, None, np.zeros(len(logits), np.int64), logits, **fields)  # type: ignore[arg-type]


def findings(odds: list[float]) -> FindingPredictions:
    return FindingPredictions(("f", "g"), ("u",), None, None, np.array([odds], np.float32))


def test_the_mean_of_calibrated_probabilities() -> None:
    calibrated = np.array([[0.5, 0.5], [0.1, 0.9]])
    parts = [classes([[0.9, 0.1], [0.2, 0.8]]), classes([[0.3, 0.7], [0.4, 0.6]], calibrated=calibrated)]
    assert averaged(parts).probabilities == pytest.approx(np.array([[0.7, 0.3], [0.15, 0.85]]), abs=1e-7)
    shared = averaged(parts, [0.75, 0.25])
    assert shared.probabilities == pytest.approx(np.array([[0.8, 0.2], [0.175, 0.825]]), abs=1e-7)
    assert shared.calibrated is None  # the logits alone hold the mean, so that a policy can calibrate them
    own = {"ood_score": ("1.5", "0.2"), "answer": ("no: unlike", "yes"), "site": ("A", "B")}
    assert averaged([replace(parts[0], columns=own), parts[1]]).columns == {"site": ("A", "B")}


def test_the_mean_of_findings_and_the_mixture_of_numbers() -> None:
    mean = averaged([findings([0, 2]), findings([4, -2])])
    assert mean.probabilities[0] == pytest.approx([(0.5 + 1 / (1 + np.exp(-4))) / 2, 0.5], abs=1e-6)

    def number(centre: float, spread: float, location: float, scale: float) -> NumberPredictions:
        target = Target(kind="number", unit="mm", centre=centre, spread=spread)
        logits = np.array([[location, np.log(scale)]], np.float32)
        return NumberPredictions(("size",), ("u",), None, None, logits, target=target)

    one, two = number(10, 2, 1, 0.5), number(0, 1, 8, 3)  # 12 with scale 1, and 8 with scale 3
    mixed = averaged([one, two])
    assert mixed.values[0] == pytest.approx(10)
    assert mixed.scales[0] == pytest.approx(np.sqrt((1 + 9) / 2 + 4), rel=1e-6)  # within and between the models


def test_rows_and_classes_take_the_order_of_the_first() -> None:
    first = classes([[0.9, 0.1], [0.2, 0.8]], paths="uv")
    labels = np.array([1, 1])
    other = classes([[0.4, 0.6], [0.3, 0.7]], names="ba", paths="vu")
    both = aligned([first, Predictions(other.classes, other.paths, None, labels, other.logits)])
    assert both[1].paths == ("u", "v") and both[1].classes == ("a", "b")
    assert both[1].probabilities == pytest.approx(np.array([[0.7, 0.3], [0.6, 0.4]]))
    with pytest.raises(DataError, match="some models only, the first is v"):
        aligned([first, classes([[0.5, 0.5]] * 2, paths="uw")])
    with pytest.raises(DataError, match="different classes"):
        aligned([first, classes([[0.5, 0.5]] * 2, names="ac", paths="uv")])
    with pytest.raises(DataError, match="different labels"):
        aligned([first, Predictions(("a", "b"), ("u", "v"), None, np.array([0, 1]), first.logits)])


def test_models_of_different_images_are_joined() -> None:
    """Each keeps its probabilities and its decision; columns, patients and labels where all have them."""
    one = classes([[0.6, 0.4], [0.2, 0.8]], paths="uv", columns={"site": ("N", "S"), "age": ("1", "2")})
    two = classes([[0.9, 0.1]], paths="w", columns={"site": ("N",)}, errors=(("x", "broken"),))
    both = pool([one, two])
    assert both.paths == ("u", "v", "w") and both.columns == {"site": ("N", "S", "N")} and both.errors == ()
    assert both.calibrated is both.decided is both.groups is None and both.labels.tolist() == [0, 0, 0]
    assert both.probabilities == pytest.approx(np.array([[0.6, 0.4], [0.2, 0.8], [0.9, 0.1]]))
    known = pool([replace(one, groups=("P", "Q")), replace(two, groups=("P",))])
    assert known.groups == ("P", "Q", "P") and pool([replace(one, groups=("P", "Q")), two]).groups is None
    assert pool([one, replace(two, labels=None)]).labels is None
    calibrated = pool([replace(one, calibrated=np.array([[0.5, 0.5], [0.3, 0.7]])), two])
    assert calibrated.probabilities == pytest.approx(np.array([[0.5, 0.5], [0.3, 0.7], [0.9, 0.1]]))
    limited = pool([replace(one, positive="b", threshold=0.3), two])
    assert limited.decided.tolist() == [1, 1, 0] and limited.threshold is None
    dear = pool([replace(one, costs=((0.0, 1.0), (9.0, 0.0))), two])  # to miss b costs nine times as much
    assert dear.decided.tolist() == [1, 1, 0] and dear.costs is None

    few = FindingPredictions(("f",), ("u",), None, None, np.zeros((1, 1), np.float32))
    assert pool([few, few]).decided is None
    high = pool([replace(few, thresholds=(0.7,)), few])
    assert high.decided.tolist() == [[False], [True]] and high.thresholds == ()

    def number(path: str, value: float, centre: float, spread: float, **more: object) -> NumberPredictions:
        target = Target(kind="number", centre=centre, spread=spread)
        logits = np.array([[(value - centre) / spread, np.log(2 / spread)]], np.float32)
        return NumberPredictions(("size",), (path,), None, None, logits, target=target, **more)  # type: ignore[arg-type]

    parts = [number("u", 12, 10, 4, reach=1.5), number("v", 3, 0, 2, reach=2.0)]
    joined = pool(parts)
    assert (joined.target.centre, joined.target.spread, joined.reach) == (5, 3, None)
    assert joined.values == pytest.approx([12, 3], rel=1e-6) and joined.scales == pytest.approx([2, 2], rel=1e-6)
    assert joined.intervals == pytest.approx(np.concatenate([part.intervals for part in parts]), rel=1e-5)
    assert pool([parts[0], number("v", 3, 0, 2)]).intervals is None


def test_repeats_are_averaged_and_their_decisions_counted() -> None:
    """Three repeats of two folds: every image once; where two decide otherwise than the third, they win."""

    def test(path: str, probability: float, decided: int) -> Predictions:
        one = classes([[1 - probability, probability]], paths=path, positive="b", threshold=0.1)
        return replace(one, threshold=0.0 if decided else 1.0)

    tests = ("u", 0.2, 1), ("v", 0.9, 1), ("v", 0.5, 0), ("u", 0.4, 1), ("u", 0.3, 0), ("v", 0.1, 0)
    found = out_of_fold([test(*one) for one in tests], 2)
    assert found.paths == ("u", "v")
    assert found.probabilities[:, 1] == pytest.approx([0.3, 0.5], abs=1e-6)
    assert found.predicted.tolist() == [1, 0]  # two of three of each
    usual = replace(classes([[0.4, 0.6]], paths="u"), threshold=None)  # a repeat without a threshold of its own
    plain = [usual, replace(usual, paths=("v",)), *(test(*one) for one in tests[2:])]
    assert out_of_fold(plain, 2).predicted.tolist() == [1, 0]


def test_where_two_repeats_disagree_their_mean_decides_by_their_mean_threshold() -> None:
    def test(path: str, probability: float, threshold: float) -> Predictions:
        return classes([[1 - probability, probability]], paths=path, positive="b", threshold=threshold)

    tests = test("u", 0.25, 0.3), test("v", 0.25, 0.2), test("v", 0.05, 0.4), test("u", 0.35, 0.1)
    assert out_of_fold(tests, 2).predicted.tolist() == [1, 0]  # 0.3 of 0.2, 0.15 of 0.3
    limited = [replace(findings([0, 0]), thresholds=limits) for limits in ((0.4, 0.4), (0.55, 0.9))]
    assert out_of_fold(limited, 1).predicted.tolist() == [[True, False]]  # 0.5 of 0.475, of 0.65
    dear = ((0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (9.0, 9.0, 0.0))  # to miss c costs nine times as much
    three = [classes([row], paths="u", names="abc") for row in ([0.9, 0.07, 0.03], [0.6, 0.1, 0.3])]
    assert out_of_fold([replace(one, costs=dear) for one in three], 1).predicted.tolist() == [2]


def test_decisions_of_repeats_of_findings_and_of_numbers() -> None:
    """Of a finding two of three repeats decide, and one of two is enough; of a number the ends are averaged."""

    def finding(path: str, odds: list[float], called: list[int]) -> FindingPredictions:
        one = FindingPredictions(("f", "g", "h"), (path,), None, None, np.array([odds], np.float32))
        return replace(one, thresholds=tuple(0.0 if call else 1.0 for call in called))

    tests = [finding("u", [0, 0, 0], [1, 0, 1]), finding("v", [0, 0, 0], [0, 0, 1])]
    again = [finding("u", [0, 4, 0], [1, 0, 0]), finding("v", [0, 0, 0], [0, 0, 1])]
    third = [finding("v", [0, 0, 0], [1, 0, 0]), finding("u", [0, 0, 0], [0, 1, 0])]
    found = out_of_fold([*tests, *again, *third], 2)
    assert found.paths == ("u", "v")
    assert found.predicted.tolist() == [[True, False, False], [False, False, True]]
    assert found.probabilities[0, 1] == pytest.approx((0.5 + 1 / (1 + np.exp(-4)) + 0.5) / 3, abs=1e-6)
    assert out_of_fold([*tests, *again], 2).predicted.tolist() == [[True, False, True], [False, False, True]]
    plain = [FindingPredictions(("f",), (path,), None, None, np.zeros((1, 1), np.float32)) for path in "uv"]
    assert out_of_fold([*plain, *plain], 2).decided is None  # 0.5 decides

    def number(path: str, value: float, low: float, high: float) -> NumberPredictions:
        target = Target(kind="number", centre=0.0, spread=1.0)
        one = NumberPredictions(("size",), (path,), None, None, np.array([[value, 0]], np.float32), target=target)
        return replace(one, decided=np.array([[low, high]]))

    numbers = [number("u", 1, 0, 2), number("v", 5, 4, 7), number("v", 7, 5, 9), number("u", 3, 2, 6)]
    mean = out_of_fold(numbers, 2)
    assert mean.values == pytest.approx([2, 6]) and mean.intervals == pytest.approx(np.array([[1, 4], [4.5, 8]]))
