"""`vitmed export` into a folder: timm loads it with the logits of the run; what no library holds is refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import Answer, Trained, recording
from PIL import Image

import vitmed as package
from vitmed.core.config import ModelConfig
from vitmed.core.errors import UsageError
from vitmed.deploy import export
from vitmed.deploy.export import lacks
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.models.sizes import resolved
from vitmed.studies.one_run import TrainResult

timm = pytest.importorskip("timm")
FILES = {"README.md", "config.json", "model.safetensors"}


@pytest.fixture(scope="session")
def for_timm(plain_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "colours"
    return package.export(plain_run, to=folder).file


def program_of(card: Path) -> str:
    return card.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


def header_of(card: Path) -> Any:
    return yaml.safe_load(card.read_text(encoding="utf-8").split("---\n")[1])


def run_card(folder: Path, image: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    """The names that the program of a card defines, run beside its folder on a picture."""
    monkeypatch.chdir(folder.parent)
    Image.open(image).save("image.png")
    found: dict[str, Any] = {}
    exec(program_of(folder / "README.md"), found)
    return found


def test_the_program_of_the_card_gives_the_probabilities_of_predict(
    plain_run: Path, for_timm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the pixels of an image that is not square, with timm, torch and Pillow alone."""
    image = tmp_path / "wide.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 33, 3), dtype=np.uint8)).save(image)
    found = run_card(for_timm, image, monkeypatch)
    ours: Any = package.predict(image, checkpoint=plain_run, precision="fp32")
    np.testing.assert_allclose(found["logits"].numpy(), ours.logits, atol=1e-5)
    np.testing.assert_allclose(found["probabilities"].numpy(), ours.probabilities, atol=1e-5)
    assert np.abs(ours.probabilities - np.exp(ours.logits) / np.exp(ours.logits).sum()).max() > 0.05  # calibrated


def test_the_program_of_the_card_refuses_what_only_vitmed_windows(
    for_timm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Converted by Pillow, all values above 255 would be white."""
    for dtype, name in ((np.uint16, "deep.png"), (np.int32, "deep.tif"), (np.float32, "float.tif")):
        Image.fromarray(np.full((20, 20), 300, dtype)).save(tmp_path / name)
        monkeypatch.chdir(for_timm.parent)
        code = program_of(for_timm / "README.md").replace("image.png", str(tmp_path / name))
        with pytest.raises(AssertionError, match="more than 8 bits: vitmed reads such an image"):
            exec(code, {})


def test_transformers_is_told_that_findings_do_not_exclude_one_another(findings: TrainResult, for_timm: Path) -> None:
    """Without it, its `pipeline` gives probabilities that add up to 1."""
    saved = load_checkpoint(findings.folder)
    stated = export.described(saved, resolved(saved.config.model).model_dump())
    assert stated["problem_type"] == "multi_label_classification"
    assert "problem_type" not in json.loads((for_timm / "config.json").read_text())


@pytest.mark.slow
def test_transformers_loads_the_folder_too(plain_run: Path, for_timm: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForImageClassification.from_pretrained(for_timm).eval()
    x = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(model(x).logits, load_checkpoint(plain_run).model()(x), atol=1e-5, rtol=0)
    assert model.config.id2label == {0: "amber", 1: "blue", 2: "green"}


def test_a_licence_against_sharing_is_named(plain_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "stops_sharing", lambda licence: "forbids adapted versions")
    ui = recording()
    package.export(plain_run, to=tmp_path / "folder")
    assert any("forbids adapted versions: read it before you share the model" in text for text in ui.warned)


def test_the_folder_is_timms_and_says_what_it_is(for_timm: Path) -> None:
    assert {file.name for file in for_timm.iterdir()} == FILES
    model = timm.create_model(f"local-dir:{for_timm}", pretrained=True)
    assert model.pretrained_cfg["label_names"] == ["amber", "blue", "green"]
    how = timm.data.resolve_model_data_config(model)
    assert how["input_size"] == (3, 16, 16) and tuple(how["mean"]) == (0.485, 0.456, 0.406) and how["crop_pct"] == 1.0
    stated = json.loads((for_timm / "config.json").read_text())["vitmed"]
    assert "Research use only" in stated["notice"] and stated["policy"]["calibration"]["method"] == "vector"
    header = header_of(for_timm / "README.md")
    assert header["library_name"] == "timm" and header["license"] == "unknown" and header["model-index"]
    card = (for_timm / "README.md").read_text()
    assert "Research use only" in card and "| AUROC |" in card


def test_export_prints_the_line_that_loads_it(plain_run: Path, tmp_path: Path) -> None:
    ui = recording()
    package.export(plain_run, to=tmp_path / "folder")
    model = eval(ui.said[-1].splitlines()[1], {"timm": timm}).eval()
    x = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(model(x), load_checkpoint(plain_run).model()(x), atol=1e-5, rtol=0)


def test_it_names_no_place_and_no_patient(plain_run: Path, for_timm: Path) -> None:
    saved = load_checkpoint(plain_run)
    secrets = [str(plain_run.parents[1]), "SECRET", "PATIENT", str(Path.home()), os.uname().nodename]
    files = list(for_timm.iterdir())
    assert {"config.json", "model.safetensors"} <= {file.name for file in files}
    for file in files:
        for secret in (*secrets, *(digest for split in saved.hashes.values() for digest in split)):
            assert secret.encode() not in file.read_bytes(), (file, secret)


def test_it_needs_safetensors_and_no_timm(plain_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    found = package.export(plain_run, to=tmp_path / "hf-folder")
    assert {file.name for file in found.file.iterdir()} == FILES
    assert found.gate is None
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(UsageError, match=r"pip install 'vitmed\[weights\]'"):
        package.export(plain_run, to=tmp_path / "second")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"stem": "residual"}, "stem of convolutions (residual)"),
        ({"positions": "rotary"}, "rotary"),
        ({"pool": "cls_mean"}, "read-out cls_mean"),
        ({"pool": "mean", "registers": 4, "layer_scale": True, "mlp": "swiglu"}, None),
        ({"norm_eps": 1e-12}, "1e-12"),
    ],
)
def test_what_timm_lacks_is_named(fields: dict[str, Any], expected: str | None) -> None:
    found = lacks(resolved(ModelConfig(**fields)).model_dump())
    assert found is None if expected is None else (found and expected in found)


def test_what_is_refused(trained: Trained, plain_run: Path, tmp_path: Path, vitmed: Callable[..., Answer]) -> None:
    found = vitmed("export", trained.folder, "--to", tmp_path / "folder")
    assert found.code == 2 and "a stem of convolutions (residual), which vitmed cannot write" in found.err
    assert "--to model.onnx" in found.err and "vitmed train --stem patch" in found.err
    for arguments in (
        (plain_run, "--to", tmp_path / "folder", "--form", "timm"),
        (plain_run, "--to", tmp_path / "model.safetensors"),
        (plain_run, "--to", plain_run.parents[1] / "SECRET-clinic" / "folder"),
        (plain_run, "--to", plain_run),
    ):
        assert vitmed("export", *arguments).code == 2, arguments
    assert not list(tmp_path.iterdir())
