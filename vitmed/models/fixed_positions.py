"""Positions that are not learned but computed, by sine and cosine."""

from __future__ import annotations

import torch
from torch import Tensor


def sincos_1d(grid: int, width: int) -> Tensor:
    """(1, 1 + grid^2, width): Vaswani et al. 2017, section 3.5, over the tokens in reading order, class token first.

    PE(n, 2i) = sin(n / 10000^(2i/D)), PE(n, 2i+1) = cos(n / 10000^(2i/D)).
    """
    place = torch.arange(1 + grid * grid, dtype=torch.float64)[:, None]  # (N, 1)
    angle = place / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)  # (N, D/2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(1, -1, width).float()


def sincos_2d(grid: int, width: int) -> Tensor:
    """(1, 1 + grid^2, width), as in MAE: half the channels encode the column, half the row; zeros for the class."""
    omega = 10000 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))  # (D/4,)
    angle = torch.arange(grid, dtype=torch.float64)[:, None] * omega  # (grid, D/4)
    line = torch.cat([angle.sin(), angle.cos()], dim=1)  # (grid, D/2)
    column = line[None, :, :].expand(grid, grid, -1)
    row = line[:, None, :].expand(grid, grid, -1)
    table = torch.cat([column, row], dim=-1).reshape(grid * grid, width)  # (L, D)
    return torch.cat([torch.zeros(1, width), table.float()])[None]
