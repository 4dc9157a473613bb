"""Write files completely or not at all, never overwrite folders, and open nothing that is not a file."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from vitmed.core.errors import DataError, UsageError

# What a path may lead to that has no end, no content or an effect when it is opened.
SPECIAL = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse what is not a regular file before it is opened, because opening a FIFO waits for ever.

    Raises:
        DataError: a FIFO, a socket, a device, a folder, or a link that leads back to itself or nowhere.
        OSError: no such file, or its folder cannot be searched.
    """
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)  # noqa: PTH116  (a million of them)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DataError(f"{path}: a link that leads back to itself", "restore or remove it") from None
        if isinstance(error, FileNotFoundError) and os.path.islink(path):  # noqa: PTH114
            raise DataError(f"{path}: a broken link", "restore or remove it") from None
        raise
    if kind != stat.S_IFREG:
        raise DataError(f"{path}: {SPECIAL.get(kind, 'of an unknown kind')}, expected a file", "remove or rename it")


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Write a file completely or not at all: temporary file, fsync, rename, fsync of the folder.

    After a crash, a full disk or an exception, the old file is unchanged.

    Raises:
        UsageError: the folder cannot be written, or the disk is full.
    """
    path = Path(path)
    # Not of `mkstemp`, which makes private files: the umask to correct this cannot be read without changing it.
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
    try:
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        if hasattr(os, "O_DIRECTORY"):
            handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error})", "choose another place") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write bytes; see `whole_file`."""
    with whole_file(path) as stream:
        stream.write(data)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text; see `whole_file`. Characters that are not Unicode, as in file names, get backslashes."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: str | Path, value: Any) -> None:
    """Write indented JSON; see `whole_file`. NaN is an error."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def make_folder(path: str | Path) -> None:
    """Make a folder and its parents if they are missing. Raises UsageError."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})", "choose another --output") from None


def check_writable(file: Path) -> None:
    """Raise UsageError if a file cannot be written: its folder is missing or not writable."""
    if not file.parent.is_dir():
        raise UsageError(f"{file}: its folder is missing", "make it first")
    if file.is_dir():
        raise UsageError(f"{file}: cannot be written (it is a folder)", "name a file")
    try:
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise UsageError(f"{file}: cannot be written ({error.strerror})", "choose another place") from None


def free_name(path: Path, suffix: str = "") -> Path:
    """The path itself, or with -2, -3, ... (before a file's `suffix`) where something of that name is there."""
    number, free = 1, path
    while free.exists() or free.is_symlink():
        number += 1
        free = path.with_name(f"{path.name.removesuffix(suffix)}-{number}{suffix}")
    return free


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a .jsonl file; none where it is missing. A torn last line is left out."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            records.append(json.loads(line))
    return records
