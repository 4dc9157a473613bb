"""The training loop: a generator of the records of its epochs. The caller logs and saves.

All randomness is a pure function of (seed, epoch, step, index), so a run that resumes from a saved state computes
what the uninterrupted run would have computed.

Where memory is short, the gradients of a step are computed in parts; when it runs out, the parts are halved. A batch is
normalised and mixed as a whole, so the parts add up to the gradient of the whole batch, up to rounding, the masks of
dropout and drop path, and the statistics of batch norm, which each part has of its own.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from vitmed.core.config import AugmentConfig, Config, PretrainConfig
from vitmed.core.errors import DataError, OutOfMemoryError, Reported, VitmedError
from vitmed.core.text import counted
from vitmed.data.loading import EpochBatches, Images, TrainImages, pick_workers, seed_of, train_loader
from vitmed.imaging.augmentation import Augmenter, without_opencv_threads
from vitmed.models.hardware import seeded
from vitmed.models.vit import checkpoint_gradients, checkpoints_gradients
from vitmed.training.early_stopping import finished
from vitmed.training.losses import Objective
from vitmed.training.optimiser import scheduled_lr
from vitmed.training.out_of_memory import is_out_of_memory
from vitmed.training.processes import ALONE, Ranks, sync_gradients, whole
from vitmed.training.train_state import RUNNING, Record, TrainState

MASKS = 1  # marks the seed of dropout and drop path; mixing has another


class Batch(NamedTuple):
    """A rank's share of a batch."""

    number: int  # in the epoch
    images: Tensor  # (B, S, S, C) uint8
    labels: Tensor  # (B, ...)
    indices: Tensor  # (B,), rows of the images in their split
    last: bool  # whether a step ends with it


@dataclass(frozen=True)
class Stream:
    """The training images as batches, in an order that is a pure function of the seed and the epoch. `batches` says how
    many an epoch has and how many images each; an optimiser step takes `accumulate` of them."""

    loader: DataLoader
    dataset: TrainImages
    batches: EpochBatches
    device: torch.device
    accumulate: int

    @classmethod
    def of(cls, images: Images, config: Config | PretrainConfig, device: torch.device, ranks: Ranks = ALONE) -> Self:
        """The batches of a configuration, of which each rank reads its share."""
        train, augment, model = config.train, config.augment, config.model
        crop = augment.crop if isinstance(augment, AugmentConfig) else 1.0
        augmenter = Augmenter(augment.policy, model.image_size, model.channels, augment.flips, crop)
        batches = EpochBatches(images.labels, train.batch_size, train.seed, train.balance == "sampler", ranks.share)
        workers = pick_workers(train.workers, bool(augmenter.steps), images.in_memory, device, ranks.local_world)
        dataset = TrainImages(images, augmenter, train.seed)
        loader = train_loader(dataset, batches, workers, device.type == "cuda")
        return cls(loader, dataset, batches, device, train.accumulate)

    def rest(self, state: TrainState, ranks: Ranks) -> Iterator[Batch]:
        """The remaining batches of the current epoch. Raises DataError for an image that can no longer be read."""
        self.batches.epoch, self.batches.start = state.epoch, state.batch
        for number, batch in enumerate(self.loader, state.batch):
            ranks.agree(batch if isinstance(batch, DataError) else None)
            images, labels, indices = batch
            ends = (number + 1) % self.accumulate == 0 or number + 1 == self.batches.batches
            images, labels = (part.to(self.device, non_blocking=True) for part in (images, labels))
            yield Batch(number, images, labels, indices, ends)


@dataclass(frozen=True)
class Control:
    """What the loop asks and tells its caller. If one rank says `stop`, all end after the current step. `tick` is
    called before every optimiser step and after validation; with a time limit it sets `TrainState.share`."""

    config: Config | PretrainConfig
    stop: Callable[[], bool] = lambda: False
    tick: Callable[[], None] = lambda: None
    ranks: Ranks = ALONE
    shown: Callable[[float], None] = lambda loss: None  # after every batch, the mean loss of the epoch (`LossWatch`)
    relieved: Callable[[str], None] = lambda sentence: None  # memory ran out, and the state computes fewer at once


def fit(
    state: TrainState, stream: Stream, objective: Objective, control: Control, validate: Callable[[], Record]
) -> Iterator[Record]:
    """Train until epochs, patience or time are used or `control.stop()` is true; yield what `validate` returns as the
    record of every epoch. `state` can be saved when a record comes and when `fit` returns.

    Raises:
        VitmedError: the loss or a gradient is NaN or infinite; names the files of the batch.
        OutOfMemoryError: one image at once is too much.
    """
    control.tick()
    while not finished(state, control.config) and not control.ranks.agree(stop=control.stop()):
        if not train_epoch(state, stream, objective, control):
            return
        record = validate()
        control.tick()
        state.history.append(record)
        state.epoch, state.batch, state.running = state.epoch + 1, 0, dict.fromkeys(RUNNING, 0.0)
        yield record


def train_epoch(state: TrainState, stream: Stream, objective: Objective, control: Control) -> bool:
    """Train on the remaining batches of the current epoch, or until the time is used; False if a stop ended it."""
    config, ranks, count, stopped = control.config, control.ranks, stream.batches.batches, False
    watch, gradients = LossWatch(state, stream, control), Gradients(state, stream, objective, control)
    state.model.train()
    clock = time.perf_counter()
    with without_opencv_threads():
        try:
            for batch in stream.rest(state, ranks):
                state.running["waited"] += time.perf_counter() - clock
                loss = norm = ranks.mean(gradients.add(batch))
                state.batch += 1
                if batch.last:
                    control.tick()
                    lr = scheduled_lr(state.step, count, config, state.share)
                    norm = optimiser_step(state, lr, config.train.clip_norm)
                mean = watch.add(loss, norm, batch.indices)
                state.running["seconds"] += time.perf_counter() - clock
                clock = time.perf_counter()
                control.shown(mean)
                stopped = batch.last and ranks.agree(stop=control.stop())
                if stopped or (batch.last and state.share >= 1):
                    break
        except (DataError, Reported):  # an image that can no longer be read
            watch.flush()
            raise
    watch.flush()
    return not stopped


def optimiser_step(state: TrainState, lr: float, clip_norm: float | None) -> Tensor:
    """One step of the optimiser and of the moving average; returns the gradient norm before clipping, ()."""
    for group in state.optimiser.param_groups:
        group["lr"] = lr * group["scale"]
    state.scaler.unscale_(state.optimiser)
    norm = whole(torch.nn.utils.clip_grad_norm_(state.model.parameters(), clip_norm or float("inf")))
    state.scaler.step(state.optimiser)
    state.scaler.update()
    state.optimiser.zero_grad(set_to_none=True)
    state.step += 1
    if state.ema is not None:
        state.ema.update_parameters(state.model)
    return norm


class LossWatch:
    """Sum the loss of an epoch in `TrainState.running`, and check that it is finite: one batch late, so that training
    does not wait for the GPU."""

    def __init__(self, state: TrainState, stream: Stream, control: Control):
        self.state, self.stream, self.control, self.running = state, stream, control, state.running
        self.pending: tuple[Tensor, Tensor, Tensor] | None = None  # of the last batch, as `add` takes it

    def add(self, loss: Tensor, norm: Tensor, indices: Tensor) -> float:
        """Note the loss and gradient norm of a batch of sample indices, on all ranks those of the whole batch; return
        the mean loss over the images of the epoch that are in the sum. Raises as `flush`, for the batch before."""
        self.flush()
        self.pending = (loss, norm, indices)
        if not self.running["images"]:
            self.flush()  # so that the first batch has a loss to show
        self.running["images"] += self.stream.batches.size
        waiting = self.stream.batches.size if self.pending else 0
        return self.running["loss"] / max(1, self.running["images"] - waiting)

    def flush(self) -> None:
        """Raises VitmedError if the last batch's loss or gradient is not finite, naming its files."""
        if self.pending is None:
            return
        (loss, norm, indices), self.pending = self.pending, None
        value, scaler = float(loss), self.state.scaler
        skips = scaler.is_enabled() and scaler.get_scale() >= 1  # of an infinite gradient; the scale halves each time
        if not math.isfinite(value) or not (skips or math.isfinite(float(norm))):
            what, samples = "gradient" if math.isfinite(value) else "loss", self.stream.dataset.images.samples
            gathered = self.control.ranks.gather([samples[i].path for i in indices.tolist()])
            files = "\n  ".join(dict.fromkeys(path for of_rank in gathered for path in of_rank))  # drawn twice, perhaps
            epoch, train = self.state.epoch + 1, self.control.config.train
            problem = f"the {what} became NaN or infinite in epoch {epoch}, in the batch of these files:\n  {files}"
            fix = f"look at these images; if they are fine, try --lr {train.lr / 10:g}"
            raise VitmedError(problem, fix + " or --set train.precision=fp32" * (train.precision != "fp32"))
        self.running["loss"] += value * self.stream.batches.size


class Gradients:
    """Adds the gradients of batches to the model; each rank computes its share, with dropout masks of its own."""

    def __init__(self, state: TrainState, stream: Stream, objective: Objective, control: Control):
        self.state, self.stream, self.objective, self.control = state, stream, objective, control
        norms = [module for module in state.model.modules() if isinstance(module, nn.BatchNorm2d)]
        self.statistics = [buffer for module in norms for buffer in module.buffers()]
        self.under_way: list[Batch] = []  # the batches that the next optimiser step has so far

    def add(self, batch: Batch) -> Tensor:
        """Add the gradients of a batch on the device; return this rank's loss, ().

        When memory runs out, the step begins again: all its batches are computed in parts of half as many images, of
        one image with gradient checkpointing. With several ranks that is an error, because the others wait for the
        gradients of the one that would begin again.

        Raises OutOfMemoryError if memory runs out with one image at once and gradient checkpointing, RuntimeError if
        it does so with several ranks.
        """
        state, ranks = self.state, self.control.ranks
        if not self.under_way and not ranks.wide:
            self.before = [buffer.clone() for buffer in self.statistics]
        self.under_way.append(batch)
        todo, loss = [batch], torch.tensor(0.0)
        while True:
            try:
                for part in todo:
                    loss = self._add(part)
                break
            except (RuntimeError, MemoryError) as error:
                if ranks.wide or not is_out_of_memory(error):
                    raise
            todo = self.under_way  # not in the except clause, whose error holds on to the memory
            at_once = max(part.stop - part.start for part in ranks.parts(self.stream.batches.size, state.micro_batch))
            if at_once == 1 and checkpoints_gradients(state.model):
                images = f"{counted(len(batch.labels), 'image')} of {self.control.config.model.image_size} px"
                problem = f"out of memory with batches of {images}, computed one by one with gradient checkpointing"
                raise OutOfMemoryError(problem, "a smaller --image-size or --model, or a device with more memory")
            if at_once == 1:
                checkpoint_gradients(state.model)
            state.micro_batch = -(-at_once // 2)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            how = "gradient checkpointing" if at_once == 1 else f"{state.micro_batch} at once"
            images = counted(at_once, "image")
            self.control.relieved(f"out of memory with {images} at once; the same batch is computed with {how}")
            state.optimiser.zero_grad(set_to_none=True)
            for buffer, value in zip(self.statistics, self.before, strict=True):
                buffer.copy_(value)
        if batch.last:
            self.under_way = []
        return loss

    def _add(self, batch: Batch) -> Tensor:
        state, train, ranks, device = self.state, self.control.config.train, self.control.ranks, batch.images.device
        batches, seed = self.stream.batches, train.seed + ranks.rank
        with seeded(seed_of(seed, state.epoch, batch.number), device):  # mixing, hidden patches
            prepared = self.objective.prepare(batch.images, batch.labels, ranks)
        first = batch.number - batch.number % train.accumulate  # a step averages over the batches from here
        scale = 1 / min(train.accumulate, batches.batches - first)
        parts = ranks.parts(batches.size, state.micro_batch)
        total = torch.zeros((), device=device)
        with seeded(seed_of(seed, state.epoch, batch.number, MASKS), device):  # dropout, drop path
            for rows in parts:
                sync_gradients(state.network, on=batch.last and rows is parts[-1])
                loss = self.objective.part(state.network, prepared, rows)
                state.scaler.scale(loss * scale).backward()
                total += loss.detach()
        return total
