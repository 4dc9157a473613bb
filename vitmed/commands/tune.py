"""`vitmed tune`: search over settings on validation, train the winner once more, and test that once."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vitmed.commands.many_runs import Job, check_parallel, helpers
from vitmed.commands.plan import plan_yaml
from vitmed.commands.sweep import BASE, identity
from vitmed.commands.train import check_place, default_name, train
from vitmed.commands.tune_trials import Asked, Trials, mend_journal, optuna_package, quiet_optuna
from vitmed.core.config import Config
from vitmed.core.durations import duration_text, read_duration, round_up
from vitmed.core.errors import DataError, Interrupted, UsageError
from vitmed.core.files import not_written, write_bytes, write_json, write_text
from vitmed.core.flags import FLAGS, read_overrides
from vitmed.core.inputs import data_folder
from vitmed.core.load_config import load_config, with_values
from vitmed.core.process import is_rank
from vitmed.core.run_folder import RunFolder
from vitmed.core.run_lock import run_lock
from vitmed.core.text import counted, listed
from vitmed.core.ui import Ui
from vitmed.core.yaml_files import read_yaml
from vitmed.metrics.tuning_study import TuningStudy
from vitmed.report.headline import with_interval
from vitmed.report.plots.drawing import png
from vitmed.report.plots.tuning import history_figure, importance_figure
from vitmed.training.plan_rules import fields_set
from vitmed.training.prepare import PreparedRun, prepare_run
from vitmed.training.search_space import as_sets, as_text, default_space, read_space, value_of
from vitmed.training.time_budget import Clock

USUAL = 20  # trials
SHARE = 6  # a run takes at most this part of --time
TABLE, HISTORY, IMPORTANCE, REFIT = "trials.csv", "history.png", "importance.png", "winner"
TUNE_FLAGS = {name: place for name, place in FLAGS.items() if place != "train.time"}


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
    prune: bool | None = None,
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
) -> TuneResult | None:
    """Search over settings on validation, train the winner once more with another seed, and test that once.

    Optuna chooses the settings (tree-structured Parzen estimator) and stops poor trials early (Hyperband).

    Args:
        data, config, sets, flags: as in `train`. What they set is not searched.
        trials: how many, also failed ones; default 20, or as many as `time` allows.
        time: of the whole command, such as "2h", or in seconds.
        space: settings and their ranges or values, such as "lr=1e-5..1e-3" or "model.width=64,128", instead of the
            default: a range around what the plan chose.
        prune: whether to stop poor trials early; default true.
        output: the folder in which to make the folder of the study; name: of that folder.
        resume: the folder of a study to continue, perhaps with more `trials` or `time`; join: of one that another
            process leads: train its trials, and return None at the end.
        parallel: how many processes train at the same time.
        offline: open no connection.

    Raises:
        UsageError: a setting or value that cannot be, or Optuna is not installed. VitmedError: as `train`, where no
            trial could be trained.
    """
    if is_rank():
        raise UsageError("tune: not with several processes", "start one process")
    ui = ui or Ui()
    clock, ui.began = Clock(ui.began), None  # the trainings have their own
    check_parallel(parallel)
    optuna_package()
    seconds = _seconds(time)
    if trials is not None and trials < 1:
        raise UsageError(f"--trials {trials}: expected at least 1", "--trials 20")
    if join is not None or resume is not None:
        given = (data, config, name, prune) != (None,) * 4 or space or sets or flags
        if given or (join is not None and (trials, time) != (None, None)):
            allowed = "with --resume, add only --trials, --time and --parallel"
            raise UsageError("--resume and --join use the settings of the study", allowed)
        folder = RunFolder(resume if join is None else join)  # type: ignore[arg-type]
        asked = _extended(folder, trials, seconds)
    else:
        folder, asked = _new_study(
            data, trials, seconds, space, prune is not False, config, sets, output, name, offline, flags, ui
        )
    try:
        with quiet_optuna():
            if join is None:
                return _lead(folder, asked, parallel, clock, ui)
            Trials(folder, asked, ui).work()
            return None
    except (Interrupted, KeyboardInterrupt) as error:
        problem = error.problem if isinstance(error, Interrupted) else "stopped; what is trained is saved"
        raise Interrupted(problem, f"vitmed tune --resume {folder.path}") from None
    except OSError as error:  # of the journal
        raise not_written(folder.journal, error) from None


def _seconds(time: str | float | None) -> float | None:
    """Of a duration. Raises UsageError."""
    try:
        seconds = read_duration(time)
    except ValueError as error:
        raise UsageError(f"--time {error}", "--time 2h") from None
    if seconds is not None and not (isinstance(seconds, float) and seconds > 0):
        raise UsageError(f"--time {time}: expected a duration above 0", "--time 2h")
    return seconds


def _new_study(
    data: str | Path | None, trials: int | None, seconds: float | None, space: Sequence[str], prune: bool,
    config: str | Path | None, sets: Sequence[str], output: str | Path, name: str | None, offline: bool,
    flags: Mapping[str, Any], ui: Ui,
) -> tuple[RunFolder, Asked]:  # fmt: skip
    """A new folder with the base configuration and the study; the arguments are those of `tune`."""
    domains = read_space(space, sets)
    settings = load_config(config, {"data.root": data, **read_overrides(dict(flags), TUNE_FLAGS, "tune")}, sets)
    _refuse(settings)
    check_place(settings, output, name)
    prepared, forecast = _planned(settings, config is None, seconds, offline, ui)
    domains = domains or default_space(prepared)
    if not domains:
        raise UsageError("nothing to search: every setting is fixed", "leave some out, or name --space")
    train_config = prepared.config.train
    asked = Asked(
        space=domains, planned={place: value_of(prepared.config, place) for place in domains},
        trials=USUAL if trials is None and seconds is None else trials, time=seconds, prune=prune,
        seed=train_config.seed, offline=offline, metric=train_config.monitor, epochs=train_config.epochs,
        **forecast,
    )  # fmt: skip
    if "train.epochs" in domains:  # then Hyperband counts to the most
        most = max(int(part) for part in domains["train.epochs"].replace("..", ",").split(","))
        asked = asked.model_copy(update={"epochs": most})
    called = name or f"{default_name(data_folder(settings.data.root), prepared.config)}_tune"
    folder = RunFolder.create(output, called)
    write_text(folder.path / BASE, plan_yaml(prepared, folder.path))
    with quiet_optuna():
        Trials(folder, asked, ui, new=identity(prepared.splits))
    write_json(folder.tune, asked.to_dict())  # last: a folder with it is complete
    return folder, asked


def _refuse(settings: Config) -> None:
    """Raises UsageError for what is more than one training."""
    if settings.data.divided or settings.train.freeze or settings.train.pretrain:
        fix = "leave them out; pretrain first, then tune --weights FOLDER/encoder.pt"
        raise UsageError("--folds, --freeze and --pretrain do not go with tune", fix)


def _planned(
    settings: Config, plans: bool, seconds: float | None, offline: bool, ui: Ui
) -> tuple[PreparedRun, dict[str, float]]:
    """The plan, with `seconds` one of as many epochs as fit `SHARE` times into it, and then the forecast of a run."""
    prepared = prepare_run(settings, plans, offline, ui)
    if seconds is None:
        return prepared, {}
    forecast, free = prepared.forecaster.of(prepared.config), plans and "epochs" not in fields_set(settings, "train")
    passes = int(forecast.passes_in(seconds / SHARE))
    if free and 1 <= passes < prepared.config.train.epochs:
        prepared = prepare_run(with_values(settings, {"train.epochs": passes}), plans, offline, ui)
    both = 2 * forecast.total(prepared.config.train.epochs)
    if both > seconds:
        problem = f"--time {duration_text(seconds)} is too short for a trial and the training of the winner"
        enough = SHARE * forecast.total(1) if free else both
        raise UsageError(problem, f"--time {duration_text(round_up(enough))}")
    return prepared, forecast._asdict()


def _extended(folder: RunFolder, trials: int | None, seconds: float | None) -> Asked:
    """What a study was asked for, with more trials or time. Raises UsageError once its winner is chosen."""
    asked = Asked.read(folder)
    more = {"trials": trials, "time": seconds}
    more = {key: value for key, value in more.items() if value is not None}
    if not more:
        return asked
    if _refit(folder, asked, None, 0).attempts(folder):
        raise UsageError(f"{folder.path}: its winner is chosen, and trained once more", "start a new study")
    asked = asked.model_copy(update=more)
    write_json(folder.tune, asked.to_dict())
    return asked


def _lead(folder: RunFolder, asked: Asked, parallel: int, clock: Clock, ui: Ui) -> TuneResult:
    """Train all trials with the helpers, then the winner once more, and write what was found."""
    mend_journal(folder)
    with run_lock(folder, ui):
        state = Trials(folder, asked, ui)
        state.start_clock(clock)
        many = "trials" if asked.trials is None else counted(asked.trials, "trial")
        limit = "" if asked.time is None else f" in {duration_text(asked.time)}"
        ui.say(f"{many}{limit} of at most {counted(asked.epochs, 'epoch')} in {folder.path}; they search:")
        for setting, domain in asked.space.items():
            ui.say(f"  {setting} {domain}, planned {as_text(asked.planned[setting])}")
        with helpers("tune", folder, parallel, ui):
            state.work()
        study = _chosen(state)
        left = None if asked.time is None else max(asked.time - state.spent, state.reserve)
        refit = _refit(folder, asked, study, left)
        if refit.done(folder) is None:
            ui.say(f"trial {study.best} is the best on validation; its settings once more, with another seed")
            refit.train(train, folder, ui)
        place = refit.done(folder)
        assert place is not None
        study = _with_refit(study, state, place)
        _write(folder, study)
    for note in study.notes:
        ui.say(note)
    ui.say(f"to train with these settings: vitmed train DIR --config {folder.tuned}")
    return TuneResult(folder.path, study)


def _chosen(state: Trials) -> TuningStudy:
    """The trials and the winner. Raises DataError where no trial ended well."""
    asked, trials = state.asked, state.results()
    valued = [t for t in trials if t.value is not None]
    sign = 1 if state.metric.higher_is_better else -1
    pool = [t for t in valued if t.state == "done"] or [t for t in valued if t.reason] or valued
    if not pool:
        reasons = listed(sorted({t.reason for t in trials if t.reason}), 3, "; ")
        raise DataError(f"{state.folder.path}: no trial ended well: {reasons}", "mend that and start a new study")
    best = max(pool, key=lambda t: (sign * (t.value or 0.0), -t.number))
    changed = {place: value for place, value in best.values.items() if as_text(value) != as_text(asked.planned[place])}
    return TuningStudy(
        metric=asked.metric, title=state.metric.title, higher=state.metric.higher_is_better, epochs=asked.epochs,
        trials=trials, best=best.number, plan=1 if state.has_plan else None, changed=changed,
        importance=state.importance(),
    )  # fmt: skip


def _refit(folder: RunFolder, asked: Asked, study: TuningStudy | None, left: float | None) -> Job:
    """The winner's settings, with all their epochs and another seed; `left`: seconds for it."""

    def begin() -> dict[str, Any]:
        assert study is not None
        sets = [*as_sets(study.trial(study.best).values), f"train.seed={asked.seed + 1}"]
        timed = {} if left is None else {"time": left}
        return {"config": folder.path / BASE, "sets": sets, "offline": asked.offline, **timed}

    return Job(REFIT, "the winner once more", begin)


def _with_refit(study: TuningStudy, state: Trials, place: RunFolder) -> TuningStudy:
    """The study with what its winner reached when it was trained once more, and notes on all of it."""
    val, test = state.estimate(place, "val"), state.estimate(place, "test")
    best, title = study.trial(study.best), study.title
    planned = None if study.plan is None else study.trial(study.plan).value
    first = (
        f"best of {counted(len(study.trials), 'trial')} on validation: trial {best.number}, {title} {best.value:.3f}"
    )
    if planned is not None:
        first += "; these are the plan's settings" if best.number == study.plan else f"; the plan's: {planned:.3f}"
    notes = [first]
    if val.value is not None and best.value is not None:
        sign = 1 if study.higher else -1
        gap = sign * (best.value - val.value)
        notes.append(
            f"The same settings, trained once more with another seed, reach {val.value:.3f} on validation, "
            f"{abs(gap):.3f} {'worse' if gap > 0 else 'better'}. Both are of the images that chose the settings."
        )
        if planned is not None and best.number != study.plan and sign * (planned - val.value) > 0:
            notes.append("That is worse than the plan: the search found nothing that is surely better. Keep the plan.")
    notes.append(f"On the test, evaluated once: {title} {with_interval(test)}.")
    stopped = [t for t in study.trials if t.state == "stopped"]
    if stopped:
        used, most = sum(t.epochs for t in study.trials), study.epochs * len(study.trials)
        notes.append(f"{counted(len(stopped), 'trial')} stopped early: {used:,} of {most:,} epochs were trained.")
    if failed := [t for t in study.trials if t.state == "failed"]:
        notes.append(f"{counted(len(failed), 'trial')} failed: {listed(sorted({t.reason for t in failed}), 3, '; ')}")
    return study.model_copy(update={"refit_val": val, "test": test, "notes": notes})


def _write(folder: RunFolder, study: TuningStudy) -> None:
    """trials.csv, tuned.yaml and the pictures."""
    write_text(folder.path / TABLE, _table(study))
    write_text(folder.tuned, _tuned_yaml(folder, study))
    write_bytes(folder.path / HISTORY, png(history_figure(study)))
    if (figure := importance_figure(study)) is not None:
        write_bytes(folder.path / IMPORTANCE, png(figure))


def _tuned_yaml(folder: RunFolder, study: TuningStudy) -> str:
    """The plan with the winner's values in their places, which a comment lists."""
    tree = read_yaml(folder.path / BASE)
    lines = [f"# vitmed tune: trial {study.best} of {folder.path.resolve().name}", "# The plan, except for:"]
    for place, value in study.changed.items():
        section, _, name = place.partition(".")
        before = tree.setdefault(section, {}).get(name, "its default")
        tree[section][name] = load_value(place, value)
        lines.append(f"#   {place} {as_text(value)}  (planned: {as_text(before)})")
    return "\n".join(lines) + "\n" + yaml.safe_dump(tree, sort_keys=False, width=1000, allow_unicode=True)


def load_value(place: str, value: Any) -> Any:
    """The plain value that a setting has when it is set to this one."""
    found = value_of(load_config(None, None, as_sets({place: value})), place)
    return list(found) if isinstance(found, tuple) else found


def _table(study: TuningStudy) -> str:
    """trials.csv."""
    stream = io.StringIO()
    writer, settings = csv.writer(stream, lineterminator="\n"), list(study.trials[0].values)
    for trial in study.trials:  # a failed one may have none
        settings += [place for place in trial.values if place not in settings]
    writer.writerow(["trial", "state", *settings, study.metric, "low", "high", "epochs", "seconds", "run", "reason"])
    for trial in study.trials:
        ends = (None, None) if trial.estimate is None else (trial.estimate.low, trial.estimate.high)
        row = [trial.number, trial.state, *(trial.values.get(place) for place in settings), trial.value, *ends]
        row += [trial.epochs, trial.seconds, trial.run, trial.reason]
        writer.writerow(["" if value is None else value for value in row])
    return stream.getvalue()
