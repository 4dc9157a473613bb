"""`--weights auto`, the default: the weights on this machine, else a download, else none, with the reason.

Only weights whose licence asks for nothing and forbids nothing, and whose sha256 is known, are downloaded unasked.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from vitmed.core.config import ModelConfig
from vitmed.core.downloads import digest_of, is_offline
from vitmed.core.errors import CheckpointError, UsageError, VitmedError
from vitmed.core.messages import say, warn
from vitmed.models.sizes import SIZES
from vitmed.models.weights import catalogue
from vitmed.models.weights.pretrained import ARCHITECTURE, Weights, config_for_weights, read_weights

# The catalogue's choice by size, best first: AugReg's are the ones that were measured on the development sets.
TINY = ("timm_vit_tiny_augreg", "vit_tiny_augreg_in21k_ft_in1k", "deit_tiny_patch16_224")
SMALL = ("timm_vit_small_augreg", "vit_small_augreg_in21k_ft_in1k", "deit_small_patch16_224")
MADE_OF = {  # names in the hub's own cache
    "timm_vit_tiny_augreg": "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "timm_vit_small_augreg": "vit_small_patch16_224.augreg_in21k_ft_in1k",
}
GAIN = (
    "In two minutes of one core AugReg weights gave AUROC 0.998 on blood cells and 0.806 on knees, random ones 0.993 "
    "and 0.780"
)


class Choice(NamedTuple):
    """What `--weights` would have named, the weights, and why; without weights, why not."""

    value: str | None
    weights: Weights | None
    reason: str


def choose_weights(model: ModelConfig, small: bool) -> Choice | None:
    """Choose weights for a network of which you may have set parts, ViT-Small before ViT-Tiny if `small`; None where no
    weights have these parts. Raises VitmedError: VITMED_WEIGHTS names nothing that can be used, or a file in the cache
    is damaged."""
    if (named := os.environ.get("VITMED_WEIGHTS")) and (choice := _named(Path(named).expanduser(), model, small)):
        return choice
    names = [*SMALL, *TINY] if small else [*TINY, *SMALL]
    if not (names := [name for name in names if fits(model, outline(catalogue.entry_of(name)))]):
        return None
    for name in filter(_readable, names):
        for value, path, where in _places(name):
            if path.is_file():
                path = catalogue.fetch(name) if value == name else path
                return Choice(value, read_weights(path, catalogue.entry_of(name)), f"auto: {name} lies in {where}")
    if is_offline():
        return Choice(None, None, "no weights are on this machine, and it is offline")
    names = [name for name in filter(_readable, names) if unasked(catalogue.entry_of(name))]
    try:
        path = catalogue.fetch(names[0], unasked=True)
        return Choice(names[0], read_weights(path, catalogue.entry_of(names[0])), f"auto: {names[0]} was downloaded")
    except (CheckpointError, UsageError) as error:
        return Choice(None, None, f"{names[0]} could not be fetched ({error.problem})")


def warning_of(reason: str) -> str:
    """Say that a run has no weights, why, which command gets some, and what they gain; for the head of the report."""
    name = next(filter(_readable, TINY))
    offline = ", where there is a network, and name the file in VITMED_WEIGHTS" if is_offline() else ""
    fetch = f"vitmed weights fetch {name}{offline}, then train again"
    if reason.startswith("--time"):
        fetch = "give more --time"
    return f"training starts from random weights: {reason}. {GAIN}: {fetch}"


def unasked(entry: catalogue.Entry) -> bool:
    """Whether weights may be downloaded without being named: free for every use, open to all, with a known sha256."""
    tests = catalogue.forbids_commerce, catalogue.terms_of, catalogue.stops_sharing
    return not (any(test(entry.licence) for test in tests) or entry.gated) and entry.sha256 is not None


def outline(entry: catalogue.Entry) -> Weights:
    """What is known of `TINY` and `SMALL` before their tensors are here: the network and the normalisation."""
    name = "vit_tiny" if entry.model.startswith("ViT-Ti") else "vit_small"
    size = SIZES[name]
    network = ModelConfig(name=name, width=size.width, depth=size.depth, heads=size.heads, stem="patch", pool="cls")
    plain = network.model_dump(include=ARCHITECTURE)
    how = catalogue.normalisation(entry.mean, entry.std, entry.layout)
    return Weights(Path(entry.file), entry.layout, {}, plain, entry.kind, how, (), entry.mean, entry.std, entry=entry)


def fits(model: ModelConfig, weights: Weights) -> bool:
    """Whether the network of the weights has everything that you set by hand."""
    try:
        config_for_weights(model, weights)
    except UsageError:
        return False
    return True


def _readable(name: str) -> bool:
    return not catalogue.entry_of(name).file.endswith(".safetensors") or find_spec("safetensors") is not None


def _places(name: str) -> Iterator[tuple[str, Path, str]]:
    """Where the file of an entry may lie: what `--weights` would name, the path, and the place in words."""
    yield name, catalogue.weight_path(name), "the cache"
    if name in MADE_OF:
        home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface").expanduser()
        hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
        for path in sorted(hub.glob(f"models--timm--{MADE_OF[name]}/snapshots/*/model.safetensors")):
            yield str(path), path, "the cache of the Hugging Face hub"
    home = Path(os.environ.get("TORCH_HOME") or Path.home() / ".cache" / "torch").expanduser()
    entry = catalogue.entry_of(name)
    if entry.sha256 and entry.sha256 in entry.file:  # a name that no other file has
        path = home / "hub" / "checkpoints" / entry.file
        yield str(path), path, "the cache of PyTorch's hub"


def _named(place: Path, model: ModelConfig, small: bool) -> Choice | None:
    """The choice among the files of VITMED_WEIGHTS; None where no file has the network that you set."""
    best = {name: rank for rank, name in enumerate(("augreg", "dinov2", "deit"))}
    size = 88e6 if small else 23e6  # bytes of ViT-Small and ViT-Tiny
    ordered = list[tuple[float, int, str, Path]]()
    for file in catalogue.weight_files(place):
        near, far = sorted((size, file.stat().st_size + 1))
        rank = min((rank for word, rank in best.items() if word in file.name), default=9)
        ordered.append((round(far / near), rank, file.name, file))
    known, damaged, other = catalogue.public_weights().values(), list[VitmedError](), False
    for *_, file in sorted(ordered):
        named = (entry for entry in known if entry.sha256 and entry.file == file.name)
        try:  # a name alone says nothing of the tensors, nor of their licence
            weights = read_weights(file, next((e for e in named if digest_of(file).startswith(f"{e.sha256}")), None))
        except (CheckpointError, UsageError) as error:
            damaged.append(error)
            continue
        if catalogue.forbids_commerce(weights.licence) or catalogue.stops_sharing(weights.licence):
            unfit = f"its licence, {weights.licence}, forbids a use"
            warn(f"{file}: {unfit}, so it is not chosen unasked: --weights {file}")
        elif fits(model, weights):
            for left_out in damaged:
                warn(f"VITMED_WEIGHTS: left out: {left_out.line}")
            if weights.licence is None:
                say(f"{file}: its licence is not known; a README.md with `license:` in its head beside it states it")
            return Choice(str(file), weights, f"auto: VITMED_WEIGHTS has {file.name}")
        other = True
    if damaged and not other:
        raise damaged[0]
    return None
