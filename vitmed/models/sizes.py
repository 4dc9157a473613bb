"""`SIZES`: the sizes of a ViT by name, as in timm."""

from __future__ import annotations

from typing import NamedTuple


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
