"""Small networks of other libraries with random weights, the same through our loader, and whether both agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitmed.core.config import ModelConfig
from vitmed.models.vit import ViT
from vitmed.models.weights.pretrained import LoadReport, config_for_weights, load_pretrained, read_weights

CLASSES, SIZE, HEADS = 5, 32, 4


def restless(model: nn.Module) -> Any:
    """Random numbers in every parameter, so that nothing is right by being zero or one."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def load(file: Path, **fields: Any) -> tuple[ViT, LoadReport]:
    weights = read_weights(file)
    model = ViT(config_for_weights(ModelConfig(heads=HEADS, **fields), weights), CLASSES)
    report = load_pretrained(model, weights)
    return model.eval(), report


def same(
    theirs: Callable[[Tensor], Tensor], ours: Callable[[Tensor], Tensor], size: int = SIZE, channels: int = 3
) -> None:
    x = torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted, got = theirs(x), ours(x)
    assert wanted.shape == got.shape and wanted.abs().max() > 0.1  # not a comparison of zeros
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
