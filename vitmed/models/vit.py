"""The Vision Transformer (Dosovitskiy et al. 2021, arXiv 2010.11929), from patch embedding to logits.

Letters of the shapes:
    B images of a batch   C input channels   H, W height and width, px   P side of a patch, px
    L patches, (H/P) x (W/P)   N tokens: class, registers, patches   R query tokens   D width
    A attention heads   K classes

Parameter names are timm's, so a timm, DeiT, MAE or DINO state dict loads without renaming.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitmed.core.config import ModelConfig
from vitmed.core.errors import UsageError, unknown_key
from vitmed.core.ranks import Rows
from vitmed.models.batch_layers import BatchNorm, Drop, DropPath, OfBatch, drop

ALL = slice(None)


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
            layers += [nn.Conv2d(last, out, 3, stride=2, padding=1, bias=False), BatchNorm(out), nn.ReLU()]
            if residual and i:
                layers.append(ResidualBlock(out))
            last = out
        if rest > 1:
            layers += [nn.Conv2d(last, width, rest, stride=rest, bias=False), BatchNorm(width), nn.ReLU()]
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
        self.bn1 = BatchNorm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = BatchNorm(channels)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Attention(OfBatch):
    """Multi-head self-attention.

    Attributes:
        fused: whether training uses PyTorch's fused kernel; None: where it is usually faster. Inference always does.
    """

    def __init__(self, width: int, heads: int, dropout: float, attention_dropout: float):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.attn_drop = attention_dropout
        self.proj = nn.Linear(width, width)
        self.proj_drop = Drop(dropout)
        self.fused: bool | None = None

    def forward(self, x: Tensor, collected: list[Tensor] | None = None, queries: slice = ALL) -> Tensor:
        B, N, D = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)  # 3 x (B, A, N, D/A)
        q = q[:, :, queries]  # (B, A, R, D/A)
        rate = self.attn_drop if self.training else 0.0
        fused = not q.requires_grad or self.fused
        if fused is None:
            fused = not prefers_explicit(q.device, q.dtype, N)
        if collected is not None or rate or not fused:  # the fused kernel draws masks of its own
            x, attention = attend(q, k, v, rate, self.rows)  # (B, A, R, D/A), (B, A, R, N)
            if collected is not None:
                collected.append(attention)
        else:
            x = F.scaled_dot_product_attention(q, k, v)  # (B, A, R, D/A)
        x = x.transpose(1, 2).reshape(B, -1, D)
        return self.proj_drop(self.proj(x))  # (B, R, D)


def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, rows: Rows | None = None) -> tuple[Tensor, Tensor]:
    """softmax(q k' / sqrt(D/A)) v, (B, A, N, D/A), and the attention probabilities (B, A, N, N) before dropout.

    Args:
        q, k, v: (B, A, N, D/A).
        dropout: its rate; rows: of the batch that q holds, None: all.
    """
    attention = ((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)).softmax(dim=-1)  # (B, A, N, N)
    dropped = drop(attention, dropout, rows) if dropout else attention
    return dropped.to(v.dtype) @ v, attention


def prefers_explicit(device: torch.device, dtype: torch.dtype, tokens: int) -> bool:
    """Whether plain matrices are usually faster than PyTorch's fused attention kernel in a step of training.

    They are in one case, the bf16 backward pass on a CPU: 2.8 x faster at N = 197, equally fast at N = 785
    (measured on a CPU with AMX, torch 2.15).
    """
    return device.type == "cpu" and dtype == torch.bfloat16 and tokens <= 512


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, dropout: float):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.drop = Drop(dropout)
        self.gelu: Callable[[Tensor], Tensor] = F.gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.gelu(self.fc1(x)))))


class LayerScale(nn.Module):
    """Multiplies each channel by a learned number that starts small (Touvron et al. 2021, arXiv 2103.17239)."""

    def __init__(self, width: int):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """Pre-norm: x + attention(norm(x)), then x + mlp(norm(x)). Returns only the tokens in `queries`, R of N."""

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        dropout: float,
        attention_dropout: float,
        drop_path: float,
        layer_scale: bool,
        eps: float,
    ):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, heads, dropout, attention_dropout)
        self.ls1 = LayerScale(width) if layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = Mlp(width, hidden, dropout)
        self.ls2 = LayerScale(width) if layer_scale else nn.Identity()
        self.drop_path = DropPath(drop_path)
        self.recompute = False  # in the backward pass, instead of keeping what is inside (Chen et al. 2016, 1604.06174)

    def forward(self, x: Tensor, collected: list[Tensor] | None = None, queries: slice = ALL) -> Tensor:
        if self.recompute and self.training:
            return checkpoint(self.compute, x, collected, queries, use_reentrant=False)  # type: ignore[no-any-return]
        return self.compute(x, collected, queries)

    def compute(self, x: Tensor, collected: list[Tensor] | None, queries: slice) -> Tensor:
        """As `forward`, always keeping what is inside."""
        x = x[:, queries] + self.drop_path(self.ls1(self.attn(self.norm1(x), collected, queries)))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


def checkpoint_gradients(model: nn.Module, on: bool = True) -> None:
    """Whether the blocks of a network recompute their inside in the backward pass: less memory, the same gradients."""
    for module in model.modules():
        if isinstance(module, Block):
            module.recompute = on


def checkpoints_gradients(model: nn.Module) -> bool:
    """Whether the blocks of a network recompute their inside."""
    return any(isinstance(module, Block) and module.recompute for module in model.modules())


class ViT(nn.Module):
    """(B, C, H, W) float -> (B, K) logits.

    Args:
        num_classes: K.
        image_size, patch_size: px; the patch divides the image.
        channels: C, 1 to 4.
        width, depth, heads: D, number of blocks, A; A divides D.
        mlp_ratio: hidden width of the MLP / D.
        stem: "patch" (one convolution), "conv" (a few small ones) or "residual" (these with residual blocks).
        positions: "learned", "sincos_1d" (Vaswani et al. 2017), "sincos_2d" (as in MAE).
        pool: "cls" (class token) or "mean" (of the patches; the norm is then `fc_norm`, as in timm and MAE).
        registers: learned tokens without a position, between class token and patches (Darcet et al. 2023,
            arXiv 2309.16588), as in some DINOv2 weights.
        layer_scale: scales every branch, as DINOv2 and UNI do.
        norm_eps: epsilon of the layer norms.
        dropout, attention_dropout, drop_path: rates in [0, 1).

    Raises:
        UsageError: sizes do not divide.
    """

    def __init__(
        self,
        num_classes: int,
        image_size: int = 224,
        patch_size: int = 16,
        channels: int = 3,
        width: int = 192,
        depth: int = 12,
        heads: int = 3,
        mlp_ratio: float = 4.0,
        stem: str = "patch",
        positions: str = "learned",
        pool: str = "cls",
        registers: int = 0,
        layer_scale: bool = False,
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
    ):
        super().__init__()
        check_sizes(image_size, patch_size, width, heads, positions)
        grid = image_size // patch_size
        self.pool, self.registers = pool, registers
        if stem == "patch":
            self.patch_embed: nn.Module = PatchEmbed(channels, width, patch_size)
        else:
            self.patch_embed = ConvStem(channels, width, patch_size, residual=stem == "residual")
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.reg_token = nn.Parameter(torch.zeros(1, registers, width)) if registers else None
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + grid * grid, width), requires_grad=positions == "learned")
        self.pos_drop = Drop(dropout)
        rates = [drop_path * i / max(1, depth - 1) for i in range(depth)]
        hidden = int(width * mlp_ratio)
        self.blocks = nn.ModuleList(
            Block(width, heads, hidden, dropout, attention_dropout, rate, layer_scale, norm_eps) for rate in rates
        )
        self.norm = nn.LayerNorm(width, eps=norm_eps) if pool == "cls" else nn.Identity()
        self.fc_norm = nn.LayerNorm(width, eps=norm_eps) if pool == "mean" else nn.Identity()
        self.head = nn.Linear(width, num_classes)
        self.frozen: int | None = None  # number of frozen blocks; None: everything learns
        self._initialise(positions, grid)

    def freeze(self, blocks: int) -> None:
        """Freeze the embedding and the first `blocks` blocks: no gradient, no dropout, no drop path.

        Raises UsageError if there are fewer blocks.
        """
        if blocks > len(self.blocks):
            raise UsageError(f"cannot freeze {blocks} blocks: the network has {len(self.blocks)}", "freeze fewer")
        self.frozen = blocks
        for name, parameter in self.named_parameters():
            if not name.startswith(("blocks.", "norm.", "fc_norm.", "head.")):
                parameter.requires_grad_(False)
        for block in self.blocks[:blocks]:
            block.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> ViT:
        super().train(mode)
        if self.frozen is not None:
            for part in (self.patch_embed, self.pos_drop, *self.blocks[: self.frozen]):
                part.eval()
        return self

    def forward_features(self, x: Tensor, collected: list[Tensor] | None = None, queries: slice = ALL) -> Tensor:
        """(B, C, H, W) -> tokens (B, R, D) after the last block, which returns only the `queries`, R of N.

        If `collected` is a list, the attention of every block is appended to it, (B, A, N, N).
        """
        x = self.patch_embed(x)  # (B, L, D)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1).to(x.dtype), x], dim=1) + self.pos_embed
        if self.reg_token is not None:  # registers have no position
            x = torch.cat([x[:, :1], self.reg_token.expand(x.shape[0], -1, -1).to(x.dtype), x[:, 1:]], dim=1)
        x = self.pos_drop(x)  # (B, N, D)
        for i, block in enumerate(self.blocks, 1):
            x = block(x, collected, queries if i == len(self.blocks) else ALL)
        return self.norm(x)  # (B, R, D)

    def forward_pool(self, x: Tensor) -> Tensor:
        """Tokens (B, N, D) -> features of the image (B, D), the input of the head."""
        return self.fc_norm(x[:, 0] if self.pool == "cls" else x[:, 1 + self.registers :].mean(dim=1))

    def features(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> features of the image (B, D), the input of the head."""
        # A head on the class token does not need the last block's output for other tokens.
        queries = slice(0, 1) if self.pool == "cls" else ALL
        return self.forward_pool(self.forward_features(x, queries=queries))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def attention(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits (B, K) and the attention probabilities of every block, (B, A, N, N) each."""
        collected: list[Tensor] = []
        return self.head(self.forward_pool(self.forward_features(x, collected))), collected

    def _initialise(self, positions: str, grid: int) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv2d):  # fan-in of one patch or kernel
                nn.init.trunc_normal_(module.weight, std=math.sqrt(1 / module.weight[0].numel()))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.cls_token, std=1e-6)
        if self.reg_token is not None:
            nn.init.normal_(self.reg_token, std=1e-6)
        if positions == "learned":
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
        else:
            table = sincos_1d if positions == "sincos_1d" else sincos_2d
            with torch.no_grad():
                self.pos_embed.copy_(table(grid, self.pos_embed.shape[-1]))


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


def check_sizes(image_size: int, patch_size: int, width: int, heads: int, positions: str) -> None:
    """Raise UsageError for numbers that do not divide, with close numbers that do."""
    if image_size % patch_size:
        near = max(patch_size, round(image_size / patch_size) * patch_size)
        raise UsageError(
            f"image size {image_size} is not divisible by patch size {patch_size}", f"use --image-size {near}"
        )
    if width % heads:
        good = [a for a in range(1, width + 1) if width % a == 0 and a <= 24]
        raise UsageError(f"{heads} heads do not divide width {width}", f"use heads in {', '.join(map(str, good))}")
    step = {"sincos_1d": 2, "sincos_2d": 4}.get(positions, 1)
    if width % step:
        raise UsageError(f"positions {positions} need a width divisible by {step}, not {width}", "change model.width")


def build_vit(config: ModelConfig, num_classes: int) -> ViT:
    """The network of a configuration. `auto`, which `train` resolves earlier, means the plain ViT here."""
    if config.name not in SIZES:
        raise unknown_key("model", config.name, SIZES)
    if num_classes < 1:
        raise UsageError(f"{num_classes} classes, expected at least one", "num_classes=2 or more")
    fields = config.model_dump(exclude={"name", "weights", "licence"})
    plain = {"stem": "patch", "pool": "cls", **SIZES[config.name]._asdict()}
    fields |= {name: usual for name, usual in plain.items() if fields[name] in (None, "auto")}
    return ViT(num_classes, **fields)


class Size(NamedTuple):
    """Width D, number of blocks, heads A."""

    width: int
    depth: int
    heads: int


SIZES = {
    "vit_tiny": Size(192, 12, 3),
    "vit_small": Size(384, 12, 6),
    "vit_base": Size(768, 12, 12),
    "vit_large": Size(1024, 24, 16),
}
