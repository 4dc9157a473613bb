"""A run that was stopped, or killed, goes on to the same weights, to the last bit, as one that never stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from checkpoints import same, save
from conftest import BARE, TINY_ARGS, TINY_SETS, Recorder, Trained, draw_splits, exit_code, interrupt_at, recording

from vitmed import train
from vitmed.core.errors import CheckpointError, DataError, EndedByCaller, Interrupted, UsageError
from vitmed.core.messages import listening
from vitmed.inference.checkpoint import load_checkpoint

pytestmark = pytest.mark.usefixtures("no_figures")

# All that has a state: an average, batch norm (the conv stem), dropout, drop path, mixing, augmentation, sums of
# several batches. 24 training images, batches of 4: 6 batches and 3 optimiser steps an epoch.
FULL = BARE | {
    "epochs": 3,
    "batch_size": 4,
    "accumulate": 2,
    "policy": "blood_smear",
    "mixup": 0.4,
    "cutmix": 0.5,
    "stem": "conv",
    "drop_path": 0.2,
    "layer_decay": 0.8,
}
FULL_SETS = (*TINY_SETS, "model.dropout=0.2", "model.attention_dropout=0.1", "model.depth=2")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_splits(tmp_path_factory.mktemp("resume") / "data")


def training(run: Path) -> dict[str, Any]:
    return torch.load(run / "last.pt", weights_only=True)


def assert_same_run(one: Path, other: Path) -> None:
    for name in ("last.pt", "best.pt"):
        a, b = (torch.load(run / name, weights_only=True) for run in (one, other))
        same(a["weights"], b["weights"], f"{name} weights")
        same(a["record"], b["record"], f"{name} record")
        same(a["training"], b["training"], f"{name} training")
    lines = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, other)]
    same(lines[0], lines[1], "metrics.jsonl")
    assert (one / "test" / "predictions.csv").read_bytes() == (other / "test" / "predictions.csv").read_bytes()


def start(data: Path, output: Path, **flags: Any) -> Path:
    return train(data, output=output, name="run", sets=FULL_SETS, **FULL | flags).folder


VARIANTS: dict[str, dict[str, Any]] = {
    "all": {},
    "worker": {"workers": 1},
    "sampler": {"balance": "sampler", "ema": False, "smoothing": 0.1},
}


@pytest.fixture(scope="module")
def never_stopped(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The uninterrupted run of a variant; made once. With no worker, also for the variant that has one."""
    made: dict[str, Path] = {}

    def get(variant: str) -> Path:
        variant = "all" if variant == "worker" else variant
        if variant not in made:
            made[variant] = start(data, tmp_path_factory.mktemp(variant), **VARIANTS[variant])
        return made[variant]

    return get


# 18 batches in all. After 6 an epoch is complete; odd ones lie between two halves of an optimiser step; a list
# presses Ctrl-C in the run, and again in the run that goes on.
@pytest.mark.parametrize(
    ("variant", "presses"),
    [
        ("all", [1, 6, 10, 17]),
        pytest.param("worker", [9], marks=pytest.mark.slow),
        pytest.param("sampler", [9], marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_goes_on_bit_for_bit(
    data: Path, tmp_path: Path, never_stopped: Callable[[str], Path], variant: str, presses: list[int]
) -> None:
    run = tmp_path / "run"
    for i, press in enumerate(presses):
        with pytest.raises(Interrupted) as stopped, listening(interrupt_at(press)):
            if i == 0:
                start(data, tmp_path, **VARIANTS[variant])
            else:
                train(resume=run)
        assert "last.pt is saved" in str(stopped.value) and f"--resume {run}" in stopped.value.fix
        position = training(run)["training"]
        assert position["epoch"] * 6 + position["batch"] in (press, press + 1)  # at a whole optimiser step
        assert position["batch"] % 2 == 0 and not (run / "test").exists()
    train(resume=run)
    assert_same_run(never_stopped(variant), run)


def start_and_be_killed(data: Path, output: Path) -> None:
    with listening(Recorder(lambda done: os.kill(os.getpid(), signal.SIGKILL) if done == 9 else None)):
        start(data, output)


def test_a_killed_run_goes_on_from_its_last_epoch(
    data: Path, tmp_path: Path, never_stopped: Callable[[str], Path]
) -> None:
    """kill -9 in the middle of epoch 2: no chance to save anything."""
    assert exit_code(start_and_be_killed, data, tmp_path) == -signal.SIGKILL
    run = tmp_path / "run"
    assert training(run)["training"]["epoch"] == 1 and not list(run.glob("*.part"))
    train(resume=run)
    assert_same_run(never_stopped("all"), run)


def test_ctrl_c_at_the_command_line(data: Path, tmp_path: Path, vitmed: Callable[..., Any]) -> None:
    """Exit 130 with last.pt there, the way to go on is told, and the way works."""
    run, ended = tmp_path / "run", threading.Event()

    def press() -> None:
        while not (run / "metrics.jsonl").is_file() or (run / "metrics.jsonl").read_text().count("\n") < 2:
            if ended.wait(0.02):
                return
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    flags = ("--epochs", 2000, "--patience", 2000, "--no-baseline", "--no-report")
    stopped = vitmed("train", data, "-o", tmp_path, "--name", "run", *TINY_ARGS, *flags)
    ended.set()
    thread.join()
    assert stopped.code == 130 and "Traceback" not in stopped.err, stopped.err
    assert "stopped: interrupted in epoch" in stopped.err and f"--resume {run}" in stopped.err
    assert stopped.out == "" and not list(run.glob("*.part"))
    done = training(run)["training"]["epoch"]
    answer = vitmed("train", "--resume", run, "--epochs", done + 1, "--json")
    assert answer.code == 0, answer.err
    assert "epochs instead of 2000" in answer.err and "new schedule" in answer.err
    assert json.loads(answer.out)["run"] == str(run)


def test_more_epochs_are_allowed_and_told_but_not_other_images(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.data.parent, tmp_path / "moved")
    ui, run = recording(), tmp_path / "moved" / "runs" / "tiny"
    result = train(resume=run, epochs=7)
    assert any("7 epochs instead of 6" in text for text in ui.warned)
    records = (result.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in records] == [1, 2, 3, 4, 5, 6, 7]
    assert sorted(p.name for p in result.folder.glob("test*")) == ["test", "test-2"]  # the first is not overwritten
    before, after = (yaml.safe_load((run / "config.yaml").read_text()) for run in (trained.folder, result.folder))
    assert after == before | {"train": before["train"] | {"epochs": 7}}  # it says what was done
    amber, blue = (sorted((tmp_path / "moved" / "data" / "train" / name).iterdir())[0] for name in ("amber", "blue"))
    shutil.copy(blue, amber)  # two labels: the fix of the data check names flags that --resume refuses
    with pytest.raises(DataError, match="images of train have changed"):
        train(resume=run, epochs=9)


def test_a_run_that_was_killed_before_its_evaluation_is_evaluated(trained: Trained, tmp_path: Path) -> None:
    """The report in `test` is of other weights, as after --epochs N and a kill at the end of the training."""
    shutil.copytree(trained.data.parent, tmp_path / "moved")
    run = tmp_path / "moved" / "runs" / "tiny"
    for file in run.glob("*/metrics.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"weights_hash": "of other weights"}))
    result = train(resume=run)
    assert result.test.folder == run / "test-2"
    assert result.test.metrics.weights_hash == load_checkpoint(run / "best.pt").weights_hash
    before = (run / "config.yaml").read_text()
    for given in ({}, {"time": "0.1s"}):  # it ended by its epochs, not by the time that is given now
        with pytest.raises(UsageError, match="this run of 6 epochs is finished and evaluated") as error:
            train(resume=run, **given)
        assert f"--resume {run} --epochs N" in error.value.fix
    assert (run / "config.yaml").read_text() == before


def test_what_cannot_be_resumed(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "best-as-last").mkdir()
    shutil.copy(trained.best, tmp_path / "best-as-last" / "last.pt")
    for run, given, told in (
        (tmp_path, {}, r"no last\.pt"),
        (tmp_path / "none", {}, "none: no such folder"),
        (trained.folder, {"name": "other", "epochs": 9}, "own folder"),
        (trained.best, {"epochs": 9}, r"best\.pt: a run goes on from its last\.pt, not from this"),
        (trained.folder, {"lr": 1.0}, "own configuration"),
        (trained.folder, {"sets": ["train.lr=1"]}, "own configuration"),
        (tmp_path / "best-as-last", {}, "no training state"),
    ):
        with pytest.raises((CheckpointError, UsageError), match=told):
            train(resume=run, **given)


def test_the_data_may_have_moved(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "a" / "data")
    with pytest.raises(Interrupted), listening(interrupt_at(4)):
        start(tmp_path / "a" / "data", tmp_path / "runs", epochs=1)
    shutil.move(tmp_path / "a", tmp_path / "b")
    with pytest.raises(DataError, match="vitmed train DIR --resume"):  # train has no --data
        train(resume=tmp_path / "runs" / "run")
    assert train(tmp_path / "b" / "data", resume=tmp_path / "runs" / "run").checkpoint.is_file()


@pytest.mark.slow
def test_the_best_checkpoint_outlives_a_resume_and_finds_data_that_have_moved(trained: Trained, tmp_path: Path) -> None:
    """best.pt stays as it is, but for its place of the data; the evaluation after the training looks there."""
    run = tmp_path / "runs" / "tiny"
    shutil.copytree(trained.folder, run)
    shutil.copytree(trained.data, tmp_path / "new place" / "data")
    state = training(run)
    for part in (state["training"]["model"], state["training"]["ema"]):  # no epoch with these can be the best
        for tensor in part.values():
            if tensor.is_floating_point():
                tensor.zero_()
    save(state, run / "last.pt")
    shutil.rmtree(run / "test")
    before = torch.load(run / "best.pt", weights_only=True)
    result = train(tmp_path / "new place" / "data", resume=run, epochs=8)
    assert result.test.metrics["overall"]["auroc"]["value"] > 0.9
    after = torch.load(run / "best.pt", weights_only=True)
    assert after["record"] == before["record"] and after["config"]["train"] == before["config"]["train"]
    assert all(torch.equal(after["weights"][name], tensor) for name, tensor in before["weights"].items())
    for file in ("best.pt", "last.pt", "epoch_0004.pt"):  # every checkpoint of the run can be evaluated
        assert load_checkpoint(run / file).data_root() == tmp_path / "new place" / "data"


def test_a_run_that_lacks_its_evaluation_alone_is_resumed_after_its_training(trained: Trained, tmp_path: Path) -> None:
    run = shutil.copytree(trained.folder, tmp_path / "tiny")
    shutil.rmtree(run / "test")
    with listening(ui := Recorder()):
        train(trained.data, resume=run)
    assert f"resuming {run} after its training" in ui.said and (run / "test" / "metrics.json").is_file()


def test_a_run_that_the_caller_ends_can_be_resumed(
    data: Path, tmp_path: Path, never_stopped: Callable[[str], Path]
) -> None:
    with pytest.raises(EndedByCaller, match="ended after epoch 2") as error:
        start(data, tmp_path / "ended", each_epoch=lambda record: record["epoch"] == 2)
    run = tmp_path / "ended" / "run"
    assert error.value.fix == f"vitmed train --resume {run}"
    assert training(run)["training"]["epoch"] == 2 and not (run / "test").exists()
    with pytest.raises(Interrupted, match="interrupted in epoch 3; "):  # the last one, not a fourth
        train(resume=run, each_epoch=lambda record: os.kill(os.getpid(), signal.SIGINT))
    train(resume=run)
    assert_same_run(run, never_stopped("all"))
