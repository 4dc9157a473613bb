"""Training in fp16, as on a GPU without bf16: the CPU can do it too, slowly, and vitmed refuses it there when asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import last, same
from conftest import BARE, TINY_SETS, draw_splits, interrupt_at
from small_networks import small_vit
from tiny_config import tiny_config

from vitmed import train
from vitmed.core.errors import Interrupted
from vitmed.core.messages import listening
from vitmed.models.hardware import Precision
from vitmed.training import run as runs
from vitmed.training.loop import optimiser_step
from vitmed.training.train_state import new_state

pytestmark = pytest.mark.usefixtures("no_figures")
SCALER = torch.amp.GradScaler
FP16 = Precision("fp16", torch.float16, "this GPU has no bf16; the loss is scaled")
FLAGS = BARE | {"batch_size": 4, "accumulate": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_splits(tmp_path_factory.mktemp("fp16") / "data")


@pytest.fixture
def a_gpu_without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "pick_precision", lambda name, device: FP16)


@pytest.mark.slow
@pytest.mark.usefixtures("a_gpu_without_bf16")
def test_a_run_in_fp16_learns_skips_infinite_gradients_and_resumes_to_the_bit(data: Path, tmp_path: Path) -> None:
    whole = train(data, output=tmp_path, name="whole", sets=TINY_SETS, **FLAGS).folder
    history = last(whole)["training"]["history"]
    assert history[1]["train_loss"] < history[0]["train_loss"]
    with pytest.raises(Interrupted), listening(interrupt_at(7)):
        train(data, output=tmp_path, name="part", sets=TINY_SETS, **FLAGS)
    saved = last(tmp_path / "part")["training"]["scaler"]
    assert 0 < saved["scale"] <= 65536
    train(resume=tmp_path / "part")
    for name in ("weights", "training"):
        same(last(tmp_path / "part")[name], last(whole)[name], name)


def test_a_step_with_an_infinite_gradient_is_skipped(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a_gpu_without_bf16: None
) -> None:
    monkeypatch.setattr(
        "vitmed.training.train_state.torch.amp.GradScaler",
        lambda device, enabled: SCALER(device, enabled=enabled, init_scale=2.0**40),
    )
    run = train(data, output=tmp_path, name="run", sets=TINY_SETS, **FLAGS).folder
    training = last(run)["training"]
    assert training["scaler"]["scale"] < 2.0**40
    assert all(torch.isfinite(value).all() for value in training["model"].values())


def test_a_run_that_began_in_other_arithmetic_goes_on_in_fp16(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a laptop in fp32, then `--resume --device cuda` on a GPU without bf16."""
    with pytest.raises(Interrupted), listening(interrupt_at(7)):
        train(data, output=tmp_path, name="run", sets=TINY_SETS, **FLAGS)
    assert last(tmp_path / "run")["training"]["scaler"] == {}
    monkeypatch.setattr(runs, "pick_precision", lambda name, device: FP16)
    train(resume=tmp_path / "run")
    assert last(tmp_path / "run")["training"]["scaler"]["scale"] > 0


def test_gradients_are_clipped_as_if_the_loss_had_not_been_scaled() -> None:
    """A gradient of 3 for each of the 32 weights has the norm 3 sqrt(32), and the step takes one of norm 0.5."""
    state = new_state(small_vit(2, 16, 8, width=16, depth=1, heads=2), tiny_config(), 1, torch.device("cpu"), FP16)
    state.model.head.bias.requires_grad_(False)
    taken = list[float]()
    state.optimiser.step = lambda: taken.append(float(state.model.head.weight.grad.norm()))  # type: ignore[method-assign]
    state.scaler.scale(3 * state.model.head.weight.sum()).backward()
    assert float(optimiser_step(state, 0.1, 0.5)) == pytest.approx(3 * 32**0.5)
    assert taken == pytest.approx([0.5], rel=1e-4) and state.step == 1
