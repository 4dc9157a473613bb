"""A batch in parts gives what it gives at once; a step that runs out of memory is computed again in smaller parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from checkpoints import assert_close, last, same
from conftest import BARE, TINY, TINY_SETS, draw_splits, interrupt_at, recording

from vitmed import pretrain, train
from vitmed.core.errors import Interrupted, OutOfMemoryError, VitmedError
from vitmed.core.load_config import load_config
from vitmed.core.messages import listening
from vitmed.models.hardware import seeded
from vitmed.models.mae import MAE
from vitmed.models.vit import Block, ViT, checkpoint_gradients
from vitmed.training.loop import Batch, Gradients
from vitmed.training.out_of_memory import is_out_of_memory, memory_error
from vitmed.training.processes import Ranks

pytestmark = pytest.mark.usefixtures("no_figures")
TOLERANCE = 1e-5
# Batches of 9, two in a step, with mixing and weights, which are those of a whole batch; masks and batch norm are not.
FULL = BARE | {"batch_size": 9, "accumulate": 2, "policy": "blood_smear", "mixup": 0.3, "cutmix": 0.5}
FULL |= {"balance": "loss", "stem": "patch"}
SETS = (*TINY_SETS, "model.depth=2")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_splits(tmp_path_factory.mktemp("gradients") / "data", 19)


def start(data: Path, output: Path, **flags: Any) -> Path:
    return train(data, output=output, name="run", sets=SETS, **FULL | flags).folder


@pytest.fixture(scope="module")
def at_once(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(data, tmp_path_factory.mktemp("at_once"))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("at_once", [None, 1, 2, 3, 5, 100])
def test_parts_are_the_share_of_each_rank_once(world: int, at_once: int | None) -> None:
    for total in (4, 7, 9, 32):
        parts = [Ranks(rank, world, rank, world).parts(total, at_once) for rank in range(world)]
        for rank, own in enumerate(parts):
            found = [row for part in own for row in range(part.start, part.stop)]
            assert found == list(range(len(range(rank, total, world))))
            assert all(part.stop > part.start for part in own)
            assert max(part.stop - part.start for part in own) <= max(at_once or total, -(-total // (total // world)))
        assert len({len(own) for own in parts}) == 1  # as many on every rank


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({"micro_batch": 1}, marks=pytest.mark.slow),  # a run that is short of memory ends with it
        {"micro_batch": 4, "grad_checkpointing": True},
    ],
)
def test_a_batch_in_parts_gives_what_it_gives_at_once(
    data: Path, tmp_path: Path, at_once: Path, flags: dict[str, Any]
) -> None:
    seen, real = [], ViT.forward

    def watch(self: ViT, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            seen.append(len(x))
        return real(self, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ViT, "forward", watch)
        run = start(data, tmp_path, **flags)
    assert max(seen) <= flags["micro_batch"]
    assert_close(run, at_once)


@pytest.mark.slow
def test_class_weights_without_mixing_are_those_of_the_whole_batch(data: Path, tmp_path: Path) -> None:
    unequal = draw_splits(tmp_path / "data", 12)
    for i in range(4, 12):
        (unequal / "train" / "blue" / f"blue_{i}.png").unlink()
    flags = {"mixup": 0.0, "cutmix": 0.0, "batch_size": 7, "accumulate": 1}
    one, parts = (start(unequal, tmp_path / str(n), micro_batch=n, **flags) for n in (None, 2))
    assert_close(parts, one)


def test_checkpointed_gradients_are_the_same_to_the_bit() -> None:
    """Also with dropout, attention dropout and drop path, whose masks are drawn again."""
    names = ("dropout", "attention_dropout", "drop_path")
    config = load_config(None, {"model.image_size": 32, "model.width": 48} | {f"model.{name}": 0.2 for name in names})
    with seeded(0):
        model, x = ViT(config.model, 3).train(), torch.randn(4, 3, 32, 32)
    found = []
    for on in (False, True):
        checkpoint_gradients(model, on)
        model.zero_grad()
        with seeded(1):
            model(x).square().sum().backward()
        found.append([p.grad for p in model.parameters()])
    for a, b in zip(*found, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def test_checkpointing_keeps_less(data: Path) -> None:
    def kept(on: bool) -> int:
        """Bytes that the graph of one forward pass holds, but for weights."""
        model = ViT(load_config(None, {"model.image_size": 64, "model.stem": "patch"}).model, 2).train()
        checkpoint_gradients(model, on)
        found: dict[int, int] = {}

        def note(block: Any, args: Any, out: torch.Tensor) -> None:
            found[id(out)] = out.nbytes

        calls = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, Block)]
        saved: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            model(torch.randn(2, 3, 64, 64))
        assert len(calls) == 12
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}.values())

    assert kept(True) < kept(False) / 2


# --- out of memory


def short_of_memory(patch: pytest.MonkeyPatch, most: int, after: int = 0, recompute: bool = False) -> None:
    """A device on which training more than `most` images at once fails, after so many batches, in the last layers.

    Args:
        recompute: whether gradient checkpointing helps.
    """
    real, add, batches = ViT.forward_pool, Gradients.add, 0

    def begin(self: Gradients, batch: Batch) -> torch.Tensor:
        nonlocal batches
        batches += 1
        return add(self, batch)

    def pool(self: ViT, x: torch.Tensor) -> torch.Tensor:
        enough = recompute and self.blocks[0].recompute  # type: ignore[union-attr]
        if self.training and batches > after and len(x) > most and not enough:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return real(self, x)

    patch.setattr(ViT, "forward_pool", pool)
    patch.setattr(Gradients, "add", begin)
    patch.setattr("vitmed.training.finetune.summarise", lambda *_: "")


@pytest.mark.parametrize("after", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_less_memory_gives_the_same_weights(
    data: Path, tmp_path: Path, at_once: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """From the second batch of a step, whose first is computed again too, or the second step on."""
    short_of_memory(monkeypatch, 3, after)
    ui = recording()
    run = start(data, tmp_path)
    assert_close(run, at_once)
    told = [text for text in ui.warned if "memory" in text]
    assert told == [
        "out of memory with 9 images at once; the same batch is computed with 5 at once",
        "out of memory with 5 images at once; the same batch is computed with 3 at once",
    ]
    for config in (yaml.safe_load((run / "config.yaml").read_text()), last(run)["config"]):
        assert config["train"]["micro_batch"] == 3 and not config["train"]["grad_checkpointing"]


@pytest.mark.slow
def test_a_resumed_run_begins_with_what_fitted(
    data: Path, tmp_path: Path, at_once: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends with the weights of a run that never stopped, to the bit. Memory is short from the first batch on."""
    short_of_memory(monkeypatch, 3)
    whole = start(data, tmp_path / "whole")
    assert_close(whole, at_once)
    with pytest.raises(Interrupted), listening(interrupt_at(2)):
        start(data, tmp_path)
    ui = recording()
    train(resume=tmp_path / "run")
    assert not [text for text in ui.warned if "memory" in text]
    same(last(whole)["training"], last(tmp_path / "run")["training"])


def test_a_run_resumes_with_other_parts(data: Path, tmp_path: Path, at_once: Path) -> None:
    with pytest.raises(Interrupted), listening(interrupt_at(2)):
        start(data, tmp_path, micro_batch=2)
    train(resume=tmp_path / "run", micro_batch=5, grad_checkpointing=True)
    assert_close(tmp_path / "run", at_once)
    assert last(tmp_path / "run")["config"]["train"]["micro_batch"] == 5


@pytest.mark.slow
def test_statistics_of_a_failed_attempt_do_not_count(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch norm of a convolutional stem sees the images of a part: as if the run had begun with such parts."""
    flags = {"stem": "conv", "mixup": 0.0, "cutmix": 0.0}
    parts = start(data, tmp_path / "parts", micro_batch=3, **flags)
    short_of_memory(monkeypatch, 3)
    same(last(start(data, tmp_path, **flags))["training"]["model"], last(parts)["training"]["model"])


def test_with_one_image_at_once_gradients_are_checkpointed(
    data: Path, tmp_path: Path, at_once: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_of_memory(monkeypatch, 0, recompute=True)
    ui = recording()
    run = start(data, tmp_path)
    assert_close(run, at_once)
    told = [text for text in ui.warned if "memory" in text]
    assert told[-1] == "out of memory with 1 image at once; the same batch is computed with gradient checkpointing"
    train_of = yaml.safe_load((run / "config.yaml").read_text())["train"]
    assert train_of["micro_batch"] == 1 and train_of["grad_checkpointing"]


def test_memory_that_never_suffices_ends_the_run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short_of_memory(monkeypatch, 0)
    with pytest.raises(
        OutOfMemoryError, match="batches of 9 images of 16 px, computed one by one with gradient"
    ) as got:
        start(data, tmp_path)
    assert "--image-size" in got.value.fix and "--batch-size" not in got.value.fix


# --- pretraining

MAE_FLAGS = TINY | {"policy": "mae", "batch_size": 7, "accumulate": 2}
MAE_SETS = ("model.width=16", "model.depth=2", "model.heads=2")


@pytest.mark.slow
def test_pretraining_computes_parts_and_halves_too(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(name: str, **flags: Any) -> Path:
        return pretrain(data, output=tmp_path, name=name, sets=MAE_SETS, **MAE_FLAGS | flags).folder

    one, parts = begin("one"), begin("parts", micro_batch=3, grad_checkpointing=True)
    real: Callable[..., Any] = MAE.decode

    def decode(self: MAE, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, x, visible)

    monkeypatch.setattr(MAE, "decode", decode)
    ui = recording()
    short = begin("short")
    assert ["4 images at once; the same batch is computed with 2 at once" in text for text in ui.warned].count(
        True
    ) == 1
    weights = [torch.load(run / "encoder.pt", weights_only=True)["weights"] for run in (one, parts, short)]
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], atol=TOLERANCE, rtol=TOLERANCE)


# --- several processes


def test_several_processes_end_with_advice() -> None:
    """The others wait for the gradients of this one: none begins again."""
    config = load_config(None, {"train.batch_size": 16, "train.micro_batch": 8})
    error = memory_error(torch.OutOfMemoryError("CUDA out of memory"), config)
    assert isinstance(error, OutOfMemoryError) and "batches of 16 images of 224 px" in error.problem
    assert "--micro-batch 4" in error.fix and "--grad-checkpointing" in error.fix


@pytest.mark.parametrize(
    ("end", "kind", "text"),
    [
        ("is killed by signal: Killed. ", OutOfMemoryError, "memory or /dev/shm full"),
        ("is killed by signal: Bus error. It is possible that", OutOfMemoryError, "memory or /dev/shm full"),
        ("is killed by signal: Terminated. ", VitmedError, "Terminated"),
        ("is killed by signal: Segmentation fault. ", VitmedError, "Segmentation fault"),
        ("exited unexpectedly", VitmedError, "exited unexpectedly"),
    ],
)
def test_how_a_loader_process_ended_is_said(end: str, kind: type[VitmedError], text: str) -> None:
    """Only what the kernel sends for lack of memory is taken for a lack of memory."""
    error = memory_error(RuntimeError(f"DataLoader worker (pid 4) {end}"), load_config(None, {}))
    assert type(error) is kind and text in error.problem and "--workers 0" in error.fix


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("CUDA error: out of memory", True),
        ("MPS backend out of memory (MPS allocated: 9 GB)", True),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", True),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("could not create a primitive", True),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_what_says_that_memory_ran_out(text: str, memory: bool) -> None:
    assert is_out_of_memory(RuntimeError(text)) == memory
