"""Starting from weights that somebody trained: which layout, what it says about the network, exact accounting.

A file goes through four steps: read it safely (`safe_load`), unwrap it (`_unwrap`), give its tensors timm's
names (`layouts.LAYOUTS`), and tell the network from their shapes (`_describe`). `fitted` then completes a
configuration by it, and `load_pretrained` copies the tensors, resampling positions, patch kernels and channels.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitmed.catalogue import Entry
from vitmed.config import ModelConfig
from vitmed.errors import CheckpointError, UsageError
from vitmed.layouts import HEAD, LAYOUTS, OTHERS, PLAIN, State
from vitmed.model import SIZES, ViT


@dataclass(frozen=True)
class LoadReport:
    """What a weight file gave, by parameter name.

    Attributes:
        file: its name, without folders.
        layout: whose parameter names it has (`layouts.LAYOUTS`).
        loaded: taken over as they are.
        resized: taken over after resampling (positions, patch kernels) or folding (input channels).
        fresh: of the network, not in the file; nothing but the head.
        unused: in the file, not of the network.
    """

    file: str
    layout: str
    loaded: tuple[str, ...]
    resized: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for weights.json."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        parts += [f"{', '.join(self.resized)} resized"] if self.resized else []
        parts += [f"fresh: {', '.join(self.fresh) or 'nothing'}", f"unused: {len(self.unused)}"]
        return f"weights {self.file} ({self.layout}): {', '.join(parts)}"


@dataclass(frozen=True)
class Weights:
    """A weight file in timm's names.

    Attributes:
        path: of the file.
        layout: a key of `layouts.LAYOUTS`.
        state: name -> tensor, float32; `pos_embed` is (1, 1 + L, D), class token first.
        model: the fields of `ModelConfig` that the tensors decide.
        normalize: how the weights want images, a value of `DataConfig.normalize`; and where that is known from.
        unused: names in the file that no plain ViT has.
        mean, std: per channel, of values in 0..1, as whoever made the weights told it; None where nobody did.
        interpolation: "bilinear", "bicubic", ...: how images were resized; None where nobody told.
        licence: SPDX identifier, or the publisher's word for it; None where nobody told.
    """

    path: Path
    layout: str
    state: State
    model: dict[str, Any]
    normalize: tuple[str, str]
    unused: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    interpolation: str | None = None
    licence: str | None = None


def safe_load(path: Path) -> Any:
    """Read a torch file with `weights_only=True`: tensors and plain types, nothing that could run.

    Raises:
        CheckpointError: missing, damaged, or with code in it.
    """
    magic = _magic(path)
    if magic[:2] not in (b"PK", b"\x80\x02"):  # torch's zip files, and what it wrote before
        raise CheckpointError(f"{path}: not a checkpoint or weight file", "name the .pt file of a run, or a .pth file")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path}: refused: it holds more than tensors and plain values, or is damaged; loading it could run code",
            "use a file that vitmed wrote, or a plain state dict",
        ) from None
    except Exception as error:  # torch raises many kinds for damaged files
        raise CheckpointError(f"{path}: not a readable checkpoint ({_first_line(error)})", "copy it again") from None


def read_weights(file: str | Path, entry: Entry | None = None) -> Weights:
    """Read a weight file of any layout in `layouts.LAYOUTS`: `.pt`, `.pth`, `.bin`, `.safetensors` or Google's `.npz`.

    Args:
        file: its path.
        entry: what the catalogue knows of it; else the files of a model hub that lie beside it are asked.

    Raises:
        CheckpointError: missing, damaged, with code in it, or not a plain ViT (says what it is).
    """
    path = Path(file)
    magic = _magic(path)
    if magic.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path}: a Git LFS pointer of {path.stat().st_size} bytes, not the weights", "fetch them: git lfs pull"
        )
    if path.suffix == ".npz":
        found = _read_npz(path)
    elif path.suffix == ".safetensors":
        found = _read_safetensors(path)
    else:
        found = safe_load(path)
    if isinstance(found, dict) and found.get("format") == FORMAT:
        return _own(found, path)
    state, left_out = _unwrap(found, path)
    _refuse_others(state, path)
    found_layout = next(((name, new) for name, convert in LAYOUTS.items() if (new := convert(state)) is not None), None)
    if found_layout is None:
        names = ", ".join(sorted(state)[:5])
        raise CheckpointError(
            f"{path}: not a ViT that vitmed knows; its tensors are named {names}, ...",
            f"use weights with the names of {', '.join(LAYOUTS)}",
        )
    layout = found_layout[0]
    converted = {name: value.float() for name, value in found_layout[1].items()}
    plain = {name: value for name, value in converted.items() if PLAIN.fullmatch(name)}
    unused = (*left_out, *(name for name in converted if name not in plain))
    _refuse_incomplete(plain, unused, path)
    _join_positions(plain, path)
    told, source = (_of_entry(entry), "the catalogue") if entry is not None else _beside(path)
    normalize = _normalisation(told.get("mean"), source, layout)
    return Weights(path, layout, plain, _describe(plain, layout), normalize, unused, **told)


def fitted(config: ModelConfig, weights: Weights) -> ModelConfig:
    """The configuration completed by what the weights decide; what was set by hand is kept, and must agree with them.

    Image size, patch size and channels need not agree: `load_pretrained` resamples.

    Raises:
        UsageError: a number that was set is not the weights', or the number of heads cannot be known.
    """
    file, decided = weights.path.name, dict(weights.model)
    given = {name for name in config.model_fields_set if getattr(config, name) not in (None, "auto")}
    if "name" in given and config.name in SIZES and not given & {"width", "depth"}:
        size = SIZES[config.name]
        if (size.width, size.depth) != (decided["width"], decided["depth"]):
            raise UsageError(
                f"--model {config.name} has width {size.width} and depth {size.depth}; {file} has width "
                f"{decided['width']} and depth {decided['depth']}",
                "leave --model out: the weights decide",
            )
    free = {"name", "image_size", "patch_size", "channels", "pool", "heads", "norm_eps"}
    for name in sorted((given & decided.keys()) - free):
        if getattr(config, name) != decided[name]:
            raise UsageError(
                f"model.{name} is {getattr(config, name)}, but {file} has {decided[name]}", f"leave model.{name} out"
            )
    patch = config.patch_size if "patch_size" in given else decided["patch_size"]
    if "image_size" not in given and weights.layout != "vitmed":
        decided["image_size"] = _size_for(decided["image_size"], patch)
    if "heads" not in given and decided["heads"] is None:
        raise UsageError(
            f"{file}: {decided['width']} wide, for which no number of attention heads is usual, and a weight file does "
            "not tell it",
            "--set model.heads=N",
        )
    return config.model_copy(update={name: value for name, value in decided.items() if name not in given})


def load_pretrained(model: ViT, weights: Weights) -> LoadReport:
    """Copy the weights into the network; positions, patch kernels and input channels are resampled to fit.

    The head is copied where it has as many classes, else it stays fresh. Nothing is copied on an error.

    Raises:
        CheckpointError: something beyond the head would stay fresh; names the first tensors that do not fit.
    """
    own = model.state_dict()
    state, resized = dict(weights.state), []
    for name, resample in (("patch_embed.proj.weight", resample_patches), ("pos_embed", resample_positions)):
        if name in own and name in state and state[name].shape != own[name].shape:
            state[name] = resample(state[name], own[name].shape)
            resized.append(name)
    if model.pool == "mean" and "fc_norm.weight" not in state:  # as MAE does, the norm moves behind the mean
        state = {
            name.replace("norm.", "fc_norm.") if name.startswith("norm.") else name: v for name, v in state.items()
        }
    fits = {name: value for name, value in state.items() if name in own and value.shape == own[name].shape}
    fresh = tuple(name for name in own if name not in fits and not name.endswith("num_batches_tracked"))
    wrong = [name for name in fresh if name not in HEAD]
    if wrong:
        shapes = [
            f"{name}: model {tuple(own[name].shape)}, file "
            + (str(tuple(state[name].shape)) if name in state else "lacks it")
            for name in wrong[:5]
        ]
        raise CheckpointError(
            f"{weights.path}: {len(wrong)} tensors beyond the head do not fit:\n  " + "\n  ".join(shapes),
            "leave the model's numbers out: the weights decide them",
        )
    model.load_state_dict({**own, **fits})
    unused = (*(name for name in state if name not in fits), *weights.unused)
    loaded = tuple(name for name in fits if name not in resized)
    return LoadReport(weights.path.name, weights.layout, loaded, tuple(resized), fresh, unused)


def resample_positions(positions: Tensor, shape: torch.Size) -> Tensor:
    """(1, 1 + L, D) -> (1, 1 + L', D): bicubic with antialiasing over the grid; the class token's row stays."""
    token, patches = positions[:, :1], positions[:, 1:]
    old, new = math.isqrt(patches.shape[1]), math.isqrt(shape[1] - 1)
    grid = patches.reshape(1, old, old, -1).permute(0, 3, 1, 2)  # (1, D, old, old)
    grid = F.interpolate(grid, size=(new, new), mode="bicubic", antialias=True, align_corners=False)
    return torch.cat([token, grid.permute(0, 2, 3, 1).reshape(1, new * new, -1)], dim=1)


def resample_patches(kernel: Tensor, shape: torch.Size) -> Tensor:
    """(D, C, P, P) -> (D, C', P', P'): another patch size, other input channels, or both.

    Patch size: the kernel that gives an enlarged image the products which the old one gave the original
    (pseudo-inverse of the enlargement; FlexiViT, Beyer et al. 2023, arXiv 2212.08013, section 3.4). Channels: see
    `fold_channels`.
    """
    if kernel.shape[-1] != shape[-1]:
        old, new = kernel.shape[-1], shape[-1]
        basis = torch.eye(old * old).reshape(old * old, 1, old, old)
        enlarge = F.interpolate(basis, size=(new, new), mode="bicubic", antialias=True, align_corners=False)
        inverse = torch.linalg.pinv(enlarge.reshape(old * old, new * new))  # (P'^2, P^2)
        kernel = (kernel.flatten(2) @ inverse.T).reshape(*kernel.shape[:2], new, new)
    return fold_channels(kernel, shape[1])


def fold_channels(kernel: Tensor, channels: int) -> Tensor:
    """(D, C, P, P) -> (D, channels, P, P).

    Three to one: the sum, so that a grey image gives what its copy in three channels gave (where all channels
    are normalised alike). One to three: a third each. A channel more, alpha, starts at zero.
    """
    D, C, P, _ = kernel.shape
    colours = {2: 1, 4: 3}  # with alpha -> without
    base, wanted = colours.get(C, C), colours.get(channels, channels)
    colour = kernel[:, :base]
    if base == 3 and wanted == 1:
        colour = colour.sum(dim=1, keepdim=True)
    elif base == 1 and wanted == 3:
        colour = colour.expand(-1, 3, -1, -1) / 3
    alpha = [kernel[:, base:] if base < C else kernel.new_zeros(D, 1, P, P)] if channels > wanted else []
    return torch.cat([colour, *alpha], dim=1)


FORMAT = "vitmed checkpoint"


def _own(checkpoint: dict[str, Any], path: Path) -> Weights:
    """A checkpoint of vitmed tells its network itself."""
    try:
        config, state = checkpoint["config"], checkpoint["weights"]
        model = ModelConfig.model_validate({k: v for k, v in config["model"].items() if k in ARCHITECTURE})
        if not (isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values())):
            raise TypeError("weights")
        normalize, size = str(config["data"]["normalize"]), SIZES[model.name]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CheckpointError(f"{path}: a damaged vitmed checkpoint", "copy it again") from None
    decided = {name: getattr(model, name) for name in ARCHITECTURE}
    decided |= {name: decided[name] or getattr(size, name) for name in ("width", "depth", "heads")}
    return Weights(path, "vitmed", state, decided, (normalize, "the checkpoint"), ())


ARCHITECTURE = (
    "name", "image_size", "patch_size", "channels", "width", "depth", "heads", "mlp_ratio", "stem", "positions", "pool",
    "registers", "layer_scale", "norm_eps",
)  # fmt: skip


def _of_entry(entry: Entry) -> dict[str, Any]:
    """The last four fields of `Weights`, from the catalogue."""
    return {name: getattr(entry, name) for name in ("mean", "std", "interpolation", "licence")}


def _beside(path: Path) -> tuple[dict[str, Any], str]:
    """The last four fields of `Weights`, as far as a file of a model hub beside the weights tells them; its name."""
    for name, inside, mean, std, resized in (
        ("preprocessor_config.json", (), "image_mean", "image_std", "resample"),  # transformers
        ("config.json", ("pretrained_cfg",), "mean", "std", "interpolation"),  # timm
    ):
        try:
            told = json.loads((path.parent / name).read_text(encoding="utf-8"))
            for key in inside:
                told = told[key]
            how, licence = told.get(resized), told.get("license")
            return {
                "mean": tuple(float(value) for value in told[mean]),
                "std": tuple(float(value) for value in told[std]) if told.get(std) else None,
                "interpolation": PIL_RESAMPLING.get(how, how if isinstance(how, str) else None),
                "licence": licence if isinstance(licence, str) else None,
            }, name
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not there, or not of the hub
    return {}, ""


def _normalisation(mean: tuple[float, ...] | None, source: str, layout: str) -> tuple[str, str]:
    """How images are normalised, and how that is known: from what was told, or by habit."""
    for how, first in (("half", 0.5), ("imagenet", 0.485)):
        if mean and abs(mean[0] - first) < 1e-3:
            return how, source
    if mean:
        return "imagenet", f"the nearest to the mean that {source} tells"
    return ("half" if layout == "Google npz" else "imagenet"), "the habit for such files; the file does not tell"


PIL_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def _magic(path: Path) -> bytes:
    if not path.is_file():
        what = "is a folder, expected a file such as best.pt" if path.is_dir() else "no such file"
        raise CheckpointError(f"{path}: {what}", "name a checkpoint or weight file")
    with path.open("rb") as stream:
        return stream.read(32)


def _read_npz(path: Path) -> State:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: torch.from_numpy(np.asarray(archive[name], dtype=np.float32)) for name in archive.files}
    except Exception as error:  # zipfile, zlib and numpy raise many kinds for damaged files
        raise CheckpointError(f"{path}: not a readable .npz file ({_first_line(error)})", "copy it again") from None


def _read_safetensors(path: Path) -> State:
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise UsageError(f"{path}: .safetensors files need one more package", "pip install 'vitmed[weights]'") from None
    try:
        return load_file(path)
    except Exception as error:  # its own error class is not part of its interface
        reason = _first_line(error)
        raise CheckpointError(f"{path}: not a readable .safetensors file ({reason})", "copy it again") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


INNER = ("weights", "state_dict_ema", "model_ema", "model", "state_dict", "teacher", "student")  # the better one first
PREFIXES = ("module.", "_orig_mod.", "model.", "teacher.", "encoder_q.")
BACKBONE = "backbone."


def _unwrap(found: Any, path: Path) -> tuple[State, tuple[str, ...]]:
    """The state dict inside what a training script saved, without its prefixes; and what lay beside the backbone."""
    while isinstance(found, dict) and (inner := next((k for k in INNER if isinstance(found.get(k), dict)), None)):
        found = found[inner]
    state = {str(k): v for k, v in found.items() if isinstance(v, Tensor)} if isinstance(found, dict) else {}
    if not state:
        raise CheckpointError(f"{path}: holds no state dict", "give a file of named tensors")
    while prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in state)), None):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    if not any(name.startswith(BACKBONE) for name in state):
        return state, ()
    inside = {name.removeprefix(BACKBONE): value for name, value in state.items() if name.startswith(BACKBONE)}
    return inside, tuple(name for name in state if not name.startswith(BACKBONE))


def _refuse_others(state: State, path: Path) -> None:
    """Raise, with its name, where the file is of another kind of network."""
    for pattern, what in OTHERS:
        name = next((name for name in state if re.fullmatch(pattern, name)), None)
        if name is not None:
            raise CheckpointError(
                f"{path}: not a plain ViT: {name} belongs to {what}", "use the weights of a plain ViT"
            )
    integers = next((n for n, v in state.items() if v.is_quantized or v.dtype in (torch.int8, torch.uint8)), None)
    if integers is not None:
        raise CheckpointError(f"{path}: {integers} is quantised", "use the weights in fp32, fp16 or bf16")
    kernels = [name for name, value in state.items() if value.ndim == 4 and value.shape[-1] > 1]
    if len(kernels) > 8:
        raise CheckpointError(
            f"{path}: not a plain ViT: {len(kernels)} convolutions, such as {kernels[0]}: a CNN", "use weights of a ViT"
        )


def _refuse_incomplete(state: State, unused: Iterable[str], path: Path) -> None:
    strange = next((name for name in unused if name.startswith("blocks.")), None)
    if strange is not None:
        raise CheckpointError(f"{path}: not a plain ViT: its blocks hold {strange}", "use the weights of a plain ViT")
    for name, what in (
        ("cls_token", "no class token (SigLIP and other gap models)"),
        ("pos_embed", "no learned positions (DINOv3 and other rotary models)"),
        ("patch_embed.proj.weight", "no patch embedding by one convolution"),
        ("blocks.0.mlp.fc1.weight", "no blocks"),
    ):
        if name not in state:
            raise CheckpointError(f"{path}: not a plain ViT: it has {what}", "use the weights of a plain ViT")
    if state["blocks.0.mlp.fc1.weight"].shape[0] != state["blocks.0.mlp.fc2.weight"].shape[1]:
        raise CheckpointError(f"{path}: not a plain ViT: a SwiGLU MLP", "use the weights of a plain ViT")


def _join_positions(state: State, path: Path) -> None:
    """Make `pos_embed` (1, 1 + L, D): places of registers go into these, a class token without one gets zeros."""
    places, registers = state["pos_embed"], state["reg_token"].shape[1] if "reg_token" in state else 0
    D = places.shape[-1]
    for before in dict.fromkeys((1, 0, 1 + registers)):  # DINOv2; timm's no_embed_class; timm's registers with places
        if math.isqrt(places.shape[1] - before) ** 2 == places.shape[1] - before:
            break
    else:
        raise CheckpointError(
            f"{path}: {places.shape[1]} positions are no square grid of patches", "use weights for square images"
        )
    if before == 0:
        state["pos_embed"] = torch.cat([places.new_zeros(1, 1, D), places], dim=1)
    elif before > 1:
        state["reg_token"] = state["reg_token"] + places[:, 1:before]
        state["pos_embed"] = torch.cat([places[:, :1], places[:, before:]], dim=1)


HEADS = {1152: 16, 1280: 16, 1408: 16}  # published widths whose heads are not 64 wide


def _describe(state: State, layout: str) -> dict[str, Any]:
    """The fields of `ModelConfig` that the shapes tell."""
    width = state["cls_token"].shape[-1]
    depth = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks."))
    patch = state["patch_embed.proj.weight"].shape
    named = next((name for name, size in SIZES.items() if size[:2] == (width, depth)), None)
    layer_scale = "blocks.0.ls1.gamma" in state
    return {
        **({"name": named} if named else {}),
        "image_size": math.isqrt(state["pos_embed"].shape[1] - 1) * patch[-1],
        "patch_size": patch[-1],
        "channels": patch[1],
        "width": width,
        "depth": depth,
        "heads": HEADS.get(width, width // 64 if width % 64 == 0 else None),
        "mlp_ratio": state["blocks.0.mlp.fc1.weight"].shape[0] / width,
        "stem": "patch",
        "positions": "learned",
        "pool": "mean" if "fc_norm.weight" in state else "cls",
        "registers": state["reg_token"].shape[1] if "reg_token" in state else 0,
        "layer_scale": layer_scale,
        "norm_eps": 1e-12 if layout == "Hugging Face" and not layer_scale else 1e-6,
    }


def _size_for(image_size: int, patch: int) -> int:
    """The weights' own image size up to 384 px, else 224 (DINOv2 trained its last steps at 518); whole patches."""
    return max(1, round((image_size if image_size <= 384 else 224) / patch)) * patch
