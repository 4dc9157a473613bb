"""The head of grades: Shi, Cao & Raschka's CORN."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class OrdinalHead(nn.Linear):
    """Features (B, D) -> log probabilities (B, K) of grades in order, from one output for each step to the next grade.

    The output k is the log odds of a grade above k among those of at least k. Cross-entropy on the log probabilities is
    the loss of CORN: Shi, Cao & Raschka, Pattern Anal. Appl. 26 (2023) 941, arXiv 2111.08851, equation 4.
    """

    def __init__(self, width: int, grades: int):
        super().__init__(width, grades - 1)

    def forward(self, x: Tensor) -> Tensor:
        steps = super().forward(x)  # (B, K - 1)
        above = F.logsigmoid(steps).cumsum(dim=1)  # log P(grade > k)
        reached = F.pad(above, (1, 0))  # log P(grade >= k), (B, K)
        return reached + F.pad(F.logsigmoid(-steps), (0, 1))
