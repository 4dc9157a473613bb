"""What vitmed sets for its own process: how threads wait, and how many cores there are in a container."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitmed.core import process
from vitmed.core.process import cores, is_rank

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the GNU C library and /sys")
TUNED = """
import sys
from vitmed.core.process import tune_process
tune_process(sys.argv[1])
import torch
print(torch.get_num_threads())
"""


def tuned(command: str = "train", **variables: str) -> tuple[int, str]:
    """How many threads PyTorch has after `tune_process`, and what OpenMP says of its settings."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE"} | variables
    words = [sys.executable, "-c", TUNED, command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout), done.stderr


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize(
    ("words", "given", "told"),
    [
        ([], {}, "GOMP_SPINCOUNT = '1000'"),
        pytest.param(["serve"], {}, "GOMP_SPINCOUNT = '10000'", marks=pytest.mark.slow),
        pytest.param([], {"GOMP_SPINCOUNT": "70"}, "GOMP_SPINCOUNT = '70'", marks=pytest.mark.slow),
        pytest.param([], {"OMP_WAIT_POLICY": "active"}, "OMP_WAIT_POLICY = 'ACTIVE'", marks=pytest.mark.slow),
    ],
)
def test_a_waiting_thread_leaves_its_core_to_others_unless_you_say_otherwise(
    words: list[str], given: dict[str, str], told: str
) -> None:
    assert told in tuned(*words, **given)[1]


@pytest.mark.parametrize(
    ("files", "least"),
    [
        ({"cpu.max": "50000 100000\n"}, 1),  # half a core
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.cfs_quota_us": "150000\n", "cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, 64),
        ({}, 64),
    ],
)
def test_the_cores_of_a_container_count(
    files: dict[str, str], least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`docker run --cpus` and the limits of Kubernetes, which no list of allowed cores shows."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(process, "control_groups", lambda _: [tmp_path / "none", tmp_path])
    assert cores() == least


@pytest.mark.slow
@pytest.mark.parametrize(("world", "several"), [("2", True), ("16", True), ("1", False), ("", False), ("abc", False)])
def test_a_rank_is_one_of_several_processes(monkeypatch: pytest.MonkeyPatch, world: str, several: bool) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.delenv("RANK", raising=False)
    assert not is_rank()
    monkeypatch.setenv("RANK", "0")
    assert is_rank() is several


@LINUX
def test_pytorch_takes_no_more_threads_than_the_container_has(tmp_path: Path) -> None:
    group = Path("/sys/fs/cgroup/cpu", f"vitmed-{os.getpid()}")
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("50000")
    except OSError:
        pytest.skip("control groups of version 1 may not be made here")
    code = f"from pathlib import Path; Path('{group}/cgroup.procs').write_text('0'); "
    try:
        done = subprocess.run(
            [sys.executable, "-c", code + TUNED, "train"],
            capture_output=True,
            text=True,
            check=True,
            env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        )
    finally:
        group.rmdir()
    assert int(done.stdout) == 1
