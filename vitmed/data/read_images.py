"""Every file of a run decoded once before the first batch: its record, its square, and where the squares are kept."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError
from vitmed.core.process import cores
from vitmed.core.ui import Ui
from vitmed.data.loading import Images, unusable
from vitmed.data.pixel_cache import PixelCache, Squares, pixel_folder
from vitmed.data.scan import Scan, decoded_text
from vitmed.data.scan_cache import Index
from vitmed.imaging.look import Record

MEMORY_MB = 2048  # that decoded images may take in memory
QUICK = 10.0  # s; what is decoded in less is decoded again in every run: no file is written for it
TIMED = 16  # files that are decoded first, to measure how long all of them take


def read_all(images: dict[str, Images], data: DataConfig, ui: Ui) -> dict[str, list[str]]:
    """Decode every file once, in this run or in an earlier one; keep the squares in memory, in a file, or not at all.

    Memory: train and val fit into `MEMORY_MB`, and all files are decoded within `QUICK` seconds. Else a file of the
    pixel cache. Where that cannot be written, memory takes the splits that fit.

    Returns:
        split -> sha256 of its files, in the order of the samples.

    Raises:
        DataError: files that cannot be used; names them.
    """
    return _Reading(images, data, ui, records=False).run()[0]


def scan_all(images: dict[str, Images], data: DataConfig, ui: Ui) -> tuple[dict[str, list[str]], list[Record]]:
    """As `read_all`, and what the data check needs of every file, in the order of the splits: from the same decode."""
    return _Reading(images, data, ui, records=True).run()


class _Reading:
    """The files of a run, their scan, and the places for their squares."""

    def __init__(self, images: dict[str, Images], data: DataConfig, ui: Ui, records: bool):
        self.images, self.data, self.ui = images, data, ui
        ends = accumulate(map(len, images.values()))
        self.rows = {name: range(end - len(images[name]), end) for name, end in zip(images, ends, strict=True)}
        self.how = how = next(iter(images.values())).preprocessing
        reduced = f"{how.image_size} {how.resize}"
        warned = ui if records else None  # without records, the cache of squares warns of the same folder
        index = Index.open(how.frame, reduced, warned) if data.cache else Index(None, how.frame)
        files = [part.root / sample.path for part in images.values() for sample in part.samples]
        with ui.bar("looking for known images", unit="files") as advance:
            self.scan = Scan(files, index, how, records, advance)
        self.usable = np.zeros(len(files), dtype=bool)  # a square of it was made in this run

    def run(self) -> tuple[dict[str, list[str]], list[Record]]:
        """Keep the squares where they belong; hashes by split, and the records."""
        if not self.data.cache or self._fits_memory() or not self._to_disk():
            self._to_memory()
        for _ in self._decode(self.scan.unknown):  # the squares are there, and the index has lost what goes with them
            pass
        hashes = {name: self.scan.hashes[rows.start : rows.stop] for name, rows in self.rows.items()}
        return hashes, [record for record in self.scan.records if record is not None]

    def _fits_memory(self) -> bool:
        """Whether memory will do: squares are missing, and to decode them in every run is quick, by a sample."""
        if sum(part.megabytes for name, part in self.images.items() if name != "test") > MEMORY_MB:
            return False
        found = PixelCache(self.how, 0).find(self.scan.digests)
        rows = list(range(len(self.usable))) if found is None else found.missing.tolist()
        seconds: list[float] = []
        for i in rows[:: max(1, len(rows) // TIMED)]:
            start = time.perf_counter()
            if self.scan.look_early(i).error is None:
                seconds.append(time.perf_counter() - start)
            if sum(seconds) > QUICK:  # files so slow that the sample alone is a burden
                return False
        return len(rows) > 0 and (not seconds or float(np.median(seconds)) * len(self.usable) / cores() < QUICK)

    def _decode(self, rows: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Row and (S, S, C) uint8 of these files, in order. Raises DataError at the end, for all that are unusable."""
        if not rows:
            return
        problems, started = list[str](), time.monotonic()
        with self.ui.bar("reading images") as advance:
            for done, (i, seen) in enumerate(self.scan.decode(rows), 1):
                if isinstance(seen.error, DataError):
                    problems.append(seen.error.line)
                elif seen.error is not None:
                    raise seen.error
                elif seen.square is not None:
                    self.usable[i] = True
                    if not problems:
                        yield i, seen.square
                if done % 16 == 0 or done == len(rows):
                    advance(done, len(rows))
        if problems:
            raise unusable(problems, len(self.usable))
        self.ui.say(f"reading images: {decoded_text(len(rows), time.monotonic() - started)}")

    def _to_disk(self) -> bool:
        """Give every split its part of an entry of the pixel cache, made now if need be; False where that cannot be."""
        cache, digests = PixelCache(self.how, int(self.data.cache_gb * 1e9)), self.scan.digests
        waiting = "another process decodes these images: waiting for it"
        try:
            found = cache.find(digests)
            if found is not None and not len(found.missing):
                self.ui.say(f"images decoded by an earlier run, from {pixel_folder()}")
            else:
                with cache.alone(digests, lambda: self.ui.say(waiting)):
                    found = cache.find(digests)
                    if self.scan.records:  # another process may have made them meanwhile
                        self.scan.records = self.scan.index.records(digests)
                    if found is None or len(found.missing):
                        found = cache.add(digests, self._squares(found))
                        kept = f"decoded images are kept in {pixel_folder()}, for this run and later ones (--no-cache)"
                        self.ui.say(kept)
        except OSError as error:
            self.ui.warn(
                f"{pixel_folder()}: decoded images cannot be kept there ({error.strerror or error}); this run does "
                "without (--cache-size GB, VITMED_CACHE=FOLDER, or --no-cache)"
            )
            return False
        for name, rows in self.rows.items():
            self.images[name].cache = found.part(rows.start, rows.stop)
        return True

    def _squares(self, found: Squares | None) -> Iterator[np.ndarray]:
        """Every square, in order: from an entry that has it, else decoded."""
        made = self._decode(range(len(self.usable)) if found is None else found.missing.tolist())
        for i in range(len(self.usable)):
            yield found[i] if found is not None and found.rows[i] >= 0 else next(made)[1]
        for _ in made:  # to its end, where it names what cannot be used
            pass

    def _to_memory(self) -> None:
        """Keep the splits that fit; decode the others all the same, unless that was done, to see that it can be."""
        room = MEMORY_MB if self.data.cache else 0.0
        arrays: dict[str, np.ndarray] = {}
        for name, part in self.images.items():
            if name != "test" and part.megabytes <= room:
                room -= int(part.megabytes)
                arrays[name] = np.empty((len(part), self.how.image_size, self.how.image_size, self.how.channels), "u1")
        wanted = [i for name, rows in self.rows.items() for i in rows if name in arrays or not self.usable[i]]
        for i, square in self._decode(wanted):
            name = next(name for name, rows in self.rows.items() if i in rows)
            if name in arrays:
                arrays[name][i - self.rows[name].start] = square
        for name, part in self.images.items():
            part.cache = arrays.get(name)
