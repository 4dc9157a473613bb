"""Before the first batch of a run: its images, network, loader, state and folder, new or resumed."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Generic

import torch
from torch import nn

from vitmed.core.config import Config
from vitmed.core.csv_files import csv_text
from vitmed.core.data_config import DataConfig
from vitmed.core.errors import CheckpointError, DataError, UsageError
from vitmed.core.files import write_json, write_text
from vitmed.core.load_config import AnyConfig, store_paths, with_values
from vitmed.core.messages import say, warn
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted, first_line, listed
from vitmed.data.loading import (
    EpochBatches,
    TrainImages,
    UnusableFiles,
    images_of,
    pick_place,
    pick_workers,
    train_loader,
)
from vitmed.data.read_images import ReadSplits, read_splits
from vitmed.data.samples import Splits
from vitmed.imaging.augmentation import Augmenter
from vitmed.imaging.batch_augmentation import BatchAugmenter
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.compile import missing_compiler
from vitmed.models.hardware import Precision, pick_precision
from vitmed.models.vit import checkpoint_gradients
from vitmed.models.weights.files import AGAIN
from vitmed.training.environment import environment, versions
from vitmed.training.losses import LossOf
from vitmed.training.plan.autotune import autotune, is_open
from vitmed.training.plan.memory import fit_memory
from vitmed.training.plan.time_budget import Clock
from vitmed.training.processes import ALONE, Ranks
from vitmed.training.train_state import new_state

AS_BEFORE = (
    "restore the files as they were when the run began, then run this again; or start a new run (--on-bad-file skip "
    "leaves unreadable files out)"
)


class RunSetup(Generic[AnyConfig]):
    """What training and pretraining share before the first batch: loader, state, speed, memory, folder; or resume."""

    model: nn.Module
    folder: RunFolder

    def __init__(self, config: AnyConfig, splits: Splits, device: torch.device, ranks: Ranks = ALONE):
        self.config: AnyConfig = config
        self.splits, self.device, self.ranks = splits, ranks.device(device), ranks
        self.precision = pick_precision(config.train.precision, device)
        if config.train.compile and (problem := missing_compiler(device)) is not None:
            raise UsageError(f"--compile: {problem}", "leave --compile out")
        self.images = images_of(splits, Preprocessing.of(config))
        ranks.check_batch(min(config.train.batch_size, len(splits.samples["train"])))
        self.hashes: dict[str, list[str]] = {}
        self.clock = Clock()

    def prepare(self) -> None:
        """Make the data loader and a new state."""
        train, augment, model, images = self.config.train, self.config.augment, self.config.model, self.images["train"]
        on_device = train.augment_on == "device"  # auto is the CPU in runs from before there was a choice
        kind = BatchAugmenter if on_device else Augmenter
        augmenter = kind(augment.policy, model.image_size, model.channels, augment.flips)
        self.dataset = TrainImages(images, augmenter, train.seed)
        balanced = isinstance(self.config, Config) and self.config.train.balance == "sampler"
        self.batches = EpochBatches(images.labels, train.batch_size, train.seed, balanced, self.ranks.share)
        workers = pick_workers(
            train.workers, augment.policy != "none" and not on_device, images.in_memory, self.device,
            self.ranks.local_world,
        )  # fmt: skip
        self.loader = train_loader(self.dataset, self.batches, workers, self.device.type == "cuda")
        self.state = new_state(self.model, self.config, self.batches.batches, self.device, self.precision)
        if train.micro_batch == "auto":
            self.fit_memory()

    def fit_memory(self) -> None:
        """Set how many images are computed at once to what fits the memory."""
        ranks, total = self.ranks, self.batches.size
        if ranks.wide and isinstance(self.config, Config) and self.config.train.shard:
            raise UsageError(
                "--batch-size auto measures the whole network, and --shard-model divides it", "name --micro-batch N"
            )
        most = -(-total // ranks.world)
        found = ranks.first(lambda: fit_memory(self.state, self.config, most, self.precision, ranks.local_world))
        sizes = [part.stop - part.start for part in ranks.parts(total, found.micro_batch)]
        self.set_parts(max(sizes), found.grad_checkpointing)
        how = ", with gradient checkpointing" if found.grad_checkpointing else ""
        whose = f" on each of {ranks.world} processes" if ranks.wide else ""
        at_once = self.state.micro_batch
        say(f"batch: {counted(total, 'image')}, {at_once} at once{whose}{how} ({found.why}; --micro-batch {at_once})")

    def set_parts(self, micro_batch: int, grad_checkpointing: bool) -> None:
        """Change how many images are computed at once, from the next batch and in the configuration."""
        self.state.micro_batch = micro_batch
        checkpoint_gradients(self.model, grad_checkpointing)
        values = {"train.micro_batch": micro_batch, "train.grad_checkpointing": grad_checkpointing}
        self.config = with_values(self.config, values)

    def begin(self, folder: RunFolder) -> None:
        """Write everything known before the first batch, and make a new state."""
        self.folder = folder
        train, ranks = self.config.train, self.ranks
        place = ranks.first(lambda: pick_place(train.augment_on, self.device, ranks.local_world))
        self.config = with_values(self.config, {"train.augment_on": place})
        self.tune()
        self.prepare()
        ranks.first(self.write_start)

    def write_start(self) -> None:
        """Write everything known before the first batch."""
        folder = self.folder
        self.write_config()
        write_json(folder.environment, environment(self.config, self.device, self.precision, self.hashes))
        write_text(folder.splits, splits_csv(self.splits, self.hashes))

    def write_config(self) -> None:
        """Write config.yaml."""
        write_text(self.folder.config, store_paths(self.config, self.folder.path).to_yaml())

    def tune(self) -> None:
        """Settle how a step is computed, where the configuration leaves it open; several processes take the usual."""
        if not is_open(self.config) or self.ranks.wide:
            return
        steps = self.config.train.epochs * max(1, len(self.images["train"]) // self.config.train.batch_size)
        targets = self.images["train"].targets
        tuned = autotune(self.model, self.loss_for, self.config, self.device, steps, targets)
        self.config = with_values(self.config, tuned.settings(self.config))
        if tuned.rates is not None:  # else the usual arithmetic stays, with its own reason
            self.precision = replace(pick_precision(tuned.engine.precision, self.device), reason="measured")
        say(str(tuned))

    def resume(self, folder: RunFolder, training: dict[str, Any]) -> None:
        """Restore the training state of last.pt."""
        self.folder = folder
        self.prepare()
        try:
            self.state.load_state_dict(training)
        except (KeyError, RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
            problem = f"{folder.last}: its training state does not fit ({first_line(error)})"
            raise CheckpointError(problem, f"{AGAIN}, or start a new run") from None
        self.clock.go_on(self.state.spent)
        self.ranks.first(self.write_config)  # epochs or data folder may be new
        self.ranks.first(self.write_records)  # a kill may have come between last.pt and metrics.jsonl
        say(f"resuming {folder.path} at epoch {self.state.epoch + 1}, batch {self.state.batch + 1}")

    def check_unchanged(self, hashes: dict[str, list[str]]) -> None:
        """Raises DataError if the images are not those of these hashes, by split."""
        if changed := [name for name in hashes if hashes[name] != self.hashes[name]]:
            raise DataError(
                f"{self.splits.root}: images of {', '.join(changed)} have changed since the run began", AS_BEFORE
            )

    def check_ranks(self) -> None:
        """Raises UsageError or DataError if versions, device or images of this rank are not those of rank 0."""
        own = versions() | {"device": self.device.type, "precision": self.precision.name}
        known: dict[str, str] = self.ranks.first(lambda: own)
        if other := [name for name in own if own[name] != known[name]]:
            here, there = (listed([f"{name} {found[name]}" for name in other]) for found in (own, known))
            raise UsageError(f"has {here}, rank 0 has {there}", "install the same versions on the same machines")
        images = digests(self.splits, self.hashes)
        first = self.ranks.first(lambda: images)
        if changed := [name for name in first if images.get(name) != first[name]]:
            raise DataError(
                f"{self.splits.root}: images or labels of {listed(changed)} differ from those of rank 0",
                "copy the data folder of rank 0 to every machine",
            )

    def loss_for(self, network: nn.Module, precision: Precision) -> LossOf:
        """The loss of a batch for a network that training calls."""
        raise NotImplementedError

    def write_records(self) -> None:
        """Write metrics.jsonl."""
        write_text(self.folder.metrics, "".join(json.dumps(r, allow_nan=False) + "\n" for r in self.state.history))


def check_images(splits: Splits, preprocessing: Preprocessing, data: DataConfig) -> ReadSplits:
    """As `read_splits`; and warn where an image of val or test is in another split too."""
    read = read_splits(splits, preprocessing, data)
    seen = dict.fromkeys(read.hashes["train"], "train")
    for name in ("val", "test"):
        if copies := sum(digest in seen for digest in read.hashes[name]):
            warn(f"identical copies of {counted(copies, f'{name} image')} are in another split: results look too good")
        seen |= dict.fromkeys(read.hashes[name], name)
    return read


def digests(splits: Splits, hashes: dict[str, list[str]]) -> dict[str, str]:
    """Split -> sha256 of the paths, the labels and the files of its images."""
    texts = {name: "\n".join([*map(str, part), *hashes[name]]) for name, part in splits.samples.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


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
        [sample.path, digest, splits.text_of(sample), sample.group or "", name, *sample.columns]
        for name, samples in splits.samples.items()
        for sample, digest in zip(samples, hashes[name], strict=True)
    ]
    head = ["path", "sha256", "class", "group", "split", *splits.columns]
    return csv_text([head, *rows])
