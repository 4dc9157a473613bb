"""Decoded images on disk: what is found again, what is not, and what happens when the writing goes wrong."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import save
from conftest import BARE, COLOURS, TINY_SETS, Answer, Recorder, draw_image, draw_splits, listing, recording
from PIL import Image

import vitmed
from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError
from vitmed.data import image_cache, loading
from vitmed.data.image_cache import ImageCache, Squares, digests_of, pixel_folder
from vitmed.data.loading import Images, Reader
from vitmed.data.samples import Sample
from vitmed.imaging import rasters
from vitmed.imaging.decode import decoding_version
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import load_checkpoint

PREPROCESSING = Preprocessing(16, 3, "pad", "imagenet")
ON = DataConfig()
ENTRY = 6 * 16 * 16 * 3  # bytes of squares of one entry of `images`


def read_all(images: dict[str, Images], data: DataConfig) -> dict[str, list[str]]:
    """Read every file once; the hashes of each split."""
    return Reader(images, data, records=False).run()[0]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own; nothing counts as quick, so everything goes to disk."""
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "QUICK", 0)
    return tmp_path / "cache" / "pixels"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are decoded, whatever for."""
    names: list[str] = []
    real = rasters.read

    def read(path: Path, frame: int | None) -> Any:
        names.append(path.name)
        return real(path, frame)

    monkeypatch.setattr(rasters, "read", read)
    return names


def draw(root: Path, count: int = 6, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    root.mkdir(exist_ok=True)
    for i in range(count):
        Image.fromarray(draw_image(rng, COLOURS["blue"])).save(root / f"{seed}_{i}.png")
    return root


def images(root: Path, preprocessing: Preprocessing = PREPROCESSING, **parts: slice) -> dict[str, Images]:
    """Splits of the files of a folder, in the order of their names."""
    samples = [Sample(path.name, 0, None) for path in sorted(root.iterdir())]
    return {n: Images(root, samples[part], preprocessing) for n, part in (parts or {"train": slice(None)}).items()}


def fresh(part: Images) -> list[np.ndarray]:
    return [part.preprocessing.read(part.root / sample.path) for sample in part.samples]


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def same(part: Images) -> bool:
    return all(np.array_equal(part.read(i), image) for i, image in enumerate(fresh(part)))


def test_a_second_run_decodes_nothing(tmp_path: Path, decoded: list[str], ui: Recorder, cache: Path) -> None:
    root = draw(tmp_path / "a")
    first = images(root)
    hashes = read_all(first, ON)
    assert sorted(decoded) == sorted(path.name for path in root.iterdir())
    decoded.clear()
    again = images(root)
    assert read_all(again, ON) == hashes and decoded == []
    assert isinstance(again["train"].cache, Squares) and not again["train"].in_memory
    assert same(again["train"]) and len(entries(cache)) == 1
    assert "earlier run" in ui.said[-1] and not ui.warned
    for folder in (cache, cache / entries(cache)[0]):
        assert folder.stat().st_mode & 0o777 == 0o700  # it is private
    assert pixel_folder() == cache
    sent = pickle.dumps(again["train"])
    assert len(sent) < 3000  # not the pixels: a process that is started opens the file anew
    other = pickle.loads(sent)
    assert same(other) and isinstance(other.cache, Squares)


def test_other_splits_of_the_same_files_are_found(tmp_path: Path, decoded: list[str], ui: Recorder) -> None:
    """Another --seed, --epochs, model or split_seed changes no square; nor do fewer images, or other names."""
    root = draw(tmp_path / "a")
    read_all(images(root), ON)
    for old in sorted(root.iterdir()):
        old.rename(old.with_name(f"renamed_{9 - int(old.stem[-1])}.png"))
    decoded.clear()
    parts = images(root, train=slice(4, 6), val=slice(0, 1), test=slice(1, 3))
    read_all(parts, ON)
    assert decoded == []
    assert all(same(part) for part in parts.values())


@pytest.mark.parametrize(
    ("change", "hit"),
    [
        ({"normalize": "half"}, True),
        ({"normalize": "given", "mean": (0.5,), "std": (0.5,)}, True),
        ({"image_size": 24}, False),
        ({"channels": 1}, False),
        ({"resize": "crop"}, False),
        ({"interpolation": "bicubic"}, False),
    ],
)
def test_what_changes_pixels_is_another_entry(
    tmp_path: Path, decoded: list[str], ui: Recorder, change: dict[str, Any], hit: bool
) -> None:
    root = draw(tmp_path / "a")
    read_all(images(root), ON)
    decoded.clear()
    other = images(root, Preprocessing(**(PREPROCESSING.to_dict() | change)))
    read_all(other, ON)
    assert len(decoded) == (0 if hit else 6) and same(other["train"])


def test_another_way_of_decoding_is_another_entry(
    tmp_path: Path, decoded: list[str], ui: Recorder, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(decoding_version.cache_clear)  # a process reads the versions once
    root = draw(tmp_path / "a")
    read_all(images(root), ON)
    installed = metadata.version
    for package in ("pillow", "opencv-python-headless", "pydicom", "python-gdcm", "pylibjpeg-openjpeg", "pyjpegls"):
        newer = {package: "99.0"}
        monkeypatch.setattr(metadata, "version", lambda name, newer=newer: newer.get(name) or installed(name))
        decoded.clear()
        decoding_version.cache_clear()
        read_all(images(root), ON)
        assert len(decoded) == 6, package
    decoded.clear()
    read_all(images(root), ON)
    assert decoded == []


def test_only_a_changed_file_is_decoded_anew(tmp_path: Path, decoded: list[str], ui: Recorder) -> None:
    root = draw(tmp_path / "a")
    before = read_all(images(root), ON)["train"]
    changed = sorted(root.iterdir())[2]
    stat = changed.stat()
    Image.fromarray(draw_image(np.random.default_rng(9), COLOURS["green"])).save(changed)
    os.utime(changed, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # an old time does not hide it
    decoded.clear()
    again = images(root)
    after = read_all(again, ON)["train"]
    assert decoded == [changed.name] and same(again["train"])
    assert [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [2]


def test_copies_share_what_is_decoded_but_a_suffix_picks_a_reader(tmp_path: Path) -> None:
    digests = digests_of(["aa", "aa", "aa", ""], ["x.png", "y.PNG", "z.tif", "gone.png"])
    assert np.array_equal(digests[0], digests[1]) and not np.array_equal(digests[0], digests[2])
    assert not np.array_equal(digests[3], digests_of([""], ["gone.png"])[0])


def test_files_that_cannot_be_used_are_all_told_and_nothing_is_kept(tmp_path: Path, ui: Recorder, cache: Path) -> None:
    root = draw(tmp_path / "a")
    names = sorted(path.name for path in root.iterdir())
    (root / names[1]).write_bytes(b"")
    (root / names[4]).write_bytes(b"\x89PNG\r\n\x1a\n but not really")
    for _ in range(2):
        with pytest.raises(DataError, match="2 of 6") as error:
            read_all(images(root), ON)
        assert names[1] in str(error.value) and names[4] in str(error.value)
        assert entries(cache) == []


def test_the_squares_are_those_that_were_decoded_by_any_policy(tmp_path: Path, ui: Recorder) -> None:
    from vitmed.imaging.augmentation import POLICIES, Augmenter

    part = images(draw(tmp_path / "a", 1))["train"]
    plain = part.read(0)
    read_all({"train": part}, ON)
    assert not part.read(0).flags.writeable
    for policy in POLICIES:
        augmenter = Augmenter(policy, 16, 3)
        for draw_number in range(4):
            assert np.array_equal(augmenter(part.read(0), (1, draw_number)), augmenter(plain, (1, draw_number)))
    assert np.array_equal(part.read(0), plain)


RUN = Callable[..., Answer]
SETTINGS = BARE | {"policy": "medical", "epochs": 1}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder / "last.pt").weights


@pytest.fixture
def no_evaluation(no_figures: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a tiny run's time is its evaluation, which reads the files themselves."""
    from vitmed.studies import one_run

    monkeypatch.setattr(vitmed, "evaluate", lambda *_, **__: SimpleNamespace(metrics={}, folder=Path()))
    monkeypatch.setattr(one_run, "write_card", lambda *_, **__: None)


@pytest.mark.slow
@pytest.mark.usefixtures("no_evaluation")
def test_the_same_weights_with_and_without(tmp_path: Path, cache: Path, decoded: list[str]) -> None:
    data = draw_splits(tmp_path / "data", 6, 3, 3)
    results = {}
    for name, flags in {"none": {"cache": False}, "cold": {}, "warm": {"workers": 2}}.items():
        decoded.clear()
        settings = SETTINGS | flags
        run = vitmed.train(data, output=tmp_path / "runs", name=name, sets=TINY_SETS, **settings)
        results[name] = weights(run.folder)
        assert cache.exists() == (name != "none")
        assert name != "cold" or len(decoded) == 24
        assert name != "warm" or not decoded
    assert all(torch.equal(results["none"][k], other[k]) for other in results.values() for k in other)
    last = run.folder / "last.pt"  # the run goes on without the cache, and from a checkpoint of an earlier vitmed
    content = torch.load(last, weights_only=True)
    content["config"]["data"]["cache_mb"] = 2048  # a field that is gone
    save(content, last)
    before = listing(cache)
    vitmed.train(resume=run.folder, epochs=2, cache=False)
    assert listing(cache) == before and load_checkpoint(last).config.data.cache is False


def test_switched_off_it_writes_nothing_and_keeps_nothing(vitmed: RUN, tmp_path: Path, cache: Path) -> None:
    root = draw(tmp_path / "a")
    parts = images(root)
    read_all(parts, DataConfig(cache=False))
    assert parts["train"].cache is None and not cache.parent.exists()
    answer = vitmed("train", tmp_path / "nothing", "--no-cache", "--cache-size", "-1")
    assert answer.code == 2 and "cache_gb" in answer.err


def test_a_quick_set_stays_in_memory(
    tmp_path: Path, ui: Recorder, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = draw(tmp_path / "a")
    monkeypatch.setattr(loading, "QUICK", 10)
    parts = images(root, train=slice(0, 3), val=slice(3, 4), test=slice(4, 6))
    read_all(parts, ON)
    assert [part.in_memory for part in parts.values()] == [True, True, False] and not cache.exists()
    monkeypatch.setattr(loading, "MEMORY_MB", 0)  # quick, but too many
    parts = images(root, train=slice(0, 3), val=slice(3, 4), test=slice(4, 6))
    read_all(parts, ON)
    assert all(isinstance(part.cache, Squares) for part in parts.values())


# --- the bound


def fill(root: Path, seed: int, limit_entries: float, when: float) -> None:
    """Another set of six images; its entry was last used at that time."""
    before = set(entries(pixel_folder())) if pixel_folder().exists() else set()
    limit = limit_entries * (ENTRY + 1000) / 1e9  # headers and digests
    read_all(images(draw(root / str(seed), seed=seed)), DataConfig(cache_gb=limit))
    for name in set(entries(pixel_folder())) - before:
        os.utime(pixel_folder() / name, (when, when))


def test_what_was_not_used_for_longest_goes_first(
    tmp_path: Path, decoded: list[str], ui: Recorder, cache: Path
) -> None:
    day = time.time() - 86_400
    for seed in range(3):
        fill(tmp_path, seed, 3, day + seed)
    assert len(entries(cache)) == 3
    read_all(images(tmp_path / "0"), ON)  # used now: it is no longer the oldest
    fill(tmp_path, 3, 3, day + 3)
    assert len(entries(cache)) == 3 and not ui.warned
    assert sum(f.stat().st_size for f in cache.rglob("*.npy")) <= 3 * (ENTRY + 1000)
    decoded.clear()
    for seed in (0, 2, 3):
        read_all(images(tmp_path / str(seed)), ON)
    assert decoded == []
    read_all(images(tmp_path / "1"), ON)
    assert len(decoded) == 6


def test_what_is_in_use_stays_and_the_newcomer_does_without(tmp_path: Path, ui: Recorder, cache: Path) -> None:
    fill(tmp_path, 0, 1, time.time())
    before = listing(cache)
    parts = images(draw(tmp_path / "1", seed=1))
    read_all(parts, DataConfig(cache_gb=1.2 * ENTRY / 1e9))
    assert "no room" in ui.warned[0] and "--cache-size" in ui.warned[0] and len(ui.warned) == 1
    assert parts["train"].in_memory and same(parts["train"])
    assert [row for row in listing(cache) if not row[0].endswith(".lock")] == [
        row for row in before if not row[0].endswith(".lock")
    ]


def test_room_is_made_by_the_entries_that_were_not_used_for_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of 100, 200 and 300 bytes, used 3, 2 and 1 hours ago; one is in use, one is unfinished."""

    def entries_of(*names: str) -> None:
        for name, size, hours in (("a", 100, 3), ("b", 200, 2), ("c", 300, 1), ("used", 50, 0), ("d.x.part", 70, 9)):
            if name in names:
                (tmp_path / name).mkdir(exist_ok=True)
                (tmp_path / name / "squares.npy").write_bytes(bytes(size))
                os.utime(tmp_path / name, (time.time() - 3600 * hours,) * 2)

    def left(size: int, limit: int) -> str:
        entries_of("a", "b", "c", "used", "d.x.part")
        image_cache._make_room(tmp_path, size, limit)
        return " ".join(sorted(path.name for path in tmp_path.iterdir()))

    assert left(280, 1000) == "a b c d.x.part used"  # 720 bytes are there
    assert left(281, 1000) == left(380, 1000) == "b c d.x.part used"
    assert left(381, 1000) == "c d.x.part used" and left(880, 1000) == "d.x.part used"
    entries_of("a", "b", "c")
    with pytest.raises(OSError, match="a cache of 1e-06 GB has no room"):
        left(881, 1000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "d.x.part", "used"]  # nothing is lost
    free = image_cache.RESERVE + 500
    monkeypatch.setattr(image_cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert left(500, 10**9) == "a b c d.x.part used" and left(501, 10**9) == "b c d.x.part used"
    with pytest.raises(OSError, match="the disk has no room"):
        left(1101, 10**9)


def test_an_image_that_the_entry_lacks_is_missing(tmp_path: Path, ui: Recorder, cache: Path) -> None:
    part = images(draw(tmp_path / "a"))["train"]
    read_all({"train": part}, ON)
    found = Squares(cache / entries(cache)[0], np.array([3, -1, 0]))
    assert found.missing.tolist() == [1] and np.array_equal(found[0], part.read(3))
    with pytest.raises(IndexError):
        found[1]
    with pytest.raises(ValueError, match="contains"):
        Squares(cache / entries(cache)[0], np.array([6]))  # six images have the rows 0 to 5
    for other in (np.zeros((6, 16, 16), np.uint8), np.zeros((6, 16, 16, 3), np.int8)):
        np.save(cache / entries(cache)[0] / "squares.npy", other)
        with pytest.raises(ValueError, match="contains"):
            Squares(cache / entries(cache)[0], np.array([0]))


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be removed there")
def test_a_reader_goes_on_when_its_file_is_removed(tmp_path: Path, ui: Recorder, cache: Path) -> None:
    part = images(draw(tmp_path / "0", seed=0))["train"]
    read_all({"train": part}, ON)
    sent = pickle.dumps(part)
    day = time.time() - 86_400
    os.utime(cache / entries(cache)[0], (day, day))
    fill(tmp_path, 1, 1, day)
    assert len(entries(cache)) == 1 and same(part)
    other = pickle.loads(sent)  # a loader process that is started now finds it gone, and decodes
    assert same(other) and other.cache is None


# --- folders that fail


@pytest.mark.parametrize(
    ("place", "limit", "reserve", "told"),
    [
        ("file", None, None, "VITMED_CACHE"),  # a folder that cannot be made
        (None, 0, None, "no room"),  # a set larger than the whole cache
        (None, None, 2**60, "the disk has no room"),  # a disk is never filled to the brim
    ],
)
def test_without_room_or_folder_the_images_stay_in_memory(
    tmp_path: Path, ui: Recorder, monkeypatch: pytest.MonkeyPatch, place: Any, limit: Any, reserve: Any, told: str
) -> None:
    if place:
        (tmp_path / place).write_text("")
        monkeypatch.setenv("VITMED_CACHE", str(tmp_path / place))
    if reserve:
        monkeypatch.setattr(image_cache, "RESERVE", reserve)
    parts = images(draw(tmp_path / "a"))
    read_all(parts, ON if limit is None else DataConfig(cache_gb=limit))
    assert len(ui.warned) == 1 and told in ui.warned[0]
    assert parts["train"].in_memory and same(parts["train"]) and (place or entries(pixel_folder()) == [])


def test_a_disk_that_fills_up(tmp_path: Path, ui: Recorder, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(loading, "MEMORY_MB", 0)
    parts = images(draw(tmp_path / "a"))
    read_all(parts, ON)
    assert len(ui.warned) == 1 and "No space left" in ui.warned[0]
    assert entries(cache) == [] and parts["train"].cache is None and same(parts["train"])


def test_a_folder_that_cannot_be_mapped(
    tmp_path: Path, ui: Recorder, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unmappable(*args: Any, **settings: Any) -> np.ndarray:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(np, "load", unmappable)
    read_all(images(draw(tmp_path / "a")), ON)
    assert "No such device" in ui.warned[0] and len(decoded) == 6  # found out before the work


@pytest.mark.parametrize("damage", ["squares.npy", "digests.npy"])
def test_a_damaged_entry_is_made_again(
    tmp_path: Path, ui: Recorder, decoded: list[str], cache: Path, damage: str
) -> None:
    root = draw(tmp_path / "a")
    read_all(images(root), ON)
    file = cache / entries(cache)[0] / damage
    file.write_bytes(file.read_bytes()[:150])
    decoded.clear()
    parts = images(root)
    read_all(parts, ON)
    assert len(decoded) == 6 and same(parts["train"]) and not ui.warned and len(entries(cache)) == 1


# --- other processes

forks = pytest.mark.skipif(sys.platform != "linux", reason="needs fork, to start within milliseconds")


def child(root: Path, log: Path, go: Path) -> multiprocessing.Process:
    """A process that reads the folder, each file only when `go` is there; it logs what it decodes and says."""

    def note(text: str) -> None:
        with log.open("a") as stream:
            stream.write(text + "\n")

    def work() -> None:
        real = rasters.read

        def slow(path: Path, frame: int | None) -> Any:
            until(go.exists)
            note("decoding")
            return real(path, frame)

        rasters.read = slow
        Reader._fits_memory = lambda self: False  # type: ignore[method-assign]  it decodes before the lock
        ui = recording()
        ui.say = ui.warn = note  # type: ignore[method-assign]
        parts = images(root)
        read_all(parts, ON)
        rasters.read = real
        note(f"sum {sum(int(parts['train'].read(i).sum()) for i in range(6))}")

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def unfinished(folder: Path) -> list[Path]:
    return list(folder.glob("*.part"))


@forks
def test_two_processes_at_once_decode_once(tmp_path: Path, cache: Path) -> None:
    root, go, logs = draw(tmp_path / "a"), tmp_path / "go", [tmp_path / "0.log", tmp_path / "1.log"]
    first = child(root, logs[0], go)
    until(lambda: unfinished(cache))
    second = child(root, logs[1], go)
    until(lambda: logs[1].exists() and "waiting for it" in logs[1].read_text())
    go.touch()
    for process in (first, second):
        process.join(60)
        assert process.exitcode == 0
    told = [log.read_text() for log in logs]
    assert [text.count("decoding") for text in told] == [6, 0]
    assert told[0].splitlines()[-1] == told[1].splitlines()[-1] and "sum" in told[0]
    assert len(entries(cache)) == 1


@forks
def test_killed_in_the_middle_it_leaves_nothing_for_long(
    tmp_path: Path, ui: Recorder, cache: Path, decoded: list[str]
) -> None:
    root = draw(tmp_path / "a")
    process = child(root, tmp_path / "log", tmp_path / "never")
    until(lambda: unfinished(cache))
    read_all(images(draw(tmp_path / "b", seed=1)), ON)
    assert len(unfinished(cache)) == 1  # alive: another run leaves it alone
    process.kill()
    process.join()
    assert len(unfinished(cache)) == 1
    decoded.clear()
    parts = images(root)
    read_all(parts, ON)
    assert len(decoded) == 6 and same(parts["train"])
    assert not unfinished(cache) and len(entries(cache)) == 2


def test_rows_are_matched_by_the_whole_digest() -> None:
    rng = np.random.default_rng(0)
    have = rng.integers(0, 256, (50, 32), dtype=np.uint8)
    near = have[7].copy()
    near[31] ^= 1  # the same first bytes
    want = np.stack([have[40], near, have[3], rng.integers(0, 256, 32, dtype=np.uint8)])
    assert image_cache.find_rows(have, want).tolist() == [40, -1, 3, -1]
    assert image_cache.find_rows(have[:0], want).tolist() == [-1] * 4
    cache = ImageCache(how=PREPROCESSING, keep=False)
    assert (
        cache._name(have) == cache._name(have[::-1]) == cache._name(np.concatenate([have, have])) != cache._name(want)
    )
