"""The driver of a Ray cluster, a process of its own, to which `cluster.py` gives the address.

A driver whose cluster is lost ends at once, without an exception. So the command is its parent: it writes requests to
stdin, reads answers from stdout, both pickled, and never imports ray. This process ends when stdin does.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, BinaryIO, NamedTuple

LOOK = 5.0  # s between two looks at which nodes are left
READY, LOST, KILLED, FAILED = "ready", "lost", "killed", "failed"  # what an answer may be, beside "done"


class Request(NamedTuple):
    """A call on one of these nodes, or, without CPUs, on the only one; `number` names the answer."""

    number: int
    function: Any
    arguments: tuple[Any, ...]
    nodes: Sequence[str]
    cpus: float
    gpus: float


class Node(NamedTuple):
    """A node that is there: its number in Ray, its address, and what it has."""

    number: str
    address: str
    cpus: float
    gpus: float


def _nodes(ray: Any) -> list[Node]:
    there = [node for node in ray.nodes() if node["Alive"]]
    has = [(node, node["Resources"]) for node in there]
    return [Node(n["NodeID"], n["NodeManagerAddress"], r.get("CPU", 0), r.get("GPU", 0)) for n, r in has]


def apply(function: Any, *arguments: Any) -> Any:
    """Call a function, on a worker."""
    return function(*arguments)


class Driver:
    """Passes requests on to Ray, and answers (number, kind, value)."""

    def __init__(self, ray: Any, answers: BinaryIO) -> None:
        self.ray, self.answers, self.one, self.wanted = ray, answers, threading.Lock(), frozenset[str]()
        self.apply = ray.remote(max_retries=0)(apply)

    def answer(self, number: int, kind: str, value: Any) -> None:
        with self.one:
            pickle.dump((number, kind, value), self.answers)
            self.answers.flush()

    def begin(self, request: Request) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        how: dict[str, Any] = {"num_cpus": request.cpus, "num_gpus": request.gpus}
        if request.cpus:
            self.wanted = frozenset(request.nodes)
            how["label_selector"] = {"ray.io/node-id": f"in({','.join(request.nodes)})"}
        else:
            how["scheduling_strategy"] = NodeAffinitySchedulingStrategy(request.nodes[0], soft=False)
        result = self.apply.options(**how).remote(request.function, *request.arguments)
        result.future().add_done_callback(partial(self.ended, request.number))

    def ended(self, number: int, result: Any) -> None:
        try:
            self.answer(number, "done", result.result())
        except self.ray.exceptions.RayTaskError as error:
            self.answer(number, FAILED, f"{error.cause!r}")
        except Exception as error:  # its worker or its node is gone
            self.answer(number, KILLED, f"{type(error).__name__}")

    def watch(self) -> None:
        """End where no node is left, for Ray would wait for another one."""
        while True:
            time.sleep(LOOK)
            if self.wanted and not self.wanted & {node.number for node in _nodes(self.ray)}:
                self.answer(-1, LOST, "no node of it is left")
                os._exit(1)


def main() -> None:
    """Connect, answer with the nodes, and pass on what comes."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Ray prints is no answer
    import ray

    driver = Driver(ray, answers)
    try:
        ray.init(sys.argv[1], logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:
        driver.answer(0, FAILED, " ".join(f"{error}".split()))
        return
    driver.answer(0, READY, _nodes(ray))
    threading.Thread(target=driver.watch, daemon=True).start()
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            os._exit(0)  # Ray then ends the workers of this driver
        driver.begin(request)
