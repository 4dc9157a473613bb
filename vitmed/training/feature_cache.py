"""Features on disk: a frozen network computes those of an image once, for every later run with the same weights.

A file `<key>.npz` below `cache_folder()/features` belongs to one network, preprocessing, device and set of versions. It
holds the digest and the features of each image, in any order, and what computing them took. It is replaced as a whole,
so a killed run leaves no half file; a damaged file counts as "not known". Images that could not be read are not in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from vitmed.core.cache_folder import cache_folder
from vitmed.core.errors import UsageError
from vitmed.core.files import whole_file
from vitmed.core.ui import Ui
from vitmed.data.pixel_cache import find_rows
from vitmed.models.digests import digests_of

MOST = 4 << 30  # bytes of all files
DAMAGE = (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile)  # what a missing or damaged file raises


@dataclass(frozen=True)
class Features:
    """Features of images, and what computing them took.

    Attributes:
        digests: (N, 32) uint8, of the files, from `scan_cache.digests_of`.
        values: (N, D) float32.
        seconds: per image.
        memory: bytes at most, for the network and a batch; NaN if unknown.
    """

    digests: np.ndarray
    values: np.ndarray
    seconds: float
    memory: float

    def rows(self, digests: np.ndarray) -> np.ndarray:
        """(M,) int64: the row of each image (M, 32), or -1."""
        return find_rows(self.digests, digests)


class FeatureCache:
    """The file for what `content` describes.

    Args:
        content: everything that decides the features: tensors, and plain values.
        keep: False reads and writes nothing.
    """

    def __init__(self, content: Mapping[str, Any], keep: bool = True):
        key = hashlib.sha256(json.dumps(digests_of(content), sort_keys=True).encode()).hexdigest()[:32]
        self.file: Path | None = cache_folder() / "features" / f"{key}.npz" if keep else None

    def load(self) -> Features | None:
        """What is known; None if nothing is."""
        if self.file is None:
            return None
        with suppress(*DAMAGE):
            with np.load(self.file, allow_pickle=False) as arrays:  # checks the CRC of each
                found = Features(arrays["digests"], arrays["values"], *arrays["cost"].tolist())
            shapes = found.digests.shape == (len(found.values), 32) and found.values.ndim == 2
            if shapes and found.values.dtype == np.float32 and np.isfinite(found.values).all():
                self.file.touch()  # the least recently used are removed first
                return found
        return None

    def save(self, found: Features, ui: Ui) -> None:
        """Replace the file; a problem is a warning, as the next run then computes the features again."""
        if self.file is None:
            return
        folder = self.file.parent
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # features of images of patients
            _make_room(folder, found.values.nbytes)
            with whole_file(self.file) as stream:
                cost = np.array([found.seconds, found.memory])
                np.savez(stream, digests=found.digests, values=found.values, cost=cost)
        except (OSError, UsageError) as error:
            ui.warn(f"{folder}: features cannot be kept there ({error}); the next run computes them again")


def _make_room(folder: Path, size: int) -> None:
    """Remove the files that were used least recently until `size` more bytes fit."""
    files = sorted(folder.glob("*.npz"), key=lambda file: -file.stat().st_mtime_ns)
    for file in files:
        size += file.stat().st_size
        if size > MOST:
            file.unlink(missing_ok=True)
