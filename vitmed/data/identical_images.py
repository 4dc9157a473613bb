"""Which images are byte for byte the same, so that copies stay in one split where patients are unknown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitmed.data.scan_cache import ScanCache, hash_files
from vitmed.data.thread_batches import in_threads
from vitmed.imaging import npz


def first_copies(root: Path, paths: Sequence[str], cache: ScanCache | None = None) -> np.ndarray:
    """(S,) int64: for every image the first one with the same bytes, or itself.

    Opens only files that share their size. An empty or unreadable file is no copy, nor is an image of an .npz file,
    which has its own splits.

    Args:
        cache: knows the hashes of unchanged files.
    """
    first = np.arange(len(paths))
    if npz.is_npz(root):
        return first
    top = os.path.abspath(root)  # noqa: PTH100  (a million of them)
    files = [os.path.join(top, path) for path in paths]  # noqa: PTH118
    sizes = np.fromiter(in_threads(_size, files, 256), np.int64, len(paths))
    _, where, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    same = np.flatnonzero((counts[where] > 1) & (sizes > 0)).tolist()
    seen: dict[str, int] = {}
    for i, digest in zip(same, hash_files([files[i] for i in same], cache), strict=True):
        if digest:
            first[i] = seen.setdefault(digest, i)
    return first


def together(first: np.ndarray, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`values` of some images, where each copy takes the value of the first copy among them.

    Args:
        first: of all images, from `first_copies`.
        indices: (N,) of some images; values: (N,) of the same.
    """
    _, begin, where = np.unique(first[indices], return_index=True, return_inverse=True)
    return values[begin[where]]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return 0
