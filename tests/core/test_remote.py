"""Addresses: each file is copied once and whole, what changed again, and nothing leaves the folder of copies."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from vitmed.core import downloads, remote, run_folder
from vitmed.core.errors import DataError, UsageError
from vitmed.core.places import data_folder, local_path
from vitmed.core.run_folder import find_path, place_of, store_path

fsspec = pytest.importorskip("fsspec")
ADDRESS = "memory://lab/cells"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """fsspec's file system in memory, read as `memory://`, with two images."""
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VITMED_OFFLINE", raising=False)
    for module in (run_folder, remote):
        monkeypatch.setattr(module, "REMOTE", {"memory": "memoryfs"})
    remote.copied.cache_clear()
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pipe({"/lab/cells/a/1.png": b"one", "/lab/cells/b/2.png": b"two"})
    yield system
    system.store.clear()
    remote.copied.cache_clear()


def again(address: str = ADDRESS) -> dict[str, bytes]:
    """What a new process finds in the copy."""
    remote.copied.cache_clear()
    place = data_folder(address)
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_copy_follows_the_address(bucket: Any) -> None:
    assert again() == {"a/1.png": b"one", "b/2.png": b"two"}
    bucket.pipe({"/lab/cells/a/1.png": b"ONE", "/lab/cells/a/3.png": b"three", "/lab/cells/.DS_Store": b"x"})
    bucket.rm("/lab/cells/b/2.png")
    assert again() == {"a/1.png": b"ONE", "a/3.png": b"three"}
    bucket.rm("/lab/cells/a", recursive=True)
    bucket.pipe({"/lab/cells/a": b"a file that was a folder"})
    assert again() == {"a": b"a file that was a folder"}
    bucket.rm("/lab/cells/a")
    bucket.pipe({"/lab/cells/a/1.png": b"ONE", "/lab/cells/a/3.png": b"three"})
    again()
    assert local_path(f"{ADDRESS}/a/1.png").read_bytes() == b"ONE"  # a file has an address too, with the same copy
    assert sorted(bucket.find("/lab")) == ["/lab/cells/.DS_Store", "/lab/cells/a/1.png", "/lab/cells/a/3.png"]


def test_only_what_is_new_is_copied(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    again()
    bucket.pipe({"/lab/cells/a/3.png": b"three"})
    keys: list[str] = []
    get = type(bucket).get
    monkeypatch.setattr(type(bucket), "get", lambda self, names, *more: keys.extend(names) or get(self, names, *more))
    assert len(again()) == 3 and keys == ["/lab/cells/a/3.png"]
    (place_of(ADDRESS) / "b" / "2.png").unlink()
    assert len(again()) == 3 and keys[1:] == ["/lab/cells/b/2.png"]


def test_a_copy_that_is_cut_leaves_no_file(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(self: Any, keys: list[str], places: list[str]) -> None:
        for place in places:
            Path(place).write_bytes(b"o")
        raise OSError("connection reset")

    with monkeypatch.context() as patch:
        patch.setattr(type(bucket), "get", cut)
        with pytest.raises(DataError, match="memory://lab/cells: cannot be read: connection reset"):
            again()
        assert [path for path in place_of(ADDRESS).rglob("*") if path.is_file()] == []
        patch.setenv("VITMED_OFFLINE", "1")
        with pytest.raises(UsageError, match="needs a network"):  # not to its end
            again()
    assert again() == {"a/1.png": b"one", "b/2.png": b"two"}


def test_what_vanished_after_the_list_was_read_is_not_there(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`predict --output` goes on without it, and a folder that is copied as a whole is listed anew."""
    names = [f"{ADDRESS}/a/1.png", f"{ADDRESS}/gone.png", f"{ADDRESS}/b/2.png"]
    with remote.fetched(names) as places:
        assert [places[name].is_file() for name in names] == [True, False, True]
        assert places[names[2]].read_bytes() == b"two"
    find = type(bucket).find
    gone = {"/lab/cells/gone.png": {"size": 3}}
    monkeypatch.setattr(type(bucket), "find", lambda *given, **how: {**find(*given, **how), **gone})
    with pytest.raises(DataError, match=r"gone\.png vanished while it was copied") as error:
        again()
    assert error.value.fix == "run the command again"


@pytest.mark.parametrize("key", ["/lab/cells/../../x.png", "/lab/cells//x.png", "/lab/cells/a\\x.png"])
def test_a_key_that_is_no_path_is_refused(bucket: Any, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr(type(bucket), "find", lambda self, root, detail: {key: {"size": 1}})
    with pytest.raises(DataError, match="a key that is no path"):
        again()


def test_a_name_of_a_file_and_of_a_folder_is_refused(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"/lab/cells/a": {"size": 1}, "/lab/cells/a/1.png": {"size": 1}}
    monkeypatch.setattr(type(bucket), "find", lambda self, root, detail: both)
    with pytest.raises(DataError, match="/lab/cells/a is a file and a folder"):
        again()


def test_an_empty_or_absent_address_is_refused(bucket: Any) -> None:
    for address in ("memory://lab/nothing", "memory://nobucket/cells"):
        with pytest.raises(DataError, match=f"{address}: nothing lies there"):
            again(address)
    for way in (again, remote.names_below):  # of all buckets nothing is read or listed
        with pytest.raises(UsageError, match="names no bucket"):
            way("memory://lab/..")


def test_what_does_not_fit_is_refused_before_it_is_copied(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(2**40, 2**40, 2**30))
    with pytest.raises(UsageError, match="are needed"):
        again()
    assert not place_of(ADDRESS).exists()


def test_without_a_network_the_earlier_copy_serves(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITMED_OFFLINE", "1")
    with pytest.raises(UsageError, match="needs a network"):
        again()
    monkeypatch.delenv("VITMED_OFFLINE")
    first = again()
    bucket.rm("/lab", recursive=True)
    for way in (lambda: remote.names_below(ADDRESS), lambda: remote.fetched([f"{ADDRESS}/a/1.png"]).__enter__()):
        monkeypatch.setenv("VITMED_OFFLINE", "1")
        with pytest.raises(UsageError, match="needs a network"):
            way()
    monkeypatch.setenv("VITMED_OFFLINE", "1")
    assert again() == first


def test_offline_reaches_addresses(bucket: Any, vitmed: Any, tmp_path: Path) -> None:
    command = ("train", f"{ADDRESS}", "--offline", "--output", f"{tmp_path / 'runs'}")
    answer = vitmed(*command)
    assert answer.code == 2 and answer.err.split() == (
        f"error: {ADDRESS}: needs a network, which --offline or VITMED_OFFLINE forbids Fix: leave it out".split()
    )
    again()
    bucket.rm("/lab", recursive=True)
    remote.copied.cache_clear()
    assert "needs a network" not in vitmed(*command).err and not downloads.is_offline()


def test_a_missing_package_is_named(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(scheme: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(UsageError, match="needs the packages fsspec and memoryfs") as error:
        again()
    assert error.value.fix == "pip install 'vitmed[remote]'"


def test_files_name_the_address_and_not_its_copy(bucket: Any, tmp_path: Path) -> None:
    """So a checkpoint finds its images on another machine, with another cache folder."""
    place = data_folder(ADDRESS)
    assert store_path(place, tmp_path) == store_path(ADDRESS, tmp_path) == ADDRESS
    assert find_path(ADDRESS, tmp_path) == place


def test_other_kinds_of_addresses_are_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"^ftp://host/images: vitmed reads no ftp:// addresses"):
        data_folder("ftp://host/images")


def test_images_are_copied_for_a_moment_apart_from_the_copy(bucket: Any) -> None:
    """So two commands do not remove each other's images."""
    names = [*remote.names_below(ADDRESS)]
    assert names == [f"{ADDRESS}/a/1.png", f"{ADDRESS}/b/2.png"]
    with remote.fetched(["local.png", *names]) as first, remote.fetched(names) as second:
        for places in (first, second):
            assert [places[name].read_bytes() for name in names] == [b"one", b"two"]
        assert "local.png" not in first and not place_of(ADDRESS).exists()
    assert not first[names[0]].exists() and not second[names[0]].exists()


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_only_this_account_opens_the_copies(bucket: Any) -> None:
    again()
    assert run_folder.copies().stat().st_mode & 0o777 == 0o700


def test_the_folder_of_all_copies_is_a_folder(bucket: Any) -> None:
    again()
    assert local_path(run_folder.copies()) == run_folder.copies()
