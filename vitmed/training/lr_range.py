"""The learning rate range test (Smith 2017, arXiv 1506.01186): train at a rising rate and look at the loss.

It makes two suggestions, as fastai's `lr_find`: the steepest descent, and the valley, well inside the longest descent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

SMOOTHING = 0.9  # memory of the running mean of the loss
DIVERGED = 4.0  # times the best loss at which the test ends
SKIPPED = 5  # first steps, which the suggestions ignore: their mean is not yet stable


@dataclass(frozen=True)
class RangeTest:
    """The result of the test.

    Attributes:
        rates: (N,) learning rate of every step, rising evenly on a logarithmic scale.
        losses: (N,) running mean of the training loss after that step.
        diverged: whether the test ended because the loss rose.
        steepest, valley: suggested learning rates; None if the loss never fell.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    diverged: bool
    steepest: float | None
    valley: float | None

    @property
    def course(self) -> str:
        """How far the loss fell, and where it ended."""
        if not self.losses:
            return "the loss was not finite at the first step"
        low, last = min(self.losses), self.losses[-1]
        lowest = f"lowest loss {low:.3g} at --lr {self.rates[self.losses.index(low)]:.1e}"
        end = "ended early because the loss rose" if self.diverged else f"{last:.3g} at the end"
        return f"{lowest}; {end} ({self.rates[-1]:.1e})"


def rising_rates(low: float, high: float, steps: int) -> list[float]:
    """`steps` learning rates from `low` to `high` in a geometric series."""
    return [low * (high / low) ** (i / (steps - 1)) for i in range(steps)]


def smoothed(losses: Iterator[float] | Sequence[float]) -> Iterator[float]:
    """The running mean of a loss, corrected for its start at zero (as in Adam)."""
    mean = 0.0
    for step, loss in enumerate(losses, 1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        yield mean / (1 - SMOOTHING**step)


def run_range_test(rates: Sequence[float], losses: Iterator[float]) -> RangeTest:
    """Consume the raw losses of the steps one by one until they diverge or end, and suggest learning rates."""
    means: list[float] = []
    best, diverged = math.inf, False
    for mean in smoothed(losses):
        if not math.isfinite(mean) or mean > DIVERGED * best:
            diverged = True
            break
        means.append(mean)
        best = min(best, mean)
    taken = tuple(rates[: len(means)])
    return RangeTest(taken, tuple(means), diverged, *suggest(taken, means))


def suggest(rates: Sequence[float], losses: Sequence[float]) -> tuple[float | None, float | None]:
    """Steepest and valley: where the loss falls fastest per log(rate), and two thirds into the longest descent; (None,
    None) if it never falls."""
    y = np.asarray(losses, dtype=np.float64)[SKIPPED:]
    if len(y) < 3:
        return None, None
    slope = np.gradient(y)
    start, end = _longest_descent(y)
    if slope.min() >= 0 or end == start:
        return None, None
    valley = start + round((end - start) * 2 / 3)
    return float(rates[SKIPPED + int(slope.argmin())]), float(rates[SKIPPED + valley])


def _longest_descent(y: np.ndarray) -> tuple[int, int]:
    """First and last index of the longest falling subsequence; its elements need not be adjacent."""
    length, before = np.ones(len(y), dtype=int), np.arange(len(y))
    for i in range(1, len(y)):
        for j in range(i):
            if y[j] > y[i] and length[j] + 1 > length[i]:
                length[i], before[i] = length[j] + 1, j
    end = start = int(length.argmax())
    while before[start] != start:
        start = int(before[start])
    return start, end
