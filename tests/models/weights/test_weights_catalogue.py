"""What the catalogue states of public weights, against timm and torchvision; and what counts as one of its names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import timm
import torch
from foreign_networks import restless, same
from safetensors.torch import load_file, save_file
from timm.layers import SwiGLUPacked
from timm.models._pretrained import PretrainedCfg
from timm.models.deit import default_cfgs as deit_cfgs
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer import default_cfgs as vit_cfgs
from torch import nn

from vitmed.core.config import ModelConfig
from vitmed.core.dataset_cards import cards, find_card
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.load_config import load_config, store_paths
from vitmed.models.vit import ViT
from vitmed.models.weights.catalogue import (
    DISTILLED,
    MASKED,
    PAIRED,
    SUPERVISED,
    Entry,
    documents,
    entry_of,
    forbids_commerce,
    has_seen,
    means_file,
    public_weights,
    terms_of,
)
from vitmed.models.weights.layouts import HEAD, LAYOUTS
from vitmed.models.weights.pretrained import config_for_weights, load_pretrained, read_weights

HALF = (0.5, 0.5, 0.5)
TIMM = {  # name here -> name and tag in timm
    "vit_tiny_augreg_in21k": "vit_tiny_patch16_224.augreg_in21k",
    "vit_small_augreg_in21k": "vit_small_patch16_224.augreg_in21k",
    "vit_base_augreg_in21k": "vit_base_patch16_224.augreg_in21k",
    "vit_tiny_augreg_in21k_ft_in1k": "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "vit_small_augreg_in21k_ft_in1k": "vit_small_patch16_224.augreg_in21k_ft_in1k",
    "vit_base_augreg_in21k_ft_in1k": "vit_base_patch16_224.augreg_in21k_ft_in1k",
    "vit_base_augreg2_in21k_ft_in1k": "vit_base_patch16_224.augreg2_in21k_ft_in1k",
    "deit_tiny_patch16_224": "deit_tiny_patch16_224.fb_in1k",
    "deit_small_patch16_224": "deit_small_patch16_224.fb_in1k",
    "deit_base_patch16_224": "deit_base_patch16_224.fb_in1k",
    "mae_vit_base": "vit_base_patch16_224.mae",
    "mae_vit_large": "vit_large_patch16_224.mae",
    "dino_vits16": "vit_small_patch16_224.dino",
    "dino_vits8": "vit_small_patch8_224.dino",
    "dino_vitb16": "vit_base_patch16_224.dino",
    "dino_vitb8": "vit_base_patch8_224.dino",
    "dinov2_vits14": "vit_small_patch14_dinov2.lvd142m",
    "dinov2_vitb14": "vit_base_patch14_dinov2.lvd142m",
    "dinov2_vitl14": "vit_large_patch14_dinov2.lvd142m",
    "dinov2_vits14_reg4": "vit_small_patch14_reg4_dinov2.lvd142m",
    "dinov2_vitb14_reg4": "vit_base_patch14_reg4_dinov2.lvd142m",
    "dinov2_vitl14_reg4": "vit_large_patch14_reg4_dinov2.lvd142m",
    "dinov2_vitg14": "vit_giant_patch14_dinov2.lvd142m",
    "dinov2_vitg14_reg4": "vit_giant_patch14_reg4_dinov2.lvd142m",
}
WIDTHS = {"Ti": 192, "S": 384, "B": 768, "L": 1024}
LARGER = {"S+": 28, "H": 630, "H+": 840, "g": 1134, "SO400M": 412}  # million parameters of the blocks
WITH_MORE = {
    "conch",
    "keep",
    "biomedclip",
    "medsiglip",
    "retfound_cfp",
}  # files that also hold a text encoder or a decoder


def timm_says(name: str) -> PretrainedCfg:
    model, _, tag = TIMM[name].partition(".")
    return {**vit_cfgs, **deit_cfgs}[model].cfgs[tag]


@pytest.mark.parametrize("name", TIMM)
def test_what_is_stated_is_what_timm_states(name: str) -> None:
    entry, cfg = public_weights()[name], timm_says(name)
    if entry.hub:
        assert entry.hub == f"{cfg.hf_hub_id}{TIMM[name]}" and not cfg.url
    else:
        assert entry.url == cfg.url
    assert (entry.mean, entry.std, entry.interpolation) == (cfg.mean, cfg.std, cfg.interpolation)
    assert entry.licence.lower() == cfg.license and (3, entry.image_size, entry.image_size) == cfg.input_size


@pytest.mark.parametrize("name", ["vit_b_16", "vit_b_32", "vit_l_16"])
def test_what_is_stated_is_what_torchvision_states(name: str) -> None:
    from torchvision.models import get_model_weights

    weights: Any = get_model_weights(name)["IMAGENET1K_V1"]
    entry, transforms = public_weights()[f"torchvision_{name}"], weights.transforms()
    assert entry.url == weights.url and abs(entry.size - weights.meta["_file_size"] * 2**20) < 1000
    assert (list(entry.mean), list(entry.std)) == (transforms.mean, transforms.std)
    assert entry.interpolation == transforms.interpolation.value and [entry.image_size] == transforms.crop_size


def parameters(name: str) -> int:
    """As the short form of the model tells it: of the blocks, which are nearly all."""
    match = re.fullmatch(r"ViT-(\w+\+?)/(\d+)", public_weights()[name].model)
    assert match, name
    if match[1] in LARGER:
        return LARGER[match[1]] * 10**6
    width = WIDTHS[match[1]]
    return 12 * width * width * (24 if match[1] == "L" else 12)


@pytest.mark.parametrize("name", public_weights())
def test_every_entry_is_well_formed(name: str) -> None:
    entry = public_weights()[name]
    assert re.fullmatch(r"[a-z0-9_]+", name) and entry.url.startswith("https://") and entry.file
    assert entry.kind in (SUPERVISED, MASKED, DISTILLED, PAIRED) and entry.layout in LAYOUTS
    assert entry.readout in get_args(ModelConfig.model_fields["pool"].annotation)
    assert entry.layout == "Google npz" or not entry.file.endswith(".npz")
    assert entry.sha256 is None or re.fullmatch(r"[0-9a-f]{8}|[0-9a-f]{64}", entry.sha256)
    assert (f"-{entry.sha256}." in entry.file) == (entry.sha256 is not None and len(entry.sha256) == 8)
    assert ("sha256 is published" in entry.note) == (entry.sha256 is None and not entry.hub)
    assert entry.size is None or 1 < entry.size / (4 * parameters(name)) < (4 if name in WITH_MORE else 1.9)
    assert Path(entry.file).suffix in (".npz", ".pth", ".pt", ".bin", ".safetensors")
    if entry.hub:
        assert entry.url == f"https://huggingface.co/{entry.hub}/resolve/main/{entry.file}"
    assert entry.hub or not entry.gated


def test_weights_know_the_sets_that_they_were_made_with() -> None:
    seen = {name: {card for card in cards() if has_seen(entry.seen, card)} for name, entry in public_weights().items()}
    assert {name: found for name, found in seen.items() if found} == {
        "dinobloom_s": {"pbc_blood"}, "dinobloom_b": {"pbc_blood"}, "dinobloom_l": {"pbc_blood"},
        "medsiglip": {"pad_ufes_20", "pcam"}, "rad_dino": {"nih_chestxray14"}, "retfound_oct": {"kermany_oct"},
        "eva_x_ti": {"nih_chestxray14"}, "eva_x_s": {"nih_chestxray14"}, "eva_x_b": {"nih_chestxray14"},
    }  # fmt: skip
    assert has_seen(seen_by := public_weights()["rad_dino"].seen, "chestmnist_224") and not has_seen(seen_by, None)
    copies = documents()[1]["copies"]
    assert set(copies.values()) <= {*cards(), "CAMELYON16"}
    assert all(find_card(f"{name}_224").name == "medmnist_plus" for name in copies if name != "pcam")


def test_licences_that_forbid_commercial_use() -> None:
    assert forbids_commerce("CC BY-NC 4.0") and forbids_commerce("cc-by-nc-4.0") and not forbids_commerce("CC BY 4.0")
    forbidden = {name for name, entry in public_weights().items() if forbids_commerce(entry.licence)}
    assert {name for name, entry in public_weights().items() if entry.commercial is None} == {
        "torchvision_vit_b_16", "torchvision_vit_b_32", "torchvision_vit_l_16", "reddino_s", "reddino_b", "reddino_l",
        "gigapath_flash",
    }  # fmt: skip
    assert forbidden == {"mae_vit_base", "mae_vit_large", "phikon", "uni", "phikon_v2", "uni2_h", "virchow2",
                         "h_optimus_1", "h0_mini", "conch", "kaiko_vits16", "kaiko_vits8", "kaiko_vitb16",
                         "kaiko_vitb8", "kaiko_vitl14",
                         *(name for name in public_weights() if "retfound" in name)}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in public_weights() if name.startswith("dinov3")])
def test_dinov3_has_the_sizes_of_timm(name: str) -> None:
    entry = public_weights()[name]
    size = {"vits16": "small", "vits16plus": "small_plus", "vitb16": "base", "vitl16": "large",
            "vith16plus": "huge_plus"}[name.removeprefix("dinov3_")]  # fmt: skip
    model = timm.create_model(f"vit_{size}_patch16_dinov3", device="meta")
    count = sum(parameter.numel() for parameter in model.parameters())
    assert abs(entry.size / (4 * count) - 1) < 0.02 and entry.gated and entry.licence == "LicenseRef-DINOv3"


@pytest.mark.slow
def test_the_published_networks_have_the_sizes_that_are_stated() -> None:
    """As timm builds what the publishers state: see the sources beside the entries."""
    packed = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU, "init_values": 1e-5}
    huge, giant = "vit_huge_patch14_224", "vit_giant_patch14_dinov2"
    for names, model, fields in (
        (("virchow",), huge, {**packed, "mlp_ratio": 5.3375}),
        (("virchow2",), huge, {**packed, "mlp_ratio": 5.3375, "reg_tokens": 4}),
        (("uni2_h",), "vit_giant_patch14_224", {**packed, "depth": 24, "embed_dim": 1536, "num_heads": 24,
                                                "mlp_ratio": 2.66667 * 2, "reg_tokens": 8, "no_embed_class": True}),
        (("h_optimus_0", "h_optimus_1"), "vit_giant_patch14_reg4_dinov2", {}),
        (("midnight", "dinov2_vitg14"), giant, {}),
        (("h0_mini",), "vit_base_patch14_reg4_dinov2", {**packed, "mlp_ratio": 5.33334}),
        (("phikon_v2", "uni"), "vit_large_patch16_224", {"init_values": 1e-5}),
        (("phikon", "dino_vitb16", "kaiko_vitb16"), "vit_base_patch16_224", {}),
        (("kaiko_vits16",), "vit_small_patch16_224", {}),
        (("reddino_s",), "vit_small_patch14_dinov2", {"img_size": 224}),
        (("reddino_l",), "vit_large_patch14_dinov2", {"img_size": 224}),
    ):  # fmt: skip
        network = timm.create_model(model, num_classes=0, device="meta", **fields)
        count = sum(parameter.numel() for parameter in network.parameters())
        assert all(abs(public_weights()[name].size / (4 * count) - 1) < 0.02 for name in names), names


def test_near_names_are_listed() -> None:
    assert entry_of("phikon").hub == "owkin/phikon"
    with pytest.raises(UsageError, match=r"did you mean dinov2_vits14 or dinov2_vit") as error:
        entry_of("DINOv2-vits14")
    assert "vitmed weights list" in str(error.value)
    with pytest.raises(UsageError) as error:
        entry_of("resnet50")
    assert "did you mean" not in str(error.value)


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not means_file("uni") and not means_file("union")
    (tmp_path / "uni").mkdir()  # what `weights fetch --to .` might leave: no weight file
    assert not means_file("uni")
    (tmp_path / "uni").rmdir()
    (tmp_path / "uni").touch()
    assert [means_file(text) for text in ("a/uni", "uni.pth", "uni", "unii", "u" * 999)] == [True] * 3 + [False] * 2


def test_a_name_passes_through_the_configuration_untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    file = tmp_path / "configs" / "c.yaml"
    file.write_text("model: {weights: dino_vits16}\n")
    config = load_config(file)
    assert config.model.weights == "dino_vits16"
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    assert "weights: dino_vits16\n" in store_paths(config, run).to_yaml()
    (run / "config.yaml").write_text(store_paths(config, run).to_yaml())
    assert load_config(run / "config.yaml").model.weights == "dino_vits16"
    # a file keeps the road to itself, whatever its name
    (tmp_path / "configs" / "dino_vits16").touch()
    config = load_config(file)
    assert config.model.weights is not None and Path(config.model.weights) == file.parent / "dino_vits16"
    assert store_paths(config, run).model.weights == "../../configs/dino_vits16"
    file.write_text("model: {weights: mine.pth}\n")
    assert Path(str(load_config(file).model.weights)) == file.parent / "mine.pth"


def test_the_table_of_the_documentation_is_the_public_weights() -> None:
    lines = (Path(__file__).parents[3] / "docs" / "weights.md").read_text().splitlines()
    rows = [[part.strip(" `") for part in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    rows = [row for row in rows if len(row) == 7]
    assert {"dinov3_vitb16", "uni2_h", "medsiglip"} < {row[0] for row in rows}
    read = {"cls": "class token", "mean": "patch mean", "cls_mean": "class token and patch mean",
            "attention": "attention pooling", "coca": "attention pooling (CoCa)"}  # fmt: skip
    for name, model, readout, size, _, licence, download in rows:
        entry = public_weights()[name]
        stated = (entry.model, read[entry.readout], str(entry.image_size), entry.licence)
        assert (model, readout, size, licence) == stated and (download != "free") == entry.gated, name


W = 64
State = dict[str, torch.Tensor]


def of_timm(**fields: Any) -> State:
    """The names and shapes of timm's ViT, at a small width."""
    small = {"img_size": 4 * fields["patch_size"], "embed_dim": W, "depth": 2, "num_heads": 1, "num_classes": 0}
    return VisionTransformer(**small | fields).state_dict()


def retfound() -> State:
    """MAE's encoder is timm's ViT; beside it lies the decoder (facebookresearch/mae, models_mae.py)."""
    decoder = {"decoder_embed.weight": (32, W), "decoder_embed.bias": (32,), "mask_token": (1, 1, 32),
               "decoder_pos_embed": (1, 17, 32), "decoder_norm.weight": (32,), "decoder_norm.bias": (32,),
               "decoder_pred.weight": (768, 32), "decoder_pred.bias": (768,)}  # fmt: skip
    encoder = of_timm(patch_size=16)
    blocks = {f"decoder_{name}": tensor for name, tensor in encoder.items() if name.startswith("blocks.")}
    return encoder | {name: torch.zeros(shape) for name, shape in decoder.items()} | blocks


def gpfm() -> State:
    """The teacher of DINOv2's training: blocks in chunks, each numbered as in the whole (dinov2/models/
    vision_transformer.py), the token of masked patches, and the head of the loss (dinov2/layers/dino_head.py)."""
    names = of_timm(patch_size=14, init_values=1e-5) | {"mask_token": torch.zeros(1, W)}
    head = {f"mlp.{layer}.{part}": torch.zeros(8) for layer in (0, 2, 4) for part in ("weight", "bias")}
    head |= {"last_layer.weight_g": torch.ones(16, 1), "last_layer.weight_v": torch.zeros(16, 8)}
    backbone = {re.sub(r"^blocks\.(\d+)", r"blocks.\1.\1", name): tensor for name, tensor in names.items()}
    return {f"backbone.{k}": v for k, v in backbone.items()} | {f"dino_head.{k}": v for k, v in head.items()}


def phikon_v2(folder: Path) -> State:
    """What transformers writes of a Dinov2Model."""
    import transformers as hub

    config = hub.Dinov2Config(hidden_size=W, num_hidden_layers=2, num_attention_heads=1, patch_size=16, image_size=64)
    hub.Dinov2Model(config).save_pretrained(folder)
    return load_file(folder / "model.safetensors")


# The file's names, where the state dict lies in it, the network, and the names that are no part of it. Sources:
# - RETFound: github.com/rmaphoh/RETFound (models_vit.py, main_finetune.py)
# - Phikon-v2: Dinov2Model in huggingface.co/owkin/phikon-v2
# - GPFM: as released, github.com/kaiko-ai/eva (.../backbones/pathology/hkust.py) and birkhoffkiki/PrePATH
#   (models/dinov2); on the hub, mahmoodlab/TRIDENT (patch_encoder_models/load.py)
# - GigaPath-Flash: github.com/prov-gigapath/prov-gigapath (gigapath/tile_encoder.py)
# - kaiko: github.com/kaiko-ai/towards_large_pathology_fms (hubconf.py)
# - Lunit: github.com/lunit-io/benchmark-ssl-pathology (README.md)
PUBLISHED: dict[str, tuple[Callable[[Path], State], str, dict[str, Any], str]] = {
    "RETFound": (lambda _: retfound(), "model", {"patch_size": 16, "layer_scale": False}, "decoder|mask_token"),
    "Phikon-v2": (phikon_v2, "", {"patch_size": 16, "layer_scale": True, "norm_eps": 1e-6}, "mask_token"),
    "GPFM": (lambda _: gpfm(), "teacher", {"patch_size": 14, "layer_scale": True}, "mask_token|dino_head"),
    "GPFM on the hub": (
        lambda _: of_timm(patch_size=14, init_values=1e-5), "", {"patch_size": 14, "layer_scale": True}, "none"),
    "kaiko": (lambda _: of_timm(patch_size=8), "", {"patch_size": 8, "registers": 0, "layer_scale": False}, "none"),
    "kaiko L/14": (
        lambda _: of_timm(patch_size=14, init_values=1e-5, reg_tokens=4, no_embed_class=True), "",
        {"patch_size": 14, "registers": 4, "layer_scale": True}, "none"),
    "GigaPath-Flash": (
        lambda _: of_timm(patch_size=16, init_values=1e-5, mlp_layer=SwiGLUPacked, mlp_ratio=5.375), "",
        {"patch_size": 16, "mlp": "swiglu", "layer_scale": True}, "none"),
    "Lunit": (lambda _: of_timm(patch_size=8), "", {"patch_size": 8, "pool": "cls", "mlp": "gelu"}, "none"),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_of_medicine_load_by_their_published_names(tmp_path: Path, name: str) -> None:
    build, inside, network, beside = PUBLISHED[name]
    state = build(tmp_path)
    torch.save({inside: state, "epoch": 1} if inside else state, tmp_path / "w.torch")
    weights = read_weights(tmp_path / "w.torch")
    model = ViT(config_for_weights(ModelConfig(), weights), 3)
    report = load_pretrained(model, weights)
    assert {key: weights.model[key] for key in network} == network and weights.model["heads"] == 1
    unused = {key.removeprefix("backbone.") for key in state if re.search(beside, key)}
    assert report.fresh == HEAD and set(report.unused) == unused
    assert weights.kind == (MASKED if name == "RETFound" else DISTILLED)


@pytest.mark.parametrize("size", [224, 112])
def test_dinobloom_gives_the_features_of_timm(tmp_path: Path, size: int) -> None:
    """The teacher of DINOv2's training with 1 + 16 x 16 positions, and RedDino's, which timm wrote from one."""
    theirs = restless(VisionTransformer(img_size=224, patch_size=14, embed_dim=W, depth=2, num_heads=1, num_classes=0,
                                        init_values=1e-5, dynamic_img_size=True))  # fmt: skip
    names = {f"backbone.{name}": tensor for name, tensor in theirs.state_dict().items()}
    head = {f"{head}.last_layer.weight_v": torch.zeros(16, 8) for head in ("dino_head", "ibot_head")}
    torch.save({"teacher": names | {"backbone.mask_token": torch.zeros(1, W)} | head}, tmp_path / "DinoBloom-S.pth")
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    for file, entry in (("DinoBloom-S.pth", "dinobloom_s"), ("model.safetensors", "reddino_s")):
        weights = read_weights(tmp_path / file, public_weights()[entry])
        assert weights.state["pos_embed"].shape == (1, 257, W) and weights.normalize == "imagenet"
        model = ViT(config_for_weights(ModelConfig(image_size=size), weights), 3).eval()
        assert load_pretrained(model, weights).fresh == HEAD
        same(theirs, model.features, size)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    state = VisionTransformer(img_size=16, patch_size=8, embed_dim=64, depth=1, num_heads=1, num_classes=5).state_dict()
    torch.save(state, tmp_path / "w.pth")
    return tmp_path / "w.pth"


def test_what_the_catalogue_knows_travels_with_the_weights(file: Path) -> None:
    entry = Entry("https://x.invalid/w.pth", 1, "ViT", SUPERVISED, "a test", licence="CC-BY-NC-4.0", mean=HALF,
                  std=(0.1, 0.2, 0.3), interpolation="bilinear")  # fmt: skip
    weights = read_weights(file, entry)
    assert (weights.mean, weights.std) == (HALF, (0.1, 0.2, 0.3))
    assert (weights.interpolation, weights.licence) == ("bilinear", "CC-BY-NC-4.0")
    assert weights.normalize == "given" and weights.kind == SUPERVISED


def test_what_a_hub_file_beside_the_weights_knows_travels_too(file: Path) -> None:
    weights = read_weights(file)
    assert (weights.mean, weights.std, weights.interpolation, weights.licence) == (None, None, None, None)
    assert weights.normalize == "imagenet"
    beside = file.with_name("config.json")
    beside.write_text('{"architecture": "vit", "pretrained_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], '
                      '"interpolation": "bicubic", "license": "apache-2.0"}}')  # fmt: skip
    weights = read_weights(file)
    assert (weights.mean, weights.std, weights.interpolation) == (HALF, HALF, "bicubic")
    assert weights.licence == "apache-2.0" and weights.normalize == "half"
    beside = file.with_name("preprocessor_config.json")
    beside.write_text('{"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "resample": 2}')
    weights = read_weights(file)
    assert weights.mean == (0.485, 0.456, 0.406) and weights.interpolation == "bilinear" and weights.licence is None
    assert weights.normalize == "imagenet"
    for broken in ("{", "[]", '{"image_mean": "x"}', "null"):
        beside.write_text(broken)
        assert read_weights(file).normalize == "half"


@pytest.fixture
def hub_file(tmp_path: Path) -> Path:
    state = VisionTransformer(img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=3, num_classes=5).state_dict()
    torch.save(state, tmp_path / "model.bin")
    return tmp_path / "model.bin"


def test_what_no_tensor_shows_comes_from_the_configuration(hub_file: Path) -> None:
    assert (read_weights(hub_file).model["heads"], read_weights(hub_file).model["mlp"]) == (None, "gelu")
    hub_file.with_name("config.json").write_text(
        '{"vision_config": {"num_attention_heads": 3, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-5}}'
    )
    found = read_weights(hub_file).model
    assert (found["heads"], found["mlp"], found["norm_eps"]) == (3, "gelu_tanh", 1e-5)
    hub_file.with_name("config.json").write_text('{"architecture": "vit_base_patch16_clip_quickgelu_224"}')
    assert read_weights(hub_file).model["mlp"] == "quick_gelu"
    hub_file.with_name("config.json").write_text('{"architecture": "vit_so400m_patch16_siglip_384"}')
    assert read_weights(hub_file).model["mlp"] == "gelu_tanh"
    for broken in ("{", "[]", "null", '{"num_attention_heads": "x"}'):
        hub_file.with_name("config.json").write_text(broken)
        assert read_weights(hub_file).model["heads"] is None


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("vit_base_patch16_siglip_256", "gelu"),  # timm builds it with the exact one
        ("vit_base_patch32_siglip_256", "gelu_tanh"),
        ("vit_large_patch16_siglip_gap_512", "gelu_tanh"),
        ("naflexvit_base_patch16_siglip", "gelu_tanh"),
        ("vit_base_patch16_clip_quickgelu_224.openai", "quick_gelu"),
    ],
)
def test_a_file_of_timm_has_the_activation_of_its_name(hub_file: Path, name: str, activation: str) -> None:
    assert read_weights(hub_file.rename(hub_file.with_name(f"{name}.bin"))).model["mlp"] == activation


def test_another_activation_is_refused(hub_file: Path) -> None:
    hub_file.with_name("config.json").write_text('{"hidden_act": "relu"}')
    with pytest.raises(CheckpointError, match="states the activation relu, expected one of gelu, "):
        read_weights(hub_file)


def test_the_activation_beside_swiglu_says_nothing(tmp_path: Path) -> None:
    """Hugging Face's DINOv2 giant states "gelu"."""
    state = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=3, mlp_layer=SwiGLUPacked
    ).state_dict()
    torch.save(state, tmp_path / "model.bin")
    (tmp_path / "config.json").write_text('{"num_attention_heads": 3, "hidden_act": "silu"}')
    found = read_weights(tmp_path / "model.bin").model
    assert (found["heads"], found["mlp"]) == (3, "swiglu")


def test_the_licence_of_the_model_card(hub_file: Path) -> None:
    """As a snapshot of MedSigLIP or DINOv3 lies in a folder."""
    hub_file.with_name("preprocessor_config.json").write_text(
        '{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}'
    )
    card = hub_file.with_name("README.md")
    for header, licence in (
        ("license: other\nlicense_name: health-ai-developer-foundations", "health-ai-developer-foundations"),
        ("license: mit", "mit"),
        ("tags: [a]", None),
        ("license: [", None),
    ):
        card.write_text(f"---\n{header}\n---\n# A model\n")
        assert read_weights(hub_file).licence == licence
    card.write_text("# No header\n")
    assert read_weights(hub_file).licence is None


def test_openclips_configuration(hub_file: Path) -> None:
    hub_file.with_name("open_clip_config.json").write_text(
        '{"model_cfg": {"embed_dim": 512}, "preprocess_cfg": {"mean": [0.48145466, 0.4578275, 0.40821073], '
        '"std": [0.26862954, 0.26130258, 0.27577711]}}'
    )
    weights = read_weights(hub_file)
    assert (weights.mean, weights.std) == (public_weights()["biomedclip"].mean, public_weights()["biomedclip"].std)
    assert (weights.normalize, weights.model["mlp"]) == ("given", "gelu")


def test_terms_are_known_by_every_spelling_of_the_licence() -> None:
    for licence in ("LicenseRef-DINOv3", "dinov3-license"):
        assert "acknowledge DINOv3 in publications" in str(terms_of(licence))
    for licence in ("LicenseRef-HAI-DEF", "health-ai-developer-foundations"):
        assert str(terms_of(licence)).startswith("HAI-DEF is provided under and subject to the Health AI Developer")
    assert [terms_of(licence) for licence in (None, "mit", "CC-BY-NC-ND-4.0")] == [None] * 3
    with_terms = {name for name, entry in public_weights().items() if terms_of(entry.licence)}
    assert with_terms == {name for name in public_weights() if name.startswith("dinov3")} | {"medsiglip"}
