"""The training loop: a generator of the records of its epochs, with one arithmetic path. The caller logs and saves.

All randomness is a pure function of (seed, epoch, step, index), so a run that resumes from a saved state computes
what the uninterrupted run would have computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from torch import Tensor

from vitmed.core.errors import DataError, Reported
from vitmed.imaging.augmentation import without_opencv_threads
from vitmed.training.early_stopping import end_epoch, finished, speed
from vitmed.training.failure_detection import LossWatch
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
