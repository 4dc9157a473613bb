"""WebDataset tars read like folders: `cells-000.tar/000123.png` is an image, read at its place without unpacking.

An image is a member with a suffix that vitmed reads. Its class, if it has one, is the text of the member with the same
key and the suffix .cls, or the entry "label", "class" or "cls" of the .json: `000123.png`, `000123.cls`.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from vitmed.core.errors import DataError

SUFFIX = ".tar"
KEPT = 256  # tars of which the places of the members stay in memory
TEXT = 1 << 20  # bytes of a .cls or .json, at most
ENTRIES = ("label", "class", "cls")  # of a .json
AGAIN = "copy or fetch it again"


class Member(NamedTuple):
    """Where the bytes of a member are."""

    offset: int
    size: int


def is_tar(path: str | Path) -> bool:
    """Whether the path is an existing .tar file."""
    return str(path).lower().endswith(SUFFIX) and Path(path).is_file()


def file_of(path: str | Path) -> Path | None:
    """The tar above a path; None for other paths, and for a folder with such a name."""
    if SUFFIX not in str(path).lower():  # fast: called for millions of paths
        return None
    return next((parent for parent in Path(path).parents if parent.suffix.lower() == SUFFIX and parent.is_file()), None)


def inside(path: str | Path) -> bool:
    """Whether the path lies in a tar, as its images do."""
    return file_of(path) is not None


def open_file(path: Path) -> BinaryIO:
    """Open a file, or a member of a tar, whose bytes are then in memory. Raises OSError; DataError as `read`."""
    return io.BytesIO(read(path)) if inside(path) else path.open("rb")


def read(path: Path) -> bytes:
    """The bytes of the member at a path in a tar. Raises DataError if it is not there, or OSError."""
    file = file_of(path)
    assert file is not None, path
    member = members(file).get(path.relative_to(file).as_posix())
    if member is None:
        raise DataError(f"{path}: no such member in {file.name}", "the tar has changed: restore it")
    return _bytes(file, member)


def _bytes(file: Path, member: Member) -> bytes:
    with file.open("rb") as stream:
        stream.seek(member.offset)
        return stream.read(member.size)


def members(file: Path) -> dict[str, Member]:
    """Name -> place of every file in a tar, in its order. Raises DataError if it is damaged or holds other things."""
    try:
        about = file.stat()
        return _members(file.absolute(), about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})", "restore the tar") from None


@lru_cache(maxsize=KEPT)
def _members(file: Path, size: int, changed: int) -> dict[str, Member]:
    found: dict[str, Member] = {}
    end = 0
    try:
        with file.open("rb") as stream, tarfile.TarFile(fileobj=stream) as archive:
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # which would keep half a kilobyte for each
                if info.isdir():
                    continue
                name = PurePosixPath(info.name)
                if not info.isreg() or info.issparse() or name.is_absolute() or ".." in name.parts:
                    raise DataError(f"{file}: {info.name!r} is not a plain file in it", "write the tar again")
                if found.setdefault(str(name), place := Member(info.offset_data, info.size)) != place:
                    raise DataError(f"{file}: two members have the name {info.name!r}", "write the tar again")
                end = info.offset_data + info.size
            stream.seek(archive.offset)
            if end > size or any(stream.read(tarfile.BLOCKSIZE) or b"x"):  # a whole tar ends in blocks of zeros
                raise DataError(f"{file}: not a complete tar ({len(found):,} members could be found)", AGAIN)
    except (tarfile.TarError, EOFError, UnicodeError, ValueError) as error:
        raise DataError(f"{file}: not a complete tar ({error})", AGAIN) from None
    return found


def image_names(file: Path, suffixes: frozenset[str]) -> list[str]:
    """The images of a tar, sorted; members with a hidden name are none."""
    return sorted(
        name
        for name in members(file)
        if PurePosixPath(name).suffix.lower() in suffixes and not any(p[0] == "." for p in name.split("/"))
    )


def labels(file: Path, names: list[str]) -> list[str | None]:
    """The class of each image of a tar; None where it has none."""
    known = members(file)
    found = []
    for name in names:
        folder, slash, base = name.rpartition("/")
        key = folder + slash + base.split(".")[0]
        found.append(_label(file, known.get(f"{key}.cls"), known.get(f"{key}.json")))
    return found


def _label(file: Path, text: Member | None, entries: Member | None) -> str | None:
    with contextlib.suppress(UnicodeDecodeError, ValueError, RecursionError):
        if text is not None and text.size <= TEXT:
            return _bytes(file, text).decode().strip() or None
        if entries is not None and entries.size <= TEXT:
            content = json.loads(_bytes(file, entries))
            found = [content[name] for name in ENTRIES if name in content] if isinstance(content, dict) else []
            return str(found[0]) if found and isinstance(found[0], str | int) else None
    return None
