"""A reduced precision is accepted only if no decision flips of the images that are not computed again in fp32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vitmed.core.base_models import Target
from vitmed.decisions.calibration import Calibration
from vitmed.decisions.conformal import SetThresholds
from vitmed.decisions.operating_points import PolicyPoint, PolicyPoints
from vitmed.decisions.policy import (
    ClassPolicy,
    FindingPolicy,
    NumberPolicy,
    ReducedPrecision,
    changed,
    compare_precision,
)
from vitmed.decisions.selective_prediction import Abstention
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import OOD_SCORE

FOUND = ReducedPrecision(precision="bf16", device="cpu", speedup=2.31)
USUAL: dict[str, Any] = {"asked": {}, "n": 0}


def policy_of(
    classes: int = 2,
    threshold: float | None = None,
    least: float | None = None,
    positive: str = "ill",
    **fields: Any,
) -> Any:
    """Of classes, with a calibration; `least`: the certainty from which an image is answered."""
    point = PolicyPoint(threshold=threshold, asked=None, why="")
    chosen = "default" if threshold is None and not fields.get("costs") else "cost"
    points = PolicyPoints(
        positive=positive if classes == 2 else None,
        chosen=chosen,
        points={chosen: point},
        costs=fields.pop("costs", None),
        notes=(),
    )
    usual = {
        "calibration": Calibration(method="temperature", scale=(0.8,) * classes, bias=(0.0,) * classes),
        "operating": points,
        "prediction_sets": None,
        "abstention": None if least is None else Abstention(max_risk=0.1, least=least, why=""),
    }
    return ClassPolicy(**USUAL, **usual | fields)


def sets_of(*least: float) -> SetThresholds:
    """A class is in the set of an image from this probability on."""
    return SetThresholds(coverage=0.9, by="image", note="", least=least, units=(9,) * len(least), without=())


def predictions(logits: list[float] | np.ndarray, scores: tuple[str, ...] = ()) -> Predictions:
    """Two classes; the logit of the second is given, that of the first is 0. Or more, with rows (S, K)."""
    rows = np.array([[0.0, row] for row in logits] if np.ndim(logits) == 1 else logits, np.float32)
    names = tuple(f"{i}.png" for i in range(len(rows)))
    classes = ("well", "ill", "worse")[: rows.shape[1]]
    columns = {OOD_SCORE: scores} if scores else {}
    return Predictions(classes, names, None, None, rows, columns=columns)


def compared(policy: Any, exact: Any, reduced: Any) -> ReducedPrecision:
    return compare_precision(FOUND, policy, policy.apply(exact), policy.apply(reduced))


def test_what_lies_far_from_a_border_may_move() -> None:
    found = compared(policy_of(), predictions([-2.0, 3.0]), predictions([-2.0, 3.1]))
    assert found.accepted and (found.images, found.flipped, found.twice) == (2, 0, 0)
    assert found.deviations == pytest.approx((0.08 / 2**0.5,) * 2, rel=1e-4)  # of both classes, calibrated
    assert found.largest == pytest.approx(0.0059, rel=0.02)
    told = "on 2 validation images no decision flips, 0 % are near a border and computed again in fp32, and no "
    told += "probability moves by more than 0.006; bf16 is 2.3 times as fast as fp32"
    assert found.in_words == told and found.choice == f"bf16 instead of fp32: {told}"
    assert ReducedPrecision.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("threshold, start, end", [(None, -0.0005, 0.0005), (0.2, -1.7331, -1.7326)])
def test_a_decision_that_flips_is_computed_again(threshold: float | None, start: float, end: float) -> None:
    """The likeliest class, or the class of the operating point. Twice as long for half of the images is no gain."""
    policy = policy_of(threshold=threshold)
    exact, reduced = predictions([start, 4.0]), predictions([end, 4.0])
    assert changed(policy.apply(exact), policy.apply(reduced)).tolist() == [True, False]
    found = compared(policy, exact, reduced)
    assert (found.flipped, found.twice, found.speedup, found.accepted) == (0, 0.5, 1.07, False)
    many = [4.0 + i for i in range(9)]
    found = compared(policy, predictions([start, *many]), predictions([end, *many]))
    assert (found.flipped, found.twice, found.speedup, found.accepted) == (0, 0.1, 1.88, True)
    assert "10 % are near a border" in found.choice


def test_an_image_that_becomes_unlike_the_training_images_is_computed_again() -> None:
    exact = predictions([1.0, 2.0, 3.0], ("0.9", "0.999", "1.2"))
    found = compared(policy_of(), exact, predictions([1.0, 2.0, 3.0], ("0.9", "1.002", "1.2")))
    assert found.flipped == 0 and found.twice == pytest.approx(1 / 3)
    assert found.deviations is not None and found.deviations[-1] == pytest.approx(0.003 / 3**0.5)


def test_without_images_nothing_is_accepted() -> None:
    none = predictions(np.zeros((0, 2)))
    result = compared(policy_of(), none, none)
    assert (result.images, result.flipped, result.accepted) == (0, 0, False)


def test_without_a_comparison_nothing_is_accepted() -> None:
    found = FOUND.model_copy(update={"speedup": 0.9})
    assert not found.accepted
    assert found.choice == "fp32, not bf16: bf16 is 0.9 times as fast as fp32, so the decisions were not compared"


def test_another_set_of_as_many_classes_is_another_decision() -> None:
    """0.50, 0.27 and 0.23, and then 0.50, 0.23 and 0.27: with a least probability of 0.25 the second class leaves the
    set and the third enters it. The predicted class and the answer stay."""
    policy = policy_of(3, prediction_sets=sets_of(0.25, 0.25, 0.25), calibration=Calibration.none(3))
    first, second = (
        policy.apply(predictions(np.log([row, [0.9, 0.06, 0.04]]))) for row in ([0.5, 0.27, 0.23], [0.5, 0.23, 0.27])
    )
    assert [first.set_of(0), second.set_of(0)] == [("well", "ill"), ("well", "worse")]
    assert first.columns["answer"] == second.columns["answer"]
    assert changed(first, second).tolist() == [True, False]


def test_a_border_at_a_probability_of_none_or_all_is_far_away_but_not_infinite() -> None:
    """No image reaches it, so that rounding is far from it: the images are not computed twice."""
    policy = policy_of(prediction_sets=sets_of(0.0, 1.0))
    assert np.isfinite(policy.borders(predictions([-2.0, 3.0]))).all()
    found = compared(policy, predictions([-2.0, 3.0]), predictions([-2.0, 3.1]))
    assert found.twice == 0 and found.accepted


COSTS = [(0.0, 1.0, 4.0), (2.0, 0.0, 1.0), (5.0, 3.0, 0.0)]
POLICIES = {
    "threshold": policy_of(threshold=0.3),
    "likeliest of two": policy_of(),
    "likeliest of three": policy_of(3),
    "costs": policy_of(3, costs=COSTS),
    "sets": policy_of(3, prediction_sets=sets_of(0.3, 0.2, 0.4)),
    "abstention": policy_of(3, least=0.6),
    "abstention by a threshold": policy_of(threshold=0.3, least=0.7, prediction_sets=sets_of(0.2, 0.4)),
    "abstention by costs": policy_of(3, costs=COSTS, least=0.6),
    "never answered": policy_of(3, costs=COSTS).model_copy(
        update={"abstention": Abstention(max_risk=0.1, least=None, why="few")}
    ),
    "findings": FindingPolicy(
        **USUAL, findings={name: policy_of(threshold=0.3, least=0.6, positive=name) for name in ("a", "b")}
    ),
    "number": NumberPolicy(**USUAL, intervals=None),
}


@pytest.mark.parametrize("name", POLICIES)
def test_no_decision_flips_far_from_every_border(name: str) -> None:
    """5,000 images whose logits and scores move at random: all that are decided otherwise are near a border."""
    rng, policy = np.random.default_rng(0), POLICIES[name]
    k = len(policy.calibration.scale) if isinstance(policy, ClassPolicy) else 2
    logits, scores = rng.normal(size=(5000, k)).astype(np.float32), rng.gamma(5, 0.15, 5000)

    def drawn(moved: float) -> Any:
        rows = (logits + moved * rng.uniform(-1, 1, logits.shape)).astype(np.float32)
        cells = tuple(f"{score:.6g}" for score in scores + moved * rng.uniform(-1, 1, len(scores)))
        names, columns = tuple(map(str, range(len(rows)))), {OOD_SCORE: cells}
        if name == "findings":
            return FindingPredictions(("a", "b"), names, None, None, rows, columns=columns)
        if name == "number":
            target = Target(kind="number", unit="years", centre=50, spread=10)
            return NumberPredictions(("age",), names, None, None, rows, columns=columns, target=target)
        return predictions(rows, cells)

    exact, reduced = policy.apply(drawn(0)), policy.apply(drawn(0.004))
    flips = changed(exact, reduced)
    found = compare_precision(FOUND, policy, exact, reduced)
    assert flips.sum() > 5 and found.flipped == 0 and found.twice < 0.1
    assert found.deviations is not None
    near = policy.near(reduced, found.deviations)
    assert not (flips & ~near).any() and policy.near(reduced, [*found.deviations, 1.0]).all()  # of another policy


def ages(values: list[float], scores: tuple[str, ...] = (), scale: float = 1.0) -> NumberPredictions:
    """Predicted ages of patients who are 60 and 80 years old."""
    logits = np.array([[(value - 50) / 10, np.log(scale / 10)] for value in values], np.float32)
    target = Target(kind="number", unit="years", centre=50, spread=10)
    columns = {OOD_SCORE: scores} if scores else {}
    return NumberPredictions(
        ("age",), ("a.png", "b.png"), None, np.array([60.0, 80.0]), logits, target=target, columns=columns
    )


def test_a_number_has_no_border_but_that_of_the_score() -> None:
    policy = POLICIES["number"]
    found = compared(policy, ages([62.0, 74.0]), ages([62.0, 73.8]))
    assert found.accepted and found.deviations == () and found.twice == 0
    assert found.choice == (
        "bf16 instead of fp32: on 2 validation images no decision flips, 0 % are near a border and computed again in "
        "fp32, and no number moves by more than 0.2 years; bf16 is 2.3 times as fast as fp32"
    )
    found = compared(policy, ages([62.0, 74.0], ("0.99", "2")), ages([62.0, 74.0], ("1.01", "2")))
    assert (found.flipped, found.twice) == (0, 0.5) and found.deviations == pytest.approx((0.02 / 2**0.5,))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "bf16 is 2.3 times as fast as fp32, so the decisions were not compared"),
        (
            {"images": 9, "finite": False},
            "on 9 validation images the outputs are not finite in bf16; bf16 is 2.3 times",
        ),
        (
            {"images": 9, "largest": 0.00121},
            "no decision flips, 0 % are near a border and computed again in fp32, and ",
        ),
        ({"images": 9, "largest": 0.00121}, "no probability moves by more than 0.0013; bf16 is 2.3 times as fast"),
        ({"images": 1, "flipped": 1, "twice": 0.055}, "on 1 validation image 1 decision flips, 5.5 % are near"),
        ({"images": 9, "flipped": 2}, "2 decisions flip, "),
        (
            {"images": 9, "number": True, "unit": "years", "largest": 0.1234},
            "no number moves by more than 0.12 years; ",
        ),
    ],
)
def test_what_was_found_in_words(fields: dict[str, Any], words: str) -> None:
    found = FOUND.model_copy(update=fields)
    assert words in found.in_words and found.choice == f"fp32, not bf16: {found.in_words}"
    assert found.model_copy(update={"accepted": True}).choice.startswith("bf16 instead of fp32: ")
