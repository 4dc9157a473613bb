"""`vitmed tune`: search over settings on validation, train the winner once more, and test that once."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitmed.commands.executors import Job, local
from vitmed.commands.plan import plan_yaml
from vitmed.commands.train import check_place, default_name
from vitmed.commands.tune_trials import BASE, Asked, Trials, optuna_package
from vitmed.core.config import Config
from vitmed.core.durations import duration_text, round_up
from vitmed.core.errors import DataError, Interrupted, UsageError, VitmedError
from vitmed.core.files import write_bytes, write_json, write_text
from vitmed.core.flags import FLAGS, read_overrides
from vitmed.core.inputs import data_folder
from vitmed.core.load_config import load_config, store_paths, with_values
from vitmed.core.process import is_rank
from vitmed.core.run_folder import PREDICTIONS, RunFolder
from vitmed.core.run_lock import run_lock
from vitmed.core.text import counted, listed
from vitmed.core.ui import Ui
from vitmed.data.splits import make_splits
from vitmed.decisions.evaluation_folder import read_evaluation
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.tuning_study import TrialResult, TuningStudy, combined, with_intervals
from vitmed.models.vit import build_vit
from vitmed.report.headline import with_interval
from vitmed.report.plots.drawing import png
from vitmed.report.plots.tuning import history_figure, importance_figure
from vitmed.training.plan_rules import fields_set
from vitmed.training.prepare import PreparedRun, prepare_run
from vitmed.training.search_space import as_sets, as_text, default_space, read_space, value_of
from vitmed.training.time_budget import Clock

USUAL, MOST = 20, 1000  # trials
SHARE = 6  # a run takes at most this part of --time
TABLE, HISTORY, IMPORTANCE, REFIT = "trials.csv", "history.png", "importance.png", "winner"


@dataclass(frozen=True)
class TuneResult:
    """The folder of a study, and what it found."""

    folder: Path
    study: TuningStudy

    def to_dict(self) -> dict[str, Any]:
        """Plain types for JSON."""
        return self.study.to_dict()


def tune(
    data: str | Path | None = None,
    *,
    trials: int | None = None,
    time: str | float | None = None,
    space: Sequence[str] = (),
    grid: Sequence[str] = (),
    seeds: str | Sequence[int] | None = None,
    prune: bool | None = None,
    config: str | Path | None = None,
    sets: Sequence[str] = (),
    output: str | Path = "runs",
    name: str | None = None,
    resume: str | Path | None = None,
    parallel: int = 1,
    devices: int | None = None,
    offline: bool = False,
    ui: Ui | None = None,
    **flags: Any,
) -> TuneResult:
    """Search over settings on validation, train the winner once more with another seed, and test that once.

    Optuna suggests the settings (tree-structured Parzen estimator) and stops poor trials early (Hyperband). With a
    grid, every combination is trained to its end with every seed instead, and they are compared over the seeds.

    Args:
        data, config, sets, flags: as in `train`. What they set is not searched.
        trials: how many, also failed ones; default 20, or as many as `time` allows.
        time: of the whole command, such as "2h", or in seconds.
        space: settings and their ranges or values, such as "lr=1e-5..1e-3" or "model.width=64,128", instead of the
            default: a range around what the plan chose.
        grid: settings and their values, such as "model.heads=2,4,8"; seeds: of training, such as "0,1,2".
        prune: whether to stop poor trials early; default true.
        output: the folder in which to make the folder of the study; name: of that folder.
        resume: the folder of a study to continue, perhaps with more `trials` or `time`.
        parallel: how many trials to train at the same time, each in a process of its own.
        devices: of each trial, as in `vitmed train --devices`.
        offline: open no connection.

    Raises:
        UsageError: a setting or value that cannot be, or Optuna is not installed. VitmedError: as `train`, where no
            trial could be trained.
    """
    ui = ui or Ui()
    clock, ui.began = Clock(ui.began), None  # the trainings have their own
    if is_rank():
        raise UsageError("tune: not as one of the processes of torchrun", "vitmed tune DIR --devices N")
    if parallel < 1 or (trials is not None and trials < 1):
        what = f"--parallel {parallel}" if parallel < 1 else f"--trials {trials}"
        raise UsageError(f"{what}: expected at least 1", f"{what.split()[0]} 2")
    seconds = load_config(None, {"train.time": time}).train.time
    with optuna_package() as optuna:
        if resume is None:
            settings = load_config(config, {"data.root": data, **read_overrides(dict(flags), FLAGS, "tune")}, sets)
            fixed = _trials_of(trials, space, grid, seeds, prune, sets)
            check_place(settings, output, name)
            prepared, forecast = _planned(settings, config is None, seconds, offline, ui, devices or 1)
            fixed |= {**forecast, "time": seconds, "offline": offline}
            folder, asked = _new_study(prepared, fixed, output, name)
        elif (data, config, name, prune, seeds) != (None,) * 5 or space or grid or sets or flags:
            allowed = "with --resume, add only --trials, --time, --parallel and --devices"
            raise UsageError("--resume uses the settings of the study", allowed)
        else:
            folder, asked = _resumed(RunFolder(resume), trials, seconds)
        try:
            with run_lock(folder, ui):
                state = Trials(optuna, folder, asked, clock, ui)
                return TuneResult(folder.path, _lead(state, parallel, devices))
        except (Interrupted, KeyboardInterrupt) as error:
            problem = error.problem if isinstance(error, Interrupted) else "stopped; what is trained is saved"
            raise Interrupted(problem, f"vitmed tune --resume {folder.path}") from None


def _trials_of(
    trials: int | None, space: Sequence[str], grid: Sequence[str], seeds: str | Sequence[int] | None,
    prune: bool | None, sets: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """What a study tries; the arguments are those of `tune`. Raises UsageError."""
    if not grid and seeds is None:
        return {"space": read_space(space, sets), "seeds": [], "trials": trials, "prune": prune is not False}
    try:
        numbers = [int(seed) for seed in (seeds.split(",") if isinstance(seeds, str) else seeds or [0])]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise UsageError(f"--seeds {seeds}: expected different numbers from 0", "--seeds 0,1,2")
    if not grid or space or trials is not None or prune:
        raise UsageError("--seeds go with --grid, and --space, --trials and --prune do not", "leave some out")
    return {"space": read_space(grid, sets, "--grid"), "seeds": numbers, "trials": None, "prune": False}


def _planned(
    settings: Config, plans: bool, seconds: float | None, offline: bool, ui: Ui, processes: int
) -> tuple[PreparedRun, dict[str, float]]:
    """The plan, with `seconds` one of as many epochs as fit `SHARE` times into it, and then the forecast of a run."""
    if settings.data.divided or settings.train.freeze:
        raise UsageError("--folds and --freeze do not go with tune", "leave them out")
    prepared = prepare_run(settings, plans, offline, ui, processes)
    if seconds is None:
        return prepared, {}
    forecast, free = prepared.forecaster.of(prepared.config), plans and "epochs" not in fields_set(settings, "train")
    passes = int(forecast.passes_in(seconds / SHARE))
    if free and 1 <= passes < prepared.config.train.epochs:
        prepared = prepare_run(with_values(settings, {"train.epochs": passes}), plans, offline, ui, processes)
    both = 2 * forecast.total(prepared.config.train.epochs)
    if both > seconds:
        problem = f"--time {duration_text(seconds)} is too short for a trial and the training of the winner"
        enough = SHARE * forecast.total(1) if free else both
        raise UsageError(problem, f"--time {duration_text(round_up(enough))}")
    return prepared, forecast._asdict()


def _new_study(
    prepared: PreparedRun, what: dict[str, Any], output: str | Path, name: str | None
) -> tuple[RunFolder, Asked]:
    """A new folder with the base configuration and what was asked for."""
    config, train = prepared.config, prepared.config.train
    domains = what["space"] = what["space"] or default_space(prepared)
    if not domains:
        raise UsageError("nothing to search: every setting is fixed", "leave some out, or name --space")
    if what["trials"] is None and what["time"] is None and not what["seeds"]:
        what["trials"] = USUAL
    epochs = domains.get("train.epochs", str(train.epochs))  # Hyperband counts to the most
    asked = Asked(
        planned={place: value_of(config, place) for place in domains}, seed=train.seed, metric=train.monitor,
        epochs=max(int(part) for part in epochs.replace("..", ",").split(",")), data=prepared.splits.digest, **what,
    )  # fmt: skip
    if len(asked.queue) > MOST:
        raise UsageError(f"{len(asked.queue):,} trials, more than {MOST:,}", "fewer values or seeds")
    folder = RunFolder.create(output, name or f"{default_name(data_folder(config.data.root), config)}_tune")
    write_text(folder.path / BASE, plan_yaml(prepared, folder.path))
    write_json(folder.tune, asked.to_dict())  # last: a folder with it is complete
    return folder, asked


def _resumed(folder: RunFolder, trials: int | None, seconds: float | None) -> tuple[RunFolder, Asked]:
    """A study, with more trials or time. Raises UsageError once its winner is chosen, DataError for other data."""
    asked, more = Asked.read(folder), {"trials": trials, "time": seconds}
    settings = load_config(folder.path / BASE)
    if make_splits(settings.data, ordinal=settings.evaluate.ordinal).digest != asked.data:
        problem = f"{settings.data.root}: other images, labels or splits than those that {folder.path} began with"
        raise DataError(problem, "restore them, or start a new study")
    if more := {key: value for key, value in more.items() if value is not None}:
        if Job(REFIT, "").attempts(folder):
            raise UsageError(f"{folder.path}: its winner is chosen, and trained once more", "start a new study")
        if trials is not None and asked.seeds:
            raise UsageError(f"--trials {trials}: a grid has all its combinations", "leave it out")
        asked = asked.model_copy(update=more)
        write_json(folder.tune, asked.to_dict())
    return folder, asked


def _lead(state: Trials, parallel: int, devices: int | None) -> TuningStudy:
    """Train all trials, then the winner once more, and write what was found."""
    folder, asked, ui = state.folder, state.asked, state.ui
    many = "trials" if state.most is None else counted(state.most, "trial")
    limit = "" if asked.time is None else f" in {duration_text(asked.time)}"
    ui.say(f"{many}{limit} of at most {counted(asked.epochs, 'epoch')} in {folder.path}; they search:")
    for setting, domain in asked.space.items():
        ui.say(f"  {setting} {domain}, planned {as_text(asked.planned[setting])}")
    with local(folder, parallel, ui, devices=devices, logged=True) as executor:
        state.work(executor, parallel)
    study = _chosen(state)
    best = study.of(study.best)
    sets = [*as_sets(best.values), f"train.seed={max([asked.seed, *asked.seeds]) + 1}"]
    left = {} if asked.time is None else {"time": max(asked.time - state.clock.seconds(), state.reserve)}
    title = f"trial {best.number} is the best on validation; its settings once more, with another seed"
    job = Job(REFIT, title, {"config": folder.path / BASE, "sets": sets, "offline": asked.offline, **left})
    with local(folder, 1, ui, devices=devices) as executor:
        run = executor.submit(job).result()
    assert run is not None
    val, test = state.estimate(run, "val"), state.estimate(run, "test")
    study = study.model_copy(update={"refit_val": val, "test": test})
    study = study.model_copy(update={"notes": _notes(study)})
    changed = [f"#   {p} {as_text(v)}  (planned: {as_text(asked.planned[p])})" for p, v in study.changed.items()]
    tuned = store_paths(load_config(folder.path / BASE, None, as_sets(study.changed)), folder.path)
    lines = [f"# vitmed tune: trial {best.number} of {folder.path.resolve().name}", "# The plan, except for:", *changed]
    write_text(folder.tuned, "\n".join(lines) + "\n" + tuned.to_yaml())
    write_text(folder.path / TABLE, _table(study))
    write_bytes(folder.path / HISTORY, png(history_figure(study)))
    if (figure := importance_figure(study)) is not None:
        write_bytes(folder.path / IMPORTANCE, png(figure))
    for note in study.notes:
        ui.say(note)
    ui.say(f"to train with these settings: vitmed train DIR --config {folder.tuned}")
    return study


def _chosen(state: Trials) -> TuningStudy:
    """The trials, their combinations and the winner. Raises DataError where no trial ended well."""
    asked, higher, optimism = state.asked, state.metric.higher_is_better, None
    trials = [state.result(number) for number in range(len(state.files))]
    valued = [trial for trial in trials if trial.value is not None]
    if not valued:
        reasons = listed(sorted({trial.reason for trial in trials if trial.reason}), 3, "; ")
        raise DataError(f"{state.folder.path}: no trial ended well: {reasons}", "mend that and start a new study")
    combinations = combined(trials) if asked.seeds else trials
    if asked.seeds and (done := [trial for trial in trials if trial.state == "done"]):
        tables = {t.number: read_evaluation(state.folder.path / str(t.run) / "val" / PREDICTIONS) for t in done}
        found = {number: one.predictions for number, one in tables.items()}
        kind = TARGETS[next(iter(found.values())).kind]
        combinations, optimism = with_intervals(combinations, found, kind, asked.metric, higher)
        combinations = [one.model_copy(update={"parameters": _parameters(state, one)}) for one in combinations]
    pool = [one for one in combinations if one.value is not None]
    pool = [one for one in pool if one.state == "done"] or [one for one in pool if one.reason] or pool
    best = max(pool, key=lambda one: ((one.value or 0.0) * (1 if higher else -1), -one.number))
    planned = {place: as_text(value) for place, value in asked.planned.items()}
    changed = {place: value for place, value in best.values.items() if as_text(value) != planned[place]}
    plan = [one.number for one in combinations if {p: as_text(v) for p, v in one.values.items()} == planned]
    return TuningStudy(
        metric=asked.metric, title=state.metric.title, higher=higher, epochs=asked.epochs, seeds=asked.seeds,
        trials=trials, combinations=combinations, best=best.number, changed=changed, optimism=optimism,
        plan=(1 if state.queue else None) if not asked.seeds else next(iter(plan), None), importance=state.importance(),
    )  # fmt: skip


def _parameters(state: Trials, one: TrialResult) -> int | None:
    """Of the network; None where there is no such network."""
    try:
        with torch.device("meta"):
            network = build_vit(load_config(state.folder.path / BASE, None, as_sets(one.values)).model, 2)
    except VitmedError:
        return None
    return sum(part.numel() for part in network.parameters())


def _notes(study: TuningStudy) -> list[str]:
    """What must be known of the winner before its numbers are believed."""
    best, title, val = study.of(study.best), study.title, study.refit_val
    many = counted(len(study.combinations), "combination" if study.seeds else "trial")
    planned = None if study.plan is None else study.of(study.plan).value
    notes = [f"best of {many} on validation: trial {best.number}, {title} {best.value:.3f}"]
    if planned is not None:
        notes[0] += "; these are the plan's settings" if best.number == study.plan else f"; the plan's: {planned:.3f}"
    if study.optimism is not None:
        too = f"too {'high' if study.higher else 'low'} by about {abs(study.optimism):.3f}"
        notes.append(f"It was chosen on these very images, which makes its number {too} on average.")
    if val is not None and val.value is not None and best.value is not None:
        sign = 1 if study.higher else -1
        gap = sign * (best.value - val.value)
        notes.append(
            f"The same settings, trained once more with another seed, reach {val.value:.3f} on validation, "
            f"{abs(gap):.3f} {'worse' if gap > 0 else 'better'}. Both are of the images that chose the settings."
        )
        if planned is not None and best.number != study.plan and sign * (planned - val.value) > 0:
            notes.append("That is worse than the plan: the search found nothing that is surely better. Keep the plan.")
    if study.test is not None:
        notes.append(f"On the test, evaluated once: {title} {with_interval(study.test)}.")
    stopped = [trial for trial in study.trials if trial.state == "stopped"]
    if stopped:
        used, most = sum(trial.epochs for trial in study.trials), study.epochs * len(study.trials)
        notes.append(f"{counted(len(stopped), 'trial')} stopped early: {used:,} of {most:,} epochs were trained.")
    if failed := [trial.reason for trial in study.trials if trial.state == "failed"]:
        notes.append(f"{counted(len(failed), 'trial')} failed: {listed(sorted(set(failed)), 3, '; ')}")
    return notes


def _table(study: TuningStudy) -> str:
    """trials.csv: a row for each trial, in a grid with what its combination reached over all seeds."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    settings = list(dict.fromkeys(place for trial in study.trials for place in trial.values))
    of: Mapping[int, TrialResult] = {number: one for one in study.combinations for number in one.trials}
    over = ["mean_over_seeds", "sd_over_seeds", "mean_low", "mean_high", "parameters"] if study.seeds else []
    ends = ["low", "high", "epochs", "seconds", "run", "reason"]
    writer.writerow(["trial", "state", *settings, study.metric, *ends, *over])
    for trial in study.trials:
        row: list[Any] = [trial.number, trial.state, *(trial.values.get(place) for place in settings), trial.value]
        row += [getattr(trial.estimate, "low", None), getattr(trial.estimate, "high", None)]
        row += [trial.epochs, trial.seconds, trial.run, trial.reason]
        if study.seeds:
            one = of[trial.number]
            low, high = getattr(one.estimate, "low", None), getattr(one.estimate, "high", None)
            row += [one.value, one.sd, low, high, one.parameters]
        writer.writerow(["" if value is None else value for value in row])
    return stream.getvalue()
