"""Which images are byte for byte the same, so that copies stay in one split where patients are unknown."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from vitmed.core.process import cores
from vitmed.imaging import npz

ENDS = 4096  # bytes at the beginning and at the end of a file that are looked at first


def first_copies(root: Path, paths: Sequence[str]) -> np.ndarray:
    """(S,) int64: for every image the first one of the same bytes; its own number where there is none before it.

    Only files of one size are opened, and only those whose ends agree are read whole. A file that cannot be read is
    the copy of none; so is an image of an .npz file, which brings its own splits.
    """
    first = np.arange(len(paths))
    if npz.is_npz(root):
        return first
    files = [os.path.join(root, path) for path in paths]  # noqa: PTH118  (a million of them)
    every = range(len(files))
    sizes = _alike([every], _size, files)
    for same in _alike(_alike(sizes, _ends, files), _digest, files):
        first[same] = same[0]
    return first


def together(first: np.ndarray, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`values` of some images, every copy with that of the first of its like among them.

    Args:
        first: of all images, from `first_copies`.
        indices: (N,) of some images; values: (N,) of the same.
    """
    _, begin, where = np.unique(first[indices], return_index=True, return_inverse=True)
    return values[begin[where]]


def _alike(
    sets: Sequence[Sequence[int]], look: Callable[[str], Hashable | None], files: Sequence[str]
) -> list[list[int]]:
    """The sets divided by what `look` sees: parts of two or more files that look the same, each ascending."""
    numbers = [(part, number) for part, same in enumerate(sets) for number in same]

    def one(key: tuple[int, int]) -> Hashable | None:
        try:
            return look(files[key[1]])
        except OSError:
            return None

    found: dict[tuple[int, Hashable], list[int]] = defaultdict(list)
    with ThreadPoolExecutor(cores()) as pool:
        for (part, number), seen in zip(numbers, pool.map(one, numbers, chunksize=256), strict=True):
            if seen is not None:
                found[part, seen].append(number)
    return [same for same in found.values() if len(same) > 1]


def _size(path: str) -> int | None:
    return os.stat(path).st_size or None  # noqa: PTH116  an empty file is no image, and the copy of none


def _ends(path: str) -> bytes:
    with open(path, "rb") as stream:  # noqa: PTH123
        begin = stream.read(ENDS)
        stream.seek(max(ENDS, os.fstat(stream.fileno()).st_size - ENDS))
        return begin + stream.read(ENDS)


def _digest(path: str) -> bytes:
    with open(path, "rb") as stream:  # noqa: PTH123
        return hashlib.file_digest(stream, "sha256").digest()
