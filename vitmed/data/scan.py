"""Every file looked at once: the hash of its content, and the record that the data check needs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from vitmed.core.ui import Ui
from vitmed.data.batches import batched, in_threads
from vitmed.data.scan_cache import BATCH, Index, digests_of, hash_files
from vitmed.imaging.look import Record, look


def scan(root: Path, paths: Sequence[str], index: Index, ui: Ui) -> list[Record]:
    """The record of every file, in order; those of a known content are not decoded again.

    Args:
        paths: relative to the root.
    """
    top = os.path.abspath(root)  # noqa: PTH100
    records: list[Record] = []
    decoded, started = 0, time.monotonic()
    with ui.bar("checking") as advance:
        for names in batched(paths, BATCH):
            files = [os.path.join(top, name) for name in names]  # noqa: PTH118  (a million of them)
            hashes = hash_files(files, index)
            digests = digests_of(hashes, files)
            known = index.records(digests)
            new = [i for i, record in enumerate(known) if record is None]
            found: dict[bytes, Record] = {}
            looks = in_threads(lambda i: look(Path(files[i]), hashes[i], index.frame).record, new)  # noqa: B023
            for count, (i, record) in enumerate(zip(new, looks, strict=True), 1):
                assert record is not None
                known[i] = found[digests[i].tobytes()] = record
                if count % 64 == 0:
                    advance(len(records) + count, len(paths))
            index.keep(found)
            decoded += len(new)
            records += [record for record in known if record is not None]
            advance(len(records), len(paths))
    if decoded:
        ui.say(f"checking: {decoded_text(decoded, len(paths), time.monotonic() - started)}")
    return records


def decoded_text(decoded: int, total: int, seconds: float) -> str:
    """How many files were decoded how fast."""
    rate = decoded / max(1e-9, seconds)
    return f"{decoded:,} files decoded, {rate:,.0f} images/s; {total - decoded:,} known from before"


def open_index(ui: Ui, frame: int | None = None, reduced: str = "") -> Index:
    """The index in the cache folder; a warning where there can be none."""
    index, problem = Index.open(frame, reduced)
    if problem is not None:
        ui.warn(problem)
    return index
