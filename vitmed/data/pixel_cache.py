"""Squares on disk: images decoded and resized once, for every later run on the same files.

An entry is a folder `<settings>-<content>` below `cache_folder()/pixels`: `squares.npy` contains (N, S, S, C) uint8 and
`digests.npy` the digests of the files. It is written under another name and renamed when complete, so a killed run
leaves no half entry; a later run removes the unfinished files. An entry serves every run on the same files, in any
order and split.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from vitmed.core.stored_paths import cache_folder
from vitmed.imaging.decode import decoding_version
from vitmed.imaging.preprocessing import Preprocessing

IN_USE = 600.0  # s; an entry that was read within this time is not removed
NOTED = 60.0  # s between two marks that an entry is in use
RESERVE = 2**30  # bytes of the disk that stay free
CHANGES_NO_PIXEL = ("normalize", "mean", "std")  # fields of `Preprocessing` that apply after the squares are made


class Squares:
    """Images of an entry, like an array: `squares[i]` is (S, S, C) uint8, read-only, in the mapped file.

    Can be pickled: a process that is not forked opens the file again at the first read.

    Args:
        folder: the entry.
        rows: (M,) int64; the row of each image in the entry, -1 if it has none.

    Raises:
        OSError, ValueError: the entry is missing or damaged.
    """

    def __init__(self, folder: Path, rows: np.ndarray):
        self.folder, self.rows = folder, rows
        self._all: np.ndarray | None = None
        self._open()

    def _open(self) -> np.ndarray:
        mapped = np.load(self.folder / "squares.npy", mmap_mode="r", allow_pickle=False)
        if mapped.ndim != 4 or mapped.dtype != np.uint8 or len(mapped) <= self.rows.max(initial=-1):
            raise ValueError(f"{self.folder}: contains {mapped.dtype} {mapped.shape}")
        self._map: mmap.mmap = mapped._mmap
        self._start: int = mapped.offset
        self._all = np.asarray(mapped)  # a plain view: a memmap object per image costs more than its pixels
        self._note()
        return self._all

    def _note(self) -> None:
        """Show other processes that the entry is in use."""
        self._noted = time.monotonic()
        with suppress(OSError):
            os.utime(self.folder)

    def __getitem__(self, index: int) -> np.ndarray:
        row = int(self.rows[index])
        if row < 0:
            raise IndexError(index)
        squares = self._open() if self._all is None else self._all
        if time.monotonic() - self._noted > NOTED:
            self._note()
        if hasattr(mmap, "MADV_WILLNEED"):
            # One request for the whole image; page by page it takes about forty. See docs/performance.md.
            size = squares[row].nbytes
            begin = self._start + row * size
            aligned = begin - begin % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, aligned, begin + size - aligned)
        return squares[row]

    @property
    def missing(self) -> np.ndarray:
        """Indices of the images that the entry does not contain."""
        return np.flatnonzero(self.rows < 0)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "rows": self.rows, "_all": None}


class PixelCache:
    """The entries for one preprocessing.

    Args:
        limit: bytes that all entries together may use.
    """

    def __init__(self, preprocessing: Preprocessing, limit: int):
        settings = {k: v for k, v in preprocessing.to_dict().items() if k not in CHANGES_NO_PIXEL}
        self.settings = _short(repr(sorted(settings.items())).encode(), decoding_version().encode())
        self.shape = (preprocessing.image_size, preprocessing.image_size, preprocessing.channels)
        self.folder, self.limit = pixel_folder(), limit

    def find(self, digests: np.ndarray) -> Squares | None:
        """The entry that contains most of these images; None if no entry contains any.

        Args:
            digests: (M, 32) uint8, from `digests_of`.
        """
        best: tuple[int, Path, np.ndarray] | None = None
        for entry in sorted(self.folder.glob(f"{self.settings}-{'?' * 16}")):  # not those being written or removed
            with suppress(OSError, ValueError, EOFError):
                rows = find_rows(np.load(entry / "digests.npy", allow_pickle=False), digests)
                held = int((rows >= 0).sum())
                if held > (best[0] if best else 0):
                    best = held, entry, rows
        with suppress(OSError, ValueError):
            return Squares(*best[1:]) if best else None
        return None

    @contextmanager
    def alone(self, digests: np.ndarray, waiting: Callable[[], None]) -> Iterator[None]:
        """One process at a time makes the entry of these images; calls `waiting` if another process is making it.

        Raises:
            OSError: the folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # it contains images of patients
        _sweep(self.folder)
        guard = _lock(self.folder, self._name(digests))
        try:
            guard.acquire(timeout=0)
        except Timeout:
            waiting()
            guard.acquire()
        except NotImplementedError:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)) from None
        try:
            yield
        finally:
            guard.release()

    def add(self, digests: np.ndarray, squares: Iterable[np.ndarray]) -> Squares:
        """Write an entry; call it within `alone`.

        Args:
            digests: (M, 32) uint8.
            squares: M arrays (S, S, C) uint8, in that order. An error raised by it ends the writing.

        Raises:
            OSError: the cache or the disk is full, or the folder cannot be written.
        """
        name = self._name(digests)
        with _lock(self.folder, "room"):  # another run counts the space reserved here
            size = len(digests) * int(np.prod(self.shape))
            _make_room(self.folder, size + digests.nbytes, self.limit)
            part = Path(tempfile.mkdtemp(prefix=f"{name}.", suffix=".part", dir=self.folder))
            stream = (part / "squares.npy").open("wb")
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(digests), *self.shape)}
            np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[arg-type]
            stream.truncate(stream.tell() + size)
            stream.flush()
        try:
            np.load(part / "squares.npy", mmap_mode="r")  # some network folders cannot map: fail before the work
            # Written, not mapped: a full disk is then an error, while a mapped page would end the process.
            with stream:
                for square in squares:
                    assert square.shape == self.shape and square.dtype == np.uint8, (square.shape, square.dtype)
                    stream.write(np.ascontiguousarray(square).data)
                stream.flush()
                os.fsync(stream.fileno())
            np.save(part / "digests.npy", digests, allow_pickle=False)
            entry = self.folder / name
            if entry.exists():  # damaged, else `find` returns it
                _remove(entry)
            part.rename(entry)
        finally:
            stream.close()
            shutil.rmtree(part, ignore_errors=True)
        return Squares(entry, find_rows(digests, digests))

    def _name(self, digests: np.ndarray) -> str:
        return f"{self.settings}-{_short(*np.unique(digests, axis=0))}"


def pixel_folder() -> Path:
    """The folder of all entries."""
    return cache_folder() / "pixels"


def _short(*parts: Any) -> str:
    """16 hexadecimal digits of a hash of the parts, one after the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def find_rows(have: np.ndarray, want: np.ndarray) -> np.ndarray:
    """(N, 32) and (M, 32) uint8 -> (M,) int64: the row of each wanted digest, or -1. Raises ValueError."""
    if have.ndim != 2 or have.shape[1] != 32 or have.dtype != np.uint8:
        raise ValueError(f"{have.dtype} {have.shape}")
    if not len(have):
        return np.full(len(want), -1, dtype=np.int64)
    keys, wanted = (np.ascontiguousarray(part[:, :8]).view("<u8").ravel() for part in (have, want))
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys, wanted, sorter=order).clip(max=len(have) - 1)
    rows = order[place]
    return np.where((have[rows] == want).all(axis=1), rows, -1)


def _lock(folder: Path, name: str) -> FileLock:
    """One of at most 256 files, because none is ever removed; two entries may share a lock, so one writer waits."""
    return FileLock(folder / f"{name.rpartition('-')[2][:2]}.lock")


def _sweep(folder: Path) -> None:
    """Remove what killed runs left: unfinished entries with a free lock."""
    for part in folder.glob("*.part"):
        with suppress(Timeout, NotImplementedError, OSError), _lock(folder, part.name.partition(".")[0]).acquire(0):
            shutil.rmtree(part, ignore_errors=True)


def _make_room(folder: Path, size: int, limit: int) -> None:
    """Remove the least recently used entries until `size` more bytes fit. Raises OSError if they cannot fit."""
    sizes = {entry: sum(_stat(file)[0] for file in entry.rglob("*")) for entry in folder.iterdir() if entry.is_dir()}
    over_limit = sum(sizes.values()) + size - limit
    over_disk = size + RESERVE - shutil.disk_usage(folder).free
    too_much = max(over_limit, over_disk)
    removed = []
    for used, entry in sorted((_stat(entry)[1], entry) for entry in sizes):
        if too_much > 0 and not entry.suffix and time.time() - used > IN_USE:
            removed.append(entry)
            too_much -= sizes[entry]
    if too_much > 0:
        where = "the disk" if over_disk > over_limit else f"a cache of {limit / 1e9:g} GB"
        raise OSError(errno.ENOSPC, f"{where} has no room for {size / 1e9:.2g} GB more")
    for entry in removed:
        _remove(entry)


def _remove(entry: Path) -> None:
    """Rename, then delete, so that no run sees half an entry. Raises OSError if it is open (Windows)."""
    gone = Path(tempfile.mkdtemp(prefix=f"{entry.name}.", suffix=".part", dir=entry.parent))
    with suppress(FileNotFoundError):
        entry.rename(gone / "removed")
    shutil.rmtree(gone, ignore_errors=True)


def _stat(path: Path) -> tuple[int, float]:
    """Size and time of the last change; 0 for a path that is gone."""
    try:
        about = path.stat()
        return about.st_size, about.st_mtime
    except OSError:
        return 0, 0.0
