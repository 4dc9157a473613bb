"""`vitmed sweep`: train a grid of settings with several seeds, and report what each costs and reaches on validation."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitmed.commands.many_runs import Job, check_parallel, helpers, run_jobs
from vitmed.commands.plan import plan_yaml
from vitmed.commands.train import check_place, default_name, file_name, train
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError
from vitmed.core.files import read_json_lines, write_bytes, write_json, write_text
from vitmed.core.flags import FLAGS, read_overrides
from vitmed.core.inputs import data_folder
from vitmed.core.load_config import load_config
from vitmed.core.run_folder import NUMBERS, PREDICTIONS, RunFolder
from vitmed.core.run_lock import run_lock
from vitmed.core.text import counted, listed
from vitmed.core.ui import Ui
from vitmed.data.samples import Splits
from vitmed.data.splits import make_splits
from vitmed.decisions.evaluation_folder import read_evaluation, read_metrics
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.grid_study import Cell, GridStudy, study_of
from vitmed.models.vit import build_vit
from vitmed.report.plots.drawing import png
from vitmed.report.plots.grid_study import grid_figure
from vitmed.report.results import Results
from vitmed.training.prepare import prepare_run

MOST = 1000  # runs
BASE = "base.yaml"
QUICK = ("train.test=false", "train.baseline=false", "evaluate.report=false", "evaluate.map_images=0")
TABLE, PICTURE = "sweep.csv", "sweep.png"


@dataclass(frozen=True)
class SweepResult:
    """The folder of a sweep, and what it found."""

    folder: Path
    study: GridStudy

    def to_dict(self) -> dict[str, Any]:
        """Plain types for JSON."""
        return self.study.to_dict()


def sweep(
    data: str | Path | None = None,
    *,
    grid: Sequence[str] = (),
    seeds: str | Sequence[int] = "0",
    config: str | Path | None = None,
    sets: Sequence[str] = (),
    output: str | Path = "runs",
    name: str | None = None,
    resume: str | Path | None = None,
    join: str | Path | None = None,
    parallel: int = 1,
    offline: bool = False,
    ui: Ui | None = None,
    **flags: Any,
) -> SweepResult | None:
    """Train every combination of settings with every seed, and compare them on validation. No run reads the test.

    Args:
        data, config, sets, flags: as in `train`. One plan holds for all runs; the grid changes it.
        grid: settings and their values, such as "model.heads=2,4,8" or "epochs=1,5,20".
        seeds: of training, such as "0,1,2"; the splits stay the same.
        output: the folder in which to make the folder of the sweep; name: of that folder.
        resume: the folder of a sweep to continue; join: of one that another process trains: train what no process
            trains, and return None at the end.
        parallel: how many processes train at the same time.
        offline: open no connection.

    Raises:
        UsageError: a setting or value that cannot be. VitmedError: as `train`, where no run could be trained.
    """
    ui = ui or Ui()
    check_parallel(parallel)
    if join is not None or resume is not None:
        if (data, config, name) != (None,) * 3 or grid or sets or flags:
            raise UsageError("--resume and --join use the settings of the sweep", "give the folder alone")
        folder = RunFolder(resume if join is None else join)  # type: ignore[arg-type]
        jobs = _jobs(folder, _read(folder))
        if join is not None:
            run_jobs(train, folder, jobs, ui, keep_failures=True)
            return None
        for job in jobs:
            job.failure(folder).unlink(missing_ok=True)  # once more
    else:
        folder = _new_sweep(data, grid, seeds, config, sets, output, name, offline, flags, ui)
        jobs = _jobs(folder, _read(folder))
    ui.say(f"{counted(len(jobs), 'run')} in {folder.path}")
    try:
        with run_lock(folder, ui), helpers("sweep", folder, parallel, ui):
            run_jobs(train, folder, jobs, ui, keep_failures=True)
    except (Interrupted, KeyboardInterrupt) as error:
        problem = error.problem if isinstance(error, Interrupted) else "stopped while other processes trained"
        raise Interrupted(problem, f"vitmed sweep --resume {folder.path}") from None
    study = _summarise(folder, jobs)
    write_text(folder.path / TABLE, _table(study))
    if (figure := grid_figure(study)) is not None:
        write_bytes(folder.path / PICTURE, png(figure))
    for note in study.notes:
        ui.say(note)
    if study.best is not None:
        best = next(cell for cell in study.cells if cell.name == study.best)
        ui.say(f"to test it once: vitmed evaluate {folder.path / best.runs[0]}")
    return SweepResult(folder.path, study)


def read_grid(texts: Sequence[str]) -> dict[str, list[str]]:
    """{"model.heads": ["2", "4"]} of "heads=2,4" or "model.heads=2,4". Raises UsageError for another form."""
    found: dict[str, list[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        place = FLAGS.get(key.removeprefix("--").replace("-", "_"), key)
        parts = [value.strip() for value in values.split(",")]
        if not equals or not all(parts):
            raise UsageError(f"--grid {text}: expected a setting and its values", "--grid model.heads=2,4,8")
        if len(set(parts)) < len(parts) or place in found:
            raise UsageError(f"--grid {text}: names a value or a setting twice", "name each once")
        if place.startswith("data.") or place in ("train.seed", "train.test", "train.time"):
            raise UsageError(
                f"--grid {text}: the runs of a sweep share images, splits and the length of a run in epochs",
                "--seeds 0,1,2 for seeds; vitmed cross-validate for folds",
            )
        found[place] = parts
    if not found:
        raise UsageError("no grid is named", "--grid model.heads=2,4,8")
    return found


def _read_seeds(seeds: str | Sequence[int]) -> list[int]:
    try:
        found = [int(seed) for seed in (seeds.split(",") if isinstance(seeds, str) else seeds)]
    except ValueError:
        found = []
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise UsageError(f"--seeds {seeds}: expected different numbers from 0", "--seeds 0,1,2")
    return found


def _new_sweep(
    data: str | Path | None, grid: Sequence[str], seeds: str | Sequence[int], config: str | Path | None,
    sets: Sequence[str], output: str | Path, name: str | None, offline: bool, flags: Mapping[str, Any], ui: Ui,
) -> RunFolder:  # fmt: skip
    """A new folder with the base configuration and the study; the arguments are those of `sweep`."""
    factors, numbers = read_grid(grid), _read_seeds(seeds)
    cells = [dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())]
    if len(cells) * len(numbers) > MOST:
        raise UsageError(f"{len(cells) * len(numbers):,} runs, more than {MOST:,}", "fewer values or seeds")
    settings = load_config(config, {"data.root": data, **read_overrides(dict(flags), FLAGS, "sweep")}, sets)
    if settings.data.divided or settings.train.freeze:
        raise UsageError("--folds and --freeze do not go with a sweep", "leave them out")
    check_place(settings, output, name)
    for cell in cells:  # wrong names and values, before anything is read
        load_config(config, None, [*sets, *_sets(cell)])
    prepared = prepare_run(settings, config is None, offline, ui)
    called = name or f"{default_name(data_folder(settings.data.root), prepared.config)}_sweep"
    folder = RunFolder.create(output, called)
    write_text(folder.path / BASE, plan_yaml(prepared, folder.path))
    content = {
        "grid": factors, "seeds": numbers, "data": identity(prepared.splits), "offline": offline,
        "root": str(data_folder(settings.data.root).resolve().name),
    }  # fmt: skip
    write_json(folder.sweep, content)
    return folder


def _read(folder: RunFolder) -> dict[str, Any]:
    """The content of sweep.json. Raises CheckpointError for a damaged one, DataError if the data have changed."""
    try:
        found = dict(json.loads(folder.sweep.read_text(encoding="utf-8")))
        grid, seeds, data = found["grid"], found["seeds"], found["data"]
        if not (all(isinstance(values, list) for values in grid.values()) and seeds):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{folder.sweep}: cannot be read", "start again with vitmed sweep") from None
    settings = load_config(folder.path / BASE)
    if identity(make_splits(settings.data, ordinal=settings.evaluate.ordinal)) != data:
        problem = f"{settings.data.root}: other images, labels or splits than those that {folder.path} began with"
        raise DataError(problem, "restore them, or start a new sweep")
    return found


def identity(splits: Splits) -> str:
    """The sha256 of which image has which label and patient and is in which split."""
    rows = [(name, s.path, splits.text_of(s), s.group) for name, part in splits.samples.items() for s in part]
    return hashlib.sha256(json.dumps(rows).encode("utf-8", "surrogateescape")).hexdigest()


def _sets(cell: Mapping[str, str]) -> list[str]:
    return [f"{place}={value}" for place, value in cell.items()]


def _cells(study: Mapping[str, Any]) -> list[dict[str, str]]:
    return [dict(zip(study["grid"], values, strict=True)) for values in itertools.product(*study["grid"].values())]


def _jobs(folder: RunFolder, study: Mapping[str, Any]) -> list[Job]:
    """A run for each cell and seed, seed by seed, so that a stopped sweep knows something of every cell."""

    def begin(cell: Mapping[str, str], seed: int) -> dict[str, Any]:
        sets = (*_sets(cell), f"train.seed={seed}", *QUICK)
        return {"config": folder.path / BASE, "sets": sets, "offline": study["offline"]}

    return [
        Job(_run_name(cell, seed), f"{', '.join(_sets(cell))}, seed {seed}", partial(begin, cell, seed), "val")
        for seed in study["seeds"]
        for cell in _cells(study)
    ]


def _run_name(cell: Mapping[str, str], seed: int) -> str:
    parts = [f"{place.partition('.')[2]}-{value}" for place, value in cell.items()]
    return file_name("_".join([*parts, f"seed-{seed}"]))


def _summarise(folder: RunFolder, jobs: Sequence[Job]) -> GridStudy:
    """What the finished runs reached. Raises DataError where there is none."""
    study = _read(folder)
    done = {job.name: job.done(folder) for job in jobs}
    cells, kind = [], None
    for cell in _cells(study):
        names = [_run_name(cell, seed) for seed in study["seeds"]]
        runs = [run for name in names if (run := done[name]) is not None]
        found = [read_evaluation(run.path / "val" / PREDICTIONS).predictions for run in runs]
        failures = [folder.path / f"{name}.failed.txt" for name in names]
        reasons = [file.read_text(encoding="utf-8").splitlines()[0] for file in failures if file.is_file()]
        if runs and kind is None:
            kind = Results.read(read_metrics(runs[0].path / "val" / NUMBERS)).target.kind
        seconds = [sum(record["seconds"] for record in read_json_lines(run.metrics)) for run in runs]
        cells.append(
            Cell(
                ", ".join(_sets(cell)), cell, tuple(found), [run.path.name for run in runs],
                float(np.mean(seconds)) if seconds else None, _parameters(folder, cell), listed(sorted(set(reasons))),
            )
        )  # fmt: skip
    if kind is None:
        raise DataError(f"{folder.path}: no run ended well: {cells[0].failure}", "mend that, then --resume")
    return study_of(cells, TARGETS[kind], len(study["seeds"]))


def _parameters(folder: RunFolder, cell: Mapping[str, str]) -> int | None:
    """Of the network; None where there is no such network."""
    try:
        model = load_config(folder.path / BASE, None, _sets(cell)).model
        with torch.device("meta"):
            return sum(part.numel() for part in build_vit(model, 2).parameters())
    except UsageError:
        return None


def _table(study: GridStudy) -> str:
    """sweep.csv."""
    stream = io.StringIO()
    factors = list(study.cells[0].values)
    writer = csv.writer(stream, lineterminator="\n")
    numbers = [study.metric, "sd_over_seeds", "low", "high", "parameters", "seconds", "failure"]
    writer.writerow([*factors, "runs", *numbers])
    for cell in study.cells:
        one = cell.number
        ends = (None,) * 4 if one is None else (one.value, cell.sd, one.low, one.high)
        row = [len(cell.runs), *ends, cell.parameters, cell.seconds, cell.failure]
        writer.writerow([*cell.values.values(), *("" if value is None else value for value in row)])
    return stream.getvalue()
