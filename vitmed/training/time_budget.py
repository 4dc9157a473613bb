"""The time of a run with `--time`: what its commands have used, and how much of the time for training that is."""

from __future__ import annotations

import time
from typing import NamedTuple


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
        end: when training has to end, so that the evaluation fits.
    """

    start: float
    share: float
    end: float

    def share_at(self, seconds: float) -> float:
        """The share at so many seconds of the run, 0 to 1."""
        if seconds >= self.end:
            return 1.0
        return self.share + (1 - self.share) * (seconds - self.start) / (self.end - self.start)
