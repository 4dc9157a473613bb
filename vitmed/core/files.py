"""Write files completely or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from vitmed.core.errors import UsageError


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Write a file completely or not at all: temporary file, fsync, rename, fsync of the folder.

    After a crash, a full disk or an exception, the old file is unchanged. The target of a link is replaced, not the
    link. A device or a pipe is written to.

    Raises:
        UsageError: the folder cannot be written, or the disk is full.
    """
    path = Path(path)
    try:
        with _opened(path) if is_stream(path) else _renamed(Path(os.path.realpath(path))) as stream:
            yield stream
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error})", "choose another place") from None


def is_stream(path: Path) -> bool:
    """Whether a path names a device, a pipe, or an open file of this process, as /dev/stdout does."""
    return _DESCRIPTOR.fullmatch(str(path)) is not None or (path.exists() and not path.is_file() and not path.is_dir())


_DESCRIPTOR = re.compile(r"/dev/(?:fd/(?P<number>\d+)|(?P<out>stdout)|stderr)")


def _opened(path: Path) -> BinaryIO:
    if match := _DESCRIPTOR.fullmatch(str(path)):  # opened by its name, a file would be written again from its start
        number = int(match["number"] or (1 if match["out"] else 2))
        return os.fdopen(os.dup(number), "wb")
    return path.open("wb")


@contextlib.contextmanager
def _renamed(path: Path) -> Iterator[BinaryIO]:
    """A temporary file beside `path`, which takes its name at the end."""
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


def free_name(path: Path, suffix: str = "") -> Path:
    """The path itself, or with -2, -3, ... (before a file's `suffix`) where something of that name is there."""
    number, free = 1, path
    while free.exists() or free.is_symlink():
        number += 1
        free = path.with_name(f"{path.name.removesuffix(suffix)}-{number}{suffix}")
    return free


def why_unreadable(path: Path) -> tuple[str, str] | None:
    """Why a file cannot be read, and what to do about it; None for a readable regular file. Opens nothing."""
    try:
        mode = path.stat().st_mode
    except PermissionError:
        return "permission denied, in one of its folders", "ask the owner for the right to read it"
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        return "no such file" if missing else str(getattr(error, "strerror", error)), "check the path"
    if stat.S_ISDIR(mode):
        return "is a folder, expected a file", "name a file in it"
    if not stat.S_ISREG(mode):
        return "is a pipe or a device, expected a file", "save its content as a file first"
    if not os.access(path, os.R_OK):
        return "permission denied", f"ask its owner, or: chmod u+r {path}"
    return None


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a .jsonl file; none where it is missing. A torn last line is left out."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            records.append(json.loads(line))
    return records
