"""`--batch-size auto`: the batch of the plan, of which as many images are computed at once as fit the memory."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import TINY_ARGS, Answer, draw_splits

from vitmed.core.errors import UsageError
from vitmed.core.load_config import load_config
from vitmed.models.hardware import Precision
from vitmed.models.vit import ViT
from vitmed.training import out_of_memory
from vitmed.training.out_of_memory import available_memory, fit_memory, one_batch
from vitmed.training.train_state import TrainState, new_state

RUN = Callable[..., Answer]
FP32 = Precision("fp32", torch.float32, "")
FIELDS = {"model.image_size": 32, "model.width": 32, "model.depth": 2, "model.heads": 2, "model.stem": "conv",
          "model.dropout": 0.1, "train.micro_batch": "auto"}  # fmt: skip


def state(**fields: Any) -> tuple[TrainState, Any]:
    config = load_config(None, FIELDS | {key.replace("__", "."): value for key, value in fields.items()})
    model = ViT(config.model, 2)
    return new_state(model, config, 4, torch.device("cpu"), FP32), config


def found(asked: tuple[TrainState, Any], most: int = 16) -> tuple[int, bool, str]:
    return fit_memory(*asked, most, FP32, 1)


def computing(model: torch.nn.Module, side: int) -> Callable[[int], None]:
    return lambda count: model(torch.rand(count, 3, side, side)).mean().backward()


# --- the settings


def test_auto_leaves_the_batch_to_the_plan() -> None:
    for given in ({"train.batch_size": "auto"}, {"train.batch_size": "auto", "train.micro_batch": None}):
        train = load_config(None, {}, [f"{key}={'null' if v is None else v}" for key, v in given.items()]).train
        assert (train.batch_size, train.micro_batch) == (32, "auto") and "batch_size" not in train.model_fields_set
    train = load_config(None, {"train.batch_size": "auto", "train.micro_batch": "4"}).train
    assert (train.batch_size, train.micro_batch) == (32, 4)


def test_the_images_of_a_step_become_one_batch() -> None:
    fields = {"train.batch_size": 16, "train.accumulate": 4}
    train = one_batch(load_config(None, fields | {"train.micro_batch": "auto"})).train
    assert (train.batch_size, train.accumulate) == (64, 1)
    config = load_config(None, fields)
    assert one_batch(config) is config


@pytest.mark.parametrize("value", ["many", "0", "-3", "1.5"])
def test_other_words_are_refused(value: str) -> None:
    with pytest.raises(UsageError, match=r"--micro-batch .*: expected auto, null, or a number from 1"):
        load_config(None, {"train.micro_batch": value})
    with pytest.raises(UsageError, match=r"train\.batch_size"):
        load_config(None, {"train.batch_size": value})


# --- a CPU


@pytest.mark.slow
def test_as_much_as_a_cpu_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_memory, "_peak", lambda _, count: 10_000_000 + 50_000_000 * count)
    asked = state()
    states = 12 * sum(p.numel() for p in asked[0].model.parameters())  # gradients and moments
    for gigabytes, images in ((100, 16), (1, 15), (0.5, 7)):  # 52.5 MB an image, measured on 4, of 80 %
        monkeypatch.setattr(out_of_memory, "available_memory", lambda b=gigabytes: int(b * 1e9) + int(states / 0.8))
        assert found(asked)[:2] == (images, False)
    monkeypatch.setattr(out_of_memory, "available_memory", lambda: 70_000_000)
    assert found(asked)[:2] == (1, True)


@pytest.mark.slow
@pytest.mark.skipif(not out_of_memory.STATUS.is_file(), reason="no /proc")
def test_the_need_is_measured() -> None:
    compute = computing(state(model__width=128, model__depth=4, model__image_size=64)[0].model, 64)
    compute(1)
    needs = [out_of_memory._peak(compute, count) for count in (4, 16)]
    assert needs[0] < needs[1] < 6 * needs[0]
    asked = state()  # measuring changes nothing
    model = asked[0].model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random, training = torch.get_rng_state(), model.training
    found(asked)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random) and model.training == training
    assert all(p.grad is None for p in model.parameters()) and not asked[0].optimiser.state


def test_the_memory_of_a_container_counts(tmp_path: Path) -> None:
    for version, (limit, used, cached) in enumerate(
        [("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
         ("memory.max", "memory.current", "inactive_file")], 1,
    ):  # fmt: skip
        group = tmp_path / str(version)
        group.mkdir()
        (group / limit).write_text("5000\n")
        (group / used).write_text("3000\n")
        (group / "memory.stat").write_text(f"anon 7\n{cached} 500\n")
        assert out_of_memory._left(group) == 2500
        (group / limit).write_text("max\n")
        assert out_of_memory._left(group) is None
    assert out_of_memory._left(tmp_path / "none") is None


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of other systems is unknown")
def test_the_memory_of_this_machine_is_known() -> None:
    free = available_memory()
    assert free is not None and 0 < free < 2**50


# --- a device, played by the CPU


@pytest.mark.slow
@pytest.mark.parametrize(("most", "images"), [(16, 16), (5, 4), pytest.param(1, 1, marks=pytest.mark.slow)])
def test_a_device_is_tried(monkeypatch: pytest.MonkeyPatch, most: int, images: int) -> None:
    model, real = state()[0].model, ViT.forward_pool
    tried: list[int] = []

    def pool(self: ViT, x: torch.Tensor) -> torch.Tensor:
        tried.append(len(x))
        if len(x) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, x)

    def empty(*shape: Any, **how: Any) -> torch.Tensor:
        assert not any(earlier() is not None for earlier in moments), "those of an attempt that failed are still there"
        moments.append(weakref.ref(made := torch.zeros(*shape, **how)))
        return made

    moments = list[weakref.ref[torch.Tensor]]()
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(ViT, "forward_pool", pool)
    count, why = out_of_memory._fit_device(computing(model, 32), 16, 1000, model)
    assert count == images and why == ("as tried" if most == 16 else f"{2 * images} images did not fit")
    assert len(moments) == len(set(tried))
    assert sorted(set(tried), reverse=True) == [n for n in (16, 8, 4, 2, 1) if n >= images]


# --- the command


def test_auto_is_reported_and_kept(
    vitmed: RUN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_figures: None
) -> None:
    data = draw_splits(tmp_path / "data")
    args = [*TINY_ARGS, "--accumulate", "2", "--no-report", "--no-baseline"]
    monkeypatch.setattr(out_of_memory, "_fit_cpu", lambda *_: (5, "two are company"))
    answer = vitmed("train", data, *args, "--batch-size", "auto", "-o", tmp_path, "--name", "run", "--verbose")
    assert answer.code == 0
    assert "batch: 24 images, 5 at once (two are company; --micro-batch 5)" in answer.err
    train = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["train"]
    assert (train["batch_size"], train["accumulate"], train["micro_batch"]) == (64, 1, 5)


@pytest.mark.slow
def test_pretraining_takes_auto(vitmed: RUN, tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data")
    small = ["--image-size", 16, "--patch-size", 8, "--device", "cpu", "--set", "model.width=24", "-b", "auto"]
    answer = vitmed("pretrain", data, *small, "--epochs", 1, "-o", tmp_path, "--name", "mae", "--workers", 0)
    assert answer.code == 0 and "batch: 24 images, 24 at once (" in answer.err
