"""Foreign weights fit by name and shape, exactly accounted, or are refused."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from checkpoints import save
from conftest import BARE, Recorder, Trained, draw_splits, recording
from small_networks import small_vit
from timm.layers import SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer

import vitmed
from vitmed import build_model, train
from vitmed.core.config import ModelConfig
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.load_config import build_config
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.models.vit import ViT
from vitmed.models.weights.catalogue import has_seen
from vitmed.models.weights.layouts import HEAD
from vitmed.models.weights.pretrained import (
    LoadReport,
    Weights,
    config_for_weights,
    load_pretrained,
    open_weights,
    read_weights,
    resample_positions,
)
from vitmed.training.plan.make_plan import config_with_weights

SMALL = {"image_size": 16, "patch_size": 8, "width": 16, "depth": 2, "heads": 2}


def ours(classes: int = 3, **fields: object) -> ViT:
    torch.manual_seed(1)
    return small_vit(classes, **(SMALL | fields))  # type: ignore[arg-type]


def theirs(classes: int = 3) -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=classes)


def give(model: ViT, file: Path) -> LoadReport:
    return load_pretrained(model, read_weights(file))


@pytest.mark.parametrize(
    ("wrapped", "prefix"),
    [
        *((wrapped, "") for wrapped in (None, "model", "state_dict", "model_state_dict", "teacher", "weights")),
        *((None, prefix) for prefix in ("module.", "_orig_mod.", "net.", "backbone.", "module.backbone.")),
        ("state_dict", "module."),
        ("teacher", "module.backbone."),
    ],
)
def test_timm_weights_fit_by_identity(tmp_path: Path, wrapped: str | None, prefix: str) -> None:
    donor, model = theirs().eval(), ours().eval()
    state = {f"{prefix}{name}": value for name, value in donor.state_dict().items()}
    torch.save({wrapped: state, "epoch": 3} if wrapped else state, tmp_path / "w.pt")
    report = give(model, tmp_path / "w.pt")
    assert (report.fresh, report.unused, report.resized) == ((), (), ())
    assert set(report.loaded) == set(donor.state_dict())
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model(x), donor(x), atol=1e-5, rtol=1e-5)


def test_the_head_alone_may_be_fresh(tmp_path: Path) -> None:
    extra = {"mask_token": torch.zeros(1), "decoder_embed.weight": torch.zeros(2, 2)}
    torch.save(theirs(classes=10).state_dict() | extra, tmp_path / "w.pt")
    model = ours(classes=3)
    head = model.head.weight.detach().clone()
    report = give(model, tmp_path / "w.pt")
    assert report.fresh == HEAD and set(report.unused) == {*HEAD, *extra}
    assert torch.equal(model.head.weight, head)
    assert "fresh: head.weight, head.bias" in str(report) and report.file == "w.pt"
    assert give(ours(classes=10), tmp_path / "w.pt").fresh == ()
    assert give(ours(classes=10, pool="mean"), tmp_path / "w.pt").fresh == HEAD  # the file's reads the class token


def test_what_is_resampled_is_told(tmp_path: Path) -> None:
    torch.save(theirs().state_dict(), tmp_path / "w.pt")
    report = give(ours(image_size=32, channels=1), tmp_path / "w.pt")
    assert set(report.resized) == {"patch_embed.proj.weight", "pos_embed"} and not set(report.resized) & set(
        report.loaded
    )
    assert "resized" in str(report)


def test_positions_keep_their_place_when_resampled(tmp_path: Path) -> None:
    """A ramp over the image stays a ramp, and the class token's own row is untouched."""
    row = torch.arange(8.0).repeat_interleave(8)  # the row of each patch of an 8 x 8 grid
    positions = torch.cat([torch.full((1, 1, 1), 99.0), row[None, :, None]], dim=1)
    finer = resample_positions(positions, torch.Size((1, 1 + 16 * 16, 1)))
    assert finer[0, 0, 0] == 99
    expected = (torch.arange(16.0) + 0.5) / 2 - 0.5  # centres of the finer rows in units of the old ones
    inner = finer[0, 1:, 0].reshape(16, 16)[4:12, 8]
    torch.testing.assert_close(inner, expected[4:12], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"width": 32}, "its network is 16 wide, expected 32"), ({"depth": 3}, "blocks.2."),
     ({"stem": "conv"}, "patch_embed"), ({"layer_scale": True}, "blocks.0.ls1.gamma"), ({"registers": 2}, "reg_token")],
)  # fmt: skip
def test_what_else_does_not_fit_is_an_error_that_names_it(tmp_path: Path, fields: dict[str, object], name: str) -> None:
    torch.save(theirs().state_dict(), tmp_path / "w.pt")
    model = ours(**fields)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(CheckpointError) as error:
        give(model, tmp_path / "w.pt")
    assert "w.pt" in str(error.value) and name in str(error.value)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())  # nothing half-loaded


def test_the_file_decides_the_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    donor = VisionTransformer(img_size=56, patch_size=14, embed_dim=64, depth=2, num_heads=1, num_classes=7,
                              init_values=1e-5, reg_tokens=4, no_embed_class=True)  # fmt: skip
    torch.save(donor.state_dict(), tmp_path / "dinov2.pth")
    model = build_model(weights=str(tmp_path / "dinov2.pth"))
    assert (model.registers, len(model.blocks), model.blocks[0].attn.heads) == (4, 2, 1)
    x = torch.randn(1, 3, 56, 56)
    torch.testing.assert_close(model.eval()(x), donor.eval()(x), atol=1e-5, rtol=1e-5)  # the head of 7 classes is kept
    assert build_model(weights=str(tmp_path / "dinov2.pth"), num_classes=2).head.out_features == 2


def test_very_large_images_of_a_file_are_not_taken_over(tmp_path: Path) -> None:
    """DINOv2 ended at 518 px, which costs seven times 224 px."""
    state = VisionTransformer(img_size=518, patch_size=14, embed_dim=64, depth=1, num_heads=1).state_dict()
    torch.save(state, tmp_path / "w.pth")
    weights = read_weights(tmp_path / "w.pth")
    assert (weights.model["image_size"], config_for_weights(ModelConfig(), weights).image_size) == (518, 224)
    assert config_for_weights(ModelConfig(image_size=518), weights).image_size == 518


def test_a_number_set_by_hand_must_agree_with_the_weights(tmp_path: Path) -> None:
    state = VisionTransformer(img_size=16, patch_size=8, embed_dim=192, depth=2, num_heads=3).state_dict()
    torch.save(state, tmp_path / "w.pth")
    weights = read_weights(tmp_path / "w.pth")
    assert config_for_weights(ModelConfig(), weights).heads == 3
    wrong = {"width": 64, "depth": 3, "registers": 1, "mlp_ratio": 2.0, "stem": "conv", "name": "vit_base"}
    for name, value in wrong.items():
        with pytest.raises(UsageError, match=r"w\.pth"):
            config_for_weights(ModelConfig(**{name: value}), weights)  # type: ignore[arg-type]
    narrow = VisionTransformer(img_size=16, patch_size=8, embed_dim=64, depth=1, num_heads=2).state_dict()
    torch.save(narrow, tmp_path / "two.pth")
    ui, two = recording(), read_weights(tmp_path / "two.pth")
    assert config_for_weights(ModelConfig(), two).heads == 1
    assert "two.pth: no tensor shows the number of attention heads; 1 is assumed" in ui.warned.pop()
    assert config_for_weights(ModelConfig(heads=2), two).heads == 2 and not ui.warned
    torch.save(theirs().state_dict(), tmp_path / "narrow.pth")  # 16 wide
    with pytest.raises(UsageError, match=r"model\.heads"):
        config_for_weights(ModelConfig(), read_weights(tmp_path / "narrow.pth"))


def test_another_number_of_heads_than_the_file_has_is_refused_or_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No tensor shows the heads: 3 x 64 and 6 x 32 have the same shapes, and other features."""
    state = VisionTransformer(img_size=16, patch_size=8, embed_dim=192, depth=1, num_heads=3).state_dict()
    torch.save(state, tmp_path / "w.pth")
    build_model(weights=str(tmp_path / "w.pth"), heads=3)
    assert capsys.readouterr().err == ""
    assert build_model(weights=str(tmp_path / "w.pth"), heads=6).blocks[0].attn.heads == 6
    assert "w.pth: its network has 6 attention heads here, and usually 3" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"num_attention_heads": 3}')
    with pytest.raises(UsageError, match=r"model\.heads is 6, but w\.pth has 3"):
        build_model(weights=str(tmp_path / "w.pth"), heads=6)


def changed(tmp_path: Path, **tensors: torch.Tensor) -> Path:
    torch.save(theirs().state_dict() | tensors, tmp_path / "w.pt")
    return tmp_path / "w.pt"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("blocks.0.attn.q_norm.weight", "queries"),
        ("blocks.0.attn.rope.freqs", "rotary"),
        ("blocks.0.attn.relative_position_bias_table", "BEiT"),
        ("blocks.0.adapter.weight", "blocks.0.adapter.weight"),
        ("owlvit.vision_model.pre_layernorm.weight", "OWL-ViT"),
        ("embeddings.detection_tokens", "YOLOS"),
        ("blocks.0.attn.qkv.weight", "quantised"),
        ("blocks.0.attn.proj.weight", "is quantised or complex .torch.float8_e4m3fn."),
        ("blocks.0.attn.proj.weight", "is quantised or complex .torch.complex64."),
    ],
)
def test_what_is_no_plain_vit_is_refused_by_its_name(tmp_path: Path, name: str, what: str) -> None:
    tensor = torch.zeros(48, 16, dtype=torch.int8) if what == "quantised" else torch.zeros(4)
    if what.startswith("is "):
        tensor = torch.zeros(16, 16).to(torch.complex64 if "complex64" in what else torch.float8_e4m3fn)
    with pytest.raises(CheckpointError, match=what):
        read_weights(changed(tmp_path, **{name: tensor}))


@pytest.mark.parametrize("name", ["vit_small_patch16_rope_ape_224.naver_in1k", "vit_base_patch16_rpn_224.sw_in1k"])
def test_a_network_of_timm_that_only_its_name_shows_is_refused(tmp_path: Path, name: str) -> None:
    """Their tensors are those of a plain ViT; read as one, their features were wrong by 3 to 140 %."""
    weights = changed(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": name.split(".")[0]}))
    with pytest.raises(CheckpointError, match="patch16_r"):
        read_weights(weights)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match="patch16_r"):
        read_weights(weights.rename(tmp_path / f"{name}.pt"))


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit(99)",)


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    torch.save({"a": 1}, tmp_path / "plain.pt")
    torch.save({"features.0.weight": torch.zeros(3)}, tmp_path / "vgg.pt")
    torch.save({"cls_token": Hostile()}, tmp_path / "hostile.pt")
    whole = changed(tmp_path).read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cut.npz").write_bytes(b"PK")
    (tmp_path / "cut.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    (tmp_path / "folder.pt").mkdir()
    (tmp_path / "empty.pt").write_bytes(b"")
    for name in ("plain", "vgg", "hostile", "cut", "folder", "empty", "none"):
        with pytest.raises(CheckpointError, match=rf"{name}\.pt"):
            read_weights(tmp_path / f"{name}.pt")
    for name in ("cut.npz", "cut.safetensors"):
        with pytest.raises(CheckpointError, match=name):
            read_weights(tmp_path / name)


def test_a_file_that_holds_itself_is_refused(tmp_path: Path) -> None:
    """Looking for the state dict inside such a file would never end, at whatever depth the circle closes."""
    flat: dict[str, object] = {"epoch": 1}
    flat["model"] = flat
    deep: dict[str, object] = {"model": {"state_dict": {}}}
    deep["model"]["state_dict"]["model"] = deep  # type: ignore[index]
    listed: dict[str, object] = {"format": "vitmed checkpoint", "version": 1}
    listed["judgement"] = [listed]
    for name, content in (("flat.pth", flat), ("deep.pth", deep), ("listed.pth", listed)):
        torch.save(content, tmp_path / name)
        for read in (read_weights, load_checkpoint):
            with pytest.raises(CheckpointError, match=f"{name}.* contains itself"):
                read(tmp_path / name)


def test_parts_that_are_shared_are_no_circle(tmp_path: Path) -> None:
    state = theirs().state_dict()
    torch.save({"model": state, "state_dict": state, "both": [state, state]}, tmp_path / "w.pth")
    assert torch.equal(read_weights(tmp_path / "w.pth").state["cls_token"], state["cls_token"])


@pytest.mark.parametrize("name", ["w.pth", "model.safetensors", "w.npz"])
def test_a_git_lfs_pointer_is_called_one(tmp_path: Path, name: str) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 346\n"
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match="Git LFS"):
        read_weights(tmp_path / name)


def test_a_checkpoint_of_vitmed_is_a_weight_file(trained: Trained) -> None:
    fields = {**SMALL, "depth": 1, "stem": "residual", "pool": "mean", "weights": str(trained.best)}
    model = build_model("vit_tiny", 5, **fields)
    assert torch.equal(model.cls_token, torch.load(trained.best, weights_only=True)["weights"]["cls_token"])
    assert model.head.weight.shape == (5, 16)
    state = torch.load(trained.best, weights_only=True)["weights"]
    for pool in ("cls", "cls_mean"):  # the norm of the mean is that of all tokens
        other = build_model("vit_tiny", 5, **(fields | {"pool": pool}))
        assert torch.equal(other.norm.weight, state["fc_norm.weight"])


def test_a_run_folder_stands_for_its_best_checkpoint(trained: Trained, ui: Recorder) -> None:
    weights = open_weights(str(trained.folder))
    assert weights.path == trained.best and weights.model["width"] == 16


@pytest.mark.usefixtures("no_figures")
def test_a_run_goes_on_from_another_run_alone(tmp_path: Path, trained: Trained, ui: Recorder) -> None:
    """Network and normalisation are the first run's, though nothing but its file was named."""
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    settings = {name: value for name, value in BARE.items() if name not in ("image_size", "patch_size")}
    result = train(data, weights=str(trained.best), output=tmp_path / "runs", **(settings | {"epochs": 1}))
    first, second = (torch.load(file, weights_only=True)["config"] for file in (trained.best, result.checkpoint))
    for name in ("image_size", "patch_size", "width", "depth", "heads", "stem", "pool", "positions"):
        assert first["model"][name] == second["model"][name], name
    assert first["data"]["normalize"] == second["data"]["normalize"]


def test_what_a_checkpoint_of_vitmed_states_is_not_set_to_something_else(trained: Trained) -> None:
    for given in ({"heads": 4}, {"norm_eps": 0.1}, {"mlp": "quick_gelu"}):
        with pytest.raises(UsageError, match=rf"model\.{next(iter(given))} is .*, but best\.pt has"):
            config_for_weights(ModelConfig(**given), open_weights(str(trained.best)))


def test_a_checkpoint_of_a_named_size_tells_its_numbers(tmp_path: Path, trained: Trained) -> None:
    """Its config leaves width, depth and heads to the name; its image size is taken over, however large."""
    content = torch.load(trained.best, weights_only=True)
    content["config"]["model"] |= {"width": None, "depth": None, "heads": None, "image_size": 512}
    save(content, tmp_path / "best.pt")
    config = config_for_weights(ModelConfig(), read_weights(tmp_path / "best.pt"))
    assert (config.width, config.depth, config.heads, config.image_size) == (192, 12, 3, 512)


def test_public_sets_of_the_first_weights_are_known_in_the_second_generation(trained: Trained, tmp_path: Path) -> None:
    """A run from rad_dino, which knows NIH's chest X-rays; then one from this run, whose config names a file."""
    content, file = torch.load(trained.best, weights_only=True), tmp_path / "best.pt"
    for name, has in (("other.pth", False), (None, False), ("rad_dino", True), ("../rad_dino_run/best.pt", True)):
        content["config"]["model"]["weights"] = name
        save(content, file)
        weights = read_weights(file)
        assert has_seen(weights.seen, "nih_chestxray14") == has, name
        content["data"]["seen"] = list(weights.seen)  # as the next run stores it


@pytest.mark.parametrize("part", ["config", "weights", "config.model", "config.data", "data", "data.splits"])
def test_a_damaged_checkpoint_is_no_weight_file(tmp_path: Path, trained: Trained, part: str) -> None:
    content = torch.load(trained.best, weights_only=True)
    tables = (None, 3, {"model": 1, "data": 2}, {"a": "b"}) if part in ("config", "weights") else ()
    for wrong in (*tables, torch.ones(2, 2)):
        table = content
        *parents, last = part.split(".")
        for name in parents:
            table = table[name]
        right, table[last] = table[last], wrong
        save(content, tmp_path / "best.pt")
        with pytest.raises(CheckpointError, match=r"best\.pt"):
            read_weights(tmp_path / "best.pt")
        table[last] = right


@pytest.mark.parametrize(
    ("normalize", "mean", "std"),
    [("imagenet", None, None), ("half", None, None), ("image", None, None),
     ("given", (0.2, 0.5, 0.7), (0.1, 0.3, 0.2)), ("given", (0.53,) * 3, (0.26,) * 3)],
)  # fmt: skip
@pytest.mark.parametrize("patch", [8, 4])
def test_a_grey_image_gives_the_features_of_its_copy_in_three_channels(
    tmp_path: Path, normalize: str, mean: tuple[float, ...] | None, std: tuple[float, ...] | None, patch: int
) -> None:
    torch.save(theirs().state_dict(), tmp_path / "w.pt")
    torch.manual_seed(3)
    grey = torch.randint(0, 256, (2, 16, 16, 1), dtype=torch.uint8)
    features = {}
    for channels in (1, 2, 3, 4):
        how = Preprocessing(16, channels, "pad", normalize, mean, std)
        model = ours(channels=channels, patch_size=patch).eval()
        load_pretrained(model, read_weights(tmp_path / "w.pt"), how)
        alpha = torch.full_like(grey, 128)
        copies = [grey] * (1 if channels < 3 else 3) + [alpha] * (channels in (2, 4))
        features[channels] = model.features(how.normalise(torch.cat(copies, dim=-1)))
    for channels in (1, 2, 4):
        torch.testing.assert_close(features[channels], features[3], atol=1e-4, rtol=1e-4)


def test_a_stem_of_convolutions_keeps_its_features_in_grey_but_for_the_margin() -> None:
    """Its first convolution has no bias; the margin of zeros is the mean colour of three channels, and of one grey."""
    how = {channels: Preprocessing(32, channels, "pad", "imagenet") for channels in (1, 3)}
    colour, grey = (ours(stem="conv", image_size=32, channels=channels).eval() for channels in (3, 1))
    weights = Weights(Path("w"), "vitmed", colour.state_dict(), {"heads": 2}, "vitmed", "imagenet", ())
    load_pretrained(grey, weights, how[1])
    images = torch.randint(0, 256, (4, 32, 32, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    inside = [
        model.patch_embed.stem[:2](how[c].normalise(images.expand(-1, -1, -1, c)))[..., 1:-1, 1:-1]
        for c, model in ((3, colour), (1, grey))
    ]
    torch.testing.assert_close(*inside, atol=1e-4, rtol=1e-4)


def test_grey_weights_give_a_colour_image_the_features_of_its_mean(tmp_path: Path) -> None:
    donor = VisionTransformer(img_size=16, patch_size=8, in_chans=1, embed_dim=16, depth=2, num_heads=2, num_classes=3)
    torch.save(donor.state_dict(), tmp_path / "w.pt")
    torch.manual_seed(3)
    colour = torch.randint(0, 86, (2, 16, 16, 3), dtype=torch.uint8) * 3  # their mean is a whole number
    grey = colour.sum(dim=-1, keepdim=True).div(3).to(torch.uint8)
    out = []
    for images in (colour, grey):
        how = Preprocessing(16, images.shape[-1], "pad", "imagenet")
        model = ours(channels=images.shape[-1]).eval()
        load_pretrained(model, read_weights(tmp_path / "w.pt"), how)
        out.append(model.features(how.normalise(images)))
    torch.testing.assert_close(out[0], out[1], atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("no_figures")
def test_how_weights_want_images_and_their_licence_travel(tmp_path: Path, ui: Recorder) -> None:
    """From the hub's file beside the weights, through the checkpoint, into weights made of that checkpoint.

    The network is the file's, which alone is named and in half precision, and training says so.
    """
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    donor = VisionTransformer(img_size=16, patch_size=8, embed_dim=64, depth=1, num_heads=1, num_classes=7).state_dict()
    donor = {name: value.half() for name, value in donor.items()}
    torch.save(donor, tmp_path / "w.pt")
    told = {"mean": [0.53, 0.53, 0.53], "std": [0.26, 0.26, 0.26], "interpolation": "bicubic", "license": "mit"}
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": told}))
    settings = {name: value for name, value in BARE.items() if name not in ("image_size", "patch_size")}
    settings |= {"epochs": 1, "lr": 1e-30, "weights": str(tmp_path / "w.pt")}  # a rate so small that nothing moves
    result = train(data, output=tmp_path / "runs", resize="crop", sets=["train.min_lr=0"], **settings)
    saved = load_checkpoint(result.folder)
    qkv, model = saved.weights["blocks.0.attn.qkv.weight"], saved.config.model
    assert qkv.dtype == torch.float32 and torch.equal(qkv, donor["blocks.0.attn.qkv.weight"].float())
    assert (model.stem, model.pool, model.width, model.depth, model.image_size) == ("patch", "cls", 64, 1, 16)
    assert any("weights w.pt (timm)" in line and "fresh: head.weight" in line and "given" in line for line in ui.said)
    named = json.loads((result.folder / "weights.json").read_text())["name"]  # as in config.yaml, from the run folder
    assert not Path(named).is_absolute() and (result.folder / named).samefile(tmp_path / "w.pt")
    assert len(vitmed.predict(next((data / "test").rglob("*.png")), checkpoint=result.checkpoint)) == 1
    assert saved.preprocessing == Preprocessing(16, 3, "crop", "given", (0.53,) * 3, (0.26,) * 3, "bicubic")
    assert saved.config.model.licence == "mit"
    assert "licence mit" in result.test.metrics["report"]["facts"]["Started from"]
    again = read_weights(result.checkpoint)
    assert (again.normalize, again.mean, again.std) == ("given", (0.53,) * 3, (0.26,) * 3)
    assert (again.interpolation, again.licence, again.kind) == ("bicubic", "mit", "vitmed")
    for given, way in (({}, "crop"), ({"resize": "pad"}, "pad")):  # yours comes first
        taken = config_with_weights(build_config({"data": given}), again).data
        assert (taken.resize, taken.interpolation) == (way, "bicubic")


@pytest.mark.parametrize(
    ("extra", "lacks", "kind"),
    [({}, (), "supervised"), ({}, HEAD, "self-distilled"), ({"decoder_pred.weight": 1}, HEAD, "masked image")],
)
def test_how_weights_were_made_is_told_by_what_lies_in_the_file(
    tmp_path: Path, extra: dict[str, int], lacks: tuple[str, ...], kind: str
) -> None:
    state = {name: value for name, value in theirs().state_dict().items() if name not in lacks}
    torch.save(state | {name: torch.zeros(size) for name, size in extra.items()}, tmp_path / "w.pt")
    assert read_weights(tmp_path / "w.pt").kind == kind


def test_the_teacher_is_taken_and_settings_beside_it_do_no_harm(tmp_path: Path) -> None:
    """As DINO saves: student and teacher side by side, with the script's arguments."""
    teacher = theirs().state_dict()
    student = {name: torch.zeros_like(value) for name, value in teacher.items()}
    flat = {
        f"{who}.backbone.{name}": v for who, s in (("student", student), ("teacher", teacher)) for name, v in s.items()
    }
    torch.save(flat, tmp_path / "flat.pth")
    nested = {"student": student, "teacher": teacher, "args": argparse.Namespace(arch="vit", patch_size=8), "epoch": 99}
    torch.save(nested, tmp_path / "nested.pth")
    for file in ("flat.pth", "nested.pth"):
        assert torch.equal(read_weights(tmp_path / file).state["cls_token"], teacher["cls_token"]), file
    with pytest.raises(CheckpointError, match="refused"):
        load_checkpoint(tmp_path / "nested.pth")  # a checkpoint of vitmed holds plain types alone


def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path: Path) -> None:
    state = theirs().state_dict()
    state["blocks.1.norm1.weight"][3] = float("nan")
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=r"blocks\.1\.norm1\.weight holds numbers that are not finite"):
        read_weights(tmp_path / "w.pth")


def test_folders_and_addresses_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError) as error:
        read_weights(tmp_path / "hub")
    assert error.value.fix == f"name {tmp_path / 'hub' / 'model.safetensors'}"
    for wrong in ("", "https://example.invalid/w.pth"):
        with pytest.raises(UsageError, match="neither a file nor a name"):
            build_model(weights=wrong)


def test_python_objects_in_an_npz_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", evil=np.array([{"a": 1}], dtype=object))
    with pytest.raises(CheckpointError, match="refused: it holds Python objects"):
        read_weights(tmp_path / "w.npz")


def test_an_assumed_normalisation_is_said(tmp_path: Path) -> None:
    """Weights of AugReg expect mean and std 0.5, and a plain state dict does not say so."""
    state = theirs().state_dict()

    def normalised(name: str, **fields: object) -> tuple[str, list[str]]:
        file, ui = tmp_path / name, recording()
        file.parent.mkdir(exist_ok=True)
        torch.save(state, file)
        config = build_config({"data": fields, "model": {"heads": 2}})
        return config_with_weights(config, read_weights(file)).data.normalize, ui.warned

    how, (warning,) = normalised("w.pth")
    assert how == "imagenet"
    for part in ("w.pth: nothing states", "ImageNet's", "AugReg", "--normalize half"):
        assert part in warning
    assert normalised("w.pth", normalize="half") == ("half", [])  # you said so
    assert normalised("vit_tiny_patch16_224_augreg.pth") == ("half", [])
    assert normalised("vit_tiny_patch16_224.augreg_in21k/model.pth") == ("half", [])
    assert normalised("augreg_and_others/deit_tiny_patch16_224.pth") == ("imagenet", [])  # its own name counts first
    assert normalised("deit_tiny_patch16_224-a1311bcf.pth") == ("imagenet", [])
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text(
        json.dumps({"pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}})
    )
    assert normalised("hub/w.pth") == ("half", [])
    state = {name: value for name, value in state.items() if not name.startswith("head.")}
    assert normalised("dino.pth") == ("imagenet", [])
    how, (warning,) = normalised("w.pth")  # an encoder alone: DINO, MAE, or Google's of ImageNet-21k with 0.5
    assert how == "imagenet" and "nothing states" in warning
    state["mask_token"] = torch.zeros(1, 64)  # DINOv2
    assert normalised("w.pth") == ("imagenet", [])


@pytest.mark.parametrize(
    ("name", "how"), [("vit_base_patch16_siglip_224", "half"), ("vit_base_patch16_clip_224", "given")]
)
def test_encoders_of_pairs_have_their_own_normalisation(tmp_path: Path, name: str, how: str) -> None:
    """Without a file beside them: SigLIP's pooling and CLIP's first norm stand in no other network."""
    network = timm.create_model(name, **SMALL_OF_TIMM)
    torch.save(network.state_dict(), tmp_path / "w.pth")
    weights, stated = read_weights(tmp_path / "w.pth"), timm.get_pretrained_cfg(name).to_dict()
    assert (weights.normalize, weights.assumed) == (how, how == "given")  # LAION's large ones have 0.5: a warning
    assert weights.mean == pytest.approx(stated["mean"]) and weights.std == pytest.approx(stated["std"])


SMALL_OF_TIMM = {"img_size": 16, "patch_size": 8, "embed_dim": 64, "depth": 1, "num_heads": 1, "num_classes": 3}


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ("swin_tiny_patch4_window7_224", "Swin, whose tokens attend in windows"),
        pytest.param("davit_tiny", "DaViT, which attends in windows and across channels", marks=pytest.mark.slow),
        ("convnext_tiny", "ConvNeXt, a convolutional network"),
        pytest.param("resnetv2_50x1_bit", "ResNet or BiT, a convolutional network", marks=pytest.mark.slow),
        ("resnet18", "ResNet or BiT, a convolutional network"),
        pytest.param("densenet121", "a CNN", marks=pytest.mark.slow),
        ("beit_base_patch16_224", "relative positions"),
        ("eva02_base_patch16_clip_224", "a norm inside the attention"),
        ("eva_giant_patch14_224", "separate biases"),
        ("vit_small_patch16_rope_224", "no learned positions"),
        ("vit_base_patch16_siglip_gap_224", "no class token"),
        ("vit_tiny_r_s16_p8_224", "no patch embedding by one convolution"),
        ("vit_pe_core_tiny_patch16_384", "rotary positions too"),
    ],
)
def test_other_networks_of_timm(tmp_path: Path, model: str, what: str) -> None:
    shallow = {"depth": 1} if "patch16" in model or "eva" in model else {}
    shallow |= {"depths": (1, 1, 1, 1)} if model in ("swin_tiny_patch4_window7_224", "convnext_tiny") else {}
    shallow |= {"embed_dim": 176, "num_heads": 2} if "giant" in model else {}
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
    return VisionTransformer(**SMALL_OF_TIMM, mlp_layer=SwiGLUPacked, mlp_ratio=4).state_dict()  # type: ignore[arg-type]


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
