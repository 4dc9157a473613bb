"""What an epoch says: its record, whether it is the best so far, and when training ends: after all epochs, early, or
when its time is used."""

from __future__ import annotations

import math

import numpy as np

from vitmed.core.base_models import Kind
from vitmed.core.config import Config, PretrainConfig
from vitmed.core.errors import VitmedError
from vitmed.data.loading import Images
from vitmed.data.samples import labelled_by
from vitmed.decisions.targets import TARGETS
from vitmed.inference.predict import predict_all
from vitmed.metrics.metric_table import Metric
from vitmed.metrics.predictions import Predictions
from vitmed.models.hardware import Precision
from vitmed.training.optimiser import scheduled_lr
from vitmed.training.processes import ALONE, Ranks
from vitmed.training.train_state import RUNNING, Record, TrainState


def validate(
    state: TrainState,
    val: Images,
    classes: tuple[str, ...],
    config: Config,
    precision: Precision,
    ranks: Ranks = ALONE,
) -> Record:
    """The record of the epoch that has just ended, from the predictions for `val`.

    Each of the ranks predicts some of the images. Raises DataError if a file can no longer be read, VitmedError if a
    logit is NaN or infinite.
    """
    ranks.share_statistics(state.evaluated_model)
    with ranks.together():
        part = predict_all(state.evaluated_model, val, precision, rows=ranks.deal(len(val)))
    logits = ranks.collect(part, len(val))
    predictions = labelled_by(val.target, classes, val.samples, logits, config.data.positive)
    return epoch_record(state, predictions, config, val.target.kind)


def epoch_record(state: TrainState, predictions: Predictions, config: Config, kind: Kind = "classes") -> Record:
    """The epoch's line of metrics.jsonl, without undefined metrics; also updates the best epoch of the state.

    An epoch with an undefined monitor (`ppv` when a class is never predicted) ranks below all others. Raises
    VitmedError if a logit is NaN or infinite.
    """
    if not np.isfinite(predictions.logits).all():
        raise VitmedError(
            f"the network's outputs are NaN or infinite for validation images in epoch {state.epoch + 1}",
            f"--lr {config.train.lr / 10:g}",
        )
    target, monitor = TARGETS[kind], config.train.monitor
    values = {name: v for name, v in target.numbers.values(predictions).items() if math.isfinite(v)}
    value, loss, metric = values.get(monitor), values[target.val_loss], target.metrics[monitor]
    best = state.epoch == 0 or order_of(metric, value, loss) > order_of(metric, state.best, state.best_loss)
    kept = best or config.train.choose == "last"
    if best:
        state.best, state.best_loss = value, loss
    if kept:
        state.best_epoch = state.epoch + 1
    record = common_record(state, loss, config) | {f"val_{name}": v for name, v in values.items()}
    record |= {"monitor": monitor, "best": best, "kept": kept}
    if predictions.kind == "classes":  # the class that is predicted most, and for which share of the images
        share = np.bincount(predictions.predicted, minlength=len(predictions.classes)) / len(predictions)
        record |= {"top_class": predictions.classes[int(share.argmax())], "top_share": float(share.max())}
    return record


def common_record(state: TrainState, val_loss: float, config: Config | PretrainConfig) -> Record:
    """What training and pretraining both record of a finished epoch."""
    running, (images_per_second, wait_share) = state.running, speed(state)
    return {
        "epoch": state.epoch + 1,
        "step": state.step,
        "lr": scheduled_lr(max(0, state.step - 1), state.batches, config, state.share),
        "train_loss": running["loss"] / max(1, running["images"]),
        "val_loss": val_loss,
        "images_per_second": images_per_second,
        "wait_share": wait_share,
        "seconds": running["seconds"],
    }


def speed(state: TrainState) -> tuple[float, float]:
    """Images/s, and the share of time spent waiting for data, of the current epoch."""
    run = state.running
    return run["images"] / max(1e-9, run["seconds"]), run["waited"] / max(1e-9, run["seconds"])


def order_of(monitor: Metric, value: float | None, loss: float) -> tuple[bool, float, float]:
    """A key that is larger for the better of two epochs; of equal monitors the lower loss wins."""
    sign = 1 if monitor.higher_is_better else -1
    return value is not None, sign * (value or 0.0), -loss


def end_epoch(state: TrainState, record: Record) -> None:
    """Store the record and move to the start of the next epoch."""
    state.history.append(record)
    state.epoch, state.batch, state.running = state.epoch + 1, 0, dict.fromkeys(RUNNING, 0.0)


def finished(state: TrainState, config: Config | PretrainConfig) -> bool:
    """Whether all epochs are done, training stops early, or the time is used.

    What was learned is validated first: the time ends neither the first epoch nor one under way.
    """
    time_used = state.share >= 1 and state.epoch > 0 and state.batch == 0
    return state.epoch >= config.train.epochs or stops_early(state, config) or time_used


def stops_early(state: TrainState, config: Config | PretrainConfig) -> bool:
    """Early stopping: whether the monitor has not improved for `patience` epochs."""
    train = config.train
    return train.choose == "best" and train.patience is not None and state.epoch >= state.best_epoch + train.patience
