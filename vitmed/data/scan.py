"""One scan of files: hash the content of each, decode each once, keep the results."""

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.files import check_regular
from vitmed.core.messages import bar, say
from vitmed.core.text import counted
from vitmed.data.image_cache import ImageCache
from vitmed.data.thread_batches import Progress, batched, in_threads
from vitmed.imaging.file_record import Examined, FileRecord, examine
from vitmed.imaging.preprocessing import Preprocessing

FRESH = 2.0  # seconds: a file that changed so recently may change again with the same time stamp
BATCH = 1024  # files between two writes: what a killed run loses


class Scan:
    """Files, the hashes of their content, and their records."""

    def __init__(
        self,
        files: Sequence[Path],
        cache: ImageCache,
        how: Preprocessing | None = None,  # makes a square of each decoded file; None makes records alone
        records: bool = True,  # whether records are needed
        progress: Progress | None = None,
    ):
        self.files, self.cache, self.how = files, cache, how
        paths = [os.path.abspath(path) for path in files]  # noqa: PTH100  (a million of them)
        self.hashes = hash_files(paths, cache, progress)  # sha256 of each file
        self.digests = digests_of(self.hashes, paths)  # (N, 32) uint8
        self.records = cache.records(self.digests) if records else []  # None where one is not known yet
        self.early: dict[int, Examined] = {}  # files that were decoded before `decode`, which takes these

    def decode(self, rows: Sequence[int]) -> Iterator[tuple[int, Examined]]:
        """Decode these files in threads, in order, and keep their records."""
        new: dict[bytes, FileRecord] = {}
        try:
            for i, examined in zip(rows, in_threads(self.examine, rows), strict=True):
                if self.records and examined.record is not None:
                    self.records[i] = new[self.digests[i].tobytes()] = examined.record
                yield i, examined
                if len(new) >= BATCH:
                    self.cache.keep(new)
                    new.clear()
        finally:
            self.cache.keep(new)

    def examine(self, i: int) -> Examined:
        if i in self.early:
            return self.early.pop(i)
        needed = bool(self.records) and self.records[i] is None
        return examine(self.files[i], self.hashes[i], self.cache.frame, self.how, needed, self.cache.window)


def scan(root: Path, paths: Sequence[str], cache: ImageCache) -> list[FileRecord]:
    """The record of every file, in order, from paths below the root; known content is not decoded again."""
    records: list[FileRecord] = []
    decoded, started = 0, time.monotonic()
    with bar("checking") as advance:
        for names in batched(paths, BATCH):  # a file that was read for its hash is decoded while the system caches it
            part = Scan([root / name for name in names], cache)
            rows = [i for i, record in enumerate(part.records) if record is None]
            for done, _ in enumerate(part.decode(rows), 1):
                if done % 64 == 0:
                    advance(len(records) + done, len(paths))
            decoded += len(rows)
            records += [record for record in part.records if record is not None]
            advance(len(records), len(paths))
    if decoded:
        from_before = f"{len(paths) - decoded:,} known from earlier scans"
        say(f"checking: {decoded_text(decoded, time.monotonic() - started)}; {from_before}")
    return records


def decoded_text(decoded: int, seconds: float) -> str:
    return f"{counted(decoded, 'file')} decoded, {decoded / max(1e-9, seconds):,.0f} images/s"


def hash_files(files: Sequence[str], cache: ImageCache | None = None, progress: Progress | None = None) -> list[str]:
    """The sha256 of the content of every file, in threads; "" where it cannot be read. `files` are absolute paths;
    `cache` knows unchanged files, which are not opened; None reads every file."""
    cache = cache or ImageCache(keep=False)
    hashes: list[str] = []
    for part in batched(files, BATCH):
        identities = list(in_threads(_identity, part, 64)) if cache.file is not None else [""] * len(part)
        known = cache.hashes(part, identities)
        new = [(path, identity) for path, identity in zip(part, identities, strict=True) if path not in known]
        read = in_threads(_sha256, [path for path, _ in new])
        rows = [(*file, sha256) for file, sha256 in zip(new, read, strict=True)]
        cache.keep_hashes(row for row in rows if row[1] and row[2])
        known |= {path: sha256 for path, _, sha256 in rows}
        hashes += [known[path] for path in part]
        if progress is not None:
            progress(len(hashes), len(files))
    return hashes


def first_copies(root: Path, paths: Sequence[str], cache: ImageCache | None = None) -> np.ndarray:
    """(S,) int64: for every image the first one with the same bytes, or itself.

    Opens only files that share their size. An empty or unreadable file is no copy.
    """

    def size(path: str) -> int:
        with suppress(OSError):
            return os.stat(path).st_size  # noqa: PTH116
        return 0

    first, seen = np.arange(len(paths)), dict[str, int]()
    top = os.path.abspath(root)  # noqa: PTH100  (a million of them)
    files = [os.path.join(top, path) for path in paths]  # noqa: PTH118
    sizes = np.fromiter(in_threads(size, files, 256), np.int64, len(paths))
    _, where, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    same = np.flatnonzero((counts[where] > 1) & (sizes > 0)).tolist()
    for i, digest in zip(same, hash_files([files[i] for i in same], cache), strict=True):
        if digest:
            first[i] = seen.setdefault(digest, i)
    return first


def digests_of(hashes: Sequence[str], files: Sequence[str]) -> np.ndarray:
    """(M, 32) uint8: hashes of what determines the pixels: the content (a sha256) and the suffix, which picks a reader.

    Files without a hash have random rows: nothing is known about them.
    """
    rows = [
        hashlib.sha256(f"{digest}{os.path.splitext(path)[1].lower()}".encode()).digest() if digest else os.urandom(32)  # noqa: PTH122
        for digest, path in zip(hashes, files, strict=True)
    ]
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, 32)


def _identity(path: str) -> str:
    """Changes when the file does; "" if there is no such file, or if it changed just now."""
    with suppress(OSError):
        about = os.stat(path)  # noqa: PTH116  (a million of them)
        if 0 <= about.st_mtime_ns < time.time_ns() - int(FRESH * 1e9):
            return f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {about.st_ino}"
    return ""


def _sha256(path: str) -> str:
    with suppress(OSError, DataError):
        check_regular(path)
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return ""
