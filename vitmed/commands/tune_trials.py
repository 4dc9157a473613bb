"""The trials of `vitmed tune`: Optuna chooses their settings and stops poor ones; each is a run folder.

What Optuna knows is in its journal, a file to which every process appends. A process claims a trial by a lock file, as
in `many_runs`. The trial of a process that ended, however it ended, is claimed by another process or on --resume, which
continues its run folder from last.pt.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from vitmed.commands.many_runs import PAUSE, Job, claimed
from vitmed.commands.sweep import BASE, QUICK, identity
from vitmed.commands.train import train
from vitmed.core.base_models import Frozen
from vitmed.core.errors import (
    CheckpointError,
    DataError,
    DiskFullError,
    EndedByCaller,
    Interrupted,
    UsageError,
    VitmedError,
)
from vitmed.core.files import not_written, read_json_lines
from vitmed.core.load_config import load_config
from vitmed.core.run_folder import NUMBERS, RunFolder
from vitmed.core.text import first_line, listed
from vitmed.core.ui import Advance, Logged, Ui
from vitmed.data.splits import make_splits
from vitmed.decisions.evaluation_folder import read_metrics
from vitmed.decisions.targets import ALL_METRICS
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.tuning_study import TrialResult
from vitmed.report.results import Results
from vitmed.training.search_space import as_sets, contains, suggest
from vitmed.training.time_budget import Clock
from vitmed.training.train_state import Record
from vitmed.training.training_run import EachEpoch

NAME = "tune"  # of the study in the journal
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
        metric: of validation, which decides; epochs: of a trial that is not stopped.
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
    before: float = 0.0
    one_pass: float = 0.0
    after: float = 0.0

    @classmethod
    def read(cls, folder: RunFolder) -> Asked:
        """Raises CheckpointError for a folder without a tune.json, or a damaged one."""
        if not folder.tune.is_file():
            raise CheckpointError(f"{folder.path}: holds no study of vitmed tune", "name the folder that it made")
        try:
            return cls.model_validate_json(folder.tune.read_bytes())
        except (OSError, ValueError):
            raise CheckpointError(f"{folder.tune}: cannot be read", "start again with vitmed tune") from None


def optuna_package() -> Any:
    """Raises UsageError where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise UsageError("vitmed tune needs one more package", "pip install 'vitmed[tune]'") from None
    return optuna


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Without Optuna's own lines on stderr."""
    log = optuna_package().logging
    before = log.get_verbosity()
    log.set_verbosity(log.ERROR)
    try:
        yield
    finally:
        log.set_verbosity(before)


class Trials:
    """The trials of a study, as this process sees them.

    Args:
        folder: of the study.
        new: the identity of the data, to begin the journal; None to go on with the one that is there.

    Raises:
        CheckpointError: a damaged journal. DataError: the journal is of other data.
    """

    def __init__(self, folder: RunFolder, asked: Asked, ui: Ui, new: str | None = None) -> None:
        self.optuna, self.folder, self.asked, self.ui = optuna_package(), folder, asked, ui
        self.metric, self.pace = ALL_METRICS[asked.metric], asked.one_pass
        self.said: set[int] = set()
        journal = self.optuna.storages.journal
        symlinks = {} if os.name != "nt" else {"lock_obj": journal.JournalFileOpenLock(str(folder.journal))}
        try:
            backend = journal.JournalFileBackend(str(folder.journal), **symlinks)
            storage = self.optuna.storages.JournalStorage(backend)
            self.study = self._begun(storage, new) if new is not None else self._found(storage)
        except (ValueError, KeyError, TypeError):
            fix = "start again with vitmed tune"
            raise CheckpointError(f"{folder.journal}: not the journal of a study of vitmed tune", fix) from None

    def _begun(self, storage: Any, identity_of_data: str) -> Any:
        """A new study, which first tries the plan's own values."""
        direction = "maximize" if self.metric.higher_is_better else "minimize"
        study = self.optuna.create_study(study_name=NAME, storage=storage, direction=direction)
        study.set_user_attr("data", identity_of_data)
        if self.has_plan:
            study.enqueue_trial(self._planned)
        return study

    def _found(self, storage: Any) -> Any:
        study = self.optuna.load_study(study_name=NAME, storage=storage)
        settings = load_config(self.folder.path / BASE)
        if identity(make_splits(settings.data, ordinal=settings.evaluate.ordinal)) != study.user_attrs["data"]:
            problem = (
                f"{settings.data.root}: other images, labels or splits than those that {self.folder.journal} is of"
            )
            raise DataError(problem, "restore them, or start a new study")
        for frozen in study.get_trials(deepcopy=False):
            if frozen.state.is_finished():
                self.said.add(frozen.number)
        return study

    @property
    def has_plan(self) -> bool:
        """Whether the space has the plan's values, which are then the first trial."""
        return all(contains(domain, self.asked.planned[place]) for place, domain in self.asked.space.items())

    @property
    def _planned(self) -> dict[str, Any]:
        listed_ = {place: ".." not in domain for place, domain in self.asked.space.items()}
        return {place: str(value) if listed_[place] else value for place, value in self.asked.planned.items()}

    # ---- time ----

    def start_clock(self, clock: Clock) -> None:
        """Begin, or go on with, the time of the command. A killed process counts until its last line in the journal."""
        known, now = self.study.user_attrs, time.time() - clock.seconds()
        spent = 0.0
        if "began" in known:
            spent = known["spent"] + max(0.0, self.folder.journal.stat().st_mtime - known["began"])
        self.study.set_user_attr("spent", spent)
        self.study.set_user_attr("began", now)

    @property
    def spent(self) -> float:
        """Seconds that the command has taken, without interruptions."""
        known = self.study.user_attrs
        return float(known["spent"]) + time.time() - float(known["began"])

    @property
    def reserve(self) -> float:
        """Seconds that training the winner once more takes."""
        return self.asked.before + self.asked.epochs * self.pace + self.asked.after

    @property
    def late(self) -> bool:
        """Whether only the time to train the winner once more is left."""
        return self.asked.time is not None and self.spent > self.asked.time - self.reserve

    # ---- trials ----

    def work(self) -> None:
        """Train trials until there are enough, the time is used, and those of other processes are finished."""
        waiting = False
        while True:
            with contextlib.ExitStack() as claim:
                if (trial := self._claim(claim)) is not None:
                    self._train(trial)
            self._report()
            if trial is None:
                running = self._numbers("RUNNING")
                if not running:
                    return
                if not waiting:
                    names = listed([str(number + 1) for number in running])
                    self.ui.say(f"waiting for other processes, which train trial {names}")
                waiting = True
                time.sleep(PAUSE)

    def _claim(self, claim: contextlib.ExitStack) -> Any:
        """A trial for this process alone: one whose process has ended, else a new one; None where there is none."""
        with claimed(self.folder, "study", self.ui, wait=-1):
            for number in self._numbers("RUNNING"):
                mine = claim.enter_context(claimed(self.folder, trial_name(number), self.ui))
                if mine and number in self._numbers("RUNNING"):
                    return self._trial(number)
            begun = len(self._numbers("RUNNING", "COMPLETE", "PRUNED", "FAIL"))
            if self.late or (self.asked.trials is not None and begun >= self.asked.trials):
                return None
            self._seed(begun)
            trial = self.study.ask()
            claim.enter_context(claimed(self.folder, trial_name(trial.number), self.ui))
            return trial

    def _numbers(self, *states: str) -> list[int]:
        return [t.number for t in self.study.get_trials(deepcopy=False) if t.state.name in states]

    def _trial(self, number: int) -> Any:
        """An unfinished trial, to go on with."""
        self._seed(number)
        known = self.study.get_trials(deepcopy=False)[number]
        return self.optuna.trial.Trial(self.study, known._trial_id)

    def _seed(self, number: int) -> None:
        """Make the next suggestions a function of the seed, the number of the trial and the results so far."""
        samplers, pruners = self.optuna.samplers, self.optuna.pruners
        self.study.sampler = samplers.TPESampler(
            seed=self.asked.seed * 10_000 + number, n_startup_trials=STARTUP, multivariate=True, constant_liar=True
        )
        self.study.pruner = pruners.NopPruner()
        if self.asked.prune:
            first = -(-self.asked.epochs // RUNGS)  # then the looks are at a ninth and a third, and none near the end
            self.study.pruner = pruners.HyperbandPruner(first, self.asked.epochs, REDUCTION)

    def _train(self, trial: Any) -> None:
        """Train a trial and tell Optuna how it ended."""
        number, state = trial.number, self.optuna.trial.TrialState
        values = suggest(trial, self.asked.space)
        job = Job(trial_name(number), f"trial {number + 1}", partial(self._begin, values), "val")
        log = Logged(self.folder.path / f"{job.name}.log")
        starts = [*trial.user_attrs.get("starts", []), len(trial_steps(self.study, number))]
        try:
            if starts.count(starts[-1]) > STARTS:
                raise VitmedError(f"its process ended {STARTS} times, perhaps for lack of memory")
            trial.set_user_attr("starts", starts)
            with self.ui.bar(job.title, unit="epochs") as advance:
                if job.done(self.folder) is None:
                    job.train(partial(train, each_epoch=self._watch(trial, advance)), self.folder, log)
            value = self._value(job)
        except EndedByCaller:
            self.study.tell(number, state=state.PRUNED)
        except (Interrupted, KeyboardInterrupt):
            trial.set_user_attr("starts", starts[:-1])
            raise
        except (DataError, DiskFullError):  # of every trial
            raise
        except VitmedError as error:
            log.warn(str(error))
            several = "\n" in error.problem  # such as the files of a batch, which are in the log
            trial.set_user_attr("failure", first_line(error.problem).rstrip(":") if several else error.line)
            self.study.tell(number, state=state.FAIL)
        else:
            self.study.tell(number, value)

    def _begin(self, values: dict[str, Any]) -> dict[str, Any]:
        return {
            "config": self.folder.path / BASE, "sets": (*as_sets(values), *QUICK), "offline": self.asked.offline
        }  # fmt: skip

    def _watch(self, trial: Any, advance: Advance) -> EachEpoch:
        """What follows each epoch of a trial: it is reported to Optuna, which may end the trial."""
        known, began, first = trial_steps(self.study, trial.number), time.monotonic(), list[int]()
        plan = self.has_plan and trial.number == 0  # every other trial is compared with it

        def watch(record: Record) -> bool:
            epoch, value = record["epoch"], record.get(f"val_{self.asked.metric}")
            first.append(epoch)
            self.pace = max(self.pace, (time.monotonic() - began) / (epoch - first[0] + 1))
            advance(epoch, self.asked.epochs)
            if epoch not in known:  # it is, where training had to begin again
                trial.report(math.nan if value is None else value, epoch)
            if epoch >= self.asked.epochs:
                return False
            if self.late:
                trial.set_user_attr("late", True)
                return True
            return not plan and bool(trial.should_prune())

        return watch

    def _value(self, job: Job) -> float:
        """The metric on validation. Raises VitmedError where it is undefined."""
        place = job.done(self.folder)
        found = None if place is None else self.estimate(place, "val").value
        if found is None:
            raise VitmedError(f"validation {self.asked.metric} is undefined")
        return found

    def estimate(self, run: RunFolder, split: str) -> Estimate:
        """The metric of an evaluated run with its interval; a metric of epochs alone has none."""
        overall = Results.read(read_metrics(run.path / split / NUMBERS)).overall
        if self.asked.metric in overall:
            return overall[self.asked.metric]
        kept = [record for record in read_json_lines(run.metrics) if record["kept"]]
        value = kept[-1].get(f"val_{self.asked.metric}") if kept and split == "val" else None
        return Estimate(value=value, low=None, high=None)

    # ---- results ----

    def _report(self) -> None:
        """A line for each trial that has finished since."""
        new = set(self._numbers("COMPLETE", "PRUNED", "FAIL")) - self.said
        self.said |= new
        for trial in self.results(new):
            of = "" if self.asked.trials is None else f" of {self.asked.trials}"
            self.ui.say(f"trial {trial.number}{of}: {self._line(trial)}")

    def _line(self, trial: TrialResult) -> str:
        if trial.state == "failed":
            return f"failed: {trial.reason}; {', '.join(as_sets(trial.values))}"
        value = "undefined" if trial.value is None else f"{trial.value:.3f}"
        ended = f"stopped after epoch {trial.epochs} of {self.asked.epochs}" if trial.state == "stopped" else ""
        ended = ended or f"{trial.epochs} epochs"
        return f"{self.metric.title} {value}, {ended}, {trial.seconds:,.0f} s; {', '.join(as_sets(trial.values))}"

    def results(self, only: set[int] | None = None) -> list[TrialResult]:
        """The trials that have ended, or `only` some of them."""
        states = {"COMPLETE": "done", "PRUNED": "stopped", "FAIL": "failed"}
        found = []
        for frozen in self.study.get_trials(deepcopy=False):
            if frozen.state.name not in states or (only is not None and frozen.number not in only):
                continue
            runs = Job(trial_name(frozen.number), "", lambda: None, "val").attempts(self.folder)
            records = read_json_lines(runs[-1].metrics) if runs and runs[-1].metrics.is_file() else []
            done = frozen.state.name == "COMPLETE"
            last = frozen.intermediate_values.get(frozen.last_step, math.nan)
            value = frozen.value if done else None if math.isnan(last) else last
            reason = frozen.user_attrs.get("failure", "the time was used" if frozen.user_attrs.get("late") else "")
            found.append(
                TrialResult(
                    number=frozen.number + 1, state=states[frozen.state.name],  # type: ignore[arg-type]
                    values={k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in frozen.params.items()},
                    value=value, estimate=self.estimate(runs[-1], "val") if done else None, epochs=len(records),
                    seconds=sum(record["seconds"] for record in records), run=runs[-1].path.name if runs else None,
                    reason=reason,
                )
            )  # fmt: skip
        return found

    def importance(self) -> dict[str, float]:
        """Setting -> share of the variance of finished trials that it explains (fANOVA); {} for too few trials."""
        if len(self._numbers("COMPLETE")) < ENOUGH or len(self.asked.space) < 2:
            return {}
        how = self.optuna.importance.FanovaImportanceEvaluator(seed=0)
        try:
            found = self.optuna.importance.get_param_importances(self.study, evaluator=how)
        except (RuntimeError, ValueError):  # all trials are equal
            return {}
        return {place: float(share) for place, share in found.items() if math.isfinite(share)}


def trial_steps(study: Any, number: int) -> set[int]:
    """The epochs of a trial that Optuna knows."""
    return set(study.get_trials(deepcopy=False)[number].intermediate_values)


def trial_name(number: int) -> str:
    """The name of its run folder; `number` counts from 0."""
    return f"trial-{number + 1:04d}"


def mend_journal(folder: RunFolder) -> None:
    """Remove a last line that was not written to its end, on a full disk or when the power failed."""
    try:
        content = folder.journal.read_bytes()
        if not content or content.endswith(b"\n"):
            return
        time.sleep(2 * PAUSE)  # another process may be about to end the line
        if folder.journal.read_bytes() == content:
            os.truncate(folder.journal, content.rfind(b"\n") + 1)
    except OSError as error:
        raise not_written(folder.journal, error) from None
