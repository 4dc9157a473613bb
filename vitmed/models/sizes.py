"""`SIZES`: the sizes of a ViT by name, as in timm; and the short name of a network."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from vitmed.core.model_config import ModelConfig
from vitmed.core.text import file_name


class Size(NamedTuple):
    """Width D, number of blocks, heads A."""

    width: int
    depth: int
    heads: int


SIZES = {
    "vit_tiny": Size(192, 12, 3),
    "vit_small": Size(384, 12, 6),
    "vit_base": Size(768, 12, 12),
    "vit_large": Size(1024, 24, 16),
}


def model_label(model: ModelConfig) -> str:
    """A short name of the network: that of its weights or size, or its width and depth."""
    if model.weights is not None:
        file = Path(model.weights)
        own = file.name in ("best.pt", "last.pt", "encoder.pt")
        return file_name(file.resolve().parent.name if own else file.stem) or "weights"
    size = SIZES[model.name]
    width, depth = model.width or size.width, model.depth or size.depth
    return model.name.replace("_", "-") if (width, depth) == size[:2] else f"vit-{width}x{depth}"
