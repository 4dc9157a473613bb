"""A trained network in the form of another library: `FORMS`. The way back is `layouts`.

A form is what the library reads of a folder: config.json, model.safetensors, and the preprocessing in its own words.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitmed.core.sections import ModelConfig
from vitmed.imaging.preprocessing import RESAMPLING, Preprocessing
from vitmed.models.sizes import resolved
from vitmed.models.weights.catalogue import ACTIVATIONS
from vitmed.models.weights.files import State

CONFIG, PREPROCESSOR, SAFETENSORS = "config.json", "preprocessor_config.json", ".safetensors"
WEIGHTS = f"model{SAFETENSORS}"
TIMM_SIZES = {
    "img_size": "image_size",
    "patch_size": "patch_size",
    "in_chans": "channels",
    "embed_dim": "width",
    "depth": "depth",
    "num_heads": "heads",
}
TRANSFORMERS_SIZES = {
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "intermediate_size": "hidden",
    "hidden_act": "act",
    "layer_norm_eps": "norm_eps",
    "image_size": "image_size",
    "patch_size": "patch_size",
    "num_channels": "channels",
}
TIMM_CROPS = {"pad": "border", "squash": "squash", "crop": "center"}
TIMM_POOLS = {"cls": "token", "mean": "avg", "attention": "map"}


class Form(ABC):
    """A network as another library describes it.

    Args:
        model: its configuration; state: its tensors, in our names.
        how: its preprocessing; classes: names of its outputs, in order.
        several: whether an image may be of several classes.
    """

    library: str  # that loads it
    local, hub = "{}", "{}"  # by which it finds a folder, and a repository of the hub

    def __init__(
        self, model: ModelConfig, state: State, how: Preprocessing, classes: Sequence[str], several: bool = False
    ):
        self.fields, self.name = resolved(model).model_dump(), model.name
        self.given, self.how, self.classes, self.several = state, how, list(classes), several
        self.mean, self.std = (list(values) for values in how.constants(how.channels))
        self.hidden = int(self.fields["width"] * self.fields["mlp_ratio"] + 1e-6)  # width of the MLP

    @classmethod
    def lacks(cls, fields: dict[str, Any]) -> str | None:
        """What of a network, the keyword arguments of `ViT`, the library cannot express; None for nothing."""
        parts = {
            f"a stem of convolutions ({fields['stem']})": fields["stem"] != "patch",
            "rotary positions": fields["positions"] in ("rotary", "learned_rotary"),
            "a norm in its SwiGLU": fields["mlp"] == "swiglu_norm",
            f"the read-out {fields['pool']}": fields["pool"] in ("cls_mean", "coca"),
        }
        return next((part for part, there in (*parts.items(), *cls.missing(fields).items()) if there), None)

    @staticmethod
    @abstractmethod
    def missing(fields: dict[str, Any]) -> dict[str, bool]:
        """Parts that this library lacks, beside those that both lack -> whether the network has them."""

    @property
    @abstractmethod
    def state(self) -> State:
        """The tensors in the library's names."""

    @property
    @abstractmethod
    def files(self) -> dict[str, dict[str, Any]]:
        """File name -> its JSON."""

    @abstractmethod
    def line(self, address: str) -> str:
        """The line of Python that loads the network from `local`, `hub` or, of timm, a weight file alone."""

    @staticmethod
    @abstractmethod
    def load(folder: Path) -> nn.Module:
        """The library's network: (B, C, S, S) -> logits (B, K). Raises ImportError where it is not installed."""

    @staticmethod
    def logits(found: Any) -> Tensor:
        """(B, K), of what the library's network returns."""
        return found  # type: ignore[no-any-return]


class Timm(Form):
    """`timm.create_model("local-dir:FOLDER", pretrained=True)`: its VisionTransformer, from timm 1.0.15."""

    library = "timm"
    local, hub = "local-dir:{}", "hf-hub:{}"

    @staticmethod
    def missing(fields: dict[str, Any]) -> dict[str, bool]:
        gated, eps = fields["mlp"] == "swiglu", fields["norm_eps"]
        return {
            f"an epsilon of {eps:g} in its layer norms": eps not in ((1e-6,) if gated else (1e-6, 1e-5)),
            "attention pooling of another width": fields["pool_width"] not in (None, fields["width"]),
            "attention pooling with SwiGLU": gated and fields["pool"] == "attention",
        }

    @property
    def architecture(self) -> str:
        """A model of timm with the parts that no argument in JSON names: SwiGLU and epsilon."""
        if self.fields["mlp"] == "swiglu":
            return "vit_giant_patch14_dinov2"
        return "vit_base_patch16_clip_224" if self.fields["norm_eps"] == 1e-5 else f"{self.name}_patch16_224"

    @property
    def arguments(self) -> dict[str, Any]:
        """Of `timm.create_model`, beside the name of the architecture."""
        fields, gated = self.fields, self.fields["mlp"] == "swiglu"
        hidden = self.hidden * (2 if gated else 1)  # of SwiGLU gate and value together
        return {
            **{theirs: fields[ours] for theirs, ours in TIMM_SIZES.items()},
            "mlp_ratio": math.ceil(hidden / fields["width"] * 1e6) / 1e6,  # timm rounds their product down
            "global_pool": TIMM_POOLS[fields["pool"]],
            "class_token": fields["class_token"],
            "reg_tokens": fields["registers"],
            "no_embed_class": fields["registers"] > 0,
            "init_values": 1e-5 if fields["layer_scale"] else None,
            "pre_norm": fields["norm_pre"],
            **({} if gated else {"act_layer": fields["mlp"]}),
        }

    @property
    def state(self) -> State:
        """Registers have no positions, and patches before a first norm no bias."""
        state = dict(self.given)
        if self.fields["norm_pre"]:
            places = state["pos_embed"].clone()
            places[:, int(self.fields["class_token"]) :] += state.pop("patch_embed.proj.bias")
            state["pos_embed"] = places
        if self.fields["registers"] and self.fields["class_token"]:
            state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
            state["pos_embed"] = state["pos_embed"][:, 1:]
        return state

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        how, outputs = self.how, {"num_classes": len(self.classes)}
        pretrained = {
            "input_size": [how.channels, how.image_size, how.image_size],
            "fixed_input_size": True,
            "interpolation": how.interpolation,
            "crop_pct": 1.0,
            "crop_mode": TIMM_CROPS[how.resize],
            "mean": self.mean,
            "std": self.std,
            **outputs,
            "label_names": self.classes,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        }
        content = {"architecture": self.architecture, **outputs, "num_features": self.fields["width"]}
        return {CONFIG: {**content, "model_args": self.arguments, "pretrained_cfg": pretrained}}

    def line(self, address: str) -> str:
        if not address.endswith(SAFETENSORS):
            return f'timm.create_model("{address}", pretrained=True)'
        given = {"checkpoint_path": address, "num_classes": len(self.classes), **self.arguments}
        return f'timm.create_model("{self.architecture}", {", ".join(f"{k}={v!r}" for k, v in given.items())})'

    @staticmethod
    def load(folder: Path) -> nn.Module:
        import timm

        return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


class Transformers(Form):
    """`transformers.ViTForImageClassification`, which reads the class token of a plain ViT."""

    library = "transformers"

    @staticmethod
    def missing(fields: dict[str, Any]) -> dict[str, bool]:
        return {
            f"the read-out {fields['pool']}": fields["pool"] != "cls",
            "registers": fields["registers"] > 0,
            "LayerScale": fields["layer_scale"],
            "SwiGLU": fields["mlp"] == "swiglu",
            "a norm before the blocks": fields["norm_pre"],
            "an input channel of transparency": fields["channels"] in (2, 4),
        }

    @property
    def state(self) -> State:
        state: State = {}
        for name, value in self.given.items():
            new = next(m.expand(becomes) for pattern, becomes in NAMES if (m := re.fullmatch(pattern, name)))
            if "{}" in new:
                parts = zip(("query", "key", "value"), value.chunk(3), strict=True)
                state |= {new.format(part): tensor.contiguous() for part, tensor in parts}
            else:
                state[new] = value
        return state

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        act = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == self.fields["mlp"])
        fields, how = {**self.fields, "hidden": self.hidden, "act": act}, self.how
        content = {
            "architectures": ["ViTForImageClassification"],
            "model_type": "vit",
            **{theirs: fields[ours] for theirs, ours in TRANSFORMERS_SIZES.items()},
            "qkv_bias": True,
            "problem_type": f"{'multi' if self.several else 'single'}_label_classification",
            "id2label": dict(enumerate(self.classes)),
            "label2id": {name: i for i, name in enumerate(self.classes)},
        }
        pixels = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": how.image_size, "width": how.image_size},
            "resample": int(RESAMPLING[how.interpolation]),
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": self.mean,
            "image_std": self.std,
            "do_convert_rgb": how.channels == 3,
        }
        return {CONFIG: content, PREPROCESSOR: pixels}

    def line(self, address: str) -> str:
        return f'ViTForImageClassification.from_pretrained("{address}")'

    @staticmethod
    def load(folder: Path) -> nn.Module:
        from transformers import ViTForImageClassification

        return ViTForImageClassification.from_pretrained(folder, local_files_only=True).eval()  # type: ignore[no-any-return]

    @staticmethod
    def logits(found: Any) -> Tensor:
        return found.logits  # type: ignore[no-any-return]


_BLOCK, _LAYER = r"blocks\.(\d+)\.", r"vit.encoder.layer.\1."
NAMES = (  # pattern of our name, and transformers'; {} stands for query, key and value
    (r"cls_token", "vit.embeddings.cls_token"),
    (r"pos_embed", "vit.embeddings.position_embeddings"),
    (r"patch_embed\.proj\.(\w+)", r"vit.embeddings.patch_embeddings.projection.\1"),
    (_BLOCK + r"norm1\.(\w+)", _LAYER + r"layernorm_before.\2"),
    (_BLOCK + r"norm2\.(\w+)", _LAYER + r"layernorm_after.\2"),
    (_BLOCK + r"attn\.qkv\.(\w+)", _LAYER + r"attention.attention.{}.\2"),
    (_BLOCK + r"attn\.proj\.(\w+)", _LAYER + r"attention.output.dense.\2"),
    (_BLOCK + r"mlp\.fc1\.(\w+)", _LAYER + r"intermediate.dense.\2"),
    (_BLOCK + r"mlp\.fc2\.(\w+)", _LAYER + r"output.dense.\2"),
    (r"norm\.(\w+)", r"vit.layernorm.\1"),
    (r"head\.(\w+)", r"classifier.\1"),
)

FORMS: dict[str, type[Form]] = {form.library: form for form in (Timm, Transformers)}
