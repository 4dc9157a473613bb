"""The range test: rates, running mean and suggestions against hand-worked curves; the command on drawn images."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY_ARGS, Answer, draw_splits, listing
from PIL import Image

from vitmed.training.lr_range import rising_rates, run_range_test, smoothed, suggest

RUN = Callable[..., Answer]


def test_rates_rise_evenly_in_their_logarithm() -> None:
    rates = rising_rates(1e-4, 1.0, 5)
    assert rates == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])


def test_the_running_mean_of_a_constant_is_the_constant() -> None:
    assert list(smoothed([3.0] * 10)) == pytest.approx([3.0] * 10)
    assert list(smoothed([1.0, 0.0])) == pytest.approx([1.0, 0.9 / 1.9])  # (0.9 x 0.1 x 1 + 0) / (1 - 0.81)


def test_suggestions_by_hand() -> None:
    """Flat, then a descent of ten steps that is steepest in its middle, then up."""
    losses = [2.0] * 10 + [1.99, 1.97, 1.9, 1.7, 1.3, 0.9, 0.6, 0.5, 0.45, 0.44] + [0.6, 1.0, 3.0]
    rates = list(range(len(losses)))
    steepest, valley = suggest(rates, losses)
    assert steepest == 14  # between 1.7 and 0.9
    # The longest descent runs from the last flat place (index 9 or any before it) to index 19.
    assert valley is not None and 14 <= valley <= 18


def test_a_loss_that_never_falls_suggests_nothing() -> None:
    assert suggest(list(range(30)), list(np.linspace(1, 2, 30))) == (None, None)
    assert suggest([1.0, 2.0], [2.0, 1.0]) == (None, None)


def test_the_course_of_the_loss_is_stated() -> None:
    losses = [0.9] * 20 + [0.5] * 20 + [1.3] * 40
    told = run_range_test(rising_rates(1e-7, 1, 80), iter(losses)).course
    assert told == "lowest loss 0.543 at --lr 2.9e-04; 1.29 at the end (1.0e+00)"
    assert "ended early because the loss rose" in run_range_test(rising_rates(1e-7, 1, 80), iter([*losses, 1e9])).course
    assert "not finite" in run_range_test(rising_rates(1e-7, 1, 80), iter([math.nan])).course


def test_a_diverging_loss_ends_the_test_early() -> None:
    asked = 0

    def losses() -> Iterator[float]:
        nonlocal asked
        for loss in [1.0] * 20 + [0.5] * 10 + [1e6] * 50:
            asked += 1
            yield loss

    found = run_range_test(rising_rates(1e-7, 1, 80), losses())
    assert found.diverged and asked == 31 and len(found.rates) == len(found.losses) == 30
    assert run_range_test(rising_rates(1e-7, 1, 80), iter([1.0] * 20 + [math.nan])).diverged


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_command_draws_and_leaves_nothing_else(vitmed: RUN, tmp_path: Path, accumulate: int) -> None:
    data = draw_splits(tmp_path / "data", 20, 3, 3)
    broken = data / "test" / "amber" / "amber_0.png"
    broken.write_bytes(b"no image")  # the test is not even read
    before = listing(data)
    args = ["lr-find", data, "-o", tmp_path / "lr.png", "--image-size", 16, "--patch-size", 8, "--steps", 40, "--json"]
    args += ["--set", "model.width=16", "--set", "model.depth=1", "--set", "model.heads=2", "--set", "train.workers=0"]
    answer = vitmed(*args, "--device", "cpu", "-b", 8, "--set", f"train.accumulate={accumulate}", "--low", 1e-5)
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["rates"][0] == pytest.approx(1e-5) and found["rates"] == sorted(found["rates"])
    assert found["valley"] is None or 1e-5 <= found["valley"] <= 1
    with Image.open(tmp_path / "lr.png") as picture:
        picture.verify()
    assert listing(data) == before and sorted(p.name for p in tmp_path.iterdir()) == ["data", "lr.png"]


@pytest.mark.parametrize(
    ("args", "code"),
    [(["--low", 0], 2), (["--low", 1, "--high", 0.1], 2), (["--steps", 3], 2), (["-o", "x.jpg"], 2)],
)
def test_a_range_that_is_none(vitmed: RUN, tmp_path: Path, args: list[object], code: int) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    assert vitmed("lr-find", data, *args).code == code


def test_the_loss_falls_at_a_suggested_rate(vitmed: RUN, tmp_path: Path) -> None:
    """What it is for: training at the valley learns the drawn colours."""
    data = draw_splits(tmp_path / "data", 20, 4, 4)
    sets = [a for a in TINY_ARGS if a not in ("--lr", "0.003", "--warmup-epochs", "0.5", "--epochs", "2", "--precision",
                                              "fp32", "--workers", "0")]  # fmt: skip
    answer = vitmed("lr-find", data, "-o", tmp_path / "lr.png", *sets, "--steps", 60, "--low", 1e-5, "--json")
    assert answer.code == 0, answer.err
    valley = json.loads(answer.out)["valley"]
    assert valley is not None and 3e-5 < valley < 0.3
