"""Foreign weights fit by name and shape, exactly accounted, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import TINY, Recorder, Trained, draw_splits
from timm.models.vision_transformer import VisionTransformer

from vitmed import build_model, train
from vitmed.errors import CheckpointError
from vitmed.model import ViT
from vitmed.weights import HEAD, load_pretrained

SMALL = {"image_size": 16, "patch_size": 8, "width": 16, "depth": 2, "heads": 2}


def ours(classes: int = 3, **fields: object) -> ViT:
    torch.manual_seed(1)
    return ViT(classes, **(SMALL | fields))  # type: ignore[arg-type]


def theirs(classes: int = 3) -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=classes)


@pytest.mark.parametrize("wrapped", [None, "model", "state_dict", "weights"])
def test_timm_weights_fit_by_identity(tmp_path: Path, wrapped: str | None) -> None:
    donor, model = theirs().eval(), ours().eval()
    state = donor.state_dict()
    torch.save({wrapped: state, "epoch": 3} if wrapped else state, tmp_path / "w.pt")
    report = load_pretrained(model, tmp_path / "w.pt")
    assert (report.fresh, report.unused) == ((), ()) and set(report.loaded) == set(state)
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model(x), donor(x), atol=1e-5, rtol=1e-5)


def test_the_head_alone_may_be_fresh(tmp_path: Path) -> None:
    torch.save(theirs(classes=10).state_dict() | {"fc.extra": torch.zeros(1)}, tmp_path / "w.pt")
    model = ours(classes=3)
    head = model.head.weight.detach().clone()
    report = load_pretrained(model, tmp_path / "w.pt")
    assert report.fresh == HEAD and report.unused == (*HEAD, "fc.extra")
    assert torch.equal(model.head.weight, head)
    assert "fresh: head.weight, head.bias" in str(report) and report.to_dict()["file"] == "w.pt"


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"width": 32}, "cls_token"), ({"image_size": 32}, "pos_embed"), ({"depth": 3}, "blocks.2."),
     ({"pool": "mean"}, "fc_norm"), ({"stem": "conv"}, "patch_embed")],
)  # fmt: skip
def test_what_else_does_not_fit_is_an_error_that_names_it(tmp_path: Path, fields: dict[str, object], name: str) -> None:
    torch.save(theirs().state_dict(), tmp_path / "w.pt")
    model = ours(**fields)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(CheckpointError) as error:
        load_pretrained(model, tmp_path / "w.pt")
    assert "w.pt" in str(error.value) and name in str(error.value)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())  # nothing half-loaded


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    torch.save({"a": 1}, tmp_path / "plain.pt")
    torch.save({"features.0.weight": torch.zeros(3)}, tmp_path / "vgg.pt")
    (tmp_path / "cut.pt").write_bytes(b"PK")
    for name in ("plain.pt", "vgg.pt", "cut.pt", "none.pt"):
        with pytest.raises(CheckpointError, match=name):
            load_pretrained(ours(), tmp_path / name)


def test_a_checkpoint_of_vitmed_is_a_weight_file(trained: Trained) -> None:
    fields = {**SMALL, "depth": 1, "stem": "conv", "pool": "mean", "weights": str(trained.best)}
    model = build_model("vit_tiny", 5, **fields)
    assert torch.equal(model.cls_token, torch.load(trained.best, weights_only=True)["weights"]["cls_token"])
    assert model.head.weight.shape == (5, 16)


@pytest.mark.usefixtures("no_figures")
def test_training_starts_from_them_and_says_so(tmp_path: Path, ui: Recorder) -> None:
    data = draw_splits(tmp_path / "data")
    donor = theirs(classes=7).state_dict()
    torch.save(donor, tmp_path / "w.pt")
    sets = ("model.width=16", "model.depth=2", "model.heads=2", "train.min_lr=0")
    settings = TINY | {"epochs": 1, "lr": 1e-30}  # so small that nothing moves
    result = train(data, weights=str(tmp_path / "w.pt"), output=tmp_path / "runs", sets=sets, ui=ui, **settings)
    saved = torch.load(result.checkpoint, weights_only=True)
    assert torch.equal(saved["weights"]["blocks.0.attn.qkv.weight"], donor["blocks.0.attn.qkv.weight"])
    assert (saved["config"]["model"]["stem"], saved["config"]["model"]["pool"]) == ("patch", "cls")
    assert any("weights w.pt" in line and "fresh: head.weight" in line for line in ui.said)
    assert (result.folder / "weights.json").is_file()
