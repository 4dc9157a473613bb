"""Rotary positions (Su et al. 2021, arXiv 2104.09864) on two axes, as in DINOv3 (Simeoni et al., arXiv 2508.10104).

Attention turns the queries and keys of patches by angles that grow with row and column, so that their product depends
on how far two patches lie apart. Class token and registers have no place and are not turned. Shapes use the letters of
`vitmed.models.vit`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BASE = 100.0  # the longest period; the shortest is 1, half the side of the image


class RotaryPositions(nn.Module):
    """The cosine and sine of the angles, 2 x (L, D/A), for the patches of a square image.

    The centres of the patches lie between -1 and 1 at any image size. A quarter of the numbers of a head is turned by
    the row and a quarter by the column; each has its partner half a head away.

    Attributes:
        periods: (D/A/4,) from 1 to almost `BASE`; kept with the weights, since DINOv3's files round them to bf16.
    """

    periods: Tensor

    def __init__(self, grid: int, head_width: int):
        super().__init__()
        quarter = head_width // 4
        self.grid = grid
        self.register_buffer("periods", BASE ** (torch.arange(quarter, dtype=torch.float32) / quarter))

    def forward(self) -> tuple[Tensor, Tensor]:
        g = self.grid
        centres = (torch.arange(g, dtype=torch.float32, device=self.periods.device) + 0.5) / g * 2 - 1  # (g,)
        line = 2 * math.pi * centres[:, None] / self.periods  # (g, D/A/4)
        row, column = line[:, None].expand(g, g, -1), line[None].expand(g, g, -1)
        angle = torch.cat([row, column], dim=-1).reshape(g * g, -1).tile(2)  # (L, D/A)
        return angle.cos(), angle.sin()


def turn(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """(B, A, N, D/A) queries or keys, whose last L tokens are turned by the angles; computed in their precision."""
    cos, sin = angles
    first, patches = x.split((x.shape[2] - len(cos), len(cos)), dim=2)
    a, b = patches.chunk(2, dim=-1)
    turned = patches * cos + torch.cat([-b, a], dim=-1) * sin
    return torch.cat([first, turned.type_as(x)], dim=2)


class NoKeyBias(nn.Linear):
    """Queries, keys and values, (B, N, D) -> (B, N, 3 D); the bias of the keys counts as zero, whatever is stored."""

    def forward(self, x: Tensor) -> Tensor:
        query, _, value = self.bias.chunk(3)
        return F.linear(x, self.weight, torch.cat([query, torch.zeros_like(query), value]))
