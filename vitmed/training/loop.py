"""The training loop: a generator of the records of its epochs, with one arithmetic path. The caller logs and saves.

All randomness is a pure function of (seed, epoch, step, index), so a run that resumes from a saved state computes
what the uninterrupted run would have computed.

Where memory is short, the gradients of a step are computed in parts; when it runs out, the parts are halved. A batch is
normalised and mixed as a whole, so the parts add up to what it gives at once (up to rounding, to the masks of dropout
and drop path, and to the statistics of batch norm, which are those of a part).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from vitmed.core.errors import DataError, OutOfMemoryError, Reported
from vitmed.core.text import counted
from vitmed.data.loading import seed_of
from vitmed.imaging.augmentation import without_opencv_threads
from vitmed.models.hardware import seeded
from vitmed.models.vit import checkpoint_gradients, checkpoints_gradients
from vitmed.training.early_stopping import LossWatch, end_epoch, finished, speed
from vitmed.training.losses import Objective
from vitmed.training.optimiser import scheduled_lr, set_learning_rate
from vitmed.training.out_of_memory import is_out_of_memory
from vitmed.training.processes import sync_gradients, whole
from vitmed.training.stream import Batch, Control, Step, Stream
from vitmed.training.train_state import Record, TrainState

MASKS = 1  # marks the seed of dropout and drop path; mixing has another


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
        end_epoch(state, record)
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
                loss = norm = ranks.mean(gradients.add(stream.placed(batch, state.epoch)))
                state.batch += 1
                if batch.last:
                    control.tick()
                    lr = scheduled_lr(state.step, count, config, state.share)
                    norm = optimiser_step(state, lr, config.train.clip_norm)
                watch.add(loss, norm, batch.indices)
                state.running["seconds"] += time.perf_counter() - clock
                clock = time.perf_counter()
                control.shown(Step(state.epoch + 1, state.batch, count, watch.mean, *speed(state), state.share))
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
    set_learning_rate(state.optimiser, lr)
    state.scaler.unscale_(state.optimiser)
    norm = clip_gradients(state.model, clip_norm)
    state.scaler.step(state.optimiser)
    state.scaler.update()
    state.optimiser.zero_grad(set_to_none=True)
    state.step += 1
    if state.ema is not None:
        state.ema.update_parameters(state.model)
    return norm


class Gradients:
    """Adds the gradients of batches to those of the model; each rank those of its share, with masks of its own."""

    def __init__(self, state: TrainState, stream: Stream, objective: Objective, control: Control):
        self.state, self.stream, self.objective, self.control = state, stream, objective, control
        norms = [module for module in state.model.modules() if isinstance(module, nn.BatchNorm2d)]
        self.statistics = [buffer for module in norms for buffer in module.buffers()]
        self.under_way: list[Batch] = []  # the batches that the next optimiser step has so far

    def add(self, batch: Batch) -> Tensor:
        """Add those of a batch on the device; return its loss, (), of which the ranks take the mean.

        Where memory runs out, what the step has added is thrown away, and all its batches are computed in smaller
        parts. Several ranks do not do so: the others wait for the gradients of the one that would begin again.

        Raises OutOfMemoryError if memory runs out with one image at once and gradient checkpointing, RuntimeError if
        it does so with several ranks.
        """
        wide = self.control.ranks.wide
        if not self.under_way and not wide:
            self.before = [buffer.clone() for buffer in self.statistics]
        self.under_way.append(batch)
        todo, loss = [batch], torch.tensor(0.0)
        while todo:
            try:
                for part in todo:
                    loss = self._add(part)
                todo = []
            except (RuntimeError, MemoryError) as error:
                if wide or not is_out_of_memory(error):
                    raise
                todo = self.under_way
            if todo:  # not in the except clause, whose error holds on to the memory
                self._halve_micro_batch(batch)
                self.state.optimiser.zero_grad(set_to_none=True)
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

    def _halve_micro_batch(self, batch: Batch) -> None:
        """From now on compute half as many images at once, or, where it is one already, checkpoint gradients."""
        state, parts = self.state, self.control.ranks.parts(self.stream.batches.size, self.state.micro_batch)
        before = max(part.stop - part.start for part in parts)
        if before == 1 and checkpoints_gradients(state.model):
            images = f"{counted(len(batch.labels), 'image')} of {self.control.config.model.image_size} px"
            problem = f"out of memory with batches of {images}, computed one by one with gradient checkpointing"
            raise OutOfMemoryError(problem, "a smaller --image-size or --model, or a device with more memory")
        if before == 1:
            checkpoint_gradients(state.model)
        state.micro_batch = -(-before // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        how = "gradient checkpointing" if before == 1 else f"{state.micro_batch} at once"
        at_once = counted(before, "image")
        self.control.relieved(f"out of memory with {at_once} at once; the same batch is computed with {how}")


def clip_gradients(model: nn.Module, most: float | None) -> Tensor:
    """Scale the gradients to a norm of at most `most`; returns the norm before, ()."""
    return whole(torch.nn.utils.clip_grad_norm_(model.parameters(), most or float("inf")))
