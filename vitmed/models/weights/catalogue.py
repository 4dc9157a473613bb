"""Public weights by name, and what publishers state of theirs: address, hash, licence and its terms, preprocessing, and
the parts of a network that no tensor shows. Files of a hub state these in the folder of the weights.

Addresses, licences, mean, std and interpolation come from timm 1.0.31, torchvision 0.29.2 and transformers 5.23.0, or
from the source beside the entry: the publisher's code where there is any, TRIDENT of the Mahmood Lab, LazySlide or a
copy of the file. Where a publisher's code resizes with torchvision's default, that is bilinear. Sizes that no publisher
states are computed from the parameters, to within a few percent.
"""

import difflib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from vitmed.core.downloads import Source, fetch_file, hub_address
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.files import json_of
from vitmed.core.run_folder import RunFolder, cache_folder
from vitmed.imaging.preprocessing import CONSTANTS

SUPERVISED, MASKED, DISTILLED, PAIRED = "supervised", "masked image", "self-distilled", "image and text"


class Entry(NamedTuple):
    """A public weight file.

    Its `kind` is "supervised", "masked image" (MAE), "self-distilled" (DINO, DINOv2, DINOv3, iBOT) or "image and text"
    (CLIP, SigLIP, CoCa; the text encoder in the file is not used).
    """

    url: str  # of the file; https
    size: int | None  # bytes, to within 10 %; None if it is not known
    model: str  # width, depth and patch in the usual short form, such as ViT-B/16
    kind: str
    note: str  # what it was trained on, and the source of the hash
    sha256: str | None = None  # whole or its first digits; None if none is published: vitmed then checks only the size
    licence: str = "Apache-2.0"  # SPDX identifier, or LicenseRef-... if there is none
    mean: tuple[float, ...] = CONSTANTS["imagenet"][0]  # per channel (R, G, B), of values in 0..1
    std: tuple[float, ...] = CONSTANTS["imagenet"][1]
    interpolation: str = "bicubic"  # how images were resized
    image_size: int = 224  # side of the square image, px
    layout: str = "timm"  # a key of `layouts.LAYOUTS`
    readout: str = "cls"  # what the publisher reads, a value of `ModelConfig.pool`
    hub: str = ""  # repository on the Hugging Face hub that holds the file; "" for a plain address
    gated: bool = False  # the hub asks you to accept the licence and send a token
    commercial: bool | None = None  # whether the licence allows commercial use; None if that is unclear: see the note
    seen: tuple[str, ...] = ()  # data sets that it was made with, as far as published, by the names of their cards

    @property
    def file(self) -> str:
        """The publisher's file name."""
        return self.url.rpartition("/")[2]


def has_seen(seen: Sequence[str], card: str | None) -> bool:
    """Whether the data set of a card, under this name or as a copy, is among what weights were made with."""
    copies = documents()[1]["copies"]  # name of a copy, perhaps its beginning -> the data set
    names = [next((copies[copy] for copy in copies if n.startswith(copy)), n) for n in (card or "", *seen)]
    return card is not None and names[0] in names[1:]


def means_file(text: str) -> bool:
    """Whether `text` is a file, or can only mean one: unlike a name it has a folder or a suffix, or it exists."""
    path = Path(text)
    try:
        return path.is_file() if text in public_weights() else len(path.parts) > 1 or path.suffix != "" or path.exists()
    except OSError:  # longer than a file name may be
        return False


def entry_of(name: str) -> Entry:
    """The entry of that name. Raises UsageError, which lists similar names."""
    if name in public_weights():
        return public_weights()[name]
    near = difflib.get_close_matches(name.lower(), public_weights(), n=4, cutoff=0.5)
    fix = (f"did you mean {' or '.join(near)}? " if near else "") + "All names: vitmed weights list"
    raise UsageError(f"no public weights are named '{name}', and there is no such file", fix)


def weight_path(name: str, folder: str | Path | None = None) -> Path:
    """The path of an entry's file, present or not, in `folder` (default the cache). UsageError: no such entry."""
    return Path(folder or cache_folder()).absolute() / "weights" / name / entry_of(name).file


def fetch(name: str, folder: str | Path | None = None, unasked: bool = False) -> Path:
    """The checked file of an entry of the catalogue, downloaded if necessary.

    Args:
        folder: default the cache.
        unasked: say how to say no, and do not wait for a silent host.

    Raises:
        CheckpointError: it cannot be fetched, or its size or hash is wrong.
        UsageError: no such entry, no disk space, no permission to write, or a package is missing.
    """
    entry = entry_of(name)
    checksum = f"sha256:{entry.sha256}" if entry.sha256 else None
    again = f"vitmed weights fetch {name}" + (f" --to {folder}" if folder else "")
    url = entry.url.replace("https://huggingface.co", hub_address())
    about = entry.licence, again, CheckpointError, entry.hub, entry.gated
    source = Source(name, url, entry.size, checksum, *about)
    return fetch_file(source, weight_path(name, folder), forbids_commerce(entry.licence), unasked)


def weight_files(place: Path) -> list[Path]:
    """The weight file, or those in a folder, that VITMED_WEIGHTS names; of a run the file that `--weights RUN` takes.
    Raises UsageError where there is none."""
    if (place := RunFolder.weights_in(place) if RunFolder(place).name else place).is_file():
        return [place]
    files = sorted(file for file in place.glob("*") if file.suffix in SUFFIXES and file.is_file())
    if not files:
        what = "holds no weight file" if place.is_dir() else "no such file or folder"
        raise UsageError(f"VITMED_WEIGHTS: {place}: {what}", f"name a file ({', '.join(SUFFIXES)}) or a folder of them")
    return files


def forbids_commerce(licence: str | None) -> bool:
    """Whether a licence forbids commercial use, by its name."""
    words = (licence or "").lower()
    return "nc" in re.split(r"[\s_-]", words) or "non-commercial" in words or "noncommercial" in words


def terms_of(licence: str | None) -> str | None:
    """The terms, in a sentence without a full stop; None for a licence of which nothing must travel with the model."""
    terms = documents()[1]["terms"]
    return next((text for pattern, text in terms.items() if re.fullmatch(pattern, (licence or "").lower())), None)


def stops_sharing(licence: str | None) -> str | None:
    """Why a model that was made from weights of a licence is not shared unasked, as a clause; None if nothing stops it.

    ND, "no derivatives", forbids sharing what was adapted (Creative Commons BY-NC-ND 4.0, section 2 a 1 B). A licence
    of the publisher's own may forbid it unless `terms_of` says how to share.
    """
    if licence is None or terms_of(licence) is not None:
        return None
    if " AND " in licence:  # of an ensemble
        return next(filter(None, map(stops_sharing, licence.split(" AND "))), None)
    if "nd" in licence.lower().split("-"):
        return "forbids sharing a model made from them"
    return "may forbid sharing a model made from them" if licence.lower().startswith("licenseref-") else None


def about_weights(path: Path) -> dict[str, Any]:
    """Mean, std, interpolation and licence, of those that are known."""
    numbers = documents()[1]["resampling"]
    for name, section, mean, std, resized in (
        ("preprocessor_config.json", None, "image_mean", "image_std", "resample"),  # transformers
        ("config.json", "pretrained_cfg", "mean", "std", "interpolation"),  # timm
        ("open_clip_config.json", "preprocess_cfg", "mean", "std", "interpolation"),  # OpenCLIP
    ):
        try:
            stated = json_of(path.with_name(name).read_text(encoding="utf-8"))
            stated = stated[section] if section else stated
            how, licence = stated.get(resized), stated.get("license")
            return {
                "mean": tuple(float(value) for value in stated[mean]),
                "std": tuple(float(value) for value in stated[std]) if stated.get(std) else None,
                "interpolation": how if how in numbers.values() else numbers.get(how),
                "licence": licence if isinstance(licence, str) else _licence_of_card(path.with_name("README.md")),
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # absent, or not of the hub
    if re.fullmatch(r"dinov3_.+_pretrain_.+\.pth", path.name):
        return {"licence": "LicenseRef-DINOv3"}
    return {"licence": _licence_of_card(path.with_name("README.md"))}


def about_network(path: Path, swiglu: bool) -> dict[str, Any]:
    """Fields of `ModelConfig` that no tensor shows: heads, activation and epsilon, of those that are known, and
    `rope_theta`, the longest rotary period. Beside SwiGLU, which the tensors show, the stated activation says nothing.
    CheckpointError: an activation that vitmed lacks."""

    def act_of(name: str) -> str | None:
        return next((act for part, act in documents()[1]["timm_activations"].items() if re.search(part, name)), None)

    try:
        stated = json_of(path.with_name("config.json").read_text(encoding="utf-8"))
        stated = stated.get("vision_config", stated)
        act = stated.get("hidden_act", act_of(str(stated.get("architecture"))))
        numbers = {"heads": stated.get("num_attention_heads"), "norm_eps": stated.get("layer_norm_eps")}
        numbers["rope_theta"] = stated.get("rope_theta")
    except (OSError, ValueError, AttributeError):
        try:
            stated = json_of(path.with_name("open_clip_config.json").read_text(encoding="utf-8"))
            return {"mlp": "quick_gelu"} if stated["model_cfg"].get("quick_gelu") is True else {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            act, numbers = act_of(path.name), {}
    fields: dict[str, Any] = {
        k: number for k, number in numbers.items() if isinstance(number, int | float) and number > 0
    }
    if act is not None and not swiglu:
        known = documents()[1]["activations"]
        if act not in known:
            problem = f"{path}: config.json states the activation {act}, expected one of {', '.join(known)}"
            raise CheckpointError(problem, "use the weights of a plain ViT; see docs/weights.md")
        fields["mlp"] = known[act]
    return fields


def normalisation(mean: Sequence[float] | None, std: Sequence[float] | None, layout: str) -> str:
    """How images are normalised: what the publisher states, else the custom for the layout."""
    if mean:
        for how, (usual_mean, usual_std) in CONSTANTS.items():
            if np.allclose(mean, usual_mean, atol=1e-3) and (not std or np.allclose(std, usual_std, atol=1e-3)):
                return how
        if std:
            return "given"
    return "half" if layout == "Google npz" else "imagenet"


def _licence_of_card(card: Path) -> str | None:
    try:
        header = yaml.safe_load(card.read_text(encoding="utf-8").split("---")[1])
        licence = header.get("license_name") or header.get("license")
    except (OSError, ValueError, IndexError, AttributeError, yaml.YAMLError):
        return None
    return licence if isinstance(licence, str) else None


SUFFIXES = (".pt", ".pth", ".bin", ".safetensors", ".npz")


@cache
def documents() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The two documents of catalogue.yaml, read once: families of weights; norms, copies, terms and names."""
    families, about = yaml.safe_load_all(Path(__file__).with_name("catalogue.yaml").read_text(encoding="utf-8"))
    return families, about


@cache
def public_weights() -> dict[str, Entry]:
    """Name -> public weights, as catalogue.yaml states them; the note ends in how its hash is known."""
    families, about = documents()
    entries = dict[str, Entry]()
    for family in families:
        shared = {"folder": "", "file": "pytorch_model.bin", "hub": "", "norm": "imagenet"} | family.get("all", {})
        for name, own in family.items():
            if name == "all":
                continue
            fields = shared | own
            folder, file, hub, norm = (fields.pop(part) for part in ("folder", "file", "hub", "norm"))
            sha256: str | None = fields.get("sha256")
            if hub:
                hash_note = "sha256: from the hub when fetching"
            elif sha256 is None:
                hash_note = "no sha256 is published"
            elif len(sha256) < 64:
                hash_note = "sha256: its first digits, in the file's name"
            else:
                hash_note = "sha256: not the publisher's, but the same in several public projects"
            fields["note"] += f"; {hash_note}"
            fields["url"] = f"https://huggingface.co/{hub}/resolve/main/{file}" if hub else folder + file
            fields["mean"], fields["std"] = map(tuple, about["norms"][norm])
            fields["seen"] = tuple(fields.get("seen", ()))
            entry = Entry(hub=hub, **fields)
            free = fields.get("commercial", not forbids_commerce(entry.licence))
            entries[name] = entry._replace(commercial=free)
    return entries
