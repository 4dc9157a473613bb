"""Start from pretrained weights: recognise their layout, derive the network, and account for every tensor.

A file is read safely (`safe_load`), unwrapped (`_unwrap`), renamed to timm's names (`convert`), and refused with a
reason where it is no plain ViT (`refuse_...`); the network is derived from the shapes (`describe`).
`config_for_weights` then completes a configuration, and `load_pretrained` copies the tensors; it resamples positions,
patch kernels and channels.
"""

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitmed.core.config import ABOUT_WEIGHTS, ModelConfig
from vitmed.core.downloads import digest_of, unconnected
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.messages import say, warn
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import first_line
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.layers import rotary_periods
from vitmed.models.sizes import SIZES
from vitmed.models.vit import ViT
from vitmed.models.weights import catalogue, files
from vitmed.models.weights.layouts import HEAD, LAYOUTS, convert, describe, join_positions

Constants = tuple[Sequence[float], Sequence[float]]  # mean and standard deviation of each channel


@dataclass(frozen=True)
class LoadReport:
    """Which tensors came from a weight file, by parameter name."""

    file: str  # its name, without folders
    layout: str  # a key of `LAYOUTS`, or "vitmed"
    loaded: tuple[str, ...]  # copied unchanged
    resized: tuple[str, ...]  # copied after resampling (positions, patch kernels) or folding (input channels)
    fresh: tuple[str, ...]  # in the network, not in the file; only the head may be
    unused: tuple[str, ...]  # in the file, not in the network

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        parts += [f"{', '.join(self.resized)} resized"] if self.resized else []
        parts += [f"fresh: {', '.join(self.fresh) or 'nothing'}", f"unused: {len(self.unused)}"]
        return f"weights {self.file} ({self.layout}): {', '.join(parts)}"


@dataclass(frozen=True)
class Weights:
    """A weight file in timm's names; None is unknown."""

    path: Path
    layout: str  # a key of `LAYOUTS`, or "vitmed"
    state: files.State  # name -> tensor, float32; `pos_embed` is (1, L, D), or (1, 1 + L, D) with the class token first
    model: dict[str, Any]  # the fields of `ModelConfig` that the tensors decide
    kind: str  # how they were made: "vitmed", "masked image", "self-distilled" or "supervised"
    normalize: str  # the normalisation that the weights expect, a value of `DataConfig.normalize`
    unused: tuple[str, ...]  # names in the file that no plain ViT has
    mean: tuple[float, ...] | None = None  # per channel, for values in 0..1, as the publisher states them
    std: tuple[float, ...] | None = None
    interpolation: str | None = None  # how images were resized: "bilinear", "bicubic", ...
    resize: str | None = None  # how they became square, a value of `DataConfig.resize`; only a run states it
    licence: str | None = None  # SPDX identifier, or the publisher's name for it; `terms_of` knows what it demands
    seen: tuple[str, ...] = ()  # what they were made with: names of public sets, and the sha256 of images
    learned: tuple[str, ...] = ()  # the images that the run trained on, with labels
    assumed: bool = False  # whether nothing states the normalisation: no file beside it, nor its name, nor its layout
    entry: catalogue.Entry | None = None  # of the file


def open_weights(value: str, offline: bool = False, sha256: str | None = None) -> Weights:
    """The weights that `--weights` names: a file, a run folder, an entry of the catalogue, downloaded if necessary, or
    a file of the folder in VITMED_WEIGHTS, without its suffix.

    Args:
        sha256: of the file, if a configuration states it.

    Raises:
        CheckpointError: no such file, or it cannot be used or fetched, or has another sha256.
        UsageError: neither a file nor a name, or one that fits two files; lists similar names.
    """
    if not value or "://" in value:
        fix = "download it first, or: vitmed weights list"
        raise UsageError(f"--weights {value!r}: neither a file nor a name", fix)
    named, place = list[Path](), os.environ.get("VITMED_WEIGHTS")
    if place and not catalogue.means_file(value) and value not in catalogue.public_weights():
        named = [file for file in catalogue.weight_files(Path(place).expanduser()) if file.stem == value]
    if len(named) > 1:
        several = " and ".join(file.name for file in named)
        raise UsageError(f"--weights {value}: VITMED_WEIGHTS has {several}", f"name one with its folder: {named[0]}")
    entry = None
    if named or catalogue.means_file(value):
        path = named[0] if named else RunFolder.weights_in(value)
    else:
        with unconnected(offline):
            entry, path = catalogue.entry_of(value), catalogue.fetch(value)
    if sha256 is not None and path.is_file() and (digest := digest_of(path)) != sha256:
        fix = "use the file that the run had, or name the new one on the command line: --weights FILE"
        raise CheckpointError(f"{path}: its sha256 is {digest}, and the configuration states {sha256}", fix)
    if entry is not None:
        say(f"weights {value}: {entry.model}, {entry.kind}, licence {entry.licence}; {path}")
        if (terms := catalogue.terms_of(entry.licence)) is not None:
            say(terms)
    return read_weights(path, entry)


def read_weights(file: str | Path, entry: catalogue.Entry | None = None) -> Weights:
    """Read a weight file of any layout in `LAYOUTS`: `.pt`, `.pth`, `.bin`, `.safetensors` or Google's `.npz`.

    Without an entry of the catalogue, vitmed reads the files of a model hub in the same folder. Raises CheckpointError:
    missing, damaged, with code in it, or not a plain ViT (names what it is)."""
    path = Path(file)
    if files.magic(path).startswith(b"version https://git-lfs"):
        problem = f"{path}: a Git LFS pointer of {path.stat().st_size} bytes, not the weights"
        raise CheckpointError(problem, "run: git lfs pull")
    read = {".npz": files.read_npz, ".safetensors": files.read_safetensors}.get(path.suffix)
    content = read(path) if read is not None else files.safe_load(path, foreign=True)
    if isinstance(content, dict) and is_text(content.get("format"), FORMAT, ENCODER):
        files.check_digests(path, content)
        return _vitmed_weights(content, path)
    state, left_out = _unwrap(content, path)
    try:
        layout, converted = convert(state) or ("", state)
    except (KeyError, ValueError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"{path}: its tensors do not fit each other ({first_line(error)})", files.AGAIN) from None
    known = re.compile("|".join(files.tensor_names()["plain"]))
    unused = (*left_out, *(name for name in converted if not (layout and known.fullmatch(name))))
    files.refuse_others(unused, state, path)
    plain = {name: value.float() for name, value in converted.items() if name not in unused}
    if not layout:
        names = ", ".join(sorted(state)[:5])
        problem = f"{path}: not a ViT that vitmed recognises; its tensors are named {names}, ..."
        raise CheckpointError(problem, f"use weights with the names of {', '.join(LAYOUTS)}")
    files.refuse_not_finite(plain, path)
    files.refuse_incomplete(plain, unused, path)
    join_positions(plain, path)
    model = describe(plain, layout)
    clip = False
    if entry is None:
        about, masked = catalogue.about_weights(path), any("decoder" in name for name in unused)  # an autoencoder's
        kind = catalogue.SUPERVISED if "head.weight" in plain else catalogue.DISTILLED
        kind = catalogue.MASKED if masked else kind
        unstated = not about.get("mean")
        clip = unstated and "norm_pre.weight" in plain  # a few of LAION's have 0.5
        if clip or (unstated and "attn_pool.latent" in plain and "cls_token" not in plain):  # SigLIP
            about["mean"], about["std"] = map(tuple, catalogue.documents()[1]["norms"]["clip" if clip else "half"])
        shown = catalogue.about_network(path, swiglu="swiglu" in model["mlp"])
        theta, heads = shown.pop("rope_theta", None), (model | shown)["heads"]
        if theta and heads and model["positions"] == "rotary":  # transformers' DINOv3 keeps no periods
            plain.setdefault("rope.periods", rotary_periods(model["width"] // heads, None, theta))
    else:
        given, kind, shown = ("mean", "std", "interpolation", "licence", "seen"), entry.kind, {"pool": entry.readout}
        about = {name: getattr(entry, name) for name in given}
    normalize = catalogue.normalisation(about.get("mean"), about.get("std"), layout)
    own = [] if about.get("mean") else [path.name.lower(), path.absolute().parent.name.lower()]
    named = next((how for name in own for word, how in NAMED.items() if word in name), None)
    usual = kind == catalogue.MASKED or layout in ("torchvision", "Google npz")
    usual = usual or any(re.search(r"mask_token|storage_token|rope\.periods", name) for name in state)  # DINOv2 and 3
    about |= {"assumed": not (usual or named or (about.get("mean") and not clip)), "entry": entry}
    return Weights(path, layout, plain, model | shown, kind, named or normalize, unused, **about)


NAMED = {
    "augreg": "half",
    "orig_in21k": "half",
    "deit": "imagenet",
    "dino": "imagenet",
}  # in the name of a file, else its folder -> how its images were normalised


def config_for_weights(config: ModelConfig, weights: Weights) -> ModelConfig:
    """Complete a configuration from the weights. Values that you set are kept, and must agree with the weights; image
    size, patch size and channels may differ, as `load_pretrained` resamples. Raises UsageError for a contradiction, or
    where the number of heads is unknown."""
    file, decided = weights.path.name, dict(weights.model)
    given = {name for name in config.model_fields_set if getattr(config, name) not in (None, "auto")}
    if "name" in given and config.name in SIZES and not given & {"width", "depth"}:
        size = SIZES[config.name]
        if (size.width, size.depth) != (decided["width"], decided["depth"]):
            asked = f"--model {config.name} has width {size.width} and depth {size.depth}"
            has = f"{file} has width {decided['width']} and depth {decided['depth']}"
            raise UsageError(f"{asked}; {has}", "omit --model: the weights decide")
    free = {"name", "image_size", "patch_size", "channels", "pool", "pool_width"}
    if weights.layout != "vitmed":  # no tensor shows these, nor which GELU it is
        free |= {"norm_eps"} | ({"mlp"} if "swiglu" not in f"{config.mlp} {decided['mlp']}" else set())
        stated = "rope.periods" in weights.state or "heads" in catalogue.about_network(weights.path, swiglu=True)
        if decided["heads"] is None or not (stated or weights.entry):
            free.add("heads")  # `load_pretrained` warns of an unusual number
            if decided["heads"] == 1 and "heads" not in given:
                warn(f"{file}: no tensor shows the number of attention heads; 1 is assumed (--set model.heads=N)")
    for name in sorted((given & decided.keys()) - free):
        if getattr(config, name) != decided[name]:
            problem = f"model.{name} is {getattr(config, name)}, but {file} has {decided[name]}"
            raise UsageError(problem, f"omit model.{name}")
    patch = config.patch_size if "patch_size" in given else decided["patch_size"]
    if "image_size" not in given and weights.layout != "vitmed":
        trained_on = decided["image_size"] if decided["image_size"] <= 384 else 224  # DINOv2 ended training at 518
        decided["image_size"] = max(1, round(trained_on / patch)) * patch
    if "heads" not in given and decided["heads"] is None:
        unknown = f"the number of attention heads is not in the file, and width {decided['width']} has no usual one"
        raise UsageError(f"{file}: {unknown}", "--set model.heads=N")
    return config.model_copy(update={name: value for name, value in decided.items() if name not in given})


def load_pretrained(model: ViT, weights: Weights, preprocessing: Preprocessing | None = None) -> LoadReport:
    """Copy the weights into the network, with positions, patch kernels and input channels resampled to fit.

    The head is copied if it has as many classes and the same pool, else it stays fresh. On an error nothing is copied.

    Args:
        preprocessing: normalisation of the run, by which a grey image gives the features of its copy in three
            channels; None for the normalisation of the weights.

    Raises:
        CheckpointError: a tensor other than the head would stay fresh; names the first tensors that do not fit.
    """
    own, usual = model.state_dict(), weights.model.get("heads")
    heads = model.get_submodule("blocks.0.attn").heads
    if usual not in (None, heads):
        problem = f"{weights.path.name}: its network has {heads} attention heads here, and usually {usual}"
        warn(f"{problem}; no tensor shows the number, and a wrong one makes the weights useless; omit model.heads")
    state, resized = dict(weights.state), []
    kernel = "patch_embed.stem.0.weight" if "patch_embed.stem.0.weight" in own else "patch_embed.proj.weight"
    if kernel in state and state[kernel].shape != own[kernel].shape:
        if kernel == "patch_embed.proj.weight":
            state[kernel] = resample_patches(state[kernel], own[kernel].shape[-1])
        how = preprocessing or Preprocessing(0, 3, "pad", weights.normalize, weights.mean, weights.std)
        old, new = (how.constants(part[kernel].shape[1]) for part in (state, own))
        state[kernel], shift = fold_channels(state[kernel], own[kernel].shape[1], old, new)
        if kernel == "patch_embed.proj.weight":
            state["patch_embed.proj.bias"] = state["patch_embed.proj.bias"] + shift
        else:  # the first convolution of a stem has no bias to correct; the norm that follows subtracts a mean
            state["patch_embed.stem.1.running_mean"] = state["patch_embed.stem.1.running_mean"] - shift
        resized.append(kernel)
    if "pos_embed" in state and state["pos_embed"].shape != own["pos_embed"].shape:
        state["pos_embed"] = resample_positions(state["pos_embed"], own["pos_embed"].shape)
        resized.append("pos_embed")
    theirs, ours = ("norm", "fc_norm") if model.pool == "mean" else ("fc_norm", "norm")  # as in MAE, after the mean
    if f"{ours}.weight" not in state:
        state = {re.sub(rf"^{theirs}\.", f"{ours}.", name): value for name, value in state.items()}
    fits = {name: value for name, value in state.items() if name in own and value.shape == own[name].shape}
    if not fits.keys() >= set(HEAD) or weights.model.get("pool", model.pool) != model.pool:  # it reads other features
        fits = {name: value for name, value in fits.items() if name not in HEAD}
    constants = ("num_batches_tracked", "rope.periods")
    fresh = tuple(name for name in own if name not in fits and not name.endswith(constants))
    wrong = [name for name in fresh if name not in HEAD]
    if "blocks.0.norm1.weight" in wrong and "blocks.0.norm1.weight" in state:
        problem = f"{weights.path}: its network is {len(state['blocks.0.norm1.weight'])} wide, expected {model.width}"
        raise CheckpointError(problem, "omit the sizes of the model: the weights decide them")
    if wrong:
        there = {name: tuple(state[name].shape) if name in state else "lacks it" for name in wrong[:5]}
        shapes = [f"{name}: model {tuple(own[name].shape)}, file {shape}" for name, shape in there.items()]
        problem = f"{weights.path}: {len(wrong)} tensors other than the head do not fit:\n  " + "\n  ".join(shapes)
        fix = "omit the sizes of the model: the weights decide them; or use another file, if this one is incomplete"
        raise CheckpointError(problem, fix)
    model.load_state_dict({**own, **fits})
    unused = (*(name for name in state if name not in fits), *weights.unused)
    loaded = tuple(name for name in fits if name not in resized)
    return LoadReport(weights.path.name, weights.layout, loaded, tuple(resized), fresh, unused)


def resample_positions(positions: Tensor, shape: torch.Size) -> Tensor:
    """(1, 1 + L, D) -> (1, 1 + L', D): bicubic with antialiasing over the grid; the class token's row is kept.
    Without a class token (1, L, D) -> (1, L', D)."""
    old, new = math.isqrt(positions.shape[1]), math.isqrt(shape[1])
    token, patches = positions[:, : -(old * old)], positions[:, -(old * old) :]
    grid = patches.reshape(1, old, old, -1).permute(0, 3, 1, 2)  # (1, D, old, old)
    grid = F.interpolate(grid, size=(new, new), mode="bicubic", antialias=True, align_corners=False)
    return torch.cat([token, grid.permute(0, 2, 3, 1).reshape(1, new * new, -1)], dim=1)


def resample_patches(kernel: Tensor, patch: int) -> Tensor:
    """(D, C, P, P) -> (D, C, patch, patch): on an enlarged image, the new kernel gives the products that the old one
    gave on the original (pseudo-inverse of the enlargement; FlexiViT, Beyer et al. 2023, arXiv 2212.08013, 3.4)."""
    old = kernel.shape[-1]
    if old == patch:
        return kernel
    basis = torch.eye(old * old).reshape(old * old, 1, old, old)
    enlarge = F.interpolate(basis, size=(patch, patch), mode="bicubic", antialias=True, align_corners=False)
    inverse = torch.linalg.pinv(enlarge.reshape(old * old, patch * patch))  # (patch^2, P^2)
    return (kernel.flatten(2) @ inverse.T).reshape(*kernel.shape[:2], patch, patch)


def fold_channels(kernel: Tensor, channels: int, old: Constants, new: Constants) -> tuple[Tensor, Tensor]:
    """(D, C, P, P) -> (D, channels, P, P), and a correction to add to the bias, (D,).

    Three to one: a grey image gives the products of its copy in three channels. One to three: an image gives the
    products of the mean of its channels. An additional alpha channel starts at zero. `old` and `new` are the
    normalisation of the weights, and of the run.
    """
    D, C, P, _ = kernel.shape
    colours = {2: 1, 4: 3}  # with alpha -> without
    base, wanted = colours.get(C, C), colours.get(channels, channels)
    colour, shift = kernel[:, :base], kernel.new_zeros(D)
    if base != wanted:
        # For grey value g, the old input is (g - old mean) / old std, the new one (g - new mean) / new std.
        old_mean, old_std = (kernel.new_tensor(values[:base]) for values in old)
        new_mean, new_std = (kernel.new_tensor(values[:wanted]) for values in new)
        factor = new_std[:, None] / old_std[None, :] / wanted  # (wanted, base)
        shift = torch.einsum("dcpq,c->d", colour, (new_mean.mean() - old_mean) / old_std)
        colour = torch.einsum("dcpq,wc->dwpq", colour, factor)
    alpha = [kernel[:, base:] if base < C else kernel.new_zeros(D, 1, P, P)] if channels > wanted else []
    return torch.cat([colour, *alpha], dim=1), shift


FORMAT, ENCODER = "vitmed checkpoint", "vitmed encoder"  # what `train` and `pretrain` write


def is_text(value: Any, *texts: str) -> bool:
    """Whether a value from a file is one of these texts; a tensor compared with a text is an error."""
    return isinstance(value, str) and value in texts


def _vitmed_weights(checkpoint: dict[str, Any], path: Path) -> Weights:
    """The weights of a checkpoint or encoder of vitmed, which states its network and the images it was made with."""
    try:
        config, state, encoder = checkpoint["config"], checkpoint["weights"], checkpoint["format"] == ENCODER
        model = ModelConfig.model_validate({k: v for k, v in config["model"].items() if k in ARCHITECTURE})
        if not (isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values())):
            raise TypeError("weights")
        files.refuse_not_finite(state, path)
        files.refuse_shapes(state, path)
        decided = model.model_dump(include=ARCHITECTURE, exclude_none=True)
        data, network = config["data"], SIZES[model.name]._asdict() | decided
        about: dict[str, Any] = {name: tuple(data.get(name) or ()) or None for name in ("mean", "std")}
        about |= {name: data.get(name) for name in ("interpolation", "resize")}
        about["licence"] = config["model"].get("licence")
        normalize, kind = str(data["normalize"]), catalogue.MASKED if encoder else "vitmed"
        if encoder:
            about["seen"] = tuple(checkpoint["seen"])
        else:
            data = checkpoint["data"]
            learned, val = (tuple(data["splits"][part]["sha256"]) for part in ("train", "val"))
            about |= {"seen": (*data.get("seen", ()), *learned, *val), "learned": learned}
        if (entry := catalogue.public_weights().get(config["model"].get("weights"))) is not None:  # older files
            about["seen"] += entry.seen
        return Weights(path, "vitmed", state, network, kind, normalize, (), **about)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError):  # also of a tensor that is no table
        raise CheckpointError(f"{path}: a damaged vitmed checkpoint", files.AGAIN) from None


ARCHITECTURE = {*ModelConfig.model_fields} - ABOUT_WEIGHTS - {"dropout", "attention_dropout", "drop_path"}

BACKBONE = "backbone."


def _unwrap(found: Any, path: Path) -> tuple[files.State, tuple[str, ...]]:
    """The state dict in a training script's file, without prefixes, and the names of tensors outside the backbone."""
    names = files.tensor_names()
    while isinstance(found, dict) and (inner := [key for key in names["inner"] if isinstance(found.get(key), dict)]):
        found = found[inner[0]]
    state = {str(k): v for k, v in found.items() if isinstance(v, Tensor)} if isinstance(found, dict) else {}
    if not state:
        raise CheckpointError(f"{path}: holds no state dict", "use a file of named tensors; of pretraining, encoder.pt")
    if any(name.startswith("teacher.") for name in state):  # an average of the student, and better
        state = {name: value for name, value in state.items() if name.startswith("teacher.")}
    while prefix := next((p for p in names["prefixes"] if all(name.startswith(p) for name in state)), None):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    if not any(name.startswith(BACKBONE) for name in state):
        return state, ()
    inside = {name.removeprefix(BACKBONE): value for name, value in state.items() if name.startswith(BACKBONE)}
    return inside, tuple(name for name in state if not name.startswith(BACKBONE))
