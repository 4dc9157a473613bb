"""What earlier scans and runs found, so that no file is hashed, decoded or resized twice; and the scan of the others:
hash the content of each file, decode each once, keep the results. The cache may be deleted.

`index/images-3.sqlite` in the cache folder has the hash of each file by its identity (path, size, times, inode), and
the record of each content by the versions of every decoder and, for deep images, the window. A moved file is hashed
again, but not decoded again. Failures are not kept, because their cause may go away without a change of the file.
`pixels/<settings>-<content>/` has squares: `squares.npy` (N, S, S, C) uint8, and `digests.npy` of their files, in any
order and split. An entry is renamed when complete, so a killed run leaves no half entry. Both contain images of
patients and are closed to other users.
"""

import errno
import hashlib
import json
import mmap
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.files import check_regular, locked
from vitmed.core.messages import bar, say, warn
from vitmed.core.run_folder import cache_folder
from vitmed.core.text import counted
from vitmed.data.thread_batches import Progress, batched, in_threads
from vitmed.imaging.decode import decoding_version
from vitmed.imaging.file_record import NUMBERS, SIDE, Examined, FileRecord, examine
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.imaging.raw_image import ImageHeader
from vitmed.imaging.window import Window

VERSION = 3  # of the tables
MOST = 4 << 30  # bytes of the database: more than two million files
CHUNK = 500  # rows of a query
IN_USE = 600.0  # s; squares that were read within this time are not removed
NOTED = 60.0  # s between two marks that squares are in use
RESERVE = 2**30  # bytes of the disk that stay free
CHANGES_NO_PIXEL = ("normalize", "mean", "std")  # fields of `Preprocessing` that apply after the squares are made
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, identity TEXT, sha256 TEXT) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS images (digest BLOB, key TEXT, facts TEXT, pixels BLOB, PRIMARY KEY (digest, key)) "
    "WITHOUT ROWID",
)


class ImageCache:
    """Hashes, records and squares. Any problem with the database counts as "not known", never as an error.

    A record of a deep image counts only for runs with the same window.
    """

    def __init__(
        self,
        frame: int | None = None,
        window: Window = None,
        how: Preprocessing | None = None,  # makes the squares, and sets frame and window
        keep: bool = True,  # hashes and records in the database of the cache folder, unless it cannot be used (`warns`)
        limit: int = 0,  # bytes that all squares together may use
        warns: bool = True,
    ):
        self.file: Path | None = None  # the database; None keeps no hashes and no records
        self.limit, version = limit, decoding_version()
        self.frame, self.window = (frame, window) if how is None else (how.frame, how.window)
        self.key = f"{version} {'' if self.frame is None else self.frame}"
        self.deep_key = f"{self.key} window {self.window}"
        if how is not None:
            settings = {k: v for k, v in how.to_dict().items() if k not in CHANGES_NO_PIXEL}
            self.settings = hashlib.sha256(f"{sorted(settings.items())!r}{version}".encode()).hexdigest()[:16]
            self.shape = (how.image_size, how.image_size, how.channels)
        folder = cache_folder() / "index"
        try:
            if keep:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                folder.chmod(0o700)
                self.file = folder / f"images-{VERSION}.sqlite"
                for old in folder.glob("images-*.sqlite"):
                    if old != self.file or old.stat().st_size > MOST:  # what is still needed is soon found again
                        _remove_database(old)
                with suppress(sqlite3.DatabaseError), self._connect():  # removes a damaged file
                    pass
                with self._connect():
                    pass
        except (OSError, sqlite3.Error) as error:
            self.file, reason = None, getattr(error, "strerror", None) or error
            if warns:
                warn(f"{folder}: cannot be used ({reason}); every file is decoded again (VITMED_CACHE)")

    def hashes(self, files: Sequence[str], identities: Sequence[str]) -> dict[str, str]:
        """Path -> sha256, for the files that have not changed since they were hashed."""
        now = dict(zip(map(os.fsencode, files), identities, strict=True))
        rows = self._query("SELECT * FROM files WHERE path IN", list(now))
        return {os.fsdecode(path): sha256 for path, identity, sha256 in rows if identity and now[path] == identity}

    def keep_hashes(self, rows: Iterable[tuple[str, str, str]]) -> None:
        self._store("files", [(os.fsencode(path), identity, sha256) for path, identity, sha256 in rows])

    def records(self, digests: np.ndarray) -> list[FileRecord | None]:
        """The record of each content (N, 32) uint8, from `digests_of`, or None where it is not known."""
        keys = [row.tobytes() for row in digests]
        records: dict[bytes, FileRecord] = {}
        for digest, key, facts, pixels in self._query("SELECT * FROM images WHERE digest IN", [*dict.fromkeys(keys)]):
            if key in (self.key, self.deep_key):
                with suppress(ValueError, TypeError, KeyError):
                    size, sha256, head, personal = json.loads(facts)
                    numbers = np.frombuffer(pixels, "<f4", count=len(NUMBERS))
                    grey = np.frombuffer(pixels, np.uint8, offset=numbers.nbytes).reshape(SIDE, SIDE)
                    header = ImageHeader(**head)
                    records[digest] = FileRecord(size, sha256, header, numbers, grey, tuple(personal))
        return [records.get(key) for key in keys]

    def keep(self, records: Mapping[bytes, FileRecord]) -> None:
        """Store digest -> record, for the files that could be decoded."""
        rows = []
        for digest, record in records.items():
            if record.header is None or record.numbers is None or record.thumbnail is None or not record.sha256:
                continue
            facts = json.dumps([record.size, record.sha256, asdict(record.header), record.personal])
            pixels = record.numbers.astype("<f4").tobytes() + record.thumbnail.tobytes()
            key = self.deep_key if record.header.needs_window else self.key
            rows.append((digest, key, facts, pixels))
        self._store("images", rows)

    def _query(self, query: str, keys: Sequence[bytes]) -> list[tuple]:
        rows: list[tuple] = []
        if self.file is not None and keys:
            with suppress(sqlite3.Error, OSError), self._connect() as database:
                for part in batched(keys, CHUNK):
                    rows += database.execute(f"{query} ({','.join('?' * len(part))})", part)
        return rows

    def _store(self, table: str, rows: Sequence[tuple]) -> None:
        if self.file is not None and rows:
            marks = ",".join("?" * len(rows[0]))
            with suppress(sqlite3.Error, OSError), self._connect() as database:
                database.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """A connection with one transaction; a damaged file is removed."""
        assert self.file is not None
        database = sqlite3.connect(self.file, timeout=30)
        try:
            # Not WAL, which fails on network file systems; two runs seldom write at once.
            database.execute("PRAGMA synchronous = OFF")  # a file damaged by a power cut is made again
            with database:
                for table in SCHEMA:
                    database.execute(table)
                database.execute("SELECT count(*) FROM (SELECT 1 FROM images LIMIT 1)")  # fails for a damaged file
                self.file.chmod(0o600)
                yield database
        except sqlite3.DatabaseError as error:
            if not isinstance(error, sqlite3.OperationalError):  # malformed
                _remove_database(self.file)
            raise
        finally:
            database.close()

    def squares(self, digests: np.ndarray) -> "Squares | None":
        """The entry that contains most of these images (M, 32) uint8; None if no entry contains any."""
        held = dict[Path, np.ndarray]()  # entry -> the row of each image in it, or -1
        for entry in sorted(pixel_folder().glob(f"{self.settings}-{'?' * 16}")):  # not those being written or removed
            with suppress(OSError, ValueError, EOFError):
                held[entry] = find_rows(np.load(entry / "digests.npy", allow_pickle=False), digests)
        best = max(held, key=lambda entry: int((held[entry] >= 0).sum()), default=None)
        with suppress(OSError, ValueError):
            return Squares(best, held[best]) if best is not None and (held[best] >= 0).any() else None
        return None

    @contextmanager
    def alone(self, digests: np.ndarray, waiting: Callable[[], None]) -> Iterator[None]:
        """One process at a time makes the entry of these images; calls `waiting` if another process is making it.
        Raises OSError if the folder cannot be written."""
        folder = pixel_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in folder.glob("*.part"):  # what killed runs left: unfinished entries with a free lock
            with suppress(OSError), locked(_lock_file(folder, part.name.partition(".")[0]), None):
                shutil.rmtree(part, ignore_errors=True)
        with locked(_lock_file(folder, self._name(digests)), waiting):
            yield

    def add(self, digests: np.ndarray, squares: Iterable[np.ndarray]) -> "Squares":
        """Write an entry of M squares (S, S, C) uint8, in the order of the digests; call it within `alone`. Raises
        OSError: the cache or the disk is full, or the folder cannot be written; or any error of `squares`."""
        name, folder = self._name(digests), pixel_folder()
        with locked(_lock_file(folder, "room"), lambda: None):  # another run counts the space reserved here
            size = len(digests) * int(np.prod(self.shape))
            _make_room(folder, size + digests.nbytes, self.limit)
            part = Path(tempfile.mkdtemp(prefix=f"{name}.", suffix=".part", dir=folder))
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
            entry = folder / name
            if entry.exists():  # damaged, else `squares` returns it
                _remove_entry(entry)
            part.rename(entry)
        finally:
            stream.close()
            shutil.rmtree(part, ignore_errors=True)
        return Squares(entry, find_rows(digests, digests))

    def _name(self, digests: np.ndarray) -> str:
        return f"{self.settings}-{hashlib.sha256(np.unique(digests, axis=0).tobytes()).hexdigest()[:16]}"


class Squares:
    """Images of an entry, like an array: `squares[i]` is (S, S, C) uint8, read-only, in the mapped file.

    Can be pickled: a process that is not forked opens the file again at the first read. Raises OSError or ValueError
    where the entry is missing or damaged.
    """

    def __init__(self, folder: Path, rows: np.ndarray):
        self.folder, self.rows = folder, rows  # (M,) int64; the row of each image in the entry, -1 if it has none
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
        return np.flatnonzero(self.rows < 0)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "rows": self.rows, "_all": None}


def pixel_folder() -> Path:
    return cache_folder() / "pixels"


def find_rows(have: np.ndarray, want: np.ndarray) -> np.ndarray:
    """(N, 32) and (M, 32) uint8 -> (M,) int64: the row of each wanted digest, or -1. Raises ValueError."""
    if have.ndim != 2 or have.shape[1] != 32 or have.dtype != np.uint8:
        raise ValueError(f"{have.dtype} {have.shape}")
    row_of = {digest.tobytes(): row for row, digest in enumerate(have)}
    return np.array([row_of.get(digest.tobytes(), -1) for digest in want], dtype=np.int64)


def _lock_file(folder: Path, name: str) -> Path:
    """One of at most 256 files, because none is ever removed; two entries may share a lock, so one writer waits."""
    return folder / f"{name.rpartition('-')[2][:2]}.lock"


def _make_room(folder: Path, size: int, limit: int) -> None:
    """Remove the least recently used entries until `size` more bytes fit. Raises OSError if they cannot fit."""
    sizes, used = dict[Path, int](), dict[Path, float]()  # 0 for what is gone
    for entry in filter(Path.is_dir, folder.iterdir()):
        sizes[entry], used[entry] = 0, 0.0
        with suppress(OSError):
            used[entry] = entry.stat().st_mtime
        for file in entry.rglob("*"):
            with suppress(OSError):
                sizes[entry] += file.stat().st_size
    over_limit = sum(sizes.values()) + size - limit
    over_disk = size + RESERVE - shutil.disk_usage(folder).free
    too_much = max(over_limit, over_disk)
    removed = []
    for entry in sorted(sizes, key=lambda entry: (used[entry], entry)):
        if too_much > 0 and not entry.suffix and time.time() - used[entry] > IN_USE:
            removed.append(entry)
            too_much -= sizes[entry]
    if too_much > 0:
        where = "the disk" if over_disk > over_limit else f"a cache of {limit / 1e9:g} GB"
        raise OSError(errno.ENOSPC, f"{where} has no room for {size / 1e9:.2g} GB more")
    for entry in removed:
        _remove_entry(entry)


def _remove_entry(entry: Path) -> None:
    """Rename, then delete, so that no run sees half an entry. Raises OSError if it is open (Windows)."""
    gone = Path(tempfile.mkdtemp(prefix=f"{entry.name}.", suffix=".part", dir=entry.parent))
    with suppress(FileNotFoundError):
        entry.rename(gone / "removed")
    shutil.rmtree(gone, ignore_errors=True)


def _remove_database(file: Path) -> None:
    for suffix in ("", "-journal"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)


# --- the scan

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
