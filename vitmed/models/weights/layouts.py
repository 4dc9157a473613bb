"""The layouts of public ViT weights, how each converts to timm's parameter names, and the network that these belong to.

A converter takes a state dict and returns one with timm's names, or None if the file has another layout. Unknown
tensors keep their names.
"""

import math
import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from vitmed.core.errors import CheckpointError
from vitmed.models.layers import COCA_EPS, rotary_periods
from vitmed.models.sizes import SIZES
from vitmed.models.weights.files import State, is_rotary, tensor_names

HEAD = ("head.weight", "head.bias")


@cache
def _rules(layout: str) -> list[tuple[str, str]]:
    """Pattern of a whole name, and its replacement, as layouts.yaml states them."""
    stated = tensor_names()[layout]
    places = {f"<{part}>": stated.get(part, "") for part in ("block", "root")}
    return [(re.sub("<block>|<root>", lambda found: places[found[0]], old), new) for old, new in stated["rules"]]


def _rename(state: State, rules: Iterable[tuple[str, str]]) -> State:
    """Rename by the first rule that matches the whole name; other names stay."""
    new = {
        name: next((m.expand(becomes) for pattern, becomes in rules if (m := re.fullmatch(pattern, name))), name)
        for name in state
    }
    return {new[name]: value for name, value in state.items()}


def _join_qkv(state: State) -> None:
    """Join each block's three tensors of queries, keys and values; a bias that is missing beside others is zero."""
    for query, key, value in (("query", "key", "value"), ("q", "k", "v")):
        for name in [name for name in state if re.fullmatch(rf"blocks\.\d+\.attn\.{query}\.\w+", name)]:
            start, _, part = name.rpartition(f"{query}.")
            names = [f"{start}{x}.{part}" for x in (query, key, value)]
            if part == "bias" and names[1] not in state:
                state[names[1]] = torch.zeros_like(state[name])
            if all(name in state for name in names):
                state[f"{start}qkv.{part}"] = torch.cat([state.pop(name) for name in names])


def _pack_gates(state: State) -> None:
    """Pack each block's gate and value of SwiGLU into `fc1`; a value without a gate is the first layer of an MLP."""
    for name in [name for name in state if re.fullmatch(r"blocks\.\d+\.mlp\.value\.\w+", name)]:
        gate = state.pop(name.replace("value", "gate"), None)
        value = state.pop(name)
        state[name.replace("value", "fc1")] = value if gate is None else torch.cat([gate, value])


def _timm(state: State) -> State | None:
    """timm (its ViT, EVA and NaFlexViT), DeiT, MAE, DINO, DINOv2, DINOv3, iBOT, UNI and vitmed's own; also as the image
    tower of OpenCLIP (BiomedCLIP), of CONCH and of KEEP."""
    if any(name.startswith(("visual.trunk.", "visual.patch_embed.")) for name in state):
        state = _rename(state, _rules("conch"))
        if (query := state.get("attn_pool.latent")) is not None:
            # CoCa's pooling: the normalised query is a constant, and keys and values are two tensors
            pool = "visual.attn_pool_contrast."
            weight, bias = (state.pop(f"{pool}ln_q.{part}") for part in ("weight", "bias"))
            state["attn_pool.latent"] = F.layer_norm(query, query.shape[-1:], weight, bias, COCA_EPS)[None]
            state["attn_pool.kv.weight"] = torch.cat([state.pop(f"{pool}attn.{x}_proj_weight") for x in "kv"])
            joint = state.pop(f"{pool}attn.in_proj_bias")
            width = len(joint) // 3
            state["attn_pool.q.bias"], state["attn_pool.kv.bias"] = joint.split((width, 2 * width))
    if "embeds.proj.weight" in state:
        state = _rename(state, ((r"embeds\.proj\.(.*)", r"patch_embed.proj.\1"), (r"embeds\.(.*)", r"\1")))  # NaFlexViT
        if "pos_embed" in state:
            state["pos_embed"] = state["pos_embed"].flatten(1, 2)
    if "patch_embed.proj.weight" not in state:
        return None
    state = _rename(_rename(state, _rules("chunks")), _rules("timm"))
    mean = is_rotary(state) and "rope.periods" not in state  # timm's DINOv3: a mean of normalised patches
    if mean or any(name.startswith("pre_logits.") for name in state):  # the head needs what vitmed lacks
        state = {f"of_other_features.{name}" if name in HEAD else name: value for name, value in state.items()}
    _pack_gates(state)
    # EVA-02: the MLP is gated, and queries and values have a bias, but keys do not. The file need not show more.
    fc1, fc2 = (state.get(f"blocks.0.mlp.fc{i}.weight") for i in (1, 2))
    gated = fc1 is not None and fc2 is not None and fc1.ndim == fc2.ndim == 2 and len(fc1) == 2 * fc2.shape[1]
    biased = {"blocks.0.attn.q_bias", "blocks.0.attn.q_proj.bias"} & state.keys()
    eva02 = gated and "pos_embed" in state and bool(biased) and "blocks.0.attn.k_proj.bias" not in state
    if eva02 or "pos_embed" not in state:  # DINOv3 too; BEiT and EVA have positions, and parts that vitmed lacks
        state = _rename(state, _rules("separate"))
        _join_qkv(state)
    return _eva02(state) if eva02 else state


def _eva02(state: State) -> State:
    """EVA-02 and EVA-X, whose heads are 64 wide: they turn neighbours in a query or key, `layers.turn` turns numbers
    half a head apart, so the rows that give them change places. A pretrained network reads the mean."""
    state = {name: value for name, value in state.items() if "rope" not in name}  # constants
    for name in [name for name in state if re.fullmatch(r"blocks\.\d+\.attn\.qkv\.\w+", name)]:
        query, key, value = state[name].chunk(3)
        pairs = (part.unflatten(0, (-1, 32, 2)).transpose(1, 2).flatten(0, 2) for part in (query, key))
        state[name] = torch.cat([*pairs, value])
    state["rope.periods"] = rotary_periods(64, state["patch_embed.proj.weight"].shape[-1])
    return _rename(state, ((r"norm\.(\w+)", r"fc_norm.\1"),)) if "mask_token" in state else state


def _hugging_face(state: State) -> State | None:
    if not any(re.fullmatch(_rules("hugging_face")[0][0], name) for name in state):
        return None
    state = _rename(state, _rules("hugging_face"))
    _join_qkv(state)
    _pack_gates(state)
    if "head.weight" in state and state["head.weight"].shape[1] != state["cls_token"].shape[-1]:
        # the head of Dinov2ForImageClassification takes class token and mean together
        state = {f"of_two_tokens.{name}" if name in HEAD else name: value for name, value in state.items()}
    return state


def _clip(state: State, sign: str, layout: str) -> State | None:
    """The image tower of CLIP or SigLIP: every file of the `layout` has a tensor whose name matches `sign`. The head of
    a classifier reads another mean than vitmed's, and is dropped."""
    if not any(re.fullmatch(sign, name) for name in state):
        return None
    state = _rename(state, _rules(layout))
    _join_qkv(state)
    for part in ("weight", "bias"):
        if (joint := state.pop(f"attn_pool.qkv.{part}", None)) is not None:  # divided as timm does
            width = len(joint) // 3
            state[f"attn_pool.q.{part}"], state[f"attn_pool.kv.{part}"] = joint.split((width, 2 * width))
    # class token (D,) and positions (N, D) of CLIP -> (1, 1, D) and (1, N, D)
    axes = {"cls_token": (1, 1, -1), "pos_embed": (1, *state["pos_embed"].shape)} if "pos_embed" in state else {}
    return state | {name: state[name].reshape(shape) for name, shape in axes.items() if name in state}


def _google(state: State) -> State | None:
    """JAX: kernels are (in, out), convolutions (P, P, C, D), attention (D, A, D/A) and (A, D/A, D)."""
    root = next((r for r in ("", "opt/target/", "params/", "params/img/") if f"{r}embedding/kernel" in state), None)
    if root is None:
        return None
    state = {name.removeprefix(root): value for name, value in state.items()}
    stacked = {name: value for name, value in state.items() if name.startswith("Transformer/encoderblock/")}
    for name, value in stacked.items():  # big_vision keeps all blocks in one tensor
        del state[name]
        state |= {name.replace("encoderblock", f"encoderblock_{i}"): tensor for i, tensor in enumerate(value)}
    new: State = {}
    for name, value in _rename(state, _rules("google")).items():
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


def convert(state: State) -> tuple[str, State] | None:
    """The layout of a state dict, a key of `LAYOUTS`, and the state dict with timm's names; None if it has no layout.

    Raises KeyError, ValueError, IndexError or RuntimeError if its tensors do not fit each other.
    """
    for layout, converted in ((name, converter(state)) for name, converter in LAYOUTS.items()):
        if converted is None:
            continue
        for name, weight in list(converted.items()):  # of CLIP's patches, and in timm's DINOv3, a bias may be missing
            flattened = "embeds.proj.weight" in state or layout == "Hugging Face CLIP"  # NaFlexViT's and Siglip2's
            if name == "patch_embed.proj.weight" and weight.ndim == 2 and flattened:  # (P, P, 3)
                side = math.isqrt(weight.shape[1] // 3)
                converted[name] = weight.reshape(-1, side, side, 3).permute(0, 3, 1, 2)
            if re.fullmatch(r"patch_embed\.proj\.weight|blocks\.\d+\.attn\.qkv\.weight", name):
                converted.setdefault(name.replace("weight", "bias"), weight.new_zeros(len(weight)))
        return layout, converted
    return None


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
    pool, class_token = "mean" if "fc_norm.weight" in state else "cls", "cls_token" in state
    if "attn_pool.latent" in state:
        pool = "coca" if "attn_pool.norm_k.weight" in state else "attention"
    published = tensor_names()["heads"]["rotary" if rotary else "attention" if pool == "attention" else "others"]
    heads = published.get(width, width // 64 if width % 64 == 0 else None)
    if "rope.periods" in state:
        heads = width // (4 * len(state["rope.periods"]))
    patches = state["pos_embed"].shape[1] - class_token if "pos_embed" in state else (224 // patch[-1]) ** 2
    clip_act = {"Hugging Face CLIP": "quick_gelu" if norm_pre else "gelu_tanh"}
    swiglu = len(state["blocks.0.mlp.fc1.weight"]) == 2 * hidden
    gated = "swiglu_norm" if "blocks.0.mlp.norm.weight" in state else "swiglu"
    return {
        **({"name": named} if named else {}),
        "image_size": math.isqrt(patches) * patch[-1],
        "patch_size": patch[-1],
        "channels": patch[1],
        "width": width,
        "depth": depth,
        "heads": heads,
        "mlp_ratio": hidden / width,
        "stem": "patch",
        "positions": "rotary" if rotary else "learned_rotary" if "rope.periods" in state else "learned",
        "pool": pool,
        "pool_width": state["attn_pool.latent"].shape[2] if pool in ("attention", "coca") else None,
        "class_token": class_token,
        "registers": state["reg_token"].shape[1] if "reg_token" in state else 0,
        "layer_scale": layer_scale,
        "mlp": gated if swiglu else clip_act.get(layout, "gelu"),
        "norm_pre": norm_pre,
        "norm_eps": 1e-5 if rotary or norm_pre else 1e-12 if layout == "Hugging Face" and not layer_scale else 1e-6,
    }


TORCHVISION_HAS = {"class_token", "conv_proj.weight"}

LAYOUTS: dict[str, Callable[[State], State | None]] = {
    "timm": _timm,
    "torchvision": lambda state: _rename(state, _rules("torchvision")) if state.keys() >= TORCHVISION_HAS else None,
    "Hugging Face": _hugging_face,
    "Hugging Face CLIP": partial(
        _clip, sign=r"(?:vision_model\.)*embeddings\.patch_embedding\.\w+", layout="hugging_face_clip"
    ),
    "OpenCLIP": partial(_clip, sign=r"visual\.class_embedding", layout="open_clip"),
    "Google npz": _google,
}
