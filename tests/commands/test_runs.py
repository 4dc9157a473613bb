"""The table of runs: what state a folder is in by its files alone, in which order, and as JSON."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import BARE, TINY_SETS, Answer, Trained, interrupt_at, listing, python

from vitmed import pretrain, runs, train
from vitmed.core.errors import Interrupted, UsageError
from vitmed.core.messages import listening
from vitmed.core.run_folder import RunFolder, run_lock
from vitmed.studies.run_list import ListedRun


def row(folder: Path, name: str) -> ListedRun:
    return next(run for run in runs(folder).runs if run.run == name)


def cut(run: Path, epochs: int) -> None:
    """Make a finished run look as it did after so many epochs."""
    for part in ("val", "test"):
        shutil.rmtree(run / part)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:epochs]))


@pytest.fixture
def place(trained: Trained, tmp_path: Path) -> Path:
    """A folder with a copy of a finished run."""
    shutil.copytree(trained.folder, tmp_path / "runs" / "done")
    return tmp_path / "runs"


def copy(place: Path, name: str) -> Path:
    return Path(shutil.copytree(place / "done", place / name))


def test_a_finished_run_has_the_number_of_its_report(trained: Trained, place: Path) -> None:
    found = row(place, "done")
    known = trained.result.test.metrics.overall["auroc"]
    assert found.metric is not None and found.metric.of == "test" and found.metric.estimate == known
    assert (found.kind, found.state, found.data, found.model) == ("training", "finished", "data", "vit-16x1")
    assert (found.done, found.of) == (6, 6)
    records = [json.loads(line) for line in (place / "done" / "metrics.jsonl").read_text().splitlines()]
    assert found.seconds == pytest.approx(sum(record["seconds"] for record in records))
    before = listing(place)
    runs(place)
    assert listing(place) == before


def test_the_states_of_runs_that_are_not_finished(place: Path) -> None:
    cut(copy(place, "ctrl-c"), 3)
    cut(copy(place, "killed"), 3)
    (place / "killed" / ".lock").touch()
    (place / "killed" / ".lock.holder").write_text("4194305 2026-11-23 10:00:00")
    cut(copy(place, "not-evaluated"), 6)
    cut(copy(place, "no-last"), 0)
    (place / "no-last" / "last.pt").unlink()
    cut(copy(place, "busy"), 3)
    with run_lock(RunFolder(place / "busy")):
        found = {run.run: run for run in runs(place).runs}
    assert {name: run.state for name, run in found.items()} == {
        "done": "finished", "ctrl-c": "interrupted", "killed": "interrupted", "not-evaluated": "not evaluated",
        "no-last": "incomplete", "busy": "running",
    }  # fmt: skip
    assert "was killed" in found["killed"].problem and not found["ctrl-c"].problem
    metric = found["ctrl-c"].metric
    assert metric is not None and metric.of == "validation" and metric.text.endswith(", validation")
    assert found["no-last"].metric is None


def test_a_damaged_file_is_named_and_the_others_are_listed(place: Path) -> None:
    damages: list[tuple[str, bytes | None]] = [
        ("config.yaml", b"data: [1, 2"),
        ("config.yaml", b"\xff\xfe"),
        ("config.yaml", b""),
        ("config.yaml", b"data: {no_such_field: 1}\nevaluate: {}\n"),
        ("config.yaml", None),
        ("metrics.jsonl", b"3\n"),
        ("metrics.jsonl", b'{"epoch": 1}\n'),
        ("metrics.jsonl", b"\xff\xfe"),
        ("test/metrics.json", b'{"n": 1'),
        ("test/metrics.json", b"[]"),
        ("test/metrics.json", b'{"overall": {}}'),
        ("folds.json", b"{}"),
    ]
    for i, (file, content) in enumerate(damages):
        bad = copy(place, f"bad{i}")
        (bad / file).unlink(missing_ok=True)
        if content is not None:
            (bad / file).write_bytes(content)
    found = {run.run: run for run in runs(place).runs}
    for i, (file, _) in enumerate(damages):
        bad_run = found[f"bad{i}"]
        assert bad_run.state == "damaged" and bad_run.problem.startswith(f"{file}: "), (i, bad_run)
        assert str(place) not in bad_run.problem
    assert found["done"].state == "finished"


def test_a_link_to_what_is_listed_lists_no_run_twice(place: Path, tmp_path: Path) -> None:
    names = {run.run for run in runs(place).runs}
    (place / "loop").mkdir()
    (place / "loop" / "self").symlink_to(place)
    (place / "newest").symlink_to("done")
    (place / "round").symlink_to("round")
    shutil.copytree(place / "done", tmp_path / "elsewhere" / "run")
    (place / "other").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "all").symlink_to(tmp_path)
    assert {run.run for run in runs(place).runs} == names | {"other/run"}


def test_a_torn_last_line_and_a_damaged_environment_hide_nothing(place: Path) -> None:
    with (place / "done" / "metrics.jsonl").open("a") as stream:
        stream.write('{"epoch": 7, "st')
    (place / "done" / "environment.json").write_text('{"started": "yesterday"}')
    found = row(place, "done")
    assert found.state == "finished" and found.done == 6 and found.started is None


@pytest.mark.usefixtures("no_figures")
def test_real_runs_that_are_interrupted_or_only_pretrained(trained: Trained, tmp_path: Path, no_figures: None) -> None:
    settings: dict[str, Any] = {**BARE, "epochs": 4}
    with pytest.raises(Interrupted), listening(interrupt_at(8)):
        train(trained.data, output=tmp_path, name="cut", sets=TINY_SETS, **settings)
    sets = ("model.width=16", "model.depth=1", "model.heads=2")
    small: Any = {"image_size": 16, "patch_size": 8, "epochs": 2, "device": "cpu", "workers": 0}
    pretrain(trained.data, output=tmp_path, name="mae", sets=sets, **small)
    cut, mae = row(tmp_path, "cut"), row(tmp_path, "mae")
    assert (cut.state, cut.kind, cut.of) == ("interrupted", "training", 4) and 0 < cut.done < 4
    assert (mae.state, mae.kind, mae.done) == ("finished", "pretraining", 2)
    assert mae.metric is not None and mae.metric.text.startswith("loss ")


def test_folds_stand_below_their_cross_validation(place: Path) -> None:
    folds = place / "cv"
    for name in ("fold-1", "fold-2", "fold-10"):
        copy(place, f"cv/{name}")
    cut(folds / "fold-10", 3)
    (folds / "folds.json").write_text('{"folds": 10, "window": null}')
    found = runs(place, sort="run").runs
    assert [run.run for run in found] == ["cv", "cv/fold-1", "cv/fold-2", "cv/fold-10", "done"]
    assert [run.parent for run in found] == [None, "cv", "cv", "cv", None]
    parent = found[0]
    assert (parent.kind, parent.state, parent.progress) == ("cross-validation", "interrupted", "2/10 folds")
    assert parent.data == "data" and parent.seconds == pytest.approx(sum(run.seconds or 0 for run in found[1:4]))
    shutil.copytree(place / "done" / "test", folds / "test")
    assert row(place, "cv").state == "interrupted"  # --resume joins the folds
    (folds / "fold-2").rename(folds / "fold-2-2")
    (folds / "fold-2").mkdir()  # what a kill before the first epoch left
    assert row(place, "cv").state == "interrupted"
    shutil.rmtree(folds / "fold-2")
    (folds / "fold-2-2").rename(folds / "fold-2")
    (folds / "ensemble").mkdir()
    (folds / "ensemble" / "ensemble.json").write_text("{}")
    assert row(place, "cv").state == "finished"
    shutil.rmtree(folds / "ensemble")
    for best in folds.glob("*/best.pt"):  # nothing is left to join
        best.unlink()
    assert row(place, "cv").state == "finished"
    assert [run.run for run in runs(folds, sort="run").runs][:2] == ["cv", "fold-1"]


def test_a_run_that_leaves_its_test_out_is_finished_on_validation(place: Path) -> None:
    config = place / "done" / "config.yaml"
    config.write_text(config.read_text().replace("  test: true\n", "  test: false\n"))
    shutil.rmtree(place / "done" / "test")
    found = row(place, "done")
    assert found.state == "finished" and found.metric is not None
    assert found.metric.of == "validation" and found.metric.estimate.low is not None


def test_an_ensemble_and_a_soup_of_version_0_2_are_runs(place: Path) -> None:
    soup = copy(place, "soup")
    for name in ("metrics.jsonl", "last.pt", "splits.csv", "environment.json"):
        (soup / name).unlink()
    shutil.rmtree(soup / "test")
    joined = place / "cv" / "ensemble"
    shutil.copytree(soup / "val", joined / "val")
    (joined / "ensemble.json").write_text('{"members": [{}, {}], "data": {"root": "../../../data"}}')
    copy(place, "cv/fold-1")
    (place / "cv" / "folds.json").write_text('{"folds": 2, "window": null}')
    found = {run.run: run for run in runs(place).runs}
    for name in ("soup", "cv/ensemble"):
        assert (found[name].kind, found[name].state, found[name].data) == ("ensemble", "finished", "data")
        metric = found[name].metric
        assert metric is not None and metric.of == "validation"
    assert found["cv/ensemble"].model == "2 models" and found["cv"].progress == "1/2 folds"


def test_the_order_of_a_column_and_the_unknown_last(place: Path) -> None:
    for name, value in (("better", 0.999), ("worse", 0.1), ("done", 0.5)):
        file = (place / name if name == "done" else copy(place, name)) / "test" / "metrics.json"
        content = json.loads(file.read_text())
        content["overall"]["auroc"]["value"] = value
        file.write_text(json.dumps(content))
    cut(copy(place, "none"), 0)
    (place / "none" / "environment.json").unlink()
    order = [run.run for run in runs(place, sort="metric").runs]
    assert order == ["better", "done", "worse", "none"]
    started = {"better": "2026-01-03", "done": "2026-01-01", "worse": "2026-01-02"}
    for name, day in started.items():
        (place / name / "environment.json").write_text(json.dumps({"started": f"{day}T00:00:00+00:00"}))
    assert [run.run for run in runs(place).runs] == ["better", "worse", "done", "none"]
    with pytest.raises(UsageError, match="metric"):
        runs(place, sort="metrics")


def test_a_second_evaluation_of_another_checkpoint_is_not_the_runs(place: Path) -> None:
    shutil.copytree(place / "done" / "test", place / "done" / "test-2")
    file = place / "done" / "test-2" / "metrics.json"
    content = json.loads(file.read_text())
    content["overall"]["auroc"]["value"], content["weights_hash"] = 0.123, "0" * 64
    file.write_text(json.dumps(content))
    metric = row(place, "done").metric
    assert metric is not None and metric.estimate.value != 0.123


@pytest.mark.slow
def test_many_runs_take_seconds_and_no_torch(place: Path) -> None:
    small = [f for f in (place / "done").rglob("*") if f.suffix in (".yaml", ".json", ".jsonl", ".csv")]
    for i in range(200):
        for file in small:
            target = place / f"run-{i}" / file.relative_to(place / "done")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    start = time.perf_counter()
    code = "import sys, vitmed; n = len(vitmed.runs(sys.argv[1]).runs); print(n, 'torch' in sys.modules)"
    assert python("-c", code, str(place)).stdout.split() == ["201", "False"]
    assert time.perf_counter() - start < 20  # 200 runs; 1 s on an idle core


def test_the_command_line(vitmed: Callable[..., Answer], place: Path, tmp_path: Path) -> None:
    shown = vitmed("runs", place)
    assert shown.code == 0 and "done" in shown.out and "1 run: 1 finished" in shown.out
    content = json.loads(vitmed("runs", place, "--json").out)
    assert content["folder"] == "runs" and content["runs"][0]["metric"]["of"] == "test"
    assert str(tmp_path) not in json.dumps(content)
    assert vitmed("runs", tmp_path / "none").code == 2
    (tmp_path / "none").mkdir()
    assert "no runs" in vitmed("runs", tmp_path / "none").out


def test_a_trial_that_the_study_stopped_is_not_interrupted(place: Path) -> None:
    """Hyperband ends poor trials on purpose; nobody has to continue them."""
    study = place / "study"
    study.mkdir()
    (study / "tune.json").write_text("{}")
    for name, state, reason in (
        ("trial-0001", "stopped", ""), ("trial-0002", "stopped", "the time was used"), ("trial-0003", "", ""),
    ):  # fmt: skip
        cut(copy(place, f"study/{name}"), 3)
        (study / f"{name}.json").write_text(json.dumps({"values": {}, "state": state, "reason": reason}))
    cut(copy(place, "study/winner"), 3)
    found = {run.run.rpartition("/")[2]: run for run in runs(place).runs}
    assert {name: found[name].state for name in ("trial-0001", "trial-0002", "trial-0003", "winner")} == {
        "trial-0001": "stopped", "trial-0002": "stopped", "trial-0003": "interrupted", "winner": "interrupted",
    }  # fmt: skip
    assert found["trial-0001"].problem == "" and found["trial-0002"].problem == "the time was used"
    assert found["trial-0001"].metric is not None and found["trial-0001"].metric.of == "validation"
