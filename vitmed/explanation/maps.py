"""`Maps`: attention maps of some images. Imports no torch, so that reports can be rebuilt without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Maps:
    """Maps of some images.

    Attributes:
        images: (B, S, S, C) uint8, the network's input before normalisation.
        targets: (B,) the explained class.
        logits: (B, K) float32.
        grids: method -> (B, h, w) float32 in 0..1; all 0 if a method marks nothing.
        rows: (B,) indices of the images, from 0.
    """

    images: np.ndarray
    targets: np.ndarray
    logits: np.ndarray
    grids: dict[str, np.ndarray]
    rows: np.ndarray

    def one(self, i: int) -> Maps:
        """The maps of one image."""
        grids = {name: grid[i : i + 1] for name, grid in self.grids.items()}
        images, targets, logits, rows = (a[i : i + 1] for a in (self.images, self.targets, self.logits, self.rows))
        return Maps(images, targets, logits, grids, rows)


def spread(values: np.ndarray) -> np.ndarray:
    """(B, L), each row scaled from 0 (lowest) to 1 (highest); 0 if all its values are equal."""
    low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
    return np.where(high > low, (values - low) / np.where(high > low, high - low, 1), 0).astype(np.float32)


def joined(parts: Sequence[Maps]) -> Maps:
    """Concatenate the maps of several batches."""
    grids = {name: np.concatenate([part.grids[name] for part in parts]) for name in parts[0].grids}
    arrays = [[getattr(part, name) for part in parts] for name in ("images", "targets", "logits", "rows")]
    images, targets, logits, rows = map(np.concatenate, arrays)
    return Maps(images, targets, logits, grids, rows)


TITLES = {  # of the keys in `attention.METHODS`
    "rollout": "Attention rollout",
    "gradient_rollout": "Gradient-weighted rollout",
    "grad_cam": "Grad-CAM",
}
