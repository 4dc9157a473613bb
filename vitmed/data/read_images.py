"""Every file read once before the first batch: hashed, decoded where no earlier run has, and kept where that pays."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError
from vitmed.core.process import cores
from vitmed.core.ui import Ui
from vitmed.data.batches import read_batches
from vitmed.data.loading import Images, hash_files, unusable
from vitmed.data.pixel_cache import PixelCache, Squares, digests_of, pixel_folder

MEMORY_MB = 2048  # that decoded images may take in memory
QUICK = 10.0  # s; what is decoded in less is decoded again in every run: no file is written for it
TIMED = 16  # files that are decoded to tell


def read_all(images: dict[str, Images], data: DataConfig, ui: Ui) -> dict[str, list[str]]:
    """Decode every file once, in this run or in one before; keep the squares in memory, in a file, or not at all.

    Memory: train and val fit into `MEMORY_MB`, and all files are decoded within `QUICK` seconds. Else a file of the
    pixel cache. Where that cannot be written, memory takes the splits that fit.

    Returns:
        split -> sha256 of its files, in the order of the samples.

    Raises:
        DataError: files that cannot be used; names them.
    """
    if data.cache and not _quick(images) and (hashes := _from_disk(images, data, ui)) is not None:
        return hashes
    room, bad, hashes = MEMORY_MB if data.cache else 0, list[str](), dict[str, list[str]]()
    for name, part in images.items():
        keep = name != "test" and part.megabytes <= room
        room -= int(part.megabytes) if keep else 0
        with ui.bar(f"reading {name}") as advance:
            hashes[name], problems = part.check(keep, advance)
        bad += problems
    if bad:
        raise unusable(bad, sum(len(part) for part in images.values()))
    return hashes


def _quick(images: dict[str, Images]) -> bool:
    """Whether decoding in every run is no burden, by a sample of the files."""
    if sum(part.megabytes for name, part in images.items() if name != "test") > MEMORY_MB:
        return False
    files = [(part, path) for name, part in images.items() if name != "test" for path in part.paths]
    seconds = []
    for part, path in files[:: max(1, len(files) // TIMED)]:
        start = time.perf_counter()
        with suppress(DataError):  # told when all are read
            part.preprocessing.read(path)
            seconds.append(time.perf_counter() - start)
        if sum(seconds) > QUICK:  # files so slow that the sample alone is a burden
            return False
    return not seconds or float(np.median(seconds)) * sum(map(len, images.values())) / cores() < QUICK


def _from_disk(images: dict[str, Images], data: DataConfig, ui: Ui) -> dict[str, list[str]] | None:
    """Give every split its part of an entry of the pixel cache, made now if need be; None where that cannot be."""
    paths = [path for part in images.values() for path in part.paths]
    with ui.bar("looking for decoded images", unit="files") as advance:
        known = hash_files(paths, advance)
    digests = digests_of(known, paths)
    cache = PixelCache(next(iter(images.values())).preprocessing, int(data.cache_gb * 1e9))
    try:
        found = cache.find(digests)
        if found is not None and not len(found.missing):
            ui.say(f"images decoded by an earlier run, from {pixel_folder()}")
        else:
            with cache.alone(digests, lambda: ui.say("another process decodes these images: waiting for it")):
                found = cache.find(digests)
                if found is None or len(found.missing):
                    found = cache.add(digests, _squares(images, found, ui))
                    ui.say(f"decoded images are kept in {pixel_folder()}, for this run and later ones (--no-cache)")
    except OSError as error:
        ui.warn(
            f"{pixel_folder()}: decoded images cannot be kept there ({error.strerror or error}); this run does without "
            "(--cache-size GB, VITMED_CACHE=FOLDER, or --no-cache)"
        )
        return None
    hashes, start = {}, 0
    for name, part in images.items():
        stop = start + len(part)
        part.cache = found.part(start, stop)
        hashes[name] = known[start:stop]
        start = stop
    return hashes


def _squares(images: dict[str, Images], found: Squares | None, ui: Ui) -> Iterator[np.ndarray]:
    """(S, S, C) uint8 of every image, in order: those that an entry has, the others decoded in threads.

    Raises:
        DataError: at the end, for all files that cannot be used.
    """
    files = [(part, path) for part in images.values() for path in part.paths]

    def read(index: int) -> np.ndarray:
        if found is not None and found.rows[index] >= 0:
            return found[index]
        part, path = files[index]
        return part.preprocessing.read(path)

    problems, done = dict[int, str](), 0
    with ui.bar("reading images") as advance:
        for good, squares, bad in read_batches(read, len(files)):
            problems |= bad
            done += len(good) + len(bad)
            advance(done, len(files))
            if not problems:
                yield from squares
    if problems:
        raise unusable(list(problems.values()), len(files))
