"""The training loop: a generator of the records of its epochs, with one arithmetic path. The caller logs and saves.

All randomness is a pure function of (seed, epoch, step, index), so a run that resumes from a saved state computes
what the uninterrupted run would have computed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from torch import Tensor

from vitmed.core.config import Config, PretrainConfig
from vitmed.core.errors import DataError, Reported, VitmedError
from vitmed.imaging.augmentation import without_opencv_threads
from vitmed.training.early_stopping import end_epoch, finished, speed
from vitmed.training.gradients import Gradients, clip_gradients
from vitmed.training.losses import Objective
from vitmed.training.optimiser import scheduled_lr, set_learning_rate
from vitmed.training.stream import Control, Step, Stream
from vitmed.training.train_state import Record, TrainState


def fit(
    state: TrainState, stream: Stream, objective: Objective, control: Control, validate: Callable[[], Record]
) -> Iterator[Record]:
    """Train until epochs, patience or time are used or `control.stop()` is true; yield the record of every epoch.

    `state` can be saved when a record comes and when `fit` returns.

    Args:
        validate: returns the record of the epoch that has just ended.

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


def not_finite(what: str, files: Sequence[str], epoch: int, config: Config | PretrainConfig) -> tuple[str, str]:
    """Problem and fix for a loss or gradient that is NaN or infinite; names the batch's files."""
    listed = "\n  ".join(files)
    problem = f"the {what} became NaN or infinite in epoch {epoch}, in the batch of these files:\n  {listed}"
    fix = f"look at these images; if they are fine, try --lr {config.train.lr / 10:g}"
    if config.train.precision != "fp32":
        fix += " or --set train.precision=fp32"
    return problem, fix


class LossWatch:
    """Sum the loss of an epoch in `TrainState.running`, and check that it is finite.

    It checks one batch late, so training does not wait for the GPU.
    """

    def __init__(self, state: TrainState, stream: Stream, control: Control):
        self.state, self.stream, self.control, self.running = state, stream, control, state.running
        self.pending: tuple[Tensor, Tensor, Tensor] | None = None  # of the last batch, as `add` takes it

    @property
    def mean(self) -> float:
        """Mean loss over the images of the epoch that are in the sum."""
        waiting = self.stream.batches.size if self.pending else 0
        return self.running["loss"] / max(1, self.running["images"] - waiting)

    def add(self, loss: Tensor, norm: Tensor, indices: Tensor) -> None:
        """Note the loss and gradient norm of a batch of sample indices; on all ranks those of the whole batch.

        Raises as `flush`, for the batch before.
        """
        self.flush()
        self.pending = (loss, norm, indices)
        if not self.running["images"]:
            self.flush()  # so that the first batch has a loss to show
        self.running["images"] += self.stream.batches.size

    def flush(self) -> None:
        """Raises VitmedError if the last batch's loss or gradient is not finite, naming its files."""
        if self.pending is None:
            return
        (loss, norm, indices), self.pending = self.pending, None
        value, scaled = float(loss), self.state.scaler.is_enabled()  # a scaler skips the steps of infinite gradients
        if not math.isfinite(value) or not (scaled or math.isfinite(float(norm))):
            what, samples = "gradient" if math.isfinite(value) else "loss", self.stream.dataset.images.samples
            gathered = self.control.ranks.gather([samples[i].path for i in indices.tolist()])
            files = dict.fromkeys(chain.from_iterable(gathered))  # of a balanced sampler one may come twice
            raise VitmedError(*not_finite(what, list(files), self.state.epoch + 1, self.control.config))
        self.running["loss"] += value * self.stream.batches.size
