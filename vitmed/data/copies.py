"""Which images are byte for byte the same, so that copies stay in one split where patients are unknown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitmed.data.batches import in_threads
from vitmed.data.scan_cache import Index, hash_files
from vitmed.imaging import npz


def first_copies(root: Path, paths: Sequence[str], index: Index | None = None) -> np.ndarray:
    """(S,) int64: for every image the first one of the same bytes; its own number where there is none before it.

    Only files of one size are opened. A file that is empty or cannot be read is the copy of none; so is an image of an
    .npz file, which brings its own splits.

    Args:
        index: knows the hashes of files that have not changed.
    """
    first = np.arange(len(paths))
    if npz.is_npz(root):
        return first
    top = os.path.abspath(root)  # noqa: PTH100  (a million of them)
    sizes = np.fromiter(in_threads(lambda path: _size(os.path.join(top, path)), paths, 256), np.int64, len(paths))  # noqa: PTH118
    _, where, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    same = np.flatnonzero((counts[where] > 1) & (sizes > 0)).tolist()
    seen: dict[str, int] = {}
    for i, digest in zip(same, hash_files([os.path.join(top, paths[i]) for i in same], index), strict=True):  # noqa: PTH118
        if digest:
            first[i] = seen.setdefault(digest, i)
    return first


def together(first: np.ndarray, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`values` of some images, every copy with that of the first of its like among them.

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
