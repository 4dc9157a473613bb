"""A network of any size for a test, by the fields of its configuration."""

from __future__ import annotations

from typing import Any

from vitmed.core.config import ModelConfig
from vitmed.models.vit import ViT


def small_vit(classes: int, image_size: int = 224, patch_size: int = 16, **fields: Any) -> ViT:
    """A ViT with `classes` outputs; image and patch size in px."""
    return ViT(ModelConfig(image_size=image_size, patch_size=patch_size, **fields), classes)
