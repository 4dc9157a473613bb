"""A run: the data, the network, the state and the folder of one training or pretraining."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch
from torch import nn

from vitmed.core.config import Config, DataConfig
from vitmed.core.csv_files import csv_text
from vitmed.core.environment import environment, versions
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError, VitmedError
from vitmed.core.files import write_json, write_text
from vitmed.core.hardware import Precision, describe, pick_precision, seeded, using_threads
from vitmed.core.load_config import AnyConfig, store_paths, with_values
from vitmed.core.process import stop_signals
from vitmed.core.ranks import ALONE, LeaderReports, Ranks, full
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted, first_line, listed
from vitmed.core.ui import Ui
from vitmed.data.loading import (
    EpochBatches,
    TrainImages,
    UnusableFiles,
    images_of,
    pick_place,
    pick_workers,
    train_loader,
)
from vitmed.data.patients import report_patients
from vitmed.data.read_images import ReadSplits, read_splits
from vitmed.data.samples import Splits
from vitmed.imaging.augmentation import Augmenter
from vitmed.imaging.batch_augmentation import BatchAugmenter
from vitmed.imaging.file_record import FileRecord
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.predictions import positive_class
from vitmed.models.batch_layers import take_rows
from vitmed.models.block_kernels import compile_network, is_of_compiler, require_compiler, uncompiled, use_attention
from vitmed.models.lora import add_low_rank, merged
from vitmed.models.pretrained import Weights, load_pretrained
from vitmed.models.summary import describe_model, summarise
from vitmed.models.vit import ViT, build_vit, checkpoint_gradients
from vitmed.models.weight_files import AGAIN
from vitmed.training.autotune import autotune, is_open
from vitmed.training.checkpoint import Checkpoint, save_checkpoint, set_data_root
from vitmed.training.epoch_records import finished, validate
from vitmed.training.failure_detection import stuck
from vitmed.training.gradients import Relief
from vitmed.training.loop import fit
from vitmed.training.losses import LossOf, classification_loss, rows_of, start_balanced
from vitmed.training.memory import fit_memory
from vitmed.training.progress import with_progress
from vitmed.training.train_state import Record, new_state

AS_BEFORE = (
    "restore the files as they were when the run began, then run this again; or start a new run (--on-bad-file skip "
    "leaves unreadable files out)"
)


@dataclass(frozen=True)
class Start:
    """What the leader sends to every other rank: the run as it is before the next batch.

    Attributes:
        hashes: split -> sha256 of its files, in the order of the samples.
        folder: the run folder, which the leader alone writes.
        state: of `TrainState.state_dict`.
        versions: of the packages that decide the numbers.
    """

    config: Any
    splits: Splits
    hashes: dict[str, list[str]]
    folder: RunFolder
    state: dict[str, Any]
    versions: dict[str, str]


def meet(ranks: Ranks) -> None:
    """Wait until every rank has read its images: one of each machine first, which fills the machine's cache."""
    for _ in range(2):
        ranks.agree()


class Run(Generic[AnyConfig]):
    """What training and pretraining share: begin, go through the epochs, stop at a signal, resume."""

    command: str
    model: nn.Module
    folder: RunFolder

    def __init__(self, config: AnyConfig, splits: Splits, device: torch.device, ui: Ui, ranks: Ranks = ALONE):
        self.config: AnyConfig = config
        self.splits, self.device, self.ui, self.ranks = splits, ranks.device(device), ui, ranks
        self.precision = pick_precision(config.train.precision, device)
        if config.train.compile:
            require_compiler(device)
        self.images = images_of(splits, Preprocessing.of(config))
        rows_of(ranks, self.images["train"], config)  # raises now, not after the images are read
        self.hashes: dict[str, list[str]] = {}

    def prepare(self) -> None:
        """Make the data loader and a new state."""
        train, augment, model, images = self.config.train, self.config.augment, self.config.model, self.images["train"]
        on_device = train.augment_on == "device"  # auto is the CPU in runs from before there was a choice
        kind = BatchAugmenter if on_device else Augmenter
        self.dataset = TrainImages(
            images, kind(augment.policy, model.image_size, model.channels, augment.flips), train.seed
        )
        balanced = isinstance(self.config, Config) and self.config.train.balance == "sampler"
        mixed = isinstance(self.config, Config) and bool(self.config.augment.mixup or self.config.augment.cutmix)
        rows = rows_of(self.ranks, images, self.config)
        self.batches = EpochBatches(images.labels, train.batch_size, train.seed, balanced, rows, mixed)
        workers = pick_workers(
            train.workers, augment.policy != "none" and not on_device, images.in_memory, self.device,
            self.ranks.local_world,
        )  # fmt: skip
        self.loader = train_loader(self.dataset, self.batches, workers, self.device.type == "cuda")
        self.state = new_state(self.model, self.config, self.batches.batches, self.device, self.precision)
        if train.micro_batch == "auto":
            self.fit_memory()
        take_rows(self.model, rows)

    def fit_memory(self) -> None:
        """Set how many images are computed at once to what fits the memory."""
        ranks, total = self.ranks, min(self.config.train.batch_size, len(self.images["train"]))
        if ranks.wide and isinstance(self.config, Config) and self.config.train.shard:
            raise UsageError(
                "--batch-size auto measures the whole network, and --shard-model divides it", "name --micro-batch N"
            )
        found = fit_memory(self.state, self.config, ranks.rows(total), self.precision, ranks.local_world)
        sizes = [part.stop - part.start for part in ranks.parts(total, found.micro_batch)]
        self.set_parts(max(sizes), found.grad_checkpointing)
        how = ", with gradient checkpointing" if found.grad_checkpointing else ""
        whose = f" on each of {ranks.world} processes" if ranks.wide else ""
        at_once = self.state.micro_batch
        self.ui.say(
            f"batch: {counted(total, 'image')}, {at_once} at once{whose}{how} ({found.why}; --micro-batch {at_once})"
        )

    def set_parts(self, micro_batch: int, grad_checkpointing: bool) -> None:
        """Change how many images are computed at once, from the next batch and in the configuration."""
        self.state.micro_batch = micro_batch
        checkpoint_gradients(self.model, grad_checkpointing)
        values = {"train.micro_batch": micro_batch, "train.grad_checkpointing": grad_checkpointing}
        self.config = with_values(self.config, values)

    def begin(self, folder: RunFolder) -> None:
        """Write everything known before the first batch, and make a new state."""
        self.folder = folder
        place = pick_place(self.config.train.augment_on, self.device, self.ranks.local_world)
        self.config = with_values(self.config, {"train.augment_on": place})
        self.tune()
        self.prepare()
        write_text(folder.config, store_paths(self.config, folder.path).to_yaml())
        write_json(folder.environment, environment(self.config, self.device, self.precision, self.hashes))
        write_text(folder.splits, splits_csv(self.splits, self.hashes))

    def tune(self) -> None:
        """Settle how a step is computed, where the configuration leaves it open; several processes take the usual."""
        if not is_open(self.config) or self.ranks.wide:
            return
        steps = self.config.train.epochs * max(1, len(self.images["train"]) // self.config.train.batch_size)
        classes = max(1, len(self.splits.classes))
        tuned = autotune(self.model, self.loss_for, self.config, self.device, steps, classes, self.ui)
        self.config = with_values(self.config, tuned.settings(self.config))
        self.precision = replace(pick_precision(tuned.engine.precision, self.device), reason="measured")
        self.ui.say(str(tuned))

    def resume(self, folder: RunFolder, training: dict[str, Any]) -> None:
        """Restore the training state of last.pt."""
        self.folder = folder
        self.prepare()
        try:
            self.state.load_state_dict(training)
        except (KeyError, RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
            problem = f"{folder.last}: its training state does not fit ({first_line(error)})"
            raise CheckpointError(problem, f"{AGAIN}, or start a new run") from None
        write_text(folder.config, store_paths(self.config, folder.path).to_yaml())  # epochs or data folder may be new
        self.write_records()  # a kill may have come between last.pt and metrics.jsonl
        self.ui.say(f"resuming {folder.path} at epoch {self.state.epoch + 1}, batch {self.state.batch + 1}")

    def check_unchanged(self, hashes: dict[str, list[str]]) -> None:
        """Raises DataError if the images are not those of these hashes, by split."""
        if changed := [name for name in hashes if hashes[name] != self.hashes[name]]:
            raise DataError(
                f"{self.splits.root}: images of {', '.join(changed)} have changed since the run began", AS_BEFORE
            )

    def run_epochs(self) -> None:
        """Train until the end, with all ranks. Raises Interrupted after saving last.pt."""
        ranks = self.ranks
        if ranks.leads:
            ranks.send("start", self.start())
            meet(ranks)
        use_attention(self.model, self.config.train.attention)
        if self.config.train.compile:
            compile_network(self.model)
        if ranks.wide and isinstance(self.config, Config) and self.config.train.shard:
            self.state.shard(self.config, ranks, self.device)
        else:
            self.state.network = ranks.wrap(self.model, self.device)
        threads = using_threads(self.config.train.threads)
        with ranks.shared_cores(), threads, stop_signals() as stop, self.ui.bar("training", unit="images") as advance:
            events = fit(self.state, self.loader, self.batches, self.loss_of(), self.validate, self.config, stop, ranks)
            try:
                for event in with_progress(events, self.config, advance):
                    if isinstance(event, Relief):
                        self.set_parts(event.micro_batch, event.grad_checkpointing)
                        write_text(self.folder.config, store_paths(self.config, self.folder.path).to_yaml())
                        self.ui.warn(str(event))
                    else:
                        self.end_epoch(event)
            except (DataError, LeaderReports):  # on all ranks, which save a divided network together
                if self.state.batch % self.config.train.accumulate == 0:  # not amid an optimiser step
                    self.save_last()
                raise
            except RuntimeError as error:
                if ranks.lost(error):
                    problem = "another process of this training has ended; its own error says why"
                    raise VitmedError(problem, f"vitmed {self.command} --resume {self.folder.path}") from None
                if is_of_compiler(error):
                    fix = f"vitmed {self.command} --resume {self.folder.path} --no-compile"
                    raise VitmedError(f"compiling the network failed: {first_line(error)}", fix) from None
                raise
            if ranks.agree(stop=stop()):
                self.save_last()
                raise Interrupted(
                    f"interrupted in epoch {self.state.epoch + 1}; {self.folder.last} is saved",
                    f"vitmed {self.command} --resume {self.folder.path}",
                )

    def start(self) -> Start:
        """What the other ranks need to take part."""
        config = with_values(self.config, {"train.precision": self.precision.name, "train.device": self.device.type})
        return Start(config, self.splits, self.hashes, self.folder, self.state.state_dict(), versions())

    def loss_of(self) -> LossOf:
        """The loss of a batch in training."""
        return self.loss_for(self.state.network, self.precision)

    def loss_for(self, network: nn.Module, precision: Precision) -> LossOf:
        """The loss of a batch for a network that training calls."""
        raise NotImplementedError

    def validate(self) -> Record:
        """The record of the epoch that has just ended."""
        raise NotImplementedError

    def end_epoch(self, record: Record) -> None:
        """Save and report a finished epoch."""
        raise NotImplementedError

    def save_last(self) -> None:
        """Save last.pt, from which `--resume` continues."""
        raise NotImplementedError

    def write_records(self) -> None:
        """Write metrics.jsonl."""
        if not self.ranks.leads:
            return
        write_text(self.folder.metrics, "".join(json.dumps(r, allow_nan=False) + "\n" for r in self.state.history))

    def report_epoch(self, record: Record, monitor: str = "") -> None:
        """Write metrics.jsonl and print a line on the epoch; `monitor` goes in its middle."""
        self.write_records()
        self.ui.say(
            f"epoch {record['epoch']:3}/{self.config.train.epochs}  train loss {record['train_loss']:.4f}  "
            f"val loss {record['val_loss']:.4f}{monitor}  lr {record['lr']:.1e}  "
            f"{record['images_per_second']:,.0f} images/s  {record['wait_share']:.0%} waiting"
        )


class TrainingRun(Run[Config]):
    """The run of `vitmed train`: new or resumed."""

    command = "train"
    model: ViT

    def __init__(
        self, config: Config, splits: Splits, device: torch.device, ui: Ui, weights: Weights | None = None,
        start: str = "from random weights", ranks: Ranks = ALONE,
    ):  # fmt: skip
        super().__init__(config, splits, device, ui, ranks)
        with seeded(config.train.seed):
            model = build_vit(config.model, len(splits.classes))
            if config.train.balance != "none":
                start_balanced(model, self.images["train"].labels)
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
        self._describe(start if weights is None else f"{self.report}; images normalised by {config.data.normalize}")

    def _describe(self, start: str) -> None:
        config, splits, ui = self.config, self.splits, self.ui
        ui.say("vitmed is for research use only; it is not a medical device.")
        ui.say("classes: " + listed([f"{i} {name}" for i, name in enumerate(splits.classes)]))
        if len(splits.classes) == 2:
            positive = config.data.positive or splits.classes[positive_class(splits.classes)]
            ui.say(f"positive class: {positive} (vitmed train --positive chooses the other)")
        for name, samples in splits.samples.items():
            counts = listed([f"{n:,}" for n in splits.counts(name)], mark=" + ")
            unused = "; not evaluated until training ends" if name == "test" else ""
            ui.say(f"{name + ':':6} {counted(len(samples), 'image')} ({counts}), {splits.made[name]}{unused}")
        report_patients(splits, "one patient may be in two splits, which makes results look too good", ui)
        ui.say(f"model: {describe_model(config.model)}; {start}")
        ui.say(f"to be trained: {self._trainable()}")
        shared = f"{self.ranks.world} processes, each on " if self.ranks.wide else ""
        ui.say(f"device: {shared}{describe(self.device)}, {self.precision.name} ({self.precision.reason})")
        if config.train.balance != "none":
            ui.say(
                f"balance {config.train.balance}: probabilities stay at the prevalence of training; "
                f"{'--youden' if len(splits.classes) == 2 else '--balanced'} decides for balanced accuracy"
            )
        if (config.augment.mixup or config.augment.cutmix) and not config.train.freeze:
            ui.warn("mixup and cutmix change calibration: check the log loss and the Brier score")

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
        read = check_images(self.splits, Preprocessing.of(self.config), self.config.data, self.ui)
        self.splits, self.images, self.hashes, self.skipped = read.splits, read.images, read.hashes, read.skipped
        if before := sum(map(set(self.seen).__contains__, self.hashes["test"])):
            self.ui.warn(f"the weights were made with {counted(before, 'test image')}: results look too good")
        return read.records

    def begin(self, folder: RunFolder) -> None:
        super().begin(folder)
        write_json(folder.data_check, {"notes": self.notes, "counts": self.counts})
        write_text(folder.summary, summarise(self.model, self.config.model))
        if self.report is not None:
            write_json(folder.weights, asdict(self.report))

    def resume_from(self, folder: RunFolder, checkpoint: Checkpoint) -> None:
        """Continue from last.pt, perhaps with the data in another folder than before."""
        assert checkpoint.training is not None
        self.seen = checkpoint.seen
        self.resume(folder, checkpoint.training)
        if self.splits.root != checkpoint.splits.root:
            for file in folder.path.glob("*.pt"):  # some are never written again, and later commands read the data root
                set_data_root(file, self.splits.root)

    def loss_for(self, network: nn.Module, precision: Precision) -> LossOf:
        train, classes = self.images["train"], len(self.splits.classes)
        return classification_loss(network, train, classes, self.config, precision, self.ranks)

    def validate(self) -> Record:
        batches, classes = self.batches.batches, self.splits.classes
        with uncompiled(self.config.train.compile):
            return validate(self.state, self.images["val"], classes, batches, self.config, self.precision, self.ranks)

    def run_epochs(self) -> None:
        self.ui.say(
            "in the lines of the epochs, * marks the best so far; waiting is the share of time spent waiting for images"
        )
        super().run_epochs()
        if not self.ranks.leads:
            return
        if not self.folder.best.is_file():
            raise CheckpointError(f"{self.folder.path}: best.pt is missing", "start a new run")
        train, best = self.config.train, self.state.best_epoch
        value = _monitor_text(self.state.history[best - 1], train.monitor)
        self.ui.say(f"{train.choose} epoch: {best}, validation {value}; kept in {self.folder.best.name}")

    def end_epoch(self, record: Record) -> None:
        state, monitor = self.state, self.config.train.monitor
        if record["kept"]:
            self._save(self.folder.best, training=False)
        if self.config.train.save_every and state.epoch % self.config.train.save_every == 0:
            self._save(self.folder.epoch(state.epoch), training=False)
        self.save_last()
        self.report_epoch(record, f"  {_monitor_text(record, monitor)}{' *' if record['best'] else '  '}")
        undefined = [entry for entry in state.history if f"val_{monitor}" not in entry]
        if undefined == [record]:  # for the first time
            self.ui.warn(
                f"validation {monitor} is undefined in epoch {state.epoch}, for example because a class is never "
                "predicted; such an epoch ranks below all others"
            )
        problem = stuck(state.history, self.splits.classes, self.splits.counts("train"), self.config)
        if problem and not self.warned:
            self.ui.warn(problem)
        self.warned = problem is not None
        if state.epoch < self.config.train.epochs and finished(state, self.config):
            self.ui.say(f"stopped early: {monitor} has not improved for {self.config.train.patience} epochs")

    def save_last(self) -> None:
        self._save(self.folder.last, training=True)

    def _save(self, path: Path, training: bool) -> None:
        record = self.state.history[-1] if self.state.history else {}
        weights = full(merged(self.state.evaluated_model))  # by all ranks: each may hold a part
        state = self.state.state_dict() if training else None
        if self.ranks.leads:
            self.save(path, weights, record, state)

    def save(
        self, path: Path, weights: dict[str, torch.Tensor], record: Record, training: dict[str, Any] | None = None
    ) -> None:
        """Save a checkpoint of these weights."""
        save_checkpoint(
            path, config=self.config, splits=self.splits, hashes=self.hashes, weights=weights, record=record,
            training=training, seen=self.seen, fingerprints=self.fingerprints,
        )  # fmt: skip

    def augmented_examples(self, classes: int = 24, per_class: int = 8) -> dict[str, list[np.ndarray]]:
        """Class -> some training images after augmentation and normalisation, as pictures (S, S, C) uint8.

        Args:
            classes: the most classes, evenly spread; per_class: the most images of each.
        """
        shown: dict[str, list[np.ndarray]] = {}
        how, labels = self.images["train"].preprocessing, self.images["train"].labels
        names = self.splits.classes
        for label in np.linspace(0, len(names) - 1, min(classes, len(names))).astype(int):
            of_class = np.flatnonzero(labels == label)
            spread = of_class[:: max(1, len(of_class) // per_class)][:per_class]
            batch = torch.stack([self.dataset[(0, int(index))][0] for index in spread])
            batch = self.dataset.finish(batch, 0, torch.from_numpy(spread))
            shown[names[label]] = list(how.display(how.normalise(batch)).numpy())
        return shown


def _monitor_text(record: Record, monitor: str) -> str:
    """`auroc 0.9123`, or `ppv undefined`."""
    value = record.get(f"val_{monitor}")
    return f"{monitor} undefined" if value is None else f"{monitor} {value:.4f}"


def check_images(splits: Splits, preprocessing: Preprocessing, data: DataConfig, ui: Ui) -> ReadSplits:
    """As `read_splits`; and warn where an image of val or test is in another split too."""
    read = read_splits(splits, preprocessing, data, ui)
    seen = dict.fromkeys(read.hashes["train"], "train")
    for name in ("val", "test"):
        if copies := sum(digest in seen for digest in read.hashes[name]):
            ui.warn(
                f"identical copies of {counted(copies, f'{name} image')} are in another split: results look too good"
            )
        seen |= dict.fromkeys(read.hashes[name], name)
    return read


@contextlib.contextmanager
def all_its_images() -> Iterator[None]:
    """A run that is resumed goes on with all its images: nothing advises to remove one or to leave it out."""
    try:
        yield
    except UnusableFiles as error:
        raise DataError(error.causes(), AS_BEFORE) from None


def splits_csv(splits: Splits, hashes: dict[str, list[str]]) -> str:
    """One row per image: path, sha256, class, group, split, and any other columns of a labels table."""
    rows = [
        [sample.path, digest, splits.classes[sample.label], sample.group or "", name, *sample.columns]
        for name, samples in splits.samples.items()
        for sample, digest in zip(samples, hashes[name], strict=True)
    ]
    head = ["path", "sha256", "class", "group", "split", *splits.columns]
    return csv_text([head, *rows])
