"""What a cluster costs: the overhead of a call on Ray, and a simulation of 10^8 images on 100 nodes.

    python benchmarks/cluster.py                          # the simulation; needs no cluster
    python benchmarks/cluster.py --on ray:HOST:6379       # also 1,000 calls of nothing, on its places
    python benchmarks/cluster.py --on ray:HOST:6379 --images-of FOLDER --checkpoint FILE --places 2
        # also `predict --output` beside as many processes of this machine, warm, 5 pairs in turn

The simulation measures on this machine what the command does (list names, hash them, send a part, merge a row), for a
million images, and takes the rest from the options: the rate of a node, and when one is lost. It reads no image.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import io
import multiprocessing
import operator
import os
import pickle
import resource
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from vitmed.commands.predict_shard import FEWEST, MOST, PARTS, predict_shard
from vitmed.studies.cluster import each, opened, prepare

SAMPLE = 1_000_000  # names that are made to measure the list
FOUND = 14.0  # s until Ray knows that a node is lost, as measured with Ray 2.60


def timed(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def calls_on(place: str, count: int) -> dict[str, float]:
    """Measure calls without work on a cluster: milliseconds of each, and the share of a core of this process."""
    with opened(place) as (_, executor, *_):
        prepare(executor, [], Path.cwd())
        assert len(list(each(executor, operator.index, ((n,) for n in range(50))))) == 50  # warm
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        assert len(list(each(executor, operator.index, ((n,) for n in range(count))))) == count
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"ms of a call": 1000 * seconds / count, "CPU ms of a call, here": 1000 * used / count}


def rates(place: str, folder: Path, checkpoint: Path, places: int, pairs: int) -> dict[str, float]:
    """Measure images/s of `predict --output` on a cluster and in `places` processes here, each of one thread."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # as a task of Ray has with one CPU
    ratios, ours = [], []
    spawned = ProcessPoolExecutor(places, multiprocessing.get_context("spawn"))
    with opened(place) as (_, cluster, *_), spawned as here, tempfile.TemporaryDirectory(dir=Path.cwd()) as work:
        assert cluster is not None
        for pair in range(pairs + 1):  # the first warms both: interpreter, imports and network
            speed = {}
            for name, executor in (("there", cluster), ("here", here))[:: -1 if pair % 2 else 1]:
                began, output = time.monotonic(), Path(work, f"{name}_{pair}")
                written = predict_shard(folder, checkpoint=checkpoint, output=output, precision="fp32", on=executor)
                speed[name] = written.read / (time.monotonic() - began)
            if pair:
                ratios.append(speed["there"] / speed["here"])
                ours.append(speed["there"])
                print(f"pair {pair}: {speed['there']:.1f} images/s there, {speed['here']:.1f} here", flush=True)
    return {
        "images/s there": statistics.mean(ours),
        "there / here": statistics.mean(ratios),
        "there / here, sd": statistics.stdev(ratios),
    }


def listed(images: int) -> dict[str, float]:
    """Estimate what the list of all images takes in the command: GB, and CPU seconds to make and to hash it."""
    tracemalloc.start()
    names = [f"/data/images/{number // 10_000:05d}/{number:09d}.png" for number in range(SAMPLE)]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    more = images / SAMPLE
    made = timed(lambda: list(dict.fromkeys(names)))
    hashed = timed(lambda: hashlib.sha256(b"".join(name.encode() + b"\0" for name in names)).hexdigest())
    part = timed(lambda: pickle.dump(names[:MOST], io.BytesIO()))
    parts = -(-images // min(max(images // PARTS, FEWEST), MOST))
    return {
        "GB of names": size * more / 1e9,
        "s to compare and hash them": (made + hashed) * more,
        "parts": parts,
        "s to send all parts": part * parts,
    }


def simulated(images: int, nodes: int, rate: float, lost: float | None) -> float:
    """Simulate the parts on the nodes; return the hours until the last part is written.

    Args:
        rate: images that a node reads and predicts in a second; lost: the hour at which one node is lost.
    """
    part = min(max(images // PARTS, FEWEST), MOST)
    left, seconds, end = -(-images // part), part / rate, 0.0
    free = [(0.0, node) for node in range(nodes)]
    while left:
        now, node = heapq.heappop(free)
        if lost is not None and node == 0 and now + seconds > 3600 * lost:  # its part begins again elsewhere
            end = max(end, 3600 * lost + FOUND + seconds)
            left -= 1
            continue
        left, end = left - 1, max(end, now + seconds)
        heapq.heappush(free, (now + seconds, node))
    return end / 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", help="a Ray cluster")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--images", type=int, default=100_000_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rate", type=float, default=500.0, help="images/s of a node")
    parser.add_argument("--images-of", type=Path, help="a folder of images to predict, with --checkpoint")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--places", type=int, default=2, help="processes here; as many as the cluster has CPUs")
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    rows: dict[str, float] = listed(given.images)
    rows["hours of the nodes"] = simulated(given.images, given.nodes, given.rate, None)
    rows["hours, where a node is lost after half of them"] = simulated(
        given.images, given.nodes, given.rate, rows["hours of the nodes"] / 2
    )
    rows |= calls_on(given.on, given.calls) if given.on else {}
    if given.images_of:
        rows |= rates(given.on, given.images_of, given.checkpoint, given.places, given.pairs)
    for what, value in rows.items():
        print(f"{what:48} {value:14,.3f}")


if __name__ == "__main__":
    main()
