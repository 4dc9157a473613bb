"""The trials of `vitmed tune`, and the settings that they search: by default those of the plan, in a range around it.

`trial-0001.json` holds the settings of a trial and why it ended early, `trial-0001/` is its run. Optuna, in memory,
suggests and stops; on --resume it gets all trials again, in their order.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, Literal, get_args

from vitmed.core.base_models import Frozen
from vitmed.core.config import FLAGS, Config
from vitmed.core.errors import (
    CheckpointError,
    DataError,
    DiskFullError,
    EndedByCaller,
    Interrupted,
    UsageError,
    VitmedError,
)
from vitmed.core.files import read_json_lines, write_json
from vitmed.core.load_config import load_config
from vitmed.core.messages import Advance, Silent, listener, say
from vitmed.core.run_folder import NUMBERS, RunFolder
from vitmed.core.settings import fields_of
from vitmed.core.text import first_line
from vitmed.core.upgrade import READER
from vitmed.decisions.evaluation_folder import read_metrics
from vitmed.decisions.targets import ALL_METRICS
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.tuning_study import SEED, TrialResult
from vitmed.report.results import Results
from vitmed.studies.executors import Executor, Job, OnEpoch
from vitmed.training.learning import LEARNING
from vitmed.training.plan.make_plan import Plan
from vitmed.training.plan.rules import fields_set
from vitmed.training.plan.time_budget import Clock
from vitmed.training.train_state import Record

APART = 10  # a range whose ends are so many times apart is searched on a logarithmic scale
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
FIXED = ("train.seed", "train.test", "train.time", "train.monitor")
Space = dict[str, str]  # "section.field" -> "LOW..HIGH" or "A,B,C"
AROUND: dict[str, Callable[[float], str]] = {  # the epochs are what the trials spend, and are not searched
    "train.lr": lambda value: f"{value / 5:.3g}..{value * 5:.3g}",
    "train.weight_decay": lambda value: f"{max(value / 10, 0.001):.3g}..{max(value * 10, 0.1):.3g}",
    "train.layer_decay": lambda value: f"{max(0.3, value - 0.25):.3g}..1",
    "model.drop_path": lambda value: f"0..{max(0.2, 2 * value):.3g}",
    "augment.mixup": lambda value: f"0..{max(0.4, 2 * value):.3g}",
}

NAME = "tune"  # of the study in Optuna, by which Hyperband deals the trials
BASE = "base.yaml"
QUICK = ("train.test=false", "train.baseline=false", "evaluate.report=false", "evaluate.map_images=0")
REDUCTION = 3  # Hyperband keeps one of so many trials
RUNGS = REDUCTION**2  # the first look at a trial is after one of so many parts of its epochs
STARTUP = 5  # trials at random, before the tree-structured Parzen estimator has something to learn from
STARTS = 3  # of a trial without a new epoch, before it is given up
ENOUGH = 6  # finished trials, from which importance is estimated


class Asked(Frozen):
    """What tune.json holds.

    Attributes:
        space: "section.field" -> "LOW..HIGH" or "A,B,C"; planned: the plan's values of these settings.
        trials: how many, None without a limit; time: of the whole command, s.
        metric: of validation, which decides; epochs: of a trial that is not stopped; data: the digest of the splits.
        before, one_pass, after: the forecast of a run, s; 0 without `time`.
    """

    space: dict[str, str]
    planned: dict[str, Any]
    trials: int | None
    time: float | None
    prune: bool
    seed: int
    offline: bool
    metric: str
    epochs: int
    data: str
    before: float = 0.0
    one_pass: float = 0.0
    after: float = 0.0

    @classmethod
    def read(cls, folder: RunFolder) -> Asked:
        """Raises CheckpointError for a folder without a tune.json, a damaged one, or one of an earlier version."""
        fix = "start a new study with vitmed tune"
        if any((folder.path / old).is_file() for old in ("journal.log", "sweep.json")):
            raise CheckpointError(f"{folder.path}: a study of vitmed {READER}, which alone can continue it", fix)
        if not folder.tune.is_file():
            raise CheckpointError(f"{folder.path}: holds no study of vitmed tune", "name the folder that it made")
        try:
            return cls.model_validate_json(folder.tune.read_bytes())
        except (OSError, ValueError):
            raise CheckpointError(f"{folder.tune}: cannot be read", fix) from None

    @property
    def seeds(self) -> list[int]:
        """Of a grid, in which they are an axis."""
        return [int(seed) for seed in self.space[SEED].split(",")] if SEED in self.space else []

    @property
    def queue(self) -> list[dict[str, Any]]:
        """The values of the first trials: the plan's own, where the space has them; of a grid every combination, seed
        by seed, so that a stopped study knows something of each."""
        if self.seeds:
            values = itertools.product(*(domain.split(",") for domain in self.space.values()))  # the seed is the first
            return [dict(zip(self.space, one, strict=True)) for one in values]
        if not all(contains(domain, self.planned[place]) for place, domain in self.space.items()):
            return []
        return [{p: self.planned[p] if ".." in domain else str(self.planned[p]) for p, domain in self.space.items()}]


class TrialFile(Frozen):
    """What is known of a trial beside its run.

    Attributes:
        state, reason: of one that ended early; starts: the epochs that it had at each start without an end.
        spent: seconds of the whole command so far.
    """

    values: dict[str, Any]
    state: Literal["", "stopped", "failed"] = ""
    reason: str = ""
    starts: list[int] = []
    spent: float = 0.0


class Trials:
    """The trials of a study, also in memory for Optuna. Raises CheckpointError for a damaged file of a trial."""

    def __init__(self, optuna: Any, folder: RunFolder, asked: Asked, clock: Clock) -> None:
        self.optuna, self.folder, self.asked, self.clock = optuna, folder, asked, clock
        self.metric, self.pace, self.queue = ALL_METRICS[asked.metric], asked.one_pass, asked.queue
        self.most = len(self.queue) if asked.seeds else asked.trials
        pruner = optuna.pruners.NopPruner()
        if asked.prune:
            first = -(-asked.epochs // RUNGS)  # then the looks are at a ninth and a third, and none near the end
            pruner = optuna.pruners.HyperbandPruner(first, asked.epochs, REDUCTION)
        direction = "maximize" if self.metric.higher_is_better else "minimize"
        self.study = optuna.create_study(study_name=NAME, direction=direction, pruner=pruner)
        self.files: list[TrialFile] = []
        self.open: dict[int, Any] = {}  # trials that have begun and not ended
        while (path := self._path(number := len(self.files))).is_file():
            try:
                trial = self._ask(file := TrialFile.model_validate_json(path.read_bytes()))
            except ValueError:
                raise CheckpointError(f"{path}: cannot be read", "start a new study with vitmed tune") from None
            for record in (records := self._records(number)):
                self._look(trial, record)
            if not file.state and file.starts.count(len(records)) >= STARTS:
                reason = f"its process ended {STARTS} times, perhaps for lack of memory"
                self._note(number, state="failed", reason=reason)
            if self.files[number].state or self.result(number).value is not None:
                self._tell(number)
        clock.go_on(max((file.spent for file in self.files), default=0))

    def _path(self, number: int) -> Path:
        return self.folder.path / f"trial-{number + 1:04d}.json"

    def _job(self, number: int) -> Job:
        sets = (*as_sets(self.files[number].values), *QUICK)
        arguments = {"config": self.folder.path / BASE, "sets": sets, "offline": self.asked.offline}
        return Job(self._path(number).stem, f"trial {number + 1}", arguments, "val")

    def _records(self, number: int) -> list[Record]:
        runs = self._job(number).attempts(self.folder)
        return read_json_lines(runs[-1].metrics) if runs else []

    def _note(self, number: int, **values: Any) -> None:
        """Write what is known of a trial."""
        self.files[number] = self.files[number].model_copy(update={**values, "spent": self.clock.seconds()})
        write_json(self._path(number), self.files[number].model_dump())

    def _ask(self, file: TrialFile | None = None) -> Any:
        """The next trial, with known values or new ones: a function of the seed, its number and the results so far."""
        number = len(self.files)
        self.study.sampler = self.optuna.samplers.TPESampler(
            seed=self.asked.seed * 10_000 + number, n_startup_trials=STARTUP, multivariate=True, constant_liar=True
        )
        if file is not None or number < len(self.queue):
            self.study.enqueue_trial(self.queue[number] if file is None else file.values)
        trial = self.open[number] = self.study.ask()
        self.files.append(file or TrialFile(values={}))
        values = suggest(trial, self.asked.space)
        self.files[number] = self.files[number].model_copy(update={"values": values})
        return trial

    def _look(self, trial: Any, record: Record) -> bool:
        """Report an epoch to Optuna: whether it would end the trial. It never ends one of the queue."""
        value = record.get(f"val_{self.asked.metric}")
        if record["epoch"] not in self.study.trials[trial.number].intermediate_values:  # it is, where repeated
            trial.report(math.nan if value is None else value, record["epoch"])
        return trial.number >= len(self.queue) and bool(trial.should_prune())

    def _tell(self, number: int) -> None:
        """Tell Optuna how a trial ended."""
        states, state = self.optuna.trial.TrialState, self.files[number].state
        how = {"": states.COMPLETE, "stopped": states.PRUNED, "failed": states.FAIL}[state]
        self.study.tell(self.open.pop(number), None if state else self.result(number).value, state=how)

    @property
    def reserve(self) -> float:
        """Seconds that training the winner once more takes."""
        return self.asked.before + self.asked.epochs * self.pace + self.asked.after

    @property
    def late(self) -> bool:
        """Whether only the time to train the winner once more is left."""
        return self.asked.time is not None and self.clock.seconds() > self.asked.time - self.reserve

    def work(self, executor: Executor, parallel: int) -> None:
        """Train trials, `parallel` at a time, until there are enough or the time is used."""
        waiting, running = list(self.open), dict[int, Future[RunFolder | None]]()
        try:
            while True:
                while len(running) < parallel and (waiting or not self.late):
                    if not waiting and self.most is not None and len(self.files) >= self.most:
                        break
                    number = waiting.pop(0) if waiting else self._ask().number
                    self._note(number, starts=[*self.files[number].starts, len(self._records(number))])
                    with (listener() if parallel == 1 else Silent()).bar(f"trial {number + 1}", "epochs") as advance:
                        running[number] = executor.submit(self._job(number), self._watch(number, advance))
                if not running:
                    return
                wait(running.values(), return_when=FIRST_COMPLETED)
                for number in [number for number, future in running.items() if future.done()]:
                    self._end(number, running.pop(number))
        except (Interrupted, KeyboardInterrupt):  # which says nothing about the trials
            for number in self.open:
                self._note(number, starts=self.files[number].starts[:-1])
            raise

    def _watch(self, number: int, advance: Advance) -> OnEpoch:
        """What follows each epoch of a trial: whether it ends now."""
        began, first = time.monotonic(), list[int]()

        def watch(record: Record) -> bool:
            epoch = record["epoch"]
            first.append(epoch)
            self.pace = max(self.pace, (time.monotonic() - began) / (epoch - first[0] + 1))
            advance(epoch, self.asked.epochs)
            poor, late = self._look(self.open[number], record), self.late and epoch < self.asked.epochs
            if late or self.asked.time is not None:
                self._note(number, reason="the time was used" if late else "")
            return late or (poor and epoch < self.asked.epochs)

        return watch

    def _end(self, number: int, future: Future[RunFolder | None]) -> None:
        """Note and say how a trial ended."""
        error = future.exception()
        if isinstance(error, EndedByCaller):
            self._note(number, state="stopped")
        elif isinstance(error, VitmedError) and not isinstance(error, (Interrupted, DataError, DiskFullError)):
            several = "\n" in error.problem  # such as the files of a batch, which are in the log
            reason = first_line(error.problem).rstrip(":") if several else error.line
            self._note(number, state="failed", reason=reason)
        else:
            future.result()  # raises what is of every trial
            if self.result(number).value is None:
                self._note(number, state="failed", reason=f"validation {self.asked.metric} is undefined")
        self._tell(number)
        trial, of = self.result(number), "" if self.most is None else f" of {self.most}"
        value = "undefined" if trial.value is None else f"{trial.value:.3f}"
        ended = f"stopped after epoch {trial.epochs} of {self.asked.epochs}" if trial.state == "stopped" else ""
        text = f"{self.metric.title} {value}, {ended or f'{trial.epochs} epochs'}, {trial.seconds:,.0f} s"
        text = f"failed: {trial.reason}" if trial.state == "failed" else text
        say(f"trial {trial.number}{of}: {text}; {', '.join(as_sets(trial.values))}")

    def estimate(self, run: RunFolder, split: str) -> Estimate:
        """The metric of an evaluated run with its interval; a metric of epochs alone has none."""
        overall = Results.read(read_metrics(run.path / split / NUMBERS)).overall
        if self.asked.metric in overall:
            return overall[self.asked.metric]
        kept = [record for record in read_json_lines(run.metrics) if record["kept"]]
        value = kept[-1].get(f"val_{self.asked.metric}") if kept and split == "val" else None
        return Estimate(value=value, low=None, high=None)

    def result(self, number: int) -> TrialResult:
        """What a trial reached."""
        file, job, records = self.files[number], self._job(number), self._records(number)
        runs, run = job.attempts(self.folder), None if file.state else job.done(self.folder)
        estimate = None if run is None else self.estimate(run, "val")
        value = records[-1].get(f"val_{self.asked.metric}") if file.state == "stopped" and records else None
        return TrialResult(
            number=number + 1,
            trials=[number + 1],
            state=file.state or "done",
            estimate=estimate,
            values={k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in file.values.items()},
            value=value if estimate is None else estimate.value,
            epochs=len(records),
            reason=file.reason,
            seconds=sum(record["seconds"] for record in records),
            run=runs[-1].path.name if runs else None,
        )

    def importance(self) -> dict[str, float]:
        """Setting -> share of the variance of finished trials that it explains (fANOVA); {} for too few trials."""
        if sum(not file.state for file in self.files) < ENOUGH or len(self.asked.space) < 2:
            return {}
        how = self.optuna.importance.FanovaImportanceEvaluator(seed=0)
        try:
            found = self.optuna.importance.get_param_importances(self.study, evaluator=how)
        except (RuntimeError, ValueError):  # all trials are equal
            return {}
        return {place: float(share) for place, share in found.items() if math.isfinite(share)}


def read_space(texts: Sequence[str], sets: Sequence[str] = (), flag: str = "--space") -> Space:
    """{"train.lr": "1e-5..1e-3"} of "lr=1e-5..1e-3" or "train.lr=1e-5..1e-3".

    Args:
        sets: settings that hold for all trials, as in `load_config`.
        flag: of the texts: --space; or --grid or --seeds, which have no ranges.

    Raises:
        UsageError: another form, an unknown setting, or a value that it cannot have.
    """
    found: Space = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        place = FLAGS.get(key.removeprefix("--").replace("-", "_"), key)
        low, dots, high = values.partition("..")
        parts = [low, high] if dots else [part.strip() for part in values.split(",")]
        numbers = [float(part) for part in parts if NUMBER.fullmatch(part)]
        if not equals or not all(parts) or (dots and (len(numbers) < 2 or flag != "--space")):
            what, example = "a range, or its values", "--space train.lr=1e-5..1e-3 or --space model.width=64,128"
            if flag != "--space":
                what, example = "its values", "--grid model.heads=2,4,8 --seeds 0,1,2"
            raise UsageError(f"{flag} {text}: expected a setting and {what}", example)
        if (place.startswith(("data.", "evaluate.")) or place in FIXED) and flag != "--seeds":
            raise UsageError(f"{flag} {text}: all trials share images, splits and evaluation", "leave it out")
        if place in found or len(set(parts)) < len(parts) or (dots and numbers[0] >= numbers[1]):
            raise UsageError(f"{flag} {text}: expected different values in order, each setting once", "correct it")
        for value in parts:
            load_config(None, None, [*sets, f"{place}={value}"])
        if dots and not _kinds(place) & {int, float}:
            raise UsageError(f"{flag} {text}: a range is for numbers", f"{flag} {place}=A,B")
        found[place] = f"{low.strip()}..{high.strip()}" if dots else ",".join(parts)
    return found


def _kinds(place: str) -> set[Any]:
    """The types that a field may have."""
    section, _, name = place.partition(".")
    annotation = fields_of(Config, section)[name].annotation
    return {annotation, *get_args(annotation)}


def default_space(prepared: Plan) -> Space:
    """A range around the planned value of each setting of `AROUND` that you did not set."""
    config, given = prepared.config, prepared.given
    without = set() if LEARNING[prepared.splits.target.kind].mixes else {"augment.mixup"}
    if prepared.weights is None:
        without.add("train.layer_decay")
    return {
        place: around(value_of(config, place))
        for place, around in AROUND.items()
        if place not in without and place.partition(".")[2] not in fields_set(given, place.partition(".")[0])
    }


def value_of(config: Config, place: str) -> Any:
    """The value of "section.field"."""
    section, _, name = place.partition(".")
    return getattr(getattr(config, section), name)


def contains(domain: str, value: Any) -> bool:
    """Whether a range or a list of values has a value."""
    low, dots, high = domain.partition("..")
    if dots:
        return isinstance(value, int | float) and float(low) <= value <= float(high)
    return as_text(value) in domain.split(",")


def as_text(value: Any) -> str:
    """A value as in --set."""
    return str(value).lower() if isinstance(value, bool) or value is None else f"{value}"


def suggest(trial: Any, space: Mapping[str, str]) -> dict[str, Any]:
    """The values of an Optuna trial: those that it has, and new ones for the rest."""
    found: dict[str, Any] = {}
    for place, domain in space.items():
        low, dots, high = domain.partition("..")
        log = bool(dots) and float(low) > 0 and float(high) >= APART * float(low)
        if not dots:
            found[place] = trial.suggest_categorical(place, domain.split(","))
        elif float in _kinds(place):
            found[place] = trial.suggest_float(place, float(low), float(high), log=log)
        else:
            found[place] = trial.suggest_int(place, int(low), int(high), log=log)
    return found


def as_sets(values: Mapping[str, Any]) -> list[str]:
    """The values of a trial as "section.field=value", numbers with three digits."""
    return [f"{place}={f'{value:.3g}' if isinstance(value, float) else value}" for place, value in values.items()]
