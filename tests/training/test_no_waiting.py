"""A training step never waits for its device: the meta device stands in for a GPU, which this machine may not have.

Waiting comes from a number that Python reads, and from a copy between devices that is not asynchronous.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_config import tiny_config
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitmed.core.config import PretrainConfig
from vitmed.data.loading import Images
from vitmed.data.samples import Sample
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.hardware import Precision
from vitmed.models.mae import MAE
from vitmed.models.vit import ViT
from vitmed.training.loop import optimiser_step
from vitmed.training.losses import objective_of
from vitmed.training.pretraining import Pretrain
from vitmed.training.run import Session
from vitmed.training.train_state import new_state

META = torch.device("meta")
READS = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "unique")


FP32 = Precision("fp32", torch.float32, "")


def tensors_of(*values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


class Copies(TorchFunctionMode):
    """Notes tensors that are made from Python numbers: they are copied to the device, and the copy waits."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        name = getattr(func, "__name__", "")
        if name in ("new_tensor", "tensor", "as_tensor") and any(value.device == META for value in tensors_of(result)):
            self.found.append(name)
        return result


class Waits(TorchDispatchMode):
    """Notes what would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.copies = Copies(self.found)

    def __enter__(self) -> Waits:
        self.copies.__enter__()
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.copies.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        given = tensors_of(args, kwargs)
        if name in READS and any(value.device == META for value in given):
            self.found.append(name)
        result = func(*args, **kwargs)
        waits = name in ("_to_copy", "copy_") and not (kwargs.get("non_blocking") or args[2:] == (True,))
        if waits and len({value.device for value in (*given, *tensors_of(result))}) > 1:
            self.found.append(name)
        return result


def images(channels: int = 3, normalize: str = "imagenet") -> Images:
    samples: Sequence[Sample] = [Sample(f"{i}.png", i % 2, None) for i in range(16)]
    return Images(Path(), samples, Preprocessing(32, channels, "pad", normalize))


asked = partial(tiny_config, model__image_size=32, model__depth=2)


@pytest.fixture(autouse=True)
def plain_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device knows no autocast."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **how: nullcontext())


BATCH = torch.empty(8, 32, 32, 3, dtype=torch.uint8, device=META), torch.empty(8, dtype=torch.int64, device=META)
EVERYTHING: dict[str, Any] = {"augment__mixup": 0.4, "augment__cutmix": 0.5, "model__drop_path": 0.2,
              "model__dropout": 0.1, "model__stem": "conv", "train__lora": None}  # fmt: skip
BALANCED = {"train__balance": "loss", "model__attention_dropout": 0.1}


@pytest.mark.parametrize(
    "fields, normalize",
    [
        ({}, "imagenet"),
        (EVERYTHING, "image"),
        (BALANCED, "imagenet"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (({}, "image"), (BALANCED, "image"))),
        pytest.param(EVERYTHING, "imagenet", marks=pytest.mark.slow),
    ],
)
def test_a_step_of_training(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], normalize: str) -> None:
    fused = torch.optim.AdamW  # not on the meta device
    monkeypatch.setattr(torch.optim, "AdamW", lambda *args, **how: fused(*args, **how | {"fused": False}))
    config = asked(**fields)
    data = images(normalize=normalize)
    state = new_state(ViT(config.model, 2).to(META).train(), config, 2, META, FP32)
    objective = objective_of(data, 2, config, FP32, META)
    with Waits() as waits:
        for _ in range(3):
            objective.part(state.model, objective.prepare(*BATCH)).backward()
            optimiser_step(state, 1e-3, 1.0)
    assert waits.found == []


def test_a_step_of_pretraining() -> None:
    config = PretrainConfig(model=asked(model__stem="patch", model__pool="cls").model)
    mae = MAE(ViT(config.model, 1)).to(META)
    objective = Pretrain(mae).objective(config, images(), Session(META, FP32))
    with Waits() as waits:
        objective.part(mae, objective.prepare(*BATCH)).backward()
    assert waits.found == []
