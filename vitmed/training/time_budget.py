"""The time of a run with `--time`: what its commands have used, and how much of the time for training that is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

RECENT = 5  # epochs


class Clock:
    """The seconds that the commands of a run have taken: this one, and those that it resumes."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def go_on(self, spent: float) -> None:
        """Add what earlier commands took, s."""
        self.began -= spent

    def seconds(self) -> float:
        """So far."""
        return time.monotonic() - self.began


class TimeBudget(NamedTuple):
    """How the share of the time for training grows, evenly, to 1. The learning rate follows it, so it ends low on a
    machine of any speed, also where the speed changes.

    Attributes:
        start: seconds of the run when training begins or goes on; share: what was used then.
        limit: seconds of the whole run.
    """

    start: float
    share: float
    limit: float

    def share_at(self, seconds: float, after: float) -> float:
        """The share at so many seconds of the run, 0 to 1, if what follows training takes `after` seconds."""
        end = self.limit - after
        if seconds >= end:
            return 1.0
        return self.share + (1 - self.share) * (seconds - self.start) / (end - self.start)


def slowdown(rates: Sequence[float], usual: float) -> float:
    """How many times as long as usual the evaluation is likely to take.

    The root of the slowdown of training in the last epochs: other work on the machine may go on, or end.

    Args:
        rates: images/s of each epoch; usual: images/s that were expected.
    """
    return max(1.0, usual / statistics.median(rates[-RECENT:])) ** 0.5 if rates else 1.0
