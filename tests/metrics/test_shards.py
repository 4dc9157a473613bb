"""`--shard`: every image in one shard, and the numbers of torchrun and Slurm."""

from __future__ import annotations

from itertools import pairwise

import pytest

from vitmed.core.errors import UsageError
from vitmed.metrics.predictions_files import Shard, read_shard


@pytest.mark.parametrize(("images", "count"), [(10, 3), (3, 8), (0, 2), (1, 1), (100_000_000, 7)])
def test_every_image_is_in_one_shard_and_shards_are_even(images: int, count: int) -> None:
    blocks = [Shard(number, count).rows(images) for number in range(1, count + 1)]
    assert blocks[0].start == 0 and blocks[-1].stop == images
    assert all(one.stop == other.start for one, other in pairwise(blocks))
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


def slurm(task: int, low: int, high: int, count: int) -> dict[str, str]:
    names = {"ID": task, "MIN": low, "MAX": high, "COUNT": count}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in names.items()}


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("2/4", {"RANK": "0", "WORLD_SIZE": "1"}, (2, 4)),  # a number is a number, whatever started the process
        ("auto", {"RANK": "0", "WORLD_SIZE": "4"}, (1, 4)),
        ("auto", {"RANK": "3", "WORLD_SIZE": "4", **slurm(0, 0, 1, 2)}, (4, 4)),
        ("auto", {"RANK": "0", "WORLD_SIZE": "1", **slurm(2, 1, 4, 4)}, (2, 4)),  # what an earlier torchrun left
        ("auto", {"RANK": "0", "WORLD_SIZE": "1"}, (1, 1)),
        ("auto", slurm(0, 0, 15, 16), (1, 16)),
        ("auto", slurm(16, 1, 16, 16), (16, 16)),
        ("auto", slurm(10, 0, 15, 4), (3, 4)),  # --array=0-15:5
        ("auto", slurm(7, 7, 7, 1), (1, 1)),
    ],
)
def test_the_shard_of_a_process(text: str, environment: dict[str, str], expected: tuple[int, int]) -> None:
    assert read_shard(text, environment) == Shard(*expected)


@pytest.mark.parametrize(
    ("text", "environment", "problem"),
    [
        ("5/4", {}, "no such shard"),
        ("0/4", {}, "no such shard"),
        ("1/0", {}, "no such shard"),
        ("two", {}, "expected NUMBER/COUNT"),
        ("-1/4", {}, "expected NUMBER/COUNT"),
        ("1/x/4", {}, "expected NUMBER/COUNT"),
        ("7/0/15/16", {}, "expected NUMBER/COUNT"),
        ("auto", {}, "neither torchrun"),
        ("auto", {"RANK": "4", "WORLD_SIZE": "4"}, "neither torchrun"),
        ("auto", {"RANK": "x", "WORLD_SIZE": "4"}, "neither torchrun"),
        ("auto", slurm(5, 1, 9, 4), "a Slurm array of even steps"),  # --array=1,2,5,9
        ("auto", slurm(6, 0, 15, 4), "a Slurm array of even steps"),  # no task of --array=0-15:5
    ],
)
def test_a_shard_that_is_not_there(text: str, environment: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as error:
        read_shard(text, environment)
    assert "--shard 1/4" in error.value.fix
