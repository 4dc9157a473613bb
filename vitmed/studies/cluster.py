"""Where jobs run, if not in this process: on an executor of Python. A Ray cluster is one.

A worker gets a function, its arguments and the folder in which the command was given; files are shared, and what it
writes is the record. Nothing here imports ray: `ray_driver.py` does, in a process of its own.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import itertools
import os
import pickle
import platform
import re
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
from vitmed.core.errors import DataError, Interrupted, UsageError, VitmedError, excluded
from vitmed.core.files import write_text
from vitmed.core.messages import Gathered, Mute, Once, listener, listening, say, warn
from vitmed.core.run_folder import is_remote
from vitmed.core.text import counted, lines_of
from vitmed.data.folders import image_names
from vitmed.studies.ray_driver import DONE, KILLED, LOST, Bundle, Node

VARIABLE = "VITMED_ON"
PORT = 6379  # of a head, as `ray start --head` chooses it
TOUCH, CONNECT, NODE, PLACE, END = 3.0, 12.0, 30.0, 30.0, 5.0  # s for address, cluster, node, free place, an end
WIDE = 64  # calls that wait in an executor that does not say how many places it has
TRIES = 3  # starts of what is killed
REST = "run the same command again: it does what is left"
DRIVER = "from vitmed.studies.ray_driver import main; main()"


class Killed(Exception):
    """The worker or the node of a job is gone."""


class Places(NamedTuple):
    """How many trainings run at the same time, what runs them (None: this machine), the devices of each, and whether
    the messages of each go to FOLDER/JOB.log even if one at a time trains on this machine."""

    runs: int = 1
    executor: Executor | None = None
    devices: int = 1
    logged: bool = False


HERE = Places()


@contextlib.contextmanager
def opened(on: str | Executor | None, parallel: int | None = None, strict: bool = False) -> Iterator[Places]:
    """Open where jobs run.

    Args:
        on: "local", "ray", "ray:HOST:PORT" or an executor, which stays open; default: the variable VITMED_ON.
        parallel: trainings that run at the same time; default 1, or as many as the cluster has GPUs or, without, nodes.
        strict: a node that cannot be used ends the command.

    Raises:
        UsageError: another text, `strict` without a cluster, or a cluster that cannot be used.
    """
    on = on or os.environ.get(VARIABLE) or "local"
    if strict and (on == "local" or isinstance(on, Executor)):
        raise excluded("strict")
    with contextlib.ExitStack() as stack:
        if isinstance(on, str):
            on = None if on == "local" else stack.enter_context(RayCluster(ray_address(on), strict))
        yield Places(parallel or int(getattr(on, "runs", 1)), on)


def ray_address(on: str) -> str:
    """HOST:PORT of `ray` or `ray:HOST:PORT`. Raises UsageError for anything else."""
    kind, _, address = on.partition(":")
    if kind != "ray" or not re.fullmatch(r"([^/:]+(:\d+)?)?", address):
        raise UsageError(f"--on {on}: expected local, ray or ray:HOST:PORT", f"--on ray:HOST:{PORT}")
    if not address:  # as the commands of Ray find it
        file = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
        started = file.read_text().strip() if file.is_file() else "127.0.0.1"
        address = named if (named := os.environ.get("RAY_ADDRESS", "auto")) not in ("", "auto") else started
        return ray_address(f"ray:{address.removeprefix('ray:')}")
    return address if ":" in address else f"{address}:{PORT}"


def call(function: Callable[..., Any], arguments: tuple[Any, ...], folder: str) -> tuple[Any, Any, list[str]]:
    """Do what a worker is asked, in the folder of the command: the result, the VitmedError, and the warnings."""
    kept = Gathered(Mute())
    try:
        if folder != str(Path.cwd()):
            os.chdir(folder)
        with listening(kept):
            return function(*arguments), None, kept.warnings
    except VitmedError as error:
        return None, error, kept.warnings
    except OSError as error:  # such as a folder that is not mounted
        return None, DataError(f"{platform.node()}: {error}", "mount the same files there"), kept.warnings


def submit(place: Executor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Begin a call there; `result_of` reads how it ended."""
    return place.submit(call, function, arguments, str(Path.cwd()))


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
    """What every node has to see: three images of the data folder, tables and weights; it copies those at addresses."""
    root, named = Path(str(settings.data.root)), (settings.data.labels, settings.data.groups, settings.model.weights)
    images = [] if is_remote(root) else three([root / name for name in image_names(root)])
    return [*images, *(Path(file) for file in named if file is not None and Path(file).is_file())]


def three(files: Sequence[Any]) -> list[Any]:
    return [files[i] for i in sorted({0, len(files) // 2, len(files) - 1})] if files else []


def look(files: Sequence[str], new: str) -> dict[str, str]:
    """What is here, as what -> value: versions, and size and hash of files, or why not; also writes a new file."""
    versions = {"torch": importlib.metadata.version("torch"), "vitmed": vitmed.__version__}
    found = {"Python": platform.python_version(), **versions}
    for name in files:
        try:
            content = Path(name).read_bytes()
            found[name] = f"{len(content):,} bytes, SHA-256 {hashlib.sha256(content).hexdigest()[:12]}"
        except OSError as error:
            found[name] = f"{error.strerror}"
    with contextlib.suppress(OSError):  # the command looks for it
        Path(new).write_text(new)
    return found


class RayCluster(Executor):
    """A Ray cluster that is there already: calls of functions on the nodes that see what this process sees.

    `places` are calls at the same time, `runs` trainings: a GPU for each or, where there is none, a core or a node.
    Raises UsageError: nothing answers at the address, or not as a cluster of this version.
    """

    def __init__(self, address: str, strict: bool = False) -> None:
        self.name, self.strict, self.cpus, self.gpus = f"ray:{address}", strict, 1, 0
        self.bundle: Bundle | None = None  # for the calls of one training on several places
        if importlib.util.find_spec("ray") is None:
            raise UsageError(f"--on {self.name}: needs one more package", "pip install 'vitmed[ray]'")
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), TOUCH).close()
        except (OSError, OverflowError, ValueError) as error:
            fix = "start the cluster, or name the address of its head: --on ray:HOST:PORT"
            raise UsageError(f"--on {self.name}: nothing answers there ({error})", fix) from None
        say(f"connecting to {self.name}")
        self.numbers, self.one, self.lost, ready = itertools.count(1), threading.Lock(), "", Future[Any]()
        self.waiting = {0: ready}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        variables = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
        command = [sys.executable, "-c", DRIVER, address]  # in a session of its own: Ctrl-C is for this process
        self.driver: Any = subprocess.Popen(command, env=variables, start_new_session=True, **pipes)
        threading.Thread(target=self._read, daemon=True).start()
        load = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0
        patience = CONNECT * min(max(load, 1.0), 5.0)  # longer on a busy machine, where `import ray` alone takes 7 s
        try:
            self._use(ready.result(patience))
        except (TooLate, VitmedError) as error:
            self.shutdown()
            why = error.problem if isinstance(error, VitmedError) else f"no answer within {patience:g} s"
            problem = f"--on {self.name}: something answers there, but this process cannot join it: {why[:300]}"
            fix = "use the Ray and the Python of the cluster, on one of its machines, and its token if it has one"
            fix += "; if that is right, a machine is busy: try again later" * isinstance(error, TooLate)
            raise UsageError(problem, fix) from None

    def _use(self, nodes: list[Node]) -> None:
        self.nodes, gpus, cores = nodes, int(sum(n.gpus for n in nodes)), int(sum(n.cpus for n in nodes))
        self.has_gpus, self.places = gpus > 0, max(1, gpus or cores)
        self.runs = max(1, gpus or sum(node.cpus >= 1 for node in nodes))

    def _read(self) -> None:
        why = "the connection is lost"
        with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                number, kind, value = pickle.load(self.driver.stdout)
                why = value if kind == LOST else why
                future = self.waiting.pop(number, None)
                if future is None or not future.set_running_or_notify_cancel():
                    continue
                if kind == DONE:
                    future.set_result(value)
                elif kind == KILLED:
                    future.set_exception(Killed(f"the end of a worker or node ({value})"))
                else:
                    future.set_exception(VitmedError(value, REST))
        with self.one:
            self.lost = f"{self.name}: {why}; what was written is saved"
        for future in self.waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(Interrupted(self.lost, REST))

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Call a function of a module, on any node that can be used."""
        nodes = [node.number for node in self.nodes]
        return self._begin((function, *arguments), nodes, self.cpus, self.gpus, self.bundle)

    def _begin(
        self, call: tuple[Any, ...], nodes: list[str], cpus: int = 0, gpus: int = 0, bundle: Bundle | None = None
    ) -> Future[Any]:
        future = Future[Any]()
        with self.one:
            if self.lost:
                raise Interrupted(self.lost, REST)
            self.waiting[number := next(self.numbers)] = future
            with contextlib.suppress(OSError):  # lost: `_read` says so
                pickle.dump((number, call, nodes, cpus, gpus, bundle), self.driver.stdin)
                self.driver.stdin.flush()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the driver, with which Ray ends its workers; the cluster stays."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.driver.stdin.close()
            self.driver.wait(END)
        self.driver.kill()
        self.driver.wait()

    def leave_out(self, files: Sequence[str | Path], folder: Path) -> None:
        """Use only the nodes that see these files, and share the folder to be written. Raises UsageError."""
        mine = folder / f".vitmed-{secrets.token_hex(4)}"
        names, good, bad = [*map(str, files), str(mine)], list[Node](), list[str]()
        try:
            write_text(mine, self.name)
            here, new = look(names, f"{mine}-here"), [Path(f"{mine}-{node.number}") for node in self.nodes]
            calls = [(call, look, (names, str(file)), str(Path.cwd())) for file in new]
            asked = [self._begin(one, [node.number]) for one, node in zip(calls, self.nodes, strict=True)]
            wait(asked, NODE)
            for node, file, answer in zip(self.nodes, new, asked, strict=True):
                why = ""  # what it sees otherwise than this process does
                try:
                    if not answer.done():
                        why = f"no answer within {NODE:.0f} s"
                    else:
                        there = result_of(answer)
                        other = [what for what, value in here.items() if there.get(what) != value]
                        if other:
                            why = f"{other[0]}: {here[other[0]]} here, {there.get(other[0])} there"
                        elif file.read_text() != f"{file}":
                            why = f"{file.parent}: another folder"
                except (Killed, VitmedError) as error:
                    why = getattr(error, "problem", f"{error}")
                except OSError as error:
                    why = f"what it writes into {file.parent} is not seen here ({error.strerror})"
                if why:
                    bad.append(f"{node.address}: {why}")
                    warn(f"{self.name}: a node is left out, {bad[-1]}")
                else:
                    good.append(node)
        finally:
            for file in folder.glob(f"{mine.name}*"):
                file.unlink(missing_ok=True)
        if not good or (self.strict and bad):
            problem = f"{self.name}: {counted(len(bad), 'node')} cannot be used:\n{lines_of(bad)}"
            raise UsageError(problem, "mend that" + " or leave --strict out" * bool(good))
        self._use(good)


def prepare(
    place: Executor | None, files: Sequence[str | Path], folder: Path, parallel: int = 0, devices: int = 1
) -> None:
    """Look at the nodes of a Ray cluster and at its free places; another executor is as its owner made it.

    Args:
        parallel: trainings at the same time; 0: calls of one core.
        devices: for each training.

    Raises:
        UsageError: no place for a job, or as `leave_out`.
    """
    if not isinstance(place, RayCluster):
        return
    place.leave_out(files, folder)
    most = int(max(node.cpus for node in place.nodes))
    fits = (n for n in range(most, 0, -1) if sum(node.cpus // n for node in place.nodes) >= parallel)
    place.gpus = devices if place.has_gpus else 0
    place.cpus = max(next(fits, 1), devices) if parallel else 1
    try:
        place.submit(platform.node).result(PLACE)
    except (TooLate, Killed):
        size = counted(place.cpus, "core") + (f" and {counted(place.gpus, 'GPU')}" if place.gpus else "")
        free = "no node had" if place.bundle is None else f"there were not {place.bundle[1]} places at once with"
        problem = f"{place.name}: {free} {size} free for {PLACE:.0f} s"
        raise UsageError(problem, "wait until others end, or ask for fewer cores or GPUs") from None
