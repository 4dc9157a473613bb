"""What was found out about every file, kept between runs, so that no file is decoded twice for the check.

A SQLite file in the cache folder, which can be deleted at any time. It holds small copies of the images, so the folder
is closed to other users. A file counts as known by absolute path, size and time of change.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from vitmed.checks.folder_contents import File
from vitmed.core.cache_folder import cache_folder
from vitmed.imaging.decoded import FileFacts

VERSION = 1  # of what a record holds; another number, and all is found out anew
SIDE = 32  # of a thumbnail, px
NUMBERS = ("red", "green", "blue", "border_red", "border_green", "border_blue", "low", "high")
FRESH = 2.0  # seconds: a file changed so lately may change again within the same tick of its time stamp
MOST = 4 << 30  # bytes of the database: more than two million files
CHUNK = 500  # rows of a query or a transaction


@dataclass(frozen=True, eq=False)
class Record:
    """What is known of a file.

    Attributes:
        size: bytes; -1 where there is no such file.
        sha256: of its content, hexadecimal; "" where it cannot be read.
        facts: what its head says; None where that is no image.
        numbers: (8,) float32, named by NUMBERS: mean colour and colour of the border, 0..255, and the lowest and
            highest value of a channel; None where it cannot be decoded.
        thumbnail: (32, 32) uint8 grey, squashed; None where it cannot be decoded.
        personal: what its metadata hold that looks like a person, by name of the field, never the value.
        kind: "" where all is well, else empty_file, multi_frame, truncated or unreadable.
        problem, fix: in words, without the path.
    """

    size: int = -1
    sha256: str = ""
    facts: FileFacts | None = None
    numbers: np.ndarray | None = None
    thumbnail: np.ndarray | None = None
    personal: tuple[str, ...] = ()
    kind: str = ""
    problem: str = ""
    fix: str = ""


class Index:
    """The records of earlier runs. Every problem with the database ends in "not known", never in an error.

    Args:
        file: of the database; None keeps nothing.
        frame: which of several frames is looked at.
    """

    def __init__(self, file: Path | None, frame: int | None = None):
        self.file = file
        self.frame = frame
        self.key = f"{_key()} {'' if frame is None else frame}"

    @classmethod
    def open(cls, frame: int | None = None) -> tuple[Index, str | None]:
        """The index in the cache folder, and what is wrong where there can be none."""
        folder = cache_folder() / "index"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
            index = cls(folder / f"images-{VERSION}.sqlite", frame)
            if index.file is not None and index.file.is_file() and index.file.stat().st_size > MOST:
                index._remove()  # files that are long gone are in it; what is still there is soon found out again
            with index._connect() as database:
                database.execute("SELECT count(*) FROM (SELECT 1 FROM images LIMIT 1)")
            return index, None
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            return cls(None, frame), f"{folder}: cannot be used ({reason}); every file is decoded anew (VITMED_CACHE)"

    def find(self, root: Path, files: Sequence[File]) -> dict[str, Record]:
        """Relative path -> what is known of it; only files that have not changed since."""
        if self.file is None:
            return {}
        known: dict[str, Record] = {}
        start = _absolute(root)
        with contextlib.suppress(sqlite3.Error, OSError), self._connect() as database:
            for part in _chunks(files):
                wanted = {start + file.path: file for file in part}
                marks = ",".join("?" * len(part))
                query = f"SELECT * FROM images WHERE path IN ({marks})"
                for path, size, mtime, key, *values in database.execute(query, tuple(map(_bytes, wanted))):
                    file = wanted[path.decode(errors="surrogateescape")]
                    if (size, mtime, key) == (file.size, file.mtime_ns, self.key):
                        with contextlib.suppress(ValueError, TypeError, KeyError):
                            known[file.path] = _record(size, values)
        return known

    def keep(self, root: Path, found: Mapping[File, Record]) -> None:
        """Store records; those of files changed just now are left out."""
        if self.file is None:
            return
        start, lately = _absolute(root), time.time_ns() - int(FRESH * 1e9)
        rows = [
            (_bytes(start + file.path), file.size, file.mtime_ns, self.key, *_values(record))
            for file, record in found.items()
            if 0 <= file.mtime_ns < lately
        ]
        marks = ",".join("?" * (3 + len(fields(Record))))
        with contextlib.suppress(sqlite3.Error, OSError):
            for part in _chunks(rows):
                with self._connect() as database:
                    database.executemany(f"INSERT OR REPLACE INTO images VALUES ({marks})", part)

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are kept together or not at all; a damaged file is thrown away and made anew."""
        assert self.file is not None
        database = self._opened()
        try:
            with database:
                yield database
        except sqlite3.DatabaseError as error:
            if not isinstance(error, sqlite3.OperationalError):  # malformed, seen only on the way
                self._remove()
            raise
        finally:
            database.close()

    def _opened(self) -> sqlite3.Connection:
        assert self.file is not None
        for attempt in (1, 2):
            database = sqlite3.connect(self.file, timeout=30)
            try:
                # Not WAL: that fails on network file systems, and two runs seldom write at once.
                database.execute("PRAGMA synchronous = OFF")  # what a power cut damages is made anew
                database.execute(_SCHEMA)
                self.file.chmod(0o600)
                return database
            except sqlite3.DatabaseError as error:
                database.close()
                if attempt == 2 or isinstance(error, sqlite3.OperationalError):
                    raise
                self._remove()
        raise AssertionError

    def _remove(self) -> None:
        assert self.file is not None
        for suffix in ("", "-journal"):
            self.file.with_name(self.file.name + suffix).unlink(missing_ok=True)


_SCHEMA = """CREATE TABLE IF NOT EXISTS images (path BLOB PRIMARY KEY, size INTEGER, mtime_ns INTEGER, key TEXT,
    sha256 TEXT, facts TEXT, numbers BLOB, thumbnail BLOB, personal TEXT, kind TEXT, problem TEXT, fix TEXT)
    WITHOUT ROWID"""


def _key() -> str:
    """What a record depends on beside the file: our own version, the decoder's, and what an optional reader adds."""
    import importlib.util

    extra = importlib.util.find_spec("pydicom") is not None
    return (
        f"{VERSION} {SIDE} {PIL.__version__} {'dicom' if extra else ''} {' '.join(f.name for f in fields(FileFacts))}"
    )


def _values(record: Record) -> tuple[object, ...]:
    return (
        record.sha256,
        json.dumps(asdict(record.facts)) if record.facts is not None else None,
        record.numbers.astype("<f4").tobytes() if record.numbers is not None else None,
        record.thumbnail.tobytes() if record.thumbnail is not None else None,
        json.dumps(record.personal),
        record.kind,
        record.problem,
        record.fix,
    )


def _record(size: int, values: Sequence[object]) -> Record:
    sha256, facts, numbers, thumbnail, personal, kind, problem, fix = values
    return Record(
        size,
        str(sha256),
        FileFacts(**json.loads(facts)) if isinstance(facts, str) else None,
        np.frombuffer(numbers, "<f4", count=len(NUMBERS)) if isinstance(numbers, bytes) else None,
        np.frombuffer(thumbnail, np.uint8).reshape(SIDE, SIDE) if isinstance(thumbnail, bytes) else None,
        tuple(json.loads(str(personal))),
        str(kind),
        str(problem),
        str(fix),
    )


def _absolute(root: Path) -> str:
    return f"{root.resolve()}/"


def _bytes(path: str) -> bytes:
    """A name that is no Unicode is no text for SQLite."""
    return path.encode(errors="surrogateescape")


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    every = list(items)
    for start in range(0, len(every), CHUNK):
        yield every[start : start + CHUNK]
