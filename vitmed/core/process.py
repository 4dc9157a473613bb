"""Settings of this process, some of which must precede the import of torch, and its signals."""

import contextlib
import ctypes
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

SAME_STOP = 5.0  # s in which a second SIGTERM or SIGHUP belongs to the first
ANSWERING = ("predict", "serve", "explain", "evaluate")  # commands that compute forward alone
DRIVER = "VITMED_DRIVER"  # the variable with the number of the process that started this one for a job
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # malloc.h of the GNU C library


def tune_process(command: str = "") -> None:
    """Let waiting threads sleep soon, take no more threads than a container has cores, and keep freed memory.

    A thread that spins for a partner without a core takes that core from the partner: on a busy machine training is up
    to twenty times slower. Threads therefore spin for some microseconds only, which costs hardly anything there. What
    answers single images wakes its threads between them, and spins ten times as long: half the time of an image.
    Returning every large block to the system costs up to a fifth of a training step on a CPU. Variables that you have
    set are kept. Figures: docs/performance.md.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "10000" if command in ANSWERING else "1000")
    if cores() < _allowed():
        os.environ.setdefault("OMP_NUM_THREADS", f"{cores()}")  # PyTorch counts the cores of the machine
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, such as musl
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(M_TOP_PAD, 2**28)


def is_rank() -> bool:
    """Whether torchrun, or another launcher with its variables, has started this process as one of several."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "").isdecimal() and int(os.environ["WORLD_SIZE"]) > 1


def end_with_driver() -> None:
    """End this process as SIGTERM does when the one that started it for a job has ended, however it ended."""
    driver = os.environ.pop(DRIVER, "")

    def watch() -> None:
        while os.getppid() == int(driver):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    if driver:
        threading.Thread(target=watch, daemon=True).start()


def cores() -> int:
    """CPU cores that this process may use, at least 1; in a container perhaps fewer than the machine has."""
    limits = [_allowed()]
    for group in control_groups("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # version 2, version 1
            with contextlib.suppress(OSError, ValueError):  # no such file; "max" is no number
                quota, period = map(int, " ".join((group / name).read_text() for name in names).split())
                limits += [math.ceil(quota / period)] if quota > 0 else []
    return max(1, min(limits))


def _allowed() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def control_groups(controller: str) -> list[Path]:
    """The folders of the control groups, of version 2 and 1, that limit this process in "cpu" or "memory"."""
    folders = list[Path]()
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                place = Path("/sys/fs/cgroup", controllers, name.strip("/"))
                folders += [place, *place.parents]
    return folders


class SharedContext(contextlib.ContextDecorator):
    """A context manager for a change to the whole process: the first thread to enter makes it, the last undoes it."""

    def __init__(self, change: Callable[[], contextlib.AbstractContextManager[Any]]):
        self.change, self.lock, self.inside, self.stack = change, threading.Lock(), 0, contextlib.ExitStack()

    def __enter__(self) -> None:
        with self.lock:
            if not self.inside:
                self.stack.enter_context(self.change())
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                self.stack.close()


@contextlib.contextmanager
def changed(change: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    """Give a setting of a library this value within the block, by the function that sets it, then what was before."""
    try:
        change(value)
        yield
    finally:
        change(before)


# Warnings of libraries name a line of their own source, not the user's file.
NO_WARNINGS = SharedContext(lambda: warnings.catch_warnings(action="ignore"))


def once(handler: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
    """A handler that takes signals within seconds as one: `timeout` sends SIGTERM to a command and to its group."""
    last = -SAME_STOP

    def handle(number: int, frame: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= SAME_STOP:
            last = time.monotonic()
            handler(number, frame)

    return handle


@contextlib.contextmanager
def handling(handlers: Mapping[signal.Signals, Callable[[int, Any], None]]) -> Iterator[None]:
    """Let these functions take signals within the block; a thread other than the main one leaves them as they are."""
    main = threading.current_thread() is threading.main_thread()
    old = {number: signal.signal(number, handler) for number, handler in handlers.items() if main}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C, SIGTERM or SIGHUP end training after the current step, a second one end it immediately.

    Within seconds, SIGTERM and SIGHUP are one stop. SIGHUP comes when the terminal is closed; under `nohup` it stays
    ignored.
    """
    stopped = threading.Event()
    terminals = [handle for handle in (1, 2) if os.isatty(handle)]

    def note(number: int, frame: Any) -> None:
        for handle in terminals:
            try:
                os.get_terminal_size(handle)
            except OSError:  # it was closed: what is written there now would be an error
                os.dup2(os.open(os.devnull, os.O_WRONLY), handle)
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    noted = once(note)
    handlers = {signal.SIGINT: note, signal.SIGTERM: noted}
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = noted
    with handling(handlers):
        yield stopped.is_set
