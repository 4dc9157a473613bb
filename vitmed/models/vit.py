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
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitmed.core.errors import UsageError, unknown_key
from vitmed.core.model_config import ModelConfig
from vitmed.models.attention_pooling import COCA_EPS, COCA_HEADS, AttentionPool
from vitmed.models.check_network import check_pooling, check_sizes
from vitmed.models.fixed_positions import sincos_1d, sincos_2d
from vitmed.models.layers import ConvStem, PatchEmbed
from vitmed.models.rotary_positions import NoKeyBias, RotaryPositions, turn
from vitmed.models.sizes import SIZES
from vitmed.models.swiglu import SwiGLU

ALL = slice(None)
Angles = tuple[Tensor, Tensor]  # of rotary positions: cosine and sine, (L, D/A) each


class Attention(nn.Module):
    """Multi-head self-attention; with rotary positions, keys have no bias.

    Attributes:
        fused: whether training uses PyTorch's fused kernel; None: where it is usually faster. Inference always does.
    """

    def __init__(self, width: int, heads: int, dropout: float, attention_dropout: float, rotary: bool = False):
        super().__init__()
        self.heads = heads
        self.qkv = (NoKeyBias if rotary else nn.Linear)(width, 3 * width)
        self.attn_drop = attention_dropout
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(dropout)
        self.fused: bool | None = None

    def forward(
        self, x: Tensor, collected: list[Tensor] | None = None, queries: slice = ALL, angles: Angles | None = None
    ) -> Tensor:
        B, N, D = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)  # 3 x (B, A, N, D/A)
        if angles is not None:
            q, k = turn(q, angles), turn(k, angles)
        q = q[:, :, queries]  # (B, A, R, D/A)
        rate = self.attn_drop if self.training else 0.0
        fused = not q.requires_grad or self.fused
        if fused is None:
            fused = not prefers_explicit(q.device, q.dtype, N)
        if collected is not None or rate or not fused:
            x, attention = attend(q, k, v, rate)  # (B, A, R, D/A), (B, A, R, N)
            if collected is not None:
                collected.append(attention)
        else:
            x = F.scaled_dot_product_attention(q, k, v)  # (B, A, R, D/A)
        x = x.transpose(1, 2).reshape(B, -1, D)
        return self.proj_drop(self.proj(x))  # (B, R, D)


def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
    """softmax(q k' / sqrt(D/A)) v, (B, A, N, D/A), and the attention probabilities (B, A, N, N) before dropout.

    Args:
        q, k, v: (B, A, N, D/A).
        dropout: its rate.
    """
    attention = ((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)).softmax(dim=-1)  # (B, A, N, N)
    return F.dropout(attention, dropout).to(v.dtype) @ v, attention


def prefers_explicit(device: torch.device, dtype: torch.dtype, tokens: int) -> bool:
    """Whether plain matrices are usually faster than PyTorch's fused attention kernel in a step of training.

    They are in one case, the bf16 backward pass on a CPU: 2.8 x faster at N = 197, equally fast at N = 785
    (measured on a CPU with AMX, torch 2.15).
    """
    return device.type == "cpu" and dtype == torch.bfloat16 and tokens <= 512


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, dropout: float, gelu: Callable[[Tensor], Tensor] = F.gelu):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.drop = nn.Dropout(dropout)
        self.gelu = gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.gelu(self.fc1(x)))))


def quick_gelu(x: Tensor) -> Tensor:
    """OpenAI's approximation of GELU, in CLIP."""
    return x * torch.sigmoid(1.702 * x)


def build_mlp(kind: str, width: int, hidden: int, dropout: float = 0.0) -> nn.Module:
    """The MLP of a block: "swiglu", or a key of `GELUS`."""
    return SwiGLU(width, hidden, dropout) if kind == "swiglu" else Mlp(width, hidden, dropout, GELUS[kind])


class DropPath(nn.Module):
    """Skips a whole branch for some images (stochastic depth, Huang et al. 2016, arXiv 1603.09382)."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.rate or not self.training:
            return x
        return x * x.new_empty(len(x), *(1,) * (x.ndim - 1)).bernoulli_(1 - self.rate) / (1 - self.rate)


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
        mlp: str = "gelu",
        rotary: bool = False,
    ):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, heads, dropout, attention_dropout, rotary)
        self.ls1 = LayerScale(width) if layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = build_mlp(mlp, width, hidden, dropout)
        self.ls2 = LayerScale(width) if layer_scale else nn.Identity()
        self.drop_path = DropPath(drop_path)
        self.recompute = False  # in the backward pass, instead of keeping what is inside (Chen et al. 2016, 1604.06174)

    def forward(
        self, x: Tensor, collected: list[Tensor] | None = None, queries: slice = ALL, angles: Angles | None = None
    ) -> Tensor:
        given = (x, collected, queries, angles)
        if self.recompute and self.training:
            return checkpoint(self.compute, *given, use_reentrant=False)  # type: ignore[no-any-return]
        return self.compute(*given)

    def compute(self, x: Tensor, collected: list[Tensor] | None, queries: slice, angles: Angles | None) -> Tensor:
        """As `forward`, always keeping what is inside."""
        x = x[:, queries] + self.drop_path(self.ls1(self.attn(self.norm1(x), collected, queries, angles)))
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
        positions: "learned", "sincos_1d" (Vaswani et al. 2017), "sincos_2d" (as in MAE), "rotary" (as in DINOv3).
        pool: "cls" (class token), "mean" (of the patches; the norm is then `fc_norm`, as in timm and MAE), "cls_mean"
            (both side by side), "attention" (as in SigLIP) or "coca" (attention pooling as in CoCa and CONCH).
        pool_width: width of the attention pooling; None: D.
        class_token: whether there is one; SigLIP has none.
        registers: learned tokens without a position, between class token and patches (Darcet et al. 2023,
            arXiv 2309.16588), as in some DINOv2 weights.
        layer_scale: scales every branch, as DINOv2 and UNI do.
        mlp: "gelu", "gelu_tanh", "quick_gelu" or "swiglu".
        norm_pre: a norm before the blocks, as in CLIP.
        norm_eps: epsilon of the layer norms.
        dropout, attention_dropout, drop_path: rates in [0, 1).

    Raises:
        UsageError: sizes do not divide, or the pooling needs a class token that is not there.

    Attributes:
        width: D.   patches: L.   prefix: number of tokens before the patches.   tokens: N.
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
        pool_width: int | None = None,
        class_token: bool = True,
        registers: int = 0,
        layer_scale: bool = False,
        mlp: str = "gelu",
        norm_pre: bool = False,
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
    ):
        super().__init__()
        check_sizes(image_size, patch_size, width, heads, positions)
        check_pooling(pool, class_token, pool_width or width, heads)
        grid = image_size // patch_size
        self.pool, self.registers = pool, registers
        self.width, self.patches, self.prefix = width, grid * grid, class_token + registers
        self.tokens = self.prefix + self.patches
        if stem == "patch":
            self.patch_embed: nn.Module = PatchEmbed(channels, width, patch_size)
        else:
            self.patch_embed = ConvStem(channels, width, patch_size, residual=stem == "residual")
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, registers, width)) if registers else None
        places, rotary = torch.zeros(1, class_token + grid * grid, width), positions == "rotary"
        self.pos_embed = None if rotary else nn.Parameter(places, requires_grad=positions == "learned")
        self.rope = RotaryPositions(grid, width // heads) if rotary else None
        self.pos_drop = nn.Dropout(dropout)
        self.norm_pre = nn.LayerNorm(width, eps=norm_eps) if norm_pre else nn.Identity()
        rates = [drop_path * i / max(1, depth - 1) for i in range(depth)]
        hidden = int(width * mlp_ratio + 1e-6)  # a ratio of two whole numbers may be rounded down
        self.blocks = nn.ModuleList(
            Block(width, heads, hidden, dropout, attention_dropout, rate, layer_scale, norm_eps, mlp, rotary)
            for rate in rates
        )
        self.norm = nn.LayerNorm(width, eps=norm_eps) if pool != "mean" else nn.Identity()
        self.fc_norm = nn.LayerNorm(width, eps=norm_eps) if pool == "mean" else nn.Identity()
        out = {"cls_mean": 2 * width, "attention": pool_width or width, "coca": pool_width or width}.get(pool, width)
        self.attn_pool: AttentionPool | None = None
        if pool == "attention":
            self.attn_pool = AttentionPool(
                width, out, heads, build_mlp(mlp, out, int(out * mlp_ratio + 1e-6)), norm_eps
            )
        elif pool == "coca":
            self.attn_pool = AttentionPool(width, out, COCA_HEADS, None, COCA_EPS)
        self.head = nn.Linear(out, num_classes)
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
            if not name.startswith(("blocks.", "norm.", "fc_norm.", "attn_pool.", "head.")):
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
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1).to(x.dtype), x], dim=1)
        if self.pos_embed is not None:
            x = x + self.pos_embed
        if self.reg_token is not None:  # registers have no position
            first, patches = x.split((x.shape[1] - self.patches, self.patches), dim=1)
            x = torch.cat([first, self.reg_token.expand(x.shape[0], -1, -1).to(x.dtype), patches], dim=1)
        x = self.norm_pre(self.pos_drop(x))  # (B, N, D)
        angles = None if self.rope is None else self.rope()
        for i, block in enumerate(self.blocks, 1):
            x = block(x, collected, queries if i == len(self.blocks) else ALL, angles)
        return self.norm(x)  # (B, R, D)

    def forward_pool(self, x: Tensor, collected: list[Tensor] | None = None) -> Tensor:
        """Tokens (B, N, D) -> features of the image, the input of the head: (B, D), (B, 2 D) with "cls_mean".

        If `collected` is a list, the attention of an attention pooling is appended to it.
        """
        if self.pool == "cls":
            return x[:, 0]
        if self.attn_pool is not None:  # CoCa's reads all tokens, SigLIP's only patches
            return self.attn_pool(x if self.pool == "coca" else x[:, self.prefix :], collected)
        mean = x[:, self.prefix :].mean(dim=1)
        return self.fc_norm(mean) if self.pool == "mean" else torch.cat([x[:, 0], mean], dim=1)

    def features(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> features of the image, the input of the head; their width is `head.in_features`."""
        # A head on the class token does not need the last block's output for other tokens.
        queries = slice(0, 1) if self.pool == "cls" else ALL
        return self.forward_pool(self.forward_features(x, queries=queries))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def attention(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits (B, K) and the attention probabilities of every block, (B, A, N, N) each; attention pooling adds
        its own, (B, A, 1, N), or (B, A, 1, L) where it reads only patches."""
        collected: list[Tensor] = []
        return self.head(self.forward_pool(self.forward_features(x, collected), collected)), collected

    def _initialise(self, positions: str, grid: int) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv2d):  # fan-in of one patch or kernel
                nn.init.trunc_normal_(module.weight, std=math.sqrt(1 / module.weight[0].numel()))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=1e-6)
        if self.reg_token is not None:
            nn.init.normal_(self.reg_token, std=1e-6)
        if self.pos_embed is None:
            return
        if positions == "learned":
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
        else:
            table = sincos_1d if positions == "sincos_1d" else sincos_2d
            with torch.no_grad():
                self.pos_embed.copy_(table(grid, self.width)[:, -self.pos_embed.shape[1] :])


def build_vit(config: ModelConfig, num_classes: int) -> ViT:
    """The network of a configuration. `auto`, which `train` resolves earlier, means the plain ViT here."""
    arguments = arguments_of(config)
    if num_classes < 1:
        raise UsageError(f"{num_classes} classes, expected at least one", "num_classes=2 or more")
    return ViT(num_classes, **arguments)


def arguments_of(config: ModelConfig) -> dict[str, Any]:
    """The keyword arguments of `ViT` for a configuration. Raises UsageError: no such size."""
    if config.name not in SIZES:
        raise unknown_key("model", config.name, SIZES)
    fields = config.model_dump(exclude={"name", "weights", "licence", "terms"})
    plain = {"stem": "patch", "pool": "cls", **SIZES[config.name]._asdict()}
    return fields | {name: usual for name, usual in plain.items() if fields[name] in (None, "auto")}


GELUS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
}
