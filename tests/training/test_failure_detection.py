"""A network that does not learn is noticed and told why; one that does is left in peace."""

from __future__ import annotations

import math

import pytest

from vitmed.core.load_config import load_config
from vitmed.training.failure_detection import WINDOW, chance_loss, not_finite, stuck


def record(loss: float = 0.693, share: float = 1.0, top: str = "sick", step: int = 5000) -> dict[str, object]:
    return {"train_loss": loss, "top_share": share, "top_class": top, "step": step}


def told(history: list[dict[str, object]], counts: tuple[int, int] = (100, 100), **train: object) -> str | None:
    config = load_config(None, {f"train.{key}": value for key, value in train.items()})
    return stuck(history, ("healthy", "sick"), counts, config)


def test_the_loss_of_guessing_by_frequency() -> None:
    assert chance_loss([50, 50]) == pytest.approx(math.log(2))
    assert chance_loss([1, 3]) == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))
    assert chance_loss([10, 0]) == 0


def test_it_warns_of_one_class_and_a_constant_loss() -> None:
    message = told([record()] * WINDOW)
    assert message is not None
    for part in ("it predicts 'sick' for 100% of the validation images", "50% of the training images", "0.693"):
        assert part in message


def test_one_class_after_the_other_is_no_better() -> None:
    assert told([record(), record(top="healthy"), record()]) is not None


def test_it_warns_of_a_loss_above_that_of_guessing() -> None:
    """ln 2 = 0.693 for two classes, whatever their frequencies."""
    message = told([record(loss=5.0 - i, share=0.6) for i in range(WINDOW)], lr=1.0)
    assert message is not None and "3.000" in message and "0.693" in message and "learning rate 1" in message


@pytest.mark.parametrize(
    "history",
    [
        [record()] * (WINDOW - 1),
        [record(loss=0.8 - 0.05 * i) for i in range(WINDOW)],  # the loss falls
        [record(share=0.7)] * WINDOW,  # both classes are given
        [record(loss=2.0)] * (WINDOW - 1) + [record(loss=0.9, share=0.6)],  # it has come down
        [record()] * 5 + [record(share=0.6)],  # it has recovered
    ],
)
def test_a_network_that_learns_is_left_in_peace(history: list[dict[str, object]]) -> None:
    assert told(history) is None


def test_a_rare_class_does_not_make_an_alarm() -> None:
    """97 % of one class on the training side: calling 97 % so is right, calling everything so is not."""
    assert told([record(share=0.97)] * WINDOW, counts=(3, 97)) is None
    assert told([record(share=1.0)] * WINDOW, counts=(3, 97)) is not None


@pytest.mark.parametrize(
    ("train", "step", "parts"),
    [
        ({"lr": 0.1}, 5000, ["learning rate 0.1 is too high", "--lr 0.0005"]),
        ({"lr": 0.003}, 5000, ["learning rate 0.003 is too high", "--lr 0.0003"]),
        ({"warmup_epochs": 0.0}, 5000, ["no warm-up", "--warmup-epochs 3"]),
        ({"weight_decay": 5.0}, 5000, ["weight decay 5", "--weight-decay 0.05"]),
        ({"lr": 2e-6}, 5000, ["too low", "--lr 5e-4"]),
        ({}, 60, ["60 optimiser steps", "--epochs"]),
        ({}, 5000, ["contact_sheet.png"]),
    ],
)
def test_the_likely_cause_and_what_to_change(train: dict[str, object], step: int, parts: list[str]) -> None:
    message = told([record(step=step)] * WINDOW, **train)
    assert message is not None and all(part in message for part in parts), message


def test_nan_names_the_files() -> None:
    problem, fix = not_finite("loss", ["a/1.png", "b/2.png"], 4, load_config(None, {"train.lr": 0.01}))
    assert "a/1.png" in problem and "b/2.png" in problem and "epoch 4" in problem and "loss" in problem
    assert "--lr 0.001" in fix and "fp32" in fix
    assert "fp32" not in not_finite("loss", [], 1, load_config(None, {"train.precision": "fp32"}))[1]


@pytest.mark.parametrize("r2, loss, warned", [(-0.03, 0.84, True), (0.06, 0.84, False), (None, 0.84, False)])
def test_one_number_for_all_images_is_noticed(r2: float | None, loss: float, warned: bool) -> None:
    """The knees of docs/targets.md: with absolute errors the network stayed at the median grade for 31 epochs."""
    history: list[dict[str, object]] = [{"train_loss": loss, "val_r2": r2, "step": 1500}] * WINDOW
    message = told(history, loss="laplace")
    assert (message is not None) == warned
    assert message is None or "--set train.loss=gaussian" in message
