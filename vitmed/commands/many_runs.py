"""Many runs in one folder, each trained once, by this process or by others that join it.

A process claims a run by a lock file and trains it to the end. The system frees the lock of a process that ends,
however it ends, and another process then continues the run from its last.pt. So no run is trained by two processes,
and a killed process costs the steps since its last.pt.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout

from vitmed.core.errors import Interrupted, UsageError, VitmedError
from vitmed.core.files import write_text
from vitmed.core.process import cores
from vitmed.core.run_folder import PREDICTIONS, RunFolder
from vitmed.core.ui import Ui

PAUSE = 0.5  # s between two looks at the runs of other processes
GRACE = 30.0  # s that a helper has to save its last.pt


@dataclass(frozen=True)
class Job:
    """A run to train.

    Attributes:
        name: of its run folder; title: in messages.
        begin: the arguments of `vitmed.train` for a new start; None while it cannot begin.
        split: the evaluation that ends it.
    """

    name: str
    title: str
    begin: Callable[[], dict[str, Any] | None]
    split: str = "test"

    def attempts(self, folder: RunFolder) -> list[RunFolder]:
        """Its run folders, the oldest first: `fold-1`, and `fold-1-2` where it was started again."""
        found = [path for path in folder.path.iterdir() if re.fullmatch(rf"{re.escape(self.name)}(-\d+)?", path.name)]
        return [RunFolder(path) for path in sorted(found, key=lambda path: path.stat().st_mtime_ns) if path.is_dir()]

    def done(self, folder: RunFolder) -> RunFolder | None:
        """Its finished and evaluated run; None where there is none yet."""
        there = self.attempts(folder)
        return next((place for place in there if (place.path / self.split / PREDICTIONS).is_file()), None)

    def failure(self, folder: RunFolder) -> Path:
        """The file that says why it failed, where failures are kept."""
        return folder.path / f"{self.name}.failed.txt"

    def train(self, train: Callable[..., Any], folder: RunFolder, ui: Ui) -> bool:
        """Train it, from its last.pt where there is one. False where it cannot begin yet."""
        for place in reversed(self.attempts(folder)):
            if place.last.is_file():
                train(resume=place.path, ui=ui)
                return True
        arguments = self.begin()
        if arguments is None:
            return False
        train(**{**arguments, "output": folder.path, "name": self.name, "ui": ui})
        return True


def run_jobs(
    train: Callable[..., Any], folder: RunFolder, jobs: Sequence[Job], ui: Ui, keep_failures: bool = False
) -> list[RunFolder | None]:
    """Train every job that is not finished, and wait for those that other processes train.

    Args:
        train: `vitmed.train`.
        keep_failures: note why a job failed and go on with the others; else its error ends this.

    Returns:
        the run of each job; None where it failed.
    """
    waiting = False
    while True:
        left = [job for job in jobs if job.done(folder) is None and not job.failure(folder).is_file()]
        if not left:
            return [job.done(folder) for job in jobs]
        worked = False
        for job in left:
            with claimed(folder, job.name, ui) as mine:
                if not mine or job.done(folder) is not None or job.failure(folder).is_file():
                    continue
                ui.say(job.title)
                try:
                    worked |= job.train(train, folder, ui)
                except Interrupted as error:
                    raise Interrupted(f"in {job.title}: {error.problem}", error.fix) from None
                except VitmedError as error:
                    if not keep_failures:
                        raise
                    write_text(job.failure(folder), f"{error}\n")
                    ui.warn(f"{job.title}: {error.line}")
                    worked = True
        if not worked:
            if not waiting:
                ui.say(f"waiting for other processes, which train {', '.join(job.title for job in left)}")
            waiting = True
            time.sleep(PAUSE)


@contextlib.contextmanager
def claimed(folder: RunFolder, name: str, ui: Ui, wait: float = 0) -> Iterator[bool]:
    """Whether this process alone has the job. On a file system without locks every process has it, with a warning.

    Args:
        wait: for another process that has it, s; -1: until it ends.
    """
    lock = FileLock(folder.path / f".{name}.lock")
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        yield False
        return
    except (OSError, NotImplementedError) as error:
        ui.warn(f"{folder.path}: cannot be locked ({error}); run one process only")
        yield True
        return
    try:
        yield True
    finally:
        lock.release()


@contextlib.contextmanager
def helpers(verb: str, folder: RunFolder, parallel: int, ui: Ui, offline: bool = False) -> Iterator[None]:
    """Start `parallel` - 1 processes that join in: `vitmed VERB --join FOLDER`; end them afterwards.

    Each has a share of the CPU cores, and one of the GPUs in turn. What one prints is in helper-2.log and so on.
    """
    if parallel == 1:
        yield
        return
    import torch

    threads, gpus, before = max(1, cores() // parallel), torch.cuda.device_count(), torch.get_num_threads()
    started: list[tuple[subprocess.Popen[bytes], TextIO]] = []
    try:
        for number in range(2, parallel + 1):
            own = {"OMP_NUM_THREADS": str(threads)} | ({"VITMED_OFFLINE": "1"} if offline else {})
            if gpus > 1:
                given = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
                own["CUDA_VISIBLE_DEVICES"] = given[(number - 1) % gpus]
            log = (folder.path / f"helper-{number}.log").open("a", encoding="utf-8")
            command = [sys.executable, "-m", "vitmed", verb, "--join", str(folder.path)]
            child = subprocess.Popen(command, stderr=log, stdout=log, stdin=subprocess.DEVNULL, env=os.environ | own)
            started.append((child, log))
        ui.say(
            f"{parallel} processes, each on {threads} of {cores()} cores; the others write {folder.path}/helper-*.log"
        )
        torch.set_num_threads(min(before, threads))
        yield
    finally:
        torch.set_num_threads(before)
        for child, file in started:
            _end(child)
            file.close()
    for number, (child, _) in enumerate(started, 2):
        if child.returncode not in (0, 130):
            ui.warn(f"process {number} ended with exit code {child.returncode}: {folder.path}/helper-{number}.log")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let a helper save its last.pt and end."""
    try:
        child.wait(PAUSE)
    except subprocess.TimeoutExpired:
        child.terminate()
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def check_parallel(parallel: int) -> None:
    """Raises UsageError for fewer than one process."""
    if parallel < 1:
        raise UsageError(f"--parallel {parallel}: expected at least 1", "--parallel 2")
