"""`vitmed train --time`: the run ends in time with a low learning rate, and goes on where it was.

The clock is one on which every look takes a second; the loop looks before every step and after every epoch.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from conftest import BARE, TINY, TINY_NETWORK, TINY_SETS, Recorder, draw_classes, draw_splits, python, recording

from vitmed import plan, pretrain, train
from vitmed.core.errors import Interrupted, UsageError
from vitmed.core.messages import listening
from vitmed.studies import one_run
from vitmed.studies.folds import JOINING, TABLES
from vitmed.training import finetune, loop
from vitmed.training.finetune import Finetune
from vitmed.training.plan import time as speed
from vitmed.training.plan.time import REPORTING, After, Clock, Contention

MANY = BARE | {"epochs": 100}  # more than the time is enough for: 24 images, 3 batches an epoch


@pytest.fixture(autouse=True)
def ticking(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "real" in request.node.name:
        return
    request.getfixturevalue("no_figures")

    def seconds(clock: Clock) -> float:
        clock.looks = getattr(clock, "looks", 0) + 1  # type: ignore[attr-defined]
        return clock.looks - clock.began  # type: ignore[attr-defined,no-any-return]

    monkeypatch.setattr(Clock, "__init__", lambda clock, began=None: setattr(clock, "began", began or 0.0))
    monkeypatch.setattr(Clock, "seconds", seconds)
    monkeypatch.setattr(After, "__init__", lambda after, *_: after.__dict__.update(fixed=REPORTING, steps=0.0))
    monkeypatch.setattr(After, "keep", lambda *_: None)
    monkeypatch.setattr(speed, "step_seconds", lambda *_: 1e-3)
    monkeypatch.setattr(Contention, "factor", lambda *_: 1.0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return draw_splits(tmp_path / "data")


def run(data: Path, **flags: Any) -> Path:
    return train(data, output=data.parent, name="run", sets=TINY_SETS, **MANY | flags).folder


def interrupted_after(batches: int) -> Recorder:
    """A user who presses Ctrl-C after so many batches; the progress bar shows the share of the time."""
    seen: list[int] = []

    def press(done: int) -> None:
        seen.append(done)
        if len(seen) == batches:
            os.kill(os.getpid(), signal.SIGINT)

    return Recorder(press)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def state(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "last.pt", weights_only=True)["training"]  # type: ignore[no-any-return]


def test_the_run_ends_in_time_with_a_low_rate_and_the_last_steps_are_validated(data: Path) -> None:
    ui = recording()
    ui.began = -15.0  # the command line started 15 s before vitmed was loaded
    folder = run(data, time="75s")
    found = records(folder)
    assert 60 - REPORTING - 3 <= found[-1]["step"] + len(found) <= 60 - REPORTING
    assert found[-1]["lr"] < 1e-4 < 2e-3 < max(record["lr"] for record in found)
    assert state(folder)["share"] == 1 and (folder / "test" / "predictions.csv").is_file()
    assert f"the time for training is used, in epoch {len(found)}" in ui.said
    assert any(text.startswith("time: ") and text.endswith(" of 1m15s used") for text in ui.said)
    assert any("% of the time  train loss" in text for text in ui.said)
    assert ui.began is None  # a second run of the same command has its own start


def test_enough_time_changes_nothing(data: Path) -> None:
    """Epochs that end before the time give the weights that they give without."""
    (data.parent / "free").mkdir()
    weights = []
    for place, limit in ((data.parent / "free", None), (data.parent, "20h")):
        folder = train(data, output=place, name="run", sets=TINY_SETS, **BARE, time=limit).folder
        weights.append(torch.load(folder / "best.pt", weights_only=True)["weights"])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_an_interrupted_run_goes_on_with_the_time_that_is_left(data: Path) -> None:
    with pytest.raises(Interrupted), listening(interrupted_after(10)):
        run(data, time="60s")
    folder = data.parent / "run"
    before = state(folder)
    assert 10 <= before["spent"] < 20 and 0.2 < before["share"] < 0.6
    train(resume=folder)
    found = records(folder)
    assert 60 - REPORTING - 5 <= found[-1]["step"] + len(found) <= 60 - REPORTING  # in all, not once more
    rates = [record["lr"] for record in found]
    assert rates[-1] < 1e-4 and rates[1:] == sorted(rates[1:], reverse=True)
    assert state(folder)["spent"] >= 60 - REPORTING


@pytest.mark.slow
def test_a_finished_run_goes_on_only_with_more_time(data: Path) -> None:
    folder = run(data, time="50s")
    steps = records(folder)[-1]["step"]
    for given in ({}, {"time": "30s"}):
        with pytest.raises(UsageError, match="this run of 50s is finished and evaluated") as caught:
            train(resume=folder, **given)
        assert f"more time: vitmed train --resume {folder} --time TIME" in caught.value.fix
    train(resume=folder, time="70s")
    assert steps + 10 < records(folder)[-1]["step"] <= steps + 20
    assert records(folder)[-1]["lr"] < 1e-4


@pytest.mark.parametrize("batches", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_without_time_left_what_was_learned_is_validated(data: Path, batches: int) -> None:
    """Also where it is less than an epoch, or a part of one: one more step, and the epoch ends."""
    with pytest.raises(Interrupted), listening(interrupted_after(batches)):
        run(data, time="60s")
    folder = data.parent / "run"
    train(resume=folder, time=f"{REPORTING + 6}s")
    found = records(folder)
    assert found[-1]["step"] in (batches + 1, batches + 2) and len(found) == 1 + batches // 3
    assert state(folder)["best_epoch"] == len(found) and (folder / "test" / "predictions.csv").is_file()
    notes = json.loads((folder / "test" / "metrics.json").read_text())["notes"]
    ended = "The time ended training within its first pass"  # graver is only a model that predicts one class for all
    assert any(note.startswith(ended) for note in notes[:2]) == (found[-1]["step"] < 3)


def test_where_the_time_is_nearly_used_there_are_fewer_reports(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside eight times as many programs as cores: the reports would take far longer than what is left."""
    monkeypatch.setattr(Contention, "factor", lambda *_: 8.0)
    ui = recording()
    folder = run(data, time="60s", report=True, map_images=2)
    assert len(records(folder)) == 1 and "the time for training is used, in epoch 1" in ui.said
    assert not (folder / "val" / "report.html").exists() and (folder / "test" / "report.html").is_file()
    assert not (folder / "test" / "attention").exists()
    (text,) = [line for line in ui.warned if "the time is nearly used" in line]
    assert f"vitmed evaluate {folder} --split val" in text


@pytest.mark.slow
def test_folds_share_the_time(tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "data", 16)
    ui = recording()
    flags = MANY | {"folds": 2, "time": "95s"}
    folder = train(data, output=tmp_path, name="run", sets=TINY_SETS, **flags).folder
    assert "--time 1m35s: 46s for each fold" in ui.said
    for fold, expected in (("fold-1", (95 - TABLES - 1) / 2), ("fold-2", 95 - TABLES - 2)):  # 1 and 2 seconds are over
        limit = yaml.safe_load((folder / fold / "config.yaml").read_text())["train"]["time"]
        assert limit == expected  # an equal part of what is left
        found = records(folder / fold)
        assert expected - REPORTING - 5 <= found[-1]["step"] + len(found) <= expected - REPORTING


def test_a_plan_of_folds_is_for_their_share_of_the_time(tmp_path: Path) -> None:
    data, ui = draw_classes(tmp_path / "data", 16), recording()
    planned = plan(data, output=tmp_path / "plan.yaml", sets=TINY_SETS, folds=2, time="80s", weights="none")
    assert "--time 1m20s: 34s for each fold" in ui.said and planned.minutes == pytest.approx((80 - JOINING) / 120)
    assert any(" for each fold is enough for " in line for line in ui.warned)
    assert yaml.safe_load((tmp_path / "plan.yaml").read_text())["train"]["time"] == 80  # train divides it
    with pytest.raises(
        UsageError, match=r"--time 38s is too short for 2 folds: for each, --time 1\ds is too short: 4 s"
    ) as refused:
        plan(data, output=tmp_path / "short.yaml", sets=TINY_SETS, folds=2, time="38s", weights="none")
    assert refused.value.fix.startswith("--time ")


@pytest.mark.slow
def test_a_time_that_is_too_short_for_all_folds_is_refused_with_one_that_is_enough(tmp_path: Path) -> None:
    data, flags = draw_classes(tmp_path / "data", 16), MANY | {"folds": 3, "output": tmp_path, "sets": TINY_SETS}
    with pytest.raises(UsageError) as refused:
        train(data, name="short", time="60s", **flags)
    assert refused.value.problem.startswith("--time 1m is too short for 3 folds: for each, --time 1")
    assert not (tmp_path / "short").exists()
    ui = recording()
    enough = train(data, name="enough", time=refused.value.fix.removeprefix("--time "), **flags)
    assert enough.test is not None and len(enough.test.predictions) == 32
    assert [line for line in ui.said if line.startswith("time: ") and line.endswith(" of 2m used for all folds")]


def test_pretraining_ends_in_time(tmp_path: Path) -> None:
    data, settings = draw_classes(tmp_path / "data", 24), {k: v for k, v in TINY.items() if k != "policy"}
    sets = TINY_NETWORK
    settings |= {"epochs": 100, "time": "40s"}
    found = pretrain(data, output=tmp_path, name="mae", sets=sets, **settings)
    assert 20 < found.records[-1]["step"] <= 30 and found.records[-1]["lr"] == pytest.approx(0, abs=1e-5)
    assert found.encoder.is_file()


@pytest.mark.slow
def test_a_real_command_takes_the_time_that_it_was_given(tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "data", 240, side=64)
    arguments = f"train {data} -o {tmp_path} --name run --device cpu --time 80s"
    started = time.monotonic()
    done = python("-m", "vitmed", *arguments.split(), timeout=300)
    used = time.monotonic() - started
    assert done.returncode == 0, done.stderr
    assert 0.75 * 80 < used < 1.25 * 80, f"{used:.0f} s\n{done.stderr}"
    assert records(tmp_path / "run")[-1]["lr"] < 1e-4


@pytest.mark.slow
def test_a_run_that_is_slower_than_planned_says_so_and_what_the_time_is_enough_for(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside other programs: each step takes 0.1 s, of which the plan has measured 8 ms."""
    step = loop.optimiser_step
    monkeypatch.setattr(finetune, "SURE", 0.5)
    for limit, means in (("60s", r"the time is enough for about \d+ epochs"), (None, r"takes about \d+ s more")):
        monkeypatch.setattr(loop, "optimiser_step", lambda *of: (time.sleep(0.1), step(*of))[1])
        ui = recording()
        run(data, time=limit, epochs=4)
        (slow,) = [text for text in ui.warned if "less than half of the" in text]
        assert re.search(r"goes at \d+ images/s, less than half of the \d+ that the plan measured.*" + means, slow)
        (data.parent / "run").rename(data.parent / f"slow-{limit}")
    monkeypatch.setattr(loop, "optimiser_step", step)
    monkeypatch.setattr(speed, "step_seconds", lambda *_: 10.0)  # faster than planned
    monkeypatch.setattr(finetune, "SURE", 1e-3)
    ui = recording()
    run(data, epochs=2)
    assert not any("less than half" in text for text in ui.warned)


def test_a_time_for_few_epochs_is_called_too_short_before_training(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_run, "busy", lambda: "other programs use 1.0 of 2 cores")
    ui = recording()
    flags = {key: value for key, value in MANY.items() if key != "epochs"}
    train(data, output=data.parent, name="run", sets=TINY_SETS, **flags, time="30s")
    assert len([text for text in ui.said if text.startswith("time: 30s (")]) == 1
    (line,) = [text for text in ui.warned if "worse than it could be: --time " in text]
    end = "after which more gains little; other programs use 1.0 of 2 cores: it may take longer"
    assert " is enough for " in line and line.endswith(end)


def test_the_real_first_step_does_not_say_how_long_the_evaluation_takes() -> None:
    """On a busy core it took 3.6 s for 32 images, at a planned 39 images/s; the time for five passes was gone."""
    after = After.__new__(After)
    after.fixed, after.steps = REPORTING, 1200.0
    task = SimpleNamespace(
        after=after, contention=Contention(time.monotonic(), time.thread_time(), 0.0), planned_rate=39.0
    )
    running = {"seconds": 3.56, "waited": 0.3, "images": 32}
    run = SimpleNamespace(state=SimpleNamespace(running=running, history=[]))
    assert Finetune.seconds_after(task, run) < REPORTING + 1200 * 1.3 / 39  # type: ignore[arg-type]
    running |= {"seconds": 356.0, "waited": 0.0, "images": 3200}  # slow to the end
    assert Finetune.seconds_after(task, run) > REPORTING + 1200 * 0.9 / 9  # type: ignore[arg-type]


@pytest.mark.parametrize(("others", "times"), [("other programs use 1.0 of 2 cores", 4), (None, 1)])
def test_a_real_start_on_a_busy_machine_keeps_more_time_for_the_evaluation(
    others: str | None, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """70 s for 10 s of CPU time before the first step: with ten that count as alone, four times as long. Where nobody
    else computes, it was a slow disk or another rank."""
    after = After.__new__(After)
    after.fixed, after.steps = REPORTING, 0.0
    monkeypatch.setattr(finetune, "After", lambda *_: after)
    monkeypatch.setattr(finetune, "busy", lambda: others)
    session = SimpleNamespace(began=(time.monotonic() - 70, time.process_time() - 10))
    task = SimpleNamespace(after=None, contention=None, planned_rate=None)
    run: Any = SimpleNamespace(state=SimpleNamespace(running={"seconds": 1.0, "waited": 0.0, "images": 9}, history=[]))
    run.session, run.splits, run.config, run.device = session, None, None, None
    assert Finetune.seconds_after(task, run) == pytest.approx(times * REPORTING, rel=0.02)  # type: ignore[arg-type]
