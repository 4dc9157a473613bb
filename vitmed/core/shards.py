"""One share of a long list of images: `--shard 2/4`, or the numbers that torchrun or a Slurm array gives a process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vitmed.core.errors import UsageError

AUTO = "auto"
FIX = "name it: --shard 1/4 to --shard 4/4, for example"


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
    """The shard that `--shard` names.

    Args:
        text: "2/4", the second of four; or "auto": RANK and WORLD_SIZE, as torchrun sets them, else the
            SLURM_ARRAY_TASK_ variables of a Slurm array, whose lowest task is shard 1.
        environment: the variables.

    Raises:
        UsageError: no such shard, or "auto" without these variables.
    """
    if text != AUTO:
        match = re.fullmatch(r"([0-9]{1,7})/([0-9]{1,7})", text, re.ASCII)
        if match is None:
            raise UsageError(f"--shard {text}: expected NUMBER/COUNT, such as 1/4, or auto", FIX)
        return _checked(Shard(int(match[1]), int(match[2])), f"--shard {text}")
    if "RANK" in environment and "WORLD_SIZE" in environment:
        rank, size = (_number(environment, name) for name in ("RANK", "WORLD_SIZE"))
        return _checked(Shard(rank + 1, size), f"--shard auto: RANK {rank} and WORLD_SIZE {size}")
    if "SLURM_ARRAY_TASK_ID" in environment:
        task, low, high, count = (
            _number(environment, f"SLURM_ARRAY_TASK_{name}") for name in ("ID", "MIN", "MAX", "COUNT")
        )
        step = (high - low) // (count - 1) if count > 1 else 1
        if low + step * (count - 1) != high or (task - low) % step:
            raise UsageError(f"--shard auto: the tasks of this Slurm array, {low} to {high}, have gaps", FIX)
        return _checked(Shard((task - low) // step + 1, count), f"--shard auto: task {task} of {low} to {high}")
    raise UsageError("--shard auto: neither torchrun (RANK, WORLD_SIZE) nor a Slurm array started this process", FIX)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        raise UsageError(f"--shard auto: {name} is {text!r}, expected a number", FIX)
    return int(text)


def _checked(shard: Shard, source: str) -> Shard:
    if not 1 <= shard.number <= shard.count:
        of = f"expected 1/{shard.count} to {shard.count}/{shard.count}" if shard.count else "expected 1 shard or more"
        raise UsageError(f"{source}: there is no shard {shard}, {of}", FIX)
    return shard
