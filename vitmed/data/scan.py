"""One scan of files: hash the content of each, decode each once, keep the results."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitmed.core.messages import bar, say
from vitmed.core.text import counted
from vitmed.data.scan import BATCH, digests_of, hash_files
from vitmed.data.scan_cache import ScanCache
from vitmed.data.thread_batches import Progress, batched, in_threads
from vitmed.imaging.file_record import Examined, FileRecord, examine

if TYPE_CHECKING:  # it imports torch, which `vitmed check` does not need
    from vitmed.imaging.preprocessing import Preprocessing


class Scan:
    """Files, the hashes of their content, and their records.

    Args:
        how: makes a square of each decoded file; None makes records alone.
        records: whether records are needed.

    Attributes:
        hashes: sha256 of each file; digests: (N, 32) uint8, from `digests_of`.
        records: of each file, None where it is not known yet; an empty list where none are needed.
    """

    def __init__(
        self,
        files: Sequence[Path],
        cache: ScanCache,
        how: Preprocessing | None = None,
        records: bool = True,
        progress: Progress | None = None,
    ):
        self.files, self.cache, self.how = files, cache, how
        paths = [os.path.abspath(path) for path in files]  # noqa: PTH100  (a million of them)
        self.hashes = hash_files(paths, cache, progress)
        self.digests = digests_of(self.hashes, paths)
        self.records = cache.records(self.digests) if records else []
        self.early: dict[int, Examined] = {}

    @property
    def unknown(self) -> list[int]:
        """The files without a record."""
        return [i for i, record in enumerate(self.records) if record is None]

    def decode_early(self, i: int) -> Examined:
        """Decode a file now; `decode` uses the result."""
        self.early[i] = found = self._examine(i)
        return found

    def decode(self, rows: Sequence[int]) -> Iterator[tuple[int, Examined]]:
        """Decode these files in threads, in order, and keep their records."""
        found: dict[bytes, FileRecord] = {}
        try:
            for i, examined in zip(rows, in_threads(self._examine, rows), strict=True):
                if self.records and examined.record is not None:
                    self.records[i] = found[self.digests[i].tobytes()] = examined.record
                yield i, examined
                if len(found) >= BATCH:
                    self.cache.keep(found)
                    found.clear()
        finally:
            self.cache.keep(found)

    def _examine(self, i: int) -> Examined:
        if i in self.early:
            return self.early.pop(i)
        needed = bool(self.records) and self.records[i] is None
        return examine(self.files[i], self.hashes[i], self.cache.frame, self.how, needed, self.cache.window)


def scan(root: Path, paths: Sequence[str], cache: ScanCache) -> list[FileRecord]:
    """The record of every file, in order; content with a known record is not decoded again.

    Args:
        paths: relative to the root.
    """
    records: list[FileRecord] = []
    decoded, started = 0, time.monotonic()
    with bar("checking") as advance:
        for names in batched(paths, BATCH):  # a file that was read for its hash is decoded while the system caches it
            part = Scan([root / name for name in names], cache)
            rows = part.unknown
            for done, _ in enumerate(part.decode(rows), 1):
                if done % 64 == 0:
                    advance(len(records) + done, len(paths))
            decoded += len(rows)
            records += [record for record in part.records if record is not None]
            advance(len(records), len(paths))
    if decoded:
        known = f"{len(paths) - decoded:,} known from earlier scans"
        say(f"checking: {decoded_text(decoded, time.monotonic() - started)}; {known}")
    return records


def decoded_text(decoded: int, seconds: float) -> str:
    """How many files were decoded, and how fast."""
    return f"{counted(decoded, 'file')} decoded, {decoded / max(1e-9, seconds):,.0f} images/s"
