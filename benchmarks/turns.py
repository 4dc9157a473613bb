"""Contenders that take turns, each a process of its own: what speed.py and pipeline.py share.

Every contender has its own allocator, threads and peak memory. One computes while the others wait, and the order turns
round every round. A ratio is taken within each round, because what disturbs a machine lasts longer than a round.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Step = Callable[[], Any]
Rows = dict[str, dict[str, Any]]  # name -> "seconds" of one step in each round, and "peak_mb"
SPAWN = multiprocessing.get_context("spawn")
PACKAGES = ("torch", "torchvision", "timm", "transformers", "accelerate", "albumentations", "pillow")


@dataclass(frozen=True)
class Contender:
    """What takes turns: `build` makes its step, in its own process.

    Attributes:
        tuned: the command with whose settings of the process it runs (vitmed/core/process.py).
    """

    build: Callable[[argparse.Namespace], Step]
    tuned: str = ""


class LeftOut(Exception):
    """A contender that cannot run here, and why."""


def work(pipe: Connection, contender: Contender, options: argparse.Namespace) -> None:
    """The process of one contender: its turns, when asked; answers the seconds of a step and peak memory in MB."""
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    if contender.tuned:
        from vitmed.core.process import tune_process

        tune_process(contender.tuned)
    import torch

    torch.manual_seed(0)
    clock = time.process_time if options.cpu_time else time.perf_counter
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    try:
        step = contender.build(options)
        while pipe.recv():
            steps, start = 0, clock()
            while not steps or clock() - start < options.turn:
                step()
                steps += 1
            wait()
            pipe.send(((clock() - start) / steps, peak_mb(options.device)))
    except Exception as error:  # a package or a compiler that is missing
        pipe.send(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200])


def peak_mb(device: str) -> float:
    """The most memory so far, MB: of this process, its imports counted in, or on the GPU."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


@contextmanager
def process(contender: Contender, options: argparse.Namespace) -> Iterator[Connection]:
    """Start the process of one contender, after its first turn, which is slower and not counted. Raises LeftOut."""
    ours, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=work, args=(theirs, contender, options), daemon=True)
    child.start()
    theirs.close()
    try:
        turn(ours)
        yield ours
        with suppress(OSError):  # it has ended
            ours.send(False)
        child.join()
    finally:
        child.terminate()


def turn(pipe: Connection) -> tuple[float, float]:
    """One turn: seconds of a step, and the peak memory so far, MB. Raises LeftOut."""
    try:
        pipe.send(True)
        answer = pipe.recv()
    except (EOFError, OSError):
        raise LeftOut("its process ended, perhaps because memory was full") from None
    if isinstance(answer, str):
        raise LeftOut(answer)
    return answer


def compete(contenders: dict[str, Contender], options: argparse.Namespace) -> Rows:
    """The rows of all contenders; of one that cannot run, "left_out" says why.

    Args:
        options: rounds; turn: least seconds of one, of which the mean step counts; device; core: the only one to use,
            or None; cpu_time: count the time on the CPU. The functions that build get all of them.
    """
    results: Rows = {}
    with ExitStack() as stack:
        pipes = {}
        for name, contender in contenders.items():
            say(f"  starting {name}")
            try:
                pipes[name] = stack.enter_context(process(contender, options))
                results[name] = {}
            except LeftOut as error:
                results[name] = {"left_out": str(error)}
                say(f"  left out: {name}: {error}")

        def one(name: str) -> float:
            if "left_out" in results[name]:
                return 0.0
            time.sleep(0.05)  # until the threads of the one before sleep
            try:
                seconds, results[name]["peak_mb"] = turn(pipes[name])
            except LeftOut as error:
                results[name] = {"left_out": str(error)}
                return 0.0
            return seconds

        for name, seconds in take_turns(list(pipes), one, options.rounds).items():
            if "left_out" not in results[name]:
                results[name]["seconds"] = seconds
    return results


def take_turns(names: Sequence[str], one: Callable[[str], float], rounds: int) -> dict[str, list[float]]:
    """Name -> what `one` returns of it in each round; every other round goes backwards."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            found[name].append(one(name))
        say(f"  round {number + 1} of {rounds}")
    return found


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep as many other processes computing."""
    others = [SPAWN.Process(target=_spin, daemon=True) for _ in range(processes)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()


def _spin() -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # until it ends, even if it is killed
        pass


# Telling.


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """25 %, 50 %, 75 %."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratio(rows: Rows, slow: str, fast: str) -> tuple[float, float, float]:
    """Quartiles of seconds(slow) / seconds(fast), round by round."""
    return quartiles([a / b for a, b in zip(rows[slow]["seconds"], rows[fast]["seconds"], strict=True)])


def ran(rows: Rows) -> Rows:
    """The rows of the contenders that ran."""
    return {name: row for name, row in rows.items() if "left_out" not in row}


def tell_rates(rows: Rows, images: int, base: str) -> None:
    """The table of one part: images/s, how many times as fast as `base`, and peak memory."""
    print(f"\n| setting | images/s | x {base} (quartiles) | peak MB |\n|---|---|---|---|")
    for name, row in rows.items():
        if "left_out" in row:
            print(f"| {name} | left out | {row['left_out']} | |")
            continue
        low, middle, high = ratio(rows, base, name) if "seconds" in rows[base] else (float("nan"),) * 3
        speed = images / statistics.median(row["seconds"])
        print(f"| {name} | {speed:,.1f} | {middle:.2f} ({low:.2f}-{high:.2f}) | {row['peak_mb']:,.0f} |")


def tell_ratio(rows: Rows, ours: str, theirs: str | tuple[str, ...]) -> None:
    """One line: ours against the fastest of the rows whose name begins so, or with one of those."""
    rows = ran(rows)
    others = [name for name in rows if name.startswith(theirs) and name != ours]
    if ours not in rows or not others:
        return
    best = min(others, key=lambda name: statistics.median(rows[name]["seconds"]))
    low, middle, high = ratio(rows, best, ours)
    print(f"\n{ours} is {middle:.2f} x {best} (quartiles {low:.2f}-{high:.2f}, {len(rows[best]['seconds'])} rounds)")


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def machine(device: str = "cpu") -> dict[str, Any]:
    """What is measured on, without a host name. Loads torch; `in_child(machine)` does so in another process."""
    import torch

    from vitmed.models.hardware import pick_device, pick_precision

    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), cpu)
    found = {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "cpu": cpu,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "bf16": pick_precision("auto", pick_device(device)).name == "bf16",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns, called in a process of its own."""
    with SPAWN.Pool(1) as pool:
        return pool.apply(function, arguments)
