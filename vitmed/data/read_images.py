"""Every file of a run decoded once before the first batch: its record, its square, and where the squares are kept."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from itertools import accumulate

import numpy as np

from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError
from vitmed.core.process import cores
from vitmed.core.ui import Ui
from vitmed.data.batches import in_threads
from vitmed.data.loading import Images, unusable
from vitmed.data.pixel_cache import PixelCache, Squares, pixel_folder
from vitmed.data.scan import decoded_text, open_index
from vitmed.data.scan_cache import BATCH, Index, digests_of, hash_files
from vitmed.imaging.look import Look, Record, look

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
    return _Pass(images, data, ui, records=False).run()[0]


def scan_all(images: dict[str, Images], data: DataConfig, ui: Ui) -> tuple[dict[str, list[str]], list[Record]]:
    """As `read_all`, and what the data check needs of every file, in the order of the splits: from the same decode."""
    return _Pass(images, data, ui, records=True).run()


class _Pass:
    """One pass over the files of a run."""

    def __init__(self, images: dict[str, Images], data: DataConfig, ui: Ui, records: bool):
        self.images, self.data, self.ui = images, data, ui
        self.files = [(part, part.root / sample.path) for part in images.values() for sample in part.samples]
        ends = list(accumulate(len(part) for part in images.values()))
        self.rows = {name: range(end - len(images[name]), end) for name, end in zip(images, ends, strict=True)}
        self.how = how = next(iter(images.values())).preprocessing
        self.shape = (how.image_size, how.image_size, how.channels)
        if not data.cache:
            self.index = Index(None, how.frame)
        else:
            reduced = f"{how.image_size} {how.resize}"
            self.index = open_index(ui, how.frame, reduced) if records else Index.open(how.frame, reduced)[0]
        paths = [os.path.abspath(path) for _, path in self.files]  # noqa: PTH100  (a million of them)
        with ui.bar("looking for known images", unit="files") as advance:
            self.hashes = hash_files(paths, self.index, advance)
        self.digests = digests_of(self.hashes, paths)
        self.records = self.index.records(self.digests) if records else None
        self.early: dict[int, Look] = {}  # decoded to measure the speed, and not yet used
        self.usable = np.zeros(len(self.files), dtype=bool)  # a square of it was made, now or in an earlier run

    def run(self) -> tuple[dict[str, list[str]], list[Record]]:
        """Keep the squares where they belong; hashes by split, and the records."""
        if not self.data.cache or self._in_memory() or not self._to_disk():
            self._to_memory()
        rest = [i for i, record in enumerate(self.records or ()) if record is None]
        for _ in self._decode(rest, "checking"):  # the squares are there, and the index has lost what goes with them
            pass
        hashes = {name: self.hashes[rows.start : rows.stop] for name, rows in self.rows.items()}
        return hashes, [record for record in self.records or () if record is not None]

    def _in_memory(self) -> bool:
        """Whether memory will do: no earlier run left all squares, and decoding them in every run is quick, by a sample."""
        if sum(part.megabytes for name, part in self.images.items() if name != "test") > MEMORY_MB:
            return False
        found = PixelCache(self.how, 0).find(self.digests)
        rows = list(range(len(self.files))) if found is None else found.missing.tolist()
        if not rows:
            return False
        seconds: list[float] = []
        for i in rows[:: max(1, len(rows) // TIMED)]:
            start = time.perf_counter()
            self.early[i] = self._look(i)
            if self.early[i].error is None:
                seconds.append(time.perf_counter() - start)
            if sum(seconds) > QUICK:  # files so slow that the sample alone is a burden
                return False
        return not seconds or float(np.median(seconds)) * len(self.files) / cores() < QUICK

    def _look(self, i: int) -> Look:
        part, path = self.files[i]
        record = self.records is not None and self.records[i] is None
        return look(path, self.hashes[i], self.how.frame, part.preprocessing, record)

    def _decode(self, rows: Iterable[int], title: str = "reading images") -> Iterator[tuple[int, np.ndarray]]:
        """Row and (S, S, C) uint8 of these files, decoded in threads, in order; keeps their records.

        Raises:
            DataError: at the end, for all files that cannot be used.
        """
        rows = list(rows)
        if not rows:
            return
        problems, found, started = dict[int, str](), dict[bytes, Record](), time.monotonic()

        def seen(i: int) -> Look:
            return self.early.pop(i) if i in self.early else self._look(i)

        try:
            with self.ui.bar(title) as advance:
                for done, (i, result) in enumerate(zip(rows, in_threads(seen, rows), strict=True), 1):
                    if result.error is not None and not isinstance(result.error, DataError):
                        raise result.error
                    if self.records is not None and result.record is not None:
                        self.records[i] = found[self.digests[i].tobytes()] = result.record
                    if result.square is None:
                        assert result.error is not None
                        problems[i] = result.error.line
                    else:
                        self.usable[i] = True
                        if not problems:
                            yield i, result.square
                    if len(found) >= BATCH:
                        self.index.keep(found)
                        found.clear()
                    if done % 16 == 0 or done == len(rows):
                        advance(done, len(rows))
        finally:
            self.index.keep(found)
        if problems:
            raise unusable(list(problems.values()), len(self.files))
        self.ui.say(f"{title}: {decoded_text(len(rows), len(self.files), time.monotonic() - started)}")

    def _to_disk(self) -> bool:
        """Give every split its part of an entry of the pixel cache, made now if need be; False where that cannot be."""
        cache = PixelCache(self.how, int(self.data.cache_gb * 1e9))
        try:
            found = cache.find(self.digests)
            if found is not None and not len(found.missing):
                self.ui.say(f"images decoded by an earlier run, from {pixel_folder()}")
            else:
                with cache.alone(self.digests, self._waiting):
                    found = cache.find(self.digests)
                    if self.records is not None:  # another process may have made them meanwhile
                        self.records = self.index.records(self.digests)
                    if found is None or len(found.missing):
                        found = cache.add(self.digests, self._squares(found))
                        self.ui.say(
                            f"decoded images are kept in {pixel_folder()}, for this run and later ones (--no-cache)"
                        )
        except OSError as error:
            self.ui.warn(
                f"{pixel_folder()}: decoded images cannot be kept there ({error.strerror or error}); this run does "
                "without (--cache-size GB, VITMED_CACHE=FOLDER, or --no-cache)"
            )
            return False
        for name, rows in self.rows.items():
            self.images[name].cache = found.part(rows.start, rows.stop)
        return True

    def _waiting(self) -> None:
        self.ui.say("another process decodes these images: waiting for it")

    def _squares(self, found: Squares | None) -> Iterator[np.ndarray]:
        """Every square, in order: from an entry that has it, else decoded."""
        missing = range(len(self.files)) if found is None else found.missing.tolist()
        made = self._decode(missing)
        for i in range(len(self.files)):
            if found is not None and found.rows[i] >= 0:
                yield found[i]
            else:
                yield next(made)[1]
        for _ in made:  # to its end, where it names what cannot be used
            pass

    def _to_memory(self) -> None:
        """Keep the splits that fit; decode the others all the same, unless that was done, to see that it can be."""
        room = MEMORY_MB if self.data.cache else 0.0
        arrays: dict[str, np.ndarray] = {}
        for name, part in self.images.items():
            if name != "test" and part.megabytes <= room:
                room -= int(part.megabytes)
                arrays[name] = np.empty((len(part), *self.shape), dtype=np.uint8)
        wanted = [i for name, rows in self.rows.items() for i in rows if name in arrays or not self.usable[i]]
        for i, square in self._decode(wanted):
            name = next(name for name, rows in self.rows.items() if i in rows)
            if name in arrays:
                arrays[name][i - self.rows[name].start] = square
        for name, part in self.images.items():
            part.cache = arrays.get(name)
