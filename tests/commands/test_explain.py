"""`vitmed explain`, and what a report says of maps: private, whole, and honest about what was not checked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import BARE, Answer, Trained, draw_only, draw_splits, recording
from PIL import Image

import vitmed as package
from vitmed.core.errors import CheckpointError, DataError, UsageError
from vitmed.explanation.faithfulness import images_to_draw
from vitmed.explanation.results import OF_OTHER, Maps, known_verdicts
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.predictions import Predictions
from vitmed.report.plots.drawing import Drawn
from vitmed.report.plots.pictures import attention_maps

RUN = Callable[..., Answer]
METHODS = ["rollout", "gradient_rollout", "grad_cam"]


def test_pictures_and_json(trained: Trained, vitmed: RUN, tmp_path: Path) -> None:
    folder, images = tmp_path / "maps", tmp_path / "MUELLER"
    shutil.copytree(trained.data / "test" / "amber", images)
    (images / "broken.png").write_bytes(b"no image")
    answer = vitmed("explain", images, "--checkpoint", trained.best, "-o", folder, "--json")
    assert answer.code == 3 and "broken.png" in answer.err and "Traceback" not in answer.err
    given = json.loads(answer.out)
    assert given.pop("folder") == str(folder)
    assert json.loads((folder / "explain.json").read_text()) == given
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(["explain.json", *(f"row-{i}.png" for i in range(1, 7))])
    assert not any(b"MUELLER" in (folder / name).read_bytes() for name in names if name.endswith(".png"))
    assert given["checkpoint"] == "best.pt" and "not a medical device" in given["notice"]
    assert list(given["methods"]) == METHODS
    assert [len(given["images"]), len(given["errors"])] == [6, 1]
    predicted = package.predict(images, checkpoint=trained.best)
    for row, path in enumerate(predicted.paths):
        told = given["images"][row]
        assert told["path"] == path and told["picture"] == f"row-{row + 1}.png"
        assert told["prediction"] == told["explained"] == predicted.classes[predicted.predicted[row]]
        assert told["probability"] == pytest.approx(predicted.confidence[row], abs=1e-5)
        assert all(np.shape(grid) == (2, 2) for grid in told["maps"].values())
    assert "rollout:" in answer.err.lower()
    coarse = "maps of 2 x 2 patches show nothing smaller than 50 % of the side"
    assert coarse in " ".join(answer.err.split())


def test_a_method_and_a_class_can_be_named(trained: Trained, tmp_path: Path) -> None:
    image = trained.data / "test" / "blue" / "blue_0.png"
    given = {"methods": ["grad_cam"], "target": "green", "output": tmp_path / "x"}
    found = package.explain(image, checkpoint=trained.folder, **given)
    assert list(found.maps) == ["grad_cam"] and found.maps["grad_cam"].shape == (1, 2, 2)
    assert found.targets.tolist() == [found.predictions.classes.index("green")]
    assert found.verdicts == {"grad_cam": OF_OTHER}  # evaluate tested the maps of the predicted class, blue
    predicted = package.explain(
        image, checkpoint=trained.folder, **given | {"target": "blue", "output": tmp_path / "b"}
    )
    assert predicted.verdicts == {"grad_cam": known_verdicts(load_checkpoint(trained.folder))["grad_cam"]}
    for told, wrong in (
        ("did you mean 'grad_cam'", {"methods": ["gradcam"], "output": tmp_path / "y"}),
        ("unknown class 'violet'", {"target": "violet", "output": tmp_path / "y"}),
        ("not empty", {"output": tmp_path / "x"}),
    ):
        with pytest.raises(UsageError, match=told):
            package.explain(image, checkpoint=trained.best, **wrong)
    assert not (tmp_path / "y").exists()


def test_what_cannot_be_used_and_the_default_folder(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"a\.png"):
        package.explain("a.png", checkpoint=trained.best)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png"]  # no empty folder is left
    with pytest.raises(CheckpointError, match=r"none\.pt"):
        package.explain("a.png", checkpoint="none.pt")
    for _ in range(2):
        package.explain(trained.data / "test/blue/blue_0.png", checkpoint=trained.best)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "explain", "explain-2"]  # never overwritten


def test_the_report_says_what_maps_are_worth(trained: Trained) -> None:
    found = trained.result.test.metrics["attention"]
    assert found["n"] == 5 and found["reason"] is None and list(found["methods"]) == METHODS
    html = (trained.folder / "test" / "report.html").read_text()
    section = html.partition('id="attention"')[2].partition("</section>")[0]
    for part in found["methods"].values():
        assert part["title"] in section and part["verdict"] in section
        assert part["gain"]["low"] < part["gain"]["value"] < part["gain"]["high"]
    assert section.index("<ul>") < section.index("<table")  # the verdict first
    assert "A map has 2 x 2 patches and shows nothing smaller than 50 %" in " ".join(section.split())
    known = known_verdicts(load_checkpoint(trained.folder))
    assert known == {name: f"{part['verdict']}. {part['text']}" for name, part in found["methods"].items()}


def test_a_report_of_a_table_keeps_the_verdict_and_not_the_maps(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_only(monkeypatch, "attention_maps")
    empty = Drawn(b"a figure", b"a figure", b"a figure", "image/png", "")
    monkeypatch.setattr("vitmed.report.write.drawn", lambda figure, pictures=False, pdf=False: empty)
    first = package.evaluate(trained.best, output=tmp_path / "first", resamples=5)
    assert (first.folder / "attention_maps.png").is_file()
    again = package.evaluate(trained.folder / "test" / "predictions.csv", output=tmp_path / "again")
    assert again.metrics["attention"] == trained.result.test.metrics["attention"]
    assert not (again.folder / "attention_maps.png").exists()


@pytest.mark.usefixtures("no_figures")
def test_maps_can_be_left_out_and_few_images_say_why(trained: Trained, tmp_path: Path) -> None:
    none = package.evaluate(trained.best, output=tmp_path / "a", map_images=0, resamples=5)
    assert "attention" not in none.metrics and 'id="attention"' not in (none.folder / "report.html").read_text()
    ui = recording()
    few = package.evaluate(trained.best, output=tmp_path / "b", map_images=2, resamples=5)
    assert "too few" in few.metrics["attention"]["reason"] and any("not checked" in text for text in ui.said)
    assert "Not checked" in (few.folder / "report.html").read_text()


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("channels", "sets"),
    [
        pytest.param(1, ["model.stem=conv", "model.pool=mean"], marks=pytest.mark.slow),
        pytest.param(4, ["model.registers=2", "model.pool=cls"], marks=pytest.mark.slow),
        (3, []),
    ],
)
def test_grey_alpha_registers_stem_and_lora(trained: Trained, channels: int, sets: list[str], tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", train=6, val=2, test=3)
    settings = BARE | {"epochs": 1, "channels": channels}
    network = ["model.width=16", "model.depth=2", "model.heads=2", *sets] if sets else []
    if not sets:
        settings |= {"lora": 2, "weights": str(trained.best)}
    result = package.train(data, output=tmp_path / "runs", sets=network, **settings)
    found = package.explain(data / "test" / "amber", checkpoint=result.folder, output=tmp_path / "x")
    assert {grid.shape for grid in found.maps.values()} == {(3, 2, 2)}
    logits = package.predict(data / "test" / "amber", checkpoint=result.folder).logits
    np.testing.assert_allclose(found.predictions.logits, logits, atol=1e-5)
    assert Image.open(found.folder / "row-1.png").size[0] > 100
    assert load_checkpoint(result.folder).preprocessing.channels == channels


def test_the_gallery_has_errors_first_and_right_ones_too() -> None:
    labels = np.array([0] * 20)
    logits = np.zeros((20, 2), np.float32)
    logits[:, 0] = 1
    logits[:6, 1] = np.arange(2, 8)  # six errors, the last of them the surest
    p = Predictions(("a", "b"), tuple(map(str, range(20))), None, labels, logits)
    rows = images_to_draw(p)
    assert rows[:4].tolist() == [5, 4, 3, 2] and len(rows) == 8 and (rows[4:] >= 6).all()
    assert len(images_to_draw(Predictions(p.classes, p.paths[:7], None, labels[:7], logits[:7]))) == 7
    maps = Maps(np.zeros((8, 4, 4, 3), np.uint8), p.predicted[rows], {"rollout": np.zeros((8, 2, 2))}, rows)
    figure = attention_maps(p, maps)
    assert figure is not None
    told = [axes.get_xlabel() for axes in figure.axes if axes.get_xlabel()]
    assert told == [f"row {row + 1}" for row in rows]
    empty = Maps(maps.images[:0], maps.targets[:0], {}, rows[:0])
    assert attention_maps(p, empty) is None
