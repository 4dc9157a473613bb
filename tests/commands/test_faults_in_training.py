"""A kill in the report phase, a full disk, an image that breaks, a closed terminal: nothing is lost."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import same
from conftest import BARE, TINY_ARGS, TINY_SETS, Answer, Recorder, Trained, draw_splits, exit_code, once

from vitmed import compare, evaluate, train
from vitmed.core.errors import DataError, DiskFullError, Interrupted, UsageError
from vitmed.core.messages import listening
from vitmed.report import write

pytestmark = pytest.mark.usefixtures("no_figures")
SETTINGS: dict[str, Any] = BARE | {"resamples": 10}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_splits(tmp_path_factory.mktemp("faults") / "data")


def start(data: Path, output: Path, **flags: Any) -> Path:
    return train(data, output=output, name="run", sets=TINY_SETS, **SETTINGS | flags).folder


def names(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*"))


def killed_while_writing(data: Path, output: Path, report: int, file: str) -> None:
    """SIGKILL when a file of the first or second report is written."""
    seen, original = [0], write.write_text

    def kill(path: Path, text: str) -> None:
        seen[0] += path.name == file
        if seen[0] == report:
            os.kill(os.getpid(), signal.SIGKILL)
        original(path, text)

    write.write_text = kill
    start(data, output, report=True)


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which nothing was killed."""
    return once(tmp_path_factory, "whole", lambda place: start(data, place, report=True))


@pytest.mark.parametrize(
    ("report", "file"), [pytest.param(1, "predictions.csv", marks=pytest.mark.slow), (2, "report.html")]
)
def test_a_kill_in_the_report_phase_loses_nothing(
    data: Path, whole: Path, tmp_path: Path, report: int, file: str
) -> None:
    run = tmp_path / "killed" / "run"
    assert exit_code(killed_while_writing, data, run.parent, report, file) == -signal.SIGKILL
    assert not (run / "test").exists() and (run / "val").is_dir() == (report == 2)
    for part in run.glob(".*.part"):
        os.utime(part, (1, 1))
    train(resume=run)
    assert names(run) == names(whole)  # test, not test-2; nothing hidden
    assert (run / "test" / "predictions.csv").read_bytes() == (whole / "test" / "predictions.csv").read_bytes()


@pytest.fixture
def moved(trained: Trained, tmp_path: Path) -> Path:
    """A copy of a finished run, beside its data."""
    shutil.copytree(trained.data.parent, tmp_path / "moved")
    return tmp_path / "moved" / "runs" / "tiny"


def test_a_missing_model_card_is_written_by_resume(moved: Path) -> None:
    (moved / "model_card.md").unlink()
    train(resume=moved)
    assert (moved / "model_card.md").is_file() and not (moved / "test-2").exists()


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_an_image_that_breaks_while_training(data: Path, tmp_path: Path, workers: int) -> None:
    """The image, its cause and the way to go on; not the traceback of a loader process."""
    shutil.copytree(data, tmp_path / "data")
    victim = sorted((tmp_path / "data" / "train" / "amber").iterdir())[0]
    whole = victim.read_bytes()
    damages = Recorder(lambda done: victim.write_bytes(whole[:50]) if done == 2 else None)
    run = tmp_path / "runs" / "run"
    with pytest.raises(DataError) as broken, listening(damages):
        start(tmp_path / "data", run.parent, epochs=40, cache=False, workers=workers, policy="blood_smear")
    assert victim.name in broken.value.problem and "Traceback" not in str(broken.value)
    assert "remove" not in str(broken.value)
    assert broken.value.fix.endswith(f"vitmed train --resume {run}")
    for damage in (lambda: None, victim.unlink):  # a run goes on with all its images: it may not be removed either
        damage()
        with pytest.raises(DataError) as again:
            train(resume=run)
        assert victim.name in again.value.problem and "remove" not in str(again.value)
        assert again.value.fix.startswith("restore the files") and "start a new run (--on-bad-file" in again.value.fix
    victim.write_bytes(whole)
    train(resume=run, epochs=4)


def test_a_disk_without_room_for_the_checkpoints_ends_a_run_before_its_first_batch(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**16))
    with pytest.raises(DiskFullError, match=r"run: its checkpoints need \d+ MB, free: 0 MB") as full:
        start(data, tmp_path, epochs=1, cache=False)
    assert "--output" in full.value.fix and "--resume" not in full.value.fix


def test_a_full_disk_keeps_the_checkpoints_of_before(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"

    class Full:
        def __init__(self, stream: Any):
            self.stream = stream

        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name: str) -> Any:
            return getattr(self.stream, name)

    before: dict[str, bytes] = {}
    original = torch.save

    def save(content: Any, stream: Any) -> None:
        if content["record"].get("epoch") == 2:
            before.update({name: (run / name).read_bytes() for name in ("best.pt", "last.pt")} if not before else {})
            stream = Full(stream)
        original(content, stream)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(UsageError, match=r"\.pt: cannot be written \(No space left on device; free: ") as full:
        start(data, tmp_path, epochs=3)
    assert f"--resume {run}" in full.value.fix
    assert before == {name: (run / name).read_bytes() for name in before} and len(before) == 2
    assert not list(run.glob(".*.part"))
    monkeypatch.undo()


@pytest.mark.slow
def test_a_closed_terminal_ends_training_as_sigterm_does_and_nohup_stays(data: Path, tmp_path: Path) -> None:
    closes = Recorder(lambda done: os.kill(os.getpid(), signal.SIGHUP) if done == 2 else None)
    old = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    try:
        with pytest.raises(Interrupted, match=r"last\.pt is saved"), listening(closes):
            start(data, tmp_path / "a")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with listening(closes):
            run = start(data, tmp_path / "b", epochs=1)
    finally:
        signal.signal(signal.SIGHUP, old)
    assert (run / "test" / "predictions.csv").is_file()


GROUP = """
import multiprocessing, sys, time
from pathlib import Path
import torch
from vitmed.cli.entry import main
limit = torch.set_num_threads
def slow(count):  # torch calls it in each new loader process, here as slow as on a busy machine
    if multiprocessing.parent_process() is not None:
        Path(sys.argv[1]).touch()
        time.sleep(1)
    limit(count)
torch.set_num_threads = slow
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("name", "times"),
    [
        pytest.param("SIGTERM", 1, marks=pytest.mark.slow),
        pytest.param("SIGTERM", 2, marks=pytest.mark.slow),
        pytest.param("SIGINT", 1, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_the_whole_process_group_saves_last_pt(data: Path, tmp_path: Path, name: str, times: int) -> None:
    """As Slurm, systemd and `timeout` send it, which sends a second one to the command itself; amid the first epoch."""
    born, run, flags = tmp_path / "born", tmp_path / "run", [*TINY_ARGS, "--no-report", "--no-baseline"]
    words = [
        "train",
        data,
        *flags,
        "--epochs",
        5000,
        "--workers",
        2,
        "--policy",
        "light",
        "-o",
        tmp_path,
        "--name",
        "run",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", GROUP, *map(str, (born, *words))],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not born.exists():
        assert process.poll() is None
        time.sleep(0.05)
    for _ in range(times):
        os.killpg(process.pid, signal.Signals[name])
        time.sleep(0.05)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and f"{run / 'last.pt'} is saved" in said, said
    assert (run / "last.pt").is_file() and "stopped at once" not in said


def test_no_report_writes_tables_and_the_page_can_follow(
    data: Path, tmp_path: Path, vitmed: Callable[..., Answer]
) -> None:
    run = start(data, tmp_path)
    assert not {path.suffix for path in (run / "test").iterdir()} - {".csv", ".json"}
    with pytest.raises(UsageError, match="finished and evaluated"):
        train(resume=run)
    assert compare(run, run / "test").verdict
    assert vitmed("evaluate", run / "test" / "predictions.csv", "-o", tmp_path / "a").code == 0
    assert vitmed("evaluate", run, "-o", tmp_path / "b").code == 0
    assert (tmp_path / "a" / "report.html").is_file() and (tmp_path / "b" / "report.html").is_file()
    tables = (run / "test" / "predictions.csv").read_bytes()
    assert evaluate(run).folder == run / "test"  # the report of the same predictions
    assert (run / "test" / "report.html").is_file() and (run / "test" / "predictions.csv").read_bytes() == tables
    assert evaluate(run).folder == run / "test-2"  # a report is never replaced


def test_evaluate_takes_the_place_of_what_holds_nothing(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.data.parent, tmp_path / "moved")
    run = tmp_path / "moved" / "runs" / "tiny"

    def evaluated() -> str:
        quick = {"resamples": 10, "map_images": 0}
        return evaluate(run, **quick).folder.name

    shutil.rmtree(run / "test")
    (run / "test").mkdir()
    assert evaluated() == "test"
    (run / "test" / "report.html").unlink()
    (run / "test" / "notes.txt").write_text("mine")
    assert evaluated() == "test-2"


@pytest.mark.slow
def test_weights_are_those_of_a_run_whose_image_never_broke(data: Path, tmp_path: Path) -> None:
    """The error comes between two batches, so what is saved is a whole step."""
    shutil.copytree(data, tmp_path / "data")
    victim = sorted((tmp_path / "data" / "train" / "amber").iterdir())[0]
    whole, run = victim.read_bytes(), tmp_path / "runs" / "run"
    damages = Recorder(lambda done: victim.write_bytes(whole[:50]) if done == 4 else None)
    with pytest.raises(DataError), listening(damages):
        start(tmp_path / "data", run.parent, epochs=3, cache=False)
    victim.write_bytes(whole)
    train(resume=run)
    other = start(tmp_path / "data", tmp_path / "whole", epochs=3, cache=False)
    trees = [torch.load(place / "last.pt", weights_only=True)["weights"] for place in (run, other)]
    same(*trees, "weights")


@pytest.mark.slow
def test_numbers_of_other_weights_are_kept_without_their_page(moved: Path) -> None:
    (moved / "test" / "report.html").unlink()
    numbers = (moved / "test" / "metrics.json").read_text().replace('"weights_hash": "', '"weights_hash": "0')
    (moved / "test" / "metrics.json").write_text(numbers)
    assert train(resume=moved).test.folder == moved / "test-2"
    assert (moved / "test" / "metrics.json").read_text() == numbers
