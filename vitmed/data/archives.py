"""Unpacking what came from elsewhere: nothing leaves its folder, fills the disk, or is left half done."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import lzma
import os
import shutil
import stat
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from filelock import FileLock

from vitmed.core.cache_folder import cache_folder
from vitmed.core.downloads import megabytes
from vitmed.core.errors import DataError, UsageError
from vitmed.core.ui import Ui

BLOCK = 1 << 20  # bytes
RATIO = 100  # unpacked bytes per packed byte, beyond which an archive is a bomb; images do not even reach 10
LEAST = 1 << 24  # bytes that an archive may always unpack to
MEMBERS = 5_000_000
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
HOSTILE = "do not use this archive; take it from its owner, and check its hash"


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Fill a folder whole or not at all: what is written beside it gets its name at the end.

    What a process that died has left is removed. One process at a time.

    Raises:
        UsageError: something is there already, or nothing can be written.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100  (resolve would follow a link that is there)
    part = folder.with_name(f".{folder.name}.vitmed.part")
    lock = cache_folder() / "locks" / hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
    try:
        lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(lock):
            check_new(folder)
            folder.parent.mkdir(parents=True, exist_ok=True)
            if part.is_dir():
                shutil.rmtree(part)
            part.mkdir()
            try:
                yield part
                if folder.is_dir():
                    folder.rmdir()  # it is empty
                part.rename(folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror or error})", "name another place") from None


def check_new(folder: Path) -> None:
    """Raise UsageError where a folder is there and not empty, or something else is."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder}: is there already, and no folder", "name a new folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder}: is there already and not empty", "name a new folder, or remove it")


def is_archive(path: Path) -> bool:
    """Whether the name is that of an archive which `unpack` takes."""
    return path.name.lower().endswith(SUFFIXES)


def unpack(archive: Path, folder: Path, ui: Ui | None = None) -> None:
    """Unpack the files of a zip or tar archive into an existing, empty folder. Archives inside stay as they are.

    Every member is checked before any is written: its name lies in the folder, it is a file or a folder, no two
    names are one where case does not count, and all together fit on the disk and are at most `RATIO` times the
    archive.

    Raises:
        DataError: a hostile or damaged archive; what was written is for the caller to remove.
        UsageError: no room.
        OSError: the folder cannot be written.
    """
    ui = ui or Ui()
    try:
        stream = archive.open("rb")
    except OSError as error:
        raise DataError(f"{archive}: cannot be read ({error.strerror})", "name a zip or tar file") from None
    with stream, _damage(archive):
        if archive.name.lower().endswith(".zip"):
            _unzip(archive, zipfile.ZipFile(stream), folder, ui)
        else:
            _untar(archive, stream, folder, ui)


def _unzip(archive: Path, file: zipfile.ZipFile, folder: Path, ui: Ui) -> None:
    members = file.infolist()
    for info in members:
        kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the packer told none
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise DataError(f"{archive}: {info.filename!r} is a link or a device, not a file", HOSTILE)
    _check(archive, [(info.filename, info.is_dir(), info.file_size) for info in members], folder)
    with ui.bar(f"unpacking {archive.name}", unit="files") as advance:
        for done, info in enumerate(members, 1):
            if not info.is_dir():
                with file.open(info) as source:  # gives no more than the stated size
                    _write(source, folder / info.filename)
            advance(done, len(members))


def _untar(archive: Path, stream: IO[bytes], folder: Path, ui: Ui) -> None:
    magic = stream.read(6)
    stream.seek(0)
    opener = next((opener for start, opener in PACKERS.items() if magic.startswith(start)), None)
    plain = _Modest(archive, opener(stream) if opener else stream)
    with tarfile.open(fileobj=cast(IO[bytes], plain), mode="r:") as file:
        members: list[tarfile.TarInfo] = []
        budget = _limit(archive)
        for info in file:
            if not (info.isreg() or info.isdir()):
                raise DataError(f"{archive}: {info.name!r} is a link or a device, not a file", HOSTILE)
            budget -= abs(info.size)
            if budget < 0 or len(members) > MEMBERS:  # before more of it is unpacked, only to be read past
                raise _bomb(archive)
            members.append(info)
        _check(archive, [(info.name, info.isdir(), info.size) for info in members], folder)
        with ui.bar(f"unpacking {archive.name}", unit="files") as advance:
            for done, info in enumerate(members, 1):
                if info.isreg():
                    safe = tarfile.data_filter(info, str(folder))
                    source = file.extractfile(safe)
                    assert source is not None
                    with source:
                        _write(source, folder / safe.name)
                advance(done, len(members))


class _Modest:
    """A stream that refuses to read much at once: a tar may claim a name of gigabytes, which tarfile would hold."""

    def __init__(self, archive: Path, stream: IO[bytes]):
        self.archive, self.stream = archive, stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= LEAST:
            raise _bomb(self.archive)
        return self.stream.read(size)


PACKERS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}


def _write(source: IO[bytes], path: Path) -> None:
    """A new file, with the rights that any file of ours has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as target:
        shutil.copyfileobj(source, target, BLOCK)


def _check(archive: Path, members: list[tuple[str, bool, int]], folder: Path) -> None:
    """Raise DataError or UsageError where (name, is a folder, bytes) may not be unpacked."""
    if len(members) > MEMBERS:
        raise _bomb(archive)
    seen: dict[str, str] = {}
    files: set[str] = set()
    for name, is_folder, _ in members:
        parts = PurePosixPath(name).parts
        if not name or name.startswith(("/", "\\")) or ".." in parts or any(c in name for c in "\\:\0"):
            raise DataError(f"{archive}: the member {name!r} would lie outside of its folder", HOSTILE)
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            other = seen.setdefault(unicodedata.normalize("NFC", path).casefold(), path)
            if other != path:
                raise DataError(f"{archive}: {path!r} and {other!r} are one name on other systems", HOSTILE)
        if not is_folder:
            path = "/".join(parts)
            if path in files or not parts:
                raise DataError(f"{archive}: two members have the name {name!r}", HOSTILE)
            files.add(path)
    for path in files:
        above = PurePosixPath(path).parents
        if clash := next((str(p) for p in above if str(p) in files), None):
            raise DataError(f"{archive}: {clash!r} is a file and a folder", HOSTILE)
    total = sum(size for _, _, size in members)
    if total > _limit(archive):
        raise _bomb(archive)
    free = shutil.disk_usage(folder).free
    if total > free:
        raise UsageError(f"{folder.parent}: {megabytes(total)} are needed, {megabytes(free)} are free", "make room")


def _limit(archive: Path) -> int:
    return max(LEAST, RATIO * archive.stat().st_size)


def _bomb(archive: Path) -> DataError:
    return DataError(f"{archive}: would unpack to over {RATIO} times its size, which no images do", HOSTILE)


@contextlib.contextmanager
def _damage(archive: Path) -> Iterator[None]:
    """Whatever is wrong with the bytes of an archive becomes a DataError."""
    fix = "fetch or copy it again"
    try:
        yield
    except tarfile.FilterError as error:
        raise DataError(f"{archive}: {error}", HOSTILE) from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, UnicodeError) as error:
        raise DataError(f"{archive}: not a whole archive ({error})", fix) from None
    except (NotImplementedError, RuntimeError) as error:  # a method that zipfile has not, or a password
        raise DataError(f"{archive}: cannot be unpacked ({error})", fix) from None
    except OSError as error:
        if error.errno is not None:  # of the disk; gzip and bz2 have none
            raise
        raise DataError(f"{archive}: not a whole archive ({error})", fix) from None
