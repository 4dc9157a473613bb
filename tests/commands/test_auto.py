"""`vitmed auto`: folds from the best weights, and an ensemble that is tested once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    BARE,
    TINY,
    TINY_SETS,
    Answer,
    Recorder,
    draw_classes,
    draw_nothing,
    draw_pairs,
    draw_splits,
    recording,
)
from sklearn.metrics import roc_auc_score

from vitmed import auto, train
from vitmed.core.config import Config
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError
from vitmed.metrics.predictions import Predictions
from vitmed.studies.auto import Auto, AutoRun, begin_auto, find_stored
from vitmed.studies.cluster import opened
from vitmed.training.plan.make_plan import Plan
from vitmed.training.plan.time import Clock
from vitmed.training.run import Run

RUN = Callable[..., Answer]
SETTINGS = TINY | {"epochs": 1, "group_regex": r"(p\d+)_", "resamples": 20, "map_images": 0, "time": "5m"}


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pairs(tmp_path_factory.mktemp("auto") / "data", 40)


def run(data: Path, output: Path, **options: object) -> AutoRun:
    return auto(data, output=output, name="a", sets=TINY_SETS, **SETTINGS | options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def ui() -> Recorder:
    return recording()


@pytest.fixture(scope="module")
def done(data: Path, ui: Recorder, tmp_path_factory: pytest.TempPathFactory) -> AutoRun:
    """With one file of weights in the cache folder, which learned from other images."""
    place = tmp_path_factory.mktemp("done")
    other = draw_splits(place / "other", 8, 8, 4, seed=7)
    settings = BARE | {"epochs": 1, "output": place, "name": "start", "sets": TINY_SETS}
    start = train(other, **settings)  # type: ignore[arg-type]
    (place / "cache" / "weights").mkdir(parents=True)
    shutil.copy(start.folder / "best.pt", place / "cache" / "weights" / "own.pt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITMED_CACHE", str(place / "cache"))
        return run(data, place)


def test_the_best_weights_of_this_machine_are_cross_validated(done: AutoRun) -> None:
    assert done.content["divided"]["folds"] == 3 and done.content["ranking"][1][1] == "own.pt"
    config = (done.folder / "folds" / "fold-1" / "config.yaml").read_text()
    assert "own.pt" in config


@pytest.mark.slow  # 20 s; that of folds and of a ranking runs with every push
def test_workers_of_an_executor_do_the_same(data: Path, done: AutoRun, tmp_path: Path) -> None:
    """The ranking and the folds."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as executor:
        patch.setenv("VITMED_CACHE", str(done.folder.parent / "cache"))
        there = run(data, tmp_path, on=executor, parallel=2, report=False)
    ranked = [[row[:-1] for row in found.content["ranking"]] for found in (done, there)]  # the last is the time
    assert ranked[0] == ranked[1]
    for key in ("test_of_the_ensemble", "tests_of_the_folds"):
        assert there.content[key] == done.content[key], key
    tables = [(found.model / "test" / "predictions.csv").read_bytes() for found in (done, there)]
    assert tables[0] == tables[1]


def test_where_no_cluster_can_be_nothing_begins(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected local, ray"):
        run(data, tmp_path / "nowhere", on="nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_the_held_out_images_are_in_no_step_and_judge_the_ensemble(done: AutoRun) -> None:
    table = Predictions.from_csv(done.model / "test" / "predictions.csv")
    seen = set()
    for file in done.folder.rglob("splits.csv"):
        seen |= {line.split(",")[0] for line in file.read_text().splitlines()}
    assert len(table) == done.content["test_of_the_ensemble"]["images"] and not seen & set(table.paths)
    area = roc_auc_score(table.labels, table.probabilities[:, 1])
    assert done.content["test_of_the_ensemble"]["value"] == pytest.approx(area)
    ranked = json.loads((done.folder / "weights" / "ranking.json").read_text())
    assert ranked["images"] == sum(
        line.count(",val") for line in (done.folder / "folds" / "fold-1" / "splits.csv").read_text().splitlines()
    )


def test_the_folder_says_where_to_look(done: AutoRun, ui: Recorder) -> None:
    for place in ("data-check/data_report.html", "folds/test/report.html", "folds/ensemble/test/report.html"):
        where = done.folder / place
        told = where if "check" in place else where.parent
        assert where.is_file() and any(text.endswith(str(told)) for text in ui.said), place
    text = (done.folder / "auto.json").read_text()
    assert json.loads(text)["used"] == pytest.approx(done.content["used"], abs=5) and str(done.folder) not in text


@pytest.mark.slow
def test_where_folds_would_have_too_little_time_one_training_gets_it_all(
    data: Path, done: AutoRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))  # without weights
    seen = []

    def time_needed(plan: Plan) -> tuple[float, str, str]:
        seen.append((plan.config.train.time, plan.config.data.folds))
        return 1.0, "", "in this time, about 2 epochs, the model will be worse than it could be"

    monkeypatch.setattr("vitmed.studies.auto.time_needed", time_needed)
    ui = recording()
    found = run(data, tmp_path)
    assert seen == [(pytest.approx(100, abs=3), 3)]  # a third of five minutes
    (said,) = [text for text in ui.said if text.startswith("one training is the better use of 5m: of 3 folds each")]
    assert said.endswith("worse than it could be") and found.content["one"] and found.model == tmp_path / "a" / "model"
    table = Predictions.from_csv(found.model / "test" / "predictions.csv")
    assert found.content["test_of_the_model"]["value"] == pytest.approx(
        roc_auc_score(table.labels, table.probabilities[:, 1])
    )
    held_out = Predictions.from_csv(done.model / "test" / "predictions.csv")
    assert set(table.paths) == set(held_out.paths), "the ranking of weights reads none of them"
    before = (found.model / "best.pt").read_bytes()
    again = auto(resume=tmp_path / "a")  # nothing is left to do
    assert again.model == found.model and (found.model / "best.pt").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [".lock", "auto.json", "data-check", "model"]


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_was(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))  # without weights
    original, calls, saved = Run.keep, [], []

    def stopped(self: Run[Config], *event: Any) -> None:
        original(self, *event)
        calls.append(1)
        if len(calls) == 2:
            saved.append(json.loads((tmp_path / "a" / "auto.json").read_text())["used"])
            raise KeyboardInterrupt

    def killed(**given: Any) -> None:
        (tmp_path / "a" / "folds").mkdir()
        (tmp_path / "a" / "folds" / "folds.json").write_text('{"folds": 3, "window": null}')
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitmed.cross_validate", killed)  # as before the first fold has read its images
        with pytest.raises(Interrupted, match="vitmed auto --resume"):
            run(data, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "keep", stopped)
        with pytest.raises(Interrupted, match="vitmed auto --resume"):
            auto(resume=tmp_path / "a")
        used = json.loads((tmp_path / "a" / "auto.json").read_text())["used"]
        assert used > saved[0] > 0  # as a killed process leaves it
        found = auto(resume=tmp_path / "a")
    assert len(calls) == 3 and found.content["used"] > used  # three folds of one epoch: none was trained twice
    assert "ranking" not in found.content
    image = next(data.glob("*/*.png"))
    away = tmp_path / "away.png"
    shutil.move(image, away)
    try:
        with pytest.raises(DataError, match="other images, labels or splits"):
            auto(resume=tmp_path / "a")
    finally:
        shutil.move(away, image)


def test_the_share_of_the_test_is_that_which_was_asked_for(data: Path, tmp_path: Path) -> None:
    asked = {"data": data, "config": None, "time": "5m", "sets": ["data.test_fraction=0.4"]}
    state = json.loads(begin_auto(asked, tmp_path, "share").auto.read_text())
    assert state["divided"]["hold_out"] == 0.4


def test_bad_use(data: Path, tmp_path: Path, vitmed: RUN) -> None:
    with pytest.raises(UsageError, match="unknown tracker 'nosuch'"):
        run(data, tmp_path, track=["nosuch"])
    assert not [*tmp_path.iterdir()]
    with pytest.raises(UsageError, match="auto decides these"):
        run(data, tmp_path, folds=3)
    with pytest.raises(UsageError, match="too short for folds"):
        run(data, tmp_path, time="2m")
    with pytest.raises(UsageError, match="give --resume alone"):
        auto(data, resume=tmp_path)
    with pytest.raises(CheckpointError, match="no auto has begun here") as error:
        auto(resume=tmp_path)  # as after a kill in the data check
    assert error.value.fix == "start it again, without --resume"
    (tmp_path / "auto.json").write_text('{"time": 300, "used": 10, "identity": "", "arguments": {"flags": {}}}')
    with pytest.raises(CheckpointError, match=r"vitmed 0\.2\.0 continues"):
        auto(resume=tmp_path)
    answer = vitmed("auto", str(tmp_path / "nothing"))
    assert answer.code == 3 and "no such folder" in answer.err


def test_an_error_of_the_data_check_is_named_with_the_way_around(tmp_path: Path) -> None:
    """The first error says what is wrong, and `--allow-leakage` goes on."""
    data = draw_classes(tmp_path / "data", 24, ("normal", "Normal ", "sick"))
    with pytest.raises(DataError, match=r"the data check found .*; the first: ") as error:
        run(data, tmp_path / "runs", group_regex=None)
    assert "data_report.html" in error.value.fix and "--allow-leakage" in error.value.fix


def test_weights_of_the_settings_are_not_ranked_away(tmp_path: Path) -> None:
    (tmp_path / "own.pt").touch()
    for value, taken in (("none", None), (tmp_path / "own.pt", tmp_path / "own.pt")):
        given = {"data": str(draw_splits(tmp_path / "data")), "config": None, "time": "5m"}
        given["sets"] = (*TINY_SETS, f"model.weights={value}")
        folder = begin_auto(given, tmp_path / str(taken is None), None)
        with opened("local") as places:
            found = Auto(folder, places, Clock())._ranked(given)["weights"]
        assert (found if found is None else find_stored(found, folder).resolve()) == taken


def test_what_the_training_mends_is_no_error_of_the_data_check(tmp_path: Path) -> None:
    """Patients in two splits where `--resplit` divides anew, and files that `--on-bad-file skip` leaves out."""
    data = draw_splits(tmp_path / "data")
    for split in ("train", "test"):
        source = next((data / split).rglob("*.png"))
        shutil.copy(source, data / "val" / source.parent.name / f"copy-of-{split}.png")
    (data / "train" / "blue" / "torn.png").write_bytes(b"no image")
    given = {"time": "5m", "weights": "none", "sets": TINY_SETS, "config": None}
    with pytest.raises(DataError, match="the same file in two splits"):
        begin_auto({"data": str(data), "on_bad_file": "skip"} | given, tmp_path / "a", None)
    with pytest.raises(DataError) as error:
        begin_auto({"data": str(data), "resplit": True} | given, tmp_path / "b", None)
    assert "--on-bad-file skip leaves such files out" in error.value.fix
    both = {"data": str(data), "resplit": True, "on_bad_file": "skip"} | given
    assert begin_auto(both, tmp_path / "c", None).auto.exists()
