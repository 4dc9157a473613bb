"""What is refused is named, with the reason in one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from timm.layers import SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer

from tests.small_networks import small_vit
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.model_config import ModelConfig
from vitmed.models.weights.pretrained import config_for_weights, load_pretrained, read_weights

SMALL = {"img_size": 16, "patch_size": 8, "embed_dim": 64, "depth": 1, "num_heads": 1, "num_classes": 3}


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ("swin_tiny_patch4_window7_224", "Swin, whose tokens attend in windows"),
        ("davit_tiny", "DaViT, which attends in windows and across channels"),
        ("convnext_tiny", "ConvNeXt, a convolutional network"),
        ("resnetv2_50x1_bit", "ResNet or BiT, a convolutional network"),
        ("resnet18", "ResNet or BiT, a convolutional network"),
        ("densenet121", "a CNN"),
        ("beit_base_patch16_224", "relative positions"),
        ("eva02_tiny_patch14_224", "separate biases"),
        ("vit_small_patch16_rope_224", "no learned positions"),
        ("vit_base_patch16_siglip_gap_224", "no class token"),
    ],
)
def test_other_networks_of_timm(tmp_path: Path, model: str, what: str) -> None:
    shallow = {"depth": 1} if "patch16" in model or "eva" in model else {}
    torch.save(timm.create_model(model, **shallow).state_dict(), tmp_path / "w.pth")
    with pytest.raises(CheckpointError) as error:
        read_weights(tmp_path / "w.pth")
    text = str(error.value).partition("\nFix")[0]
    assert "w.pth: not a plain ViT: " in text and what in text and "\n" not in text


def test_other_names_of_those_networks(tmp_path: Path) -> None:
    """As MedImageInsight, DINOv3's ConvNeXt, Google's BiT and big_vision write them."""
    names = {
        "image_encoder.blocks.0.0.channel_block.channel_attn.fn.qkv.weight": "DaViT",
        "stages.0.0.dwconv.weight": "ConvNeXt",
        "stages.0.layers.0.depthwise_conv.weight": "ConvNeXt",
        "resnet/block1/unit01/a/standardized_conv2d/kernel": "BiT",
    }
    for name, what in names.items():
        np.savez(tmp_path / "w.npz", **{name: np.zeros((2, 2), np.float32)})
        torch.save({name: torch.zeros(2, 2)}, tmp_path / "w.pth")
        for file in ("w.npz", "w.pth"):
            with pytest.raises(CheckpointError, match=what):
                read_weights(tmp_path / file)


def packed() -> dict[str, torch.Tensor]:
    return VisionTransformer(**SMALL, mlp_layer=SwiGLUPacked, mlp_ratio=4).state_dict()  # type: ignore[arg-type]


def test_a_packed_file_that_is_no_network_or_of_another_width(tmp_path: Path) -> None:
    state = packed()
    narrower = state | {"blocks.0.mlp.fc2.weight": torch.zeros(64, 100)}
    flat = {name: value for name, value in state.items() if name != "pos_embed"}
    for odd, what in (
        (narrower, "fc1 gives 256 numbers and fc2 takes 100, expected 100 (an MLP) or 200 (packed SwiGLU)"),
        (flat, "it has no learned positions, nor DINOv3's rotary ones with four storage tokens"),
    ):
        torch.save(odd, tmp_path / "w.pth")
        with pytest.raises(CheckpointError, match=re.escape(what)):
            read_weights(tmp_path / "w.pth")
    torch.save(state, tmp_path / "w.pth")
    weights = read_weights(tmp_path / "w.pth")
    with pytest.raises(
        UsageError, match=r"--model vit_base has width 768 and depth 12; w\.pth has width 64 and depth 1"
    ):
        config_for_weights(ModelConfig(name="vit_base"), weights)
    for fields, what in (({"mlp": "gelu_tanh"}, "swiglu"), ({"mlp_ratio": 4.0}, "has 2.0"), ({"width": 128}, "has 64")):
        with pytest.raises(UsageError, match=what):
            config_for_weights(ModelConfig(**fields), weights)  # type: ignore[arg-type]
    model = small_vit(3, 16, 8, width=128, depth=1, heads=2, mlp="swiglu", mlp_ratio=2)
    with pytest.raises(CheckpointError) as error:
        load_pretrained(model, weights)
    assert str(error.value).startswith(f"{tmp_path / 'w.pth'}: its network is 64 wide, expected 128\n")


def test_a_pooling_that_the_network_cannot_have() -> None:
    with pytest.raises(UsageError, match="pool cls reads a class token, and the network has none"):
        small_vit(3, 16, 8, class_token=False)
    with pytest.raises(UsageError, match="8 heads, which do not divide its width 12"):
        small_vit(3, 16, 8, width=12, heads=3, pool="coca")
    with pytest.raises(UsageError, match="rotary positions need heads whose width is divisible by 4, not 6"):
        small_vit(3, 16, 8, width=12, heads=2, positions="rotary")
