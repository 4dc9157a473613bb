"""Refuse weights that are no plain ViT, with the kind of network that they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import torch

from vitmed.core.errors import CheckpointError
from vitmed.models.weights.files import AGAIN, State, is_rotary

OTHERS = (
    # pattern of a tensor's name that no network of vitmed has, and what it means
    (r".*\b(spatial_block|channel_block|cpe1)\..*", "DaViT, which attends in windows and across channels, in stages"),
    (
        r"(.*\.)?stages\.\d+\.((blocks|layers)\.)?\d+\.(dwconv|conv_dw|depthwise_conv)\..*",
        "ConvNeXt, a convolutional network without tokens",
    ),
    (
        r".*standardized_conv2d.*|(.*\.)?(layer\d|stages\.\d+\.(blocks|layers))\.\d+\.conv\d\.weight",
        "ResNet or BiT, a convolutional network without tokens",
    ),
    (
        r"(.*\.)?(layers\.\d+\.blocks|features\.\d+)\.\d+\..*(relative_position|cpb_mlp).*",
        "Swin, whose tokens attend in windows and merge from stage to stage",
    ),
    (r".*relative_position_bias_table|.*rel_pos.*", "relative positions (BEiT, SAM)"),
    (r".*\brope.*|.*freqs_cis.*", "rotary positions other than DINOv3's (EVA-02, RoPE-ViT)"),
    (r".*\.(q_norm|k_norm)\..*", "normalised queries and keys"),
    (r".*\.attn\.(q_bias|v_bias)", "separate biases of queries and values (BEiT, EVA)"),
    (r".*mlp\.(norm|ffn_ln)\..*", "a norm inside the MLP (EVA-02)"),
    (r"(visual\.)?attn_pool\..*|MAPHead.*", "another attention pooling than SigLIP's and CONCH's"),
    (r".*(_packed_params|zero_point|\.qweight|\.scales?)$", "quantised weights"),
)


def not_plain(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path}: not a plain ViT: {what}", "use the weights of a plain ViT; see docs/weights.md")


def refuse_others(names: Iterable[str], state: State, path: Path) -> None:
    """Raise CheckpointError for other kinds of networks, and name the kind.

    Args:
        names: of the tensors that vitmed does not use; those of a text encoder do not count.
    """
    names = [name for name in names if not name.startswith("text")]
    for pattern, what in OTHERS:
        name = next((name for name in names if re.fullmatch(pattern, name)), None)
        if name is not None:
            raise not_plain(path, f"{name} belongs to {what}")
    integers = next((n for n, v in state.items() if v.is_quantized or v.dtype in (torch.int8, torch.uint8)), None)
    if integers is not None:
        raise CheckpointError(f"{path}: {integers} is quantised", "use the weights in fp32, fp16 or bf16")
    kernels = [name for name, value in state.items() if value.ndim == 4 and value.shape[-1] > 1]
    if len(kernels) > 8:
        raise not_plain(path, f"{len(kernels)} convolutions, such as {kernels[0]}: a CNN")


def refuse_not_finite(state: State, path: Path) -> None:
    """Raise CheckpointError for numbers that are not finite."""
    broken = next((name for name, value in state.items() if not bool(value.isfinite().all())), None)
    if broken is not None:
        raise CheckpointError(f"{path}: {broken} holds numbers that are not finite", "use another file")


def refuse_incomplete(state: State, unused: Iterable[str], path: Path) -> None:
    """Raise CheckpointError unless the tensors, in timm's names, are a network that vitmed has."""
    strange = next((name for name in unused if name.startswith("blocks.")), None)
    if strange is not None:
        raise not_plain(path, f"its blocks hold {strange}")
    for name, what in (
        ("patch_embed.proj.weight", "no patch embedding by one convolution"),
        ("blocks.0.norm1.weight", "no blocks"),
        ("blocks.0.mlp.fc1.weight", "no blocks"),
        ("blocks.0.mlp.fc2.weight", "no blocks"),
    ):
        if name not in state:
            raise not_plain(path, f"it has {what}")
    refuse_shapes(state, path)
    if not {"cls_token", "attn_pool.latent", "fc_norm.weight"} & state.keys():
        raise not_plain(path, "it has no class token, and reads the mean of normalised patches (SigLIP's gap models)")
    if "pos_embed" not in state and not is_rotary(state):
        raise not_plain(path, "it has no learned positions, nor DINOv3's rotary ones with four storage tokens")
    given, taken = (state[f"blocks.0.mlp.fc{i}.weight"].shape[i - 1] for i in (1, 2))
    if given not in (taken, 2 * taken):
        raise not_plain(
            path,
            f"blocks.0.mlp.fc1 gives {given} numbers and fc2 takes {taken}, expected {taken} (an MLP) or {2 * taken} "
            "(packed SwiGLU)",
        )


DIMENSIONS = {  # of the tensors that decide the network, or are resampled
    "cls_token": 3,
    "pos_embed": 3,
    "reg_token": 3,
    "patch_embed.proj.weight": 4,
    "patch_embed.stem.0.weight": 4,
    "blocks.0.norm1.weight": 1,
    "blocks.0.mlp.fc1.weight": 2,
    "blocks.0.mlp.fc2.weight": 2,
    "rope.periods": 1,
    "attn_pool.latent": 3,
}


def refuse_shapes(state: State, path: Path) -> None:
    """Raise CheckpointError for a tensor of `DIMENSIONS` with another number of them."""
    for name, count in DIMENSIONS.items():
        shape = tuple(state[name].shape) if name in state else (1,) * count
        if len(shape) != count or 0 in shape:
            raise CheckpointError(f"{path}: {name} has the shape {shape}, expected {count} dimensions", AGAIN)
