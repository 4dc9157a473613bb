"""A network of ours gives the same logits in timm and in transformers, which load it from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from vitmed.core.sections import ModelConfig

from vitmed.deploy.weight_forms import FORMS
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.vit import ViT
from vitmed.models.weights.catalogue import CATALOGUE, stops_sharing

SIZE: dict[str, Any] = {"image_size": 16, "patch_size": 8, "width": 24, "depth": 2, "heads": 3}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("timm transformers", {}),
    "one channel, fixed positions": ("timm transformers", {"channels": 1, "positions": "sincos_2d"}),
    "a ratio that is not whole": ("timm transformers", {"mlp_ratio": 2.7, "mlp": "gelu_tanh"}),
    "epsilon of CLIP": ("timm transformers", {"norm_eps": 1e-5, "mlp": "quick_gelu"}),
    "epsilon of Hugging Face": ("transformers", {"norm_eps": 1e-12}),
    "mean of the patches": ("timm", {"pool": "mean", "channels": 4}),
    "DINOv2 with registers": ("timm", {"registers": 4, "layer_scale": True}),
    "DINOv2 giant": ("timm", {"mlp": "swiglu", "mlp_ratio": 2.6666667, "layer_scale": True}),
    "CLIP": ("timm", {"norm_pre": True, "norm_eps": 1e-5, "mlp": "quick_gelu"}),
    "CLIP with registers": ("timm", {"norm_pre": True, "registers": 2}),
    "SigLIP": ("timm", {"pool": "attention", "class_token": False, "mlp": "gelu_tanh"}),
}


@pytest.mark.parametrize(
    ("form", "variant"), [(form, name) for name, (forms, _) in VARIANTS.items() for form in forms.split()]
)
def test_the_library_gives_our_logits(form: str, variant: str, tmp_path: Path) -> None:
    config = ModelConfig(**SIZE, **VARIANTS[variant][1])
    ours, generator = ViT(config, 5).eval(), torch.Generator().manual_seed(0)
    with torch.no_grad():  # nothing is right by being zero or one
        for parameter in ours.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    how = Preprocessing(config.image_size, config.channels, "pad", "imagenet")
    made = FORMS[form](config, ours.state_dict(), how, list("abcde"))
    for name, content in made.files.items():
        (tmp_path / name).write_text(json.dumps(content))
    save_file({name: value.contiguous() for name, value in made.state.items()}, tmp_path / "model.safetensors")
    theirs, x = made.load(tmp_path), torch.randn(2, config.channels, 16, 16, generator=generator)
    with torch.no_grad():
        expected = ours(x)
        torch.testing.assert_close(made.logits(theirs(x)), expected, atol=1e-5, rtol=0)
    assert expected.abs().max() > 0.1
    assert sum(value.numel() for value in theirs.parameters()) == sum(value.numel() for value in made.state.values())


def test_which_licences_stop_a_push() -> None:
    """By hand from the licences: ND forbids adaptations; Owkin's is its own; the others allow sharing on terms."""
    stopped = {name for name, entry in CATALOGUE.items() if stops_sharing(entry.licence)}
    assert {"uni", "conch", "virchow2", "phikon"} <= stopped
    allowed = {"dinov2_vitb14", "dinov3_vits16", "mae_vit_base", "medsiglip", "retfound_cfp", "torchvision_vit_b_16"}
    assert not allowed & stopped and stops_sharing(None) is None
