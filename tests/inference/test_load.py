"""`vitmed.load`: a model in a program, from a checkpoint and from an exported file."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from conftest import Trained
from PIL import Image

import vitmed
from vitmed.cli.terminal import print_predictions
from vitmed.core.errors import CheckpointError, DataError
from vitmed.deploy.http.content import ImageAnswer
from vitmed.deploy.structured_report import groups_of
from vitmed.inference.load import Model, predictions_json
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import BLANK


@pytest.fixture(params=["checkpoint", "exported"])
def model(request: pytest.FixtureRequest, trained: Trained, exported: Path) -> Model:
    return vitmed.load(exported if request.param == "exported" else trained.folder, precision="fp32")


def test_an_image_may_come_as_file_bytes_picture_or_array(model: Model, trained: Trained) -> None:
    path = sorted((trained.data / "test").rglob("*.png"))[0]
    picture = Image.open(path).convert("RGB")
    found = model.predict([path, str(path), path.read_bytes(), picture, np.asarray(picture)])
    assert len(found) == 5 and len({(answer.prediction, round(answer.probability or 0, 3)) for answer in found}) == 1
    for answer in found:
        assert answer.probabilities == pytest.approx(found[0].probabilities, abs=1e-5, rel=0)
        assert answer.prediction == path.parent.name
    alone = model.predict(path).probabilities
    assert alone == pytest.approx(found[0].probabilities, abs=1e-5, rel=0)


def test_probabilities_are_of_images_also_of_an_array_alone(model: Model, trained: Trained) -> None:
    path = sorted((trained.data / "test").rglob("*.png"))[0]
    pixels = np.asarray(Image.open(path).convert("RGB"))
    for image in (path, str(path), path.read_bytes(), pixels, Image.open(path).convert("RGB")):
        found = model.predict_proba(image)
        assert found == pytest.approx(model.predict_proba([path]), abs=1e-5) and found.shape == (1, 3)


def test_a_deep_picture_is_not_cut_at_255(model: Model) -> None:
    """Pillow has 16 bits in the modes I;16 and I, and floats in F; converted, all above 255 would become white."""
    for dtype in (np.uint16, np.int32, np.float32):
        deep = np.linspace(0, 4000, 64 * 64).reshape(64, 64).astype(dtype)
        with pytest.raises(DataError, match="need a window"):
            model.predict(Image.fromarray(deep))
        windowed = vitmed.load(model.saved, window="2048/4096")
        answers = windowed.predict([Image.fromarray(deep), deep])
        assert answers[0].probabilities == pytest.approx(answers[1].probabilities, abs=1e-6)
        assert all("2048/4096" in answer.note for answer in answers)


def test_a_picture_of_a_cmyk_file_has_the_colours_of_the_file(model: Model, tmp_path: Path) -> None:
    """Pillow opens it as its negative where the marker of Adobe is missing."""
    file = tmp_path / "ink.jpg"
    Image.new("CMYK", (16, 16), (51, 0, 255, 51)).save(file)
    for marker in (b"Adobe", b"Other"):
        file.write_bytes(file.read_bytes().replace(b"\xff\xee\x00\x0eAdobe", b"\xff\xee\x00\x0e" + marker))
        np.testing.assert_array_equal(model.square(Image.open(file)), model.square(file))


def test_the_answer_is_that_of_predict(model: Model, trained: Trained) -> None:
    paths = sorted((trained.data / "test").rglob("*.png"))
    own = vitmed.predict(paths, checkpoint=trained.best, precision="fp32")
    found = model.predict(paths)
    assert [answer.prediction for answer in found] == [own.classes[k] for k in own.predicted]
    np.testing.assert_allclose(model.predict_proba(paths), own.probabilities, atol=1e-5)
    assert list(model.classes_) == list(own.classes)
    assert [answer.answered for answer in found] == [cell == "yes" for cell in own.columns["answer"]]
    assert [" | ".join(answer.prediction_set or ()) for answer in found] == list(own.columns["set"])


def test_threads_may_share_a_model(model: Model, trained: Trained) -> None:
    paths = sorted((trained.data / "test").rglob("*.png"))
    alone = [model.predict(path).probabilities for path in paths]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda path: model.predict(path).probabilities, paths)) == alone


def test_what_cannot_be_read_is_named(model: Model, tmp_path: Path) -> None:
    (tmp_path / "torn.png").write_bytes(b"\x89PNG torn")
    for image, problem in (
        (tmp_path / "torn.png", "torn.png"),
        (b"\x89PNG torn", "image"),
        (b"", "empty"),
        (np.zeros((4, 4, 9), np.uint8), "shape"),
        (np.zeros((8, 8), np.uint16), "need a window"),
        (np.full((8, 8), np.nan), "not finite"),
        (np.zeros((3, 64, 64), np.uint8), "put the channels last"),
        (torch.zeros(3, 64, 64), "type Tensor"),
        (None, "type NoneType"),
        (io.BytesIO(b"\x89PNG torn"), "type BytesIO"),
        (bytearray(b"\x89PNG torn"), "type bytearray"),
        (np.zeros((8, 8, 2)), r"float64 and the shape \(8, 8, 2\)"),
        (np.array([["a", "b"]]), "array of <U1"),
    ):
        with pytest.raises(DataError, match=problem) as error:
            model.predict(image)
        assert isinstance(image, Path) or "remove" not in error.value.fix  # there is no file
    with pytest.raises(DataError, match="a folder, expected a file") as error:
        model.predict(tmp_path)
    assert error.value.fix == "name the files in it"
    with pytest.raises(DataError, match="bool") as error:
        model.predict(np.zeros((8, 8), bool))
    assert error.value.fix == "255 * image.astype(np.uint8)"
    cv2.imwrite(str(tmp_path / "deep.png"), np.full((8, 8, 3), 300, np.uint16))
    with pytest.raises(DataError, match="16 bits per channel, of which Pillow keeps 8"):
        model.predict(Image.open(tmp_path / "deep.png"))
    with pytest.raises(CheckpointError):
        vitmed.load(tmp_path / "none.pt")
    for age, name in ((9, "old"), (0, "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "best.pt").touch()
        os.utime(tmp_path / name / "best.pt", (1e9 - age, 1e9 - age))
    with pytest.raises(CheckpointError, match="is a folder") as refused:
        vitmed.load(tmp_path)
    assert refused.value.fix == f"name {tmp_path / 'new' / 'best.pt'}"


def test_a_large_set_comes_whole_to_programs_and_is_shortened_for_readers(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("left | right", *(f"c{k:02}" for k in range(24)))
    members = np.ones((1, 25), bool)
    found = Predictions(names, ("x.png",), None, None, np.zeros((1, 25), np.float32), members=members)
    found = replace(found, columns={"set": (" | ".join(names),), "answer": ("no: 25 classes are possible",)})
    shown = SimpleNamespace(unit="", preprocessing=SimpleNamespace(shown=lambda square: square))
    answer = next(Model.answers(shown, found, [np.zeros((4, 4, 3), np.uint8)]))  # type: ignore[arg-type]
    assert answer.prediction_set == names and ImageAnswer(
        **{**vars(answer), "image": "x", "note": "", "id": None, "picture": None}
    ).prediction_set == list(names)
    whole = groups_of(answer, None, "classes")[0]
    said = [one.value.meaning for one in whole.evaluations if one.name.meaning == "Cannot be excluded"]
    assert said == list(names)
    assert predictions_json(found, 1)["images"][0]["set"] == " | ".join(names)
    print_predictions(found, 1, None, SimpleNamespace(summary="the likeliest class is predicted"))
    text = "".join(capsys.readouterr())
    assert "0 of 1 image answered; 'no: 25 classes are possible' for 1\ndecision policy: the likeliest class" in text
    assert "c18 and 5 more" in text and "c19" not in text.replace("c19 0.", "")


@pytest.mark.parametrize("kind", ["trained", "findings", "ages", "graded", "raw", "exported"])
def test_an_image_without_content_is_told_apart(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """For every kind of label, a checkpoint without a policy and an exported file, in Python and in the table."""
    found = request.getfixturevalue("trained" if kind == "raw" else kind)
    file = found if kind == "exported" else found.folder / ("last.pt" if kind == "raw" else "best.pt")
    model, side = vitmed.load(file, precision="fp32"), 24
    channels = model.preprocessing.channels
    texture = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    images = {"pixel": texture[:1, :1], "black": 0 * texture, "wide": np.full((8, side, 3), 200, np.uint8)}
    images["texture"] = texture
    for name, pixels in images.items():
        Image.fromarray(pixels).convert("L" if channels == 1 else "RGB").save(tmp_path / f"{name}.png")
    paths = [tmp_path / f"{name}.png" for name in images]
    answers = model.predict(paths)
    assert [BLANK in answer.reason for answer in answers] == [True, True, True, False]
    assert not any(answer.answered for answer in answers[:3])
    table = vitmed.predict(paths, checkpoint=file, precision="fp32")
    assert [cell.startswith(f"no: {BLANK}") for cell in table.columns["answer"]] == [True, True, True, False]
    again = table if model.saved.policy is None else model.saved.policy.apply(table)
    assert again.columns == table.columns
    assert "answer" in vitmed.predict(paths[3:], checkpoint=file).columns or kind == "raw"


def test_json_of_findings_has_those_called_and_as_many_others_as_asked_for() -> None:
    logits = np.log([[0.9, 0.1, 0.4, 0.2]]) - np.log1p([[-0.9, -0.1, -0.4, -0.2]])
    found = FindingPredictions(("a", "b", "c", "d"), ("x.png",), None, None, logits.astype(np.float32))
    for top_k, shown in ((None, "abcd"), (1, "ac"), (2, "acd"), (9, "abcd")):
        image = predictions_json(found, top_k)["images"][0]
        assert image["prediction"] == ["a"] and "".join(part["finding"] for part in image["findings"]) == shown
