"""One share of a long list of images: `--shard 2/4`, or the numbers that torchrun or a Slurm array gives a process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vitmed.core.errors import UsageError

AUTO = "auto"
FIX = "name it: --shard 1/4 to --shard 4/4, for example"
MALFORMED = "no such shard; expected NUMBER/COUNT, from 1/COUNT to COUNT/COUNT"
UNKNOWN = "neither torchrun (RANK, WORLD_SIZE) nor a Slurm array of even steps started this process"
RANKS, TASKS = ("RANK", "WORLD_SIZE"), tuple(f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "COUNT"))


@dataclass(frozen=True)
class Shard:
    """Share `number` of `count`, from 1: a block of neighbours in the list, as long as the others to within one."""

    number: int
    count: int

    def rows(self, images: int) -> range:
        """The places in a list of so many images that belong to this shard."""
        return range(images * (self.number - 1) // self.count, images * self.number // self.count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def read_shard(text: str, environment: Mapping[str, str]) -> Shard:
    """The shard that `--shard` names: "2/4"; or "auto", from RANK and WORLD_SIZE, as torchrun sets them, else from the
    SLURM_ARRAY_TASK_ variables, whose lowest task is shard 1. Raises UsageError without such a shard."""
    names = next((names for names in (RANKS, TASKS) if environment.keys() >= {*names}), ())
    words = [environment[name] for name in names] if text == AUTO else text.split("/")
    numbers = [int(word) if re.fullmatch("[0-9]{1,7}", word, re.ASCII) else -1 for word in words]
    if text == AUTO and len(numbers) == 4:  # the lowest task and the highest, with the same step between all
        task, low, high, count = numbers
        step = (high - low) // max(1, count - 1) or 1
        even = low + step * (count - 1) == high and (task - low) % step == 0
        numbers = [(task - low) // step + 1, count * even]
    elif text == AUTO:
        numbers = [number + (k == 0) for k, number in enumerate(numbers)]  # ranks begin at 0
    if len(numbers) == 2 and 1 <= numbers[0] <= numbers[1]:
        return Shard(*numbers)
    raise UsageError(f"--shard {text}: {UNKNOWN if text == AUTO else MALFORMED}", FIX)
