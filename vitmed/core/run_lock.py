"""One process at a time writes to a run folder."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from vitmed.core.errors import UsageError
from vitmed.core.files import claim, remove_abandoned, write_text
from vitmed.core.run_folder import RunFolder
from vitmed.core.ui import Ui

ORPHANS = 10  # s that loader processes may hold the lock of a run that was killed; torch ends them after 5


@contextlib.contextmanager
def run_lock(run: RunFolder, ui: Ui) -> Iterator[None]:
    """Let this process alone write to a run folder, and remove what a killed one left there.

    The lock ends with its process, however that ends. On a file system without locks there is a warning instead.

    Raises:
        UsageError: another process writes to the folder; names it.
    """
    lock, holder = _files(run)
    number, since = _holder(holder)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(lock).acquire(0 if _is_alive(number) else ORPHANS))
        except Timeout:
            who = f"process {number} has been writing to this run since {since}" if since else "another process writes"
            raise UsageError(
                f"{run.path}: {who}", f"wait until it ends or stop it (kill {number or 'PID'}), then run this again"
            ) from None
        except (OSError, NotImplementedError) as error:
            ui.warn(f"{run.path}: cannot be locked ({error}); make sure that no other process writes to this run")
        else:
            for file in (lock, holder):
                stack.callback(file.unlink, missing_ok=True)
            write_text(holder, f"{os.getpid()} {datetime.datetime.now():%Y-%m-%d %H:%M:%S}\n")
        remove_abandoned(run.path)
        yield


def is_running(run: RunFolder) -> bool:
    """Whether a process writes to a run folder now. Changes nothing there, and works in one that cannot be written."""
    lock, holder = _files(run)
    free = None
    with contextlib.suppress(OSError), lock.open("rb") as stream:
        free = claim(stream.fileno(), shared=True)
    return _is_alive(_holder(holder)[0]) if free is None and holder.is_file() else free is False


def was_killed(run: RunFolder) -> bool:
    """Whether the last process that wrote to a run folder, and no longer does, was killed: it left its name there."""
    return _files(run)[1].is_file()


def _files(run: RunFolder) -> tuple[Path, Path]:
    """The lock, and the number of the process that has it."""
    return run.path / ".lock", run.path / ".lock.holder"


def _holder(file: Path) -> tuple[str, str]:
    """The number of the process that has, or had, the lock, and since when; "" where it is not known."""
    known = file.read_text(encoding="utf-8").strip().split(maxsplit=1) if file.is_file() else []
    return (known[0], known[1]) if len(known) == 2 else ("", "")


def _is_alive(number: str) -> bool:
    """Whether a process has this number, as far as this process can see."""
    if os.name == "nt":  # there os.kill(number, 0) is Ctrl-C
        return True
    try:
        os.kill(int(number), 0)
    except (ValueError, OSError) as error:
        return isinstance(error, PermissionError)
    return True
