"""Results of earlier scans, so that no file is hashed or decoded twice.

A SQLite file in the cache folder, which you can delete at any time. It contains thumbnails, so the folder is closed to
other users. Two tables: the hash of a file's content by the identity of the file (path, size, times, inode), and the
record by that content, the versions of every decoder and, for deep images, the window. A copied, moved or renamed file
is hashed again, but not decoded again. Failures are not kept, because their cause, such as a missing permission, may go
away without a change of the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.files import check_regular
from vitmed.core.messages import warn
from vitmed.core.stored_paths import cache_folder
from vitmed.data.thread_batches import Progress, batched, in_threads
from vitmed.imaging.decode import decoding_version
from vitmed.imaging.file_record import NUMBERS, SIDE, FileRecord
from vitmed.imaging.raw_image import ImageHeader
from vitmed.imaging.window import Window

VERSION = 3  # of the tables
FRESH = 2.0  # seconds: a file that changed so recently may change again with the same time stamp
MOST = 4 << 30  # bytes of the database: more than two million files
CHUNK = 500  # rows of a query
BATCH = 1024  # files between two writes: what a killed run loses


class ScanCache:
    """The database. Any problem with it counts as "not known", never as an error.

    Args:
        file: of the database; None keeps nothing.
        frame: which frame of several is decoded.
        reduced: the size to which this run may reduce a large JPEG while decoding; records made at that size count
            only for such runs. "" accepts records of whole images only.
        window: of the run; records of images that need a window count only for runs with the same.
    """

    def __init__(self, file: Path | None = None, frame: int | None = None, reduced: str = "", window: Window = None):
        self.file, self.frame, self.window = file, frame, window
        self.key = f"{decoding_version()} {'' if frame is None else frame}"
        self.reduced_key = f"{self.key} {reduced}" if reduced else self.key
        self.deep_key = f"{self.key} window {window}"

    @classmethod
    def open(
        cls,
        frame: int | None = None,
        reduced: str = "",
        window: Window = None,
        keep: bool = True,
        warns: bool = True,
    ) -> ScanCache:
        """The database in the cache folder; one that keeps nothing if `keep` is false or that fails.

        Args:
            frame, reduced, window: as of the class.
            warns: of a database that cannot be used.
        """
        if not keep:
            return cls(None, frame, window=window)
        folder = cache_folder() / "index"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
            cache = cls(folder / f"images-{VERSION}.sqlite", frame, reduced, window)
            for old in folder.glob("images-*.sqlite"):
                if old != cache.file or old.stat().st_size > MOST:  # what is still needed is soon found again
                    _remove(old)
            with contextlib.suppress(sqlite3.DatabaseError):
                cache._try()  # removes a damaged file
            cache._try()
            return cache
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            if warns:
                warn(f"{folder}: cannot be used ({reason}); every file is decoded again (VITMED_CACHE)")
            return cls(None, frame, window=window)

    def hashes(self, files: Sequence[str], identities: Sequence[str]) -> dict[str, str]:
        """Path -> sha256, for the files that have not changed since they were hashed."""
        now = dict(zip(map(os.fsencode, files), identities, strict=True))
        rows = self._query("SELECT * FROM files WHERE path IN", list(now))
        return {os.fsdecode(path): sha256 for path, identity, sha256 in rows if identity and now[path] == identity}

    def keep_hashes(self, found: Iterable[tuple[str, str, str]]) -> None:
        """Store (path, identity, sha256)."""
        self._store("files", [(os.fsencode(path), identity, sha256) for path, identity, sha256 in found])

    def records(self, digests: np.ndarray) -> list[FileRecord | None]:
        """The record of each content, or None where it is not known.

        Args:
            digests: (N, 32) uint8, from `digests_of`.
        """
        keys = [row.tobytes() for row in digests]
        known: dict[bytes, FileRecord] = {}
        for digest, key, *values in self._query("SELECT * FROM images WHERE digest IN", list(dict.fromkeys(keys))):
            if key in (self.key, self.reduced_key, self.deep_key):
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    known[digest] = _record(key not in (self.key, self.deep_key), *values)
        return [known.get(key) for key in keys]

    def keep(self, found: Mapping[bytes, FileRecord]) -> None:
        """Store digest -> record, for the files that could be decoded."""
        rows = []
        for digest, record in found.items():
            if record.header is None or record.numbers is None or record.thumbnail is None or not record.sha256:
                continue
            facts = json.dumps([record.size, record.sha256, asdict(record.header), record.personal])
            pixels = record.numbers.astype("<f4").tobytes() + record.thumbnail.tobytes()
            key = self.deep_key if record.header.needs_window else self.reduced_key if record.reduced else self.key
            rows.append((digest, key, facts, pixels))
        self._store("images", rows)

    def _try(self) -> None:
        with self._connect() as database:
            database.execute("SELECT count(*) FROM (SELECT 1 FROM images LIMIT 1)")

    def _query(self, query: str, keys: Sequence[bytes]) -> list[tuple]:
        rows: list[tuple] = []
        if self.file is not None and keys:
            with contextlib.suppress(sqlite3.Error, OSError), self._connect() as database:
                for part in batched(keys, CHUNK):
                    rows += database.execute(f"{query} ({','.join('?' * len(part))})", part)
        return rows

    def _store(self, table: str, rows: Sequence[tuple]) -> None:
        if self.file is not None and rows:
            marks = ",".join("?" * len(rows[0]))
            with contextlib.suppress(sqlite3.Error, OSError), self._connect() as database:
                database.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """A connection with one transaction; a damaged file is removed."""
        assert self.file is not None
        database = sqlite3.connect(self.file, timeout=30)
        try:
            # Not WAL, which fails on network file systems; two runs seldom write at once.
            database.execute("PRAGMA synchronous = OFF")  # a file damaged by a power cut is made again
            with database:
                for table in _SCHEMA:
                    database.execute(table)
                self.file.chmod(0o600)
                yield database
        except sqlite3.DatabaseError as error:
            if not isinstance(error, sqlite3.OperationalError):  # malformed
                _remove(self.file)
            raise
        finally:
            database.close()


def hash_files(files: Sequence[str], cache: ScanCache | None = None, progress: Progress | None = None) -> list[str]:
    """The sha256 of the content of every file, in threads; "" where it cannot be read.

    Args:
        files: absolute paths.
        cache: knows unchanged files, which are not opened; None reads every file.
    """
    cache = cache or ScanCache()
    hashes: list[str] = []
    for part in batched(files, BATCH):
        identities = list(in_threads(_identity, part, 64)) if cache.file is not None else [""] * len(part)
        known = cache.hashes(part, identities)
        new = [(path, identity) for path, identity in zip(part, identities, strict=True) if path not in known]
        read = in_threads(_sha256, [path for path, _ in new])
        found = [(*file, sha256) for file, sha256 in zip(new, read, strict=True)]
        cache.keep_hashes(row for row in found if row[1] and row[2])
        known |= {path: sha256 for path, _, sha256 in found}
        hashes += [known[path] for path in part]
        if progress is not None:
            progress(len(hashes), len(files))
    return hashes


def first_copies(root: Path, paths: Sequence[str], cache: ScanCache | None = None) -> np.ndarray:
    """(S,) int64: for every image the first one with the same bytes, or itself.

    Opens only files that share their size. An empty or unreadable file is no copy.

    Args:
        cache: knows the hashes of unchanged files.
    """
    first = np.arange(len(paths))
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


def digests_of(hashes: Sequence[str], files: Sequence[str]) -> np.ndarray:
    """(M, 32) uint8: hashes of what determines the pixels: the content (a sha256) and the suffix, which picks a reader.

    Files without a hash have random rows: nothing is known about them.
    """
    rows = [
        hashlib.sha256(f"{digest}{os.path.splitext(path)[1].lower()}".encode()).digest() if digest else os.urandom(32)  # noqa: PTH122
        for digest, path in zip(hashes, files, strict=True)
    ]
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, 32)


def _size(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_size  # noqa: PTH116
    return 0


def _identity(path: str) -> str:
    """Changes when the file does; "" if there is no such file, or if it changed just now."""
    try:
        about = os.stat(path)  # noqa: PTH116  (a million of them)
    except OSError:
        return ""
    settled = 0 <= about.st_mtime_ns < time.time_ns() - int(FRESH * 1e9)
    return f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {about.st_ino}" if settled else ""


def _sha256(path: str) -> str:
    try:
        check_regular(path)
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except (OSError, DataError):
        return ""


_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, identity TEXT, sha256 TEXT) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS images (digest BLOB, key TEXT, facts TEXT, pixels BLOB, PRIMARY KEY (digest, key)) "
    "WITHOUT ROWID",
)


def _remove(file: Path) -> None:
    for suffix in ("", "-journal"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)


def _record(reduced: bool, facts: str, pixels: bytes) -> FileRecord:
    size, sha256, head, personal = json.loads(facts)
    numbers = np.frombuffer(pixels, "<f4", count=len(NUMBERS))
    thumbnail = np.frombuffer(pixels, np.uint8, offset=numbers.nbytes).reshape(SIDE, SIDE)
    return FileRecord(size, sha256, ImageHeader(**head), numbers, thumbnail, tuple(personal), reduced)
