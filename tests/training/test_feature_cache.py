"""Features on disk: found again for the same content alone, and a damaged or missing file is never an error."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Recorder

from vitmed.training import feature_cache
from vitmed.training.feature_cache import FeatureCache, Features

CONTENT = {"weights": {"w": torch.arange(3.0)}, "model": {"width": 3}, "device": "cpu"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def some(seed: int = 0, count: int = 5) -> Features:
    rng = np.random.default_rng(seed)
    return Features(rng.integers(0, 256, (count, 32), dtype=np.uint8), rng.random((count, 4), np.float32), 0.5, 2e6)


def test_what_was_saved_is_found_by_the_digest_of_an_image(ui: Recorder) -> None:
    saved = some()
    FeatureCache(CONTENT).save(saved, ui)
    found = FeatureCache(CONTENT).load()
    assert found is not None and (found.seconds, found.memory) == (0.5, 2e6)
    wanted = np.stack([saved.digests[3], some(1).digests[0], saved.digests[0]])
    assert found.rows(wanted).tolist() == [3, -1, 0]
    np.testing.assert_array_equal(found.values, saved.values)


@pytest.mark.parametrize(
    "other",
    [
        {"weights": {"w": torch.arange(3.0) + 1e-6}},
        {"weights": {"v": torch.arange(3.0)}},
        {"model": {"width": 4}},
        {"device": "cuda"},
    ],
)
def test_other_weights_networks_or_devices_have_features_of_their_own(ui: Recorder, other: dict) -> None:
    FeatureCache(CONTENT).save(some(), ui)
    assert FeatureCache(CONTENT | other).load() is None
    assert FeatureCache(dict(CONTENT)).load() is not None


def damage(file: Path, how: str) -> None:
    whole = file.read_bytes()
    if how == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    elif how == "flipped":
        place = whole.index(some().values.tobytes()[:16])
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "nan":
        np.savez(file, digests=some().digests, values=np.full((5, 4), np.nan, np.float32), cost=np.ones(2))
    elif how == "lacking":
        np.savez(file, digests=some().digests)
    else:
        np.savez(file, digests=some().digests[:3], values=some().values, cost=np.ones(2))


@pytest.mark.parametrize("how", ["cut", "flipped", "empty", "nan", "lacking", "of other sizes"])
def test_a_damaged_file_counts_as_not_known_and_is_replaced(ui: Recorder, how: str) -> None:
    cache = FeatureCache(CONTENT)
    cache.save(some(), ui)
    assert cache.file is not None
    damage(cache.file, how)
    assert cache.load() is None
    cache.save(some(), ui)
    assert cache.load() is not None and ui.warned == []


def test_the_least_recently_used_go_first(cache: Path, ui: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (FeatureCache({"number": number}) for number in range(3))
    for age, one in ((200, first), (100, second)):
        one.save(some(), ui)
        assert one.file is not None
        os.utime(one.file, (one.file.stat().st_mtime - age,) * 2)
    assert first.load() is not None  # used just now
    monkeypatch.setattr(feature_cache, "MOST", 2 * max(file.stat().st_size for file in cache.glob("*.npz")))
    third.save(some(), ui)
    assert (first.load() is not None, second.load(), third.load() is not None) == (True, None, True)


def test_without_a_cache_nothing_is_written(cache: Path, ui: Recorder) -> None:
    FeatureCache(CONTENT, keep=False).save(some(), ui)
    assert FeatureCache(CONTENT, keep=False).load() is None and not cache.exists()


def test_a_folder_that_cannot_be_made_is_a_warning(cache: Path, ui: Recorder) -> None:
    cache.parent.mkdir()
    cache.write_text("a file in its place")
    FeatureCache(CONTENT).save(some(), ui)
    assert len(ui.warned) == 1 and "features cannot be kept" in ui.warned[0]
