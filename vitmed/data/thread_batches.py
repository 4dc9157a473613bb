"""Work on many files in threads; memory does not grow with their number."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.process import cores

BATCH = 64
TOGETHER = 8  # items per task: a task costs as much as reading a small file
AHEAD = 4  # waiting tasks per thread

Progress = Callable[[int, int], None]
Item = TypeVar("Item")
Result = TypeVar("Result")


def batched(items: Iterable[Item], size: int) -> Iterator[tuple[Item, ...]]:
    """Tuples of `size` items, the last one possibly shorter; as `itertools.batched` of Python 3.12."""
    rest = iter(items)
    while part := tuple(islice(rest, size)):
        yield part


def in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], together: int = TOGETHER, ahead: int | None = None
) -> Iterator[Result]:
    """`map` in one thread per core, results in order.

    `ThreadPoolExecutor.map` submits every item at once and ignores its `chunksize`. Here at most `ahead` tasks of
    `together` items wait, and none starts after an error.
    """
    waiting: deque[Future[list[Result]]] = deque()
    pool = ThreadPoolExecutor(cores())
    most = AHEAD * cores() if ahead is None else ahead
    try:
        for part in batched(items, together):
            waiting.append(pool.submit(lambda part: [work(item) for item in part], part))
            if len(waiting) > most:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def read_batches(
    read: Callable[[int], np.ndarray], count: int, batch_size: int = BATCH
) -> Iterator[tuple[list[int], np.ndarray, dict[int, str]]]:
    """Read `count` images in threads, about one batch ahead of the consumer.

    Yields:
        the indices read, their images (B, S, S, C) uint8 (B may be 0), and index -> problem of the others.
    """

    def one(index: int) -> tuple[int, np.ndarray | str]:
        try:
            return index, read(index)
        except DataError as error:
            return index, error.line

    # One image is read here: to wake a thread takes longer.
    results = in_threads(one, range(count), together=1, ahead=batch_size) if count > 1 else map(one, range(count))
    for part in batched(results, batch_size):
        good = [(index, image) for index, image in part if not isinstance(image, str)]
        bad = {index: image for index, image in part if isinstance(image, str)}
        images = np.stack([image for _, image in good]) if good else np.empty((0, 0, 0, 0), np.uint8)
        yield [index for index, _ in good], images, bad


def check_readable(problems: dict[int, str]) -> None:
    """Raises DataError for images that could be read when the run began and no longer can."""
    if problems:
        raise DataError("\n".join(problems.values()), "restore these files; or take them out and start again")
