"""SwiGLU, the gated MLP (Shazeer 2020, arXiv 2002.05202) of the large networks of DINOv2, DINOv3 and histology."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class SwiGLU(nn.Module):
    """(B, N, D) -> (B, N, D): fc2(silu(gate) x value); `fc1` gives gate and value side by side, as timm packs them."""

    def __init__(self, width: int, hidden: int, dropout: float):
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fc1(x).chunk(2, dim=-1)  # 2 x (B, N, hidden)
        return self.drop(self.fc2(self.drop(F.silu(gate) * value)))
