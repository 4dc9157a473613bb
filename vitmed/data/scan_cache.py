"""What earlier scans found, so that no file is hashed or decoded twice.

A SQLite file in the cache folder, which you can delete at any time. It holds small copies of the images, so the folder
is closed to other users. Two tables: the hash of a file's content by the identity of the file (path, size, times,
inode), and what was decoded by that content and the versions of every decoder. A copied, moved or renamed file is
hashed again and not decoded again. Failures are not kept: what a file lacks today, such as permission to read it, may
be there tomorrow without a change of the file.
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

from vitmed.core.cache_folder import cache_folder
from vitmed.core.errors import DataError
from vitmed.core.ui import Ui
from vitmed.data.batches import Progress, batched, in_threads
from vitmed.imaging import npz
from vitmed.imaging.decoded import ImageHeader
from vitmed.imaging.decoder_versions import decoding_version
from vitmed.imaging.look import NUMBERS, SIDE, Record

VERSION = 2  # of the tables
FRESH = 2.0  # seconds: a file changed so lately may change again within the same tick of its time stamp
MOST = 4 << 30  # bytes of the database: more than two million files
CHUNK = 500  # rows of a query
BATCH = 1024  # files between two writes: what a killed run loses


class Index:
    """The database. Every problem with it ends in "not known", never in an error.

    Args:
        file: of the database; None keeps nothing.
        frame: which of several frames is decoded.
        reduced: the size at which this run may decode a large JPEG; records made at that size count for such runs
            alone. "" takes records of whole images only.
    """

    def __init__(self, file: Path | None = None, frame: int | None = None, reduced: str = ""):
        self.file, self.frame = file, frame
        self.key = f"{decoding_version()} {'' if frame is None else frame}"
        self.reduced_key = f"{self.key} {reduced}" if reduced else self.key

    @classmethod
    def open(cls, frame: int | None = None, reduced: str = "", ui: Ui | None = None) -> Index:
        """The index in the cache folder; where there can be none, one that keeps nothing, and `ui` warns."""
        folder = cache_folder() / "index"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
            index = cls(folder / f"images-{VERSION}.sqlite", frame, reduced)
            for old in folder.glob("images-*.sqlite"):
                if old != index.file or old.stat().st_size > MOST:  # what is still needed is soon found again
                    _remove(old)
            with contextlib.suppress(sqlite3.DatabaseError):
                index._try()  # removes a damaged file
            index._try()
            return index
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            if ui is not None:
                ui.warn(f"{folder}: cannot be used ({reason}); every file is decoded anew (VITMED_CACHE)")
            return cls(None, frame)

    def hashes(self, files: Sequence[str], identities: Sequence[str]) -> dict[str, str]:
        """Path -> sha256, of the files that have not changed since they were hashed."""
        now = dict(zip(map(os.fsencode, files), identities, strict=True))
        rows = self._query("SELECT * FROM files WHERE path IN", list(now))
        return {os.fsdecode(path): sha256 for path, identity, sha256 in rows if identity and now[path] == identity}

    def keep_hashes(self, found: Iterable[tuple[str, str, str]]) -> None:
        """Store (path, identity, sha256)."""
        self._store("files", [(os.fsencode(path), identity, sha256) for path, identity, sha256 in found])

    def records(self, digests: np.ndarray) -> list[Record | None]:
        """What is known of each content; None where it is not known.

        Args:
            digests: (N, 32) uint8, as `digests_of` gives.
        """
        keys = [row.tobytes() for row in digests]
        known: dict[bytes, Record] = {}
        for digest, key, *values in self._query("SELECT * FROM images WHERE digest IN", list(dict.fromkeys(keys))):
            if key in (self.key, self.reduced_key):
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    known[digest] = _record(key != self.key, *values)
        return [known.get(key) for key in keys]

    def keep(self, found: Mapping[bytes, Record]) -> None:
        """Store digest -> record, of the files that could be decoded."""
        rows = [
            (digest, self.reduced_key if record.reduced else self.key, *_values(record))
            for digest, record in found.items()
            if not record.kind and record.sha256
        ]
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
        """A connection whose changes are kept together or not at all; a damaged file is removed."""
        assert self.file is not None
        database = sqlite3.connect(self.file, timeout=30)
        try:
            # Not WAL: that fails on network file systems, and two runs seldom write at once.
            database.execute("PRAGMA synchronous = OFF")  # what a power cut damages is made anew
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


def hash_files(files: Sequence[str], index: Index | None = None, progress: Progress | None = None) -> list[str]:
    """The sha256 of the content of every file, in threads; "" where it cannot be read.

    Args:
        files: absolute paths; below an .npz file they mean one of its images, and its pixels are hashed.
        index: knows files that have not changed, which are not opened; None reads every file.
    """
    index = index or Index()
    hashes: list[str] = []
    for part in batched(files, BATCH):
        identities = list(in_threads(_identity, part, 64)) if index.file is not None else [""] * len(part)
        known = index.hashes(part, identities)
        new = [(path, identity) for path, identity in zip(part, identities, strict=True) if path not in known]
        read = in_threads(_sha256, [path for path, _ in new])
        found = [(*file, sha256) for file, sha256 in zip(new, read, strict=True)]
        index.keep_hashes(row for row in found if row[1] and row[2])
        known |= {path: sha256 for path, _, sha256 in found}
        hashes += [known[path] for path in part]
        if progress is not None:
            progress(len(hashes), len(files))
    return hashes


def digests_of(hashes: Sequence[str], files: Sequence[str]) -> np.ndarray:
    """(M, 32) uint8: what decides the pixels of each file: its content (a sha256) and the suffix, which picks a reader.

    Rows of files without a hash are random: nothing is known of them.
    """
    rows = [
        hashlib.sha256(f"{digest}{os.path.splitext(path)[1].lower()}".encode()).digest() if digest else os.urandom(32)  # noqa: PTH122
        for digest, path in zip(hashes, files, strict=True)
    ]
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, 32)


def _identity(path: str) -> str:
    """What changes when a file does; "" where there is no such file, or one that changed just now."""
    try:
        about = os.stat(npz.file_of(path) or path)  # noqa: PTH116  (a million of them)
    except OSError:
        return ""
    settled = 0 <= about.st_mtime_ns < time.time_ns() - int(FRESH * 1e9)
    return f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {about.st_ino}" if settled else ""


def _sha256(path: str) -> str:
    try:
        return hashlib.sha256(npz.content(Path(path))).hexdigest()
    except (OSError, DataError):
        return ""


_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, identity TEXT, sha256 TEXT) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS images (digest BLOB PRIMARY KEY, key TEXT, facts TEXT, pixels BLOB) WITHOUT ROWID",
)


def _remove(file: Path) -> None:
    for suffix in ("", "-journal"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)


def _values(record: Record) -> tuple[str, bytes]:
    assert record.header is not None and record.numbers is not None and record.thumbnail is not None
    facts = [record.size, record.sha256, asdict(record.header), record.personal]
    return json.dumps(facts), record.numbers.astype("<f4").tobytes() + record.thumbnail.tobytes()


def _record(reduced: bool, facts: str, pixels: bytes) -> Record:
    size, sha256, head, personal = json.loads(facts)
    numbers = np.frombuffer(pixels, "<f4", count=len(NUMBERS))
    thumbnail = np.frombuffer(pixels, np.uint8, offset=numbers.nbytes).reshape(SIDE, SIDE)
    return Record(size, sha256, ImageHeader(**head), numbers, thumbnail, tuple(personal), reduced)
