"""`vitmed auto`: ways to train compared on validation, folds of the best, an ensemble that is tested once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY, TINY_SETS, Answer, Recorder, draw_nothing, draw_pairs
from sklearn.metrics import roc_auc_score

from vitmed import auto, predict, train
from vitmed.commands import auto as module
from vitmed.commands.auto import AutoRun
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError
from vitmed.metrics.predictions import Predictions
from vitmed.training.training_run import TrainingRun

RUN = Callable[..., Answer]
SETTINGS = TINY | {"epochs": 1, "group_regex": r"(p\d+)_", "resamples": 20, "map_images": 0, "time": "5m"}


@pytest.fixture(scope="module", autouse=True)
def _small() -> None:
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pairs(tmp_path_factory.mktemp("auto") / "data", 40)


def run(data: Path, output: Path, **options: object) -> AutoRun:
    return auto(data, output=output, name="a", sets=TINY_SETS, ui=Recorder(), **SETTINGS | options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> AutoRun:
    """With one file of weights on the machine."""
    place = tmp_path_factory.mktemp("done")
    start = train(data, output=place, name="start", sets=TINY_SETS, ui=Recorder(), **{**SETTINGS, "time": None}).folder  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "local_weights", lambda: [str(start / "best.pt")])
        return run(data, place)


def test_the_ways_are_compared_on_validation_and_the_best_is_cross_validated(done: AutoRun) -> None:
    found = done.result
    ways = {one.name: one for one in found.tried}
    assert set(ways) == {"scratch", "weights"} and found.folds == 3
    areas = {}
    for name, one in ways.items():
        table = Predictions.from_csv(done.folder / one.run / "val" / "predictions.csv")
        areas[name] = roc_auc_score(table.labels, table.probabilities[:, 1])
        assert one.number is not None and one.number.value == pytest.approx(areas[name])
        assert not (done.folder / one.run / "test").exists()  # no test is read before the end
    assert areas[found.winner] == max(areas.values())
    other = next(one for one in found.tried if one.name != found.winner)
    assert other.against is not None and other.against.value == pytest.approx(areas[other.name] - areas[found.winner])
    config = (done.folder / "folds" / "fold-1" / "config.yaml").read_text()
    assert ("best.pt" in config) == (found.winner == "weights")


def test_the_held_out_images_are_in_no_step_and_judge_the_ensemble(done: AutoRun, data: Path) -> None:
    table = Predictions.from_csv(done.model / "test" / "predictions.csv")
    seen = set()
    for file in done.folder.rglob("splits.csv"):
        seen |= {line.split(",")[0] for line in file.read_text().splitlines()}
    assert len(table) == done.result.held_out_images and not seen & set(table.paths)
    area = roc_auc_score(table.labels, table.probabilities[:, 1])
    assert done.result.held_out is not None and done.result.held_out.value == pytest.approx(area)
    images = [data / path for path in table.paths]
    parts = [predict(images, checkpoint=done.folder / "folds" / f"fold-{k}", ui=Recorder()) for k in (1, 2, 3)]
    alone = [roc_auc_score(table.labels, part.probabilities[:, 1]) for part in parts]  # type: ignore[union-attr]
    assert done.result.gain is not None and done.result.gain.value == pytest.approx(area - np.mean(alone))


def test_the_page_says_what_was_tried(done: AutoRun) -> None:
    page = (done.folder / "report.html").read_text()
    for text in ("scratch", "fine-tuned from", done.result.why.partition(":")[0], "Research use only"):
        assert text in page, text
    written = json.loads((done.folder / "result.json").read_text())
    assert written["winner"] == done.result.winner and written["used"] <= 300
    assert (done.folder / written["checked"].split("; ")[1]).is_file()
    assert str(done.folder) not in page + (done.folder / "auto.json").read_text()


def test_an_interrupted_run_goes_on_where_it_was(data: Path, tmp_path: Path) -> None:
    original, calls, saved = TrainingRun.end_epoch, [], []

    def stopped(self: TrainingRun, event: object) -> None:
        original(self, event)  # type: ignore[arg-type]
        calls.append(1)
        if len(calls) == 2:
            saved.append(json.loads((tmp_path / "a" / "auto.json").read_text())["used"])
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingRun, "end_epoch", stopped)
        with pytest.raises(Interrupted, match="vitmed auto --resume"):
            run(data, tmp_path)
        used = json.loads((tmp_path / "a" / "auto.json").read_text())["used"]
        assert used > saved[0] > 0  # as a killed process leaves it
        found = auto(resume=tmp_path / "a", ui=Recorder())
    assert len(calls) == 3 and found.result.used > used  # three folds of one epoch: none was trained twice
    assert [one.name for one in found.result.tried] == ["scratch"] and "only way" in found.result.why
    image = next(data.glob("*/*.png"))
    away = tmp_path / "away.png"
    shutil.move(image, away)
    try:
        with pytest.raises(DataError, match="other images, labels or splits"):
            auto(resume=tmp_path / "a", ui=Recorder())
    finally:
        shutil.move(away, image)


def test_bad_use(data: Path, tmp_path: Path, vitmed: RUN) -> None:
    with pytest.raises(UsageError, match="auto decides these"):
        run(data, tmp_path, folds=3)
    with pytest.raises(UsageError, match="too short for folds"):
        run(data, tmp_path, time="2m")
    with pytest.raises(UsageError, match="give --resume alone"):
        auto(data, resume=tmp_path, ui=Recorder())
    with pytest.raises(CheckpointError, match="cannot be read"):
        auto(resume=tmp_path, ui=Recorder())
    answer = vitmed("auto", str(tmp_path / "nothing"))
    assert answer.code == 3 and "no such folder" in answer.err
