"""The forecast: the slower of computing and loading counts, and a measured step is kept."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import draw_splits
from tiny_config import tiny_config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitmed.core.base_models import NO_FINDING, Target
from vitmed.core.config import DataConfig
from vitmed.core.load_config import load_config
from vitmed.data.splits import make_splits
from vitmed.models.vit import ViT
from vitmed.training.plan import time as module
from vitmed.training.plan.time import (
    EACH_EPOCH,
    EACH_FINDING,
    EACH_IMAGE,
    EXACT,
    IN_TRAINING,
    LEARNED,
    REPORTING,
    STARTING,
    TABLES,
    After,
    Forecast,
    Forecaster,
    operations,
)

CPU = torch.device("cpu")


config = partial(tiny_config, data__window=None, train__precision="fp32")


@pytest.fixture
def forecaster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Forecaster:
    """24 + 8 + 12 images, on a machine of 4 cores with one thread; reading a file takes 2 s of a core."""
    monkeypatch.setattr(module, "cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(module, "reading_seconds", lambda splits, config: 2.0)
    monkeypatch.setattr(module, "step_seconds", lambda config, device, classes: 0.3)
    data = draw_splits(tmp_path / "data")
    return Forecaster(make_splits(DataConfig(root=str(data))), CPU)


def test_the_parts_of_a_run(forecaster: Forecaster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "augmenting_seconds", lambda config: 0.0)
    unlimited = Forecaster(forecaster.splits, CPU).of(config())
    assert unlimited.before == pytest.approx(STARTING + 44 * EACH_IMAGE)  # no file is decoded for the estimate
    found = forecaster.of(config(train__time=600))
    assert found.before == pytest.approx(STARTING + 44 * (2.0 / 4 + EACH_IMAGE))
    assert (found.one_pass, found.after) == (unlimited.one_pass, unlimited.after)
    assert found.one_pass == pytest.approx(24 * 0.3 * IN_TRAINING + 8 * 0.1 + EACH_EPOCH)
    assert found.after == pytest.approx(REPORTING + 20 * EACH_IMAGE + (24 + 4 * 8 + 12) * 0.1)
    mirrored = forecaster.of(config(augment__policy="light", augment__views="mirror"))
    assert mirrored.one_pass == found.one_pass  # validation after an epoch has one view
    assert mirrored.after == pytest.approx(REPORTING + 20 * EACH_IMAGE + 2 * (24 + 4 * 8 + 12) * 0.1)
    assert forecaster.of(config(evaluate__report=False)).after == pytest.approx(found.after - REPORTING + TABLES)


@pytest.mark.parametrize("augment, workers, each", [(0.1, 2, 0.36), (1.0, 2, 0.5), (1.0, 0, 1.36), (6.0, 8, 6.36 / 4)])
def test_the_slower_of_computing_and_loading_counts(
    forecaster: Forecaster, monkeypatch: pytest.MonkeyPatch, augment: float, workers: int, each: float
) -> None:
    """Seconds of an image: of the step, of loading in parallel, of one after the other, of all work on all cores."""
    monkeypatch.setattr(module, "augmenting_seconds", lambda config: augment)
    found = forecaster.of(config(train__workers=workers))
    assert found.one_pass == pytest.approx(24 * each + 8 * 0.1 + EACH_EPOCH)


def test_passes_and_seconds_are_inverse() -> None:
    found = Forecast(10.0, 5.0, 20.0)
    assert found.total(6) == 60 and found.passes_in(60) == 6


def test_a_measured_step_is_kept_for_the_same_network_unless_the_machine_is_busy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path))
    times = iter([1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(module, "_time_steps", lambda *_: next(times))
    monkeypatch.setattr(module, "busy", lambda: "other programs use 1.0 of 2 cores")
    assert module.step_seconds(config(), CPU, 2) == 1.0
    monkeypatch.setattr(module, "busy", lambda: None)
    assert [module.step_seconds(config(), CPU, 2) for _ in range(2)] == [2.0, 2.0]
    assert module.step_seconds(config(model__depth=2), CPU, 2) == 3.0
    (file, *_) = (tmp_path / "speed").iterdir()
    for file in (tmp_path / "speed").iterdir():
        file.write_text("{torn")
    assert module.step_seconds(config(), CPU, 2) == 4.0


def test_what_follows_a_training_in_16_bits_computes_in_fp32(
    forecaster: Forecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the frozen network, the baseline of a fine-tuned one, predicts validation and test, too."""
    exact = forecaster.of(config()).after - 68 * 0.1
    sixteen = SimpleNamespace(mixed=True, name="bf16")
    monkeypatch.setattr(module, "pick_precision", lambda *_: sixteen)
    assert forecaster.of(config()).after == pytest.approx(exact + 68 * EXACT * 0.3)
    tuned = config(model__weights="w.pth")
    assert forecaster.of(tuned).after == pytest.approx(exact + (68 + 20) * EXACT * 0.3)
    assert forecaster.of(config(model__weights="w.pth", train__baseline=False)).after < forecaster.of(tuned).after


def test_what_follows_training_is_remembered_for_runs_like_it(
    forecaster: Forecaster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))

    def after(**fields: bool) -> After:
        return After(forecaster.splits, config(**fields), CPU)

    several = replace(forecaster.splits, target=Target(kind="findings"), bins=("amber", "blue", NO_FINDING))
    assert After(several, config(), CPU).usual == after().usual + 2 * EACH_FINDING  # a page for each
    first = after()
    assert first.seconds(0.5) == pytest.approx(first.fixed + (24 + 4 * 8 + 12) / 3 * 0.5)
    first.keep(9.0 + first.steps * 0.5)
    assert after().fixed == pytest.approx(9.0, rel=0.01)
    assert after(evaluate__report=False).fixed == after(evaluate__report=False).usual != after().usual
    first.keep(1e6)  # a machine that slept
    assert after().fixed == pytest.approx(LEARNED[1] * first.usual)
    first.file.write_text("{torn")
    assert after().fixed == first.usual


def test_a_short_time_leaves_none_for_timing_many_networks(
    forecaster: Forecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a minute 2 % are enough for one; the others follow from their operations."""
    timed = list[int]()
    monkeypatch.setattr(module, "step_seconds", lambda config, *_: timed.append(config.model.depth or 0) or 0.3)
    for limit, expected in ((60, [1]), (200, [1, 2]), (None, [1, 2, 3, 4])):
        found = Forecaster(forecaster.splits, CPU)
        steps = [found.step(config(train__time=limit, model__depth=depth)) for depth in (1, 2, 3, 4, 5)]
        assert timed == expected and steps[4] == pytest.approx(0.3 * 5 / expected[-1])
        timed.clear()


def test_what_is_measured_is_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path))
    splits = make_splits(DataConfig(root=str(draw_splits(tmp_path / "data"))))
    drawn = torch.get_rng_state()
    assert module.step_seconds(config(), CPU, 2) > 0
    assert module.reading_seconds(splits, config()) > 0 and module.augmenting_seconds(config()) > 0
    assert module.augmenting_seconds(config(augment__policy="none")) == 0
    assert torch.equal(torch.get_rng_state(), drawn)


def test_what_a_step_takes_once_is_shared_by_all_its_images() -> None:
    """A step of n images takes 3 + 2 n s here; noise and steps of one size change nothing."""
    assert module.of_full_step((2, 7.0), (8, 19.0), 32) == pytest.approx(2 + 3 / 32)
    assert module.of_full_step((2, 7.0), (8, 6.0), 32) == pytest.approx(6 / 8)
    assert module.of_full_step((4, 11.0), (4, 11.5), 4) == pytest.approx(11.5 / 4)


def test_the_operations_of_a_network_are_those_that_torch_counts() -> None:
    """A multiplication and an addition each, 768 of weights and 512 of attention for each number of a token; the stem
    and the head are small beside eight blocks."""
    sizes = {"image_size": 128, "patch_size": 8, "width": 64, "depth": 8, "heads": 2, "pool": "mean"}
    config = load_config(None, {f"model.{name}": value for name, value in sizes.items()} | {"model.stem": "patch"})
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # in matrix products
        ViT(config.model, 2)(torch.zeros(1, 3, 128, 128))
    assert operations(config) == pytest.approx(counter.get_total_flops() / 2, rel=0.1)
