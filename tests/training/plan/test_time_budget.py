"""The share of the time, and the learning rate that follows it: pure functions of what a clock says."""

from __future__ import annotations

import pytest

from vitmed.core.load_config import load_config
from vitmed.training.optimiser import scheduled_lr
from vitmed.training.plan.time import MOST_CONTENTION, Contention, share_of_time

BATCHES = 10
CONFIG = load_config(
    None, {"train.epochs": 10, "train.lr": 1.0, "train.min_lr": 0.01, "train.warmup_epochs": 1.0, "train.time": "200s"}
)


def rates(seconds_of_step: list[float]) -> list[float]:
    """The learning rate of every step on a machine whose steps take so long, until the time is used."""
    clock, found = 0.0, []
    for step, seconds in enumerate(seconds_of_step):
        share = share_of_time(clock, end=100.0, start=0.0, share=0.0)
        found.append(scheduled_lr(step, BATCHES, CONFIG, share))
        clock += seconds
        if share >= 1:
            break
    return found


def test_the_share_grows_evenly_and_goes_on_where_it_was() -> None:
    assert [share_of_time(s, 100.0, 20.0, 0.0) for s in (20, 40, 60, 100, 130)] == [0, 0.25, 0.5, 1, 1]
    resumed = 70.0, 0.5  # 10 s were lost to a second start
    assert [share_of_time(s, 100.0, *resumed) for s in (70, 85, 100)] == [0.5, 0.75, 1]
    assert share_of_time(50.0, 40.0, 50.0, 0.2) == 1  # no time is left


def test_a_busy_machine_gets_more_time_for_the_evaluation() -> None:
    alone = Contention(100.0, 10.0, 5.0)
    assert alone.factor(100.0, 10.0, 5.0) == 1  # nothing is known yet
    assert alone.factor(120.0, 28.0, 7.0) == 1  # it waited for data, and computed the rest of the time
    crowded = Contention(100.0, 10.0, 5.0)
    assert crowded.factor(106.0, 12.0, 5.0) < 1.5  # four seconds of another program do not end the training
    assert crowded.factor(122.0, 20.0, 7.0) == 1.5  # 20 s for 10 s of CPU time, and ten that count as alone
    assert crowded.factor(900.0, 25.0, 7.0) == MOST_CONTENTION
    assert crowded.factor(940.0, 65.0, 7.0) == 1  # the others have ended


def test_a_machine_that_is_fast_enough_follows_the_steps() -> None:
    assert rates([0.1] * 100) == [scheduled_lr(step, BATCHES, CONFIG) for step in range(100)]


@pytest.mark.parametrize("seconds", [[4.0] * 100, [0.9] * 60 + [20.0] * 40, [5.0] * 10 + [0.6] * 90, [1.02] * 100])
def test_the_rate_ends_low_on_a_machine_of_any_speed(seconds: list[float]) -> None:
    found = rates(seconds)
    assert found[-1] == pytest.approx(0.01)
    peak = found.index(max(found))
    assert found[peak:] == sorted(found[peak:], reverse=True), "after the warm-up it only falls"


def test_warm_up_takes_its_share_of_the_time() -> None:
    """A run of 25 steps where 100 were possible: a tenth of them, not 10, are warm-up."""
    found = rates([4.0] * 100)
    assert len(found) == 26 and found.index(max(found)) in (2, 3)
