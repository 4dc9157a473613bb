"""A reduced precision is accepted only if no decision flips and no probability moves by more than a thousandth."""

from __future__ import annotations

import numpy as np
import pytest

from vitmed.core.base_models import Target
from vitmed.decisions.policy import ReducedPrecision, compare_precision
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import OOD_SCORE

FOUND = ReducedPrecision(precision="bf16", device="cpu", speedup=2.31)


def predictions(logits: list[float], scores: tuple[str, ...] = (), threshold: float | None = None) -> Predictions:
    """Two classes; the logit of the second is given, that of the first is 0."""
    rows = np.array([[0.0, logit] for logit in logits], np.float32)
    names = tuple(f"{i}.png" for i in range(len(logits)))
    columns = {OOD_SCORE: scores} if scores else {}
    return Predictions(
        ("well", "ill"), names, None, None, rows, columns=columns, positive="ill", threshold=threshold
    )  # fmt: skip


def test_no_difference_to_speak_of_is_accepted() -> None:
    found = compare_precision(FOUND, predictions([-2.0, 3.0]), predictions([-2.001, 3.001]))
    assert found.accepted and (found.images, found.flipped) == (2, 0)
    assert found.largest == found.largest_raw == pytest.approx(0.000105, rel=0.01)
    told = "on 2 validation images no decision flips and no probability moves by more than 0.0002"
    told += "; bf16 is 2.3 times as fast as fp32"
    assert found.in_words == told and found.choice == f"bf16 instead of fp32: {told}"


def test_a_probability_that_moves_is_not_accepted() -> None:
    found = compare_precision(FOUND, predictions([-2.0, 3.0]), predictions([-2.0, 3.1]))
    assert not found.accepted and found.flipped == 0
    assert found.choice == (
        "fp32, not bf16: on 2 validation images no decision flips but a probability moves by 0.0043 (limit 0.001); "
        "bf16 is 2.3 times as fast as fp32"
    )


@pytest.mark.parametrize("threshold, moved", [(None, 0.0005), (0.2, -1.3859)])
def test_a_decision_that_flips_is_not_accepted(threshold: float | None, moved: float) -> None:
    """The likeliest class, or the class of the operating point, at a distance of less than a thousandth."""
    start = -0.0005 if threshold is None else -1.3867
    exact, reduced = (predictions([logit, 4.0], threshold=threshold) for logit in (start, moved))
    found = compare_precision(FOUND, exact, reduced)
    assert not found.accepted and found.flipped == 1 and found.largest < 1e-3
    assert found.in_words.startswith("on 2 validation images 1 decision flips and a probability moves by")


def test_an_image_that_becomes_unlike_the_training_images_is_a_flip() -> None:
    exact = predictions([1.0, 2.0, 3.0], ("0.99", "1", "1.2"))
    assert compare_precision(FOUND, exact, predictions([1.0, 2.0, 3.0], ("0.995", "1.01", "1.1"))).accepted  # 1: edge
    found = compare_precision(FOUND, exact, predictions([1.0, 2.0, 3.0], ("1.001", "1", "1.2")))
    assert not found.accepted and found.flipped == 1


def test_without_a_comparison_nothing_is_accepted() -> None:
    found = FOUND.model_copy(update={"speedup": 0.9})
    assert not found.accepted
    assert found.choice == "fp32, not bf16: bf16 is 0.9 times as fast as fp32, so the decisions were not compared"


def ages(
    values: list[float], scores: tuple[str, ...] = (), scale: float = 1.0, reach: float | None = None
) -> NumberPredictions:
    """Predicted ages of patients who are 60 and 80 years old."""
    logits = np.array([[(value - 50) / 10, np.log(scale / 10)] for value in values], np.float32)
    target = Target(kind="number", unit="years", centre=50, spread=10)
    columns = {OOD_SCORE: scores} if scores else {}
    labels = np.array([60.0, 80.0])
    return NumberPredictions(
        ("age",), ("a.png", "b.png"), None, labels, logits, target=target, columns=columns, reach=reach
    )


def test_a_number_may_move_by_a_hundredth_of_its_error() -> None:
    """Errors of 2 and 6 years: a mean of 4, so the limit is 0.04 years."""
    exact = ages([62.0, 74.0])
    found = compare_precision(FOUND, exact, ages([62.02, 74.0]))
    assert found.accepted and (found.images, found.flipped, found.mae) == (2, 0, pytest.approx(4.0))
    assert found.largest == found.largest_raw == pytest.approx(0.02, rel=1e-3)
    assert found.in_words == (
        "on 2 validation images no number moves by more than 0.02 years, 0.5 % of the mean absolute error; bf16 is 2.3 "
        "times as fast as fp32"
    )
    found = compare_precision(FOUND, exact, ages([62.0, 73.8]))
    assert found.choice == (
        "fp32, not bf16: on 2 validation images a number moves by 0.2 years, 5 % of the mean absolute error (limit "
        "1 %); bf16 is 2.3 times as fast as fp32"
    )
    assert ReducedPrecision.model_validate_json(found.model_dump_json()) == found


def test_the_interval_of_a_number_counts_and_so_does_what_is_unlike_training() -> None:
    """An interval of 2 scales up and down moves by 0.1 years where the scale moves by 0.05."""
    found = compare_precision(FOUND, ages([62.0, 74.0], reach=2.0), ages([62.0, 74.0], scale=1.05, reach=2.0))
    assert not found.accepted and (found.largest, found.largest_raw) == (pytest.approx(0.1, rel=1e-3), 0)
    found = compare_precision(FOUND, ages([62.0, 74.0], ("0.99", "2")), ages([62.0, 74.0], ("1.01", "2")))
    assert not found.accepted and found.flipped == 1
    assert found.in_words.startswith(
        "on 2 validation images 1 out-of-distribution flag changes and a number moves by 0"
    )
