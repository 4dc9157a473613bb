"""A search over settings: its plan, its trials, the winner once more, and what must be known before it is believed."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitmed.core.config import Config
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import write_bytes, write_json, write_text
from vitmed.core.load_config import load_config, store_paths, with_values
from vitmed.core.messages import say
from vitmed.core.run_folder import PREDICTIONS, RunFolder
from vitmed.core.text import counted, duration_text, listed, round_up
from vitmed.data.splits import make_splits
from vitmed.decisions.evaluation_folder import read_evaluation
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.estimates import value_text
from vitmed.metrics.tuning_study import SEED, TuningStudy, combined
from vitmed.report.plots.curves import history_figure
from vitmed.report.plots.drawing import png
from vitmed.studies.executors import Job, local
from vitmed.studies.search_plan import Asked, as_sets, as_text, default_space, value_of
from vitmed.studies.trials import BASE, Trials
from vitmed.training.plan.make_plan import Plan, make_plan, plan_yaml
from vitmed.training.plan.rules import fields_set

USUAL, MOST = 20, 1000  # trials
SHARE = 6  # a run takes at most this part of --time
TABLE, HISTORY, REFIT = "trials.csv", "history.png", "winner"


@dataclass(frozen=True)
class TuneResult:
    """The folder of a study, and what it found."""

    folder: Path
    study: TuningStudy

    def to_dict(self) -> dict[str, Any]:
        """Plain types for JSON."""
        return self.study.to_dict()


def plan_study(
    settings: Config, plans: bool, seconds: float | None, offline: bool, processes: int
) -> tuple[Plan, dict[str, float]]:
    """Plan the base of all trials; with `seconds`, of as many epochs as fit `SHARE` times into it, and forecast a run.

    Raises:
        UsageError: settings that do not go with a search, or too little time for a trial and the winner.
    """
    if settings.data.divided or settings.train.freeze or not settings.train.test:
        raise UsageError("--folds, --freeze and --no-test do not go with tune", "leave them out")
    prepared = make_plan(settings, plans, offline, processes)
    if seconds is None:
        return prepared, {}
    forecast, free = prepared.forecaster.of(prepared.config), plans and "epochs" not in fields_set(settings, "train")
    passes = int(forecast.passes_in(seconds / SHARE))
    if free and 1 <= passes < prepared.config.train.epochs:
        prepared = make_plan(with_values(settings, {"train.epochs": passes}), plans, offline, processes)
    both = 2 * forecast.total(prepared.config.train.epochs)
    if both > seconds:
        problem = f"--time {duration_text(seconds)} is too short for a trial and the training of the winner"
        enough = SHARE * forecast.total(1) if free else both
        raise UsageError(problem, f"--time {duration_text(round_up(enough))}")
    return prepared, forecast._asdict()


def new_study(prepared: Plan, what: dict[str, Any], output: str | Path, name: str) -> tuple[RunFolder, Asked]:
    """Begin a study: a new folder with the base configuration and what was asked for.

    Args:
        what: `space`, `trials`, `time` in s and `prune` of `Asked`, and the forecast of a run where there is a time.

    Raises:
        UsageError: no setting is left to search, or a grid of too many trials.
    """
    config, train = prepared.config, prepared.config.train
    domains = what["space"] = what["space"] or default_space(prepared)
    if not domains:
        raise UsageError("nothing to search: every setting is fixed", "leave some out, or name --space")
    if SEED in domains and (count := math.prod(len(domain.split(",")) for domain in domains.values())) > MOST:
        raise UsageError(f"{count:,} trials, more than {MOST:,}", "fewer values or seeds")
    if what["trials"] is None and what["time"] is None and SEED not in domains:
        what["trials"] = USUAL
    epochs = domains.get("train.epochs", str(train.epochs))  # Hyperband counts to the most
    asked = Asked(
        planned={place: value_of(config, place) for place in domains},
        seed=train.seed,
        metric=train.monitor,
        epochs=max(int(part) for part in epochs.replace("..", ",").split(",")),
        data=prepared.splits.digest,
        **what,
    )
    folder = RunFolder.create(output, name)
    write_text(folder.path / BASE, plan_yaml(prepared, folder.path))
    write_json(folder.tune, asked.to_dict())  # last: a folder with it is complete
    return folder, asked


def resumed_study(folder: RunFolder, trials: int | None, seconds: float | None) -> tuple[RunFolder, Asked]:
    """Open a study again, with more trials or time.

    Raises:
        UsageError: its winner is chosen already. DataError: other images, labels or splits.
    """
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


def lead(state: Trials, parallel: int, devices: int | None) -> TuningStudy:
    """Train all trials, then the winner once more, and write what was found."""
    folder, asked = state.folder, state.asked
    many = "trials" if state.most is None else counted(state.most, "trial")
    limit = "" if asked.time is None else f" in {duration_text(asked.time)}"
    say(f"{many}{limit} of at most {counted(asked.epochs, 'epoch')} in {folder.path}; they search:")
    for setting, domain in asked.space.items():
        say(f"  {setting} {domain}, planned {as_text(asked.planned[setting])}")
    with local(folder, parallel, devices=devices, logged=True) as executor:
        state.work(executor, parallel)
    study = _chosen(state)
    best = study.of(study.best)
    sets = [*as_sets(best.values), f"train.seed={max([asked.seed, *asked.seeds]) + 1}"]
    left = {} if asked.time is None else {"time": max(asked.time - state.clock.seconds(), state.reserve)}
    title = f"trial {best.number} is the best on validation; its settings once more, with another seed"
    job = Job(REFIT, title, {"config": folder.path / BASE, "sets": sets, "offline": asked.offline, **left})
    with local(folder, 1, devices=devices) as executor:
        run = executor.submit(job).result()
    assert run is not None
    val, test = state.estimate(run, "val"), state.estimate(run, "test")
    study = study.model_copy(update={"refit_val": val, "test": test})
    study = study.model_copy(update={"notes": _notes(study)})
    changed = [f"#   {p} {as_text(v)}  (planned: {as_text(asked.planned[p])})" for p, v in study.changed.items()]
    tuned = store_paths(load_config(folder.path / BASE, None, as_sets(study.changed)), folder.path)
    than = "# The plan, except for:" if changed else "# The plan: no other trial was better."
    lines = [f"# vitmed tune: trial {best.number} of {folder.path.resolve().name}", than, *changed]
    write_text(folder.tuned, "\n".join(lines) + "\n" + tuned.to_yaml())
    write_text(folder.path / TABLE, _table(study))
    write_bytes(folder.path / HISTORY, png(history_figure(study)))
    for note in study.notes:
        say(note)
    say(f"to train with these settings: vitmed train DIR --config {folder.tuned}")
    return study


def _chosen(state: Trials) -> TuningStudy:
    """The trials, their combinations and the winner. Raises DataError where no trial ended well."""
    asked, higher, optimism = state.asked, state.metric.higher_is_better, None
    trials = [state.result(number) for number in range(len(state.files))]
    if not any(t.value is not None and (t.state == "done" or not asked.seeds) for t in trials):
        reasons = listed(sorted({trial.reason for trial in trials if trial.reason}), 3, "; ")
        raise DataError(f"{state.folder.path}: no trial ended well: {reasons}", "mend that and start a new study")
    combinations = trials
    if asked.seeds:
        done = {t.number: state.folder.path / str(t.run) for t in trials if t.state == "done"}
        found = {number: read_evaluation(run / "val" / PREDICTIONS).predictions for number, run in done.items()}
        kind = TARGETS[next(iter(found.values())).kind]
        combinations, optimism = combined(trials, found, kind, asked.metric, higher)
    pool = [one for one in combinations if one.value is not None]
    pool = [one for one in pool if one.state == "done"] or [one for one in pool if one.reason] or pool
    best = max(pool, key=lambda one: ((one.value or 0.0) * (1 if higher else -1), -one.number))
    planned = {place: as_text(value) for place, value in asked.planned.items() if place != SEED}
    changed = {place: value for place, value in best.values.items() if as_text(value) != planned[place]}
    plan = [one.number for one in combinations if {p: as_text(v) for p, v in one.values.items()} == planned]
    plan = plan if asked.seeds else [1][: len(state.queue)]
    return TuningStudy(
        metric=asked.metric,
        title=state.metric.title,
        higher=higher,
        epochs=asked.epochs,
        seeds=asked.seeds,
        trials=trials,
        combinations=combinations,
        best=best.number,
        changed=changed,
        optimism=optimism,
        plan=next(iter(plan), None),
        importance=state.importance(),
    )


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
        notes.append(f"On the test, evaluated once: {title} {value_text(study.test)}.")
    if study.importance:
        shares = [f"{place} {share:.0%}" for place, share in sorted(study.importance.items(), key=lambda one: -one[1])]
        notes.append(f"Share of the variance between finished trials that each setting explains: {', '.join(shares)}.")
    if stopped := [trial for trial in study.trials if trial.state == "stopped"]:
        used, most = sum(trial.epochs for trial in study.trials), study.epochs * len(study.trials)
        notes.append(f"{counted(len(stopped), 'trial')} stopped early: {used:,} of {most:,} epochs were trained.")
    if failed := [trial.reason for trial in study.trials if trial.state == "failed"]:
        notes.append(f"{counted(len(failed), 'trial')} failed: {listed(sorted(set(failed)), 3, '; ')}")
    return notes


def _table(study: TuningStudy) -> str:
    """trials.csv: a row for each trial, in a grid with what its combination reached over all seeds."""
    rows = []
    for trial in study.trials:
        row: dict[str, Any] = {"trial": trial.number, "state": trial.state, **trial.values, study.metric: trial.value}
        row |= {end: trial.estimate and trial.estimate[end] for end in ("low", "high")}
        row |= {"epochs": trial.epochs, "seconds": trial.seconds, "run": trial.run, "reason": trial.reason}
        if study.seeds:
            one = next(one for one in study.combinations if trial.number in one.trials)
            row |= {"mean_over_seeds": one.value, "sd_over_seeds": one.sd}
            row |= {f"mean_{end}": one.estimate and one.estimate[end] for end in ("low", "high")}
        rows.append(row)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
