"""A run under way: one training or pretraining, from its first batch to its last epoch."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vitmed.core.config import Config
from vitmed.core.durations import about
from vitmed.core.errors import CheckpointError, DataError, EndedByCaller, Interrupted, Reported, VitmedError
from vitmed.core.files import write_json, write_text
from vitmed.core.load_config import AnyConfig
from vitmed.core.messages import bar, say, warn
from vitmed.core.process import stop_signals
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted, first_line, listed
from vitmed.data.patients import report_patients
from vitmed.data.proportions import describe_split, proportion_lines
from vitmed.data.samples import Splits
from vitmed.imaging.file_record import FileRecord
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import Checkpoint, save_checkpoint, set_data_root
from vitmed.metrics.predictions import positive_class
from vitmed.models.compile import compile_network, is_of_compiler, uncompiled
from vitmed.models.hardware import Precision, describe, seeded, using_threads
from vitmed.models.lora import add_low_rank, merged
from vitmed.models.sizes import describe_model, summarise
from vitmed.models.vit import ViT, use_attention
from vitmed.models.weights.pretrained import Weights, load_pretrained
from vitmed.training.epoch_records import finished, validate
from vitmed.training.failure_detection import stuck
from vitmed.training.gradients import Relief
from vitmed.training.learning import LEARNING
from vitmed.training.loop import fit
from vitmed.training.losses import LossOf
from vitmed.training.plan.forecast import Forecaster
from vitmed.training.plan.time_budget import Contention, TimeBudget
from vitmed.training.processes import ALONE, Ranks, full
from vitmed.training.progress import epoch_of, with_progress
from vitmed.training.run_setup import RunSetup, check_images
from vitmed.training.trackers import Tracking
from vitmed.training.train_state import Record

SURE = 10.0  # s of training that tell its speed: the first include the start of the loader processes
EachEpoch = Callable[[Record], bool | None]  # whether to end the run after this epoch


class Run(RunSetup[AnyConfig]):
    """What training and pretraining share: go through the epochs, stop at a signal, report."""

    command: str

    def run_epochs(self) -> None:
        """Train until the end, with all ranks. Raises Interrupted after saving last.pt."""
        ranks = self.ranks
        if ranks.wide:
            self.state.load_state_dict(ranks.first(self.state.state_dict))  # rank 0 may have fitted the head
        if ranks.wide and self.device.type == "cuda":  # it does not work on a CPU
            nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        use_attention(self.model, self.config.train.attention)
        if self.config.train.compile:
            compile_network(self.model)
        if ranks.wide and isinstance(self.config, Config) and self.config.train.shard:
            self.state.shard(self.config, ranks, self.device)
        else:
            self.state.network = ranks.wrap(self.model, self.device)
        threads = using_threads(self.config.train.threads or ranks.threads)
        with threads, warnings.catch_warnings(), stop_signals() as stop, bar("training") as advance:
            warnings.filterwarnings("ignore", "Grad strides do not match")  # DDP's, on speed, for a 1x1 convolution
            events = fit(
                self.state, self.loader, self.batches, self.loss_of(), self.validate, self.config, stop, ranks,
                self.ticker(),
            )  # fmt: skip
            try:
                for event in with_progress(events, self.config, advance):
                    if isinstance(event, Relief):
                        self.set_parts(event.micro_batch, event.grad_checkpointing)
                        self.write_config()
                        warn(str(event))
                    else:
                        self.end_epoch(event)
            except (DataError, Reported):  # on all ranks, which save a divided network together
                if self.state.batch % self.config.train.accumulate == 0:  # not amid an optimiser step
                    self.save_last()
                raise
            except RuntimeError as error:
                if is_of_compiler(error):
                    fix = f"{self.go_on()} --no-compile"
                    raise VitmedError(f"compiling the network failed: {first_line(error)}", fix) from None
                raise
            if ranks.agree(stop=stop()):
                self.save_last()
                raise Interrupted(
                    f"interrupted in epoch {self.state.epoch + 1}; {self.folder.last} is saved", self.go_on()
                )

    def go_on(self) -> str:
        """The command that continues this run."""
        return f"vitmed {self.command} --resume {self.folder.path}"

    def ticker(self) -> Callable[[], None]:
        """What the loop calls before every step: it notes the time used, and of a limited time rank 0's share."""
        state, ranks, limit, budget = self.state, self.ranks, self.config.train.time, None
        if limit is not None:
            after = self.seconds_after() if ranks.leads else lambda: 0.0
            budget = TimeBudget(self.clock.seconds(), state.share, limit)

        def tick() -> None:
            state.spent = self.clock.seconds()
            if budget is not None:
                state.share = ranks.first(lambda: max(state.share, budget.share_at(state.spent, after())))

        return tick

    def seconds_after(self) -> Callable[[], float]:
        """A function that estimates how long the command goes on after training, from what is known so far."""
        raise NotImplementedError

    def loss_of(self) -> LossOf:
        """The loss of a batch in training."""
        return self.loss_for(self.state.network, self.precision)

    def validate(self) -> Record:
        """The record of the epoch that has just ended."""
        raise NotImplementedError

    def end_epoch(self, record: Record) -> None:
        """Save and report a finished epoch."""
        raise NotImplementedError

    def save_last(self) -> None:
        """Save last.pt, from which `--resume` continues."""
        raise NotImplementedError

    def report_epoch(self, record: Record, monitor: str = "") -> None:
        """Write metrics.jsonl and print a line on the epoch; `monitor` goes in its middle."""
        self.ranks.first(self.write_records)
        say(
            f"epoch {epoch_of(record['epoch'], self.state.share, self.config)}  "
            f"train loss {record['train_loss']:.4f}  val loss {record['val_loss']:.4f}{monitor}  "
            f"lr {record['lr']:.1e}  {record['images_per_second']:,.0f} images/s  {record['wait_share']:.0%} waiting"
        )


class TrainingRun(Run[Config]):
    """The run of `vitmed train`: new or resumed."""

    command = "train"
    model: ViT

    def __init__(
        self, config: Config, splits: Splits, device: torch.device, weights: Weights | None = None,
        start: str = "from random weights", ranks: Ranks = ALONE,
    ):  # fmt: skip
        super().__init__(config, splits, device, ranks)
        with seeded(config.train.seed):
            model = ViT(config.model, splits.outputs)
            LEARNING[splits.target.kind].start(model, self.images["train"].targets, config)
            how = self.images["train"].preprocessing
            self.report = load_pretrained(model, weights, how) if weights is not None else None
            if config.train.lora is not None:
                add_low_rank(model, config.train.lora)
        if config.train.lora is None and config.train.freeze_blocks is not None:
            model.freeze(config.train.freeze_blocks)
        self.seen = weights.seen if weights is not None else ()
        self.model = model.to(device)
        self.notes: list[str] = []  # about the data, for the head of every report
        self.counts: dict[str, int] = {}  # files found and copies, for the flow diagram of every report
        self.fingerprints: dict[str, list[str]] = {}  # of train and val, to notice near copies in an evaluation
        self.skipped = 0  # files that cannot be read
        self.warned = False
        self.planned_rate: float | None = None  # images/s in training, as the plan measured them; None: not known
        self.each_epoch: EachEpoch = lambda record: None  # after it is saved and reported
        self.tracking = Tracking()
        self._describe(start if weights is None else f"{self.report}; images normalised by {config.data.normalize}")

    def _describe(self, start: str) -> None:
        config, splits = self.config, self.splits
        say("vitmed is for research use only; it is not a medical device.")
        unit = f" ({splits.target.unit})" if splits.target.unit else ""
        names = [f"{i} {name}" for i, name in enumerate(splits.classes)]
        say(f"{splits.target.kind}: " + (listed(names) if len(names) > 1 else splits.classes[0] + unit))
        if len(splits.classes) == 2 and splits.target.kind == "classes":
            positive = config.data.positive or splits.classes[positive_class(splits.classes)]
            say(f"positive class: {positive} (vitmed train --positive chooses the other)")
        for name, samples in splits.samples.items():
            unused = "; not evaluated until training ends" if name == "test" else ""
            about = f"{counted(len(samples), 'image')} ({describe_split(splits, name)}), {splits.made[name]}"
            say(f"{name + ':':6} {about}{unused}")
        for line in proportion_lines(splits):
            say(line)
        report_patients(splits, "one patient may be in two splits, which makes results look too good")
        say(f"model: {describe_model(config.model)}; {start}")
        say(f"to be trained: {self._trainable()}")
        shared = f"{self.ranks.world} processes, each on " if self.ranks.wide else ""
        say(f"device: {shared}{describe(self.device)}, {self.precision.name} ({self.precision.reason})")
        if config.train.balance != "none":
            say(
                f"balance {config.train.balance}: probabilities stay at the prevalence of training; "
                f"{'--youden' if len(splits.classes) == 2 else '--balanced'} decides for balanced accuracy"
            )
        if (config.augment.mixup or config.augment.cutmix) and not config.train.freeze:
            warn("mixup and cutmix change calibration: check the log loss and the Brier score")

    def _trainable(self) -> str:
        train, parameters = self.config.train, list(self.model.parameters())
        total = sum(p.numel() for p in parameters) / 1e6
        learning = sum(p.numel() for p in parameters if p.requires_grad) / 1e6
        if train.freeze:
            return f"a logistic regression on the features of the frozen network ({total:.2f} M parameters)"
        if train.lora is None and train.freeze_blocks is None:
            return f"all {total:.2f} M parameters"
        what = f"everything after the first {train.freeze_blocks} blocks"
        if train.lora is not None:
            what = f"LoRA additions of rank {train.lora} and the head"
        return f"{what}, {learning:.2f} of {total:.2f} M parameters"

    def check_images(self) -> list[FileRecord]:
        """Decode every file once, in this run or in an earlier one, and hash it; what the data check needs of each.

        Files that are skipped are then in no split.
        """
        read = check_images(self.splits, Preprocessing.of(self.config), self.config.data)
        self.splits, self.images, self.hashes, self.skipped = read.splits, read.images, read.hashes, read.skipped
        if before := sum(map(set(self.seen).__contains__, self.hashes["test"])):
            warn(f"the weights were made with {counted(before, 'test image')}: results look too good")
        return read.records

    def write_start(self) -> None:
        super().write_start()
        write_json(self.folder.data_check, {"notes": self.notes, "counts": self.counts})
        write_text(self.folder.summary, summarise(self.model, self.config.model))
        if self.report is not None:
            write_json(self.folder.weights, asdict(self.report))

    def resume_from(self, folder: RunFolder, checkpoint: Checkpoint) -> None:
        """Continue from last.pt, perhaps with the data in another folder than before."""
        assert checkpoint.training is not None
        self.seen = checkpoint.seen
        self.resume(folder, checkpoint.training)
        if (limit := self.config.train.time) is not None and limit != checkpoint.config.train.time:
            self.state.share = min(1.0, self.state.spent / limit)  # as if it had been so from the start
        if self.splits.root != checkpoint.splits.root and self.ranks.leads:
            for file in folder.path.glob("*.pt"):  # some are never written again, and later commands read the data root
                set_data_root(file, self.splits.root)

    def loss_for(self, network: nn.Module, precision: Precision) -> LossOf:
        train, splits = self.images["train"], self.splits
        loss_of = LEARNING[splits.target.kind].loss_of
        return loss_of(network, train, splits.outputs, self.config, precision, self.ranks)

    def validate(self) -> Record:
        batches, splits = self.batches.batches, self.splits
        with uncompiled(self.config.train.compile):
            return validate(
                self.state, self.images["val"], splits.classes, batches, self.config, self.precision, self.ranks,
                splits.target,
            )  # fmt: skip

    def seconds_after(self) -> Callable[[], float]:
        alone = Forecaster(self.splits, self.device, self.ranks.world).after(self.config)
        state = self.state

        def now() -> tuple[float, float, float]:
            waited = sum(record["seconds"] * record["wait_share"] for record in state.history)
            return time.monotonic(), time.thread_time(), waited + state.running["waited"]

        contention = Contention(*now())
        return lambda: alone * contention.factor(*now())

    def ticker(self) -> Callable[[], None]:
        tick = super().ticker()

        def both() -> None:
            tick()
            self._warn_if_slow()

        return both

    def _warn_if_slow(self) -> None:
        """Say once that training goes at less than half of the planned images/s, and what that means for the run."""
        state, seconds, images = self.state, 0.0, 0.0
        for record in [] if self.planned_rate is None else chain([state.running], reversed(state.history)):
            seconds += record["seconds"]
            images += record.get("images", record["seconds"] * record.get("images_per_second", 0.0))
            if seconds >= SURE:
                break
        if seconds < SURE or self.planned_rate is None or images / seconds >= self.planned_rate / 2:
            return
        epochs, done = self.config.train.epochs, state.epoch + state.batch / self.batches.batches
        left = (epochs - done) * len(self.splits.samples["train"]) * seconds / max(1.0, images)
        means = f"at this speed training takes about {about(left)} more"
        if self.config.train.time is not None and state.share > 0:
            count = max(1, min(epochs, round(done / state.share)))
            means = f"at this speed the time is enough for about {counted(count, 'epoch')}"
        warn(
            f"training goes at {images / seconds:,.0f} images/s, less than half of the {self.planned_rate:,.0f} that "
            f"the plan measured, as when other programs need the cores; {means}"
        )
        self.planned_rate = None

    def run_epochs(self) -> None:
        say(
            "in the lines of the epochs, * marks the best so far; waiting is the share of time spent waiting for images"
        )
        super().run_epochs()
        if self.ranks.leads and not self.folder.best.is_file():
            raise CheckpointError(f"{self.folder.path}: best.pt is missing", "start a new run")
        train, best = self.config.train, self.state.best_epoch
        value = _monitor_text(self.state.history[best - 1], train.monitor)
        say(f"{train.choose} epoch: {best}, validation {value}; kept in {self.folder.best.name}")

    def end_epoch(self, record: Record) -> None:
        state, monitor = self.state, self.config.train.monitor
        if record["kept"]:
            self._save(self.folder.best, training=False)
        if self.config.train.save_every and state.epoch % self.config.train.save_every == 0:
            self._save(self.folder.epoch(state.epoch), training=False)
        self.save_last()
        self.report_epoch(record, f"  {_monitor_text(record, monitor)}{' *' if record['best'] else '  '}")
        self.tracking.epochs(state.history)
        undefined = [entry for entry in state.history if f"val_{monitor}" not in entry]
        if undefined == [record]:  # for the first time
            warn(
                f"validation {monitor} is undefined in epoch {state.epoch}, for example because a class is never "
                "predicted or has no validation image; such an epoch ranks below all others"
            )
        share = 1.0 if finished(state, self.config) else max(state.share, state.epoch / self.config.train.epochs)
        problem = stuck(state.history, self.splits.classes, self.splits.counts("train"), self.config, share)
        if problem and not self.warned:
            warn(problem)
        self.warned = problem is not None
        if state.share >= 1:
            say(f"the time for training is used, in {counted(state.epoch, 'epoch')}")
        elif state.epoch < self.config.train.epochs and finished(state, self.config):
            say(f"stopped early: {monitor} has not improved for {self.config.train.patience} epochs")
        if self.ranks.agree(stop=self.ranks.leads and bool(self.each_epoch(record))):
            raise EndedByCaller(f"ended after epoch {state.epoch}; {self.folder.last} is saved", self.go_on())

    def save_last(self) -> None:
        self._save(self.folder.last, training=True)

    def _save(self, path: Path, training: bool) -> None:
        record = self.state.history[-1] if self.state.history else {}
        weights = full(merged(self.state.evaluated_model))  # by all ranks: each may hold a part
        state = self.state.state_dict() if training else None
        self.ranks.first(lambda: self.save(path, weights, record, state))

    def save(
        self, path: Path, weights: dict[str, torch.Tensor], record: Record, training: dict[str, Any] | None = None
    ) -> None:
        """Save a checkpoint of these weights."""
        save_checkpoint(
            path, config=self.config, splits=self.splits, hashes=self.hashes, weights=weights, record=record,
            training=training, seen=self.seen, fingerprints=self.fingerprints,
        )  # fmt: skip

    def augmented_examples(self) -> dict[str, list[np.ndarray]]:
        """Class, of at most 24 -> up to 8 training images after augmentation and normalisation, (S, S, C) uint8."""
        shown: dict[str, list[np.ndarray]] = {}
        how, labels = self.images["train"].preprocessing, self.images["train"].labels
        names = self.splits.strata
        present = np.unique(labels)
        for label in present[np.linspace(0, len(present) - 1, min(24, len(present))).astype(int)]:
            of_class = np.flatnonzero(labels == label)
            spread = of_class[:: max(1, len(of_class) // 8)][:8]
            batch = torch.stack([self.dataset[(0, int(index))][0] for index in spread])
            batch = self.dataset.finish(batch, 0, torch.from_numpy(spread))
            shown[names[label]] = list(how.display(how.normalise(batch)).numpy())
        return shown


def _monitor_text(record: Record, monitor: str) -> str:
    """`auroc 0.9123`, or `ppv undefined`."""
    value = record.get(f"val_{monitor}")
    return f"{monitor} undefined" if value is None else f"{monitor} {value:.4f}"
