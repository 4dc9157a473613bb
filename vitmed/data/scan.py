"""One scan of files: hash the content of each, decode each once, keep what was found."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitmed.core.ui import Ui
from vitmed.data.batches import Progress, batched, in_threads
from vitmed.data.scan_cache import BATCH, Index, digests_of, hash_files
from vitmed.imaging.look import Look, Record, look

if TYPE_CHECKING:  # it imports torch, which `vitmed check` does without
    from vitmed.imaging.preprocessing import Preprocessing


class Scan:
    """Files, the hashes of their content, and their records.

    Args:
        how: makes a square of each file that is decoded; None makes records alone.
        records: whether records are wanted.

    Attributes:
        hashes: sha256 of each file; digests: (N, 32) uint8, as `digests_of` gives.
        records: of each file, None where it is not known yet; an empty list where none are wanted.
    """

    def __init__(
        self,
        files: Sequence[Path],
        index: Index,
        how: Preprocessing | None = None,
        records: bool = True,
        progress: Progress | None = None,
    ):
        self.files, self.index, self.how = files, index, how
        paths = [os.path.abspath(path) for path in files]  # noqa: PTH100  (a million of them)
        self.hashes = hash_files(paths, index, progress)
        self.digests = digests_of(self.hashes, paths)
        self.records = index.records(self.digests) if records else []
        self.early: dict[int, Look] = {}

    @property
    def unknown(self) -> list[int]:
        """The files without a record."""
        return [i for i, record in enumerate(self.records) if record is None]

    def look_early(self, i: int) -> Look:
        """Decode a file before its turn."""
        self.early[i] = found = self._look(i)
        return found

    def decode(self, rows: Sequence[int]) -> Iterator[tuple[int, Look]]:
        """Decode these files in threads; gives them in order and keeps their records."""
        found: dict[bytes, Record] = {}
        try:
            for i, seen in zip(rows, in_threads(self._look, rows), strict=True):
                if self.records and seen.record is not None:
                    self.records[i] = found[self.digests[i].tobytes()] = seen.record
                yield i, seen
                if len(found) >= BATCH:
                    self.index.keep(found)
                    found.clear()
        finally:
            self.index.keep(found)

    def _look(self, i: int) -> Look:
        if i in self.early:
            return self.early.pop(i)
        wanted = bool(self.records) and self.records[i] is None
        return look(self.files[i], self.hashes[i], self.index.frame, self.how, wanted)


def scan(root: Path, paths: Sequence[str], index: Index, ui: Ui) -> list[Record]:
    """The record of every file, in order; those of a known content are not decoded again.

    Args:
        paths: relative to the root.
    """
    records: list[Record] = []
    decoded, started = 0, time.monotonic()
    with ui.bar("checking") as advance:
        for names in batched(paths, BATCH):  # what was read for its hash is soon decoded, out of the system's cache
            part = Scan([root / name for name in names], index)
            rows = part.unknown
            for done, _ in enumerate(part.decode(rows), 1):
                if done % 64 == 0:
                    advance(len(records) + done, len(paths))
            decoded += len(rows)
            records += [record for record in part.records if record is not None]
            advance(len(records), len(paths))
    if decoded:
        known = f"{len(paths) - decoded:,} known from before"
        ui.say(f"checking: {decoded_text(decoded, time.monotonic() - started)}; {known}")
    return records


def decoded_text(decoded: int, seconds: float) -> str:
    """How many files were decoded, and how fast."""
    return f"{decoded:,} files decoded, {decoded / max(1e-9, seconds):,.0f} images/s"
