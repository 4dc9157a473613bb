"""Many runs with one purpose: what a study says of itself, the one way to conduct it, and who trains its runs.

An executor trains jobs: here, in processes of this machine, or in processes that `cluster.py` begins elsewhere. A job
leaves no trace but its run folder, which is the record: to resume a study is to submit what is not `done`.
"""

import contextlib
import json
import math
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

import vitmed
from vitmed.core import errors
from vitmed.core.config import FLAGS, Config
from vitmed.core.files import make_folder, read_json_lines
from vitmed.core.load_config import load_config, read_overrides, store_paths
from vitmed.core.messages import Logged, Once, bar, listener, listening, say, show, warn, wrapped
from vitmed.core.process import DRIVER, cores
from vitmed.core.run_folder import PREDICTIONS, RunFolder, is_running, notes, run_lock
from vitmed.core.text import counted_doing, quoted
from vitmed.data.image_cache import ImageCache, hash_files
from vitmed.data.splits import make_splits
from vitmed.report.headline import headline
from vitmed.studies import cluster
from vitmed.studies.comparison import split_rows
from vitmed.studies.ray_driver import free_port
from vitmed.training.train_state import Record

Result = TypeVar("Result")
File = TypeVar("File", bound=BaseModel)
LOOK = 0.5  # s between two looks at whether the next run can begin
PAUSE = 0.2  # s between two looks at a process
GRACE = 30.0  # s that a process has to save its last.pt
PLAIN = ("data", "config", "sets", "offline")  # arguments of `train` that are no flags
OnEpoch = Callable[[Record], bool]


@dataclass(frozen=True)
class Job:
    """A run to train."""

    name: str  # of its run folder inside that of the study
    title: str  # in messages
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of `vitmed.train` for a new start, in plain values
    split: str = "test"  # the evaluation that ends it; "val" where the test is not read

    def attempts(self, folder: RunFolder) -> list[RunFolder]:
        """List its run folders, the oldest first: `fold-1`, and `fold-1-2` where it was started again."""
        paths = [path for path in folder.path.iterdir() if re.fullmatch(rf"{re.escape(self.name)}(-\d+)?", path.name)]
        return [RunFolder(path) for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns) if path.is_dir()]

    def done(self, folder: RunFolder) -> RunFolder | None:
        """Find its finished and evaluated run; None where there is none yet."""
        return next((run for run in self.attempts(folder) if (run.path / self.split / PREDICTIONS).is_file()), None)

    def start(self, folder: RunFolder) -> dict[str, Any]:
        """Return the keywords of `vitmed.train` that begin it, or continue it from its last.pt."""
        for place in reversed(self.attempts(folder)):
            if place.last.is_file():
                deadline = time.monotonic() + GRACE
                while is_running(place) and time.monotonic() < deadline:  # its driver was killed; it is about to end
                    time.sleep(PAUSE)
                return {"resume": place.path, "offline": self.arguments.get("offline", False)}
        return {**self.arguments, "output": folder.path, "name": self.name}


class Study(ABC, Generic[Result]):
    """Runs in the folders of a folder, which are the record of what is done: which there are, and what they show."""

    folder: RunFolder
    command: str  # that continues it, as `vitmed COMMAND --resume FOLDER`
    places: cluster.Places  # of its runs
    data: str  # the digest of the splits of its runs; "" where it is not known

    @abstractmethod
    def begin(self) -> None:
        """Read what is done already; the lock of the folder is held from here on."""

    @abstractmethod
    def jobs(self) -> Iterator[Job | None]:
        """Yield the runs, each when one can begin; None where the next one needs what another has yet to do."""

    @property
    @abstractmethod
    def settings(self) -> Config:
        """The settings of its runs, whose data every worker has to see."""

    @abstractmethod
    def finish(self) -> Result:
        """Join what the runs show, once all have ended."""

    def watch(self, job: Job) -> contextlib.AbstractContextManager[OnEpoch | None]:
        """Give what follows each epoch of a run, around its submission; see `Executor.submit`."""
        return contextlib.nullcontext()

    def ended(self, job: Job, run: Future[RunFolder | None]) -> None:
        """Note how a run ended; by default its error ends the study."""
        run.result()

    def interrupted(self) -> None:
        """Note that the study stops before its end."""


def conduct(study: Study[Result]) -> Result:
    """Train the runs of a study that are not done, and finish it, while no other process writes to its folder. Raises
    Interrupted: says how to continue. Else as `Study.ended`."""
    places, running = study.places, dict[Future[RunFolder | None], Job]()
    go_on = f"vitmed {study.command} --resume {quoted(study.folder.path)}"
    with run_lock(study.folder):
        study.begin()
        jobs = study.jobs()
        try:
            if places.executor is not None:
                store_paths(study.settings, study.folder.path / "run")  # so that this process can read what they store
                files = cluster.files_of(study.settings)
                cluster.prepare(places.executor, files, study.folder.path, places.runs, places.devices)
            with workers(study.folder, places) as executor:
                while True:
                    while len(running) < places.runs and (job := next(jobs, None)) is not None:
                        check_same_data(study.settings, study.data, study.folder, files=False)
                        with study.watch(job) as on_epoch:
                            running[executor.submit(job, on_epoch)] = job
                    if not running:
                        break
                    wait(running, LOOK, FIRST_COMPLETED)
                    for run in [run for run in running if run.done()]:
                        study.ended(running.pop(run), run)
            return study.finish()
        except (errors.Interrupted, KeyboardInterrupt) as error:
            study.interrupted()
            problem = error.problem if isinstance(error, errors.Interrupted) else "stopped; what is trained is saved"
            raise errors.Interrupted(problem, go_on) from None
        except errors.VitmedError as error:  # a run that is trained by itself would be missing in the study
            error.fix = re.sub(r"vitmed train --resume ('[^']*'|\S+)", lambda _: go_on, error.fix)
            raise


def settings_of(arguments: Mapping[str, Any], command: str) -> Config:
    """Read the settings of the arguments of `train`. Raises UsageError for what it refuses."""
    flags = {key: value for key, value in arguments.items() if key not in PLAIN}
    overrides = {"data.root": arguments["data"], **read_overrides(flags, FLAGS, command)}
    return load_config(arguments["config"], overrides, arguments["sets"])


def read_study(file: Path, form: type[File], fix: str) -> File:
    """Read the file that says what a study was asked for. Raises CheckpointError if it is damaged."""
    try:
        return form.model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        raise errors.CheckpointError(f"{file}: cannot be read", fix) from None


def check_same_data(settings: Config, digest: str, folder: RunFolder, files: bool = True) -> None:
    """Raise DataError unless the images, labels and splits are those that a study began with; with `files` their
    content too, as far as one of its runs read it. A study of 0.2.0 has no digest, "", and is not checked."""
    if not digest:
        return
    splits, fix = make_splits(settings.data, ordinal=settings.evaluate.ordinal), "restore them, or start a new study"
    if splits.digest != digest:
        problem = f"{splits.root}: other images, labels or splits than those that {folder.path} began with"
        raise errors.DataError(problem, fix)
    if files and (table := next(folder.path.rglob(folder.splits.name), None)):
        before = {path: row["sha256"] for path, row in split_rows(RunFolder(table.parent)).items()}
        known = {str(splits.root / path): digest for path, digest in before.items() if digest}
        with bar("comparing files", unit="files") as advance:
            now = hash_files([*known], ImageCache(keep=settings.data.cache, warns=False), advance)
        if changed := [file for file, digest in zip(known, now, strict=True) if digest != known[file]]:
            many = counted_doing(len(changed), "image", "has", "have")
            raise errors.DataError(f"{changed[0]}: {many} changed since {folder.path} began", fix)


class Executor:
    """Trains jobs in this process, each when it is submitted."""

    def __init__(self, folder: RunFolder, places: cluster.Places) -> None:
        self.folder, self.logged, self.once = folder, places.logged, Once(listener())

    def submit(self, job: Job, on_epoch: OnEpoch | None = None) -> Future[RunFolder | None]:
        """Train a job, from its last.pt where there is one; at once if it is done. `on_epoch` gets each new line of
        metrics.jsonl, one at a time; where it returns true, the run ends with EndedByCaller and a last.pt. The result
        is the finished run, or the VitmedError that ended the job."""
        future: Future[RunFolder | None] = Future()
        try:
            if job.done(self.folder) is None:
                if not self.logged:
                    say(job.title)
                with listening(Logged(self.folder.path / f"{job.name}.log") if self.logged else self.once):
                    try:
                        trained = vitmed.train(**job.start(self.folder), each_epoch=on_epoch)
                    except errors.VitmedError as error:
                        if self.logged:
                            warn(str(error))
                        raise
                evaluated = trained.test or trained.val
                if not self.logged and not self.once.first and evaluated is not None:
                    numbers = ", ".join(headline(evaluated.metrics).split("\n")[:-1])
                    show(wrapped(f"{job.title}: {numbers}; {evaluated.folder}"))
                self.once.first = False
            future.set_result(job.done(self.folder))
        except errors.Interrupted as error:
            future.set_exception(errors.Interrupted(f"in {job.title}: {error.problem}", error.fix))
        except errors.VitmedError as error:
            future.set_exception(error)
        return future


@contextlib.contextmanager
def workers(folder: RunFolder, places: cluster.Places) -> Iterator[Executor]:
    """Train jobs on this machine, or where an executor runs what it gets.

    On this machine, with one at a time, this process trains each when it is submitted. Otherwise each of the slots
    trains in a process of its own, here with its share of the CPU cores and with one GPU in turn; what it says is in
    FOLDER/JOB.log. A process that is killed or has no memory is tried again. At the end, also by Ctrl-C or SIGTERM,
    every process that is left saves its last.pt. The processes of several devices are never this one.
    """
    if places[:3] == (1, None, 1):
        executor = Executor(folder, places)
        yield executor
        executor.once.show_counts()
        return
    processes = _Processes(folder, places)
    try:
        yield processes
    finally:
        processes.ending.set()  # begin no more jobs, and let those under way save their last.pt
        processes.pool.shutdown(cancel_futures=True)
        if processes.here:
            processes.place.shutdown()


class _Processes(Executor):
    """Trains each job by `python -m vitmed train`, as many at a time as there are slots."""

    def __init__(self, folder: RunFolder, places: cluster.Places) -> None:
        super().__init__(folder, places)
        parallel, place, devices, _ = places
        self.devices, self.here, self.gpus = devices, place is None, list[str]()
        self.slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(parallel):
            self.slots.put(slot)
        self.pool, self.ending, self.one = ThreadPoolExecutor(parallel), threading.Event(), threading.Lock()
        self.place, each = place or ThreadPoolExecutor(parallel), ""
        if self.here:
            import torch

            self.threads = max(1, cores() // (parallel * devices))
            gpus = ",".join(map(str, range(torch.cuda.device_count())))
            self.gpus = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", gpus).split(",") if name]
            each = f", each on {self.threads * devices} of {cores()} cores"
        say(f"{parallel} at a time{each}; see {folder.path}/*.log")

    def submit(self, job: Job, on_epoch: OnEpoch | None = None) -> Future[RunFolder | None]:
        return self.pool.submit(copy_context().run, self._train, job, on_epoch)  # its messages go where ours go

    def _train(self, job: Job, on_epoch: OnEpoch | None) -> RunFolder | None:
        """What the thread of a slot does for a job."""
        slot, log = self.slots.get(), self.folder.path / f"{job.name}.log"
        try:
            if job.done(self.folder) is None and not self.logged:
                say(job.title)
            for left in reversed(range(cluster.TRIES)):
                if (run := job.done(self.folder)) is not None:
                    return run
                code, ended = self._run(job, on_epoch, slot, log)
                if self.ending.is_set():
                    raise errors.Interrupted(f"in {job.title}: stopped")
                if ended:
                    raise errors.EndedByCaller(f"{job.title}: ended; its last.pt is saved")
                if left and (code < 0 or code == errors.OutOfMemoryError.exit_code):
                    why = "it has no memory" if code > 0 else f"{signal.Signals(-code).name} ended its process"
                    warn(f"{job.title}: {why}; once more, from what is saved")
                elif code != 0:
                    raise _error(code, log)
            return job.done(self.folder)
        finally:
            self.slots.put(slot)

    def _run(self, job: Job, on_epoch: OnEpoch | None, slot: int, log: Path) -> tuple[int, bool]:
        """Run a process for a job: its exit code, and whether `on_epoch` ended it."""
        before = job.attempts(self.folder)
        begun = next((place for place in reversed(before) if place.last.is_file()), None)
        records = [] if begun is None else read_json_lines(begun.metrics)
        seen = max((record["epoch"] for record in records), default=0)
        environment = notes() | ({"OMP_NUM_THREADS": f"{self.threads}"} if self.here else {})
        if 1 < len(self.gpus) >= self.devices:
            mine = [self.gpus[(slot * self.devices + k) % len(self.gpus)] for k in range(self.devices)]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
        devices = [f"--devices={self.devices}"] * (self.devices > 1)
        words = ["--json", "--verbose", *devices, *_words(job.start(self.folder))]
        stop, ended, deadline = log.with_name(f".{job.name}.stop"), False, math.inf
        stop.unlink(missing_ok=True)
        process = cluster.submit(self.place, run_process, words, log, environment, stop)
        try:
            while True:
                over = bool(wait([process], PAUSE).done)
                if on_epoch is not None and not ended and not self.ending.is_set():
                    begun = begun or next((p for p in job.attempts(self.folder)[len(before) :]), None)
                    for record in [] if begun is None else read_json_lines(begun.metrics):
                        if record["epoch"] > seen and not ended:
                            seen = record["epoch"]
                            with self.one:
                                ended = on_epoch(record)
                if over:
                    return _ended(process), ended
                if deadline == math.inf and (ended or self.ending.is_set()):
                    deadline = time.monotonic() + 2 * GRACE
                    stop.touch()
                elif time.monotonic() > deadline and process.cancel():  # it has not begun
                    return -signal.SIGTERM, ended
        finally:
            stop.unlink(missing_ok=True)


def run_process(words: Sequence[str], log: Path, environment: Mapping[str, str], stop: Path) -> int:
    """Run `vitmed train` with these words until it ends, or until there is a file `stop`, and return its exit code."""
    command, deadline = [sys.executable, "-m", "vitmed", "train", *words], math.inf
    variables = {**os.environ, **environment, DRIVER: f"{os.getpid()}", cluster.VARIABLE: "local"}
    with log.open("ab") as out:  # Ctrl-C in a terminal is for the driver, which then asks each process once
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        child = subprocess.Popen(command, env=variables, start_new_session=True, **streams)
        try:
            while child.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(PAUSE)
                if deadline == math.inf and stop.exists():
                    deadline = time.monotonic() + GRACE
                    child.terminate()
                elif time.monotonic() > deadline:
                    child.kill()
            return child.returncode
        finally:  # such as the end of the worker
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE)
            child.kill()


def _words(arguments: Mapping[str, Any]) -> list[str]:
    given = {key: value for key, value in arguments.items() if value is not None}
    words = [f"--{key}={given[key]}" for key in ("resume", "output", "name", "config") if key in given]
    words += ["--offline"] if given.get("offline") else []
    words += [word for text in given.get("sets", ()) for word in ("--set", text)]
    for key, value in given.items():
        if key in FLAGS:
            plain = str(value) if isinstance(value, Path) else value
            words += ["--set", f"{FLAGS[key]}={json.dumps(plain, ensure_ascii=False)}"]
    return [*words, "--", str(given["data"])] if "data" in given else words


def _error(code: int, log: Path) -> errors.VitmedError:
    """The error that ended a process, from the last line of its log, with its class."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    if code < 0:
        by = signal.Signals(-code).name
        problem = f"its process ended {cluster.TRIES} times, by {by}, perhaps for lack of memory"
        return errors.VitmedError(problem, f"see {log}")
    try:
        error = json.loads(lines[-1])["error"]
    except (IndexError, ValueError, KeyError, TypeError):
        return errors.VitmedError(f"its process ended with exit code {code}", f"see {log}")
    kinds: list[type[errors.VitmedError]] = [errors.VitmedError, *errors.VitmedError.__subclasses__()]
    kind = next((kind for kind in kinds if kind.exit_code == code), errors.VitmedError)
    if "seconds" in error:
        return errors.TimeTooShortError(error["message"], error["fix"], error["seconds"])
    if kind is errors.UsageError and errors.DiskFullError.ROOM in error["fix"]:
        kind = errors.DiskFullError
    return kind(error["message"], error["fix"])


# --- `vitmed train --devices N --on ray:HOST:PORT`: one training whose N processes run on the nodes of a Ray cluster
#
# The cluster keeps N places for it at once (a placement group). Each process is a `vitmed train` as torchrun starts it,
# so PyTorch's process group, checkpoints and `--resume` are those of any training with several processes.


def train_on_nodes(on: str, devices: int, options: Mapping[str, Any], words: Sequence[str]) -> int:
    """Run `vitmed train` with these words in `devices` processes on a cluster, and return the exit code.

    Args:
        options: of the command line, by name; words: the same as written, without `--on`.

    Raises:
        UsageError: no cluster, or no place for all processes at once. Interrupted: the cluster is lost.
        VitmedError: a process, its worker or its node was killed. `--resume` goes on from what was saved.
    """
    resumed = options.get("resume")
    output = Path(options.get("output") or "runs") if resumed is None else Path(resumed).parent
    make_folder(output)
    name = f"vitmed-{secrets.token_hex(4)}"
    with cluster.opened(on, strict=bool(options.get("strict"))) as places:
        if not isinstance(place := places.executor, cluster.RayCluster):
            raise errors.UsageError(f"--devices {devices} --on {on}: expected a Ray cluster", "--on ray:HOST:PORT")
        place.bundle = (0, devices)
        cluster.prepare(place, files_of(options), output, parallel=devices)
        address, port = cluster.result_of(cluster.submit(place, free_port))
        shared = {"MASTER_ADDR": address, "MASTER_PORT": f"{port}", "WORLD_SIZE": f"{devices}", "LOCAL_RANK": "0"}
        shared |= {"LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": f"{devices}", "OMP_NUM_THREADS": f"{place.cpus}"}
        shared |= notes()
        logs = [output / f"{name}-rank-{rank}.log" for rank in range(devices)]
        say(f"{devices} processes on {place.name}; see {output / name}-rank-*.log")
        stop, running = output / f".{name}.stop", list[Future[Any]]()
        for rank, log in enumerate(logs):
            place.bundle = (rank, devices)
            running.append(cluster.submit(place, run_process, list(words), log, shared | {"RANK": f"{rank}"}, stop))
        try:
            codes, stopped = _followed(running, logs[0], stop)
        finally:
            stop.unlink(missing_ok=True)
    return _code(codes, stopped, "RUN" if resumed is None else quoted(resumed))


def files_of(options: Mapping[str, Any]) -> list[Path]:
    """What every node has to see: the files of the settings, that of `--config`, and the run to continue."""
    if options.get("resume") is not None:
        run = RunFolder(options["resume"])
        moved = None if options.get("data") is None else {"data.root": options["data"]}
        return [run.last, *cluster.files_of(load_config(run.config, moved))]
    given = {"data": None, "config": None, "sets": ()} | {k: v for k, v in options.items() if k in (*FLAGS, *PLAIN)}
    settings = settings_of(given, "train")
    store_paths(settings, Path(options.get("output") or "runs", "run"))
    return [*filter(Path.is_file, [Path(given["config"] or ".")]), *cluster.files_of(settings)]


def _followed(running: Sequence[Future[Any]], log: Path, stop: Path) -> tuple[list[int], bool]:
    """Repeat what rank 0 says until all have ended. Returns their exit codes (of a signal if a worker was killed), and
    whether Ctrl-C stopped them.

    Ctrl-C, or the end of one that failed, stops the others: they save their last.pt, or are killed after a moment.
    """
    read, stopped = 0, False
    while True:
        try:
            done, left = wait(running, PAUSE)
            if any(_ended(future) for future in done):
                stop.touch()
        except KeyboardInterrupt:
            stopped = True
            stop.touch()
            continue
        content = b""
        with contextlib.suppress(FileNotFoundError), log.open("rb") as stream:
            stream.seek(read)
            content = stream.read()
        lines = content[: content.rfind(b"\n") + 1] if left else content
        read += len(lines)
        if text := lines.decode(errors="replace").rstrip():
            say(text)
        if not left:
            return [_ended(future) for future in running], stopped


def _ended(future: Future[Any]) -> int:
    try:
        return int(cluster.result_of(future))
    except cluster.Killed:
        return -signal.SIGKILL


def _code(codes: Sequence[int], stopped: bool, run: str) -> int:
    """The largest exit code of what failed. Raises VitmedError, after Ctrl-C Interrupted, where one was killed."""
    if reported := [code for code in codes if 1 < code != errors.Interrupted.exit_code]:
        return max(reported)
    if killed := [rank for rank, code in enumerate(codes) if code < 0]:
        which = f"process {killed[0]} of {len(codes)}"
        fix = f"vitmed train --resume {run} with the same --devices and --on goes on from what is saved"
        if stopped:
            raise errors.Interrupted(f"stopped; {which} did not end within {GRACE:.0f} s, and was killed", fix)
        raise errors.VitmedError(f"{which} was killed, or its node was lost", fix)
    return max(codes)
