"""`vitmed export`, and what uses the file: ONNX Runtime alone, `predict`, `evaluate`, and a Python without torch."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from conftest import Answer, Trained, draw_patients, images_of, python, recording
from PIL import Image
from served import serving

import vitmed as package
from vitmed.core.errors import CheckpointError, GateError, UsageError
from vitmed.deploy import export
from vitmed.deploy.structured_report import report_uid
from vitmed.inference.exported_graph import ExportedGraph
from vitmed.inference.onnx_model import DIGEST, KEY, UNSIGNED, load_onnx
from vitmed.inference.open_model import open_model
from vitmed.metrics.predictions import Predictions

WITHOUT_TORCH = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision", "torchinfo", "albumentations"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
from vitmed.cli import main
main(sys.argv[1:])
"""


def test_other_programs_decide_as_predict_does(trained: Trained, exported: Path) -> None:
    """From the pixels of an image, of any size, with onnxruntime and numpy alone."""
    session = onnxruntime.InferenceSession(exported)
    names = [output.name for output in session.get_outputs()]
    theirs = package.predict(images_of(trained), checkpoint=trained.best, precision="fp32")
    assert isinstance(theirs, Predictions)
    for row, path in enumerate(images_of(trained)):
        image = np.asarray(Image.open(path).convert("RGB"))
        found = dict(zip(names, session.run(None, {"images": image[None]}), strict=True))
        assert theirs.classes[found["prediction"][0]] == theirs.classes[theirs.predicted[row]]
        np.testing.assert_allclose(found["probabilities"][0], theirs.probabilities[row], atol=1e-5)
        np.testing.assert_allclose(found["logits"][0], theirs.logits[row], atol=1e-4)
        assert (found["answered"][0]) == (theirs.columns["answer"][row] == "yes")
        assert " | ".join(np.array(theirs.classes)[found["in_set"][0]]) == theirs.columns["set"][row]
        assert found["ood_score"][0] == pytest.approx(float(theirs.columns["ood_score"][row]), rel=1e-4)


def test_a_batch_of_any_size_and_shape(exported: Path) -> None:
    session = onnxruntime.InferenceSession(exported)
    for shape in ((1, 16, 16, 3), (5, 31, 90, 3), (2, 200, 77, 3)):
        found = session.run(["probabilities"], {"images": np.zeros(shape, np.uint8)})[0]
        assert found.shape == (shape[0], 3) and found.sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_the_file_says_what_it_is_and_names_no_place(trained: Trained, exported: Path) -> None:
    model = onnx.load(exported)
    onnx.checker.check_model(model)
    content = json.loads({prop.key: prop.value for prop in model.metadata_props}[KEY])
    assert content["classes"] == ["amber", "blue", "green"] and "research" in content["notice"].lower()
    assert content["gate"]["flipped"] == 0 and content["gate"]["largest"] < 1e-3
    # neither the folders of data and run, nor those of the programs, in which a user's name may stand
    programs = Path(package.__file__).parent, Path(torch.__file__).parent
    for weight in model.graph.initializer:  # numbers, whose bytes may be a short name by chance
        weight.raw_data = b""
    for secret in map(str, (trained.data, trained.folder, Path.home(), *programs, os.uname().nodename, "P00")):
        assert secret.encode() not in (exported.read_bytes() if len(secret) > 2 else model.SerializeToString()), secret


def test_predict_with_the_file_equals_predict_with_the_checkpoint(trained: Trained, exported: Path) -> None:
    first = package.predict(images_of(trained), checkpoint=exported)
    second = package.predict(images_of(trained), checkpoint=trained.best, precision="fp32")
    assert isinstance(first, Predictions) and isinstance(second, Predictions)
    np.testing.assert_allclose(first.logits, second.logits, atol=1e-4)
    assert first.columns["set"] == second.columns["set"] and first.columns["answer"] == second.columns["answer"]
    alone = package.predict(images_of(trained)[3], checkpoint=exported)
    assert isinstance(alone, Predictions) and (alone.logits[0] == first.logits[3]).all()  # to the bit


def test_predict_without_torch(trained: Trained, exported: Path) -> None:
    image = images_of(trained)[0]
    found = python("-c", WITHOUT_TORCH, "predict", str(image), "--checkpoint", str(exported), "--json")
    assert found.returncode == 0, found.stderr
    own = package.predict(image, checkpoint=trained.best, precision="fp32")
    assert isinstance(own, Predictions)
    answer = json.loads(found.stdout)["images"][0]
    assert answer["prediction"] == own.classes[own.predicted[0]]


@pytest.mark.slow
def test_evaluate_without_torch(
    trained: Trained, exported: Path, tmp_path: Path, vitmed: Callable[..., Answer]
) -> None:
    report = tmp_path / "report"
    refused = vitmed("evaluate", exported, "--data", trained.data / "train")
    assert refused.code == 3 and "used to make this model" in refused.err
    found = python("-c", WITHOUT_TORCH, "evaluate", str(exported), "--data", str(trained.data), "-o", str(report))
    assert found.returncode == 0, found.stderr
    assert "exported model, which does not list the images of its run" in (report / "report.html").read_text()
    metrics = json.loads((report / "metrics.json").read_text())
    expected = trained.result.test
    assert expected is not None
    for name in ("auroc", "accuracy", "log_loss"):
        assert metrics["overall"][name]["value"] == pytest.approx(expected.metrics.overall[name].value, abs=1e-5)


def test_an_exported_model_says_that_it_cannot_check_patients_and_that_its_training_was_cut_off(
    exported: Path, tmp_path: Path, no_figures: None
) -> None:
    model = onnx.load(exported)
    properties = {each.key: each.value for each in model.metadata_props if each.key != DIGEST}
    about = json.loads(properties[KEY])
    about["config"]["train"]["time"], about["record"] = 60.0, about["record"] | {"epoch": 1, "step": 1}
    onnx.helper.set_model_props(model, properties | {KEY: json.dumps(about)})
    onnx.save(model, tmp_path / "cut.onnx")
    data = draw_patients(tmp_path / "data", 1, seed=77)
    ui = recording()
    found = package.evaluate(tmp_path / "cut.onnx", data=data, group_regex=r"(P\d+)_", output=tmp_path / "report")
    notes = found.metrics.report.notes
    assert notes[0].startswith("The time ended training within its first pass: the network has learned from 8 of ")
    assert "An exported model names no patients: whether it was made with some of these is not known." in notes
    assert found.metrics.flow.evaluated.seen.patients is None
    assert any("finds it only in the folder of its run" in text for text in ui.said)


class Kept:
    """A session of the exported file in place of an export, which takes a quarter of a minute; its probabilities are
    changed."""

    moved = 0.002

    def __init__(self, exported: Path):
        self.session = onnxruntime.InferenceSession(exported)

    def run(self, names: None, images: dict[str, np.ndarray]) -> list[np.ndarray]:
        outputs = zip(self.session.get_outputs(), self.session.run(names, images), strict=True)
        return [value + self.moved if output.name == "probabilities" else value for output, value in outputs]


@pytest.fixture
def kept(exported: Path, monkeypatch: pytest.MonkeyPatch) -> type[Kept]:
    monkeypatch.setattr(export, "onnx_program", lambda graph, file: (onnx.load(exported), Kept(exported)))
    return Kept


def test_a_network_that_decides_otherwise_is_not_written(trained: Trained, kept: type[Kept], tmp_path: Path) -> None:
    """The exported graph is run on validation, and its outputs are compared: here they are changed on the way."""
    with pytest.raises(GateError, match=r"the largest difference is 0\.002") as stopped:
        package.export(trained.folder, to=tmp_path / "model.onnx")
    assert stopped.value.exit_code == 6 and not list(tmp_path.iterdir())


def test_what_cannot_be_exported(trained: Trained, tmp_path: Path, vitmed: Callable[..., Answer]) -> None:
    assert vitmed("export", trained.folder).code == 2
    assert vitmed("export", trained.folder, "--to", tmp_path / "model.txt").code == 2
    gone = vitmed("export", trained.folder, "--to", tmp_path / "model.pt2")
    assert gone.code == 2 and "vitmed writes no .pt2 any more; vitmed 0.2.0 does\nFix: --to model.onnx" in gone.err
    assert vitmed("export", tmp_path, "--to", tmp_path / "model.onnx").code == 4
    assert vitmed("export", trained.folder, "--to", trained.data / "model.onnx").code == 2
    (tmp_path / "there.onnx").write_bytes(b"mine")
    assert vitmed("export", trained.folder, "--to", tmp_path / "there.onnx").code == 2
    assert (tmp_path / "there.onnx").read_bytes() == b"mine"
    (tmp_path / "other").mkdir()
    found = vitmed("export", trained.folder, "--to", tmp_path / "model.onnx", "--data", tmp_path / "other")
    assert found.code == 3 and "cannot be read" in found.err and "exporting" not in found.err
    assert "Fix: name the place of its images: --data DIR" in found.err and found.err.count("no such file") == 1
    for flag in (["--data", trained.data], ["--force"]):
        found = vitmed("export", trained.folder, "--to", tmp_path / "folder", *flag)
        assert found.code == 2 and f"{flag[0]}: is for .onnx files" in found.err and not (tmp_path / "folder").exists()
    found = vitmed("export", trained.folder / "epoch_0002.pt", "--to", tmp_path / "model.onnx")
    assert found.code == 4 and "no decision policy" in found.err


def test_a_file_that_is_not_ours(tmp_path: Path, exported: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        load_onnx(tmp_path / "none.onnx")
    (tmp_path / "noise.onnx").write_bytes(os.urandom(2000))
    with pytest.raises(CheckpointError, match="cannot run it"):
        load_onnx(tmp_path / "noise.onnx")
    model = onnx.load(exported)
    told = json.loads(next(one.value for one in model.metadata_props if one.key == KEY))

    def changed(**parts: object) -> dict[str, str]:
        return {KEY: json.dumps(told | parts)}

    for properties, problem in (
        ({}, "not exported by vitmed"),
        ({KEY: '{"a":' * 100_000}, "damaged"),
        (changed(weights_sha256=[[]]), "damaged: weights_sha256"),
        (changed(classes=["blue"] * 3), "damaged: classes"),
        (changed(preprocessing=told["preprocessing"] | {"interpolation": 1.5}), "damaged: preprocessing"),
        (changed(preprocessing=told["preprocessing"] | {"resize": [1]}), "damaged: preprocessing"),
        (changed(preprocessing=told["preprocessing"] | {"image_size": 8}), "damaged: preprocessing"),
        ({KEY: "{"}, "damaged"),
        ({KEY: json.dumps({"format": "vitmed exported model", "version": 99})}, "export version 99"),
        ({KEY: json.dumps({"format": "vitmed exported model", "version": 1})}, "damaged"),
    ):
        del model.metadata_props[:]
        onnx.helper.set_model_props(model, properties)
        onnx.save(model, tmp_path / "other.onnx")
        with pytest.raises(CheckpointError, match=problem):
            load_onnx(tmp_path / "other.onnx")


def test_a_changed_number_of_the_network_is_damage(exported: Path, tmp_path: Path) -> None:
    """A graph with another weight runs as well as before; only its digest shows it."""
    model = onnx.load(exported)
    digests = [one.value for one in model.metadata_props if one.key == DIGEST]
    content = exported.read_bytes()
    assert hashlib.sha256(content.replace(digests[0].encode(), UNSIGNED.encode())).hexdigest() == digests[0]
    weight = max(model.graph.initializer, key=lambda one: len(one.raw_data))
    weight.raw_data = weight.raw_data[:-4] + np.float32(0.5).tobytes()
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(CheckpointError, match="its SHA-256 is not the one that it states"):
        load_onnx(tmp_path / "other.onnx")


def test_without_the_packages_one_sentence_says_what_to_install(
    trained: Trained, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UsageError, match=r"pip install 'vitmed\[export\]'"):
        package.export(trained.folder, to=tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"pip install 'vitmed\[export\]'"):
        package.predict(images_of(trained)[0], checkpoint=exported)


def test_an_exported_model_has_no_maps_and_one_precision(trained: Trained, exported: Path) -> None:
    for use, problem in (
        (lambda: package.explain(images_of(trained)[0], checkpoint=exported), "no attention maps"),
        (lambda: package.predict(images_of(trained)[0], checkpoint=exported, precision="bf16"), "fp32"),
        (lambda: package.predict(images_of(trained)[0], checkpoint=exported, device="cuda"), "the CPU"),
        (lambda: package.evaluate(exported), "--data DIR"),
    ):
        with pytest.raises(UsageError, match=problem):
            use()


def test_the_gate_compares_no_more_than_it_says(
    trained: Trained, kept: type[Kept], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "MOST", 4)
    monkeypatch.setattr(kept, "moved", 0.0)
    found = package.export(trained.folder, to=tmp_path / "model.onnx")
    assert found.gate.images == 4 and found.gate.resized
    assert load_onnx(found.file).gate == found.gate.to_dict()


@pytest.mark.parametrize(("above", "moved", "flips"), [(0.0, 2e-6, 0), (1e-4, 2e-6, 0), (1e-4, 2e-4, 1)])
def test_the_gate_compares_the_sets_unless_an_image_is_the_threshold_itself(
    trained: Trained, above: float, moved: float, flips: int
) -> None:
    """The logits of an export are `moved` towards a threshold of which one image lies `above` so many log odds; 0 is
    that of vitmed 0.2.0, which each rounding flips."""
    saved = open_model(trained.best)
    chosen, outputs = export.checkpoint_outputs(saved, trained.data)
    exact = Predictions(saved.classes, ("",) * len(chosen), None, None, outputs.logits)
    calibrated = saved.policy.calibrate(exact)
    row, other = 0, int(calibrated.calibrated_logits[0].argsort()[-2])  # a class that does not decide
    chance = calibrated.probabilities[row, other]
    least = np.full(3, 2.0)  # no class but the predicted one
    least[other] = 1 / (1 + (1 / chance - 1) * np.exp(above))
    sets = saved.policy.prediction_sets.model_copy(update={"least": tuple(least)})
    saved = replace(saved, policy=saved.policy.model_copy(update={"prediction_sets": sets}))
    graph, found = ExportedGraph(saved), iter(range(len(chosen)))
    shift = np.float32(-moved / saved.policy.calibration.scale[other]) * (np.arange(3) == other)

    class Moved:
        def run(self, names: None, images: dict[str, np.ndarray]) -> list[np.ndarray]:
            at = next(found)
            logits = torch.from_numpy(outputs.logits[at : at + 1] + shift * (at == row)).float()
            *decided, answered = graph.decide(logits.double())
            score = torch.tensor([float(outputs.columns["ood_score"][at])])
            return [each.numpy() for each in (logits, *decided, score, answered & (score <= 1))]

    gate = export.compare_export(saved, graph, Moved(), trained.data, chosen, outputs)
    assert gate.flipped == flips and gate.largest < 1e-3 and gate.passed == (not flips)


def test_quantised_as_the_documentation_says_the_file_still_predicts(
    trained: Trained, exported: Path, tmp_path: Path
) -> None:
    """The three lines of docs/export.md; onnxruntime keeps what the file says of itself."""
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    block = next(part for part in page.split("```")[1::2] if "quantize_dynamic" in part).removeprefix("python\n")
    assert len(block.strip().splitlines()) == 3
    (tmp_path / "model.onnx").write_bytes(exported.read_bytes())
    done = python("-c", block, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first = package.predict(images_of(trained), checkpoint=tmp_path / "small.onnx")
    second = package.predict(images_of(trained), checkpoint=exported)
    assert isinstance(first, Predictions) and isinstance(second, Predictions)
    assert 0 < np.abs(first.probabilities - second.probabilities).max() < 0.1
    with pytest.raises(UsageError, match=r"--precision fp32: .*small\.onnx computes in int8"):
        package.load(tmp_path / "small.onnx", precision="fp32")
    evaluated = package.evaluate(tmp_path / "small.onnx", data=trained.data / "test", output=tmp_path / "evaluated")
    assert any(note.startswith("Predicted in int8, not in fp32") for note in evaluated.metrics.notes)
    small, whole = package.load(tmp_path / "small.onnx"), package.load(exported, precision="fp32")
    assert (small.network.precision, whole.network.precision) == ("int8", "fp32")
    assert "was quantised" in small.network.reason and not whole.network.reason
    assert report_uid(small, "1.2.3") != report_uid(whole, "1.2.3")  # another content is another object
    with serving(tmp_path / "small.onnx") as served, served.client() as client:
        assert client.get("/health/ready").status_code == 200 and client.get("/v1/model").json()["precision"] == "int8"
