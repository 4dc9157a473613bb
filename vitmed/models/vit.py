"""The Vision Transformer (Dosovitskiy et al. 2021, arXiv 2010.11929), from patch embedding to logits.

Letters of the shapes:
    B images of a batch   C input channels   H, W height and width, px   P side of a patch, px
    L patches, (H/P) x (W/P)   N tokens: class, registers, patches   R query tokens   D width
    A attention heads   E width of attention pooling   K classes

Parameter names are timm's, so a timm, DeiT, MAE or DINO state dict loads without renaming.
"""

import math
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitmed.core.config import ModelConfig
from vitmed.core.errors import UsageError
from vitmed.models import layers
from vitmed.models.hardware import cpu_features
from vitmed.models.sizes import resolved, size_of

ALL = slice(None)
ROTARY = ("rotary", "learned_rotary")  # values of `ModelConfig.positions`
KERNELS = {"auto": None, "fused": True, "explicit": False}  # of attention, in training -> `Attention.fused`
AMX = bool(cpu_features().get("amx_tile"))  # units of the CPU that multiply matrices
Angles = tuple[Tensor, Tensor]  # of rotary positions: cosine and sine, (L, D/A) each


class Attention(nn.Module):
    """Multi-head self-attention, (B, N, D) -> (B, R, D) (Vaswani et al. 2017); rotary keys have no bias."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width, _, self.heads = size_of(config)
        self.qkv = (layers.NoKeyBias if config.positions in ROTARY else nn.Linear)(width, 3 * width)
        self.attn_drop = config.attention_dropout
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(config.dropout)
        self.fused: bool | None = None  # PyTorch's kernel in training; None, and in inference: where usually faster

    def forward(
        self, x: Tensor, collected: list[Tensor] | None = None, queries: slice = ALL, angles: Angles | None = None
    ) -> Tensor:
        B, N, D = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)  # (3, B, A, N, D/A)
        q, k, v = qkv.unbind(0)  # 3 x (B, A, N, D/A)
        if angles is not None:
            q, k = layers.turn(q, angles), layers.turn(k, angles)
        q = q[:, :, queries]  # (B, A, R, D/A)
        rate = self.attn_drop if self.training else 0.0
        fused = self.fused if q.requires_grad else None
        if fused is None:
            fused = not prefers_explicit(q.device, q.dtype, N, q.requires_grad)
        if collected is not None or rate or not fused:
            x, attention = layers.attend(q, k, v, rate)  # (B, A, R, D/A), (B, A, R, N)
            if collected is not None:
                collected.append(attention)
        else:
            x = F.scaled_dot_product_attention(q, k, v)  # (B, A, R, D/A)
        x = x.transpose(1, 2).reshape(B, -1, D)  # (B, R, D)
        return self.proj_drop(self.proj(x))


def prefers_explicit(device: torch.device, dtype: torch.dtype, tokens: int, backward: bool) -> bool:
    """Whether plain matrices are usually faster than PyTorch's fused attention kernel, with its `backward` pass or not.

    They are in bf16 on a CPU. With the backward pass 2.8 x at N = 197, equally fast at N = 785 (AMX, torch 2.15);
    without it 1.6 to 2.3 x for N from 65 to 1,025 (AVX-512, torch 2.14; with AMX not measured).
    """
    return device.type == "cpu" and dtype == torch.bfloat16 and (tokens <= 512 if backward else not AMX)


def use_attention(model: nn.Module, kernel: str) -> None:
    """Let training compute attention by a kernel: "fused" (PyTorch's), "explicit" (plain matrices) or "auto"."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.fused = KERNELS[kernel]


class Block(nn.Module):
    """(B, N, D) -> (B, R, D), pre-norm: x + attention(norm(x)), then x + mlp(norm(x)). `queries` selects the tokens
    that it returns. Gradient checkpointing (Chen et al. 2016, arXiv 1604.06174) computes it again when going back."""

    def __init__(self, config: ModelConfig, drop_path: float = 0.0):
        super().__init__()
        width = size_of(config).width
        self.norm1 = nn.LayerNorm(width, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ls1 = layers.LayerScale(width) if config.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=config.norm_eps)
        self.mlp = layers.build_mlp(config, width, config.dropout)
        self.ls2 = layers.LayerScale(width) if config.layer_scale else nn.Identity()
        self.drop_path = layers.DropPath(drop_path)
        self.recompute = False

    def forward(
        self, x: Tensor, collected: list[Tensor] | None = None, queries: slice = ALL, angles: Angles | None = None
    ) -> Tensor:
        given = (x, collected, queries, angles)
        if self.recompute and self.training and collected is None:  # computed again, it would be collected again
            return checkpoint(self.compute, *given, use_reentrant=False)  # type: ignore[no-any-return]
        return self.compute(*given)

    def compute(self, x: Tensor, collected: list[Tensor] | None, queries: slice, angles: Angles | None) -> Tensor:
        """As `forward`, without gradient checkpointing."""
        x = x[:, queries] + self.drop_path(self.ls1(self.attn(self.norm1(x), collected, queries, angles)))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


def checkpoint_gradients(model: nn.Module, on: bool = True) -> None:
    """Switch gradient checkpointing of a network's blocks on or off: less memory, the same gradients."""
    for module in model.modules():
        if isinstance(module, Block):
            module.recompute = on


def checkpoints_gradients(model: nn.Module) -> bool:
    """Whether gradient checkpointing is on."""
    return any(isinstance(module, Block) and module.recompute for module in model.modules())


class ViT(nn.Module):
    """(B, C, H, W) float -> (B, K) logits.

    Args:
        config: sizes come from the name where they are not set; `auto`, which `train` resolves earlier, means the
            plain ViT here (stem "patch", pool "cls"). With pool "mean" the norm is `fc_norm`, as in timm and MAE.
        num_classes: K.

    Raises:
        UsageError: no such size, no class, sizes that do not divide, or a pooling that the network cannot have.

    Attributes:
        width: D.   patches: L.   prefix: number of tokens before the patches.   tokens: N.
    """

    def __init__(self, config: ModelConfig, num_classes: int):
        super().__init__()
        config = resolved(config)
        if num_classes < 1:
            raise UsageError(f"{num_classes} classes, expected at least one", "num_classes=1 or more")
        check_network(config)
        width, depth, heads = size_of(config)
        grid, positions = config.image_size // config.patch_size, config.positions
        self.pool, self.registers = config.pool, config.registers
        self.shape = (config.channels, config.image_size, config.image_size)
        self.width, self.patches, self.prefix = width, grid * grid, config.class_token + config.registers
        self.tokens = self.prefix + self.patches
        if config.stem == "patch":
            self.patch_embed: nn.Module = layers.PatchEmbed(config.channels, width, config.patch_size)
        else:
            self.patch_embed = layers.ConvStem(config.channels, width, config.patch_size, config.stem == "residual")
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if config.class_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, config.registers, width)) if config.registers else None
        places = torch.zeros(1, config.class_token + self.patches, width)
        learned = positions in ("learned", "learned_rotary")
        self.pos_embed = None if positions == "rotary" else nn.Parameter(places, requires_grad=learned)
        patch = config.patch_size if positions == "learned_rotary" else None
        self.rope = layers.RotaryPositions(grid, width // heads, patch) if positions in ROTARY else None
        self.pos_drop = nn.Dropout(config.dropout)
        self.norm_pre = nn.LayerNorm(width, eps=config.norm_eps) if config.norm_pre else nn.Identity()
        self.blocks = nn.ModuleList(Block(config, config.drop_path * i / max(1, depth - 1)) for i in range(depth))
        self.norm = nn.LayerNorm(width, eps=config.norm_eps) if config.pool != "mean" else nn.Identity()
        self.fc_norm = nn.LayerNorm(width, eps=config.norm_eps) if config.pool == "mean" else nn.Identity()
        self.attn_pool = layers.AttentionPool(config) if config.pool in ("attention", "coca") else None
        features = 2 * width if config.pool == "cls_mean" else width
        self.head = nn.Linear(features if self.attn_pool is None else config.pool_width or width, num_classes)
        self.frozen: int | None = None  # number of frozen blocks; None: everything learns
        if not self.head.weight.is_meta:  # weights without memory get their values later
            self._initialise(positions, grid)
        self.float()  # also where `torch.set_default_dtype` names another

    def freeze(self, blocks: int) -> None:
        """Freeze the embedding and the first `blocks` blocks, and no other: no gradient, no dropout, no drop path.

        Raises UsageError if there are fewer blocks, or for a number below 0.
        """
        if not 0 <= blocks <= len(self.blocks):
            raise UsageError(f"cannot freeze {blocks} blocks: the network has {len(self.blocks)}", "freeze 0 to all")
        self.frozen = blocks
        for name, parameter in self.named_parameters():
            if not name.startswith(("blocks.", "norm.", "fc_norm.", "attn_pool.", "head.")):
                parameter.requires_grad_(False)
        for i, block in enumerate(self.blocks):
            block.requires_grad_(i >= blocks)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen is not None:
            for part in (self.patch_embed, self.pos_drop, *self.blocks[: self.frozen]):
                part.eval()
        return self

    def forward_features(self, x: Tensor, collected: list[Tensor] | None = None, queries: slice = ALL) -> Tensor:
        """(B, C, H, W) -> tokens (B, R, D) after the last block, which returns only the `queries`, R of N.

        If `collected` is a list, the attention of every block is appended to it, (B, A, N, N). Raises UsageError for
        images of another shape, whose last pixels would be left out without a word.
        """
        if x.shape[1:] != self.shape:
            fix = "x.unsqueeze(0) makes a batch of one image" if x.ndim == 3 else "resize them"
            fix = "x.permute(0, 3, 1, 2) puts the channels first" if x.shape[3:] == self.shape[:1] else fix
            raise UsageError(f"images of shape {tuple(x.shape)}, expected (B, {str(self.shape)[1:]}", fix)
        x = self.patch_embed(x)  # (B, L, D)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1).to(x.dtype), x], dim=1)  # (B, 1 + L, D)
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
        """Tokens (B, N, D) -> features of the image, the input of the head: (B, D), (B, 2 D) with "cls_mean", (B, E).

        If `collected` is a list, the attention of an attention pooling is appended to it.
        """
        if self.pool == "cls":
            return x[:, 0]
        if self.attn_pool is not None:  # CoCa's reads all tokens, SigLIP's only patches
            return self.attn_pool(x if self.pool == "coca" else x[:, self.prefix :], collected)
        mean = x[:, self.prefix :].mean(dim=1)  # (B, D)
        return self.fc_norm(mean) if self.pool == "mean" else torch.cat([x[:, 0], mean], dim=1)

    def features(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> features of the image, the input of the head; their width is `head.in_features`."""
        # A head on the class token does not need the last block's output for other tokens.
        return self.forward_pool(self.forward_features(x, queries=slice(0, 1) if self.pool == "cls" else ALL))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> logits (B, K). In inference the head computes in fp32, also where the blocks use bf16."""
        features = self.features(x)
        if self.training or x.is_meta or not torch.is_autocast_enabled(x.device.type):
            return self.head(features)
        with torch.autocast(x.device.type, enabled=False):  # rounded to bf16, two logits would be equal
            return self.head(features.to(self.head.weight.dtype))

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
        for token in (self.cls_token, self.reg_token):
            if token is not None:
                nn.init.normal_(token, std=1e-6)
        if self.pos_embed is None:
            return
        if positions in ("learned", "learned_rotary"):
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
        else:
            make = layers.sincos_1d if positions == "sincos_1d" else layers.sincos_2d
            table = make(grid, self.width)  # (1, 1 + L, D)
            self.pos_embed.data.copy_(table[:, -self.pos_embed.shape[1] :])


def check_network(config: ModelConfig) -> None:
    """Raise UsageError for a resolved configuration whose numbers do not go together, with close numbers that do."""
    size, patch, positions, pool = config.image_size, config.patch_size, config.positions, config.pool
    width, _, heads = size_of(config)
    if size % patch:
        near = max(patch, round(size / patch) * patch)
        fix = f"--image-size {near}, in Python image_size={near}"
        raise UsageError(f"image size {size} is not divisible by patch size {patch}", fix)
    if width % heads:
        good = [a for a in range(1, width + 1) if width % a == 0 and a <= 24]
        raise UsageError(f"{heads} heads do not divide width {width}", f"use heads in {', '.join(map(str, good))}")
    step = {"sincos_1d": 2, "sincos_2d": 4}.get(positions, 1)
    if width % step:
        raise UsageError(f"positions {positions} need a width divisible by {step}, not {width}", "change model.width")
    if positions in ROTARY and width // heads % 4:
        problem = f"rotary positions need heads whose width is divisible by 4, not {width // heads}"
        raise UsageError(problem, "change model.heads")
    if pool in ("cls", "cls_mean") and not config.class_token:
        problem = f"pool {pool} reads a class token, and the network has none"
        raise UsageError(problem, "omit model.pool, or set it to mean")
    readers = {"attention": heads, "coca": layers.COCA_HEADS}.get(pool, 1)
    if (reader := config.pool_width or width) % readers:
        problem = f"pool {pool} has {readers} heads, which do not divide its width {reader}"
        raise UsageError(problem, "change model.pool_width")
