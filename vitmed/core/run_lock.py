"""One process at a time writes to a run folder."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from vitmed.core.errors import UsageError
from vitmed.core.files import claim, remove_abandoned, write_text
from vitmed.core.messages import warn
from vitmed.core.run_folder import RunFolder

ORPHANS = 10  # s that loader processes may hold the lock of a run that was killed; torch ends them after 5


@contextlib.contextmanager
def run_lock(run: RunFolder) -> Iterator[None]:
    """Let this process alone write to a run folder, and remove what a killed one left there.

    The lock ends with its process, however that ends; its file stays, because one that waits may have opened it. On a
    file system without locks there is a warning instead.

    Raises:
        UsageError: another process writes to the folder; names it and its machine.
    """
    lock, file = _files(run)
    holder, here = Holder.read(file), platform.node()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(lock).acquire(0 if holder.is_alive else ORPHANS))
        except Timeout:
            who, kill = "another process writes", "kill PID"
            if holder.since:
                where = f" on {holder.host}" if holder.host else ""
                who = f"process {holder.number}{where} has been writing to this run since {holder.since}"
                kill = (
                    f"kill {holder.number}" if holder.host in ("", here) else f"on {holder.host}: kill {holder.number}"
                )
            raise UsageError(
                f"{run.path}: {who}", f"wait until it ends or stop it ({kill}), then run this again"
            ) from None
        except (OSError, NotImplementedError) as error:
            warn(f"{run.path}: cannot be locked ({error}); make sure that no other process writes to this run")
        else:
            stack.callback(file.unlink, missing_ok=True)
            write_text(file, f"{os.getpid()} {datetime.datetime.now():%Y-%m-%d %H:%M:%S} {here}\n")
        remove_abandoned(run.path)
        yield


def is_running(run: RunFolder) -> bool:
    """Whether a process writes to a run folder now. Changes nothing there, and works in one that cannot be written."""
    lock, file = _files(run)
    free = None
    with contextlib.suppress(OSError), lock.open("rb") as stream:
        free = claim(stream.fileno(), shared=True)
    return Holder.read(file).is_alive if free is None and file.is_file() else free is False


def was_killed(run: RunFolder) -> bool:
    """Whether the last process that wrote to a run folder, and no longer does, was killed: it left its name there."""
    return _files(run)[1].is_file()


def _files(run: RunFolder) -> tuple[Path, Path]:
    """The lock, and who has it."""
    return run.path / ".lock", run.path / ".lock.holder"


class Holder(NamedTuple):
    """The process that has, or had, the lock, since when, and its machine; "" where it is not known."""

    number: str = ""
    since: str = ""
    host: str = ""

    @classmethod
    def read(cls, file: Path) -> Holder:
        """From the file beside the lock; that of 0.2.0 has no machine."""
        known = file.read_text(encoding="utf-8").split() if file.is_file() else []
        return cls(known[0], " ".join(known[1:3]), " ".join(known[3:])) if len(known) > 2 else cls()

    @property
    def is_alive(self) -> bool:
        """Whether there is such a process, as far as this one can see: not on another machine."""
        if os.name == "nt" or self.host not in ("", platform.node()):  # on Windows os.kill(number, 0) is Ctrl-C
            return True
        try:
            os.kill(int(self.number), 0)
        except (ValueError, OSError) as error:
            return isinstance(error, PermissionError)
        return True
