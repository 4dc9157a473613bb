"""The network that a state dict in timm's names belongs to, from the shapes of its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vitmed.core.errors import CheckpointError
from vitmed.models.vit import SIZES
from vitmed.models.weights.catalogue import DISTILLED, MASKED, SUPERVISED
from vitmed.models.weights.layouts import State

HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}  # published widths with heads that are not 64 wide
SIGLIP_HEADS = {1152: 16, 1536: 16}
DINOV3_HEADS = {4096: 32}


def is_rotary(state: State) -> bool:
    """Whether a state dict is DINOv3's: no positions, but storage tokens and LayerScale.

    Other networks with rotary positions compute them otherwise, and their files may not show it.
    """
    storage = "reg_token" in state and state["reg_token"].shape[1] == 4 and "blocks.0.ls1.gamma" in state
    return "pos_embed" not in state and "cls_token" in state and ("rope.periods" in state or storage)


def join_positions(state: State, path: Path) -> None:
    """Make `pos_embed` (1, L, D), with a row in front if there is a class token: add positions of registers to their
    tokens; a missing class position is zero. Raises CheckpointError if the patches are no square grid."""
    if "pos_embed" not in state:
        return
    positions, registers = state["pos_embed"], state["reg_token"].shape[1] if "reg_token" in state else 0
    first = int("cls_token" in state)
    count, D = positions.shape[1:]
    for before in dict.fromkeys((first, 0, first + registers)):  # DINOv2; timm's no_embed_class; positioned registers
        if count > before and math.isqrt(count - before) ** 2 == count - before:
            break
    else:
        raise CheckpointError(f"{path}: {count} positions are not a square grid", "use weights for square images")
    if before < first:
        state["pos_embed"] = torch.cat([positions.new_zeros(1, 1, D), positions], dim=1)
    elif before > first:
        state["reg_token"] = state["reg_token"] + positions[:, first:before]
        state["pos_embed"] = torch.cat([positions[:, :first], positions[:, before:]], dim=1)


def describe(state: State, layout: str) -> dict[str, Any]:
    """The fields of `ModelConfig` that follow from the shapes, or else from what networks of the layout have."""
    width = len(state["blocks.0.norm1.weight"])
    depth = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks."))
    patch, hidden = state["patch_embed.proj.weight"].shape, state["blocks.0.mlp.fc2.weight"].shape[1]
    named = next((name for name, size in SIZES.items() if size[:2] == (width, depth)), None)
    layer_scale, norm_pre, rotary = "blocks.0.ls1.gamma" in state, "norm_pre.weight" in state, is_rotary(state)
    pool, class_token = _pooling(state), "cls_token" in state
    patches = state["pos_embed"].shape[1] - class_token if "pos_embed" in state else (224 // patch[-1]) ** 2
    clip_act = {"Hugging Face CLIP": "quick_gelu" if norm_pre else "gelu_tanh"}
    swiglu = len(state["blocks.0.mlp.fc1.weight"]) == 2 * hidden
    return {
        **({"name": named} if named else {}),
        "image_size": math.isqrt(patches) * patch[-1],
        "patch_size": patch[-1],
        "channels": patch[1],
        "width": width,
        "depth": depth,
        "heads": _heads(state, width, pool),
        "mlp_ratio": hidden / width,
        "stem": "patch",
        "positions": "rotary" if rotary else "learned",
        "pool": pool,
        "pool_width": state["attn_pool.latent"].shape[2] if pool in ("attention", "coca") else None,
        "class_token": class_token,
        "registers": state["reg_token"].shape[1] if "reg_token" in state else 0,
        "layer_scale": layer_scale,
        "mlp": "swiglu" if swiglu else clip_act.get(layout, "gelu"),
        "norm_pre": norm_pre,
        "norm_eps": 1e-5 if rotary or norm_pre else 1e-12 if layout == "Hugging Face" and not layer_scale else 1e-6,
    }


def _pooling(state: State) -> str:
    if "attn_pool.latent" in state:
        return "coca" if "attn_pool.norm_k.weight" in state else "attention"
    return "mean" if "fc_norm.weight" in state else "cls"


def _heads(state: State, width: int, pool: str) -> int | None:
    if "rope.periods" in state:
        return width // (4 * len(state["rope.periods"]))
    special = DINOV3_HEADS if is_rotary(state) else SIGLIP_HEADS if pool == "attention" else HEADS
    return special.get(width, width // 64 if width % 64 == 0 else None)


def kind_of(state: State, unused: Sequence[str]) -> str:
    """How weights were made: only a masked autoencoder has a decoder, and without labels there is no head."""
    if any("decoder" in name for name in unused):
        return MASKED
    return SUPERVISED if "head.weight" in state else DISTILLED
