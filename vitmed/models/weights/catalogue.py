"""Public weights by name, and what publishers state of theirs: address, hash, licence and its terms, preprocessing, and
the parts of a network that no tensor shows. Files of a hub state these in the folder of the weights.

Addresses, licences, mean, std and interpolation come from timm 1.0.31, torchvision 0.29.2 and transformers 5.23.0, or
from the source beside the entry: the publisher's code where there is any, TRIDENT of the Mahmood Lab, LazySlide or a
copy of the file. Where a publisher's code resizes with torchvision's default, that is bilinear. Sizes that no publisher
states are computed from the parameters, to within a few percent.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from vitmed.core.downloads import Source, fetch_file
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.files import json_of
from vitmed.core.stored_paths import cache_folder
from vitmed.imaging.preprocessing import CONSTANTS

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
OPTIMUS_MEAN, OPTIMUS_STD = (0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517)

SUPERVISED, MASKED, DISTILLED, PAIRED = "supervised", "masked image", "self-distilled", "image and text"


class Entry(NamedTuple):
    """A public weight file.

    Attributes:
        url: of the file; https.
        size: bytes, to within 10 %.
        model: width, depth and patch in the usual short form, such as ViT-B/16.
        kind: how the weights were made: "supervised", "masked image" (MAE), "self-distilled" (DINO, DINOv2, DINOv3,
            iBOT) or "image and text" (CLIP, SigLIP, CoCa; the text encoder in the file is not used).
        note: what it was trained on, and the source of the hash.
        sha256: of the file, whole or its first digits; None if none is published: vitmed then checks only the size.
        licence: SPDX identifier, or LicenseRef-... if there is none.
        mean, std: per channel (R, G, B), of values in 0..1.
        interpolation: how images were resized.
        image_size: side of the square image, px.
        layout: a key of `weight_layouts.LAYOUTS`.
        readout: what the publisher reads, a value of `ModelConfig.pool`.
        hub: repository on the Hugging Face hub that holds the file; "" for a plain address.
        gated: the hub asks you to accept the licence and send a token.
    """

    url: str
    size: int
    model: str
    kind: str
    note: str
    sha256: str | None = None
    licence: str = "Apache-2.0"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    interpolation: str = "bicubic"
    image_size: int = 224
    layout: str = "timm"
    readout: str = "cls"
    hub: str = ""
    gated: bool = False

    @property
    def file(self) -> str:
        """The publisher's file name."""
        return self.url.rpartition("/")[2]

    @property
    def non_commercial(self) -> bool:
        """Whether the licence forbids commercial use."""
        return "NC" in self.licence.split("-") or "non-commercial" in self.licence.lower()


def means_file(text: str) -> bool:
    """Whether `text` is a file, or can only mean one: unlike a name it has a folder or a suffix, or it exists."""
    path = Path(text)
    try:
        return path.is_file() if text in CATALOGUE else len(path.parts) > 1 or path.suffix != "" or path.exists()
    except OSError:  # longer than a file name may be
        return False


def entry_of(name: str) -> Entry:
    """The entry of that name. Raises UsageError, which lists similar names."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = difflib.get_close_matches(name.lower(), CATALOGUE, n=4, cutoff=0.5)
    raise UsageError(
        f"no public weights are named '{name}', and there is no such file",
        (f"did you mean {' or '.join(near)}? " if near else "") + "All names: vitmed weights list",
    )


def weight_path(name: str, folder: str | Path | None = None) -> Path:
    """The path of an entry's file, present or not, in `folder` (default the cache). UsageError: no such entry."""
    return Path(folder or cache_folder()).absolute() / "weights" / name / entry_of(name).file


def fetch(name: str, offline: bool = False, folder: str | Path | None = None) -> Path:
    """The checked file of an entry of the catalogue, downloaded if necessary.

    Args:
        offline: open no connection; see also `downloads.is_offline`.
        folder: default the cache.

    Raises:
        CheckpointError: it cannot be fetched, or its size or hash is wrong.
        UsageError: no such entry, no disk space, no permission to write, or a package is missing.
    """
    entry = entry_of(name)
    checksum = f"sha256:{entry.sha256}" if entry.sha256 else None
    again = f"vitmed weights fetch {name}"
    source = Source(
        name, entry.url, entry.size, checksum, entry.licence, again, CheckpointError, entry.hub, entry.gated
    )
    return fetch_file(source, weight_path(name, folder), offline, non_commercial=entry.non_commercial)


def terms_of(licence: str | None) -> str | None:
    """The terms, in a sentence without a full stop; None for a licence of which nothing must travel with the model."""
    return next((text for pattern, text in TERMS if re.fullmatch(pattern, (licence or "").lower())), None)


def stops_sharing(licence: str | None) -> str | None:
    """Why a model that was made from weights of a licence is not shared unasked, as a clause; None if nothing stops it.

    ND, "no derivatives", forbids sharing what was adapted (Creative Commons BY-NC-ND 4.0, section 2 a 1 B). A licence
    of the publisher's own may forbid it unless `TERMS` states how to share.
    """
    if licence is None or terms_of(licence) is not None:
        return None
    if "nd" in licence.lower().split("-"):
        return "forbids sharing a model made from them"
    return "may forbid sharing a model made from them" if licence.lower().startswith("licenseref-") else None


def about_weights(path: Path) -> dict[str, Any]:
    """Mean, std, interpolation and licence, of those that are known."""
    for name, section, mean, std, resized in (
        ("preprocessor_config.json", None, "image_mean", "image_std", "resample"),  # transformers
        ("config.json", "pretrained_cfg", "mean", "std", "interpolation"),  # timm
        ("open_clip_config.json", "preprocess_cfg", "mean", "std", "interpolation"),  # OpenCLIP
    ):
        try:
            found = json_of(path.with_name(name).read_text(encoding="utf-8"))
            found = found[section] if section else found
            how, licence = found.get(resized), found.get("license")
            return {
                "mean": tuple(float(value) for value in found[mean]),
                "std": tuple(float(value) for value in found[std]) if found.get(std) else None,
                "interpolation": how if how in PIL_RESAMPLING.values() else PIL_RESAMPLING.get(how),
                "licence": licence if isinstance(licence, str) else _licence_of_card(path.with_name("README.md")),
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # absent, or not of the hub
    return {"licence": "LicenseRef-DINOv3"} if re.fullmatch(r"dinov3_.+_pretrain_.+\.pth", path.name) else {}


def about_network(path: Path, swiglu: bool) -> dict[str, Any]:
    """Fields of `ModelConfig` that no tensor shows: heads, activation and epsilon, of those that are known.

    Args:
        swiglu: whether the tensors show SwiGLU, beside which the stated activation says nothing.

    Raises:
        CheckpointError: an activation that vitmed lacks.
    """
    try:
        found = json_of(path.with_name("config.json").read_text(encoding="utf-8"))
        found = found.get("vision_config", found)
        act = found.get("hidden_act", "quick_gelu" if "quickgelu" in str(found.get("architecture")) else None)
        stated = {"heads": found.get("num_attention_heads"), "norm_eps": found.get("layer_norm_eps")}
    except (OSError, ValueError, AttributeError):
        try:
            found = json_of(path.with_name("open_clip_config.json").read_text(encoding="utf-8"))
            return {"mlp": "quick_gelu"} if found["model_cfg"].get("quick_gelu") is True else {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
    known: dict[str, Any] = {
        name: value for name, value in stated.items() if isinstance(value, int | float) and value > 0
    }
    if act is not None and not swiglu:
        if act not in ACTIVATIONS:
            raise CheckpointError(
                f"{path}: config.json states the activation {act}, expected one of {', '.join(ACTIVATIONS)}",
                "use the weights of a plain ViT; see docs/weights.md",
            )
        known["mlp"] = ACTIVATIONS[act]
    return known


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
    """The licence in the YAML header of a hub's model card."""
    try:
        header = yaml.safe_load(card.read_text(encoding="utf-8").split("---")[1])
        licence = header.get("license_name") or header.get("license")
    except (OSError, ValueError, IndexError, AttributeError, yaml.YAMLError):
        return None
    return licence if isinstance(licence, str) else None


PIL_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
ACTIVATIONS = {  # transformers' names -> `ModelConfig.mlp`
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}

TERMS = (
    # pattern of the licence's name, with the publishers' spellings, and what it demands
    (
        r".*dinov3.*",
        "DINOv3 License (https://ai.meta.com/resources/models-and-libraries/dinov3-license/): share a model made from "
        "these weights only under this licence and with a copy of it, acknowledge DINOv3 in publications, and do not "
        "use it for military purposes, nuclear industries, espionage or weapons",
    ),
    (
        r".*(hai-def|health-ai-developer).*",
        "HAI-DEF is provided under and subject to the Health AI Developer Foundations Terms of Use found at "
        "https://developers.google.com/health-ai-developer-foundations/terms: pass its terms and use restrictions on "
        "with a model made from these weights, and get the authorisation of the health authority before clinical use",
    ),
)

_GOOGLE = "https://storage.googleapis.com/vit_models/augreg/"
_TI = "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
_S = "S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0"
_B = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
_META = "https://dl.fbaipublicfiles.com/"
_TORCH = "https://download.pytorch.org/models/"
_HUB = "https://huggingface.co/"

_IN_NAME = "sha256: its first digits, in the file's name"
_AGREED = "sha256: not the publisher's, but the same in several public projects"
_NO_HASH = "no sha256 is published"
_AT_HUB = "sha256: from the hub when fetching"
_AUGREG = "AugReg (arXiv 2106.10270), ImageNet-21k; " + _NO_HASH
_AUGREG_1K = "AugReg (arXiv 2106.10270), ImageNet-21k, then ImageNet-1k; " + _NO_HASH
_DEIT = "DeiT (arXiv 2012.12877), ImageNet-1k; " + _IN_NAME
_MAE = "MAE (arXiv 2111.06377), ImageNet-1k, encoder without decoder; "
_DINO = "DINO (arXiv 2104.14294), ImageNet-1k, teacher; "
_DINOV2 = "DINOv2 (arXiv 2304.07193), LVD-142M; "
_DINOV2_REG = "DINOv2 with 4 registers (arXiv 2309.16588), LVD-142M; "
_NC_ND, _OWKIN = "CC-BY-NC-ND-4.0", "LicenseRef-Owkin-non-commercial"
_SAFE, _HF = "model.safetensors", "Hugging Face"
_DINOV3: dict[str, Any] = {
    "file": _SAFE,
    "licence": "LicenseRef-DINOv3",
    "interpolation": "bilinear",
    "layout": _HF,
    "gated": True,
}
_OPTIMUS: dict[str, Any] = {"mean": OPTIMUS_MEAN, "std": OPTIMUS_STD, "interpolation": "bilinear"}
_CLIP: dict[str, Any] = {"mean": CLIP_MEAN, "std": CLIP_STD}
_HALF: dict[str, Any] = {"mean": HALF, "std": HALF}
_TORCHVISION = "torchvision IMAGENET1K_V1; licence of the library, none is stated for the file; " + _IN_NAME


def _augreg(file: str, size: int, model: str, note: str = _AUGREG) -> Entry:
    return Entry(_GOOGLE + file, size, model, SUPERVISED, note, mean=HALF, std=HALF, layout="Google npz")


def _torchvision(file: str, size: int, model: str, sha256: str) -> Entry:
    fields: dict[str, Any] = {"interpolation": "bilinear", "layout": "torchvision"}
    return Entry(_TORCH + file, size, model, SUPERVISED, _TORCHVISION, sha256, "BSD-3-Clause", **fields)


def _mae(name: str, size: int, model: str, sha256: str | None = None) -> Entry:
    url, note = f"{_META}mae/pretrain/mae_pretrain_vit_{name}.pth", _MAE + (_AGREED if sha256 else _NO_HASH)
    return Entry(url, size, model, MASKED, note, sha256, "CC-BY-NC-4.0")


def _dino(file: str, size: int, model: str, sha256: str | None = None) -> Entry:
    url = f"{_META}dino/dino_{file}_pretrain/dino_{file}_pretrain.pth"
    return Entry(url, size, model, DISTILLED, _DINO + (_AGREED if sha256 else _NO_HASH), sha256)


def _dinov2(file: str, size: int, model: str, sha256: str | None = None) -> Entry:
    url = f"{_META}dinov2/dinov2_{file.removesuffix('_reg4')}/dinov2_{file}_pretrain.pth"
    note = (_DINOV2_REG if file.endswith("_reg4") else _DINOV2) + (_AGREED if sha256 else _NO_HASH)
    return Entry(url, size, model, DISTILLED, note, sha256, image_size=518)


def _hub(hub: str, size: int, model: str, kind: str, note: str, **fields: Any) -> Entry:
    url = f"{_HUB}{hub}/resolve/main/{fields.pop('file', 'pytorch_model.bin')}"
    return Entry(url, size, model, kind, f"{note}; {_AT_HUB}", hub=hub, **fields)


def _dinov3(size: str, megabytes: int, model: str) -> Entry:
    hub, note = f"facebook/dinov3-{size}-pretrain-lvd1689m", "DINOv3 (arXiv 2508.10104), LVD-1689M"
    return _hub(hub, megabytes * 1_000_000, model, DISTILLED, note, **_DINOV3)


def _histology(hub: str, megabytes: int, model: str, note: str, **fields: Any) -> Entry:
    fields = {"gated": True, "licence": _NC_ND} | fields
    return _hub(hub, megabytes * 1_000_000, model, DISTILLED, f"{note}, on histology", **fields)


CATALOGUE: dict[str, Entry] = {
    "vit_tiny_augreg_in21k": _augreg(_TI + ".npz", 39_000_000, "ViT-Ti/16"),
    "vit_small_augreg_in21k": _augreg(_S + ".npz", 120_300_000, "ViT-S/16"),
    "vit_base_augreg_in21k": _augreg(_B + ".npz", 410_400_000, "ViT-B/16"),
    "vit_tiny_augreg_in21k_ft_in1k": _augreg(
        _TI + "--imagenet2012-steps_20k-lr_0.03-res_224.npz", 22_900_000, "ViT-Ti/16", _AUGREG_1K
    ),
    "vit_small_augreg_in21k_ft_in1k": _augreg(
        _S + "--imagenet2012-steps_20k-lr_0.03-res_224.npz", 88_200_000, "ViT-S/16", _AUGREG_1K
    ),
    "vit_base_augreg_in21k_ft_in1k": _augreg(
        _B + "--imagenet2012-steps_20k-lr_0.01-res_224.npz", 346_300_000, "ViT-B/16", _AUGREG_1K
    ),
    "vit_base_augreg2_in21k_ft_in1k": _hub(
        "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k",
        346_300_000,
        "ViT-B/16",
        SUPERVISED,
        "AugReg, ImageNet-21k, then ImageNet-1k by timm",
        file=_SAFE,
        **_HALF,
    ),
    "deit_tiny_patch16_224": Entry(
        _META + "deit/deit_tiny_patch16_224-a1311bcf.pth", 22_900_000, "ViT-Ti/16", SUPERVISED, _DEIT, "a1311bcf"
    ),
    "deit_small_patch16_224": Entry(
        _META + "deit/deit_small_patch16_224-cd65a155.pth", 88_200_000, "ViT-S/16", SUPERVISED, _DEIT, "cd65a155"
    ),
    "deit_base_patch16_224": Entry(
        _META + "deit/deit_base_patch16_224-b5f2ef4d.pth", 346_300_000, "ViT-B/16", SUPERVISED, _DEIT, "b5f2ef4d"
    ),
    "torchvision_vit_b_16": _torchvision("vit_b_16-c867db91.pth", 346_329_000, "ViT-B/16", "c867db91"),
    "torchvision_vit_b_32": _torchvision("vit_b_32-d86f8d99.pth", 352_955_000, "ViT-B/32", "d86f8d99"),
    "torchvision_vit_l_16": _torchvision("vit_l_16-852ce7e3.pth", 1_217_421_000, "ViT-L/16", "852ce7e3"),
    "mae_vit_base": _mae(
        "base", 343_249_461, "ViT-B/16", "aec5f0b68e5f3193a00b07bc65a37440db549c15b36b8bea242606cc40c4bc5d"
    ),
    "mae_vit_large": _mae("large", 1_213_200_000, "ViT-L/16"),
    "dino_vits16": _dino("deitsmall16", 86_700_000, "ViT-S/16"),
    "dino_vits8": _dino("deitsmall8", 86_700_000, "ViT-S/8"),
    "dino_vitb16": _dino(
        "vitbase16", 343_242_485, "ViT-B/16", "bf34ad0f424b9029b593e8dc3ed553bf26e88bcba0d32bf3e62a6209cb64c85e"
    ),
    "dino_vitb8": _dino("vitbase8", 343_200_000, "ViT-B/8"),
    "dinov2_vits14": _dinov2(
        "vits14", 88_283_115, "ViT-S/14", "b938bf1bc15cd2ec0feacfe3a1bb553fe8ea9ca46a7e1d8d00217f29aef60cd9"
    ),
    "dinov2_vitb14": _dinov2(
        "vitb14", 346_378_731, "ViT-B/14", "0b8b82f85de91b424aded121c7e1dcc2b7bc6d0adeea651bf73a13307fad8c73"
    ),
    "dinov2_vitl14": _dinov2(
        "vitl14", 1_217_586_395, "ViT-L/14", "d5383ea8f4877b2472eb973e0fd72d557c7da5d3611bd527ceeb1d7162cbf428"
    ),
    "dinov2_vits14_reg4": _dinov2(
        "vits14_reg4", 88_300_000, "ViT-S/14", "f433177089a681826f849f194ece3bb48f4d63fb38d32fc837e3dc7a4e5641fb"
    ),
    "dinov2_vitb14_reg4": _dinov2(
        "vitb14_reg4", 346_400_000, "ViT-B/14", "73182a088cf94833c94b1666d1c99e02fe87e2007bff57b564fb6206e25dba71"
    ),
    "dinov2_vitl14_reg4": _dinov2(
        "vitl14_reg4", 1_217_600_000, "ViT-L/14", "36e4deffbaef061a2576705b0c36f93621e2ae20bf6274694821b0b492551b51"
    ),
    "dinov2_vitg14": _dinov2("vitg14", 4_546_000_000, "ViT-g/14"),
    "dinov2_vitg14_reg4": _dinov2("vitg14_reg4", 4_546_000_000, "ViT-g/14"),
    # github.com/facebookresearch/dinov3: MODEL_CARD.md, LICENSE.md; transformers: image_processing_dinov3_vit.py
    "dinov3_vits16": _dinov3("vits16", 86, "ViT-S/16"),
    "dinov3_vits16plus": _dinov3("vits16plus", 115, "ViT-S+/16"),
    "dinov3_vitb16": _dinov3("vitb16", 343, "ViT-B/16"),
    "dinov3_vitl16": _dinov3("vitl16", 1_212, "ViT-L/16"),
    "dinov3_vith16plus": _dinov3("vith16plus", 3_362, "ViT-H+/16"),
    # github.com/owkin/HistoSSLscaling: LICENSE.txt; github.com/mahmoodlab/TRIDENT: patch_encoder_models/load.py
    "phikon": _hub(
        "owkin/phikon",
        343_200_000,
        "ViT-B/16",
        DISTILLED,
        "iBOT, 40 million histology tiles of TCGA",
        licence=_OWKIN,
        interpolation="bilinear",
        layout=_HF,
    ),
    # github.com/mahmoodlab/UNI: uni/get_encoder/get_encoder.py, README.md (UNI and UNI2-h)
    "uni": _hub(
        "MahmoodLab/UNI",
        1_213_400_000,
        "ViT-L/16",
        DISTILLED,
        "UNI (doi 10.1038/s41591-024-02857-3), DINOv2 on histology",
        licence=_NC_ND,
        interpolation="bilinear",
        gated=True,
    ),
    # huggingface.co/owkin/phikon-v2: tree/main, and its commit 419e828 for the licence
    "phikon_v2": _histology(
        "owkin/phikon-v2",
        1_213,
        "ViT-L/16",
        "Phikon-v2 (arXiv 2409.09173), DINOv2",
        licence=_OWKIN,
        file=_SAFE,
        layout=_HF,
        gated=False,
    ),
    "uni2_h": _histology("MahmoodLab/UNI2-h", 2_725, "ViT-H/14", "UNI2-h, DINOv2", interpolation="bilinear"),
    # huggingface.co/paige-ai/Virchow and /paige-ai/Virchow2 (their cards); TRIDENT: load.py
    "virchow": _histology(
        "paige-ai/Virchow",
        2_525,
        "ViT-H/14",
        "Virchow (arXiv 2309.07778), DINOv2",
        licence="Apache-2.0",
        readout="cls_mean",
    ),
    "virchow2": _histology(
        "paige-ai/Virchow2", 2_525, "ViT-H/14", "Virchow2 (arXiv 2408.00738), DINOv2", readout="cls_mean"
    ),
    # github.com/bioptimus/releases: models/h-optimus/v0; huggingface.co/bioptimus/H-optimus-1; TRIDENT: load.py.
    # Unverified: that H-optimus-0 is gated, and the name of H0-mini's file.
    "h_optimus_0": _histology(
        "bioptimus/H-optimus-0", 4_539, "ViT-g/14", "H-optimus-0, DINOv2", licence="Apache-2.0", **_OPTIMUS
    ),
    "h_optimus_1": _histology("bioptimus/H-optimus-1", 4_539, "ViT-g/14", "H-optimus-1, DINOv2", **_OPTIMUS),
    "h0_mini": _histology(
        "bioptimus/H0-mini",
        343,
        "ViT-B/14",
        "H0-mini (arXiv 2501.16239), distilled from H-optimus-0",
        **{"file": _SAFE, "readout": "cls_mean"} | _OPTIMUS,
    ),
    # github.com/kaiko-ai/Midnight: README.md, LICENSE
    "midnight": _histology(
        "kaiko-ai/midnight",
        4_546,
        "ViT-g/14",
        "Midnight-12k (arXiv 2504.05186), DINOv2",
        licence="MIT",
        gated=False,
        file=_SAFE,
        layout=_HF,
        readout="cls_mean",
        **{"interpolation": "bilinear"} | _HALF,
    ),
    # github.com/mahmoodlab/CONCH: conch/open_clip_custom/{factory,transform,coca_model}.py, README.md
    "conch": _hub(
        "MahmoodLab/CONCH",
        800_000_000,
        "ViT-B/16",
        PAIRED,
        "CONCH (doi 10.1038/s41591-024-02856-4), CoCa on histology",
        **{"licence": _NC_ND, "image_size": 448, "readout": "coca", "gated": True} | _CLIP,
    ),
    # github.com/HengruiTianSJTU/LesionDiffusion: BiomedCLIP/open_clip_config.json, a copy of the hub's; its model card
    "biomedclip": _hub(
        "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224",
        784_000_000,
        "ViT-B/16",
        PAIRED,
        "BiomedCLIP (arXiv 2303.00915), figures of PubMed Central",
        **{"file": "open_clip_pytorch_model.bin", "licence": "MIT"} | _CLIP,
    ),
    # github.com/Google-Health/medsiglip: notebooks/fine_tune_for_image_classification.ipynb; the model card
    "medsiglip": _hub(
        "google/medsiglip-448",
        3_513_000_000,
        "ViT-SO400M/14",
        PAIRED,
        "MedSigLIP (arXiv 2507.05201), SigLIP on medical images",
        file=_SAFE,
        licence="LicenseRef-HAI-DEF",
        interpolation="bilinear",
        image_size=448,
        gated=True,
        **{"layout": "Hugging Face CLIP", "readout": "attention"} | _HALF,
    ),
    # github.com/rmaphoh/RETFound: main_finetune.py (global_pool), util/datasets.py, LICENSE. Unverified: the size
    "retfound_cfp": _hub(
        "YukunZhou/RETFound_mae_natureCFP",
        3_950_000_000,
        "ViT-L/16",
        MASKED,
        "RETFound (doi 10.1038/s41586-023-06555-x), MAE on fundus photographs",
        file="RETFound_mae_natureCFP.pth",
        licence="CC-BY-NC-4.0",
        readout="mean",
        gated=True,
    ),
    # huggingface.co/microsoft/rad-dino: tree/main (MIT again since its pull request 9)
    "rad_dino": _hub(
        "microsoft/rad-dino",
        346_300_000,
        "ViT-B/14",
        DISTILLED,
        "RAD-DINO (arXiv 2401.10815), DINOv2 on chest X-rays",
        file=_SAFE,
        licence="MIT",
        image_size=518,
        layout=_HF,
        mean=(0.5307, 0.5307, 0.5307),
        std=(0.2583, 0.2583, 0.2583),
    ),
}
