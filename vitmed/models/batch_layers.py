"""Layers that see more than one image: random masks and batch statistics.

Where several ranks share a batch, each computes its rows, and these layers give what they would give for the whole
batch: masks are drawn for all its rows, and the statistics are those of all its images. The same holds for a batch that
is computed in parts, except for the statistics, which are those of a part.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitmed.core.ranks import Rows, sum_over_ranks


class OfBatch(nn.Module):
    """A layer that needs to know which rows of a batch it gets; None: all of them."""

    rows: Rows | None = None


def drop(x: Tensor, rate: float, rows: Rows | None = None, whole: bool = False) -> Tensor:
    """Set numbers of x (B, ...) to 0 at random and scale the others up (Srivastava et al. 2014).

    Args:
        rate: the share, below 1.
        rows: of the batch that x holds; None: all.
        whole: drop all of an image, or nothing.
    """
    shape = (1,) * (x.ndim - 1) if whole else x.shape[1:]
    mask = torch.empty(x.shape[0] if rows is None else rows.total, *shape, dtype=x.dtype, device=x.device)
    mask.bernoulli_(1 - rate)
    if rows is not None:
        mask = mask[rows.start : rows.stop]
    return x * mask / (1 - rate)


class Drop(OfBatch):
    """Dropout."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.rate, self.rows) if self.rate and self.training else x


class DropPath(OfBatch):
    """Skips a whole branch for some images (stochastic depth, Huang et al. 2016, arXiv 1603.09382)."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.rate, self.rows, whole=True) if self.rate and self.training else x


class BatchNorm(nn.BatchNorm2d, OfBatch):
    """Batch normalisation with the statistics of all images that are computed at once, also by several ranks."""

    def forward(self, x: Tensor) -> Tensor:
        if self.rows is None or not self.rows.together or not self.training:
            return super().forward(x)
        values = x.float()  # (B, C, H, W)
        count = self.rows.together * x.shape[2] * x.shape[3]
        mean = sum_over_ranks(values.sum(dim=(0, 2, 3))) / count  # (C,)
        centred = values - mean[:, None, None]
        variance = sum_over_ranks(centred.square().sum(dim=(0, 2, 3))) / count
        self._remember(mean.detach(), variance.detach() * count / max(1, count - 1))
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(x.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)


def take_rows(model: nn.Module, rows: Rows | None) -> None:
    """Tell every layer of the network which rows of a batch it gets."""
    for module in model.modules():
        if isinstance(module, OfBatch):
            module.rows = rows
