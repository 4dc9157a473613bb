"""The time of a run with `--time`: what its commands have used, and how much of the time for training that is."""

from __future__ import annotations

import time
from typing import NamedTuple

RECENT = 30.0  # s
LEAST = 1.0  # s of CPU time from which contention is measured
MOST = 3.0


class Clock:
    """The seconds that the commands of a run have taken: this one, and those that it resumes.

    Args:
        began: when the command started, on `time.monotonic`; default now.
    """

    def __init__(self, began: float | None = None) -> None:
        self.began = time.monotonic() if began is None else began

    def go_on(self, spent: float) -> None:
        """Add what earlier commands took, s."""
        self.began -= spent

    def seconds(self) -> float:
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


class Contention:
    """How many times as long work takes because other programs share the cores: seconds for each second of CPU time.

    Measured on one thread that computes, over the last `RECENT` to 2 x `RECENT` s, without its waiting for data.

    Args:
        seconds: of a clock; cpu: CPU time of the thread, s; waited: for data, s; all now.
    """

    def __init__(self, seconds: float, cpu: float, waited: float) -> None:
        self.begin = self.middle = (seconds, cpu, waited)

    def factor(self, seconds: float, cpu: float, waited: float) -> float:
        """From 1, nobody else computes, to `MOST`; the arguments are as above."""
        if seconds - self.middle[0] > RECENT:
            self.begin, self.middle = self.middle, (seconds, cpu, waited)
        used = cpu - self.begin[1]
        computed = seconds - self.begin[0] - (waited - self.begin[2])
        return min(MOST, max(1.0, computed / used)) if used > LEAST else 1.0
