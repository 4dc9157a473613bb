"""Files of a public set, or archives of them, as a folder of images.

Archives are unpacked safely: no file outside the folder, no links, no bombs, and no partial result. The standard
library reads them. Its filters are not enough: `tarfile.data_filter` allows links within the folder and limits no size,
and `zipfile` has no filter (docs/libraries.md).
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import shutil
import stat
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, cast

from vitmed.core.dataset_cards import Card
from vitmed.core.downloads import check_room
from vitmed.core.errors import DataError
from vitmed.core.files import write_text
from vitmed.core.messages import bar
from vitmed.core.text_files import csv_text
from vitmed.data.folders import has_classes, image_files
from vitmed.data.patients import groups_of
from vitmed.data.public_files import LABELS, OTHER, read_public_files, write_folder

BLOCK = 1 << 20  # bytes
RATIO = 100  # unpacked bytes per packed byte above which an archive counts as a bomb; images stay below 10
LEAST = 1 << 24  # bytes that every archive may unpack to
MEMBERS = 5_000_000
ZIPS = (".zip", ".npz")
SUFFIXES = (*ZIPS, ".tar", ".tar.gz", ".tgz")  # of what `unpack` reads
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, UnicodeError)
AGAIN = "fetch or copy it again"
HOSTILE = "do not use this archive; get it from its owner and check its hash"


class Member(NamedTuple):
    """A file or folder of an archive: name, size in bytes, and a function that opens it; None for a folder."""

    name: str
    size: int
    open: Callable[[], IO[bytes]] | None


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the files of a zip or tar archive into an existing, empty folder. Archives inside are not unpacked.

    Every member is checked before any is written: its name lies in the folder, it is a file or a folder, no two
    folders differ only in case, and all together fit on the disk and are at most `RATIO` times the archive.

    Raises:
        DataError: a hostile or damaged archive; the caller removes what was written.
        UsageError: no disk space.
        OSError: the folder cannot be written.
    """
    try:
        stream = archive.open("rb")
    except OSError as error:
        raise DataError(f"{archive}: cannot be read ({error.strerror})", "name a zip or tar file") from None
    with stream, _as_data_error(archive), bar(f"unpacking {archive.name}", unit="files") as advance:
        members: list[Member] = []
        total, limit = 0, max(LEAST, RATIO * archive.stat().st_size)
        for member in (_zip_members if archive.name.lower().endswith(ZIPS) else _tar_members)(archive, stream):
            total += abs(member.size)
            if total > limit or len(members) > MEMBERS:  # before more of a tar is unpacked
                raise _bomb(archive)
            name = member.name  # may lead out of the folder, on this system or another
            if not name or name.startswith("/") or ".." in PurePosixPath(name).parts or any(c in name for c in "\\:\0"):
                raise DataError(f"{archive}: the member {name!r} would lie outside its folder", HOSTILE)
            members.append(member)
        seen: dict[str, str] = {}  # of folders that are the same on macOS or Windows, which would mix their images
        for name in {str(above) for member in members for above in PurePosixPath(member.name).parents}:
            other = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
            if other != name:
                raise DataError(f"{archive}: {name!r} and {other!r} are the same name on other systems", HOSTILE)
        check_room(folder.parent, total, "make room")
        for done, member in enumerate(members, 1):
            if member.open:
                path = folder / member.name
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    target = path.open("xb")  # with the usual permissions of a new file
                except (FileExistsError, NotADirectoryError, IsADirectoryError):
                    raise DataError(f"{archive}: two members have the name {member.name!r}", HOSTILE) from None
                with target, member.open() as source:
                    shutil.copyfileobj(source, target, BLOCK)
            advance(done, len(members))


def _zip_members(archive: Path, stream: IO[bytes]) -> Iterator[Member]:
    file = zipfile.ZipFile(stream)  # reads no more of a member than its stated size
    for info in file.infolist():
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):  # 0: not stated
            raise _no_file(archive, info.filename)
        yield Member(info.filename, info.file_size, None if info.is_dir() else partial(file.open, info))


def _tar_members(archive: Path, stream: IO[bytes]) -> Iterator[Member]:
    packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    plain: Any = _LimitedReads(archive, cast(Any, gzip.GzipFile(fileobj=stream)) if packed else stream)
    file = tarfile.TarFile(fileobj=plain)
    for info in file:
        if not (info.isreg() or info.isdir()):
            raise _no_file(archive, info.name)
        yield Member(info.name, info.size, cast(Any, partial(file.extractfile, info)) if info.isreg() else None)
    plain.seek(file.offset)
    if any(plain.read(tarfile.BLOCKSIZE) or b"x"):  # a whole tar ends in blocks of zeros
        raise tarfile.ReadError("it ends early")


class _LimitedReads:
    """A stream that refuses large reads: a tar may claim a name of gigabytes, which tarfile would keep in memory."""

    def __init__(self, archive: Path, stream: IO[bytes]):
        self.archive, self.stream = archive, stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= LEAST:
            raise _bomb(self.archive)
        return self.stream.read(size)


def _no_file(archive: Path, name: str) -> DataError:
    return DataError(f"{archive}: {name!r} is a link or a device, not a file", HOSTILE)


def _bomb(archive: Path) -> DataError:
    return DataError(f"{archive}: would unpack to over {RATIO} times its size, unlike any images", HOSTILE)


@contextlib.contextmanager
def _as_data_error(archive: Path) -> Iterator[None]:
    try:
        yield
    except (*DAMAGED, OSError) as error:
        # Of the disk; gzip has no number, and EINVAL is an offset that the file states.
        if getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise
        raise DataError(f"{archive}: not a complete archive ({error})", AGAIN) from None
    except (NotImplementedError, RuntimeError) as error:  # an unknown compression, or a password
        raise DataError(f"{archive}: cannot be unpacked ({error})", AGAIN) from None


GROUPS = "groups.csv"
KINDS = "a MedMNIST .npz, CIFAR-10 or MNIST files, or a zip or tar of one of these or of images"


def labels_flag(folder: Path) -> str:
    """Name the flag for the labels of a folder without classes; "" for one with classes."""
    return f" --labels {folder / LABELS}" if (folder / LABELS).is_file() else ""


def convert(source: Path, part: Path) -> None:
    """Fill the folder `part` from a folder of a public set, or from an archive of one or of images, which stay as they
    are. Raises DataError for anything else."""
    if source.is_dir():
        if (original := read_public_files(source)) is None:
            raise DataError(f"{source}: vitmed does not know this kind of file", f"name {KINDS}")
        write_folder(original, part)
        return
    if not source.name.lower().endswith(SUFFIXES):
        raise DataError(f"{source}: vitmed does not know this kind of file", f"name {KINDS}")
    with _unpacked(source, part) as place:
        while (original := read_public_files(place, source)) is None and not has_classes(place):
            inner = [entry for entry in place.iterdir() if not entry.name.startswith(".")]
            if source.suffix.lower() == ".npz":
                names = ", ".join(sorted(entry.name for entry in inner)[:8]) or "nothing"
                raise DataError(f"{source}: not a file of MedMNIST, it holds {names}", OTHER)
            if len(inner) == 1 and inner[0].is_dir():
                place = inner[0]
            elif image_files(place):
                break
            else:
                raise DataError(f"{source}: holds no kind of file that vitmed knows", f"name {KINDS}")
        if original is not None:
            write_folder(original, part)
        for entry in sorted(place.iterdir()) if original is None else ():
            entry.rename(part / entry.name)


@contextlib.contextmanager
def _unpacked(archive: Path, part: Path) -> Iterator[Path]:
    """A folder with the content of the archive, until the end of the block."""
    top = part / ".unpacked"
    top.mkdir()
    unpack(archive, top)
    shutil.rmtree(top / "__MACOSX", ignore_errors=True)  # added to zip files by macOS
    yield top
    shutil.rmtree(top)


def pick_classes(archive: Path, card: Card, part: Path) -> None:
    """Take only the class folders named by the card from the archive. Raises DataError if one is missing."""
    assert card.download is not None
    with _unpacked(archive, part) as top:
        for name in card.classes:
            found = top / card.download.folder / name
            if not found.is_dir():
                missing = f"{archive}: has no folder {card.download.folder}/{name}"
                raise DataError(missing, "report it: the card of this set may be out of date")
            found.rename(part / name)


def write_groups(folder: Path, images: list[Path], card: Card) -> int | None:
    """Write groups.csv if the card's expression finds patients; their number, or None if the card has none."""
    if card.group_regex is None:
        return None
    paths = [path.relative_to(folder).as_posix() for path in images]
    rows = [(path, group or "") for path, group in zip(paths, groups_of(card.group_regex, paths), strict=True)]
    write_text(folder / GROUPS, csv_text([("path", "patient"), *rows]))
    return len({patient for _, patient in rows if patient})
