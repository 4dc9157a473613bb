"""`vitmed sweep`: a grid of settings with seeds, compared on validation."""

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

import numpy as np
import pytest
from conftest import TINY, TINY_SETS, Answer, Recorder, draw_nothing, draw_pairs
from sklearn.metrics import roc_auc_score
from vitmed.commands.sweep import SweepResult, read_grid
from vitmed.metrics.grid_study import Cell, study_of
from vitmed.report.plots.grid_study import grid_figure

from vitmed import sweep
from vitmed.core.errors import CheckpointError, DataError, UsageError
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.predictions import Predictions

RUN = Callable[..., Answer]
SETTINGS = {name: value for name, value in TINY.items() if name != "epochs"} | {"group_regex": r"(p\d+)_"}


@pytest.fixture(scope="module", autouse=True)
def _small() -> None:
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pairs(tmp_path_factory.mktemp("sweep") / "data", 24)


def run(data: Path, output: Path, **options: object) -> SweepResult:
    given = SETTINGS | {"epochs": 1} | options
    found = sweep(data, output=output, name="s", sets=TINY_SETS, ui=Recorder(), **given)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    """Widths that four heads divide, and one that they do not; two seeds."""
    grid = ["model.heads=2,4", "model.width=16,18"]
    return run(data, tmp_path_factory.mktemp("done"), grid=grid, seeds="0,1")


def test_every_combination_is_trained_with_every_seed(done: SweepResult) -> None:
    names = {cell.name: cell for cell in done.study.cells}
    assert list(names) == [f"model.heads={h}, model.width={w}" for h in (2, 4) for w in (16, 18)]
    for cell in done.study.cells[:3]:
        assert len(cell.runs) == 2 and cell.failure == "" and cell.parameters and cell.seconds is not None
        configs = [(done.folder / run / "config.yaml").read_text() for run in cell.runs]
        assert [f"seed: {seed}" in text for seed, text in enumerate(configs)] == [True, True]
        assert all(f"heads: {cell.values['model.heads']}\n" in text for text in configs)
        assert not any((done.folder / run / "test").exists() for run in cell.runs)  # the test is not read
    last = names["model.heads=4, model.width=18"]
    assert last.runs == [] and last.number is None and "4 heads do not divide width 18" in last.failure


def test_a_number_is_the_mean_over_seeds(done: SweepResult) -> None:
    cell = done.study.cells[0]
    tables = [Predictions.from_csv(done.folder / run / "val" / "predictions.csv") for run in cell.runs]
    areas = [roc_auc_score(table.labels, table.probabilities[:, 1]) for table in tables]
    assert cell.each == pytest.approx(areas) and cell.sd == pytest.approx(np.std(areas, ddof=1))
    assert cell.number is not None and cell.number.value == pytest.approx(np.mean(areas))
    with (done.folder / "sweep.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert float(rows[0]["auroc"]) == pytest.approx(np.mean(areas)) and rows[0]["runs"] == "2"
    assert "do not divide" in rows[3]["failure"]
    assert (done.folder / "sweep.png").read_bytes()[:4] == b"\x89PNG"


def models(quality: float, seeds: int, patients: int = 40) -> tuple[Predictions, ...]:
    rng = np.random.default_rng(1)
    labels = np.tile([0, 1], patients)
    groups = tuple(f"P{i // 2}" for i in range(2 * patients))
    found = []
    for _ in range(seeds):
        odds = quality * (2 * labels - 1) + rng.normal(0, 1, len(labels))
        logits = np.stack([np.zeros(len(labels)), odds], axis=1).astype(np.float32)
        found.append(Predictions(("a", "b"), tuple(map(str, range(len(labels)))), groups, labels, logits, positive="b"))
    return tuple(found)


def test_the_interval_resamples_patients_for_all_seeds_together() -> None:
    parts = models(0.8, 3)
    study = study_of([Cell("x", {"k": "1"}, parts, ["r"] * 3, 1.0, 10, "")], TARGETS["classes"], 3, 500)
    number, rng = study.cells[0].number, np.random.default_rng(5)
    drawn = []
    for _ in range(400):
        rows = np.concatenate([[2 * p, 2 * p + 1] for p in rng.integers(0, 40, 40)])
        drawn.append(np.mean([roc_auc_score(p.labels[rows], p.probabilities[rows, 1]) for p in parts]))
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert (
        number is not None
        and number.low == pytest.approx(low, abs=0.02)
        and number.high == pytest.approx(high, abs=0.02)
    )


def test_the_best_of_equal_cells_looks_better_than_it_is() -> None:
    """Twenty equal cells: the optimism is about as large as the best one's lead over their mean."""
    rng = np.random.default_rng(2)
    labels = np.tile([0, 1], 60)
    cells = []
    for k in range(20):
        odds = 0.5 * (2 * labels - 1) + rng.normal(0, 1, len(labels))
        logits = np.stack([np.zeros(len(labels)), odds], axis=1).astype(np.float32)
        one = Predictions(("a", "b"), tuple(map(str, range(120))), None, labels, logits, positive="b")
        cells.append(Cell(f"k={k}", {"k": str(k)}, (one,), ["r"], 1.0, 10, ""))
    study = study_of(cells, TARGETS["classes"], 1)
    values = [cell.each[0] for cell in study.cells]
    assert study.best == f"k={int(np.argmax(values))}"
    lead = max(values) - np.mean(values)
    assert study.optimism is not None and 0.3 * lead < study.optimism < 1.5 * lead
    same = study_of([cells[0]], TARGETS["classes"], 1)
    assert same.optimism is None  # nothing was chosen


def test_pictures_are_of_one_and_of_two_settings(done: SweepResult) -> None:
    figure = grid_figure(done.study)
    assert figure is not None
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert len(texts) == 4 and texts[-1] == "–"
    one = done.study.model_copy(
        update={"cells": [c.model_copy(update={"values": {"a": c.name}}) for c in done.study.cells]}
    )
    assert grid_figure(one) is not None
    three = [c.model_copy(update={"values": {"a": "1", "b": "2", "c": "3"}}) for c in done.study.cells]
    assert grid_figure(done.study.model_copy(update={"cells": three})) is None


@pytest.mark.parametrize(
    ("grid", "problem"),
    [
        (["model.heads"], "expected a setting and its values"),
        (["model.heads=2,,4"], "expected a setting and its values"),
        (["heads=2", "model.heads=4"], "expected section.field"),
        (["epochs=1,1"], "twice"),
        (["epochs=1", "train.epochs=2"], "twice"),
        (["data.val_fraction=0.1,0.2"], "share images, splits"),
        (["seed=1,2"], "share images, splits"),
        ([], "no grid is named"),
        (["model.headz=2"], "headz"),
        (["model.heads=two"], "heads"),
    ],
)
def test_grids_that_cannot_be(grid: list[str], problem: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        run(data, tmp_path, grid=grid)
    assert not (tmp_path / "s").exists()


def test_flag_names_are_settings() -> None:
    assert read_grid(["epochs=1,5", "--patch-size=4, 8"]) == {
        "train.epochs": ["1", "5"],
        "model.patch_size": ["4", "8"],
    }


def test_bad_use(data: Path, done: SweepResult, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--seeds 0,0"):
        run(data, tmp_path, grid=["epochs=1,2"], seeds="0,0")
    with pytest.raises(UsageError, match="do not go with a sweep"):
        run(data, tmp_path, grid=["epochs=1,2"], folds=3)
    with pytest.raises(UsageError, match="give the folder alone"):
        sweep(data, resume=done.folder, ui=Recorder())
    with pytest.raises(CheckpointError, match="cannot be read"):
        sweep(resume=data, ui=Recorder())


def test_a_killed_sweep_goes_on_and_counts_nothing_twice(data: Path, tmp_path: Path, vitmed: RUN) -> None:
    """kill -9 in the second run: nothing finished is trained again; then other data are refused."""
    sets = [word for text in (*TINY_SETS, "train.epochs=1") for word in ("--set", text)]
    flags = [word for name, value in SETTINGS.items() for word in _flag(name, value)]
    command = [sys.executable, "-m", "vitmed", "sweep", str(data), "--grid", "model.heads=1,2,4", "-o", str(tmp_path)]
    nowhere = subprocess.DEVNULL
    child = subprocess.Popen([*command, "--name", "s", *sets, *flags], stderr=nowhere, stdout=nowhere)
    while not (tmp_path / "s" / "heads-2-seed-0" / "last.pt").is_file():
        assert child.poll() is None
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    first = tmp_path / "s" / "heads-1-seed-0" / "best.pt"
    before = first.stat().st_mtime_ns
    answer = vitmed("sweep", "--resume", str(tmp_path / "s"), "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert [len(cell["runs"]) for cell in found["cells"]] == [1, 1, 1]
    assert first.stat().st_mtime_ns == before
    assert len([path for path in (tmp_path / "s").iterdir() if path.is_dir()]) == 3
    (data / "amber" / "p0_0.png").rename(tmp_path / "away.png")
    try:
        with pytest.raises(DataError, match="other images, labels or splits"):
            sweep(resume=tmp_path / "s", ui=Recorder())
    finally:
        (tmp_path / "away.png").rename(data / "amber" / "p0_0.png")


def _flag(name: str, value: object) -> list[str]:
    spelled = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [spelled if value else f"--no-{spelled[2:]}"]
    return [spelled, str(value)]
