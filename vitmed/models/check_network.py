"""Whether the numbers of a network go together."""

from __future__ import annotations

from vitmed.core.errors import UsageError
from vitmed.models.attention_pooling import COCA_HEADS


def check_sizes(image_size: int, patch_size: int, width: int, heads: int, positions: str) -> None:
    """Raise UsageError for numbers that do not divide, with close numbers that do."""
    if image_size % patch_size:
        near = max(patch_size, round(image_size / patch_size) * patch_size)
        raise UsageError(
            f"image size {image_size} is not divisible by patch size {patch_size}", f"use --image-size {near}"
        )
    if width % heads:
        good = [a for a in range(1, width + 1) if width % a == 0 and a <= 24]
        raise UsageError(f"{heads} heads do not divide width {width}", f"use heads in {', '.join(map(str, good))}")
    step = {"sincos_1d": 2, "sincos_2d": 4}.get(positions, 1)
    if width % step:
        raise UsageError(f"positions {positions} need a width divisible by {step}, not {width}", "change model.width")
    if positions == "rotary" and width // heads % 4:
        raise UsageError(
            f"rotary positions need heads whose width is divisible by 4, not {width // heads}", "change model.heads"
        )


def check_pooling(pool: str, class_token: bool, pool_width: int, heads: int) -> None:
    """Raise UsageError for a pooling that the network cannot have."""
    if pool in ("cls", "cls_mean") and not class_token:
        raise UsageError(
            f"pool {pool} reads a class token, and the network has none", "omit model.pool, or set it to mean"
        )
    heads = {"attention": heads, "coca": COCA_HEADS}.get(pool, 1)
    if pool_width % heads:
        raise UsageError(
            f"pool {pool} has {heads} heads, which do not divide its width {pool_width}", "change model.pool_width"
        )
