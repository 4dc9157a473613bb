"""Resample trained tensors to another grid of patches, another patch size or other input channels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def resample_positions(positions: Tensor, shape: torch.Size) -> Tensor:
    """(1, 1 + L, D) -> (1, 1 + L', D): bicubic with antialiasing over the grid; the class token's row is kept.
    Without a class token (1, L, D) -> (1, L', D)."""
    old, new = math.isqrt(positions.shape[1]), math.isqrt(shape[1])
    token, patches = positions[:, : -(old * old)], positions[:, -(old * old) :]
    grid = patches.reshape(1, old, old, -1).permute(0, 3, 1, 2)  # (1, D, old, old)
    grid = F.interpolate(grid, size=(new, new), mode="bicubic", antialias=True, align_corners=False)
    return torch.cat([token, grid.permute(0, 2, 3, 1).reshape(1, new * new, -1)], dim=1)


def resample_patches(kernel: Tensor, patch: int) -> Tensor:
    """(D, C, P, P) -> (D, C, patch, patch): on an enlarged image, the new kernel gives the products that the old one
    gave on the original (pseudo-inverse of the enlargement; FlexiViT, Beyer et al. 2023, arXiv 2212.08013, 3.4)."""
    old = kernel.shape[-1]
    if old == patch:
        return kernel
    basis = torch.eye(old * old).reshape(old * old, 1, old, old)
    enlarge = F.interpolate(basis, size=(patch, patch), mode="bicubic", antialias=True, align_corners=False)
    inverse = torch.linalg.pinv(enlarge.reshape(old * old, patch * patch))  # (patch^2, P^2)
    return (kernel.flatten(2) @ inverse.T).reshape(*kernel.shape[:2], patch, patch)


def fold_channels(
    kernel: Tensor,
    channels: int,
    old: tuple[Sequence[float], Sequence[float]],
    new: tuple[Sequence[float], Sequence[float]],
) -> tuple[Tensor, Tensor]:
    """(D, C, P, P) -> (D, channels, P, P), and a correction to add to the bias, (D,).

    Three to one: a grey image gives the products of its copy in three channels. One to three: an image gives the
    products of the mean of its channels. An additional alpha channel starts at zero.

    Args:
        old, new: mean and standard deviation of each channel in the normalisation of the weights, and of the run.
    """
    D, C, P, _ = kernel.shape
    colours = {2: 1, 4: 3}  # with alpha -> without
    base, wanted = colours.get(C, C), colours.get(channels, channels)
    colour, shift = kernel[:, :base], kernel.new_zeros(D)
    if base != wanted:
        # For grey value g, the old input is (g - old mean) / old std, the new one (g - new mean) / new std.
        old_mean, old_std = (kernel.new_tensor(values[:base]) for values in old)
        new_mean, new_std = (kernel.new_tensor(values[:wanted]) for values in new)
        factor = new_std[:, None] / old_std[None, :] / wanted  # (wanted, base)
        shift = torch.einsum("dcpq,c->d", colour, (new_mean.mean() - old_mean) / old_std)
        colour = torch.einsum("dcpq,wc->dwpq", colour, factor)
    alpha = [kernel[:, base:] if base < C else kernel.new_zeros(D, 1, P, P)] if channels > wanted else []
    return torch.cat([colour, *alpha], dim=1), shift
