"""torchrun and `--devices`: one run, one result, one error; it stops, restarts and goes on as one.

tests/training/test_ranks.py compares several processes with one.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Answer, draw_splits

from vitmed.core.process import cores

TOLERANCE = 1e-5  # of weights, losses and logits; measured 3e-6 after 12 steps
# Batches of 9, which 2 processes share unequally; no masks and no mixing, which each draws itself.
TEXT = """--image-size 16 --patch-size 8 --epochs 3 --batch-size 9 --accumulate 2 --lr 3e-3 --warmup-epochs 0.5
 --augment medical --workers 0 --device cpu --precision fp32 --set model.width=16 --set model.depth=2
 --set model.heads=2 --balance loss --stem patch --set train.choose=best --no-report --no-baseline --resamples 0
 --no-cache"""
ARGS = TEXT.split()
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo and torchrun as on Linux")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_splits(tmp_path_factory.mktemp("scale") / "data", 21, 7, 9, ("amber", "blue", "green"))


def start(*command: object, **environment: str) -> subprocess.Popen[str]:
    """A Python process with its output in a pipe."""
    words, env = [sys.executable, *map(str, command)], os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def trained(*command: object) -> None:
    code, _, err = finish(start(*command))
    assert code == 0, err


@pytest.fixture(scope="module")
def one(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    runs = tmp_path_factory.mktemp("one")
    trained("-m", "vitmed", "train", data, *ARGS, "-o", runs, "--name", "run")
    return runs / "run"


def assert_equal_runs(found: Path, one: Path) -> None:
    """Weights, losses, logits within the tolerance; the same epochs, decisions and best epoch."""
    for name in ("best.pt", "last.pt"):
        a, b = (torch.load(run / name, weights_only=True) for run in (found, one))
        torch.testing.assert_close(a["weights"], b["weights"], atol=TOLERANCE, rtol=TOLERANCE)
        assert a["record"]["epoch"] == b["record"]["epoch"], name
    records = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (found, one)]
    for a, b in zip(*records, strict=True):
        assert (a["best"], a["kept"], a["step"]) == (b["best"], b["kept"], b["step"])
        for loss in ("train_loss", "val_loss", "val_auroc"):
            assert a[loss] == pytest.approx(b[loss], abs=TOLERANCE)
    rows = [list(csv.DictReader((run / "test" / "predictions.csv").open())) for run in (found, one)]
    for a, b in zip(*rows, strict=True):
        assert (a["path"], a["label"], a["prediction"]) == (b["path"], b["label"], b["prediction"])
        for name in a:
            if name.startswith(("logit_", "prob_")):
                assert float(a[name]) == pytest.approx(float(b[name]), abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.skipif(cores() < 2, reason="--devices takes no more processes than cores")
def test_devices_prints_one_result(data: Path, one: Path, tmp_path: Path) -> None:
    command = ("-m", "vitmed", "train", data, *ARGS, "-o", tmp_path, "--name", "run", "--devices", 2, "--json")
    code, out, err = finish(start(*command))
    assert code == 0, err
    assert json.loads(out)["run"] == str(tmp_path / "run") and err.count("epoch   1/3") == 1
    assert_equal_runs(tmp_path / "run", one)


def rank_of(parent: int, rank: int) -> int:
    """The process of a rank, among those that a process has started."""
    for number in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{number}/environ").read_bytes().split(b"\0"):
            return int(number)
    raise AssertionError(f"no rank {rank}")


def after_an_epoch(process: subprocess.Popen[str], run: Path, do: Callable[[], object]) -> tuple[int, str, str]:
    """Do something when the run has finished an epoch; then as `finish`."""
    while process.poll() is None and not (run / "metrics.jsonl").is_file():
        time.sleep(0.02)
    do()
    return finish(process)


LONG = [text if text != "3" else "12" for text in ARGS]  # epochs, so that there is time for a signal


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("flags", [(), ("--shard-model",)], ids=["ddp", "sharded"])
def test_a_signal_to_one_rank_stops_all_and_any_number_resumes(
    data: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    trained("-m", "vitmed", "train", data, *LONG, "-o", tmp_path, "--name", "whole")
    run = tmp_path / "run"
    process = start(*TORCHRUN, 2, "-m", "vitmed", "train", data, *LONG, *flags, "-o", tmp_path, "--name", "run")
    code, _, err = after_an_epoch(process, run, lambda: os.kill(rank_of(process.pid, 1), signal.SIGTERM))
    assert code != 0 and err.count("stopped: interrupted in epoch") == 1, err
    assert torch.load(run / "last.pt", weights_only=True)["training"]["epoch"] < 12
    process = start(*TORCHRUN, 3, "-m", "vitmed", "train", "--resume", run)
    code, _, err = after_an_epoch(process, run, lambda: time.sleep(1) or process.terminate())
    trained("-m", "vitmed", "train", "--resume", run)
    assert_equal_runs(run, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_restart_goes_on_from_last_pt(data: Path, tmp_path: Path) -> None:
    trained("-m", "vitmed", "train", data, *LONG, "-o", tmp_path, "--name", "whole")
    run = tmp_path / "run"
    process = start(
        *TORCHRUN, 2, "--max-restarts", 1, "-m", "vitmed", "train", data, *LONG, "-o", tmp_path, "--name", "run"
    )
    code, _, err = after_an_epoch(process, run, lambda: os.kill(rank_of(process.pid, 1), signal.SIGKILL))
    assert code == 0 and "restart 1: going on from" in err, err
    assert_equal_runs(run, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or cores() < 2, reason="reads /proc")
def test_a_rank_that_dies_ends_all_within_a_minute(data: Path, tmp_path: Path) -> None:
    process = start("-m", "vitmed", "train", data, *LONG, "-o", tmp_path, "--name", "run", "--devices", 2)
    died: list[float] = []

    def kill() -> None:
        os.kill(rank_of(process.pid, 1), signal.SIGKILL)
        died.append(time.monotonic())

    code, _, err = after_an_epoch(process, tmp_path / "run", kill)
    assert time.monotonic() - died[0] < 60
    assert code == 1 and "SIGKILL ended process 1 of 2" in err and "Traceback" not in err, err


@pytest.mark.slow
@pytest.mark.skipif(cores() < 2, reason="--devices takes no more processes than cores")
@pytest.mark.parametrize("flags", [(), ("--shard-model",)], ids=["ddp", "sharded"])
def test_an_image_that_vanishes_is_one_error_and_loses_nothing(tmp_path: Path, flags: tuple[str, ...]) -> None:
    data = draw_splits(tmp_path / "data", 21, 7, 9, ("amber", "blue", "green"))
    process = start("-m", "vitmed", "train", data, *LONG, *flags, "-o", tmp_path, "--name", "run", "--devices", 2)
    gone = data / "train" / "blue" / "blue_3.png"
    code, _, err = after_an_epoch(process, tmp_path / "run", gone.unlink)
    assert code == 3 and err.count("error:") == 1 and "blue_3.png" in err and "Traceback" not in err, err
    assert (tmp_path / "run" / "last.pt").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "said"),
    [(("--devices", 9999), "this machine has"), (("--devices", 2, "--device", "cuda"), "this machine has cpu")],
)
def test_devices_that_are_not_there(
    data: Path, tmp_path: Path, vitmed: Callable[..., Answer], flags: tuple[object, ...], said: str
) -> None:
    if torch.cuda.is_available() and "cuda" in flags:
        pytest.skip("there are GPUs")
    answer = vitmed("train", data, "-o", tmp_path, *flags)
    assert answer.code == 2 and said in answer.err and "Fix: " in answer.err and not list(tmp_path.iterdir())
