"""What the loop reads: the batches of training images, and what ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vitmed.core.config import Config, PretrainConfig
from vitmed.core.errors import DataError
from vitmed.core.messages import Advance
from vitmed.core.sections import AugmentConfig
from vitmed.data.loading import EpochBatches, Images, TrainImages, pick_workers, train_loader
from vitmed.imaging.augmentation import Augmenter
from vitmed.imaging.batch_augmentation import BatchAugmenter
from vitmed.training.processes import ALONE, Ranks
from vitmed.training.train_state import TrainState


class Batch(NamedTuple):
    """A rank's share of a batch: its number in the epoch, images (B, S, S, C) uint8, labels (B, ...), the rows of the
    images in their split (B,), and whether a step ends with it."""

    number: int
    images: Tensor
    labels: Tensor
    indices: Tensor
    last: bool


@dataclass(frozen=True)
class Stream:
    """The training images as batches, in an order that is a pure function of the seed and the epoch; an optimiser step
    accumulates so many of them."""

    loader: DataLoader
    device: torch.device
    accumulate: int = 1

    @classmethod
    def of(cls, images: Images, config: Config | PretrainConfig, device: torch.device, ranks: Ranks = ALONE) -> Stream:
        """The batches of a configuration, of which each rank reads its share."""
        train, augment, model = config.train, config.augment, config.model
        on_device = train.augment_on == "device"  # auto is the CPU in runs from before there was a choice
        kind = BatchAugmenter if on_device else Augmenter
        crop = augment.crop if isinstance(augment, AugmentConfig) else 1.0
        augmenter = kind(augment.policy, model.image_size, model.channels, augment.flips, crop)
        batches = EpochBatches(images.labels, train.batch_size, train.seed, train.balance == "sampler", ranks.share)
        augments = isinstance(augmenter, Augmenter) and bool(augmenter.steps)
        workers = pick_workers(train.workers, augments, images.in_memory, device, ranks.local_world)
        dataset = TrainImages(images, augmenter, train.seed)
        return cls(train_loader(dataset, batches, workers, device.type == "cuda"), device, train.accumulate)

    @property
    def dataset(self) -> TrainImages:
        return cast(TrainImages, self.loader.dataset)

    @property
    def batches(self) -> EpochBatches:
        """How many batches an epoch has, and how many images each."""
        return cast(EpochBatches, self.loader.batch_sampler)

    def rest(self, state: TrainState, ranks: Ranks) -> Iterator[Batch]:
        """The batches that are left of the current epoch. Raises DataError for an image that can no longer be read."""
        self.batches.epoch, self.batches.start = state.epoch, state.batch
        for number, batch in enumerate(self.loader, state.batch):
            ranks.agree(batch if isinstance(batch, DataError) else None)
            images, labels, indices = batch
            ends = (number + 1) % self.accumulate == 0 or number + 1 == self.batches.batches
            yield Batch(number, images, labels, indices, ends)

    def placed(self, batch: Batch, epoch: int) -> Batch:
        """The batch on the device, and augmented where the device does that."""
        images, labels = (part.to(self.device, non_blocking=True) for part in (batch.images, batch.labels))
        return batch._replace(images=self.dataset.finish(images, epoch, batch.indices), labels=labels)


class Step(NamedTuple):
    """After every batch: mean loss of the epoch so far, but for the current batch (see `LossWatch`), images/s, share of
    time spent waiting for data, and the share of the time for training that is used, where it is limited."""

    epoch: int
    batch: int
    batches: int
    loss: float
    images_per_second: float
    wait_share: float
    time_share: float

    def show(self, config: Config | PretrainConfig, advance: Advance) -> None:
        """Move a progress bar."""
        total = config.train.epochs * self.batches
        done = max((self.epoch - 1) * self.batches + self.batch, round(self.time_share * total))
        text = f"epoch {epoch_of(self.epoch, self.time_share, config)}  loss {self.loss:.4f}"
        text += f"  {self.images_per_second:,.0f} images/s  {self.wait_share:.0%} waiting for data"
        advance(min(done, total), total, text)


def epoch_of(epoch: int, share: float, config: Config | PretrainConfig) -> str:
    """` 12/100`; where the time is limited, ` 12, 34% of the time`."""
    return f"{epoch:3}, {share:4.0%} of the time" if config.train.time else f"{epoch:3}/{config.train.epochs}"


@dataclass(frozen=True)
class Control:
    """How a training goes, and what ends it.

    Attributes:
        stop: whether to end after the current step; one rank that says so ends all.
        tick: called before every optimiser step and after validation; it sets `TrainState.share` of a limited time.
        shown: called after every batch.
        relieved: called, with a sentence, when memory ran out and the state computes fewer images at once.
    """

    config: Config | PretrainConfig
    stop: Callable[[], bool] = lambda: False
    tick: Callable[[], None] = lambda: None
    ranks: Ranks = ALONE
    shown: Callable[[Step], None] = lambda step: None
    relieved: Callable[[str], None] = lambda sentence: None
