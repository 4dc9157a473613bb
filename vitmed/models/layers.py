"""What a Vision Transformer is made of: stems, positions, MLPs, attention pooling, and what scales or skips a branch.

Parameter names are timm's; shapes use the letters of `vitmed.models.vit`.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitmed.core.config import ModelConfig
from vitmed.models.sizes import size_of

COCA_HEADS, COCA_EPS = 8, 1e-5  # of every published pooling of CoCa, whatever the network has
LONGEST = 100.0  # period of DINOv3's rotary positions; the shortest is 1, half the side of the image
EVA_SIDE, EVA_BASE = 224, 10000.0  # px of the image on whose patches EVA-02 counts positions, and ratio of its periods


class PatchEmbed(nn.Module):
    """(B, C, H, W) -> (B, L, D) by one convolution; kernel and stride equal the patch size."""

    def __init__(self, channels: int, width: int, patch: int):
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)  # (B, D, H/P, W/P)
        return x.flatten(2).transpose(1, 2)  # (B, L, D)


class ConvStem(nn.Module):
    """(B, C, H, W) -> (B, L, D) by small convolutions (Xiao et al. 2021, arXiv 2106.14881).

    3x3 convolutions of stride 2 halve the side while the patch size is even, one step covers the odd rest, and a 1x1
    convolution comes last. Neighbouring patches overlap, so the network learns faster from few images. With `residual`,
    a residual block follows every 3x3 convolution but the first, after which the image is still large.
    """

    def __init__(self, channels: int, width: int, patch: int, residual: bool):
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


def sincos_1d(grid: int, width: int) -> Tensor:
    """(1, 1 + grid^2, width): Vaswani et al. 2017, section 3.5, over the tokens in reading order, class token first.

    PE(n, 2i) = sin(n / 10000^(2i/D)), PE(n, 2i+1) = cos(n / 10000^(2i/D)).
    """
    place = torch.arange(1 + grid * grid, dtype=torch.float64)[:, None]  # (1 + L, 1)
    angle = place / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)  # (1 + L, D/2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(1, -1, width).float()  # (1, 1 + L, D)


def sincos_2d(grid: int, width: int) -> Tensor:
    """(1, 1 + grid^2, width), as in MAE: half the channels encode the column, half the row; zeros for the class."""
    omega = 10000 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))  # (D/4,)
    angle = torch.arange(grid, dtype=torch.float64)[:, None] * omega  # (grid, D/4)
    line = torch.cat([angle.sin(), angle.cos()], dim=1)  # (grid, D/2)
    column = line[None, :, :].expand(grid, grid, -1)  # (grid, grid, D/2)
    row = line[:, None, :].expand(grid, grid, -1)  # (grid, grid, D/2)
    table = torch.cat([column, row], dim=-1).reshape(grid * grid, width)  # (L, D)
    return torch.cat([torch.zeros(1, width), table.float()])[None]  # (1, 1 + L, D)


class RotaryPositions(nn.Module):
    """The cosine and sine of the angles, 2 x (L, D/A), by which attention turns the queries and keys of patches.

    Su et al. 2021, arXiv 2104.09864, on two axes as in DINOv3, arXiv 2508.10104: the angles grow with row and column,
    so that the product of a query and a key depends on how far two patches lie apart. The centres of the patches lie
    between -1 and 1 at any image size. Half of a head's channels turn with the row, half with the column; channels i
    and i + D/A/2 form a pair. EVA-02 (arXiv 2303.11331) measures from the first patch, between 0 and 1, with other
    periods.

    Args:
        patch: its side, px, for EVA-02's; None for DINOv3's.
    """

    periods: Tensor  # (D/A/4,) of `rotary_periods`; kept with the weights, since DINOv3's files round them to bf16

    def __init__(self, grid: int, head_width: int, patch: int | None = None):
        super().__init__()
        self.grid, self.centred = grid, patch is None
        self.register_buffer("periods", rotary_periods(head_width, patch))

    def forward(self) -> tuple[Tensor, Tensor]:
        g = self.grid
        place = torch.arange(g, dtype=torch.float32, device=self.periods.device)
        centres = (place + 0.5) / g * 2 - 1 if self.centred else place / g  # (g,)
        line = 2 * math.pi * centres[:, None] / self.periods  # (g, D/A/4)
        row, column = line[:, None].expand(g, g, -1), line[None].expand(g, g, -1)  # 2 x (g, g, D/A/4)
        angle = torch.cat([row, column], dim=-1).reshape(g * g, -1).tile(2)  # (L, D/A)
        return angle.cos(), angle.sin()


def rotary_periods(head_width: int, patch: int | None, longest: float = LONGEST) -> Tensor:
    """The periods of `RotaryPositions`, (D/A/4,): from 1 to almost `longest`; EVA-02's from 2 pi patches of an image of
    `EVA_SIDE` px to almost `EVA_BASE` times as many."""
    quarter = head_width // 4
    share = torch.arange(quarter, dtype=torch.float32) / quarter
    return longest**share if patch is None else 2 * math.pi * patch / EVA_SIDE * EVA_BASE**share


def turn(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Turn queries or keys (B, A, N, D/A) by the angles of `RotaryPositions`, in the precision of the angles.

    Class token and registers, which come before the L patches, have no place and are not turned.
    """
    cos, sin = angles
    first, patches = x.split((x.shape[2] - len(cos), len(cos)), dim=2)
    a, b = patches.chunk(2, dim=-1)  # 2 x (B, A, L, D/A/2)
    turned = patches * cos + torch.cat([-b, a], dim=-1) * sin  # (B, A, L, D/A)
    return torch.cat([first, turned.type_as(x)], dim=2)  # (B, A, N, D/A)


def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
    """softmax(q k' / sqrt(D/A)) v, (B, A, R, D/A), and the attention probabilities (B, A, R, N) before dropout, of
    queries (B, A, R, D/A), keys and values (B, A, N, D/A)."""
    attention = ((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)).softmax(dim=-1)  # (B, A, R, N)
    return F.dropout(attention, dropout).to(v.dtype) @ v, attention


class NoKeyBias(nn.Linear):
    """Queries, keys and values, (B, N, D) -> (B, N, 3 D); the bias of the keys counts as zero, whatever is stored."""

    def forward(self, x: Tensor) -> Tensor:
        query, _, value = self.bias.chunk(3)
        return F.linear(x, self.weight, torch.cat([query, torch.zeros_like(query), value]))


class Mlp(nn.Module):
    """(B, N, D) -> (B, N, D): two layers with GELU, or one of its approximations, between them."""

    def __init__(self, width: int, hidden: int, dropout: float, gelu: Callable[[Tensor], Tensor] = F.gelu):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.drop = nn.Dropout(dropout)
        self.gelu = gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.gelu(self.fc1(x)))))


class SwiGLU(nn.Module):
    """(B, N, D) -> (B, N, D): fc2(silu(gate) x value), in the large networks of DINOv2, DINOv3 and histology.

    Shazeer 2020, arXiv 2002.05202. `fc1` gives gate and value side by side, as timm packs them. The `norm`, of their
    product, is in EVA-02's base.
    """

    def __init__(self, width: int, hidden: int, dropout: float, norm: nn.Module):
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * hidden)
        self.norm = norm
        self.fc2 = nn.Linear(hidden, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fc1(x).chunk(2, dim=-1)  # 2 x (B, N, hidden)
        return self.drop(self.fc2(self.norm(self.drop(F.silu(gate) * value))))


def build_mlp(config: ModelConfig, width: int, dropout: float = 0.0) -> nn.Module:
    """The MLP of a block, or of an attention pooling of another width."""
    hidden = int(width * config.mlp_ratio + 1e-6)  # a ratio of two whole numbers may be rounded down
    if config.mlp in ("swiglu", "swiglu_norm"):
        norm = nn.LayerNorm(hidden, eps=config.norm_eps) if config.mlp == "swiglu_norm" else nn.Identity()
        return SwiGLU(width, hidden, dropout, norm)
    return Mlp(width, hidden, dropout, GELUS[config.mlp])


class AttentionPool(nn.Module):
    """(B, N, D) -> (B, E): one learned query reads all tokens (Zhai et al. 2022, arXiv 2106.04560).

    SigLIP and MedSigLIP add an MLP afterwards. CoCa's pooling (Yu et al. 2022, arXiv 2205.01917), which CONCH has,
    norms the tokens before and the result afterwards.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        size, coca = size_of(config), config.pool == "coca"
        out, eps = config.pool_width or size.width, COCA_EPS if coca else config.norm_eps
        self.heads = COCA_HEADS if coca else size.heads
        self.mlp = None if coca else build_mlp(config, out)
        self.norm_k = nn.LayerNorm(size.width, eps=eps) if coca else nn.Identity()
        self.latent = nn.Parameter(nn.init.trunc_normal_(Tensor(1, 1, out), std=out**-0.5))
        self.q = nn.Linear(out, out)
        self.kv = nn.Linear(size.width, 2 * out)
        self.proj = nn.Linear(out, out)
        self.norm = nn.LayerNorm(out, eps=eps)

    def forward(self, x: Tensor, collected: list[Tensor] | None = None) -> Tensor:
        """If `collected` is a list, the attention of the query is appended to it, (B, A, 1, N)."""
        B, N, _ = x.shape
        E = self.latent.shape[-1]
        q = self.q(self.latent).reshape(1, 1, self.heads, -1).transpose(1, 2)  # (1, A, 1, E/A)
        k, v = self.kv(self.norm_k(x)).reshape(B, N, 2, self.heads, -1).permute(2, 0, 3, 1, 4)  # 2 x (B, A, N, E/A)
        x, attention = attend(q, k, v)  # (B, A, 1, E/A), (B, A, 1, N)
        if collected is not None:
            collected.append(attention)
        x = self.proj(x.transpose(1, 2).reshape(B, E))  # (B, E)
        return self.norm(x) if self.mlp is None else x + self.mlp(self.norm(x))


class DropPath(nn.Module):
    """(B, ...) -> (B, ...), in training only: an image loses a whole branch with chance `rate` (0 to below 1), the
    others are divided by 1 - rate (stochastic depth, Huang et al. 2016, arXiv 1603.09382)."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.rate or not self.training:
            return x
        return x * x.new_empty(len(x), *(1,) * (x.ndim - 1)).bernoulli_(1 - self.rate) / (1 - self.rate)


class LayerScale(nn.Module):
    """(B, N, D): multiplies each channel by a learned number, at first 1e-5 (Touvron et al. 2021, arXiv 2103.17239)."""

    def __init__(self, width: int):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


GELUS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),  # OpenAI's approximation, in CLIP
}
