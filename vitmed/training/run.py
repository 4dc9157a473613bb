"""A run: its folder, what it writes there, and resuming from it.

`Run.new` and `Run.resumed` build it whole; what is trained, and how it is validated and saved, is its `Task`.
"""

import contextlib
import hashlib
import json
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self

import torch

from vitmed.core import errors
from vitmed.core.config import Config, PretrainConfig
from vitmed.core.files import write_json, write_text
from vitmed.core.load_config import AnyConfig, find_paths, store_paths, with_values
from vitmed.core.messages import Advance, bar, say, warn
from vitmed.core.places import elsewhere
from vitmed.core.process import stop_signals
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted, first_line, now, quoted
from vitmed.core.text_files import csv_text
from vitmed.data.loading import Images, ReadSplits
from vitmed.data.samples import Splits
from vitmed.inference.checkpoint import Checkpoint, PretrainingState
from vitmed.models import hardware
from vitmed.models.hardware import Precision, check_compiler, pick_device, pick_precision, using_threads
from vitmed.models.vit import checkpoint_gradients, checkpoints_gradients, use_attention
from vitmed.models.weights.files import AGAIN
from vitmed.training.early_stopping import finished, speed
from vitmed.training.loop import Control, Stream, fit
from vitmed.training.losses import Objective
from vitmed.training.out_of_memory import fit_memory, memory_error
from vitmed.training.plan.autotune import autotune, open_fields
from vitmed.training.plan.time import Clock, share_of_time
from vitmed.training.processes import ALONE, Ranks
from vitmed.training.train_state import Record, new_state

EachEpoch = Callable[[Record], bool | None]  # whether to end the run after this epoch
Reports = Callable[[list[Record]], None]
Last = Checkpoint | PretrainingState  # what a last.pt holds


@dataclass(frozen=True)
class Session:
    """Where a command computes, in which arithmetic, and the clock of its run, on which earlier commands count too."""

    device: torch.device
    precision: Precision
    ranks: Ranks = ALONE
    clock: Clock = field(default_factory=Clock)
    began: tuple[float, float] = field(default_factory=lambda: (time.monotonic(), time.process_time()))  # its CPU time

    @classmethod
    def of(cls, config: AnyConfig, ranks: Ranks = ALONE, clock: Clock | None = None) -> Self:
        """The session of a configuration. Raises UsageError if this machine cannot compute so."""
        device = pick_device(config.train.device)
        precision = pick_precision(config.train.precision, device)
        check_compiler(config.train.compile, device)
        return cls(ranks.device(device), precision, ranks, clock or Clock())


class Task(Protocol[AnyConfig]):
    """What a run trains: `Finetune` or `Pretrain`, on the device of its session. `command` starts such a run."""

    command: ClassVar[str]
    model: torch.nn.Module

    def objective(self, config: AnyConfig, train: Images, session: Session) -> Objective: ...  # what training minimises
    def validate(self, run: "Run[AnyConfig]") -> Record: ...  # of the epoch that has just ended
    def save_epoch(self, run: "Run[AnyConfig]", record: Record) -> None: ...  # the weights, where they are to be kept
    def save_last(self, run: "Run[AnyConfig]") -> None: ...  # last.pt, from which `--resume` continues
    def seconds_after(self, run: "Run[AnyConfig]") -> float: ...  # estimates now what follows training
    def write_start(self, run: "Run[AnyConfig]") -> None: ...  # what is known before the first batch
    def before_step(self, run: "Run[AnyConfig]") -> None: ...  # a warning, perhaps, before an optimiser step
    def after_epoch(self, run: "Run[AnyConfig]", record: Record) -> None: ...  # says what a finished epoch shows


class Run(Generic[AnyConfig]):
    """One training or pretraining, before its first batch or amid it: its `stream` is what the loop reads, its `state`
    what the loop changes, and its folder holds everything that is written."""

    def __init__(self, task: Task[AnyConfig], config: AnyConfig, read: ReadSplits, folder: RunFolder, session: Session):
        self.task: Task[AnyConfig] = task
        self.config: AnyConfig = config
        self.folder, self.session, self.model = folder, session, task.model
        self.splits, self.images, self.hashes = read.splits, read.images, read.hashes
        self.device, self.precision, self.ranks = session.device, session.precision, session.ranks
        self.stream = Stream.of(self.images["train"], config, self.device, self.ranks)
        self.state = new_state(self.model, config, self.stream.batches.batches, self.device, self.precision)
        if config.train.micro_batch == "auto":
            ranks, total = self.ranks, self.stream.batches.size
            if ranks.wide and config.train.shard:
                problem = "--batch-size auto measures the whole network, and --shard-model divides it"
                raise errors.UsageError(problem, "name --micro-batch N")
            most = -(-total // ranks.world)
            found = ranks.first(lambda: fit_memory(self.state, config, most, self.precision, ranks.local_world))
            fitting, recompute, why = found
            at_once = max(part.stop - part.start for part in ranks.parts(total, fitting))
            self._set_parts(at_once, recompute)
            how = ", with gradient checkpointing" if recompute else ""
            whose = f" on each of {ranks.world} processes" if ranks.wide else ""
            say(f"batch: {counted(total, 'image')}, {at_once} at once{whose}{how} ({why}; --micro-batch {at_once})")

    @classmethod
    def new(
        cls, task: Task[AnyConfig], config: AnyConfig, read: ReadSplits, folder: RunFolder, session: Session
    ) -> Self:
        """A run before its first batch; everything known so far is written into its folder."""
        ranks, device = session.ranks, session.device
        if (fields := open_fields(config)) and not ranks.wide:  # several processes take the usual engine
            images = read.images["train"]
            steps = config.train.epochs * max(1, len(images) // config.train.batch_size)
            tuned = autotune(task.model, task.objective(config, images, session), config, steps, images.targets)
            config = with_values(config, {f"train.{name}": getattr(tuned.engine, name) for name in fields})
            if tuned.rates is not None:  # else the usual arithmetic stays, with its own reason
                measured = replace(pick_precision(tuned.engine.precision, device), reason="measured")
                session = replace(session, precision=measured)
            say(str(tuned))
        run = cls(task, config, read, folder, session)
        ranks.first(run._write_start)
        return run

    @classmethod
    def resumed(
        cls, task: Task[AnyConfig], config: AnyConfig, read: ReadSplits, folder: RunFolder, session: Session, last: Last
    ) -> Self:
        """A run as `last`, its last.pt, left it, perhaps with another `train.time`; nothing is written."""
        run = cls(task, config, read, folder, session)
        try:
            run.state.load_state_dict(last.training or {})
        except (KeyError, RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
            problem = f"{folder.last}: its training state does not fit ({first_line(error)})"
            raise errors.CheckpointError(problem, f"{AGAIN}, or start a new run") from None
        state = run.state
        session.clock.began -= state.spent
        if (now := config.train.time) is not None and now != last.config.train.time:
            state.share = min(1.0, state.spent / now)  # as if it had been so from the start
        at = "after its training" if finished(state, config) else f"at epoch {state.epoch + 1}, batch {state.batch + 1}"
        say(f"resuming {folder.path} {at}")
        return run

    def rewrite(self) -> None:
        """Write what a resumed run may change: its configuration, with new epochs or another data folder, and the
        records, since a kill may have come between last.pt and metrics.jsonl."""
        self.ranks.first(self._write_config)
        self.ranks.first(self._write_records)

    @property
    def go_on(self) -> str:
        """The command that continues this run."""
        return f"vitmed {self.task.command} --resume {quoted(self.folder.path)}"

    def train(
        self,
        draw: Callable[[], None] = lambda: None,
        each_epoch: EachEpoch = lambda record: None,
        report: Reports = lambda history: None,
    ) -> None:
        """Train until the end, with all ranks.

        Args:
            draw: called at the end, also where training ends early.
            each_epoch: called when an epoch is saved and reported; where it returns true, the run ends.
            report: called with the records of all epochs, after each.

        Raises:
            Interrupted, EndedByCaller: after saving last.pt.
        """
        try:
            self._train(each_epoch, report)
        except BaseException:
            with contextlib.suppress(Exception):  # a failing figure must not hide why the training ended
                draw()
            raise
        draw()

    def _train(self, each_epoch: EachEpoch, report: Reports) -> None:
        ranks, config, task = self.ranks, self.config, self.task
        if ranks.wide:
            self.state.load_state_dict(ranks.first(self.state.state_dict))  # rank 0 may have fitted the head
        if ranks.wide and self.device.type == "cuda":  # it does not work on a CPU
            torch.nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        use_attention(self.model, config.train.attention)
        if config.train.compile:
            hardware.compile_network(self.model)
        if ranks.wide and config.train.shard:
            self.state.shard(config, ranks, self.device)
        else:
            self.state.network = ranks.ddp(self.model, self.device)
        begun = self.session.clock.seconds(), self.state.share
        threads = using_threads(config.train.threads or ranks.threads)
        with threads, stop_signals() as stop, bar("training") as advance:
            control = Control(
                config, stop, lambda: self._tick(*begun), ranks, lambda loss: self._show(loss, advance), self._relieved
            )
            objective = task.objective(config, self.images["train"], self.session)
            try:
                for record in fit(self.state, self.stream, objective, control, lambda: task.validate(self)):
                    self.keep(record, report)
                    if ranks.agree(stop=ranks.leads and bool(each_epoch(record))):
                        ended = f"ended after epoch {self.state.epoch}; {self.folder.last} is saved"
                        raise errors.EndedByCaller(ended, self.go_on)
            except (errors.DataError, errors.Reported):  # on all ranks, which save a divided network together
                if self.state.batch % config.train.accumulate == 0:  # not amid an optimiser step
                    task.save_last(self)
                raise
            except RuntimeError as error:
                problem = memory_error(error, config)
                if problem is error and hardware.is_of_compiler(error):
                    fix = f"{self.go_on} --no-compile"
                    problem = errors.VitmedError(f"compiling the network failed: {first_line(error)}", fix)
                raise problem from None
            if ranks.agree(stop=stop()):
                task.save_last(self)
                epoch = min(self.state.epoch + 1, config.train.epochs)
                raise errors.Interrupted(f"interrupted in epoch {epoch}; {self.folder.last} is saved", self.go_on)

    def _show(self, loss: float, advance: Advance) -> None:
        state, batches, (images_per_second, wait_share) = self.state, self.stream.batches.batches, speed(self.state)
        total = self.config.train.epochs * batches
        done = max(state.epoch * batches + state.batch, round(state.share * total))
        text = f"epoch {self._epoch(state.epoch + 1)}  loss {loss:.4f}"
        text += f"  {images_per_second:,.0f} images/s  {wait_share:.0%} waiting for data"
        advance(min(done, total), total, text)

    def _epoch(self, epoch: int) -> str:
        """` 12/100`; where the time is limited, ` 12, 34% of the time`."""
        train, share = self.config.train, self.state.share
        return f"{epoch:3}, {share:4.0%} of the time" if train.time else f"{epoch:3}/{train.epochs}"

    def keep(self, record: Record, report: Reports) -> None:
        """Save and report a finished epoch: its weights, last.pt, metrics.jsonl, a line."""
        self.task.save_epoch(self, record)
        self.task.save_last(self)
        self.ranks.first(self._write_records)
        star = " *" if record.get("best") else "  "
        monitored = f"  {monitor_text(record, record['monitor'])}{star}" if "monitor" in record else ""
        losses = f"train loss {record['train_loss']:.4f}  val loss {record['val_loss']:.4f}"
        speed_text = f"{record['images_per_second']:,.0f} images/s  {record['wait_share']:.0%} waiting"
        say(f"epoch {self._epoch(record['epoch'])}  {losses}{monitored}  lr {record['lr']:.1e}  {speed_text}")
        report(self.state.history)
        self.task.after_epoch(self, record)

    def _tick(self, start: float, first: float) -> None:
        """Before every step, note the time used, and of a limited time rank 0's share."""
        state, task, limit = self.state, self.task, self.config.train.time
        state.spent = self.session.clock.seconds()
        if limit is not None:
            share = self.ranks.first(lambda: share_of_time(state.spent, limit - task.seconds_after(self), start, first))
            state.share = max(state.share, share)
        task.before_step(self)

    def _set_parts(self, micro_batch: int, grad_checkpointing: bool) -> None:
        """Change how many images are computed at once, from the next batch and in the configuration."""
        self.state.micro_batch = micro_batch
        checkpoint_gradients(self.model, grad_checkpointing)
        values = {"train.micro_batch": micro_batch, "train.grad_checkpointing": grad_checkpointing}
        self.config = with_values(self.config, values)

    def _relieved(self, sentence: str) -> None:
        """Keep how many images are computed at once since memory ran out."""
        self._set_parts(self.state.micro_batch or 1, checkpoints_gradients(self.model))
        self._write_config()
        warn(sentence)

    def _write_start(self) -> None:
        folder, stored = self.folder, 2 + (self.state.ema is not None)  # in best.pt and last.pt, beside two moments
        frozen = isinstance(self.config, Config) and self.config.train.freeze  # writes best.pt alone
        needed = sum(p.nbytes * (1 if frozen else stored + 2 * p.requires_grad) for p in self.model.parameters())
        if 0 < (free := shutil.disk_usage(folder.path).free) < needed:  # 0: a file system that does not say
            problem = f"{folder.path}: its checkpoints need {needed / 2**20:,.0f} MB, free: {free / 2**20:,.0f} MB"
            raise errors.DiskFullError(problem, f"{errors.DiskFullError.ROOM}, or name another with --output")
        self._write_config()
        write_json(folder.environment, environment(self.config, self.device, self.precision, self.hashes))
        write_text(folder.splits, splits_csv(self.splits, self.hashes))
        self.task.write_start(self)

    def _write_config(self) -> None:
        write_text(self.folder.config, store_paths(self.config, self.folder.path).to_yaml())

    def _write_records(self) -> None:
        write_text(self.folder.metrics, "".join(json.dumps(r, allow_nan=False) + "\n" for r in self.state.history))


def monitor_text(record: Record, monitor: str) -> str:
    """The monitor of a record and its value."""
    value = record.get(f"val_{monitor}")
    return f"{monitor} undefined" if value is None else f"{monitor} {value:.4f}"


def folder_to_resume(
    path: Path, name: str | None, output: Path | str, changes: list[str], flags: Mapping[str, str], allowed: set[str]
) -> RunFolder:
    """The run folder given to --resume, which holds a last.pt; `changes` are the settings given beside it, of which
    some are `allowed`, and `flags` are keyword -> setting."""
    folder = RunFolder(path.parent if path.suffix == ".pt" else path)
    if path.suffix == ".pt" and path.name != folder.last.name:
        raise errors.UsageError(f"{path}: a run goes on from its last.pt, not from this", f"name {folder.path}")
    if name is not None or elsewhere(output, folder.path):
        raise errors.excluded("resume and name")
    if folder.best.is_file() and not folder.last.is_file():
        problem = f"{folder.path}: this run is finished; --freeze leaves nothing to resume"
        raise errors.UsageError(problem, "start a new run")
    if not folder.last.is_file():
        problem = f"{folder.path}: {'holds no last.pt to resume' if folder.path.is_dir() else 'no such folder'}"
        raise errors.CheckpointError(problem, "name the run folder of an interrupted run")
    if set(changes) - allowed:
        names = ", ".join(f"--{flag.replace('_', '-')}" for flag, setting in flags.items() if setting in allowed)
        raise errors.UsageError("--resume uses the run's own configuration", f"add only {names}")
    return folder


def resumed_settings(config: AnyConfig, folder: RunFolder, root: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    """The stored settings of a run with the data folder and the overrides of today."""
    tree = find_paths(config.model_dump(), folder.path)
    for key, value in {**overrides, "data.root": str(root)}.items():
        section, _, field = key.partition(".")
        tree[section][field] = value
    return tree


# --- environment.json and splits.csv


def environment(
    config: Config | PretrainConfig, device: torch.device, precision: Precision, hashes: dict[str, list[str]]
) -> dict[str, Any]:
    """What a run depended on, without host name, user or absolute path."""
    manifest = "\n".join(digest for name in sorted(hashes) for digest in hashes[name])
    return {
        "started": now(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": hardware.versions(),
        "device": hardware.describe(device),
        "precision": f"{precision.name}: {precision.reason}",
        "seed": config.train.seed,
        "data_sha256": hashlib.sha256(manifest.encode()).hexdigest(),
    }


def splits_csv(splits: Splits, hashes: dict[str, list[str]]) -> str:
    """One row per image: path, sha256, class, group, split, and any other columns of a labels table."""
    rows = [
        [sample.path, digest, splits.text_of(sample), sample.group or "", name, *sample.columns]
        for name, samples in splits.samples.items()
        for sample, digest in zip(samples, hashes[name], strict=True)
    ]
    return csv_text([["path", "sha256", "class", "group", "split", *splits.columns], *rows])
