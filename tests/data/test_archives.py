"""Archives: what is honest comes out byte for byte; nothing leaves the folder, fills the disk, or stays half done."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from vitmed.core.errors import DataError, UsageError
from vitmed.data import convert
from vitmed.data.convert import unpack

FILES = {
    "set/a/1.png": b"one" * 1000,
    "set/b/2.png": b"two",
    "set/b/empty.png": b"",
    "set/sub/inner.zip": b"PK\5\6" + bytes(18),
}
CASELESS = sys.platform in ("win32", "darwin")  # file systems that take X.png and x.png for one name
NAMES = ["set.zip", "set.tar", "set.tar.gz", "set.tgz"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def pack(path: Path, files: dict[str, bytes] = FILES) -> Path:
    """A zip or tar of files; those whose name ends in a slash are folders."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, f"w:{path.suffix[1:].replace('tgz', 'gz').replace('tar', '')}") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.type = len(content), tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            archive.addfile(info, io.BytesIO(content))
    return path


def tar_of(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as archive:
        for info in members:
            archive.addfile(info)
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def below(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", NAMES)
def test_an_honest_archive_comes_out_as_it_was(tmp_path: Path, place: Path, name: str) -> None:
    unpack(pack(tmp_path / name, {"set/": b"", **FILES, "./set/c/3.png": b"three"}), place)
    assert below(place) == {**FILES, "set/c/3.png": b"three"}  # and what is packed inside stays packed
    assert not any(p.stat().st_mode & (stat.S_ISUID | stat.S_IXUSR) for p in place.rglob("*") if p.is_file())


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_names_that_lead_out(tmp_path: Path, place: Path, suffix: str) -> None:
    names = ["../out.png", "a/../../out.png", "a/..", "/etc/out.png"]
    for name in (*names, "..\\out.png", "C:/out.png", "C:\\out.png", "\\\\host\\share\\out.png"):
        archive = pack(tmp_path / f"bad{suffix}", {"a/fine.png": b"x", name: b"out"})
        with pytest.raises(DataError, match="outside") as error:
            unpack(archive, place)
        assert f"bad{suffix}" in str(error.value) and "do not use" in error.value.fix
        assert list(place.iterdir()) == [] and not (tmp_path / "out.png").exists()  # checked before anything is written


def test_links_and_devices(tmp_path: Path, place: Path) -> None:
    info = zipfile.ZipInfo("a/x.png")
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    files = [tmp_path / "bad.zip"]
    for i, members in enumerate(
        [
            [link("a/x.png", "/etc/passwd")],
            [link("a", ".."), tarfile.TarInfo("a/out.png")],
            [link("a/x.png", "a/y.png", tarfile.LNKTYPE)],
            *([link("a/x", "", kind)] for kind in (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)),
        ]
    ):
        files.append(tar_of(tmp_path / f"{i}.tar", *members))
    for file in files:
        with pytest.raises(DataError, match="link or a device"):
            unpack(file, place)
        assert list(place.iterdir()) == []


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
@pytest.mark.parametrize(
    ("names", "one_place"),
    [
        (["a/x.png", "a/x.png"], True),
        (["a", "a/x.png"], True),
        (["a/x.png", "a"], True),
        (["a/X.png", "a/x.png"], CASELESS),  # one file on some systems
        (["a/\u00e9.png", "a/e\u0301.png"], CASELESS),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_no_member_overwrites_another(
    tmp_path: Path, place: Path, suffix: str, names: list[str], one_place: bool
) -> None:
    path = tmp_path / f"bad{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, b"x")
    else:
        tar_of(path, *map(tarfile.TarInfo, names))
    if one_place:
        with pytest.raises(DataError, match="two members have the name"):
            unpack(path, place)
    else:
        unpack(path, place)
        assert len(below(place)) == len(names)


@pytest.mark.parametrize("names", [["A/1.png", "a/2.png"], ["x/\u00e9/1.png", "x/e\u0301/2.png"]])
@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_folders_that_some_systems_mix(tmp_path: Path, place: Path, suffix: str, names: list[str]) -> None:
    with pytest.raises(DataError, match="the same name on other systems"):
        unpack(pack(tmp_path / f"bad{suffix}", dict.fromkeys(names, b"x")), place)
    assert list(place.iterdir()) == []


def test_bombs(tmp_path: Path, place: Path) -> None:
    zeros = bytes(17_000_000)
    for name in ("bomb.zip", "bomb.tar.gz"):
        with pytest.raises(DataError, match="over 100 times its size"):
            unpack(pack(tmp_path / name, {"a/x.png": zeros}), place)
    # a tar whose header says more than it has, and one that claims a name of a gigabyte
    info = tarfile.TarInfo("a/x.png")
    info.size = 2**40
    (tmp_path / "claims.tar").write_bytes(info.tobuf() + bytes(1024))
    with pytest.raises(DataError, match="over 100 times"):
        unpack(tmp_path / "claims.tar", place)
    info = tarfile.TarInfo("././@LongLink")
    info.size, info.type = 2**30, tarfile.GNUTYPE_LONGNAME
    with gzip.open(tmp_path / "name.tar.gz", "wb") as stream:
        stream.write(info.tobuf(tarfile.GNU_FORMAT) + zeros)
    with pytest.raises(DataError, match="over 100 times"):
        unpack(tmp_path / "name.tar.gz", place)
    assert list(place.iterdir()) == []


def test_a_zip_that_lies_about_a_size_gives_no_more_than_it_states(tmp_path: Path, place: Path) -> None:
    path = pack(tmp_path / "lie.zip", {"a/x.png": bytes(100_000)})
    raw = path.read_bytes().replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    path.write_bytes(raw)
    with pytest.raises(DataError, match="not a complete archive"):  # the CRC is of all of it
        unpack(path, place)
    assert sum(p.stat().st_size for p in place.rglob("*") if p.is_file()) <= 10


def test_no_room(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    for name in NAMES[:3]:
        with pytest.raises(UsageError, match="are needed"):
            unpack(pack(tmp_path / name), place)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", NAMES)
def test_damaged_archives(tmp_path: Path, place: Path, name: str) -> None:
    path = pack(tmp_path / name, {f"a/{k}.png": os.urandom(3000) for k in range(10)})
    whole = path.read_bytes()
    contents = [whole[: len(whole) // 2], b"", b"no archive"]
    if path.suffix == ".tar":
        contents.append(whole[: len(whole.rstrip(b"\0")) // 512 * 512 + 512])  # after its last member
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(DataError, match=name):
            unpack(path, place)
        shutil.rmtree(place)
        place.mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        unpack(tmp_path / "none.zip", place)
