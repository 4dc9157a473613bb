"""Squares on disk: images decoded and resized once, for every later run on the same files.

An entry is a folder `<settings>-<content>` below `cache_folder()/pixels`, in which `squares.npy` holds (N, S, S, C)
uint8 and `digests.npy` says of which files. It is written under another name and renamed when it is complete, so a
run that is killed leaves no half entry; what it leaves is removed by a later run. An entry serves every run whose
files it holds, in whatever order and split.
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

from vitmed.core.cache_folder import cache_folder
from vitmed.imaging.decoder_versions import decoding_version
from vitmed.imaging.preprocessing import Preprocessing

IN_USE = 600.0  # s; an entry that was read so lately is in use: it is not removed
NOTED = 60.0  # s between two notes that an entry is in use
RESERVE = 2**30  # bytes of the disk that are left free
CHANGES_NO_PIXEL = ("normalize", "mean", "std")  # what of `Preprocessing` comes after the squares


class Squares:
    """Images out of an entry, like an array: `squares[i]` is (S, S, C) uint8, read-only, out of the mapped file.

    May be pickled: a process that is not forked opens the file anew, on the first read.

    Args:
        folder: the entry.
        rows: (M,) int64; which row of the entry each image is, -1 where it has none.

    Raises:
        OSError, ValueError: the entry is gone, or damaged.
    """

    def __init__(self, folder: Path, rows: np.ndarray):
        self.folder, self.rows = folder, rows
        self._all: np.ndarray | None = None
        self._open()

    def _open(self) -> np.ndarray:
        mapped = np.load(self.folder / "squares.npy", mmap_mode="r", allow_pickle=False)
        if mapped.ndim != 4 or mapped.dtype != np.uint8 or len(mapped) <= self.rows.max(initial=-1):
            raise ValueError(f"{self.folder}: holds {mapped.dtype} {mapped.shape}")
        self._map: mmap.mmap = mapped._mmap
        self._start: int = mapped.offset
        self._all = np.asarray(mapped)  # a plain view: a memmap object for every image costs more than its pixels
        self._note()
        return self._all

    def _note(self) -> None:
        """Tell other processes that the entry is in use."""
        self._noted = time.monotonic()
        with suppress(OSError):
            os.utime(self.folder)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray:
        row = int(self.rows[index])
        if row < 0:
            raise IndexError(index)
        squares = self._open() if self._all is None else self._all
        if time.monotonic() - self._noted > NOTED:
            self._note()
        if hasattr(mmap, "MADV_WILLNEED"):
            # One request for the whole image. Page by page the disk answers some forty times; see docs/performance.md.
            size = squares[row].nbytes
            begin = self._start + row * size
            aligned = begin - begin % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, aligned, begin + size - aligned)
        return squares[row]

    @property
    def missing(self) -> np.ndarray:
        """Indices of the images that the entry does not hold."""
        return np.flatnonzero(self.rows < 0)

    def part(self, start: int, stop: int) -> Squares:
        """The images start..stop-1."""
        return Squares(self.folder, self.rows[start:stop])

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "rows": self.rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.folder, self.rows, self._all = state["folder"], state["rows"], None


class PixelCache:
    """The entries of one way of making squares.

    Args:
        preprocessing: that way.
        limit: bytes that all entries together may have.
    """

    def __init__(self, preprocessing: Preprocessing, limit: int):
        settings = {k: v for k, v in preprocessing.to_dict().items() if k not in CHANGES_NO_PIXEL}
        self.settings = _short(repr(sorted(settings.items())).encode(), decoding_version().encode())
        self.shape = (preprocessing.image_size, preprocessing.image_size, preprocessing.channels)
        self.folder, self.limit = pixel_folder(), limit

    def find(self, digests: np.ndarray) -> Squares | None:
        """What the cache has of these images: the entry that holds most of them; None where no entry holds any.

        Args:
            digests: (M, 32) uint8, as `digests_of` gives.
        """
        best: tuple[int, Path, np.ndarray] | None = None
        for entry in sorted(self.folder.glob(f"{self.settings}-*")):
            if entry.suffix:
                continue  # being written, or removed
            try:
                rows = _rows(np.load(entry / "digests.npy", allow_pickle=False), digests)
            except (OSError, ValueError):
                continue
            held = int((rows >= 0).sum())
            if held and (best is None or held > best[0]):
                best = held, entry, rows
        if best is None:
            return None
        try:
            return Squares(best[1], best[2])
        except (OSError, ValueError):
            return None

    @contextmanager
    def alone(self, digests: np.ndarray, waiting: Callable[[], None]) -> Iterator[None]:
        """One process at a time makes the entry of these images; `waiting` is called where another one does already.

        Raises:
            OSError: the folder cannot be written.
        """
        _make_private(self.folder)
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
            squares: M arrays (S, S, C) uint8, in that order. What it raises ends the writing.

        Raises:
            OSError: the cache or the disk is full, or the folder cannot be written.
        """
        name = self._name(digests)
        with _lock(self.folder, "room"):  # what one run is about to write, the next one counts
            size = len(digests) * int(np.prod(self.shape))
            _make_room(self.folder, size + digests.nbytes, self.limit)
            part = Path(tempfile.mkdtemp(prefix=f"{name}.", suffix=".part", dir=self.folder))
            stream = (part / "squares.npy").open("wb")
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(digests), *self.shape)}
            np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[arg-type]
            stream.truncate(stream.tell() + size)
            stream.flush()
        try:
            np.load(part / "squares.npy", mmap_mode="r")  # some network folders cannot map: known before the work
            # Written, not mapped: a disk that is full then is an error, where a mapped page would end the process.
            with stream:
                for square in squares:
                    assert square.shape == self.shape and square.dtype == np.uint8, (square.shape, square.dtype)
                    stream.write(np.ascontiguousarray(square).data)
                _to_disk(stream)
            with (part / "digests.npy").open("wb") as second:
                np.save(second, digests, allow_pickle=False)
                _to_disk(second)
            entry = self.folder / name
            if entry.exists():  # damaged, or it had been found
                _remove(entry)
            part.rename(entry)
        finally:
            stream.close()
            shutil.rmtree(part, ignore_errors=True)
        return Squares(entry, _rows(digests, digests))

    def _name(self, digests: np.ndarray) -> str:
        return f"{self.settings}-{_short(*np.unique(digests, axis=0))}"


def pixel_folder() -> Path:
    """Where the entries lie."""
    return cache_folder() / "pixels"


def _short(*parts: Any) -> str:
    """16 hexadecimal digits of a hash of the parts, one after the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _rows(have: np.ndarray, want: np.ndarray) -> np.ndarray:
    """(N, 32) and (M, 32) uint8 -> (M,) int64: the row of each wanted one, or -1. Raises ValueError."""
    if have.ndim != 2 or have.shape[1] != 32 or have.dtype != np.uint8:
        raise ValueError(f"{have.dtype} {have.shape}")
    if not len(have):
        return np.full(len(want), -1, dtype=np.int64)
    keys, wanted = (np.ascontiguousarray(part[:, :8]).view("<u8").ravel() for part in (have, want))
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys, wanted, sorter=order).clip(max=len(have) - 1)
    rows = order[place]
    return np.where((have[rows] == want).all(axis=1), rows, -1)


def _make_private(folder: Path) -> None:
    """The folder, which holds images of patients, is for its owner alone."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)


def _lock(folder: Path, name: str) -> FileLock:
    """Few files, as none is ever removed: two entries may share a lock, which only makes one writer wait."""
    return FileLock(folder / f"{name.rpartition('-')[2][:2]}.lock")


def _sweep(folder: Path) -> None:
    """Remove what killed runs left: what is unfinished, and whose lock is free."""
    for part in folder.glob("*.part"):
        with suppress(Timeout, NotImplementedError, OSError), _lock(folder, part.name.partition(".")[0]).acquire(0):
            shutil.rmtree(part, ignore_errors=True)


def _make_room(folder: Path, size: int, limit: int) -> None:
    """Remove the entries that were not used for longest, until `size` bytes more fit. Raises OSError: they cannot."""
    sizes = {entry: _bytes(entry) for entry in folder.iterdir() if entry.is_dir()}
    used = sum(sizes.values())
    over_limit = used + size - limit
    over_disk = size + RESERVE - shutil.disk_usage(folder).free
    too_much = max(over_limit, over_disk)
    removed = []
    for entry in sorted(sizes, key=_last_used):
        if too_much <= 0:
            break
        if not entry.suffix and time.time() - _last_used(entry) > IN_USE:
            removed.append(entry)
            too_much -= sizes[entry]
    if too_much > 0:
        where = "the disk" if over_disk > over_limit else f"a cache of {limit / 1e9:g} GB"
        raise OSError(errno.ENOSPC, f"{where} has no room for {size / 1e9:.2g} GB more")
    for entry in removed:
        _remove(entry)


def _remove(entry: Path) -> None:
    """Rename, then delete: nobody sees half an entry. Raises OSError where it is open (Windows)."""
    gone = Path(tempfile.mkdtemp(prefix=f"{entry.name}.", suffix=".part", dir=entry.parent))
    with suppress(FileNotFoundError):
        entry.rename(gone / "removed")
    shutil.rmtree(gone, ignore_errors=True)


def _bytes(entry: Path) -> int:
    total = 0
    for file in entry.rglob("*"):
        with suppress(OSError):
            total += file.stat().st_size
    return total


def _last_used(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _to_disk(stream: Any) -> None:
    stream.flush()
    os.fsync(stream.fileno())
