"""The training loop: a generator of events, with one arithmetic path. The caller logs and saves.

All randomness is a pure function of (seed, epoch, step, index), so a run that resumes from a saved state computes
what the uninterrupted run would have computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vitmed.core.config import Config
from vitmed.core.errors import DataError, VitmedError
from vitmed.core.pretrain_config import PretrainConfig
from vitmed.data.loading import EpochBatches
from vitmed.imaging.augmentation import without_opencv_threads
from vitmed.training.epoch_records import end_epoch, finished, speed
from vitmed.training.failure_detection import LossWatch
from vitmed.training.gradients import Batch, Gradients, Relief
from vitmed.training.losses import LossOf
from vitmed.training.optimiser import scheduled_lr, set_learning_rate
from vitmed.training.processes import ALONE, Ranks, whole
from vitmed.training.train_state import Record, TrainState


@dataclass(frozen=True)
class Step:
    """After every batch: mean loss of the epoch so far, images/s, share of time spent waiting for data, and the share
    of the time for training that is used, where it is limited.

    The loss leaves out the current batch (see `failure_detection.LossWatch`), except after the first.
    """

    epoch: int
    batch: int
    batches: int
    loss: float
    images_per_second: float
    wait_share: float
    time_share: float


def fit(
    state: TrainState,
    loader: DataLoader,
    batches: EpochBatches,
    loss_of: LossOf,
    validate: Callable[[], Record],
    config: Config | PretrainConfig,
    stop: Callable[[], bool] = lambda: False,
    ranks: Ranks = ALONE,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[Step | Relief | Record]:
    """Train until epochs, patience or time are used or `stop()` is true; yield every step, and every record.

    `state` can be saved when an epoch's record comes and when `fit` returns.

    Args:
        loss_of, tick: as in `train_epoch`.
        validate: returns the record of the epoch that has just ended.
        ranks: share every batch, and end together.

    Raises:
        VitmedError: the loss or a gradient is NaN or infinite; names the files of the batch.
        OutOfMemoryError: one image at once is too much.
    """
    tick()
    while not finished(state, config) and not ranks.agree(stop=stop()):
        if not (yield from train_epoch(state, loader, batches, loss_of, config, stop, ranks=ranks, tick=tick)):
            return
        record = validate()
        tick()
        end_epoch(state, record)
        yield record


def train_epoch(
    state: TrainState,
    loader: DataLoader,
    batches: EpochBatches,
    loss_of: LossOf,
    config: Config | PretrainConfig,
    stop: Callable[[], bool],
    ranks: Ranks = ALONE,
    tick: Callable[[], None] = lambda: None,
) -> Generator[Step | Relief, None, bool]:
    """Train on the remaining batches of the current epoch, or until the time is used; False if `stop()` ended it.

    Args:
        loss_of: torch's generators are seeded for the batch during each call.
        stop: whether to end after the current step; one rank that says so ends all.
        ranks: share every batch.
        tick: called before every optimiser step, and by `fit` after validation; it sets `state.share` where the time is
            limited.
    """
    train, count = config.train, batches.batches
    device = next(state.model.parameters()).device
    samples, scaled = loader.dataset.images.samples, state.scaler.is_enabled()  # type: ignore[attr-defined]
    watch = LossWatch(state.running, samples, state.epoch + 1, config, scaled, batches.size, ranks)
    gradients, under_way = Gradients(state, loss_of, config, batches, ranks), list[Batch]()
    batches.epoch, batches.start = state.epoch, state.batch
    state.model.train()
    clock = time.perf_counter()
    with without_opencv_threads():
        for batch in loader:
            try:
                ranks.agree(batch if isinstance(batch, DataError) else None)  # an image that can no longer be read
            except VitmedError:
                watch.flush()
                raise
            images, labels, indices = batch
            state.running["waited"] += time.perf_counter() - clock
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            images = loader.dataset.finish(images, state.epoch, indices)  # type: ignore[attr-defined]
            stepped = (state.batch + 1) % train.accumulate == 0 or state.batch + 1 == count
            under_way.append(Batch(state.batch, images, labels, stepped))
            loss = norm = ranks.mean((yield from gradients.add(under_way)))
            state.batch += 1
            if stepped:
                tick()
                lr = scheduled_lr(state.step, count, config, state.share)
                norm = optimiser_step(state, lr, train.clip_norm)
                under_way.clear()
            watch.add(loss, norm, indices)
            state.running["seconds"] += time.perf_counter() - clock
            clock = time.perf_counter()
            yield Step(state.epoch + 1, state.batch, count, watch.mean, *speed(state), state.share)
            if stepped and ranks.agree(stop=stop()):
                watch.flush()
                return False
            if stepped and state.share >= 1:
                break
    watch.flush()
    return True


def optimiser_step(state: TrainState, lr: float, clip_norm: float | None) -> Tensor:
    """One step of the optimiser and of the moving average; returns the gradient norm before clipping, ()."""
    set_learning_rate(state.optimiser, lr)
    state.scaler.unscale_(state.optimiser)
    norm = whole(torch.nn.utils.clip_grad_norm_(state.model.parameters(), clip_norm or float("inf")))
    state.scaler.step(state.optimiser)
    state.scaler.update()
    state.optimiser.zero_grad(set_to_none=True)
    state.step += 1
    if state.ema is not None:
        state.ema.update_parameters(state.model)
    return norm
