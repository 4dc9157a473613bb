"""Decode every file of a run once before the first batch: its record, its square, and where the squares are kept."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.messages import bar, say, warn
from vitmed.core.process import cores
from vitmed.core.sections import DataConfig
from vitmed.core.text import counted
from vitmed.data.image_cache import ImageCache, Squares, pixel_folder
from vitmed.data.loading import Images, UnusableFiles, images_of
from vitmed.data.samples import Splits
from vitmed.data.scan import Scan, decoded_text
from vitmed.imaging.file_record import FileRecord
from vitmed.imaging.preprocessing import Preprocessing

MEMORY_MB = 2048  # for decoded images in memory
QUICK = 10.0  # s; images that all decode within it are decoded in every run, and no file is written for them
TIMED = 16  # files that are decoded first, to estimate the time for all


def read_all(images: dict[str, Images], data: DataConfig) -> dict[str, list[str]]:
    """Decode every file once, in this run or in an earlier one; keep the squares in memory, in a file, or not at all.

    In memory if train and val fit into `MEMORY_MB` and all files decode within `QUICK` seconds; else in the cache. If
    that cannot be written, the splits that fit are kept in memory. Returns split -> sha256 of its files, in the order
    of the samples.

    Raises:
        DataError: names the files that cannot be used.
    """
    return _Reader(images, data, records=False).run()[0]


class ReadSplits(NamedTuple):
    """The splits of a run once every file was read, without the files that are skipped.

    Attributes:
        images, hashes: by split, in the order of the samples.
        records: of every image, in the order of the splits; empty where none were asked for.
        skipped: how many files are left out because they cannot be read.
    """

    splits: Splits
    images: dict[str, Images]
    hashes: dict[str, list[str]]
    records: list[FileRecord]
    skipped: int = 0


def read_splits(splits: Splits, preprocessing: Preprocessing, data: DataConfig, records: bool = True) -> ReadSplits:
    """As `read_all` for the images of every split; `data.on_bad_file` decides what a file does that cannot be used.

    Raises:
        DataError: names the files that cannot be used, unless they are to be skipped and few enough.
    """
    images = images_of(splits, preprocessing)
    try:
        hashes, found = _Reader(images, data, records).run()
    except UnusableFiles as error:
        if data.on_bad_file == "stop":
            raise
        rest = _without(splits, error)  # their squares are not kept yet where a file for them was begun
        read = read_splits(rest, preprocessing, data, records)
        return read._replace(skipped=read.skipped + len(error.bad))
    return ReadSplits(splits, images, hashes, found)


def _without(splits: Splits, error: UnusableFiles) -> Splits:
    """The splits without unusable files. Raises DataError if they are too many."""
    places = [(name, sample) for name, part in splits.samples.items() for sample in part]
    lost = [places[row] for row in error.bad]
    for label in {None if splits.bins else sample.label for _, sample in lost}:
        of_class = [name for name, sample in places if label in (None, sample.label)]
        of_lost = Counter(name for name, sample in lost if label in (None, sample.label))
        count = of_lost.total()
        empty = next((name for name in of_lost if of_lost[name] == of_class.count(name)), None)
        if 2 * count > len(of_class) or empty is not None:
            of = "" if label is None else f" of class {splits.strata[label]!r}"
            what = f"{count:,} of {counted(len(of_class), 'image')}{of} cannot be used"
            where = f", among them all of {empty}" if empty is not None else ""
            raise DataError(
                f"{splits.root}: {what}{where}: too many to skip\n{error.problem}", "repair or remove these files"
            )
    skipped = {path for _, (path, *_) in lost}
    parts = ", ".join(f"{name} {count:,}" for name, count in Counter(name for name, _ in lost).items())
    warn(
        f"{len(lost):,} of {counted(error.total, 'image')} cannot be used and are left out ({parts}; --on-bad-file "
        f"skip), the first is {next(iter(error.bad.values())).line}"
    )
    kept = {name: tuple(s for s in part if s.path not in skipped) for name, part in splits.samples.items()}
    return replace(splits, samples=kept)


class _Reader:
    """The files of a run, their scan, and the places for their squares."""

    def __init__(self, images: dict[str, Images], data: DataConfig, records: bool):
        self.images, self.data = images, data
        ends = accumulate(map(len, images.values()))
        self.rows = {name: range(end - len(images[name]), end) for name, end in zip(images, ends, strict=True)}
        self.how = how = next(iter(images.values())).preprocessing
        limit = int(data.cache_gb * 1e9)
        cache = ImageCache.open(how=how, keep=data.cache, limit=limit, warns=records)  # else `_keep_on_disk` warns
        files = [part.root / sample.path for part in images.values() for sample in part.samples]
        with bar("looking for known images", unit="files") as advance:
            self.scan = Scan(files, cache, how, records, advance)
        self.usable = np.zeros(len(files), dtype=bool)  # its square was made in this run

    def run(self) -> tuple[dict[str, list[str]], list[FileRecord]]:
        """Keep the squares where they belong; hashes by split, and the records."""
        if not self.data.cache or self._fits_memory() or not self._keep_on_disk():
            self._keep_in_memory()
        for _ in self._decode(self.scan.unknown):  # squares from the pixel cache, without records in the scan cache
            pass
        hashes = {name: self.scan.hashes[rows.start : rows.stop] for name, rows in self.rows.items()}
        return hashes, [record for record in self.scan.records if record is not None]

    def _fits_memory(self) -> bool:
        """Whether memory is enough: squares are missing and, by a sample, decoding them in every run is quick."""
        if sum(part.megabytes for name, part in self.images.items() if name != "test") > MEMORY_MB:
            return False
        found = self.scan.cache.squares(self.scan.digests)
        rows = list(range(len(self.usable))) if found is None else found.missing.tolist()
        seconds: list[float] = []
        for i in rows[:: max(1, len(rows) // TIMED)]:
            start = time.perf_counter()
            if self.scan.decode_early(i).error is None:
                seconds.append(time.perf_counter() - start)
            if sum(seconds) > QUICK:  # the sample alone is too slow
                return False
        return len(rows) > 0 and (not seconds or float(np.median(seconds)) * len(self.usable) / cores() < QUICK)

    def _decode(self, rows: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Row and (S, S, C) uint8 of these files, in order. At the end, raises DataError for all unusable files."""
        if not rows:
            return
        problems, started = dict[int, DataError](), time.monotonic()
        with bar("reading images") as advance:
            for done, (i, examined) in enumerate(self.scan.decode(rows), 1):
                if isinstance(examined.error, DataError):
                    problems[i] = examined.error
                elif examined.error is not None:
                    raise examined.error
                elif examined.square is not None:
                    self.usable[i] = True
                    if not problems:
                        yield i, examined.square
                if done % 16 == 0 or done == len(rows):
                    advance(done, len(rows))
        if problems:
            raise UnusableFiles(problems, len(self.usable))
        say(f"reading images: {decoded_text(len(rows), time.monotonic() - started)}")

    def _keep_on_disk(self) -> bool:
        """Give every split its part of an entry of the pixel cache, made now if needed; False if it cannot be made."""
        cache, digests = self.scan.cache, self.scan.digests
        try:
            found = cache.squares(digests)
            if found is not None and not len(found.missing):
                say(f"images decoded by an earlier run, from {pixel_folder()}")
            else:
                with cache.alone(digests, lambda: say("another process decodes these images: waiting for it")):
                    found = cache.squares(digests)  # the other process may have made the squares and the records
                    if self.scan.records:
                        self.scan.records = cache.records(digests)
                    if found is None or len(found.missing):
                        found = cache.add(digests, self._squares(found))
                        say(f"decoded images are kept in {pixel_folder()}, for this run and later ones (--no-cache)")
        except OSError as error:
            warn(
                f"{pixel_folder()}: decoded images cannot be kept there ({error.strerror or error}); this run does "
                "without (--cache-size GB, VITMED_CACHE=FOLDER, or --no-cache)"
            )
            return False
        for name, rows in self.rows.items():
            self.images[name].cache = Squares(found.folder, found.rows[rows.start : rows.stop])
        return True

    def _squares(self, found: Squares | None) -> Iterator[np.ndarray]:
        """Every square, in order: from an entry that contains it, else decoded."""
        made = self._decode(range(len(self.usable)) if found is None else found.missing.tolist())
        for i in range(len(self.usable)):
            yield found[i] if found is not None and found.rows[i] >= 0 else next(made)[1]
        for _ in made:  # to its end, where it raises for unusable files
            pass

    def _keep_in_memory(self) -> None:
        """Keep the splits that fit; decode the other files too, unless done before, to check that they are usable."""
        room = MEMORY_MB if self.data.cache else 0.0
        arrays: dict[str, np.ndarray] = {}
        for name, part in self.images.items():
            if name != "test" and part.megabytes <= room:
                room -= int(part.megabytes)
                arrays[name] = np.empty((len(part), self.how.image_size, self.how.image_size, self.how.channels), "u1")
        needed = [i for name, rows in self.rows.items() for i in rows if name in arrays or not self.usable[i]]
        for i, square in self._decode(needed):
            name = next(name for name, rows in self.rows.items() if i in rows)
            if name in arrays:
                arrays[name][i - self.rows[name].start] = square
        for name, part in self.images.items():
            part.cache = arrays.get(name)
