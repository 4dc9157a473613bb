"""What a model hub's files beside the weights state, and what a licence demands."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from timm.layers import SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer

from vitmed.core.errors import CheckpointError
from vitmed.models.weights.catalogue import CATALOGUE, terms_of
from vitmed.models.weights.pretrained import read_weights


@pytest.fixture
def file(tmp_path: Path) -> Path:
    state = VisionTransformer(img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=3, num_classes=5).state_dict()
    torch.save(state, tmp_path / "model.bin")
    return tmp_path / "model.bin"


def test_what_no_tensor_shows_comes_from_the_configuration(file: Path) -> None:
    assert (read_weights(file).model["heads"], read_weights(file).model["mlp"]) == (None, "gelu")
    file.with_name("config.json").write_text(
        '{"vision_config": {"num_attention_heads": 3, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-5}}'
    )
    found = read_weights(file).model
    assert (found["heads"], found["mlp"], found["norm_eps"]) == (3, "gelu_tanh", 1e-5)
    file.with_name("config.json").write_text('{"architecture": "vit_base_patch16_clip_quickgelu_224"}')
    assert read_weights(file).model["mlp"] == "quick_gelu"
    for broken in ("{", "[]", "null", '{"num_attention_heads": "x"}'):
        file.with_name("config.json").write_text(broken)
        assert read_weights(file).model["heads"] is None


def test_another_activation_is_refused(file: Path) -> None:
    file.with_name("config.json").write_text('{"hidden_act": "relu"}')
    with pytest.raises(CheckpointError, match="states the activation relu, expected one of gelu, "):
        read_weights(file)


def test_the_activation_beside_swiglu_says_nothing(tmp_path: Path) -> None:
    """Hugging Face's DINOv2 giant states "gelu"."""
    state = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=3, mlp_layer=SwiGLUPacked
    ).state_dict()
    torch.save(state, tmp_path / "model.bin")
    (tmp_path / "config.json").write_text('{"num_attention_heads": 3, "hidden_act": "silu"}')
    found = read_weights(tmp_path / "model.bin").model
    assert (found["heads"], found["mlp"]) == (3, "swiglu")


def test_the_licence_of_the_model_card(file: Path) -> None:
    """As a snapshot of MedSigLIP or DINOv3 lies in a folder."""
    file.with_name("preprocessor_config.json").write_text(
        '{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}'
    )
    card = file.with_name("README.md")
    for header, licence in (
        ("license: other\nlicense_name: health-ai-developer-foundations", "health-ai-developer-foundations"),
        ("license: mit", "mit"),
        ("tags: [a]", None),
        ("license: [", None),
    ):
        card.write_text(f"---\n{header}\n---\n# A model\n")
        assert read_weights(file).licence == licence
    card.write_text("# No header\n")
    assert read_weights(file).licence is None


def test_openclips_configuration(file: Path) -> None:
    file.with_name("open_clip_config.json").write_text(
        '{"model_cfg": {"embed_dim": 512}, "preprocess_cfg": {"mean": [0.48145466, 0.4578275, 0.40821073], '
        '"std": [0.26862954, 0.26130258, 0.27577711]}}'
    )
    weights = read_weights(file)
    assert (weights.mean, weights.std) == (CATALOGUE["biomedclip"].mean, CATALOGUE["biomedclip"].std)
    assert (weights.normalize, weights.model["mlp"]) == ("given", "gelu")


def test_terms_are_known_by_every_spelling_of_the_licence() -> None:
    for licence in ("LicenseRef-DINOv3", "dinov3-license"):
        assert "acknowledge DINOv3 in publications" in str(terms_of(licence))
    for licence in ("LicenseRef-HAI-DEF", "health-ai-developer-foundations"):
        assert str(terms_of(licence)).startswith("HAI-DEF is provided under and subject to the Health AI Developer")
    assert [terms_of(licence) for licence in (None, "mit", "CC-BY-NC-ND-4.0")] == [None] * 3
    with_terms = {name for name, entry in CATALOGUE.items() if terms_of(entry.licence)}
    assert with_terms == {name for name in CATALOGUE if name.startswith("dinov3")} | {"medsiglip"}
