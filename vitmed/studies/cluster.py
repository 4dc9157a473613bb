"""Where jobs run, if not in this process: on an executor of `concurrent.futures`, one of which is a Ray cluster.

A worker gets a function, its arguments and the folder in which the command was given; files are shared, and what it
writes is the record. Nothing here imports ray: `ray_driver.py` does, in a process of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import itertools
import os
import pickle
import platform
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures import TimeoutError as TooLate
from pathlib import Path
from typing import Any, NamedTuple

import vitmed
from vitmed.core.config import Config
from vitmed.core.errors import DataError, Interrupted, UsageError, VitmedError
from vitmed.core.messages import Gathered, Mute, Once, listener, listening, say, warn
from vitmed.core.text import counted, lines_of
from vitmed.data.folders import image_names
from vitmed.studies.ray_driver import FAILED, KILLED, LOST, Node, Request

VARIABLE = "VITMED_ON"
PORT = 6379  # of a head, as `ray start --head` chooses it
TOUCH, CONNECT, NODE, PLACE = 5.0, 15.0, 30.0, 30.0  # s: address, cluster, a node, a free place
WIDE = 64  # calls that wait in an executor that does not say how many places it has
TRIES = 3  # starts of what is killed
REST = "run the same command again: it does what is left"


class Killed(Exception):
    """The worker or the node of a job is gone."""


class Places(NamedTuple):
    """How many trainings run at the same time, and what runs them; None: this machine."""

    runs: int = 1
    executor: Executor | None = None


@contextlib.contextmanager
def opened(on: str | Executor | None, parallel: int | None = None, strict: bool = False) -> Iterator[Places]:
    """Open where jobs run.

    Args:
        on: "local", "ray", "ray:HOST:PORT" or an executor, which stays open; default: the variable VITMED_ON.
        parallel: trainings at the same time; default 1, or as many as the cluster has GPUs or, without, nodes.
        strict: a node that cannot be used ends the command.

    Raises:
        UsageError: fewer than one training, no such place, or no connection to it.
    """
    on = on or os.environ.get(VARIABLE) or "local"
    if parallel is not None and parallel < 1:
        raise UsageError(f"--parallel {parallel}: expected at least 1", "--parallel 2")
    with contextlib.ExitStack() as stack:
        if not isinstance(on, Executor) and on != "local":
            on = stack.enter_context(RayCluster(ray_address(on), strict))
        place = None if isinstance(on, str) else on
        yield Places(parallel or (place.runs if isinstance(place, RayCluster) else 1), place)


def ray_address(on: str) -> str:
    """HOST:PORT of `ray` or `ray:HOST:PORT`. Raises UsageError for anything else."""
    kind, _, address = on.partition(":")
    if kind != "ray" or address.startswith("//") or (address.count(":") > 1 and not address.startswith("[")):
        text = "Ray Client cannot be used" if on.startswith("ray://") else "no such place"
        raise UsageError(f"--on {on}: {text}; expected local, ray or ray:HOST:PORT", f"--on ray:HOST:{PORT}")
    if not address:  # as the other commands of Ray find it
        file = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
        address = os.environ.get("RAY_ADDRESS", "") or (file.read_text().strip() if file.is_file() else "127.0.0.1")
        return ray_address(address if address.startswith("ray:") else f"ray:{address}")
    return address if address.rpartition(":")[2].isdecimal() else f"{address}:{PORT}"


def call(function: Callable[..., Any], arguments: tuple[Any, ...], folder: str) -> tuple[Any, Any, list[str]]:
    """Do what a worker is asked, in the folder of the command: the result, the VitmedError, and the warnings."""
    kept = Gathered(Mute())
    try:
        if folder != _here():
            os.chdir(folder)
        with listening(kept):
            return function(*arguments), None, kept.warnings
    except VitmedError as error:
        return None, error, kept.warnings
    except OSError as error:  # such as a folder that is not mounted
        return None, DataError(f"{platform.node()}: {error}", "mount the same files there"), kept.warnings


def submit(place: Executor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Begin a call there; `result_of` reads how it ended."""
    return place.submit(call, function, arguments, _here())


def result_of(future: Future[Any]) -> Any:
    """What a call returned. Raises its VitmedError; Killed, or Interrupted for a cluster that is lost."""
    try:
        value, error, warnings = future.result()
    except (Killed, VitmedError):
        raise
    except Exception as problem:  # such as BrokenProcessPool
        raise VitmedError(f"a worker failed: {problem!r}", REST) from problem
    for text in warnings:
        warn(text)
    if error is not None:
        raise error
    return value


def each(place: Executor | None, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """Do calls there, some at a time, and yield what each returns when it ends; again where a worker is killed."""
    if place is None:
        yield from itertools.starmap(function, calls)
        return
    left, running = iter(calls), dict[Future[Any], tuple[tuple[Any, ...], int]]()
    width, once = 2 * getattr(place, "places", WIDE // 2), Once(listener())
    try:
        while True:
            for arguments in itertools.islice(left, width - len(running)):
                running[submit(place, function, *arguments)] = (arguments, 1)
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                arguments, tries = running.pop(done)
                try:
                    with listening(once):  # they warn of the same
                        result = result_of(done)
                    yield result
                except Killed as error:
                    if tries == TRIES:
                        raise VitmedError(f"{error} ended it {TRIES} times, perhaps for lack of memory", REST) from None
                    warn(f"{error} ended a part of the work; once more")
                    running[submit(place, function, *arguments)] = (arguments, tries + 1)
    finally:
        for future in running:
            future.cancel()


def files_of(settings: Config) -> list[Path]:
    """What every node has to see of a data folder: three images, and the tables and weights that are named."""
    data, weights = settings.data, settings.model.weights
    root = Path(str(data.root))
    named = [Path(file) for file in (data.labels, data.groups, weights) if file is not None and Path(file).is_file()]
    return [*three([root / name for name in image_names(root)]), *named]


def three(files: Sequence[Any]) -> list[Any]:
    """The first, the middle and the last."""
    return [files[i] for i in sorted({0, len(files) // 2, len(files) - 1})] if files else []


def look(files: Sequence[str], new: str) -> dict[str, str]:
    """What is here: versions, and size and hash of files; also writes a new file.

    Returns:
        what -> value; a file that cannot be read or written has why.
    """
    found = {"vitmed": vitmed.__version__, "Python": platform.python_version(), "torch": "torch"}
    found["torch"] = importlib.metadata.version("torch")
    for name in files:
        try:
            with Path(name).open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                found[name] = f"{stream.tell():,} bytes, SHA-256 {digest[:12]}"
        except OSError as error:
            found[name] = f"{error.strerror}"
    try:
        Path(new).write_text(new)
    except OSError as error:
        found[str(Path(new).parent)] = f"{error.strerror}"
    return found


class RayCluster(Executor):
    """A Ray cluster that is there already: calls of functions on the nodes that see what this process sees.

    Raises:
        UsageError: nothing answers at the address, or not as a cluster of this version.
    """

    def __init__(self, address: str, strict: bool = False) -> None:
        self.name, self.strict, self.cpus, self.gpus = f"ray:{address}", strict, 1, 0
        if importlib.util.find_spec("ray") is None:
            raise UsageError(f"--on {self.name}: needs one more package", "pip install 'vitmed[ray]'")
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), TOUCH).close()
        except (OSError, OverflowError) as error:
            fix = "start the cluster, or name the address of its head: --on ray:HOST:PORT"
            raise UsageError(f"--on {self.name}: nothing answers there ({error})", fix) from None
        say(f"connecting to {self.name}")
        self.numbers, self.waiting, self.lost = itertools.count(1), dict[int, Future[Any]](), ""
        self.one, ready = threading.Lock(), Future[list[Node]]()
        self.waiting[0] = ready
        self.driver = subprocess.Popen(
            [sys.executable, "-c", "from vitmed.studies.ray_driver import main; main()", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
            start_new_session=True,  # Ctrl-C is for the command
        )
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.nodes = ready.result(CONNECT)
        except (TooLate, VitmedError) as error:
            self.shutdown()
            why = error.problem if isinstance(error, VitmedError) else f"no answer within {CONNECT:.0f} s"
            problem = f"--on {self.name}: something answers there, but this process cannot join it: {why[:300]}"
            fix = "use the Ray and the Python of the cluster, on one of its machines, and its token if it has one"
            raise UsageError(problem, fix) from None
        self.left_out = dict[str, str]()

    def _read(self) -> None:
        """What the thread that reads answers does, until there are no more."""
        assert self.driver.stdout is not None
        why = "the connection is lost"
        with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                number, kind, value = pickle.load(self.driver.stdout)
                if kind == LOST:
                    why = value
                    continue
                with self.one:
                    future = self.waiting.pop(number)
                if not future.set_running_or_notify_cancel():
                    continue
                if kind == KILLED:
                    future.set_exception(Killed(f"the end of a worker or node ({value})"))
                elif kind == FAILED:
                    future.set_exception(VitmedError(value, REST))
                else:
                    future.set_result(value)
        with self.one:
            self.lost, waiting = f"{self.name}: {why}; what was written is saved", [*self.waiting.values()]
            self.waiting.clear()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(Interrupted(self.lost, REST))

    @property
    def has_gpus(self) -> int:
        """How many GPUs its nodes have."""
        return int(sum(node.gpus for node in self.nodes))

    @property
    def places(self) -> int:
        """Calls at the same time: one for each GPU or, where there is none, for each CPU core."""
        return max(1, self.has_gpus or int(sum(node.cpus for node in self.nodes)))

    @property
    def runs(self) -> int:
        """Trainings at the same time: one for each GPU or, where there is none, for each node."""
        return max(1, self.has_gpus or sum(node.cpus >= 1 for node in self.nodes))

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Call a function of a module, on any node that can be used."""
        return self._begin([node.number for node in self.nodes], self.cpus, self.gpus, function, *arguments)

    def _begin(self, nodes: Sequence[str], cpus: int, gpus: int, function: Callable[..., Any], *arguments: Any) -> Any:
        future = Future[Any]()
        with self.one:
            if self.lost:
                raise Interrupted(self.lost, REST)
            number = next(self.numbers)
            self.waiting[number] = future
            assert self.driver.stdin is not None
            with contextlib.suppress(OSError):  # lost: `_read` says so
                pickle.dump(Request(number, function, arguments, nodes, cpus, gpus), self.driver.stdin)
                self.driver.stdin.flush()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the driver, with which Ray ends its workers; the cluster stays."""
        assert self.driver.stdin is not None
        with contextlib.suppress(OSError):
            self.driver.stdin.close()
        try:
            self.driver.wait(5)
        except subprocess.TimeoutExpired:
            self.driver.kill()
            self.driver.wait()

    def prepare(self, files: Sequence[str | Path], folder: Path, parallel: int = 0, devices: int = 1) -> None:
        """Leave out the nodes that do not see these files, or do not share the folder to be written.

        Args:
            parallel, devices: trainings at the same time, which share the nodes, and of each; 0: calls of one core.

        Raises:
            UsageError: no node is left, with `strict` one is left out, or there is no place for a job.
        """
        mine = folder / f".vitmed-{secrets.token_hex(4)}"
        names, asked = [*map(str, files), str(mine)], list[tuple[Node, Path, Future[Any]]]()
        try:
            mine.write_text(self.name)
            here = look(names, f"{mine}-here")
            for node in self.nodes:
                file = mine.with_name(f"{mine.name}-{node.number}")
                asked.append((node, file, self._begin([node.number], 0, 0, call, look, (names, str(file)), _here())))
            for node, file, answer in asked:
                if why := _why_not(answer, file, here):
                    self.left_out[node.number] = f"{node.address}: {why}"
                    warn(f"{self.name}: a node is left out, {node.address}: {why}")
        finally:
            for file in folder.glob(f"{mine.name}*"):
                file.unlink(missing_ok=True)
        self.nodes = [node for node in self.nodes if node.number not in self.left_out]
        if not self.nodes or (self.strict and self.left_out):
            problem = f"{self.name}: {counted(len(self.left_out), 'node')} cannot be used:\n"
            raise UsageError(problem + lines_of([*self.left_out.values()]), "mend that, or leave --strict out")
        most = int(max(node.cpus for node in self.nodes))
        fits = (n for n in range(most, 0, -1) if sum(node.cpus // n for node in self.nodes) >= parallel)
        self.gpus = devices if self.has_gpus else 0
        self.cpus = max(next(fits, 1), devices) if parallel else 1
        try:
            self.submit(platform.node).result(PLACE)
        except TooLate:
            size = counted(self.cpus, "core") + (f" and {counted(self.gpus, 'GPU')}" if self.gpus else "")
            problem = f"{self.name}: no node had {size} free for {PLACE:.0f} s"
            raise UsageError(problem, "wait until others end, or ask for less with --parallel or --devices") from None


def _here() -> str:
    return str(Path.cwd())


def _why_not(answer: Future[Any], file: Path, here: dict[str, str]) -> str:
    """What a node sees otherwise than this process does; "" where it can be used."""
    try:
        there = result_of(answer) if not wait([answer], NODE).not_done else None
        written = file.read_text() if there is not None else ""
    except (Killed, VitmedError) as error:
        return getattr(error, "problem", f"{error}")
    except OSError as error:
        return f"what it writes into {file.parent} is not seen here ({error.strerror})"
    if there is None:
        return f"no answer within {NODE:.0f} s"
    other = [
        f"{what}: {value} here, {there.get(what)} there" for what, value in here.items() if there.get(what) != value
    ]
    return other[0] if other else "" if written == str(file) else f"{file.parent} is another folder there"


def prepare(
    place: Executor | None, files: Sequence[str | Path], folder: Path, parallel: int = 0, devices: int = 1
) -> None:
    """Do as `RayCluster.prepare`, where it is one; another executor is as its owner made it."""
    if isinstance(place, RayCluster):
        place.prepare(files, folder, parallel, devices)
