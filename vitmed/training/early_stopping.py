"""Which epoch is the best, and when training ends: after all epochs, early, or when its time is used."""

from __future__ import annotations

from vitmed.core.config import Config, PretrainConfig
from vitmed.metrics.metric_table import Metric
from vitmed.training.train_state import RUNNING, Record, TrainState


def end_epoch(state: TrainState, record: Record) -> None:
    """Store the record and move to the start of the next epoch."""
    state.history.append(record)
    state.epoch, state.batch, state.running = state.epoch + 1, 0, dict.fromkeys(RUNNING, 0.0)


def order_of(monitor: Metric, value: float | None, loss: float) -> tuple[bool, float, float]:
    """A key that is larger for the better of two epochs; of equal monitors the lower loss wins."""
    sign = 1 if monitor.higher_is_better else -1
    return value is not None, sign * (value or 0.0), -loss


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
