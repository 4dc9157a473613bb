"""Checkpoints read, changed and compared; one that would run a command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from vitmed.models.weights.files import digests_of

TIMED = ("images_per_second", "wait_share", "seconds", "spent")


def content(file: Path) -> dict[str, object]:
    return torch.load(file, weights_only=True)


def last(run: Path) -> dict[str, Any]:
    """The content of its last.pt."""
    return torch.load(run / "last.pt", weights_only=True)


def assert_close(run: Path, other: Path, *more: str) -> None:
    """Weights, their average, `more` of the state of training, and losses: within 1e-5, after as many steps."""
    a, b = last(run), last(other)
    torch.testing.assert_close(a["weights"], b["weights"], atol=1e-5, rtol=1e-5)
    for part in ("model", "ema", *more):
        torch.testing.assert_close(a["training"][part], b["training"][part], atol=1e-5, rtol=1e-5)
    assert a["training"]["step"] == b["training"]["step"]
    for one, two in zip(a["training"]["history"], b["training"]["history"], strict=True):
        assert (one["step"], one["best"]) == (two["step"], two["best"])
        for name in ("train_loss", "val_loss", "val_auroc"):
            assert abs(one[name] - two[name]) < 1e-5, name


def rewrite(source: Path, target: Path, **changes: object) -> Path:
    """A copy of a checkpoint with other entries, and with their digests; None takes one out."""
    return save({k: v for k, v in (content(source) | changes).items() if v is not None or k == "training"}, target)


def save(changed: dict[str, Any], target: Path) -> Path:
    """Save the content of a checkpoint as if vitmed had written it so."""
    torch.save(changed | {"digests": digests_of(changed)}, target)
    return target


class Hostile:
    """Unpickled in the ordinary way, this runs a command."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


def same(a: Any, b: Any, where: str = "") -> None:
    """Equal to the last bit, but for what a clock says."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            if key not in TIMED and key != "waited":
                same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}[{i}]")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    else:
        assert a == b, where
