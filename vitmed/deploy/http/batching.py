"""One thread that owns the model and answers several requests in one batch."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

WAIT = 0.01  # s that a batch waits for images that are on their way
LEAST = 16  # images in a batch, at most, of a network that computes fewer at once: a batch has a cost of its own

Found = TypeVar("Found")


@dataclass(frozen=True)
class Job(Generic[Found]):
    """An image that waits: (S, S, C) uint8, whether its map is wanted, and who waits for it."""

    square: np.ndarray
    mapped: bool
    future: asyncio.Future[Found]
    loop: asyncio.AbstractEventLoop


class Batcher(Generic[Found]):
    """Collects images and works on them in one thread.

    Args:
        work: squares, and which of them want a map -> one result each; runs in the thread.
        size: images in a batch, at most.
        on_the_way: how many images will come soon; a batch waits for them, at most `wait` s.
        began: called with the number of images in each batch.
    """

    def __init__(
        self,
        work: Callable[[Sequence[np.ndarray], Sequence[bool]], Sequence[Found]],
        size: int,
        on_the_way: Callable[[], int] = lambda: 0,
        began: Callable[[int], None] = lambda count: None,
        wait: float = WAIT,
    ):
        self.work, self.size, self.on_the_way, self.began, self.wait = work, size, on_the_way, began, wait
        self._jobs: queue.SimpleQueue[Job[Found] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Work on what is in the queue, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def put(self, square: np.ndarray, mapped: bool = False) -> asyncio.Future[Found]:
        """The result for an image, to await. It raises what `work` raised for its batch."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Found] = loop.create_future()
        self._jobs.put(Job(square, mapped, future, loop))
        return future

    def _run(self) -> None:
        going = True
        while going:
            jobs, going = self._batch()
            jobs = [job for job in jobs if not job.future.cancelled()]  # its request has run out of time
            if not jobs:
                continue
            self.began(len(jobs))
            found: Sequence[Found | Exception]
            try:
                found = self.work([job.square for job in jobs], [job.mapped for job in jobs])
            except Exception as error:
                found = [error] * len(jobs)
            for job, answer in zip(jobs, found, strict=True):
                job.loop.call_soon_threadsafe(_settle, job.future, answer)

    def _batch(self) -> tuple[list[Job[Found]], bool]:
        """The next jobs, and whether more may come."""
        jobs, until = [self._jobs.get()], time.monotonic() + self.wait
        while jobs[-1] is not None and len(jobs) < self.size:
            coming, left = self.on_the_way() > 0, until - time.monotonic()
            try:
                jobs.append(self._jobs.get(timeout=left) if coming and left > 0 else self._jobs.get_nowait())
            except queue.Empty:
                break
        return [job for job in jobs if job is not None], jobs[-1] is not None


def _settle(future: asyncio.Future[Found], found: Found | Exception) -> None:
    if future.cancelled():
        return
    if isinstance(found, Exception):
        future.set_exception(found)
    else:
        future.set_result(found)
