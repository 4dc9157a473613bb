"""One scan: each file decoded once for everything, nothing kept of a failure, and few tasks at a time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import BARE, TINY_SETS, draw_classes, draw_nothing, draw_splits
from PIL import Image

import vitmed
from vitmed.core.run_folder import cache_folder
from vitmed.data import image_cache
from vitmed.data.image_cache import ImageCache, first_copies, hash_files, scan
from vitmed.data.thread_batches import in_threads
from vitmed.imaging import choose_window, rasters
from vitmed.imaging.decode import decoding_version


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[Path]:
    """How often each file is decoded."""
    counts: Counter[Path] = Counter()
    real, lock = rasters.read, threading.Lock()

    def read(path: Path, frame: int | None) -> Any:
        with lock:
            counts[path.absolute()] += 1
        return real(path, frame)

    monkeypatch.setattr(rasters, "read", read)
    return counts


class Stop(Exception):
    """Ends a run where its evaluation would begin."""


@pytest.fixture
def no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitmed.studies import one_run

    draw_nothing(monkeypatch)

    def stop(*_: object, **__: object) -> None:
        raise Stop

    monkeypatch.setattr(one_run, "fit_decision_policy", stop)


def first_run(data: Path, runs: Path) -> None:
    with pytest.raises(Stop):
        vitmed.train(data, output=runs, sets=TINY_SETS, **BARE | {"epochs": 1})


def files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))


@pytest.mark.usefixtures("no_evaluation")
def test_a_first_run_decodes_every_file_once_for_all_purposes(tmp_path: Path, decoded: Counter[Path]) -> None:
    """The speed sample, the squares and the data check share one decode; `check` afterwards needs none."""
    data = draw_splits(tmp_path / "data", 6, 3, 3)
    first_run(data, tmp_path / "runs")
    assert decoded == {path.absolute(): 1 for path in data.rglob("*.png")}
    decoded.clear()
    index = ImageCache()
    records = scan(data, files(data), index)
    assert not decoded and all(record.kind == "" for record in records)


@pytest.mark.usefixtures("no_evaluation")
def test_deep_images_are_decoded_once_more_at_most_for_the_window(
    tmp_path: Path, decoded: Counter[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_window, "IMAGES", 4)
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 3), ("test", 3)):
        for name, level in (("dark", 1000), ("light", 3000)):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for i in range(count):
                values = (level + rng.integers(0, 500, (20, 20))).astype(np.uint16)
                Image.fromarray(values).save(tmp_path / "data" / split / name / f"{i}.png")
    first_run(tmp_path / "data", tmp_path / "runs")
    assert len(decoded) == 24 and sum(decoded.values()) == 24 + 4


def test_a_moved_folder_is_hashed_and_not_decoded_again(tmp_path: Path, decoded: Counter[Path]) -> None:
    data = draw_classes(tmp_path / "data", 6)
    index = ImageCache()
    before = scan(data, files(data), index)
    decoded.clear()
    shutil.copytree(data, tmp_path / "moved")
    after = scan(tmp_path / "moved", files(data), index)
    assert not decoded
    assert [record.sha256 for record in after] == [record.sha256 for record in before]
    assert all(np.array_equal(a.thumbnail, b.thumbnail) for a, b in zip(before, after, strict=True))


def test_a_record_of_another_decoder_does_not_count(
    tmp_path: Path, decoded: Counter[Path], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(decoding_version.cache_clear)  # a process reads the versions once
    data = draw_classes(tmp_path / "data", 3)
    scan(data, files(data), ImageCache())
    installed = metadata.version
    for package in ("pillow", "opencv-python-headless", "pydicom", "python-gdcm", "pylibjpeg", "pyjpegls", "numpy"):
        newer = {package: "99.0"}
        monkeypatch.setattr(metadata, "version", lambda name, newer=newer: newer.get(name) or installed(name))
        decoded.clear()
        decoding_version.cache_clear()
        scan(data, files(data), ImageCache())
        assert len(decoded) == 6, package


def test_the_check_does_not_depend_on_an_earlier_training(tmp_path: Path, decoded: Counter[Path]) -> None:
    """Training decodes a large JPEG at a part of its size; the check of the folder looks at all of it."""
    data = draw_classes(tmp_path / "data", 3)
    for file in list(data.rglob("*.png")):
        Image.open(file).resize((640, 640)).save(file.with_suffix(".jpg"))
        file.unlink()
    names = sorted(path.relative_to(data).as_posix() for path in data.rglob("*.jpg"))
    from vitmed.core.config import DataConfig
    from vitmed.data.loading import read_splits
    from vitmed.data.samples import Sample, Splits
    from vitmed.imaging.preprocessing import Preprocessing

    how = Preprocessing(16, 3, "pad", "imagenet")
    splits = Splits(data, ("amber",), {"train": tuple(Sample(name, 0, None) for name in names)})
    records = read_splits(splits, how, DataConfig()).records
    assert sum(decoded.values()) == 6
    again = read_splits(splits, how, DataConfig()).records
    assert all(np.array_equal(a.thumbnail, b.thumbnail) for a, b in zip(records, again, strict=True))
    alone = scan(data, names, ImageCache(keep=False))
    assert all(np.array_equal(a.thumbnail, b.thumbnail) for a, b in zip(alone, records, strict=True))


def test_files_are_hashed_in_threads_and_a_missing_one_has_no_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = draw_classes(tmp_path / "data", 3)
    real, threads = image_cache.check_regular, set()

    def check_regular(path: str) -> None:
        threads.add(threading.current_thread())
        real(path)

    monkeypatch.setattr(image_cache, "check_regular", check_regular)
    found = hash_files([*(str(data / name) for name in files(data)), str(data / "gone.png")])
    assert [len(digest) for digest in found] == [64] * 6 + [0]
    assert threads and threading.main_thread() not in threads


def test_first_copies_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with the same bytes; empty ones, a missing one and one of another content are no copies.

    Only files that share their size with another one are opened.
    """
    opened: list[str] = []
    real = image_cache._sha256
    monkeypatch.setattr(image_cache, "_sha256", lambda path: opened.append(Path(path).name) or real(path))
    contents = {"a": b"one", "b": b"two", "c": b"one", "d": b"", "e": b"", "f": b"longer", "g": b"two", "h": b"one"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    assert first_copies(tmp_path, [*contents, "gone", "gone2"]).tolist() == [0, 1, 0, 3, 4, 5, 1, 0, 8, 9]
    assert sorted(opened) == ["a", "b", "c", "g", "h"]
    assert first_copies(tmp_path, []).tolist() == []


def test_an_unchanged_file_is_not_read_again_and_a_fresh_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changed within the last 2 seconds may change again with the same time stamp."""
    old, fresh = tmp_path / "old", tmp_path / "fresh"
    for file, age in ((old, 3.0), (fresh, 1.0)):
        file.write_bytes(b"content")
        then = time.time() - age
        os.utime(file, (then, then))
    read: list[str] = []
    real = image_cache._sha256
    monkeypatch.setattr(image_cache, "_sha256", lambda path: read.append(Path(path).name) or real(path))
    names, told = [str(old), str(fresh), str(tmp_path / "gone")], []
    cache = ImageCache()
    first = hash_files(names, cache, lambda *done: told.append(done))
    digest = hashlib.sha256(b"content").hexdigest()
    assert first == [digest, digest, ""] and told == [(3, 3)] and sorted(read) == ["fresh", "gone", "old"]
    read.clear()
    assert hash_files(names, cache) == first and sorted(read) == ["fresh", "gone"]
    read.clear()
    assert hash_files(names) == first and sorted(read) == ["fresh", "gone", "old"]  # without a cache
    assert cache.file is not None and cache.file.stat().st_mode & 0o777 == 0o600
    assert cache.file.parent.stat().st_mode & 0o777 == 0o700


def cache_in(file: Path) -> ImageCache:
    cache = ImageCache(keep=False)
    cache.file = file
    return cache


def test_many_rows_are_found_again(tmp_path: Path) -> None:
    """More than one query holds."""
    cache = cache_in(tmp_path / "db.sqlite")
    files = [f"/x/{i}" for i in range(1203)]
    cache.keep_hashes((file, f"id{i}", f"hash{i}") for i, file in enumerate(files))
    assert cache.hashes(files, [f"id{i}" for i in range(1203)]) == {file: f"hash{i}" for i, file in enumerate(files)}
    changed = [f"id{i}" if i % 2 else "other" for i in range(1203)]
    assert len(cache.hashes(files, changed)) == 601 and cache.hashes(files[:2], ["", ""]) == {}
    assert ImageCache(keep=False).hashes(files, changed) == {}


def test_a_malformed_database_is_begun_again_and_one_of_other_columns_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "db.sqlite"
    file.write_bytes(b"not a database" * 100)
    cache = cache_in(file)
    assert cache.hashes(["/x"], ["id"]) == {} and not file.exists()
    cache.keep_hashes([("/x", "id", "hash")])
    assert cache.hashes(["/x"], ["id"]) == {"/x": "hash"}
    other = tmp_path / "other.sqlite"
    with contextlib.closing(sqlite3.connect(other)) as database, database:
        database.execute("CREATE TABLE files (name TEXT)")
    assert cache_in(other).hashes(["/x"], ["id"]) == {} and other.exists()


def test_what_another_version_or_too_large_a_database_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache_folder() / "index"
    folder.mkdir(parents=True)
    (folder / "images-1.sqlite").write_bytes(b"old")
    (folder / "other.txt").write_bytes(b"mine")
    cache = ImageCache()
    cache.keep_hashes([("/x", "id", "hash")])
    assert sorted(path.name for path in folder.iterdir()) == [f"images-{image_cache.VERSION}.sqlite", "other.txt"]
    assert ImageCache().hashes(["/x"], ["id"]) == {"/x": "hash"}
    monkeypatch.setattr(image_cache, "MOST", cache.file.stat().st_size)
    assert ImageCache().hashes(["/x"], ["id"]) == {"/x": "hash"}
    monkeypatch.setattr(image_cache, "MOST", cache.file.stat().st_size - 1)
    assert ImageCache().hashes(["/x"], ["id"]) == {}
    assert ImageCache(keep=False).file is None


def test_few_tasks_wait_however_many_files_there_are() -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = in_threads(lambda number: -number, endless(), together=4, ahead=3)
    assert [next(results) for _ in range(10)] == [-number for number in range(1, 11)]
    assert taken <= 10 + 4 * 6
    results.close()  # type: ignore[attr-defined]


def test_nothing_is_begun_after_an_error() -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        if number == 5:
            raise ValueError("five")
        return number

    with pytest.raises(ValueError, match="five"):
        list(in_threads(work, range(1_000_000), together=1, ahead=8))
    assert len(begun) < 1000
