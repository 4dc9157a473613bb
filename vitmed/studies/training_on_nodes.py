"""`vitmed train --devices N --on ray:HOST:PORT`: one training whose N processes run on the nodes of a Ray cluster.

The cluster keeps N places for it at once (a placement group). Each process is a `vitmed train` as torchrun starts it,
so PyTorch's process group, checkpoints and `--resume` are those of any training with several processes.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from vitmed.core.config import FLAGS
from vitmed.core.errors import Interrupted, UsageError, VitmedError
from vitmed.core.files import make_folder
from vitmed.core.load_config import load_config
from vitmed.core.messages import say
from vitmed.core.run_folder import RunFolder
from vitmed.studies import cluster
from vitmed.studies.cluster import Killed, RayCluster, opened, prepare, result_of, submit
from vitmed.studies.ray_driver import node_address
from vitmed.studies.study import GRACE, PAUSE, PLAIN, run_process, settings_of


def train_on_nodes(on: str, devices: int, options: Mapping[str, Any], words: Sequence[str]) -> int:
    """Run `vitmed train` with these words in `devices` processes on a cluster, and return the exit code.

    Args:
        options: those of the command line, by name; words: the same as written, without `--on`.

    Raises:
        UsageError: no cluster, or no place for so many processes at once. Interrupted: the cluster is lost.
        VitmedError: a process, its worker or its node was killed. `--resume` goes on from what was saved.
    """
    resumed = options.get("resume")
    output = Path(options.get("output") or "runs") if resumed is None else Path(resumed).parent
    make_folder(output)
    mark = output / f".vitmed-{secrets.token_hex(4)}"
    with opened(on, strict=bool(options.get("strict"))) as (_, place):
        if not isinstance(place, RayCluster):
            raise UsageError(f"--devices {devices} --on {on}: expected a Ray cluster", "--on ray:HOST:PORT")
        place.bundle = (0, devices)
        prepare(place, files_of(options), output, parallel=devices)
        address, port = result_of(submit(place, free_port))
        shared = {"MASTER_ADDR": address, "MASTER_PORT": f"{port}", "WORLD_SIZE": f"{devices}", "LOCAL_RANK": "0"}
        shared |= {"LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": f"{devices}", "OMP_NUM_THREADS": f"{place.cpus}"}
        logs = [output / f"{mark.name[1:]}-rank-{rank}.log" for rank in range(devices)]
        say(f"{devices} processes on {place.name}; see {logs[0].with_name(mark.name[1:])}-rank-*.log")
        stop = mark.with_suffix(".stop")
        running = list[Future[Any]]()
        for rank, log in enumerate(logs):
            place.bundle = (rank, devices)
            running.append(submit(place, run_process, list(words), log, shared | {"RANK": f"{rank}"}, stop))
        try:
            codes, stopped = _followed(running, logs[0], stop)
        finally:
            stop.unlink(missing_ok=True)
    return _code(codes, stopped)


def files_of(options: Mapping[str, Any]) -> list[Path]:
    """What every node has to see: the files of the settings, that of `--config`, and the run to continue."""
    if options.get("resume") is not None:
        run = RunFolder(options["resume"])
        moved = None if options.get("data") is None else {"data.root": options["data"]}
        return [run.last, *cluster.files_of(load_config(run.config, moved))]
    given = {"data": None, "config": None, "sets": ()} | {k: v for k, v in options.items() if k in (*FLAGS, *PLAIN)}
    config = [] if given["config"] is None else [Path(given["config"])]
    return [*filter(Path.is_file, config), *cluster.files_of(settings_of(given, "train"))]


def free_port() -> tuple[str, int]:
    """The address of this node in its cluster, and a port that is free here."""
    address = node_address()
    with socket.socket() as free:
        free.bind((address, 0))
        return address, free.getsockname()[1]


def _followed(running: Sequence[Future[Any]], log: Path, stop: Path) -> tuple[list[int], bool]:
    """Say what rank 0 says until all have ended: their exit codes, that of a signal where a worker was killed, and
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
        return int(result_of(future))
    except Killed:
        return -signal.SIGKILL


def _code(codes: Sequence[int], stopped: bool) -> int:
    """The largest exit code of those that failed by themselves. Raises VitmedError where one was killed, Interrupted
    where Ctrl-C was the reason."""
    if reported := [code for code in codes if 1 < code != Interrupted.exit_code]:
        return max(reported)
    if killed := [rank for rank, code in enumerate(codes) if code < 0]:
        which = f"process {killed[0]} of {len(codes)}"
        fix = "vitmed train --resume RUN with the same --devices and --on goes on from what is saved"
        if stopped:
            raise Interrupted(f"stopped; {which} did not end within {GRACE:.0f} s, and was killed", fix)
        raise VitmedError(f"{which} was killed, or its node was lost", fix)
    return max(codes)
