"""`train --track`: what trackers get, and that none of them stops a run."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from conftest import TINY, TINY_SETS, draw_nothing, draw_pairs, recording

from vitmed import cross_validate, train
from vitmed.core.config import Config
from vitmed.core.errors import Interrupted, UsageError
from vitmed.core.files import read_json_lines
from vitmed.core.run_folder import RunFolder
from vitmed.training import trackers
from vitmed.training.run import Run
from vitmed.training.trackers import Tracking, check_trackers

SETTINGS = TINY | {"epochs": 2, "group_regex": r"(p\d+)_", "resamples": 20, "map_images": 0}


class Kept:
    """A tracker that keeps what it gets."""

    packages: ClassVar[tuple[str, ...]] = ()
    variables: ClassVar[dict[str, str]] = {}
    all: ClassVar[list[Kept]] = []

    def start(self, run: RunFolder, offline: bool, known: str | None, settings: Mapping[str, str]) -> str:
        self.run, self.known, self.logged = run, known, list[tuple[int, dict[str, float]]]()
        self.settings = dict(settings)
        Kept.all.append(self)
        return known or "id-1"

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.logged.append((step, dict(values)))

    def finish(self, files: Mapping[str, Path], state: str) -> None:
        self.files, self.state = dict(files), state


class Failing(Kept):
    """A tracker whose server is away."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        raise ConnectionError("the server is away")


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_nothing(monkeypatch)
    monkeypatch.setattr(Kept, "all", [])
    monkeypatch.setitem(trackers.TRACKERS, "kept", Kept)
    monkeypatch.setitem(trackers.TRACKERS, "failing", Failing)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pairs(tmp_path_factory.mktemp("tracked") / "secret-folder" / "data", 18)


def run(data: Path, output: Path, **options: object) -> Path:
    given = SETTINGS | options
    return train(data, output=output, name="one", sets=TINY_SETS, **given).folder  # type: ignore[arg-type]


def test_a_tracker_gets_every_epoch_and_the_result_though_another_fails(data: Path, tmp_path: Path) -> None:
    ui = recording()
    folder = run(data, tmp_path, track=["failing", "kept"])
    told = [text for text in ui.warned if "--track" in text]
    assert told == ["--track failing fails (the server is away); the run goes on without it"]
    (found,) = (one for one in Kept.all if type(one) is Kept)
    records = read_json_lines(folder / "metrics.jsonl")
    assert [step for step, _ in found.logged[:2]] == [1, 2] and found.state == "finished"
    assert found.logged[1][1]["val_auroc"] == records[1]["val_auroc"]
    assert found.logged[0][1]["train_loss"] == records[0]["train_loss"]
    test = json.loads((folder / "test" / "metrics.json").read_text())["overall"]["auroc"]
    final = {name: value for _, values in found.logged[2:] for name, value in values.items()}
    assert final["final/test_auroc"] == test["value"] and final["final/test_auroc_low"] == test["low"]
    assert "final/val_auroc" in final and float(found.settings["train.epochs"]) == 2
    assert found.files.keys() >= {"test/report.html"} and all(path.is_file() for path in found.files.values())
    assert "secret-folder" not in json.dumps(found.settings) and found.settings["data.root"] == "data"
    config = Config.model_validate({"data": {"root": "/home/somebody/images", "labels": "/home/somebody/t.csv"}})
    Tracking(["kept"], RunFolder(tmp_path)).start(config)
    assert Kept.all[-1].settings["data.root"] == "images" and "somebody" not in json.dumps(Kept.all[-1].settings)


@pytest.mark.slow
def test_a_resumed_run_is_the_same_one_for_its_tracker(data: Path, tmp_path: Path) -> None:
    original = Run.keep

    def stopped(self: Run[Config], *event: Any) -> None:
        original(self, *event)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Run, "keep", stopped)
        run(data, tmp_path, track=["kept"])
    assert Kept.all[0].state == "interrupted"
    train(resume=tmp_path / "one")
    again = Kept.all[1]
    assert again.known == "id-1"
    sent = [step for one in Kept.all for step, values in one.logged if "train_loss" in values]
    assert sorted(sent) == [1, 2]  # each epoch once


@pytest.mark.slow
def test_folds_are_a_group(data: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"epochs": 1, "folds": 2, "track": ["kept"]}
    cross_validate(data, output=tmp_path, name="cv", sets=TINY_SETS, **settings)  # type: ignore[arg-type]
    groups = [one.run.group for one in Kept.all]
    assert [one.run.path.name for one in Kept.all] == ["fold-1", "fold-2"]
    assert [group and group.path.resolve() for group in groups] == [tmp_path.resolve() / "cv"] * 2


def test_trackers_that_cannot_be(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="unknown tracker 'board'"):
        run(data, tmp_path, track=["board"])
    monkeypatch.setattr(Kept, "packages", ("no_such_package",))
    with pytest.raises(UsageError, match=r"pip install 'vitmed\[kept\]'"):
        check_trackers(["kept"])
    assert not list(tmp_path.iterdir())


def private(folder: Path, data: Path) -> list[str]:
    """Files that name the host, the data or the folder of the run."""
    words = [word.encode() for word in (socket.gethostname(), "secret-folder", str(folder.parent)) if len(word) > 3]
    files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    return [file.relative_to(folder).as_posix() for file in files if any(word in file.read_bytes() for word in words)]


def test_mlflow_has_a_finished_run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = run(data, tmp_path, track=["mlflow"])
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("vitmed").experiment_id])
    assert (found.info.run_name, found.info.status) == ("one", "FINISHED")
    test = json.loads((folder / "test" / "metrics.json").read_text())["overall"]["auroc"]["value"]
    assert found.data.metrics["final/test_auroc"] == pytest.approx(test)
    assert len(client.get_metric_history(found.info.run_id, "val_auroc")) == 2


def test_wandb_writes_offline_and_nothing_of_the_machine(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    ui = recording()
    folder = run(data, tmp_path, track=["wandb"])  # its figures are no pictures here, which it refuses
    assert [text for text in ui.warned if "cannot identify image file" in text]
    assert len(list((folder / "wandb").glob("offline-run-*/*.wandb"))) == 1
    assert private(folder / "wandb", data) == []
