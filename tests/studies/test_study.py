"""Who trains the runs of a study: in this process, or in processes that may be killed and whose errors are told."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import TINY, TINY_SETS, draw_nothing, draw_pairs, recording

import vitmed
from vitmed.core.errors import (
    CheckpointError,
    DataError,
    DiskFullError,
    EndedByCaller,
    Interrupted,
    OutOfMemoryError,
    TimeTooShortError,
    UsageError,
    VitmedError,
)
from vitmed.core.load_config import load_config
from vitmed.core.run_folder import RunFolder, is_running
from vitmed.studies.cluster import Places
from vitmed.studies.folds import SharedTime
from vitmed.studies.study import Job, _error, _words, workers

SETS = (*TINY_SETS, "evaluate.report=false", "evaluate.map_images=0", "evaluate.resamples=20", "train.test=false")
SETTINGS: dict[str, Any] = TINY | {"baseline": False, "autotune": False, "group_regex": r"(p\d+)_", "sets": SETS}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pairs(tmp_path_factory.mktemp("jobs") / "data", 24)


def job(data: Path, name: str = "one", **options: object) -> Job:
    return Job(name, f"run {name}", SETTINGS | {"data": data} | options, "val")


def wait_for(there: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def epochs(run: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_one_at_a_time_trains_here_when_it_is_submitted(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_nothing(monkeypatch)
    folder, ui, seen = RunFolder(tmp_path), recording(), list[int]()
    with workers(folder, Places()) as executor:
        found = executor.submit(job(data, epochs=1), lambda record: bool(seen.append(record["epoch"])))
        assert found.done() and found.result() is not None and seen == [1] and "run one" in ui.said
        monkeypatch.setattr(vitmed, "train", None)
        assert executor.submit(job(data)).result() is not None  # it is done
    assert not list(tmp_path.glob("*.log"))
    monkeypatch.undo()
    with workers(RunFolder(tmp_path), Places(logged=True)) as executor:
        wrong = executor.submit(job(data, "two", sets=(*SETS, "model.heads=3")))
    with pytest.raises(UsageError, match="heads do not divide"):  # an error here is that of the job
        wrong.result()
    assert "heads do not divide" in (tmp_path / "two.log").read_text()


@pytest.mark.slow
def test_a_process_that_is_killed_is_tried_again_and_errors_are_those_of_the_job(data: Path, tmp_path: Path) -> None:
    """kill -9 of the first after an epoch; the second is ended by `on_epoch`; the third has no such images."""
    folder, ui, killed = RunFolder(tmp_path), recording(), list[int]()

    def kill(record: dict[str, Any]) -> bool:
        if not killed:
            killed.append(int((tmp_path / "one" / ".lock.holder").read_text().split()[0]))
            os.kill(killed[0], signal.SIGKILL)
        return False

    with workers(folder, Places(2)) as executor:
        first = executor.submit(job(data, epochs=20), kill)
        second = executor.submit(job(data, "two", epochs=500), lambda record: record["epoch"] >= 2)
        third = executor.submit(job(tmp_path / "nowhere", "three"))
        run = first.result()
        assert run is not None and epochs(run.path) == [*range(1, 21)] and len(job(data).attempts(folder)) == 1
        with pytest.raises(EndedByCaller):
            second.result()
        with pytest.raises(DataError, match="nowhere"):
            third.result()
    assert "SIGKILL ended its process" in "\n".join(ui.warned) and killed
    assert 2 <= len(epochs(tmp_path / "two")) < 500 and (tmp_path / "two" / "last.pt").is_file()


STUDY = """
import json, sys
from pathlib import Path
from vitmed.studies.study import Job, workers
from vitmed.studies.cluster import Places
from vitmed.core.run_folder import RunFolder
from vitmed.core.messages import Ui
from vitmed.cli.entry import _signals
folder, arguments = Path(sys.argv[1]), json.loads(sys.argv[2])
with _signals(), workers(RunFolder(folder), Places(2)) as executor:
    futures = [executor.submit(Job(name, name, arguments, "val")) for name in sys.argv[3:]]
    for future in futures:
        future.result()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "names"), [(signal.SIGTERM, ("one", "two", "three")), (signal.SIGKILL, ("one",))])
def test_a_driver_that_ends_leaves_no_process_and_a_last_pt_in_each(
    number: int, names: tuple[str, ...], data: Path, tmp_path: Path
) -> None:
    arguments = SETTINGS | {"data": str(data), "epochs": 5000}
    driver = subprocess.Popen([sys.executable, "-c", STUDY, str(tmp_path), json.dumps(arguments), *names], stderr=-3)
    places = [tmp_path / name for name in names[:2]]
    wait_for(lambda: all((place / "metrics.jsonl").is_file() for place in places))
    driver.send_signal(number)
    driver.wait(60)
    wait_for(lambda: not any(is_running(RunFolder(place)) for place in places), 20)
    for place in places:
        said = json.loads((tmp_path / f"{place.name}.log").read_text().splitlines()[-1])["error"]
        assert said["exit_code"] == 130 and "is saved" in said["message"] and (place / "last.pt").is_file()
    assert not (tmp_path / "three").exists()  # and no job has begun


@pytest.mark.parametrize(
    ("code", "kind", "fix"),
    [(2, UsageError, "x"), (2, DiskFullError, f"{DiskFullError.ROOM}; then go on"), (3, DataError, "x"),
     (4, CheckpointError, "x"), (5, OutOfMemoryError, "x"), (130, Interrupted, "x"), (1, VitmedError, "x")],
)  # fmt: skip
def test_an_error_of_a_process_keeps_its_class(code: int, kind: type[VitmedError], fix: str, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    content = {"message": "a problem", "fix": fix, "exit_code": code}
    log.write_text(f"error: a problem\n{json.dumps({'error': content})}\n")
    error = _error(code, log)
    assert type(error) is kind and (error.problem, error.fix, error.exit_code) == ("a problem", fix, code)


def test_the_time_that_would_be_enough_comes_from_a_process(tmp_path: Path) -> None:
    content = {"message": "--time 9s is too short: ...", "fix": "--time 1m", "exit_code": 2, "seconds": 45.5}
    (tmp_path / "a.log").write_text(json.dumps({"error": content}) + "\n")
    error = _error(2, tmp_path / "a.log")
    assert isinstance(error, TimeTooShortError) and error.seconds == 45.5
    whole = SharedTime(20.0, 2, 2).of_all(pickle.loads(pickle.dumps(error)))
    assert whole.problem == "--time 20s is too short for 2 folds: for each, --time 9s is too short: ..."
    assert whole.fix == "--time 1m30s" and whole.seconds == 90


@pytest.mark.parametrize(("folds", "parallel"), [(3, 1), (3, 2), (5, 2), (5, 4), (4, 2)])
def test_every_fold_gets_the_same_time_and_all_end_within_the_limit(folds: int, parallel: int) -> None:
    now, ends, each = 0.0, list[float](), list[float]()
    for begun in range(folds):
        if len(ends) == parallel:
            now = ends.pop(0)
        each.append(SharedTime(3600, folds, parallel, 0, SimpleNamespace(seconds=lambda then=now: then)).each(begun))
        ends.append(now + each[-1])
    assert each == pytest.approx([3600 / -(-folds // parallel)] * folds) and max(ends) <= 3600


def test_a_process_that_says_nothing_names_its_log(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("Segmentation fault\n")
    for code, text in ((1, "exit code 1"), (-signal.SIGSEGV, "3 times, by SIGSEGV")):
        error = _error(code, tmp_path / "a.log")
        assert text in error.problem and str(tmp_path / "a.log") in error.fix


def test_a_command_line_has_the_settings_of_the_job(tmp_path: Path) -> None:
    given = {"lr": 1e-5, "baseline": False, "group_regex": r"(é\d+)_", "labels": tmp_path / "a b.csv", "time": 12.5}
    words = _words({**given, "data": tmp_path, "sets": ("model.heads=2",), "offline": True, "name": "x"})
    sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    config = load_config(None, {"data.root": words[-1]}, sets)
    assert (config.train.lr, config.train.baseline, config.train.time, config.model.heads) == (1e-5, False, 12.5, 2)
    assert (config.data.group_regex, config.data.labels) == (given["group_regex"], str(given["labels"]))
    assert words[-2:] == ["--", str(tmp_path)] and "--offline" in words and "--name=x" in words


def test_fewer_than_one_is_refused() -> None:
    with pytest.raises(UsageError, match="parallel=0: expected 1 or more"):
        vitmed.cross_validate("data", parallel=0)
