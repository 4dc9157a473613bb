"""A search over settings: what it is asked for, by default around the plan of a training; its trials, the winner once
more, and what must be known before it is believed.

`trial-0001.json` holds the settings of a trial and why it ended early, `trial-0001/` is its run. Optuna, in memory,
suggests and stops; on --resume it gets all trials again, in their order.
"""

import contextlib
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args

from vitmed.core import errors
from vitmed.core.base_models import Frozen, fields_of
from vitmed.core.config import FLAGS, Config
from vitmed.core.errors import CheckpointError, DataError, UsageError, excluded
from vitmed.core.files import read_json_lines, write_bytes, write_json, write_text
from vitmed.core.load_config import load_config, store_paths, with_values
from vitmed.core.messages import Silent, listener, say
from vitmed.core.places import check_run_place
from vitmed.core.run_folder import NUMBERS, PREDICTIONS, RunFolder
from vitmed.core.text import counted, duration_text, first_line, listed, quoted, round_up
from vitmed.core.text_files import csv_text
from vitmed.core.upgrade import READER
from vitmed.decisions.evaluation_folder import read_evaluation, read_metrics
from vitmed.decisions.targets import ALL_METRICS, TARGETS
from vitmed.metrics.estimates import Estimate, value_text
from vitmed.metrics.tuning_study import SEED, TrialResult, TuningStudy, combined
from vitmed.report.plots.curves import history_figure
from vitmed.report.plots.drawing import png
from vitmed.report.results import Results
from vitmed.studies.cluster import HERE, Places
from vitmed.studies.one_run import default_name
from vitmed.studies.study import Job, OnEpoch, Study, check_same_data, read_study, workers
from vitmed.training.plan.make_plan import LAST_KEPT, make_plan, plan_yaml
from vitmed.training.plan.rules import fields_set
from vitmed.training.plan.time import Clock
from vitmed.training.trackers import check_trackers
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

USUAL, MOST = 20, 1000  # trials
SHARE = 6  # a run takes at most this part of --time
NEW = "start a new study with vitmed tune"
BASE, REFIT = "base.yaml", "winner"  # the plan of all trials, and the run of the best one once more


class Asked(Frozen):
    """What tune.json holds."""

    space: dict[str, str]  # "section.field" -> "LOW..HIGH" or "A,B,C"
    planned: dict[str, Any]  # the plan's values of these settings
    trials: int | None
    time: float | None  # of the whole command, s
    prune: bool
    seed: int
    offline: bool
    metric: str  # of validation, which decides
    epochs: int  # of a trial that is not stopped
    data: str  # the digest of the splits
    before: float = 0.0  # the forecast of a run, s; 0 without `time`
    one_pass: float = 0.0
    after: float = 0.0

    @property
    def seeds(self) -> list[int]:
        """The seeds of a grid, in which they are an axis; else none."""
        return [int(seed) for seed in self.space[SEED].split(",")] if SEED in self.space else []

    @property
    def queue(self) -> list[dict[str, Any]]:
        """The values of the first trials: the plan's own, if the space contains them. For a grid: every combination,
        seed by seed, so that a stopped study knows something of each."""
        if self.seeds:
            values = itertools.product(*(domain.split(",") for domain in self.space.values()))  # the seed is the first
            return [dict(zip(self.space, combination, strict=True)) for combination in values]
        planned = {place: within(domain, self.planned[place]) for place, domain in self.space.items()}
        return [] if None in planned.values() else [planned]


def new_study(
    settings: Config, plans: bool, processes: int, what: dict[str, Any], output: str | Path, name: str | None
) -> tuple[RunFolder, Asked]:
    """Begin a study: a new folder with the plan of all trials, of as many epochs as fit `SHARE` times into the time.

    Args:
        plans: as of `make_plan`; processes: of each training.
        what: `space`, `trials`, `time` in s, `prune` and `offline` of `Asked`.

    Raises:
        UsageError: settings that do not go with a search, too little time for a trial and the winner, no setting left
            to search, or a grid of too many trials.
    """
    check_run_place(settings, output, name)
    if settings.data.divided or settings.train.freeze or not settings.train.test:
        raise excluded("choices of tune")
    check_trackers(settings.train.track)
    prepared = make_plan(settings, plans, processes)
    if (seconds := what["time"]) is not None:
        forecast = prepared.forecaster.of(prepared.config)
        free = plans and "epochs" not in fields_set(settings, "train")
        if free and 1 <= (passes := int(forecast.passes_in(seconds / SHARE))) < prepared.config.train.epochs:
            model = prepared.given.model
            chosen = {f"model.{name}": getattr(model, name) for name in ("weights", "weights_sha256", "weights_reason")}
            prepared = make_plan(with_values(settings, {"train.epochs": passes, **chosen}), plans, processes)
        both = 2 * forecast.total(prepared.config.train.epochs)
        if both > seconds:
            problem = f"--time {duration_text(seconds)} is too short for a trial and the training of the winner"
            enough = round_up(SHARE * forecast.total(1) if free else both)
            raise UsageError(problem, f"--time {duration_text(enough)}")
        what |= forecast._asdict()
    config, train, kind = prepared.config, prepared.config.train, TARGETS[prepared.splits.target.kind]
    if not what["space"]:  # a range around the planned value of each setting of `AROUND` that you did not set
        parts = ("train", "model", "augment")
        fixed = {*kind.idle, *(f"{part}.{name}" for part in parts for name in fields_set(prepared.given, part))}
        fixed |= {"train.layer_decay"} if prepared.weights is None else set()
        what["space"] = {place: AROUND[place](attrgetter(place)(config)) for place in AROUND if place not in fixed}
    if not (domains := what["space"]):
        raise UsageError("nothing to search: every setting is fixed", "leave some out, or name --space")
    if unused := [place for place in domains if place in kind.idle]:
        raise UsageError(f"{unused[0]}: changes nothing for these labels", "leave it out of the search")
    if "train.patience" in domains and "train.choose" not in domains and train.choose == "last":
        raise UsageError(LAST_KEPT.format("patience", domains["train.patience"]), "do so, or search other settings")
    if SEED in domains and (count := math.prod(len(domain.split(",")) for domain in domains.values())) > MOST:
        raise UsageError(f"{count:,} trials, more than {MOST:,}", "fewer values or seeds")
    if what["trials"] is None and what["time"] is None and SEED not in domains:
        what["trials"] = USUAL
    epochs = domains.get("train.epochs", str(train.epochs))  # Hyperband counts to the most
    asked = Asked(
        planned={place: attrgetter(place)(config) for place in domains},
        seed=train.seed,
        metric=train.monitor,
        epochs=max(int(part) for part in epochs.replace("..", ",").split(",")),
        data=prepared.splits.digest,
        **what,
    )
    folder = RunFolder.create(output, name or f"{default_name(prepared.splits.root, config)}_tune")
    write_text(folder.path / BASE, plan_yaml(prepared, folder.path))
    write_json(folder.tune, asked.to_dict())  # last: a folder with it is complete
    return folder, asked


def resumed_study(folder: RunFolder, trials: int | None, seconds: float | None) -> tuple[RunFolder, Asked]:
    """Open a study again, with more trials or time. Raises UsageError: its winner is chosen already. DataError: other
    images, labels or splits. CheckpointError: no tune.json, a damaged one, or a study of an earlier version."""
    if any((folder.path / old).is_file() for old in ("journal.log", "sweep.json")):
        raise CheckpointError(f"{folder.path}: a study of vitmed {READER}, which alone can continue it", NEW)
    if not folder.tune.is_file():
        raise CheckpointError(f"{folder.path}: holds no study of vitmed tune", "name the folder that it made")
    asked, more = read_study(folder.tune, Asked, NEW), {"trials": trials, "time": seconds}
    check_same_data(load_config(folder.path / BASE), asked.data, folder)
    if more := {key: value for key, value in more.items() if value is not None}:
        if Job(REFIT, "").attempts(folder):
            raise UsageError(f"{folder.path}: its winner is chosen, and trained once more", "start a new study")
        if trials is not None and asked.seeds:
            raise UsageError(f"--trials {trials}: a grid has all its combinations", "leave it out")
        asked = asked.model_copy(update=more)
        write_json(folder.tune, asked.to_dict())
    return folder, asked


def read_space(
    texts: Sequence[str], sets: Sequence[str] = (), flag: str = "--space", own: Mapping[str, Any] | None = None
) -> Space:
    """Read {"train.lr": "1e-5..1e-3"} from "lr=1e-5..1e-3" or "train.lr=1e-5..1e-3".

    Args:
        sets: hold for all trials; of a setting that is searched, the planned value.
        flag: --space; or --grid or --seeds, which have no ranges.
        own: settings that were given with flags, by place, None for those that were not.

    Raises:
        UsageError: another form, an unknown setting, or a value that it cannot have.
    """
    space: Space = {}
    planned, chosen = load_config(None, None, sets), {text.partition("=")[0].strip() for text in sets}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        place = FLAGS.get(key.removeprefix("--").replace("-", "_"), key)
        dots, mark = ".." in values, ".." if ".." in values else ","
        parts = [part.strip() for part in values.split(mark)]
        numbers = [float(part) for part in parts if NUMBER.fullmatch(part)]
        if not equals or not all(parts) or (dots and (not len(parts) == len(numbers) == 2 or flag != "--space")):
            what, example = "a range, or its values", "--space train.lr=1e-5..1e-3 or --space model.width=64,128"
            if flag != "--space":
                what, example = "its values", "--grid model.heads=2,4,8 --seeds 0,1,2"
            raise UsageError(f"{flag} {text}: expected a setting and {what}", example)
        if (place.startswith(("data.", "evaluate.")) or place in FIXED) and flag != "--seeds":
            raise UsageError(f"{flag} {text}: all trials share images, splits and evaluation", "leave it out")
        if (own or {}).get(place) is not None:
            raise UsageError(f"{flag} {text}: {place} is set too, for all trials", "leave one of the two out")
        read = [attrgetter(place)(load_config(None, None, [*sets, f"{place}={value}"])) for value in parts]
        same = any(a == b for a, b in itertools.combinations(read, 2))  # also 1 and 01, 0.001 and 1e-3
        if place in space or same or (dots and numbers[0] >= numbers[1]):
            raise UsageError(f"{flag} {text}: expected different values in order, each setting once", "correct it")
        if dots and not _kinds(place) & {int, float}:
            raise UsageError(f"{flag} {text}: a range is for numbers", f"{flag} {place}=A,B")
        space[place] = mark.join(parts)
        if place in chosen and within(space[place], value := attrgetter(place)(planned)) is None:
            raise UsageError(f"{flag} {text}: --set {place}={value} is not among them", "leave one of the two out")
    return space


def _kinds(place: str) -> set[Any]:
    section, _, name = place.partition(".")
    annotation = fields_of(Config, section)[name].annotation
    return {annotation, *get_args(annotation)}


def within(domain: str, value: Any) -> Any:
    """The value as the domain writes it (a choice as text); None if the domain does not contain it."""
    low, dots, high = domain.partition("..")
    if dots:
        return value if isinstance(value, int | float) and float(low) <= value <= float(high) else None
    return next((text for text in domain.split(",") if alike(text, value)), None)


def alike(a: Any, b: Any) -> bool:
    """Whether two values are the same in --set: "0" and 0.0, "true" and True, "null" and None."""
    texts = ["none" if value == "null" else as_text(value) for value in (a, b)]
    return texts[0] == texts[1] or (all(map(NUMBER.fullmatch, texts)) and float(texts[0]) == float(texts[1]))


def as_text(value: Any) -> str:
    """Write a value as in --set."""
    return str(value).lower() if isinstance(value, bool) or value is None else f"{value}"


def suggest(trial: Any, space: Mapping[str, str]) -> dict[str, Any]:
    """Suggest the values of an Optuna trial: those that it has, and new ones for the rest."""
    values: dict[str, Any] = {}
    for place, domain in space.items():
        low, dots, high = domain.partition("..")
        if not dots:
            values[place] = trial.suggest_categorical(place, domain.split(","))
            continue
        suggest_in, number = (trial.suggest_float, float) if float in _kinds(place) else (trial.suggest_int, int)
        log = float(low) > 0 and float(high) >= APART * float(low)
        values[place] = suggest_in(place, number(low), number(high), log=log)
    return values


def as_sets(values: Mapping[str, Any]) -> list[str]:
    """Write the values of a trial as "section.field=value", numbers with three digits."""
    return [f"{place}={f'{value:.3g}' if isinstance(value, float) else value}" for place, value in values.items()]


# --- the trials

NAME = "tune"  # of the study in Optuna, by which Hyperband deals the trials
TABLE, HISTORY = "trials.csv", "history.png"
QUICK = ("train.test=false", "train.baseline=false", "evaluate.report=false", "evaluate.map_images=0")
REDUCTION = 3  # Hyperband keeps one of so many trials
RUNGS = REDUCTION**2  # the first look at a trial is after one of so many parts of its epochs
STARTUP = 5  # trials at random, before the tree-structured Parzen estimator has something to learn from
ENDING = (errors.Interrupted, DataError, errors.DiskFullError)  # would end every trial
STARTS = 3  # of a trial without a new epoch, before it is given up


class TrialFile(Frozen):
    """What is known of a trial beside its run."""

    values: dict[str, Any]
    state: Literal["", "stopped", "failed"] = ""  # of one that ended early
    reason: str = ""
    starts: list[int] = []  # the epochs that it had at each start without an end
    spent: float = 0.0  # seconds of the whole command so far


@dataclass(frozen=True)
class TuneResult:
    """The folder of a study, and what it found."""

    folder: Path
    study: TuningStudy


class Search(Study[TuningStudy]):
    """The trials of a study, also in memory for Optuna."""

    command = "tune"

    def __init__(self, optuna: Any, folder: RunFolder, asked: Asked, clock: Clock, places: Places = HERE) -> None:
        self.optuna, self.folder, self.asked, self.clock, self.places = optuna, folder, asked, clock, places
        self.data = asked.data
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

    def begin(self) -> None:
        """As `Study.begin`; says what is searched. Raises CheckpointError for a damaged file of a trial."""
        folder, asked = self.folder, self.asked
        while (path := self._path(number := len(self.files))).is_file():
            try:
                trial = self._ask(file := TrialFile.model_validate_json(path.read_bytes()))
            except ValueError:
                raise CheckpointError(f"{path}: cannot be read", NEW) from None
            records, most = self._records(number), int(file.values.get("train.epochs", asked.epochs))
            poor = [self._look(trial, record) for record in records]
            if not file.state and poor[-1:] == [True] and len(records) < most:
                self._note(number, state="stopped", spent=file.spent)  # the command was killed before it did
            elif not file.state and file.starts.count(len(records)) >= STARTS:
                reason = f"its process ended {STARTS} times, perhaps for lack of memory"
                self._note(number, state="failed", reason=reason, spent=file.spent)
            if self.files[number].state or self.result(number).value is not None:
                self._tell(number)
        self.clock.began -= max((file.spent for file in self.files), default=0)
        many = "trials" if self.most is None else counted(self.most, "trial")
        limit = "" if asked.time is None else f" in {duration_text(asked.time)}"
        say(f"{many}{limit} of at most {counted(asked.epochs, 'epoch')} in {folder.path}; they search:")
        for setting, domain in asked.space.items():
            say(f"  {setting} {domain}, planned {as_text(asked.planned[setting])}")

    @property
    def settings(self) -> Config:
        return load_config(self.folder.path / BASE)

    def _path(self, number: int) -> Path:
        return self.folder.path / f"trial-{number + 1:04d}.json"

    def _job(self, number: int) -> Job:
        sets = (*as_sets(self.files[number].values), *QUICK)
        arguments = {"config": self.folder.path / BASE, "sets": sets, "offline": self.asked.offline}
        return Job(self._path(number).stem, f"trial {number + 1}", arguments, "val")

    def number(self, job: Job) -> int:
        return int(job.name.rpartition("-")[2]) - 1

    def _records(self, number: int) -> list[Record]:
        runs = self._job(number).attempts(self.folder)
        return read_json_lines(runs[-1].metrics) if runs else []

    def _note(self, number: int, **values: Any) -> None:
        self.files[number] = self.files[number].model_copy(update={"spent": self.clock.seconds(), **values})
        write_json(self._path(number), self.files[number].model_dump())

    def _ask(self, file: TrialFile | None = None) -> Any:
        """The next trial, with known values or new ones: a function of the seed, its number and the results so far."""
        number = len(self.files)
        seed = (self.asked.seed * 10_000 + number) % 2**32  # NumPy takes no larger one
        self.study.sampler = self.optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=STARTUP, multivariate=True, constant_liar=True
        )
        if file is not None or number < len(self.queue):
            self.study.enqueue_trial(self.queue[number] if file is None else file.values)
        trial = self.open[number] = self.study.ask()
        values = suggest(trial, self.asked.space)
        self.files.append((file or TrialFile(values={})).model_copy(update={"values": values}))
        return trial

    def _look(self, trial: Any, record: Record) -> bool:
        """Report an epoch to Optuna: whether it would end the trial. It never ends one of the queue."""
        value = record.get(f"val_{self.asked.metric}")
        if record["epoch"] not in self.study.trials[trial.number].intermediate_values:  # it is, where repeated
            trial.report(math.nan if value is None else value, record["epoch"])
        return trial.number >= len(self.queue) and bool(trial.should_prune())

    def _tell(self, number: int) -> None:
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

    def jobs(self) -> Iterator[Job]:
        """As `Study.jobs`: until there are enough trials, or the time is used."""
        waiting = list(self.open)
        while waiting or not self.late:
            if not waiting and self.most is not None and len(self.files) >= self.most:
                return
            number = waiting.pop(0) if waiting else self._ask().number
            self._note(number, starts=[*self.files[number].starts, len(self._records(number))])
            yield self._job(number)

    @contextlib.contextmanager
    def watch(self, job: Job) -> Iterator[OnEpoch]:
        """As `Study.watch`: a trial ends early where Optuna says so, or the time is used."""
        number, ends = self.number(job), list[tuple[int, float]]()
        most = int(self.files[number].values.get("train.epochs", self.asked.epochs))

        def on_epoch(record: Record) -> bool:
            epoch, now = record["epoch"], time.monotonic()
            ends.append((epoch, now))
            if epoch > (first := ends[0])[0]:  # what precedes the end of the first is mostly the start of the run
                self.pace = max(self.pace, (now - first[1]) / (epoch - first[0]))
            advance(epoch, most)
            poor, late = self._look(self.open[number], record), self.late and epoch < most
            if late or self.asked.time is not None:
                self._note(number, reason="the time was used" if late else "")
            return late or (poor and epoch < most)

        with (listener() if self.places.runs == 1 else Silent()).bar(job.title, "epochs") as advance:
            yield on_epoch

    def ended(self, job: Job, run: Future[RunFolder | None]) -> None:
        """Note and say how a trial ended. Raises what would end every trial."""
        number, error = self.number(job), run.exception()
        if isinstance(error, errors.EndedByCaller):
            self._note(number, state="stopped")
        elif isinstance(error, errors.VitmedError) and not isinstance(error, ENDING):
            several = "\n" in error.problem  # such as the files of a batch, which are in the log
            self._note(number, state="failed", reason=first_line(error.problem).rstrip(":") if several else error.line)
        else:
            run.result()
            if self.result(number).value is None:
                self._note(number, state="failed", reason=f"validation {self.asked.metric} is undefined")
        self._tell(number)
        trial, of = self.result(number), "" if self.most is None else f" of {self.most}"
        value = "undefined" if trial.value is None else f"{trial.value:.3f}"
        most = trial.values.get("train.epochs", self.asked.epochs)
        ended = f"stopped after epoch {trial.epochs} of {most}" if trial.state == "stopped" else ""
        text = f"{self.metric.title} {value}, {ended or counted(trial.epochs, 'epoch')}, {trial.seconds:,.0f} s"
        text = f"failed: {trial.reason}" if trial.state == "failed" else text
        say(f"trial {trial.number}{of}: {text}; {', '.join(as_sets(trial.values))}")

    def interrupted(self) -> None:
        """As `Study.interrupted`, which says nothing about the trials under way."""
        for number in self.open:
            self._note(number, starts=self.files[number].starts[:-1])

    def estimate(self, run: RunFolder, split: str) -> Estimate:
        """Read the metric of an evaluated run with its interval; a metric of epochs alone has none."""
        overall = Results.read(read_metrics(run.path / split / NUMBERS)).overall
        if self.asked.metric in overall:
            return overall[self.asked.metric]
        kept = [record for record in read_json_lines(run.metrics) if record["kept"]]
        value = kept[-1].get(f"val_{self.asked.metric}") if kept and split == "val" else None
        return Estimate(value=value, low=None, high=None)

    def result(self, number: int) -> TrialResult:
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

    def finish(self) -> TuningStudy:
        """As `Study.finish`: train the winner once more, and write what was found."""
        folder, asked = self.folder, self.asked
        study = self.chosen()
        best = study.of(study.best)
        sets = [*as_sets(best.values), f"train.seed={max([asked.seed, *asked.seeds]) + 1}"]
        left = {} if asked.time is None else {"time": max(asked.time - self.clock.seconds(), self.reserve)}
        title = f"trial {best.number} is the best on validation; its settings once more, with another seed"
        job = Job(REFIT, title, {"config": folder.path / BASE, "sets": sets, "offline": asked.offline, **left})
        check_same_data(self.settings, self.data, folder)
        with workers(folder, self.places._replace(runs=1, logged=False)) as executor:
            run = executor.submit(job).result()
        assert run is not None
        study = study.model_copy(update={"refit_val": self.estimate(run, "val"), "test": self.estimate(run, "test")})
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
        say(f"to train with these settings: vitmed train DIR --config {quoted(folder.tuned)}")
        return study

    def chosen(self) -> TuningStudy:
        """Choose the winner of the trials and their combinations. Raises DataError where no trial ended well."""
        asked, higher = self.asked, self.metric.higher_is_better
        trials = [self.result(number) for number in range(len(self.files))]
        if not any(t.value is not None and (t.state == "done" or not asked.seeds) for t in trials):
            reasons = listed(sorted({trial.reason for trial in trials if trial.reason}), 3, "; ")
            raise DataError(f"{self.folder.path}: no trial ended well: {reasons}", "mend that and start a new study")
        combinations = trials
        if asked.seeds:
            done = {t.number: self.folder.path / str(t.run) for t in trials if t.state == "done"}
            by_trial = {n: read_evaluation(run / "val" / PREDICTIONS).predictions for n, run in done.items()}
            kind = TARGETS[next(iter(by_trial.values())).kind]
            combinations = combined(trials, by_trial, kind, asked.metric, higher)
        pool = [trial for trial in combinations if trial.value is not None]
        pool = [trial for trial in pool if trial.state == "done"] or [trial for trial in pool if trial.reason] or pool
        ended = {one.number: sum(trials[n - 1].state == "done" for n in one.trials) for one in pool}  # of its seeds
        pool = [one for one in pool if ended[one.number] == max(ended.values())]  # a mean of fewer may be luck
        best = max(pool, key=lambda trial: ((trial.value or 0.0) * (1 if higher else -1), -trial.number))
        planned = {place: value for place, value in asked.planned.items() if place != SEED}
        plan = [t.number for t in combinations if all(alike(t.values.get(p), value) for p, value in planned.items())]
        plan = plan if asked.seeds else [1][: len(self.queue)]  # whose numbers have three digits, and the plan's more
        differ = {place: value for place, value in best.values.items() if not alike(value, planned[place])}
        changed = {} if best.number in plan else differ
        return TuningStudy(
            metric=asked.metric,
            title=self.metric.title,
            higher=higher,
            epochs=asked.epochs,
            seeds=asked.seeds,
            trials=trials,
            combinations=combinations,
            best=best.number,
            changed=changed,
            plan=next(iter(plan), None),
        )


def _notes(study: TuningStudy) -> list[str]:
    """What must be known of the winner before its numbers are believed."""
    best, title, val = study.of(study.best), study.title, study.refit_val
    many = counted(len(study.combinations), "combination" if study.seeds else "trial")
    planned = None if study.plan is None else study.of(study.plan).value
    notes = [f"best of {many} on validation: trial {best.number}, {title} {best.value:.3f}"]
    if planned is not None:
        notes[0] += "; these are the plan's settings" if best.number == study.plan else f"; the plan's: {planned:.3f}"
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
    if stopped := [trial for trial in study.trials if trial.state == "stopped"]:
        each = [(trial.epochs, int(trial.values.get("train.epochs", study.epochs))) for trial in study.trials]
        used, most = map(sum, zip(*each, strict=True))
        notes.append(f"{counted(len(stopped), 'trial')} stopped early: {used:,} of {most:,} epochs were trained.")
        if study.metric != "auroc":
            notes.append(f"The {title} of a stopped trial is that of its last epoch, before calibration.")
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
            same = next(same for same in study.combinations if trial.number in same.trials)
            row |= {"mean_over_seeds": same.value, "sd_over_seeds": same.sd}
            row |= {f"mean_{end}": same.estimate and same.estimate[end] for end in ("low", "high")}
        rows.append(row)
    cells = [[row[name] for name in rows[0]] for row in rows]
    return csv_text([list(rows[0]), *(["" if cell is None else cell for cell in row] for row in cells)])
