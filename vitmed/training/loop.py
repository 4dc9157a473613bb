"""The training loop: a generator of events, with one arithmetic path. The caller logs and saves.

All randomness is a pure function of (seed, epoch, step, index), so a run that resumes from a saved state computes
what the uninterrupted run would have computed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, NonNegativeInt
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader
from typing_extensions import TypedDict

from vitmed.core.config import Config, TrainConfig
from vitmed.core.errors import DataError, VitmedError
from vitmed.core.hardware import Precision, seeded
from vitmed.core.pretrain_config import PretrainConfig
from vitmed.core.ranks import Ranks, Rows, full, sharded_like, sync_gradients, whole
from vitmed.data.loading import EpochBatches, Images, seed_of
from vitmed.data.samples import labelled
from vitmed.imaging.augmentation import without_opencv_threads
from vitmed.metrics.metric_table import METRICS
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.scoring import metric_values
from vitmed.models.inference import predict_all
from vitmed.models.vit import ViT
from vitmed.training.failure_detection import LossWatch
from vitmed.training.optimiser import adamw, averaged, ema_decay, learning_rate, set_learning_rate

PARTS = ("model", "optimiser", "scaler", "ema")
ALONE = Ranks()
LossOf = Callable[[Tensor, Tensor], Tensor]
Record = dict[str, Any]  # of a finished epoch: its line in metrics.jsonl


class _Epoch(TypedDict):
    """What a resumed run reads of a record; records hold more."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]
    epoch: int
    step: int
    lr: float
    train_loss: float
    val_loss: float


class _Running(TypedDict):
    loss: float
    images: float
    seconds: float
    waited: float


class _Position(BaseModel):
    """The entries of last.pt that are no tensors; a resumed run sets the fields of `TrainState` to them."""

    model_config = ConfigDict(strict=True)
    epoch: NonNegativeInt
    batch: NonNegativeInt
    step: NonNegativeInt
    best: float | None
    best_loss: float
    best_epoch: NonNegativeInt
    history: list[_Epoch]
    running: _Running


RUNNING, POSITION = tuple(_Running.__annotations__), tuple(_Position.model_fields)


@dataclass
class TrainState:
    """Everything that changes while training; the only mutable object.

    Attributes:
        network: the model as training calls it; with several ranks it adds up their gradients.
        epoch: finished epochs; batch: finished batches of the current epoch; step: finished optimiser steps.
        best, best_loss: monitor and validation loss of the best epoch; best is None where the monitor is undefined.
        best_epoch: the epoch stored in best.pt, from 1; with `choose: last` not always the best.
        history: one record per finished epoch.
        running: sums over the current epoch: loss, images, seconds, waited.
    """

    model: nn.Module
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ema: AveragedModel | None
    network: nn.Module = field(init=False)
    epoch: int = 0
    batch: int = 0
    step: int = 0
    best: float | None = None
    best_loss: float = math.inf
    best_epoch: int = 0
    history: list[Record] = field(default_factory=list)
    running: dict[str, float] = field(default_factory=lambda: dict.fromkeys(RUNNING, 0.0))

    def __post_init__(self) -> None:
        self.network = self.model

    @property
    def evaluated_model(self) -> ViT:
        """The network to validate and to store in best.pt: the moving average where there is one."""
        return cast(ViT, self.model if self.ema is None else self.ema.module)

    def state_dict(self) -> dict[str, Any]:
        """Plain types, for last.pt."""
        parts = {name: getattr(self, name) for name in PARTS}
        states = {name: part and full(part.state_dict()) for name, part in parts.items()}
        return states | {name: getattr(self, name) for name in POSITION}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Other content raises ValueError, KeyError, TypeError or RuntimeError."""
        position = _Position.model_validate({name: saved[name] for name in POSITION})
        if not position.best_epoch <= position.epoch == len(position.history):
            raise ValueError(f"{len(position.history)} records of {position.epoch} finished epochs")
        for name in PARTS:
            if (part := getattr(self, name)) is not None:
                part.load_state_dict(self._own(name, saved[name]))
        for parameter, state in self.optimiser.state.items():
            for name in ("exp_avg", "exp_avg_sq"):
                if state[name].shape != parameter.shape:
                    raise ValueError(f"optimiser: {name} is {tuple(state[name].shape)}, not {tuple(parameter.shape)}")
            if state["step"].shape != ():
                raise ValueError("optimiser: step is not a number")
        for name in POSITION:
            setattr(self, name, saved[name])

    def _own(self, name: str, saved: dict[str, Any]) -> dict[str, Any]:
        """What this rank keeps of the saved state of a part: all of it, unless the network is sharded."""
        if name in ("model", "ema"):
            own = getattr(self, name).state_dict()
            return {key: sharded_like(value, own[key]) if key in own else value for key, value in saved.items()}
        if name == "optimiser":
            owners = [parameter for group in self.optimiser.param_groups for parameter in group["params"]]
            states = {
                i: {key: sharded_like(value, owners[i]) for key, value in state.items()}
                for i, state in saved["state"].items()
                if i < len(owners)
            }
            return saved | {"state": states}
        return saved

    def shard(self, config: Config, ranks: Ranks, device: torch.device) -> None:
        """Divide everything that grows with the network among the ranks: weights, gradients, moments, average."""
        saved = self.state_dict()
        for model in {id(model): model for model in (self.model, self.evaluated_model)}.values():
            ranks.shard(model, cast(ViT, model).blocks, device)
        self.optimiser = optimiser_of(self.model, config)
        self.load_state_dict(saved)


@dataclass(frozen=True)
class Step:
    """After every batch: mean loss of the epoch so far, images/s, share of time spent waiting for data.

    The loss leaves out the current batch (see `failure_detection.LossWatch`), except after the first.
    """

    epoch: int
    batch: int
    batches: int
    loss: float
    images_per_second: float
    wait_share: float


def new_state(
    model: nn.Module, config: Config | PretrainConfig, batches: int, device: torch.device, precision: Precision
) -> TrainState:
    """A state before the first step; `model` lies on `device`. `batches` of an epoch."""
    train, ema = config.train, None
    if isinstance(train, TrainConfig) and train.ema:
        ema = averaged(model, train.ema_decay or ema_decay(train.epochs * steps_per_epoch(batches, train.accumulate)))
    scaler = torch.amp.GradScaler(device.type, enabled=precision.name == "fp16")
    return TrainState(model, optimiser_of(model, config), scaler, ema)


def optimiser_of(model: nn.Module, config: Config | PretrainConfig) -> torch.optim.AdamW:
    """AdamW as configured; of pretraining with the second moment of the MAE paper."""
    train, layer_decay, betas = config.train, 1.0, (0.9, 0.95)
    if isinstance(train, TrainConfig):
        layer_decay, betas = train.layer_decay, (0.9, 0.999)
    return adamw(model, train.lr, train.weight_decay, layer_decay, betas)


def steps_per_epoch(batches: int, accumulate: int) -> int:
    """Optimiser steps per epoch; the last may accumulate fewer batches."""
    return -(-batches // accumulate)


def fit(
    state: TrainState,
    loader: DataLoader,
    batches: EpochBatches,
    loss_of: LossOf,
    validate: Callable[[], Record],
    config: Config | PretrainConfig,
    stop: Callable[[], bool] = lambda: False,
    ranks: Ranks = ALONE,
) -> Iterator[Step | Record]:
    """Train until all epochs are done, patience runs out or `stop()` is true; yield every step, and every record.

    `state` can be saved when an epoch's record comes and when `fit` returns.

    Args:
        loss_of: as in `train_epoch`.
        validate: returns the record of the epoch that has just ended.
        ranks: share every batch, and end together.

    Raises:
        VitmedError: the loss or a gradient is NaN or infinite; names the files of the batch.
    """
    while not finished(state, config) and not ranks.agree(stop=stop()):
        if not (yield from train_epoch(state, loader, batches, loss_of, config, stop, ranks=ranks)):
            return
        record = validate()
        end_epoch(state, record)
        yield record


def classification_loss(
    model: nn.Module, images: Images, classes: int, config: Config, precision: Precision, ranks: Ranks = ALONE
) -> LossOf:
    """The mean cross-entropy with mixup, cutmix, label smoothing and class weights as configured.

    Args:
        images: of training; the class weights follow from their labels.
        classes: K.
        ranks: each computes its part of the mean; the parts add up to it.
    """
    train = config.train
    device = next(model.parameters()).device
    weights = class_weights(images.labels, classes, device) if train.balance == "loss" else None
    mix = mixer(config, classes)
    rows = rows_of(ranks, images, config)

    def loss_of(batch: Tensor, labels: Tensor) -> Tensor:
        x, y = mix(images.preprocessing.normalise(batch), labels)  # (B, C, S, S); (B,) int64 or (B, K) float
        if rows is not None:  # without the image that was there to be mixed
            x, y = x[rows.start - rows.stop :], y[rows.start - rows.stop :]
        with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
            if rows is None:
                return F.cross_entropy(model(x), y, weights, label_smoothing=train.smoothing)
            total = F.cross_entropy(model(x), y, weights, reduction="sum", label_smoothing=train.smoothing)
            if weights is None or y.ndim == 2:
                return total / rows.total
            return total / ranks.total(weights[y].sum())

    return loss_of


def rows_of(ranks: Ranks, images: Images, config: Config | PretrainConfig) -> Rows | None:
    """The rows of every batch that this rank computes; None for one process, which computes all."""
    return ranks.rows(min(config.train.batch_size, len(images))) if ranks.wide else None


def validate(
    state: TrainState, val: Images, classes: tuple[str, ...], batches: int, config: Config, precision: Precision,
    ranks: Ranks = ALONE,
) -> Record:  # fmt: skip
    """The record of the epoch that has just ended, from the predictions for `val`.

    Args:
        batches: of the epoch.
        ranks: each predicts some of the images.

    Raises DataError if a file can no longer be read, VitmedError if a logit is NaN or infinite.
    """
    device = next(state.model.parameters()).device
    part, error = np.empty(0), None
    try:
        part = predict_all(state.evaluated_model, val, device, precision, rows=ranks.deal(len(val)))
    except DataError as unreadable:
        error = unreadable
    ranks.agree(error)
    logits = ranks.collect(part, len(val))
    return epoch_record(state, batches, labelled(classes, val.samples, logits, config.data.positive), config)


def train_epoch(
    state: TrainState,
    loader: DataLoader,
    batches: EpochBatches,
    loss_of: LossOf,
    config: Config | PretrainConfig,
    stop: Callable[[], bool],
    rate: Callable[[int], float] | None = None,
    ranks: Ranks = ALONE,
) -> Generator[Step, None, bool]:
    """Train on the remaining batches of the current epoch; False if `stop()` ended it before the last.

    Args:
        loss_of: images (B, S, S, C) uint8 and labels (B,) on the device -> the mean loss, (), or this rank's part of
            it. torch's generators are seeded for the batch during each call.
        stop: whether to end after the current step; one rank that says so ends all.
        rate: optimiser step -> learning rate; default the configured schedule.
        ranks: share every batch; all randomness is drawn for the whole batch, so their number changes no result.
    """
    train, count = config.train, batches.batches
    device = next(state.model.parameters()).device
    images_of_run = loader.dataset.images  # type: ignore[attr-defined]
    rows = rows_of(ranks, images_of_run, config)
    watch = LossWatch(
        state.running, images_of_run.samples, state.epoch + 1, config, state.scaler.is_enabled(), ranks=ranks,
        batch=rows and rows.total,
    )  # fmt: skip
    rate = rate or (lambda step: scheduled_lr(step, count, config))
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
            stepped = (state.batch + 1) % train.accumulate == 0 or state.batch + 1 == count
            sync_gradients(state.network, on=stepped)
            with seeded(seed_of(train.seed, state.epoch, state.batch), device):  # dropout, drop path, mixing, masks
                loss = loss_of(images, labels)
            first = state.batch - state.batch % train.accumulate  # a step averages over the batches from here
            scale = ranks.world / min(train.accumulate, count - first)  # the mean over the ranks is then their sum
            state.scaler.scale(loss * scale).backward()
            loss = norm = ranks.total(loss.detach())
            state.batch += 1
            if stepped:
                norm = optimiser_step(state, rate(state.step), train.clip_norm)
            watch.add(loss, norm, indices)
            state.running["seconds"] += time.perf_counter() - clock
            clock = time.perf_counter()
            yield Step(state.epoch + 1, state.batch, count, watch.mean, *speed(state))
            if stepped and ranks.agree(stop=stop()):
                watch.flush()
                return False
    watch.flush()
    return True


def end_epoch(state: TrainState, record: Record) -> None:
    """Store the record and move to the start of the next epoch."""
    state.history.append(record)
    state.epoch, state.batch, state.running = state.epoch + 1, 0, dict.fromkeys(RUNNING, 0.0)


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


def scheduled_lr(step: int, batches: int, config: Config | PretrainConfig) -> float:
    """The learning rate of a step; warm-up takes at most a third of the run."""
    train = config.train
    per_epoch = steps_per_epoch(batches, train.accumulate)
    steps = train.epochs * per_epoch
    warmup = min(round(train.warmup_epochs * per_epoch), steps // 3)
    return learning_rate(step, steps, warmup, train.lr, train.min_lr)


def class_weights(labels: np.ndarray, classes: int, device: torch.device) -> Tensor:
    """(K,) float32, mean 1 over the images: inverse class frequency."""
    counts = np.bincount(labels, minlength=classes)
    return torch.tensor(len(labels) / (classes * counts), dtype=torch.float32, device=device)


def mixer(config: Config, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """torchvision's mixup, cutmix, or one of both at random; without either, batches stay as they are."""
    mixup, cutmix = config.augment.mixup, config.augment.cutmix
    if not mixup and not cutmix:
        return lambda x, y: (x, y)
    from torchvision.transforms import v2

    kinds = [(v2.MixUp, mixup), (v2.CutMix, cutmix)]
    return v2.RandomChoice([kind(alpha=alpha, num_classes=classes) for kind, alpha in kinds if alpha])


def epoch_record(state: TrainState, batches: int, predictions: Predictions, config: Config) -> Record:
    """The epoch's line of metrics.jsonl, without undefined metrics; also updates the best epoch of the state.

    An epoch with an undefined monitor (`ppv` when a class is never predicted) ranks below all others. Raises
    VitmedError if a logit is NaN or infinite.
    """
    if not np.isfinite(predictions.logits).all():
        raise VitmedError(
            f"the network's outputs are NaN or infinite for validation images in epoch {state.epoch + 1}",
            f"--lr {config.train.lr / 10:g}",
        )
    values = {name: v for name, v in metric_values(predictions).items() if math.isfinite(v)}
    monitor = config.train.monitor
    value, loss = values.get(monitor), values["log_loss"]
    best = state.epoch == 0 or _rank(monitor, value, loss) > _rank(monitor, state.best, state.best_loss)
    kept = best or config.train.choose == "last"
    if best:
        state.best, state.best_loss = value, loss
    if kept:
        state.best_epoch = state.epoch + 1
    share = np.bincount(predictions.predicted, minlength=len(predictions.classes)) / len(predictions)
    return {
        **common_record(state, batches, loss, config),
        **{f"val_{name}": v for name, v in values.items()},
        "monitor": monitor,
        "best": best,
        "kept": kept,
        "top_class": predictions.classes[int(share.argmax())],
        "top_share": float(share.max()),
    }


def common_record(state: TrainState, batches: int, val_loss: float, config: Config | PretrainConfig) -> Record:
    """What training and pretraining both record of a finished epoch."""
    running, (images_per_second, wait_share) = state.running, speed(state)
    return {
        "epoch": state.epoch + 1,
        "step": state.step,
        "lr": scheduled_lr(max(0, state.step - 1), batches, config),
        "train_loss": running["loss"] / max(1, running["images"]),
        "val_loss": val_loss,
        "images_per_second": images_per_second,
        "wait_share": wait_share,
        "seconds": running["seconds"],
    }


def _rank(monitor: str, value: float | None, loss: float) -> tuple[bool, float, float]:
    """A key that is larger for the better of two epochs; of equal monitors the lower loss wins."""
    sign = 1 if METRICS[monitor].higher_is_better else -1
    return value is not None, sign * (value or 0.0), -loss


def finished(state: TrainState, config: Config | PretrainConfig) -> bool:
    """Whether all epochs are done, or the monitor has not improved for `patience` epochs."""
    end = config.train.epochs
    if isinstance(config, Config) and config.train.choose == "best" and config.train.patience is not None:
        end = min(end, state.best_epoch + config.train.patience)
    return state.epoch >= end


def speed(state: TrainState) -> tuple[float, float]:
    """Images/s, and the share of time spent waiting for data, of the current epoch."""
    run = state.running
    return run["images"] / max(1e-9, run["seconds"]), run["waited"] / max(1e-9, run["seconds"])
