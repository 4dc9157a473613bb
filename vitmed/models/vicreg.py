"""VICReg (Bardes et al. 2022, arXiv 2105.04906): learns from images without labels, behind a stem of any kind.

The features of two random views of an image shall be alike (invariance), while over a batch every feature varies
(variance) and no two say the same (covariance); without the last two, a constant would be the best answer.

Letters of the shapes, in addition to those of `vit.py`: E width of the projections.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitmed.models.vit import ViT

WIDTH = 256  # E; the paper has 8,192 for features of 2,048
INVARIANCE, VARIANCE, COVARIANCE = 25.0, 25.0, 1.0  # weights of the three parts, as in the paper
EPS = 1e-4  # of the variances, as in the paper


class VICReg(nn.Module):
    """Two views of each image, 2 x (B, C, H, W) normalised float -> the loss, ().

    Args:
        encoder: a ViT. Its state dict is a weight file; its head is not used or trained.
    """

    def __init__(self, encoder: ViT):
        super().__init__()
        self.encoder = encoder
        self.projector = nn.Sequential(
            *_hidden(encoder.head.in_features), *_hidden(WIDTH), nn.Linear(WIDTH, WIDTH)
        )  # fmt: skip
        encoder.head.requires_grad_(False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        projected = self.projector(self.encoder.features(torch.cat([first, second]))).float()  # (2B, E)
        with torch.autocast(projected.device.type, enabled=False):
            return vicreg_loss(*projected.chunk(2))


def _hidden(width: int) -> list[nn.Module]:
    # Statistics of the batch in validation too: there is nothing to compare between images of different batches.
    return [nn.Linear(width, WIDTH), nn.BatchNorm1d(WIDTH, track_running_stats=False), nn.ReLU()]


def vicreg_loss(first: Tensor, second: Tensor) -> Tensor:
    """Equation 6 of the paper for the projections (B, E) of two views, float32; ()."""
    variance = covariance = first.new_zeros(())
    for part in (first, second):
        centred = part - part.mean(dim=0)
        squares = centred.T @ centred / max(1, len(part) - 1)  # (E, E)
        deviations = (squares.diagonal() + EPS).sqrt()
        variance = variance + F.relu(1 - deviations).mean()
        covariance = covariance + (squares.square().sum() - squares.diagonal().square().sum()) / len(squares)
    return INVARIANCE * F.mse_loss(first, second) + VARIANCE * variance / 2 + COVARIANCE * covariance
