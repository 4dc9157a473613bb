"""Reading many images in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.process import cores

BATCH = 64


def read_batches(
    read: Callable[[int], np.ndarray], count: int, batch_size: int = BATCH
) -> Iterator[tuple[list[int], np.ndarray, dict[int, str]]]:
    """Read `count` images in threads, one batch ahead of the consumer; memory does not grow with `count`.

    Yields:
        the indices read, their images (B, S, S, C) uint8 (B may be 0), and index -> problem of the others.
    """

    def one(index: int) -> np.ndarray | str:
        try:
            return read(index)
        except DataError as error:
            return error.line

    def gather(part: range, results: Iterable[np.ndarray | str]) -> tuple[list[int], np.ndarray, dict[int, str]]:
        found = list(zip(part, results, strict=True))
        good = [(index, image) for index, image in found if not isinstance(image, str)]
        bad = {index: problem for index, problem in found if isinstance(problem, str)}
        images = np.stack([image for _, image in good]) if good else np.empty((0, 0, 0, 0), np.uint8)
        return [index for index, _ in good], images, bad

    with ThreadPoolExecutor(cores()) as pool:
        under_way: deque[tuple[range, Iterable[np.ndarray | str]]] = deque()
        for start in range(0, count, batch_size):
            part = range(start, min(start + batch_size, count))
            under_way.append((part, pool.map(one, part)))
            if len(under_way) == 2:
                yield gather(*under_way.popleft())
        if under_way:
            yield gather(*under_way.popleft())
