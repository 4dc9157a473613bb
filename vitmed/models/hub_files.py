"""What a model hub's files in the folder of the weights state: preprocessing, licence, and what no tensor shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from vitmed.core.errors import CheckpointError
from vitmed.core.files import json_of
from vitmed.imaging.preprocessing import CONSTANTS

PIL_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
ACTIVATIONS = {  # transformers' names -> `ModelConfig.mlp`
    "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "quick_gelu": "quick_gelu",
}  # fmt: skip


def about_weights(path: Path) -> dict[str, Any]:
    """Mean, std, interpolation and licence, of those that are known."""
    for name, section, mean, std, resized in (
        ("preprocessor_config.json", None, "image_mean", "image_std", "resample"),  # transformers
        ("config.json", "pretrained_cfg", "mean", "std", "interpolation"),  # timm
        ("open_clip_config.json", "preprocess_cfg", "mean", "std", "interpolation"),  # OpenCLIP
    ):
        try:
            found = _json(path.with_name(name))
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
        found = _json(path.with_name("config.json"))
        found = found.get("vision_config", found)
        act = found.get("hidden_act", "quick_gelu" if "quickgelu" in str(found.get("architecture")) else None)
        stated = {"heads": found.get("num_attention_heads"), "norm_eps": found.get("layer_norm_eps")}
    except (OSError, ValueError, AttributeError):
        try:
            found = _json(path.with_name("open_clip_config.json"))
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


def _json(path: Path) -> Any:
    return json_of(path.read_text(encoding="utf-8"))
