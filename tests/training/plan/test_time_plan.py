"""What time buys: the largest network that learns enough in it, by the measured speed."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Answer, Trained, draw_classes, draw_splits, recording

from vitmed import auto, cross_validate, plan, train, tune
from vitmed.core.config import Config
from vitmed.core.errors import DataError, UsageError
from vitmed.core.load_config import build_config, load_config
from vitmed.models.vit import ViT
from vitmed.training.plan import time as speed
from vitmed.training.plan.make_plan import make_plan
from vitmed.training.plan.rules import SCRATCH, PlanInputs, Rule
from vitmed.training.plan.time import (
    CANDIDATES,
    MOST_KNEES,
    Candidate,
    Forecast,
    Forecaster,
    check_time,
    choose_network,
    time_line,
)

SMALL = Candidate(32, 2, 2, 8, 32, 0, 3000, 100, 2e-3)
LARGE = SMALL._replace(width=64, image_size=64, steps=6000, passes=50)
LARGEST = LARGE._replace(width=128, least=1000)
INPUTS = PlanInputs(SCRATCH, 960, 200, 130, "cpu", 192)
ROWS = [SMALL, LARGE, LARGEST]


def chosen(seconds: float, pass_of: dict[int, float], timed: list[int] | None = None) -> dict[str, Any]:
    """The fields of the plan where a pass of a network of that width takes so long."""

    def forecast_of(rule: Rule) -> Forecast:
        width = rule.fields["model.width"]
        if timed is not None:
            timed.append(width)
        return Forecast(10.0, pass_of[width], 30.0)

    return choose_network(ROWS, INPUTS, 32, seconds, forecast_of).fields


def test_the_knee_is_in_steps_or_in_passes() -> None:
    assert SMALL.knee(960, 32) == 100  # 3,000 steps of 32 images
    assert SMALL.knee(96, 32) == 100 and SMALL.knee(96_000, 32) == 1 and SMALL.knee(20, 32) == 100
    assert LARGE.knee(960, 32) == 50


def test_the_largest_network_that_reaches_its_knee_is_chosen() -> None:
    passes = {32: 1.0, 64: 4.0, 128: 16.0}
    assert [chosen(s, passes)["model.width"] for s in (50, 239, 240, 839, 840, 10**5)] == [32, 32, 64, 64, 128, 128]
    slow = {width: 10 * seconds for width, seconds in passes.items()}
    assert chosen(840, slow)["model.width"] == 32  # on a machine of a tenth of the speed
    found = chosen(240, passes)
    assert found["train.epochs"] == MOST_KNEES * 50 and found["model.image_size"] == 64
    timed: list[int] = []
    chosen(100, passes, timed)
    assert timed == [64]  # networks beyond one that takes too long are not timed


def test_the_square_is_no_larger_than_the_images() -> None:
    sides = {side: LARGE.square(PlanInputs(SCRATCH, 960, 200, side, "cpu", 192))[0] for side in (20, 50, 64, 500)}
    assert sides == {20: 32, 50: 48, 64: 64, 500: 64}


@pytest.mark.parametrize(("side", "most"), [(8, 32), (28, 32), (40, 40), (48, 48), (50, 64), (100, 96), (3000, 224)])
def test_no_network_gets_images_larger_than_the_files(side: int, most: int) -> None:
    """Of small images the patches are smaller; the least is 4 x 4 patches."""
    inputs = PlanInputs(SCRATCH, 9000, 200, side, "cpu", 192)
    for row in CANDIDATES:
        square, patch = row.square(inputs)
        assert 4 * patch <= square <= most and square % patch == 0


@pytest.mark.parametrize("images", [20, 499, 500, 999, 5000, 10**6])
def test_the_table_has_valid_networks_from_small_to_large_for_every_number_of_images(images: int) -> None:
    inputs = PlanInputs(SCRATCH, images, 100, 1000, "cpu", 192)
    rows, work = [row for row in CANDIDATES if row.least <= images], []
    for row in rows:
        square = row.square(inputs)[0]
        fields = {"width": row.width, "depth": row.depth, "heads": row.heads, "patch_size": row.patch_size,
                  "image_size": square, "stem": "residual"}  # fmt: skip
        with torch.device("meta"):
            network = ViT(build_config({"model": fields}).model, 2)
        tokens = (square // row.patch_size) ** 2
        work.append(tokens * sum(p.numel() for p in network.blocks.parameters()))
        assert row.lr > 0 and row.passes > 0 and row.steps > 0
    assert rows and work == sorted(work)


def test_a_time_for_less_than_a_pass_is_refused_with_one_that_is_enough() -> None:
    forecast = Forecast(8.0, 4.0, 25.0)
    check_time(37.0, forecast)
    with pytest.raises(UsageError, match=r"--time 36s is too short: 8 s to read .* 4 s for one epoch, 20 s") as caught:
        check_time(36.0, forecast)
    assert caught.value.fix == "--time 45s"
    with pytest.raises(UsageError) as caught:
        check_time(36.0, forecast, ["--image-size"])
    assert caught.value.fix == "--time 45s, or leave --image-size out"


def line(epochs: int, time: float | None) -> str:
    config = load_config(None, {"train.epochs": epochs, "train.time": time})
    return time_line(config, Forecast(10.0, 5.0, 30.0))[1]


def test_the_line_says_how_long() -> None:
    start, rest = "10 s before training", "about 20 epochs in 1.7 min, 30 s for the evaluation)"
    parts = f"({start}, {rest}"
    assert line(20, None) == f"time: about 2.3 min and the reading of the images {parts}"
    assert line(300, 140) == f"time: 2m20s {parts}"
    assert line(20, 3600) == f"time: about 2.3 min of 1h {parts}; no more epochs are planned"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images, and a machine on which an image takes the width of the network in tenths of a millisecond."""
    monkeypatch.setattr(speed, "step_seconds", lambda config, *_: (config.model.width or 192) / 10_000)
    monkeypatch.setattr(speed, "operations", lambda config: config.model.width or 192)
    monkeypatch.setattr(speed, "augmenting_seconds", lambda config: 0.0)
    monkeypatch.setattr("vitmed.training.plan.make_plan.CANDIDATES", (SMALL, LARGE))
    return draw_splits(tmp_path / "data", 32, 4, 4)  # 64 to train on


def planned(data: Path, **fields: Any) -> tuple[Config, str, list[str]]:
    ui = recording()
    found = plan(data, output=data.parent / "plan.yaml", force=True, device="cpu", **fields)
    return found.config, " ".join(d.when + d.why for d in found.decisions), ui.said


def test_the_plan_of_a_time(data: Path) -> None:
    little, why, said = planned(data, time="45s")
    assert little.model.width == 32 and "--time 45s" in why
    assert any(re.match(r"time: 45s \(\d+ s before training, about \d+ epochs in", text) for text in said)
    much = planned(data, time="10m")[0]
    assert (much.model.width, much.model.image_size, much.train.time) == (64, 32, 600)
    assert much.train.epochs == MOST_KNEES * 50 and much.train.warmup_epochs == much.train.epochs / 10
    assert planned(data, time="10m", lr=7e-4)[0].train.lr == 7e-4  # what you set stays


def test_without_a_time_the_plan_says_what_more_would_buy(data: Path) -> None:
    config, _, said = planned(data)
    assert config.train.time is None
    (text,) = [text for text in said if text.startswith("time: about")]
    assert "--time" not in text  # of these networks none takes longer than the planned one
    network = {"sets": ["model.width=16", "model.heads=2"]}
    assert not any("--time" in text for text in planned(data, **network)[2])  # you chose the network


def test_a_time_ends_the_epochs_that_you_set_and_chooses_nothing(data: Path) -> None:
    config, why, _ = planned(data, time="10m", epochs=7)
    assert config.train.epochs == 7 and config.model == planned(data, epochs=7)[0].model and "--time" not in why


def test_a_time_chooses_only_epochs_where_the_network_is_decided(data: Path, trained: Trained) -> None:
    usual, config, why = planned(data, image_size=16)[0], *planned(data, time="10m", image_size=16)[:2]
    assert config.model == usual.model and config.train.epochs == MOST_KNEES * usual.train.epochs
    assert "you chose the network, so the time decides only the epochs" in why
    why = planned(data, time="10m", weights=trained.best)[1]
    assert "the weights decide the network, so the time decides only its input and the epochs" in why


def test_with_weights_the_time_chooses_the_input(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass is 4 times as long at twice the side; four passes are enough."""
    model = build_config({"model": {"width": 192, "depth": 1, "heads": 3, "image_size": 224}}).model
    torch.save(ViT(model, 10).state_dict(), foreign := tmp_path / "foreign.pth")
    usual = planned(data, weights=foreign)[0]

    def forecast(self: Forecaster, config: Config) -> Forecast:
        return Forecast(10.0, (config.model.image_size / 64) ** 2, 30.0)

    def side(seconds: float, **asked: Any) -> int:
        return int(planned(data, weights=foreign, time=f"{seconds:g}s", **asked)[0].model.image_size)

    monkeypatch.setattr(Forecaster, "of", forecast)
    at = {s: 40 + 4 * (s / 64) ** 2 for s in (64, 96, 128, 160, 224)}
    assert usual.model.image_size == 224
    assert {s: side(math.ceil(seconds) + 1) for s, seconds in at.items()} == {s: s for s in at}
    assert side(at[64] - 1) == 64  # nothing smaller is tried
    assert side(at[96], image_size=128) == 128 and side(at[128] + 1, epochs=3) == 224  # you chose
    why = planned(data, weights=foreign, time=f"{at[96] + 1:g}s")[1]
    assert "at 224 px the time is enough for fewer than 4 passes and 5,000 images" in why
    images = len(make_plan(load_config(overrides={"data.root": str(data)}), plans=False).splits.samples["train"])
    monkeypatch.setattr(
        "vitmed.training.plan.make_plan.PLENTY", 2 * images
    )  # of many images two passes are enough, of more one
    assert side(40 + 2 * (224 / 64) ** 2 + 1) == 224 and side(40 + 2 * (224 / 64) ** 2 - 1) == 160
    monkeypatch.setattr("vitmed.training.plan.make_plan.PLENTY", images // 2)
    assert side(40 + (128 / 64) ** 2 + 1) == 128 and side(40 + (128 / 64) ** 2 - 1) == 96


def test_too_short_a_time_ends_with_exit_code_2(data: Path, vitmed: Any) -> None:
    answer: Answer = vitmed("train", data, "--time", "10s", "--device", "cpu", "-o", data.parent / "runs")
    assert answer.code == 2 and "--time 10s is too short" in answer.err and "Fix: --time 30s" in answer.err
    assert not list((data.parent / "runs").glob("*/*.pt"))


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ({"target_sensitivity": 0.9}, "a threshold decides between two classes, and there are 3"),
        ({"positive": "amber"}, "a positive class is one of two"),
        ({"subgroup": ["sex"]}, "sex"),
        ({"compile": True}, "no C++ compiler"),
    ],
)
@pytest.mark.parametrize("command", [train, cross_validate, auto, tune, plan])
def test_wrong_flags_are_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any, flags: dict[str, Any], found: str
) -> None:
    data = draw_classes(tmp_path / "data", 6, ("amber", "blue", "green"))
    monkeypatch.setenv("CXX", "nonesuch")
    monkeypatch.setenv("PATH", "")
    for name in ("step_seconds", "reading_seconds", "augmenting_seconds"):
        monkeypatch.setattr(speed, name, lambda *_: pytest.fail("measured"))
    with pytest.raises((UsageError, DataError), match=re.escape(found)):
        command(data, output=tmp_path / "runs", time="10m", **flags)


def test_several_processes_share_the_steps(data: Path) -> None:
    prepared = make_plan(load_config(None, {"data.root": str(data)}), True, processes=2)
    alone = Forecaster(prepared.splits, prepared.device)
    assert prepared.forecaster.step(prepared.config) == alone.step(prepared.config) / 2
