"""`vitmed tune`: a search on validation that no interruption spoils, and one test of its winner."""

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
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import TINY, TINY_SETS, Answer, Recorder, draw_image, draw_nothing
from PIL import Image
from sklearn.metrics import brier_score_loss, roc_auc_score

from vitmed import train, tune
from vitmed.commands import tune_trials
from vitmed.commands.tune import TuneResult, _with_refit
from vitmed.commands.tune_trials import Asked, Trials, mend_journal
from vitmed.core.errors import CheckpointError, DataError, DiskFullError, OutOfMemoryError, UsageError
from vitmed.core.load_config import load_config
from vitmed.core.run_folder import RunFolder
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.tuning_study import TrialResult, TuningStudy
from vitmed.report.plots.tuning import history_figure, importance_figure
from vitmed.training.search_space import read_space
from vitmed.training.time_budget import Clock

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
        for i in range(24):
            Image.fromarray(draw_image(rng, colour)).save(root / name / f"p{i // 2}_{i}.png")
    return root


def run(data: Path, output: Path, ui: Recorder | None = None, **options: Any) -> TuneResult:
    given = SETTINGS | {"epochs": 2, "trials": 3, "sets": TINY_SETS} | options
    found = tune(data, output=output, name="t", ui=ui or Recorder(), **given)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def told() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def done(data: Path, told: Recorder, tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """Eight trials of nine epochs: enough that Hyperband stops some, and that importance is estimated."""
    return run(data, tmp_path_factory.mktemp("done"), told, trials=8, epochs=9)


def auroc(run: Path, split: str = "val") -> float:
    table = Predictions.from_csv(run / split / "predictions.csv")
    return float(roc_auc_score(table.labels, table.probabilities[:, 1]))


def journal(folder: Path) -> Any:
    """What Optuna itself reads."""
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "journal.log"))
    return optuna.load_study(study_name="tune", storage=optuna.storages.JournalStorage(backend))


def test_a_trial_is_a_run_with_its_values_and_no_test(done: TuneResult) -> None:
    with (done.folder / "trials.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["trial"]) for row in rows] == list(range(1, 9))
    for row in rows:
        config = load_config(done.folder / row["run"] / "config.yaml")
        assert config.train.lr == float(row["train.lr"]) and config.augment.mixup == float(row["augment.mixup"])
        assert not (done.folder / row["run"] / "test").exists() and config.train.seed == 0
        epochs = (done.folder / row["run"] / "metrics.jsonl").read_text().splitlines()
        assert len(epochs) == int(row["epochs"]) and (len(epochs) == 9) == (row["state"] == "done")
        if row["state"] == "done":
            assert float(row["auroc"]) == pytest.approx(auroc(done.folder / row["run"]))
    assert 0 < sum(row["state"] == "stopped" for row in rows) < 7


def test_the_first_trial_is_the_plan_and_is_never_stopped(done: TuneResult) -> None:
    first, planned = done.study.trial(1), load_config(done.folder / "base.yaml")
    assert done.study.plan == 1 and first.state == "done"
    assert first.values["train.lr"] == planned.train.lr and first.values["augment.mixup"] == planned.augment.mixup


def test_optuna_reads_the_same_study(done: TuneResult) -> None:
    study = journal(done.folder)
    states = {"COMPLETE": "done", "PRUNED": "stopped"}
    assert [states[t.state.name] for t in study.trials] == [t.state for t in done.study.trials]
    assert study.best_value == pytest.approx(max(t.value for t in done.study.trials if t.state == "done"))
    for trial, found in zip(study.trials, done.study.trials, strict=True):
        assert sorted(trial.intermediate_values) == list(range(1, found.epochs + 1))


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
    lines = [line for line in told.said if line.startswith("trial ") and " of 8: " in line]
    assert len(lines) == 8 and any("stopped after epoch" in line for line in lines)


@pytest.mark.parametrize(("value", "keep"), [(0.7, True), (0.9, False)])
def test_a_winner_that_another_seed_makes_worse_than_the_plan_is_not_recommended(value: float, keep: bool) -> None:
    trials = [
        TrialResult(number=1, state="done", values={"a": 1}, value=0.8),
        TrialResult(number=2, state="done", values={"a": 2}, value=0.95),
    ]
    study = TuningStudy(
        metric="auroc", title="AUROC", higher=True, epochs=9, trials=trials, best=2, plan=1, changed={}, importance={}
    )

    class Given:
        def estimate(self, run: RunFolder, split: str) -> Estimate:
            return Estimate(value=value, low=None, high=None)

    notes = " ".join(_with_refit(study, Given(), RunFolder("x")).notes)  # type: ignore[arg-type]
    assert f"reach {value:.3f} on validation, {0.95 - value:.3f} worse" in notes and ("Keep the plan" in notes) == keep


def test_the_time_of_the_command_is_not_that_of_its_last_training(data: Path, tmp_path: Path) -> None:
    ui = Recorder()
    ui.began = time.monotonic() - 500  # as if the command had begun long ago
    found = run(data, tmp_path, ui, trials=1, time="20m")
    left = load_config(found.folder / "winner" / "config.yaml").train.time
    assert left is not None and 500 < left < 701
    epochs = (found.folder / "winner" / "metrics.jsonl").read_text().splitlines()
    assert len(epochs) == 2  # both, with 11 minutes left


def test_tuned_yaml_trains_what_the_winner_was(done: TuneResult, data: Path, tmp_path: Path) -> None:
    text = (done.folder / "tuned.yaml").read_text()
    given = {k: v for k, v in SETTINGS.items() if k in ("baseline", "resamples", "map_images", "report")}
    found = train(data, config=done.folder / "tuned.yaml", output=tmp_path, name="again", ui=Recorder(), **given)
    best = done.study.trial(done.study.best)
    again, trial = (
        yaml.safe_load((place / "config.yaml").read_text()) for place in (found.folder, done.folder / str(best.run))
    )
    assert again["model"] == trial["model"] and again["augment"] == trial["augment"]
    assert again["train"] | {"test": False} == trial["train"]
    assert auroc(found.folder) == pytest.approx(best.value)
    for place in done.study.changed:
        assert f"#   {place} " in text


def test_without_pruning_every_trial_ends(data: Path, tmp_path: Path) -> None:
    found = run(data, tmp_path, prune=False, trials=3, epochs=3, seed=3)
    assert [(t.state, t.epochs) for t in found.study.trials] == [("done", 3)] * 3
    assert {load_config(tmp_path / "t" / str(t.run) / "config.yaml").train.seed for t in found.study.trials} == {3}


def test_what_you_set_is_not_searched(data: Path, tmp_path: Path) -> None:
    found = run(data, tmp_path, trials=1, lr=2e-3, sets=(*TINY_SETS, "augment.mixup=0.1"))
    assert set(found.study.trials[0].values) == {"train.weight_decay", "model.drop_path"}
    asked = Asked.read(RunFolder(found.folder))
    assert all(low <= asked.planned[k] <= high for k, low, high in _ranges(asked.space))


def _ranges(space: dict[str, str]) -> list[tuple[str, float, float]]:
    return [(k, *map(float, v.split(".."))) for k, v in space.items()]  # type: ignore[misc]


def test_a_trial_that_fails_is_recorded_and_the_study_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sometimes(*args: Any, **given: Any) -> Any:
        if given.get("name") == "trial-0002":
            raise OutOfMemoryError("no memory for one image", "--image-size 8")
        return train(*args, **given)

    monkeypatch.setattr(tune_trials, "train", sometimes)
    space = ["model.width=16,18", "lr=1e-4..1e-2"]  # two heads divide both
    found = run(data, tmp_path, trials=4, space=space, prune=False)
    assert [t.state for t in found.study.trials] == ["done", "failed", "done", "done"]
    assert "no memory for one image" in found.study.trial(2).reason
    assert {t.values["model.width"] for t in found.study.trials} <= {"16", "18"}
    assert "trial failed" in " ".join(found.study.notes)


def test_a_study_without_a_good_trial_has_no_winner(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no trial ended well: .*heads do not divide"):
        run(data, tmp_path, trials=2, space=["model.heads=3,5"])
    assert not (tmp_path / "t" / "winner").exists()


def test_a_full_disk_ends_the_study_and_counts_no_trial(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **given: Any) -> Any:
        raise DiskFullError("x: cannot be written", "make room on this disk")

    with monkeypatch.context() as patch:
        patch.setattr(tune_trials, "train", full)
        with pytest.raises(DiskFullError):
            run(data, tmp_path, trials=2)
    with (tmp_path / "t" / "journal.log").open("a") as stream:
        stream.write('{"op_code": 6, "wor')  # what a full disk leaves
    found = tune(resume=tmp_path / "t", ui=Recorder())
    assert found is not None and [t.state for t in found.study.trials] == ["done", "done"]


def test_lower_can_be_better(data: Path, tmp_path: Path) -> None:
    found = run(data, tmp_path, trials=2, monitor="brier", prune=False)
    tables = [Predictions.from_csv(found.folder / f"trial-000{k}" / "val" / "predictions.csv") for k in (1, 2)]
    values = [brier_score_loss(table.labels, table.probabilities[:, 1]) for table in tables]
    scale = [found.study.trials[k].value / values[k] for k in (0, 1)]  # type: ignore[operator]
    assert scale[0] == pytest.approx(scale[1]) and found.study.best == 1 + int(np.argmin(values))


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
        tune(resume=folder, trials=9, ui=Recorder())
    (data / "amber" / "p0_0.png").rename(tmp_path / "away.png")
    try:
        with pytest.raises(DataError, match="other images, labels or splits"):
            tune(resume=folder, ui=Recorder())
    finally:
        (tmp_path / "away.png").rename(data / "amber" / "p0_0.png")


def _flag(name: str, value: object) -> list[str]:
    spelled = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [spelled if value else f"--no-{spelled[2:]}"]
    return [spelled, str(value)]


def test_a_trial_whose_process_dies_again_and_again_is_given_up(data: Path, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def die(*args: Any, **given: Any) -> Any:
        raise Killed

    for _ in range(3):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(tune_trials, "train", die)
            if (tmp_path / "t").exists():
                tune(resume=tmp_path / "t", ui=Recorder())
            else:
                run(data, tmp_path, trials=2)
    found = tune(resume=tmp_path / "t", ui=Recorder())
    assert found is not None and [t.state for t in found.study.trials] == ["failed", "done"]
    assert "ended 3 times" in found.study.trial(1).reason


def test_two_processes_share_the_trials(data: Path, tmp_path: Path) -> None:
    found = run(data, tmp_path, trials=5, parallel=2, prune=False)
    assert [t.number for t in found.study.trials] == [1, 2, 3, 4, 5]
    assert len([p for p in found.folder.glob("trial-*") if p.is_dir()]) == 5
    values = [tuple(t.values.values()) for t in found.study.trials]
    assert len(set(values)) == 5  # no suggestion came twice
    assert tune(join=found.folder, ui=Recorder()) is None  # nothing is left


def test_when_the_time_is_used_trials_end_and_the_winner_is_trained(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(self: Trials) -> bool:
        return any(t.number == 1 and t.intermediate_values for t in self.study.trials)

    monkeypatch.setattr(Trials, "late", property(late))
    found = run(data, tmp_path, trials=9, epochs=3)
    assert [(t.state, t.epochs) for t in found.study.trials] == [("done", 3), ("stopped", 1)]
    assert found.study.trial(2).reason == "the time was used" and found.study.test is not None


def test_the_clock_counts_what_a_killed_process_used(data: Path, tmp_path: Path) -> None:
    folder = RunFolder(run(data, tmp_path, trials=1).folder)
    asked = Asked.read(folder).model_copy(update={"time": 1000.0, "before": 10.0, "one_pass": 4.0, "after": 20.0})
    first = Trials(folder, asked, Recorder())
    first.start_clock(Clock())
    spent = first.spent
    assert first.reserve == 10 + 2 * 4 + 20 and not first.late
    os.utime(folder.journal, (time.time(), time.time() + 970))  # its last line, 970 s later; then it was killed
    second = Trials(folder, asked, Recorder())
    second.start_clock(Clock())
    assert second.spent == pytest.approx(spent + 970, abs=3) and second.late  # 1000 - 38 s are for trials


@pytest.mark.parametrize("epochs", [2, None])
def test_a_time_that_is_too_short_is_refused(epochs: int | None, data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--time 5s is too short for a trial and the training of the winner") as error:
        run(data, tmp_path, trials=None, time="5s", epochs=epochs)
    assert "--time" in error.value.fix and not (tmp_path / "t").exists()


def test_with_a_time_the_plan_is_one_that_fits_often(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan for so few images is 300 epochs; then no trial is begun, because the time is used."""
    monkeypatch.setattr(Trials, "late", property(lambda self: True))
    with pytest.raises(DataError, match="no trial ended well"):
        run(data, tmp_path, trials=None, epochs=None, time="4m", sets=())
    asked, base = Asked.read(RunFolder(tmp_path / "t")), load_config(tmp_path / "t" / "base.yaml")
    assert asked.before + asked.epochs * asked.one_pass + asked.after <= 40 * 1.05 and asked.time == 240
    assert base.train.time is None and base.train.epochs == asked.epochs


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        ("train.lr", "expected a setting and a range"),
        ("train.lr=..1e-3", "expected a setting and a range"),
        ("train.lr=a..b", "expected a setting and a range"),
        ("train.lr=1e-3..1e-5", "different values in order"),
        ("model.width=64,64", "different values in order"),
        ("model.widht=64,128", "widht"),
        ("model.pool=1..3", "pool"),
        ("train.lr=-1..1", "lr"),
        ("seed=1,2", "share images, splits and evaluation"),
        ("data.val_fraction=0.1..0.2", "share images, splits and evaluation"),
    ],
)
def test_spaces_that_cannot_be(space: str, problem: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        run(data, tmp_path, space=[space])
    assert not (tmp_path / "t").exists()


def test_flag_names_are_settings() -> None:
    assert read_space(["lr=1e-5..1e-3", "--patch-size=4, 8"]) == {"train.lr": "1e-5..1e-3", "model.patch_size": "4,8"}


def test_bad_use(data: Path, done: TuneResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for given, problem in (
        ({"trials": 0}, "--trials 0"),
        ({"time": "5"}, "not a duration"),
        ({"folds": 3}, "do not go with tune"),
        ({"parallel": 0}, "--parallel 0"),
    ):
        with pytest.raises(UsageError, match=problem):
            run(data, tmp_path, **given)
    with pytest.raises(UsageError, match="use the settings of the study"):
        tune(data, resume=done.folder, ui=Recorder())
    with pytest.raises(CheckpointError, match="holds no study"):
        tune(resume=data, ui=Recorder())
    broken = RunFolder(tmp_path / "broken")
    broken.path.mkdir()
    broken.tune.write_bytes((done.folder / "tune.json").read_bytes())
    broken.journal.write_text("no journal\nat all\n")
    with pytest.raises(CheckpointError, match=r"journal\.log: not the journal"):
        tune(resume=broken.path, ui=Recorder())
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "optuna", None)
        with pytest.raises(UsageError) as error:
            run(data, tmp_path)
        assert error.value.fix == "pip install 'vitmed[tune]'"


def test_a_whole_journal_is_left_as_it_is(done: TuneResult) -> None:
    before = (done.folder / "journal.log").read_bytes()
    mend_journal(RunFolder(done.folder))
    assert (done.folder / "journal.log").read_bytes() == before


def test_pictures_show_every_kind_of_trial(done: TuneResult) -> None:
    assert (done.folder / "history.png").read_bytes()[:4] == b"\x89PNG"
    trials = [
        TrialResult(number=1, state="done", values={"a": 1}, value=0.7),
        TrialResult(number=2, state="stopped", values={"a": 2}, value=0.6),
        TrialResult(number=3, state="failed", values={"a": 3}),
        TrialResult(number=4, state="done", values={"a": 4}, value=0.8),
    ]
    study = TuningStudy(
        metric="auroc", title="AUROC", higher=True, epochs=9, trials=trials, best=4, plan=1, changed={},
        importance={"a": 0.75, "b": 0.25},
    )  # fmt: skip
    figure = history_figure(study)
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    stopped = "stopped early (at the edge: worse)"  # 0.6 beside 0.7 to 0.8
    assert names == ["best so far", "finished", stopped, "failed", "the plan's settings"]
    assert next(line for line in figure.axes[0].lines if line.get_label() == stopped).get_ydata() == pytest.approx(0.69)
    best = figure.axes[0].lines[0].get_ydata()
    assert list(best) == [0.7, 0.8, 0.8]
    bars = importance_figure(study)
    assert bars is not None and [p.get_width() for p in bars.axes[0].patches] == [0.25, 0.75]
    assert importance_figure(study.model_copy(update={"importance": {}})) is None


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="tune: not with several processes"):
        tune("data")
