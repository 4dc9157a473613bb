"""The weights of a network for timm, which transformers reads too: a folder with preprocessing and a card.

The way back is `models.weights.layouts`. The folder is what `timm.create_model("local-dir:FOLDER", pretrained=True)`
reads, from timm 1.0.15: config.json and model.safetensors.
"""

from __future__ import annotations

import contextlib
import json
import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitmed.core.base_models import Frozen
from vitmed.core.errors import GateError, UsageError
from vitmed.core.files import whole_folder
from vitmed.core.messages import bar, warn
from vitmed.core.text import counted, first_line
from vitmed.deploy.export_onnx import checkpoint_outputs, quiet, validation_images
from vitmed.inference.checkpoint import Checkpoint
from vitmed.inference.onnx_model import KEY, about_model
from vitmed.models.hardware import FULL_FP32
from vitmed.models.sizes import resolved
from vitmed.models.weights.catalogue import stops_sharing
from vitmed.models.weights.files import State
from vitmed.report.headline import known_evaluation
from vitmed.report.model_card import weights_card

CARD, CONFIG, WEIGHTS = "README.md", "config.json", "model.safetensors"
MOST_APART = 1e-4  # of two logits, as a share of the largest logit or of 1
SIZES = {
    "img_size": "image_size",
    "patch_size": "patch_size",
    "in_chans": "channels",
    "embed_dim": "width",
    "depth": "depth",
    "num_heads": "heads",
}
CROPS = {"pad": "border", "squash": "squash", "crop": "center"}
POOLS = {"cls": "token", "mean": "avg", "attention": "map"}


class WeightsGate(Frozen):
    """The logits of timm beside ours, on validation images."""

    library: str = "timm"  # with its version
    images: int = 0  # how many were compared; 0 where timm is not installed
    largest: float = 0.0  # the largest difference of two logits
    relative: float = 0.0  # as a share of the largest logit, or of 1

    @property
    def passed(self) -> bool:
        """Whether no logit differs by more than `MOST_APART`."""
        return self.relative <= MOST_APART

    @property
    def in_words(self) -> str:
        """What was found, as a clause."""
        if not self.images:
            return f"its logits were not compared, since {self.library} is not installed"
        images = counted(self.images, "validation image")
        return f"on {images} the logits of {self.library} differ by {self.largest:.1g} at most"


def lacks(fields: dict[str, Any]) -> str | None:
    """What of a network, the keyword arguments of `ViT`, timm cannot express; None for nothing."""
    gated, eps = fields["mlp"] == "swiglu", fields["norm_eps"]
    parts = {
        f"a stem of convolutions ({fields['stem']})": fields["stem"] != "patch",
        "rotary positions": fields["positions"] in ("rotary", "learned_rotary"),
        "a norm in its SwiGLU": fields["mlp"] == "swiglu_norm",
        f"the read-out {fields['pool']}": fields["pool"] in ("cls_mean", "coca"),
        f"an epsilon of {eps:g} in its layer norms": eps not in ((1e-6,) if gated else (1e-6, 1e-5)),
        "attention pooling of another width": fields["pool_width"] not in (None, fields["width"]),
        "attention pooling with SwiGLU": gated and fields["pool"] == "attention",
    }
    return next((part for part, there in parts.items() if there), None)


def architecture(fields: dict[str, Any]) -> str:
    """A model of timm with the parts that no argument in JSON names: SwiGLU and epsilon."""
    if fields["mlp"] == "swiglu":
        return "vit_giant_patch14_dinov2"
    return "vit_base_patch16_clip_224" if fields["norm_eps"] == 1e-5 else f"{fields['name']}_patch16_224"


def arguments(fields: dict[str, Any]) -> dict[str, Any]:
    """Of `timm.create_model`, beside the name of the architecture."""
    gated = fields["mlp"] == "swiglu"
    hidden = int(fields["width"] * fields["mlp_ratio"] + 1e-6) * (2 if gated else 1)  # of SwiGLU gate and value
    return {
        **{theirs: fields[ours] for theirs, ours in SIZES.items()},
        "mlp_ratio": math.ceil(hidden / fields["width"] * 1e6) / 1e6,  # timm rounds their product down
        "global_pool": POOLS[fields["pool"]],
        "class_token": fields["class_token"],
        "reg_tokens": fields["registers"],
        "no_embed_class": fields["registers"] > 0,
        "init_values": 1e-5 if fields["layer_scale"] else None,
        "pre_norm": fields["norm_pre"],
        **({} if gated else {"act_layer": fields["mlp"]}),
    }


def renamed(fields: dict[str, Any], ours: State) -> State:
    """The tensors as timm has them: registers have no positions, and patches before a first norm no bias."""
    state = {name: tensor.contiguous() for name, tensor in ours.items()}
    if fields["norm_pre"]:
        places = state["pos_embed"].clone()
        places[:, int(fields["class_token"]) :] += state.pop("patch_embed.proj.bias")
        state["pos_embed"] = places
    if fields["registers"] and fields["class_token"]:
        state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
        state["pos_embed"] = state["pos_embed"][:, 1:].contiguous()
    return state


def described(saved: Checkpoint, fields: dict[str, Any]) -> dict[str, Any]:
    """The content of config.json; under `KEY` calibration, operating point and licence, nothing of single images."""
    how, outputs = saved.preprocessing, {"num_classes": len(saved.classes)}
    mean, std = (list(values) for values in how.constants(how.channels))
    pretrained = {
        "input_size": [how.channels, how.image_size, how.image_size],
        "fixed_input_size": True,
        "interpolation": how.interpolation,
        "crop_pct": 1.0,
        "crop_mode": CROPS[how.resize],
        "mean": mean,
        "std": std,
        **outputs,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
    about = about_model(saved)
    about["policy"] = {key: value for key, value in about["policy"].items() if key not in ("ood_score", "other_scores")}
    network = {"architecture": architecture(fields), **outputs, "num_features": fields["width"]}
    network |= {"label_names": list(saved.classes), "model_args": arguments(fields), "pretrained_cfg": pretrained}
    return network | {KEY: about}


def fields_of_model(saved: Checkpoint) -> dict[str, Any]:
    """The keyword arguments of the network. Raises UsageError for a model that timm cannot express."""
    fields, views = resolved(saved.config.model).model_dump(), saved.config.augment.views
    if saved.splits.target.kind == "number":
        part: str | None = "a head that predicts a number"
    elif views != "one":
        part = f"several views of an image ({views})"
    elif saved.preprocessing.normalize == "image":
        part = "each image normalised by itself"
    else:
        part = lacks(fields)
    if part:
        fix = "vitmed export RUN --to model.onnx writes every model"
        fix += "; for timm: vitmed train --stem patch" * ("stem" in part)
        raise UsageError(f"{saved.path}: the model needs {part}, which vitmed cannot write for timm", fix)
    return fields


def write_weights(saved: Checkpoint, target: Path, root: Path) -> WeightsGate:
    """Write a model for timm, and compare its logits there with ours if timm is installed.

    Args:
        target: a new folder; root: the data folder.

    Raises:
        GateError: the logits differ, or timm cannot load the folder; nothing is written.
        DataError: a validation image cannot be read.
        UsageError: timm lacks a part of the model; a package is missing; the folder cannot be written.
    """
    saved.chosen_policy()
    fields, licence = fields_of_model(saved), saved.config.model.licence
    try:
        from safetensors.torch import save
    except ImportError:
        raise UsageError(f"{WEIGHTS}: needs one more package", "pip install 'vitmed[weights]'") from None
    with whole_folder(target) as folder:
        config, gate = described(saved, fields), WeightsGate()
        (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")
        state = renamed(fields, saved.model().state_dict())
        content = save(state, {"format": "pt"})  # its own `save_file` gives a full disk another error
        (folder / WEIGHTS).write_bytes(content)
        with contextlib.suppress(ImportError):
            gate = compare_weights(saved, folder, target, root)
        if not gate.passed:
            problem = f"{target}: not written, since {gate.in_words}"
            raise GateError(problem, f"at most {MOST_APART:g} of the largest logit is expected; please report it")
        test, compared = known_evaluation(saved, "test"), gate.in_words[0].upper() + gate.in_words[1:]
        card = weights_card(saved, target.name, compared, None if test is None else test.metrics)
        (folder / CARD).write_text(card, encoding="utf-8")
    if (why := stops_sharing(licence)) is not None:
        warn(f"the licence of the starting weights, {licence}, {why}: read it before you share the model")
    return gate


def load_timm(folder: Path) -> nn.Module:
    """Load the network of timm: (B, C, S, S) -> logits (B, K). Raises ImportError where timm is not installed."""
    import timm

    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


@FULL_FP32
def compare_weights(saved: Checkpoint, folder: Path, target: Path, root: Path) -> WeightsGate:
    """The logits of timm beside ours, on validation images as our preprocessing prepares them. Raises ImportError: timm
    is not installed; GateError: it cannot load the folder."""
    how, chosen = saved.preprocessing, validation_images(saved)
    try:
        with quiet():
            network = load_timm(folder)
    except ImportError:
        raise
    except Exception as error:  # of timm, which has errors of its own
        problem = f"{target}: not written, since timm cannot load it ({first_line(error)})"
        raise GateError(problem, "please report it, with the version of timm") from None
    exact, logits = torch.from_numpy(checkpoint_outputs(saved, chosen, root).logits), list[Tensor]()
    with bar("comparing: timm") as advance, torch.inference_mode():
        for index, sample in enumerate(chosen):
            square = torch.tensor(how.read(root / sample.path))[None]
            logits.append(network(how.normalise(square)))
            advance(index + 1, len(chosen))
    largest = float((torch.cat(logits) - exact).abs().max())
    relative = largest / max(1.0, float(exact.abs().max()))
    return WeightsGate(library=f"timm {version('timm')}", images=len(chosen), largest=largest, relative=relative)
