"""The driver of a Ray cluster, a process of its own; `cluster.py` gives it the address.

A driver whose cluster is lost ends at once, without an exception. So the command is its parent: it writes requests to
stdin, reads answers from stdout, both pickled, and never imports ray. This process ends when stdin does.
"""

import logging
import os
import pickle
import socket
import sys
import threading
import time
from typing import Any, BinaryIO, NamedTuple

LOOK = 5.0  # s between two looks at which nodes are left
DONE, LOST, KILLED, FAILED = "done", "lost", "killed", "failed"  # what an answer says of a request

Bundle = tuple[int, int]  # one of so many places that are given at once


class Node(NamedTuple):
    """A node that is there: its number in Ray, its address, and what it has."""

    number: str
    address: str
    cpus: float
    gpus: float


def nodes_of(ray: Any) -> list[Node]:
    rows = [(row, row["Resources"]) for row in ray.nodes() if row["Alive"]]
    return [Node(row["NodeID"], row["NodeManagerAddress"], has.get("CPU", 0), has.get("GPU", 0)) for row, has in rows]


def free_port() -> tuple[str, int]:
    """The address of this node in its cluster, and a port that is free there; for a worker, which has Ray."""
    import ray

    with socket.socket() as free:
        free.bind((str(ray.util.get_node_ip_address()), 0))
        address: tuple[str, int] = free.getsockname()
        return address


def apply(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


class Driver:
    """Passes requests on to Ray, and answers (number, kind, value)."""

    def __init__(self, ray: Any, answers: BinaryIO) -> None:
        self.ray, self.answers, self.one, self.wanted = ray, answers, threading.Lock(), set[str]()
        self.remote = ray.remote(max_retries=0)(apply)
        self.group: Any = None  # of places

    def answer(self, number: int, kind: str, value: Any) -> None:
        with self.one:
            pickle.dump((number, kind, value), self.answers)
            self.answers.flush()

    def begin(
        self, number: int, call: tuple[Any, ...], nodes: list[str], cpus: int, gpus: int, bundle: Bundle | None
    ) -> None:
        """Call a function on one of these nodes. With no `cpus`: on the only node, even if it is busy. With a bundle
        (which, of how many): in one place of a group that the cluster gives as a whole or not at all."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

        if bundle is not None:
            self.wanted, size = set(nodes), {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
            here = [{"ray.io/node-id": f"in({','.join(nodes)})"}] * bundle[1]
            self.group = self.group or placement_group([size] * bundle[1], bundle_label_selector=here)
            how: dict[str, Any] = {"scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, bundle[0])}
        elif cpus:
            self.wanted = set(nodes)
            how = {"label_selector": {"ray.io/node-id": f"in({','.join(nodes)})"}}
        else:
            how = {"scheduling_strategy": NodeAffinitySchedulingStrategy(nodes[0], soft=False)}

        def ended(result: Any) -> None:
            try:
                self.answer(number, DONE, result.result())
            except self.ray.exceptions.RayTaskError as error:
                self.answer(number, FAILED, f"{error.cause!r}")
            except Exception as error:  # its worker or its node is gone
                self.answer(number, KILLED, type(error).__name__)

        self.remote.options(num_cpus=cpus, num_gpus=gpus, **how).remote(*call).future().add_done_callback(ended)

    def watch(self) -> None:
        """End where no node is left, for Ray would wait for another one."""
        while not self.wanted or self.wanted & {node.number for node in nodes_of(self.ray)}:
            time.sleep(LOOK)
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
    driver.answer(0, DONE, nodes_of(ray))
    threading.Thread(target=driver.watch, daemon=True).start()
    with open(0, "rb") as requests:
        while True:
            try:
                driver.begin(*pickle.load(requests))
            except EOFError:
                os._exit(0)  # Ray then ends the workers of this driver
