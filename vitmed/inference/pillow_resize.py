"""Pillow's resize as matrix products, so that an exported network takes images of any size.

Pillow resizes the width, then the height, with coefficients in fixed point of 22 bits, and rounds to 8 bits each time
(src/libImaging/Resample.c). Sums of such products are exact in float64, so the bytes are Pillow's. Pillow 13 begins
with the height of some tall images, which is cheaper; bilinear interpolation then differs by at most one grey level.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitmed.imaging.preprocessing import Preprocessing

ONE = 1 << 22  # of the fixed-point coefficients


class PillowResize(nn.Module):
    """Images (B, H, W, C) uint8 of any size -> (B, S, S, C) uint8, the bytes of `Preprocessing.fit`.

    Not for images with alpha, which Pillow weighs by it.

    Args:
        how: gives S, and how an image becomes square.
    """

    def __init__(self, how: Preprocessing):
        super().__init__()
        self.side, self.resize, self.interpolation = how.image_size, how.resize, how.interpolation

    def forward(self, images: Tensor) -> Tensor:
        _, H, W, _ = images.shape
        x = images.permute(0, 3, 1, 2).double()  # (B, C, H, W)
        x = _bytes(x @ self.matrix(W, H).T)  # (B, C, H, S)
        x = _bytes(self.matrix(H, W) @ x)  # (B, C, S, S)
        return x.permute(0, 2, 3, 1).to(torch.uint8)

    def matrix(self, length: int, other: int) -> Tensor:
        """Coefficients (S, N) float64, whole numbers of 2^-22: S pixels of a side of the square from N of the image.

        Args:
            length: N; other: the pixels of the image's other side.
        """
        n, m = (torch.scalar_tensor(size, dtype=torch.float64) for size in (length, other))
        side = torch.full_like(n, self.side)
        span, size, start, place = n, side, torch.zeros_like(n), torch.zeros_like(n)
        if self.resize == "pad":  # as ImageOps.pad: the longer side fills the square, the other is in its middle
            size = torch.where(n < m, torch.round(n / m * side), side)
            place = torch.round((side - size) * 0.5)
        elif self.resize == "crop":  # as ImageOps.fit: the shorter side fills the square, with the middle of the other
            span = torch.minimum(n, m)
            start = (n - span) * 0.5
        scale = span / size
        rows = torch.arange(self.side, dtype=torch.float64) - place  # (S,), in the resized image
        centre = (start + (rows + 0.5) * scale)[:, None]  # (S, 1), in the image
        pixels = torch.arange(length, dtype=torch.float64)  # (N,)
        if self.interpolation == "nearest":
            taken = (pixels == centre.floor()).double()
        else:
            support, weigh = FILTERS[self.interpolation]
            wide = torch.clamp(scale, min=1.0)
            first, end = (torch.floor(centre + sign * support * wide + 0.5) for sign in (-1, 1))
            weights = weigh((pixels - centre + 0.5) / wide)
            weights = torch.where((pixels >= first) & (pixels < end), weights, 0.0)
            taken = weights / weights.sum(dim=1, keepdim=True)
        inside = (rows >= 0) & (rows < size)  # the others are black
        fixed = torch.trunc(taken * ONE + torch.where(taken < 0, -0.5, 0.5))
        return torch.where(inside[:, None], fixed, 0.0)


def _bytes(sums: Tensor) -> Tensor:
    """Fixed-point sums -> whole numbers 0..255."""
    return torch.clamp(torch.floor((sums + ONE // 2) / ONE), 0, 255)


def _bicubic(x: Tensor, a: float = -0.5) -> Tensor:
    x = x.abs()
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _sinc(x: Tensor) -> Tensor:
    x = x * math.pi
    return torch.where(x == 0, 1.0, torch.sin(x) / torch.where(x == 0, 1.0, x))


# Reach, px of the smaller image, and weight by the distance.
FILTERS: dict[str, tuple[float, Callable[[Tensor], Tensor]]] = {
    "bilinear": (1.0, lambda x: torch.clamp(1 - x.abs(), min=0)),
    "bicubic": (2.0, _bicubic),
    "lanczos": (3.0, lambda x: torch.where((x >= -3) & (x < 3), _sinc(x) * _sinc(x / 3), 0.0)),
}
