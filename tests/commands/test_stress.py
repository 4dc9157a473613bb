"""`vitmed stress`: the same each time, on what can be read, never over what is there, and shown in the next report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import BARE, TINY_SETS, Answer, Trained, draw_only, draw_splits, recording

import vitmed as package
from vitmed.core.errors import CheckpointError, DataError, UsageError
from vitmed.explanation.robustness import CORRUPTIONS, pick_images

RUN = Callable[..., Answer]


@pytest.fixture
def run(trained: Trained, tmp_path: Path) -> Path:
    """A copy of the run, that may get folders of its own; with the data beside it."""
    shutil.copytree(trained.data, tmp_path / "data")
    shutil.copytree(trained.folder, tmp_path / "runs" / "tiny")
    return tmp_path / "runs" / "tiny"


def test_the_folder_and_the_report(run: Path, vitmed: RUN, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch, "robustness")
    args = ("stress", run, "--corruption", "jpeg", "--corruption", "hue", "--json")
    answer = vitmed(*args)
    assert answer.code == 0, answer.err
    folder = run / "stress"
    assert sorted(path.name for path in folder.iterdir()) == ["stress.json", "stress.png"]
    given = json.loads(answer.out)
    assert given.pop("folder") == str(folder)
    assert json.loads((folder / "stress.json").read_text()) == given
    assert given["verdict"] in answer.err and list(given["corruptions"]) == ["jpeg", "hue"]
    assert (given["n"], given["images_of"], given["checkpoint"]) == (18, 18, "best.pt")
    assert str(run.parent) not in (folder / "stress.json").read_text()
    own = json.loads((run / "test" / "metrics.json").read_text())["overall"]
    for name in ("accuracy", "balanced_accuracy", "auroc"):  # clean: what evaluate says, of the same images
        assert given["clean"][name]["value"] == pytest.approx(own[name]["value"])

    again = json.loads(vitmed(*args).out)
    assert again.pop("folder") == str(run / "stress-2") and again == given

    report = package.evaluate(run, resamples=5)
    html = (report.folder / "report.html").read_text()
    section = html.partition('id="robustness"')[2].partition("</section>")[0]
    assert given["verdict"] in section and "JPEG" in section and "Hue" in section
    assert (report.folder / "robustness.png").is_file() and report.metrics.robustness.to_dict() == given
    rebuilt = package.evaluate(report.folder / "predictions.csv", output=run / "again")
    assert rebuilt.metrics.robustness.to_dict() == given


@pytest.mark.slow
def test_all_corruptions_on_a_sample(run: Path) -> None:
    ui = recording()
    found = package.stress(run, images=4)
    assert list(found.content["corruptions"]) == list(CORRUPTIONS) and found.content["skipped"] == {}
    error = found.content["mean_corruption_error"]  # by the jackknife, as tests/explanation/test_robustness.py by hand
    assert found.content["n"] == 4 and error["low"] <= error["value"] <= error["high"]
    assert any("4 of 18 images" in text for text in ui.said)


def test_an_unreadable_image_among_several(run: Path) -> None:
    (run.parent.parent / "data" / "test" / "blue" / "blue_3.png").write_bytes(b"torn")
    ui = recording()
    found = package.stress(run, corruptions=["darker", "darker"])  # named twice, counted once
    assert any("1 corruption of 5 strengths" in text for text in ui.said)
    assert found.content["n"] == 17 and found.content["unreadable"] == 1
    assert any("could not be read" in note for note in found.content["notes"])
    assert any("blue_3.png" in text for text in ui.warned)
    for file in (run.parent.parent / "data" / "test").rglob("*.png"):
        file.write_bytes(b"torn")
    with pytest.raises(DataError, match="png"):
        package.stress(run, corruptions=["darker"])


def test_wrong_questions(run: Path) -> None:
    for checkpoint, given, told in (
        (run, {"corruptions": ["jpg"]}, "did you mean 'jpeg'"),
        (run, {"split": "tset"}, "split"),
        (run, {"images": 0}, "images"),
        (run, {"output": run / "test"}, "not empty"),
        (run / "none.pt", {}, r"none\.pt"),
    ):
        with pytest.raises((CheckpointError, UsageError), match=told):
            package.stress(checkpoint, **given)
    assert not (run / "stress").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_grey_images_have_no_stain(tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", train=6, val=2, test=1)
    settings = BARE | {"epochs": 1, "channels": 1}
    result = package.train(data, output=tmp_path / "runs", sets=TINY_SETS, **settings)
    found = package.stress(result.folder)
    assert found.content["skipped"] == dict.fromkeys(["stain", "hue"], "needs colour, and the network sees grey")
    with pytest.raises(UsageError, match="hue: needs colour, and the network sees grey"):
        package.stress(result.folder, corruptions=["hue"], output=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_sample_keeps_every_class() -> None:
    labels = [0] * 1000 + [1] * 50 + [2]
    rows = pick_images(labels, 100, 0)
    assert rows == sorted(set(rows)) and len(rows) == 100 and pick_images(labels, 100, 0) == rows
    assert np.bincount(np.array(labels)[rows]).tolist() == pytest.approx([94, 5, 1], abs=1)
    assert pick_images(labels, 5000, 0) == list(range(1051))
    assert pick_images(labels, 100, 1) != rows
