"""From an image to patches: one convolution, or a stack of small ones.

Letters of the shapes: B images, C channels, H, W and P (side of a patch) in px, L = (H/P) x (W/P) patches, D width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PatchEmbed(nn.Module):
    """Image -> patches by one convolution; kernel and stride equal the patch size."""

    def __init__(self, channels: int, width: int, patch: int):
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)  # (B, D, H/P, W/P)
        return x.flatten(2).transpose(1, 2)  # (B, L, D)


class ConvStem(nn.Module):
    """Image -> patches by small convolutions (Xiao et al. 2021, arXiv 2106.14881).

    3x3 convolutions of stride 2 halve the side while the patch size is even, one step covers the odd rest, and a 1x1
    convolution comes last. Neighbouring patches overlap, so the network learns faster from few images. With `residual`,
    a residual block follows every 3x3 convolution but the first, after which the image is still large.
    """

    def __init__(self, channels: int, width: int, patch: int, residual: bool = False):
        super().__init__()
        halvings = (patch & -patch).bit_length() - 1  # how often 2 divides the patch
        rest = patch >> halvings
        layers: list[nn.Module] = []
        last = channels
        for i in range(halvings):
            out = max(8, width >> (halvings - 1 - i))
            layers += [nn.Conv2d(last, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
            if residual and i:
                layers.append(ResidualBlock(out))
            last = out
        if rest > 1:
            layers += [nn.Conv2d(last, width, rest, stride=rest, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            last = width
        self.stem = nn.Sequential(*layers)
        self.proj = nn.Conv2d(last, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(self.stem(x))  # (B, D, H/P, W/P)
        return x.flatten(2).transpose(1, 2)  # (B, L, D)


class ResidualBlock(nn.Module):
    """relu(x + two 3x3 convolutions of x), (B, C, H, W) (He et al. 2016, arXiv 1512.03385); starts as relu(x)."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
