"""`vitmed tune`: a search on validation that no interruption spoils, and one test of its winner."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import TINY, TINY_SETS, Answer, Recorder, draw_image, draw_nothing, recording
from label_sets import draw_findings
from PIL import Image
from sklearn.metrics import brier_score_loss, roc_auc_score

import vitmed
from vitmed import train, tune
from vitmed.core.errors import CheckpointError, DataError, DiskFullError, OutOfMemoryError, UsageError
from vitmed.core.load_config import load_config
from vitmed.core.run_folder import RunFolder
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.tuning_study import TrialResult, TuningStudy, combined
from vitmed.report.plots.curves import history_figure
from vitmed.studies.search import Asked, Search, TuneResult, _notes, _table, read_space, resumed_study, suggest
from vitmed.studies.study import Job
from vitmed.training.plan.time import Clock

optuna = pytest.importorskip("optuna")
RUN = Callable[..., Answer]
SETTINGS: dict[str, Any] = {k: v for k, v in TINY.items() if k not in ("lr", "epochs")} | {"group_regex": r"(p\d+)_"}
SETTINGS |= {"resamples": 20, "map_images": 0, "baseline": False, "report": False}


@pytest.fixture(scope="module", autouse=True)
def _small() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("tune") / "data", np.random.default_rng(0)
    for name, colour in (("amber", (170, 140, 90)), ("blue", (90, 120, 170))):
        (root / name).mkdir(parents=True)
        for i in range(16):
            Image.fromarray(draw_image(rng, colour)).save(root / name / f"p{i // 2}_{i}.png")
    return root


def run(data: Path, output: Path, **options: Any) -> TuneResult:
    given = SETTINGS | {"epochs": 2, "trials": 3, "sets": TINY_SETS} | options
    return tune(data, output=output, name="t", **given)


@pytest.fixture(scope="module")
def told() -> Recorder:
    return recording()


@pytest.fixture(scope="module")
def done(data: Path, told: Recorder, tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """Seven trials of nine epochs: enough that Hyperband stops some."""
    return run(data, tmp_path_factory.mktemp("done"), trials=7, epochs=9)


def auroc(run: Path, split: str = "val") -> float:
    table = Predictions.from_csv(run / split / "predictions.csv")
    return float(roc_auc_score(table.labels, table.probabilities[:, 1]))


def test_a_trial_is_a_run_with_its_values_and_no_test(done: TuneResult) -> None:
    with (done.folder / "trials.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["trial"]) for row in rows] == list(range(1, 8))
    for row in rows:
        config = load_config(done.folder / row["run"] / "config.yaml")
        assert config.train.lr == float(row["train.lr"]) and config.augment.mixup == float(row["augment.mixup"])
        assert not (done.folder / row["run"] / "test").exists() and config.train.seed == 0
        epochs = (done.folder / row["run"] / "metrics.jsonl").read_text().splitlines()
        assert len(epochs) == int(row["epochs"]) and (len(epochs) == 9) == (row["state"] == "done")
        if row["state"] == "done":
            assert float(row["auroc"]) == pytest.approx(auroc(done.folder / row["run"]))
    assert 0 < sum(row["state"] == "stopped" for row in rows) < 6
    first, planned = done.study.of(1), load_config(done.folder / "base.yaml")
    assert done.study.plan == 1 and first.state == "done"  # the plan, never stopped
    assert first.values["train.lr"] == planned.train.lr and first.values["augment.mixup"] == planned.augment.mixup


def test_the_winner_is_trained_with_another_seed_and_tested_once(done: TuneResult, told: Recorder) -> None:
    study, winner = done.study, done.folder / "winner"
    best = max((t for t in study.trials if t.state == "done"), key=lambda t: (t.value, -t.number))
    config = load_config(winner / "config.yaml")
    assert study.best == best.number and config.train.seed == 1 and config.train.lr == best.values["train.lr"]
    assert study.refit_val is not None and study.refit_val.value == pytest.approx(auroc(winner))
    assert study.test is not None and study.test.value == pytest.approx(auroc(winner, "test"))
    assert study.test.low is not None and [path.name for path in winner.glob("test*")] == ["test"]
    said = "\n".join(told.said)
    assert f"reach {study.refit_val.value:.3f} on validation" in said and "On the test, evaluated once: AUROC" in said
    lines = [line for line in told.said if line.startswith("trial ") and " of 7: " in line]
    assert len(lines) == 7 and any("stopped after epoch" in line for line in lines)


def study_of(trials: list[TrialResult], best: int, **more: Any) -> TuningStudy:
    given = {"metric": "auroc", "title": "AUROC", "higher": True, "epochs": 9, "seeds": [], "combinations": trials}
    return TuningStudy(**(given | {"trials": trials, "best": best, "plan": 1, "changed": {}} | more))


def test_the_winner_is_not_trained_on_other_images_than_the_trials(
    done: TuneResult, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, image = shutil.copytree(done.folder, tmp_path / "t"), next(data.rglob("*.png"))
    shutil.rmtree(there / "winner")
    content, chosen = image.read_bytes(), Search.chosen

    def lost(self: Search) -> TuningStudy:
        image.unlink()
        return chosen(self)

    monkeypatch.setattr(Search, "chosen", lost)
    try:
        with pytest.raises(DataError, match="other images, labels or splits"):
            tune(resume=there)
    finally:
        image.write_bytes(content)
    assert not (there / "winner").exists()


@pytest.mark.parametrize(("value", "keep"), [(0.7, True), (0.9, False)])
def test_a_winner_that_another_seed_makes_worse_than_the_plan_is_not_recommended(value: float, keep: bool) -> None:
    trials = [
        TrialResult(number=1, state="done", values={"a": 1}, value=0.8),
        TrialResult(number=2, state="done", values={"a": 2}, value=0.95),
    ]
    again = Estimate(value=value, low=None, high=None)
    notes = " ".join(_notes(study_of(trials, 2).model_copy(update={"refit_val": again})))
    assert f"reach {value:.3f} on validation, {0.95 - value:.3f} worse" in notes and ("Keep the plan" in notes) == keep


def test_epochs_that_are_searched_are_counted_by_trial() -> None:
    three, nine = ({"train.epochs": text} for text in ("3", "9"))
    trials = [
        TrialResult(number=1, state="done", values=three, value=0.8, epochs=3),
        TrialResult(number=2, state="stopped", values=three, value=0.7, epochs=1),
        TrialResult(number=3, state="done", values=nine, value=0.9, epochs=9),
    ]
    assert "1 trial stopped early: 13 of 15 epochs were trained." in _notes(study_of(trials, 3))
    raw = "The Log loss of a stopped trial is that of its last epoch, before calibration."
    assert raw in _notes(study_of(trials, 3).model_copy(update={"metric": "log_loss", "title": "Log loss"}))
    assert raw.replace("Log loss", "AUROC") not in _notes(study_of(trials, 3))


@pytest.mark.slow
def test_the_time_of_the_command_is_not_that_of_its_last_training(data: Path, tmp_path: Path) -> None:
    ui = recording()
    ui.began = time.monotonic() - 500  # as if the command had begun long ago
    found = run(data, tmp_path, trials=1, time="20m")
    left = load_config(found.folder / "winner" / "config.yaml").train.time
    assert left is not None and 500 < left < 701
    epochs = (found.folder / "winner" / "metrics.jsonl").read_text().splitlines()
    assert len(epochs) == 2  # both, with 11 minutes left


def test_tuned_yaml_trains_what_the_winner_was(done: TuneResult, data: Path, tmp_path: Path) -> None:
    text = (done.folder / "tuned.yaml").read_text()
    given = {k: v for k, v in SETTINGS.items() if k in ("baseline", "resamples", "map_images", "report")}
    found = train(data, config=done.folder / "tuned.yaml", output=tmp_path, name="again", **given)
    best = done.study.of(done.study.best)
    again, trial = (
        yaml.safe_load((place / "config.yaml").read_text()) for place in (found.folder, done.folder / str(best.run))
    )
    assert again["model"] == trial["model"] and again["augment"] == trial["augment"]
    assert again["train"] | {"test": False} == trial["train"]
    assert auroc(found.folder) == pytest.approx(best.value)
    differs = [place for place, value in done.study.of(1).values.items() if best.values[place] != value]
    assert [line.split()[1] for line in text.splitlines() if line.startswith("#   ")] == differs
    assert ("no other trial was better" in text) == (not differs)


@pytest.mark.slow
def test_without_pruning_every_trial_ends_and_lower_can_be_better(data: Path, tmp_path: Path) -> None:
    found = run(data, tmp_path, prune=False, trials=2, epochs=3, seed=500_000, monitor="brier")
    assert [(t.state, t.epochs) for t in found.study.trials] == [("done", 3)] * 2
    assert {load_config(tmp_path / "t" / str(t.run) / "config.yaml").train.seed for t in found.study.trials} == {
        500_000
    }
    tables = [Predictions.from_csv(found.folder / f"trial-000{k}" / "val" / "predictions.csv") for k in (1, 2)]
    values = [brier_score_loss(table.labels, table.probabilities[:, 1]) for table in tables]
    scale = [found.study.trials[k].value / values[k] for k in (0, 1)]  # type: ignore[operator]
    assert scale[0] == pytest.approx(scale[1]) and found.study.best == 1 + int(np.argmin(values))


@pytest.mark.slow
def test_what_you_set_is_not_searched_and_the_clock_counts_what_a_killed_process_used(
    data: Path, tmp_path: Path
) -> None:
    found = run(data, tmp_path, trials=1, lr=2e-3, sets=(*TINY_SETS, "augment.mixup=0.1"))
    assert set(found.study.trials[0].values) == {"train.weight_decay", "model.drop_path"}
    folder = RunFolder(found.folder)
    asked = resumed_study(folder, None, None)[1]
    assert set(asked.space) == {"train.weight_decay", "model.drop_path"}
    for name, ends in asked.space.items():
        low, high = map(float, ends.split(".."))
        assert low <= asked.planned[name] <= high
    asked = asked.model_copy(update={"time": 1000.0, "before": 10.0, "one_pass": 4.0, "after": 20.0})
    first = Search(optuna, folder, asked, Clock())
    assert first.reserve == 10 + 2 * 4 + 20 and not first.late
    file = folder.path / "trial-0001.json"
    spent = {"spent": 970.0}  # of the whole command, at its last sign
    file.write_text(json.dumps(json.loads(file.read_text()) | spent))
    again = Search(optuna, folder, asked, Clock())
    again.begin()
    assert again.late  # 1000 - 38 s are for trials


@pytest.mark.slow
def test_a_trial_that_fails_is_recorded_and_the_study_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sometimes(*args: Any, **given: Any) -> Any:
        if given.get("name") == "trial-0002":
            raise OutOfMemoryError("no memory for one image", "--image-size 8")
        return train(*args, **given)

    monkeypatch.setattr(vitmed, "train", sometimes)
    space = ["model.width=16,18", "lr=1e-4..1e-2"]  # two heads divide both
    found = run(data, tmp_path, trials=3, epochs=1, space=space, prune=False)
    assert [t.state for t in found.study.trials] == ["done", "failed", "done"]
    assert "no memory for one image" in found.study.of(2).reason
    assert {t.values["model.width"] for t in found.study.trials} <= {"16", "18"}
    assert "trial failed" in " ".join(found.study.notes)
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"no trial ended well: .*heads do not divide"):
        run(data, tmp_path / "none", trials=2, space=["model.heads=3,5"])
    assert not (tmp_path / "none" / "t" / "winner").exists()


@pytest.mark.slow
def test_a_killed_study_goes_on_as_if_it_had_not_been(data: Path, tmp_path: Path, vitmed: RUN) -> None:
    """kill -9 in the second of three trials; then other data are refused."""
    whole = run(data, tmp_path / "whole", epochs=4)
    flags = [word for name, value in (SETTINGS | {"epochs": 4}).items() for word in _flag(name, value)]
    sets = [word for text in TINY_SETS for word in ("--set", text)]
    command = [sys.executable, "-m", "vitmed", "tune", str(data), "--trials", "3", "-o", str(tmp_path), "--name", "t"]
    nowhere, folder = subprocess.DEVNULL, tmp_path / "t"
    child = subprocess.Popen([*command, *sets, *flags], stderr=nowhere, stdout=nowhere)
    while not (folder / "trial-0002" / "metrics.jsonl").is_file():
        assert child.poll() is None
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    first = folder / "trial-0001" / "best.pt"
    before = first.stat().st_mtime_ns
    answer = vitmed("tune", "--resume", str(folder), "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    expected = whole.study.to_dict()
    for name in ("values", "state", "value", "epochs"):
        assert [t.get(name) for t in found["trials"]] == [t.get(name) for t in expected["trials"]]
    assert found["test"]["value"] == expected["test"]["value"]
    assert first.stat().st_mtime_ns == before and len([p for p in folder.glob("trial-*") if p.is_dir()]) == 3
    again = vitmed("tune", "--resume", str(folder))  # nothing is trained or tested again
    assert again.code == 0 and f"{expected['test']['value']:.3f}" in again.err and "trial" in again.out
    with pytest.raises(UsageError, match="its winner is chosen"):
        tune(resume=folder, trials=9)
    (data / "amber" / "p0_0.png").rename(tmp_path / "away.png")
    try:
        with pytest.raises(DataError, match="other images, labels or splits"):
            tune(resume=folder)
    finally:
        (tmp_path / "away.png").rename(data / "amber" / "p0_0.png")


def test_a_trial_that_was_to_stop_when_the_command_was_killed_does_not_go_on(done: TuneResult, tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    shutil.copytree(done.folder, tmp_path / "t")
    number = next(trial.number for trial in done.study.trials if trial.state == "stopped")
    for file in sorted((tmp_path / "t").glob("trial-*.json"))[number:]:
        file.unlink()
    last = tmp_path / "t" / f"trial-{number:04d}.json"
    last.write_text(json.dumps(json.loads(last.read_text()) | {"state": ""}))  # noted a moment later
    search = Search(optuna, *resumed_study(RunFolder(tmp_path / "t"), None, None), Clock())
    search.begin()
    assert search.files[-1].state == json.loads(last.read_text())["state"] == "stopped" and not search.open


def _flag(name: str, value: object) -> list[str]:
    spelled = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [spelled if value else f"--no-{spelled[2:]}"]
    return [spelled, str(value)]


@pytest.mark.slow
def test_a_trial_whose_process_dies_again_and_again_is_given_up_and_a_full_disk_counts_none(
    data: Path, tmp_path: Path
) -> None:
    class Killed(BaseException):
        pass

    full = DiskFullError("x", f"make room on this disk; then continue: vitmed train --resume {tmp_path}/t/trial-0001")
    for ended in (Killed(), Killed(), full, Killed()):

        def die(*args: Any, ended: BaseException = ended, **given: Any) -> Any:
            raise ended

        with pytest.MonkeyPatch.context() as patch, pytest.raises(type(ended)):
            patch.setattr(vitmed, "train", die)
            if (tmp_path / "t").exists():
                tune(resume=tmp_path / "t")
            else:
                run(data, tmp_path, trials=2)
    assert full.fix == f"make room on this disk; then continue: vitmed tune --resume {tmp_path}/t"
    found = tune(resume=tmp_path / "t")
    assert [t.state for t in found.study.trials] == ["failed", "done"]
    assert "ended 3 times" in found.study.of(1).reason


@pytest.mark.slow
def test_two_processes_share_the_trials(data: Path, tmp_path: Path) -> None:
    found = run(data, tmp_path, trials=3, parallel=2, prune=False)
    assert [t.number for t in found.study.trials] == [1, 2, 3]
    assert len([p for p in found.folder.glob("trial-*") if p.is_dir()]) == 3
    values = [tuple(t.values.values()) for t in found.study.trials]
    assert len(set(values)) == 3  # no suggestion came twice
    assert len(list(found.folder.glob("trial-*.log"))) == 3


def test_when_the_time_is_used_trials_end_and_the_winner_is_trained(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(self: Search) -> bool:
        return len(self.files) > 1 and bool(self.study.trials[1].intermediate_values)

    monkeypatch.setattr(Search, "late", property(late))
    found = run(data, tmp_path, trials=9, epochs=3)
    assert [(t.state, t.epochs) for t in found.study.trials] == [("done", 3), ("stopped", 1)]
    assert found.study.of(2).reason == "the time was used" and found.study.test is not None


def test_the_time_for_the_winner_counts_the_start_of_a_run_once(
    done: TuneResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was forecast as 9 s; a run that needs 15 s before its first epoch ends does not have epochs of 15 s."""
    plan = json.loads((done.folder / "tune.json").read_text())
    asked = Asked(**plan | {"time": 240.0, "before": 9.0, "one_pass": 0.5, "after": 4.0})
    search, now = Search(optuna, RunFolder(tmp_path), asked, Clock()), [0.0]
    monkeypatch.setattr("vitmed.studies.search.time", SimpleNamespace(monotonic=lambda: now[0]))
    search._ask()
    with search.watch(search._job(0)) as on_epoch:
        for epoch, now[0] in enumerate((15.0, 16.0, 18.0), 1):
            assert not on_epoch({"epoch": epoch, f"val_{asked.metric}": 0.5})  # type: ignore[misc]
    assert search.pace == 1.5 and search.reserve == 9 + asked.epochs * 1.5 + 4


def test_the_plan_is_no_change_of_itself_however_many_digits_it_has(
    done: TuneResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial has three of them, but tuned.yaml keeps the plan's number."""
    plan = json.loads((done.folder / "tune.json").read_text())
    plan |= {"space": {"train.lr": "0.001..0.01"}, "planned": {"train.lr": 0.00333333}}
    search = Search(optuna, RunFolder(tmp_path), Asked(**plan), Clock())
    monkeypatch.setattr(Job, "done", lambda self, folder: folder)
    monkeypatch.setattr(Search, "estimate", lambda *_: Estimate(value=0.8, low=None, high=None))
    search._ask()
    study = search.chosen()
    assert study.of(1).values == {"train.lr": 0.00333} and (study.best, study.plan, study.changed) == (1, 1, {})


@pytest.mark.slow
def test_each_trial_can_have_several_devices(data: Path, tmp_path: Path) -> None:
    found = run(data, tmp_path, trials=1, devices=2)
    assert [t.state for t in found.study.trials] == ["done"] and found.study.test is not None
    for name in ("trial-0001", "winner"):
        assert "2 processes" in (found.folder / f"{name}.log").read_text()


@pytest.mark.parametrize("epochs", [2, None])
def test_a_time_that_is_too_short_is_refused(epochs: int | None, data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--time 5s is too short for a trial and the training of the winner") as error:
        run(data, tmp_path, trials=None, time="5s", epochs=epochs)
    assert "--time" in error.value.fix and not (tmp_path / "t").exists()


def test_with_a_time_the_plan_is_one_that_fits_often(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan for so few images is 300 epochs; then no trial is begun, because the time is used."""
    monkeypatch.setattr(Search, "late", property(lambda self: True))
    with pytest.raises(DataError, match="no trial ended well"):
        run(data, tmp_path, trials=None, epochs=None, time="4m", sets=())
    asked, base = resumed_study(RunFolder(tmp_path / "t"), None, None)[1], load_config(tmp_path / "t" / "base.yaml")
    assert asked.before + asked.epochs * asked.one_pass + asked.after <= 40 * 1.05 and asked.time == 240
    assert base.train.time is None and base.train.epochs == asked.epochs


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"space": ["train.lr"]}, "expected a setting and a range"),
        ({"space": ["train.lr=..1e-3"]}, "expected a setting and a range"),
        ({"space": ["train.lr=a..b"]}, "expected a setting and a range"),
        ({"space": ["train.lr=1e-3..1e-5"]}, "different values in order"),
        ({"space": ["model.width=64,64"], "sets": ["train.smoothing=0.1"]}, "different values in order"),
        ({"space": ["model.widht=64,128"]}, "widht"),
        ({"space": ["model.pool=1..3"]}, "pool"),
        ({"space": ["train.lr=-1..1"]}, "lr"),
        ({"space": ["seed=1,2"]}, "share images, splits and evaluation"),
        ({"space": ["data.val_fraction=0.1..0.2"]}, "share images, splits and evaluation"),
        ({"grid": ["model.heads"]}, "--grid model.heads: expected a setting and its values"),
        ({"grid": ["model.heads=2,,4"]}, "expected a setting and its values"),
        ({"grid": ["lr=1e-4..1e-3"]}, "expected a setting and its values"),
        ({"grid": ["heads=2", "model.heads=4"]}, "expected section.field"),
        ({"grid": ["lr=1e-4", "train.lr=1e-3"]}, "each setting once"),
        ({"grid": ["epochs=1,3"], "sets": ["train.smoothing=0.1"]}, "train.epochs is set too, for all trials"),
        ({"space": ["train.lr=1e-4..1e-3"], "lr": 0.01}, "train.lr is set too"),
        ({"space": ["train.lr=1e-4..1e-3"], "sets": ["train.lr=0.01"]}, "--set train.lr=0.01 is not among them"),
        ({"grid": ["model.heads=2"], "seeds": "0,1", "sets": ["train.seed=4"]}, "--set train.seed=4 is not among them"),
        ({"grid": ["seed=1,2"]}, "share images, splits"),
        ({"grid": ["model.heads=two"]}, "heads"),
        ({"grid": ["model.heads=2"], "seeds": "0,0"}, "--seeds train.seed=0,0"),
        ({"grid": ["model.heads=2"], "seeds": "1,01"}, "--seeds train.seed=1,01: expected different values"),
        ({"grid": ["lr=0.001,1e-3"]}, "different values in order"),
        ({"grid": ["model.heads=2"], "seeds": "0,1", "seed": 3}, "train.seed is set too"),
        ({"grid": ["model.heads=2"], "space": ["lr=1e-4..1e-3"]}, "--seeds go with --grid"),
        ({"grid": ["model.heads=2"], "trials": 3}, "--seeds go with --grid"),
        ({"seeds": "0,1"}, "--seeds go with --grid"),
        ({"trials": 0}, "trials=0"),
        ({"time": "5"}, "not a duration"),
        ({"grid": ["patience=2,5"], "sets": ["train.choose=last"]}, "--patience 2,5 changes nothing"),
        ({"track": ["nosuch"]}, "unknown tracker 'nosuch'"),
        ({"folds": 3}, "do not go with tune"),
        ({"parallel": 0}, "parallel=0"),
    ],
)
def test_searches_that_cannot_be(given: dict[str, Any], problem: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        run(data, tmp_path, **({} if "space" in given else {"trials": None}) | given)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("place", ["train.smoothing", "augment.mixup"])
def test_a_setting_without_effect_on_findings_is_not_searched(place: str, tmp_path: Path) -> None:
    data = draw_findings(tmp_path / "data")
    given = {"labels": data / "labels.csv", "sets": TINY_SETS, "grid": [f"{place}=0,0.1"], "output": tmp_path / "runs"}
    with pytest.raises(UsageError, match=f"{place}: changes nothing for these labels"):
        tune(data, **given, epochs=1)
    assert not (tmp_path / "runs").exists()


def test_the_plan_is_the_first_trial_however_a_value_is_written() -> None:
    space = {"train.ema": "false,true", "augment.mixup": "0.2,0", "train.lr": "1e-3,5e-4", "train.patience": "5,null"}
    planned = {"train.ema": True, "augment.mixup": 0.0, "train.lr": 5e-4, "train.patience": None}
    space["model.drop_path"], planned["model.drop_path"] = "0..0.2", 0.1
    rest = {"trials": 2, "time": None, "prune": False, "seed": 0, "offline": False, "metric": "auroc", "epochs": 2}
    asked = Asked(space=space, planned=planned, data="", **rest)
    first = {"train.ema": "true", "augment.mixup": "0", "train.lr": "5e-4", "train.patience": "null"}
    assert asked.queue == [first | {"model.drop_path": 0.1}]
    study = optuna.create_study()
    study.enqueue_trial(asked.queue[0])
    assert suggest(study.ask(), space) == asked.queue[0]
    assert asked.model_copy(update={"planned": planned | {"augment.mixup": 0.1}}).queue == []


def test_flag_names_are_settings() -> None:
    assert read_space(["lr=1e-5..1e-3", "--patch-size=4, 8"]) == {"train.lr": "1e-5..1e-3", "model.patch_size": "4,8"}
    assert read_space(["lr = 1e-5 .. 1e-3"]) == {"train.lr": "1e-5..1e-3"}


def test_bad_use(data: Path, done: TuneResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="uses the settings of the study"):
        tune(data, resume=done.folder)
    with pytest.raises(CheckpointError, match="holds no study"):
        tune(resume=data)
    broken = RunFolder(tmp_path / "broken")
    broken.path.mkdir()
    for name in ("tune.json", "base.yaml"):
        (broken.path / name).write_bytes((done.folder / name).read_bytes())
    (broken.path / "trial-0001.json").write_text('{"values": {}, "sta')
    with pytest.raises(CheckpointError, match=r"trial-0001\.json: cannot be read"):
        tune(resume=broken.path)
    for old in ("journal.log", "sweep.json"):
        (tmp_path / old).mkdir()
        (tmp_path / old / old).write_text("of vitmed 0.2.0")
        with pytest.raises(CheckpointError, match=r"0\.2\.0, which alone can continue it"):
            tune(resume=tmp_path / old)
    with monkeypatch.context() as patch:
        patch.setenv("RANK", "0")
        patch.setenv("WORLD_SIZE", "2")
        with pytest.raises(UsageError, match="processes of torchrun") as refused:
            run(data, tmp_path)
        assert refused.value.fix == "vitmed tune DIR --devices N"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "optuna", None)
        with pytest.raises(UsageError) as error:
            run(data, tmp_path)
        assert error.value.fix == "pip install 'vitmed[tune]'"


def test_pictures_show_every_kind_of_trial(done: TuneResult) -> None:
    assert (done.folder / "history.png").read_bytes()[:4] == b"\x89PNG"
    trials = [
        TrialResult(number=1, state="done", values={"a": 1}, value=0.7),
        TrialResult(number=2, state="stopped", values={"a": 2}, value=0.6),
        TrialResult(number=3, state="failed", values={"a": 3}),
        TrialResult(number=4, state="done", values={"a": 4}, value=0.8),
    ]
    study = study_of(trials, 4)
    figure = history_figure(study)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    stopped = "stopped early (at the edge: worse)"  # 0.6 beside 0.7 to 0.8
    assert names == ["best so far", "finished, validation", stopped, "failed", "the plan's settings"]
    assert next(line for line in figure.axes[0].lines if line.get_label() == stopped).get_ydata() == pytest.approx(0.69)
    best = figure.axes[0].lines[0].get_ydata()
    assert list(best) == [0.7, 0.8, 0.8]


@pytest.fixture(scope="module")
def grid(data: Path, tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """Widths that four heads divide, and one that they do not; two seeds."""
    values = ["model.heads=2,4", "model.width=16,18"]
    return run(data, tmp_path_factory.mktemp("grid"), grid=values, seeds="0,1", trials=None, epochs=1)


def test_every_combination_of_a_grid_is_trained_with_every_seed(grid: TuneResult) -> None:
    study = grid.study
    assert [(t.values["train.seed"], t.values["model.heads"], t.values["model.width"]) for t in study.trials] == [
        (seed, heads, width) for seed in "01" for heads in "24" for width in ("16", "18")
    ]
    assert [one.trials for one in study.combinations] == [[1, 5], [2, 6], [3, 7], [4, 8]]
    for trial in study.trials:
        if trial.state == "done":
            config = load_config(grid.folder / str(trial.run) / "config.yaml")
            assert [config.train.seed, config.model.heads, config.model.width] == [*map(int, trial.values.values())]
            assert not (grid.folder / str(trial.run) / "test").exists()  # the test is not read
    last = study.combinations[3]
    assert last.state == "failed" and last.value is None and "4 heads do not divide width 18" in last.reason
    winner = load_config(grid.folder / "winner" / "config.yaml")
    assert winner.train.seed == 2 and str(winner.model.heads) == study.of(study.best).values["model.heads"]
    assert study.test is not None and [path.name for path in (grid.folder / "winner").glob("test*")] == ["test"]


def test_a_mean_of_fewer_seeds_does_not_win(grid: TuneResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(grid.folder, tmp_path / "t")
    search = Search(pytest.importorskip("optuna"), *resumed_study(RunFolder(tmp_path / "t"), None, None), Clock())
    search.begin()
    other = next(one.number for one in search.chosen().combinations[:3] if one.number != grid.study.best)
    changed = {other - 1: {"value": 1.0}, other + 3: {"state": "stopped", "value": None, "reason": "the time was used"}}
    real = search.result
    monkeypatch.setattr(search, "result", lambda number: real(number).model_copy(update=changed.get(number, {})))
    assert search.chosen().of(other).value == 1.0 and search.chosen().best == grid.study.best


def test_a_reason_in_the_table_is_no_formula() -> None:
    """As in every table of vitmed: a spreadsheet takes a cell that begins with a minus sign for a formula."""
    failed = TrialResult(number=1, state="failed", values={"train.lr": 1e-4}, reason="--lr: too large")
    rows = list(csv.DictReader(io.StringIO(_table(study_of([failed], 1)))))
    assert [(row["reason"], row["train.lr"], row["low"]) for row in rows] == [("'--lr: too large", "0.0001", "")]


def test_a_combination_of_a_grid_is_the_mean_over_seeds(grid: TuneResult) -> None:
    one = grid.study.combinations[0]
    areas = [auroc(grid.folder / f"trial-000{number}") for number in one.trials]
    assert one.value == pytest.approx(np.mean(areas)) and one.sd == pytest.approx(np.std(areas, ddof=1))
    assert one.estimate is not None and one.estimate.value == one.value and one.estimate.low is not None
    with (grid.folder / "trials.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [float(rows[k]["mean_over_seeds"]) for k in (0, 4)] == pytest.approx([one.value] * 2)
    assert float(rows[4]["auroc"]) == pytest.approx(areas[1]) and "do not divide" in rows[3]["reason"]
    assert grid.study.best == max((c for c in grid.study.combinations if c.value), key=lambda c: c.value or 0).number
    names = [text.get_text() for text in history_figure(grid.study).axes[0].get_xticklabels()]
    assert names[3] == "heads 4, width 18"


def drawn(quality: float, seeds: int, patients: int = 40, seed: int = 1, known: bool = True) -> list[Predictions]:
    """Predictions for the same images, two of each patient."""
    rng, labels = np.random.default_rng(seed), np.tile([0, 1], patients)
    groups = tuple(f"P{i // 2}" for i in range(2 * patients)) if known else None
    found = []
    for _ in range(seeds):
        odds = quality * (2 * labels - 1) + rng.normal(0, 1, len(labels))
        logits = np.stack([np.zeros(len(labels)), odds], axis=1).astype(np.float32)
        found.append(Predictions(("a", "b"), tuple(map(str, range(len(labels)))), groups, labels, logits, positive="b"))
    return found


def compared(cells: list[list[Predictions]]) -> list[TrialResult]:
    """The combinations of a grid with these predictions, a list for each."""
    tables = {len(cells) * seed + k + 1: part for k, parts in enumerate(cells) for seed, part in enumerate(parts)}
    trials = [
        TrialResult(
            number=number, state="done", value=float(roc_auc_score(part.labels, part.probabilities[:, 1])),
            values={"train.seed": str((number - 1) // len(cells)), "k": str((number - 1) % len(cells))},
        )
        for number, part in sorted(tables.items())
    ]  # fmt: skip
    return combined(trials, tables, TARGETS["classes"], "auroc", True)


def test_an_interval_over_seeds_ends_where_the_number_does() -> None:
    labels, right = np.arange(6) % 2, np.arange(6) == 0
    logits = np.eye(2, dtype=np.float32)[np.where(right, labels, 1 - labels)]
    part = Predictions(("a", "b"), tuple("012345"), None, labels, logits, positive="b")
    for metric, value, least in (("accuracy", 1 / 6, 0.0), ("mcc", -0.7, -1.0)):
        trials = [TrialResult(number=k, state="done", value=value, values={"train.seed": str(k)}) for k in (1, 2)]
        (found,) = combined(trials, {1: part, 2: part}, TARGETS["classes"], metric, True)
        assert found.estimate is not None and found.estimate.low == least, metric


def test_a_combination_of_one_seed_has_the_interval_of_its_run_and_equal_means_are_equal() -> None:
    (part,), own = drawn(0.8, 1), Estimate(value=0.8, low=0.6, high=0.9)
    trial = TrialResult(number=1, state="done", value=0.8, values={"train.seed": "0"}, estimate=own)
    assert combined([trial], {1: part}, TARGETS["classes"], "auroc", True)[0].estimate == own
    areas, tables = [5 / 6, 1.0, 8 / 9, 17 / 18], drawn(0.8, 4)  # whose means differ by 1e-16
    trials = [
        TrialResult(number=k + 1, state="done", value=area, values={"train.seed": str(k % 2), "lr": str(k // 2)})
        for k, area in enumerate(areas)
    ]
    one, other = combined(trials, dict(enumerate(tables, 1)), TARGETS["classes"], "auroc", True)
    assert one.value == other.value == pytest.approx(11 / 12)


@pytest.mark.slow
def test_the_interval_is_that_of_a_bootstrap_of_patients_for_all_seeds_together() -> None:
    parts, rng = drawn(0.8, 3), np.random.default_rng(5)
    number, values = compared([parts])[0].estimate, []
    for _ in range(400):
        rows = np.concatenate([[2 * p, 2 * p + 1] for p in rng.integers(0, 40, 40)])
        values.append(np.mean([roc_auc_score(p.labels[rows], p.probabilities[rows, 1]) for p in parts]))
    low, high = np.quantile(values, [0.025, 0.975])
    assert number is not None and number.method == "jackknife"
    assert [number.low, number.high] == pytest.approx([low, high], abs=0.02)
