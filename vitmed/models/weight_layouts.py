"""The layouts of public ViT weights, and how each converts to timm's parameter names.

A converter takes a state dict and returns one with timm's names, or None if the file has another layout. Unknown
tensors keep their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

State = dict[str, Tensor]
HEAD = ("head.weight", "head.bias")

PLAIN = re.compile(  # every tensor of a plain ViT, in timm's names
    r"cls_token|reg_token|pos_embed|patch_embed\.(proj\.(weight|bias)|stem\..+)|(norm|fc_norm|head)\.(weight|bias)|"
    r"blocks\.\d+\.((norm[12]|attn\.(qkv|proj)|mlp\.fc[12])\.(weight|bias)|ls[12]\.gamma)"
)

OTHERS = (
    # pattern of a tensor's name, and what it means; a plain ViT has none of these
    (r".*relative_position_bias_table|.*rel_pos.*", "relative positions (Swin, BEiT)"),
    (r".*\brope.*|.*freqs_cis.*", "rotary positions (EVA-02, DINOv3)"),
    (r".*mlp\.(w12|w3|weights_in|weights_out|fc1_g|gate_proj)\b.*", "a SwiGLU MLP (DINOv2 giant, UNI2, Virchow)"),
    (r".*\.(q_norm|k_norm)\..*", "normalised queries and keys"),
    (r".*\.attn\.(q_bias|v_bias)", "separate biases of queries and values (BEiT, EVA)"),
    (r".*(norm_pre|pre_layrnorm|ln_pre)\..*", "a norm before the blocks (CLIP)"),
    (r".*(attn_pool|MAPHead).*", "attention pooling (SigLIP, big_vision MAP)"),
    (r".*(_packed_params|zero_point|\.qweight|\.scales?)$", "quantised weights"),
)

Rules = tuple[tuple[str, str], ...]  # pattern of a whole name, and its replacement

_TIMM: Rules = (
    (r"blocks\.\d+\.(\d+)\.(.*)", r"blocks.\1.\2"),  # DINOv2 keeps its blocks in chunks
    (r"register_tokens", r"reg_token"),
)
_TORCHVISION: Rules = (
    (r"class_token", "cls_token"),
    (r"encoder\.pos_embedding", "pos_embed"),
    (r"conv_proj\.(\w+)", r"patch_embed.proj.\1"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.ln_([12])\.(\w+)", r"blocks.\1.norm\2.\3"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.in_proj_(\w+)", r"blocks.\1.attn.qkv.\2"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.out_proj\.(\w+)", r"blocks.\1.attn.proj.\2"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:0|linear_1)\.(\w+)", r"blocks.\1.mlp.fc1.\2"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:3|linear_2)\.(\w+)", r"blocks.\1.mlp.fc2.\2"),
    (r"encoder\.ln\.(\w+)", r"norm.\1"),
    (r"heads\.head\.(\w+)", r"head.\1"),
)
_HF = r"(?:vit\.|dinov2\.|dinov2_with_registers\.)?"
_HF_BLOCK = _HF + r"(?:encoder\.layer|layers)\.(\d+)\."
_HUGGING_FACE: Rules = (
    (_HF + r"embeddings\.cls_token", "cls_token"),
    (_HF + r"embeddings\.position_embeddings", "pos_embed"),
    (_HF + r"embeddings\.register_tokens", "reg_token"),
    (_HF + r"embeddings\.patch_embeddings\.projection\.(\w+)", r"patch_embed.proj.\1"),
    (_HF_BLOCK + r"attention\.(?:attention\.(query|key|value)|([qkv])_proj)\.(\w+)", r"blocks.\1.attn.\2\3.\4"),
    (_HF_BLOCK + r"attention\.(?:output\.dense|o_proj)\.(\w+)", r"blocks.\1.attn.proj.\2"),
    (_HF_BLOCK + r"(?:layernorm_before|norm1)\.(\w+)", r"blocks.\1.norm1.\2"),
    (_HF_BLOCK + r"(?:layernorm_after|norm2)\.(\w+)", r"blocks.\1.norm2.\2"),
    (_HF_BLOCK + r"(?:intermediate\.dense|mlp\.fc1)\.(\w+)", r"blocks.\1.mlp.fc1.\2"),
    (_HF_BLOCK + r"(?:output\.dense|mlp\.fc2)\.(\w+)", r"blocks.\1.mlp.fc2.\2"),
    (_HF_BLOCK + r"layer_scale([12])\.lambda1", r"blocks.\1.ls\2.gamma"),
    (_HF + r"layernorm\.(\w+)", r"norm.\1"),
    (r"classifier\.(\w+)", r"head.\1"),
)
_GOOGLE_BLOCK = r"Transformer/encoderblock_(\d+)/"
_GOOGLE: Rules = (
    (r"cls", "cls_token"),
    (r"(?:Transformer/posembed_input/)?pos_embedding", "pos_embed"),
    (r"embedding/(\w+)", r"patch_embed.proj.\1"),
    (_GOOGLE_BLOCK + r"LayerNorm_0/(\w+)", r"blocks.\1.norm1.\2"),
    (_GOOGLE_BLOCK + r"LayerNorm_[12]/(\w+)", r"blocks.\1.norm2.\2"),  # 1 in big_vision, 2 in the older code
    (_GOOGLE_BLOCK + r"MlpBlock_\d+/Dense_0/(\w+)", r"blocks.\1.mlp.fc1.\2"),
    (_GOOGLE_BLOCK + r"MlpBlock_\d+/Dense_1/(\w+)", r"blocks.\1.mlp.fc2.\2"),
    (_GOOGLE_BLOCK + r"MultiHeadDotProductAttention_\d+/out/(\w+)", r"blocks.\1.attn.proj.\2"),
    (_GOOGLE_BLOCK + r"MultiHeadDotProductAttention_\d+/(query|key|value)/(\w+)", r"blocks.\1.attn.\2.\3"),
    (r"Transformer/encoder_norm/(\w+)", r"norm.\1"),
    (r"head/(\w+)", r"head.\1"),
)


def _rename(state: State, rules: Rules) -> State:
    """Rename by the first rule that matches the whole name; other names stay."""

    def renamed(name: str) -> str:
        return next((m.expand(becomes) for pattern, becomes in rules if (m := re.fullmatch(pattern, name))), name)

    return {renamed(name): value for name, value in state.items()}


def _join_qkv(state: State) -> None:
    """Join each block's three tensors of queries, keys and values."""
    for query, key, value in (("query", "key", "value"), ("q", "k", "v")):
        for name in [name for name in state if re.fullmatch(rf"blocks\.\d+\.attn\.{query}\.\w+", name)]:
            start, _, part = name.rpartition(f"{query}.")
            names = [f"{start}{x}.{part}" for x in (query, key, value)]
            if all(name in state for name in names):
                state[f"{start}qkv.{part}"] = torch.cat([state.pop(name) for name in names])


def _timm(state: State) -> State | None:
    """timm, DeiT, MAE, DINO, DINOv2, iBOT, UNI and vitmed's own."""
    if "patch_embed.proj.weight" not in state:
        return None
    state = _rename(state, _TIMM)
    if "dist_token" in state:  # DeiT's second token is a register with a position; its head is dropped
        positions = state["pos_embed"]
        state["reg_token"] = state.pop("dist_token") + positions[:, 1:2]
        state["pos_embed"] = torch.cat([positions[:, :1], positions[:, 2:]], dim=1)
    if any(name.startswith("pre_logits.") for name in state):  # the head needs a layer that a plain ViT lacks
        state = {f"with_pre_logits.{name}" if name in HEAD else name: value for name, value in state.items()}
    return state


def _torchvision(state: State) -> State | None:
    return _rename(state, _TORCHVISION) if "conv_proj.weight" in state and "class_token" in state else None


def _hugging_face(state: State) -> State | None:
    if not any(re.fullmatch(_HUGGING_FACE[0][0], name) for name in state):
        return None
    state = _rename(state, _HUGGING_FACE)
    _join_qkv(state)
    if "head.weight" in state and state["head.weight"].shape[1] != state["cls_token"].shape[-1]:
        # the head of Dinov2ForImageClassification takes class token and mean together
        state = {f"of_two_tokens.{name}" if name in HEAD else name: value for name, value in state.items()}
    return state


def _google(state: State) -> State | None:
    """JAX: kernels are (in, out), convolutions (P, P, C, D), attention (D, A, D/A) and (A, D/A, D)."""
    root = next((r for r in ("", "opt/target/", "params/", "params/img/") if f"{r}embedding/kernel" in state), None)
    if root is None:
        return None
    state = {name.removeprefix(root): value for name, value in state.items()}
    stacked = {name: value for name, value in state.items() if name.startswith("Transformer/encoderblock/")}
    for name, value in stacked.items():  # big_vision keeps all blocks in one tensor
        del state[name]
        state |= {name.replace("encoderblock", f"encoderblock_{i}"): one for i, one in enumerate(value)}
    new: State = {}
    for name, value in _rename(state, _GOOGLE).items():
        kernel = name.endswith(".kernel")
        if name == "pos_embed":
            value = value.reshape(1, -1, value.shape[-1])
        elif name == "patch_embed.proj.kernel":
            value = value.permute(3, 2, 0, 1)
        elif name.endswith("attn.proj.kernel"):
            value = value.flatten(0, 1).T
        elif re.search(r"attn\.(query|key|value)\.", name):
            value = value.flatten(1).T if kernel else value.flatten()
        elif kernel:
            value = value.T
        new[re.sub(r"\.(kernel|scale)$", ".weight", name)] = value
    _join_qkv(new)
    return new


LAYOUTS: dict[str, Callable[[State], State | None]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "Hugging Face": _hugging_face,
    "Google npz": _google,
}
