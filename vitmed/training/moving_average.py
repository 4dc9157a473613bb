"""The exponential moving average of the weights (EMA)."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel


def ema_decay(steps: int) -> float:
    """The decay that averages over a tenth of the run, at most 1,000 steps; 0.9998 is useless in short runs."""
    return min(0.999, max(0.0, 1 - 10 / steps))


class MovingAverage(AveragedModel):
    """An exponential moving average (EMA) of the model, with decay min(decay, (1 + t) / (10 + t)) at update t.

    It is updated without waiting for a GPU; PyTorch's own copies the count there and reads it, every step.
    """

    def __init__(self, model: nn.Module, decay: float):
        super().__init__(model)
        self.decay = decay

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        t = int(self.n_averaged)  # on the CPU
        share = 1 - min(self.decay, (1 + t) / (10 + t)) if t else 1.0  # 1 is a copy
        torch._foreach_lerp_(list(self.module.parameters()), list(model.parameters()), share)
        for buffer, current in zip(self.module.buffers(), model.buffers(), strict=True):
            buffer.copy_(current)
        self.n_averaged += 1
