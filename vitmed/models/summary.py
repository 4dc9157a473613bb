"""A network in words: one line, or torchinfo's table of its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitmed.core.model_config import ModelConfig
from vitmed.core.text import counted
from vitmed.models.sizes import SIZES

if TYPE_CHECKING:  # an exported model is described without torch
    from torch import nn


def summarise(model: nn.Module, config: ModelConfig) -> str:
    """Layers, shapes, parameters and multiply-adds for one image, by torchinfo."""
    import torchinfo  # noqa: TID251

    from vitmed.models.hardware import seeded

    size = (1, config.channels, config.image_size, config.image_size)
    device = next(model.parameters()).device
    columns = ("input_size", "output_size", "num_params", "mult_adds")
    with seeded(0, device):  # torchinfo draws a random input
        text = str(torchinfo.summary(model, size, depth=3, col_names=columns, verbose=0, device=device))
    for unit in ("MEGA", "GIGA", "TERA"):  # torchinfo prints the name of its own constant
        text = text.replace(f"Units.{unit}BYTES", unit[0])
    return text + "\n"


def describe_model(model: ModelConfig) -> str:
    """The network in a few words."""
    size = SIZES[model.name]
    changed = [(model.width, size.width), (model.depth, size.depth), (model.heads, size.heads)]
    width, depth, heads = (own or usual for own, usual in changed)
    plain = all(own in (None, usual) for own, usual in changed)
    name = model.name if plain else f"ViT of width {width}, {counted(depth, 'block')}, {counted(heads, 'head')}"
    return (
        f"{name}, {model.image_size} px images, {model.patch_size} px patches, {model.stem} stem, {model.pool} pooling"
    )
