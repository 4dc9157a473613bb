"""A network of ours gives the same logits in timm, and in transformers by it, which load it from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vitmed.core.config import ModelConfig
from vitmed.deploy.export import architecture, arguments, renamed
from vitmed.models.sizes import resolved
from vitmed.models.vit import ViT
from vitmed.models.weights.catalogue import public_weights, stops_sharing

timm = pytest.importorskip("timm")
SIZE: dict[str, Any] = {"image_size": 16, "patch_size": 8, "width": 24, "depth": 2, "heads": 3}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one channel, fixed positions": {"channels": 1, "positions": "sincos_2d"},
    "a ratio that is not whole": {"mlp_ratio": 2.7, "mlp": "gelu_tanh"},
    "epsilon of CLIP": {"norm_eps": 1e-5, "mlp": "quick_gelu"},
    "mean of the patches": {"pool": "mean", "channels": 4},
    "DINOv2 with registers": {"registers": 4, "layer_scale": True},
    "DINOv2 giant": {"mlp": "swiglu", "mlp_ratio": 2.6666667, "layer_scale": True},
    "CLIP": {"norm_pre": True, "norm_eps": 1e-5, "mlp": "quick_gelu"},
    "CLIP with registers": {"norm_pre": True, "registers": 2},
    "SigLIP": {"pool": "attention", "class_token": False, "mlp": "gelu_tanh"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_timm_gives_our_logits(variant: str, tmp_path: Path) -> None:
    config = ModelConfig(**SIZE, **VARIANTS[variant])
    ours, generator = ViT(config, 5).eval(), torch.Generator().manual_seed(0)
    with torch.no_grad():  # nothing is right by being zero or one
        for parameter in ours.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    fields = resolved(config).model_dump()
    state = renamed(fields, ours.state_dict())
    theirs = timm.create_model(architecture(fields), num_classes=5, **arguments(fields)).eval()
    theirs.load_state_dict(state)
    x = torch.randn(2, config.channels, 16, 16, generator=generator)
    with torch.no_grad():
        expected = ours(x)
        torch.testing.assert_close(theirs(x), expected, atol=1e-5, rtol=0)
    assert expected.abs().max() > 0.1


def test_which_licences_stop_sharing() -> None:
    """By hand from the licences: ND forbids adaptations; Owkin's is its own; the others allow sharing on terms."""
    stopped = {name for name, entry in public_weights().items() if stops_sharing(entry.licence)}
    assert {"uni", "conch", "virchow2", "phikon"} <= stopped
    allowed = {"dinov2_vitb14", "dinov3_vits16", "mae_vit_base", "medsiglip", "retfound_cfp", "torchvision_vit_b_16"}
    assert not allowed & stopped and stops_sharing(None) is None
