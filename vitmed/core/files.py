"""Files that are written whole or not at all, and folders that are never overwritten."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from vitmed.core.errors import UsageError


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Write a file whole or not at all: a temporary beside it, fsync, rename, fsync of the folder.

    A crash, a full disk or an exception leaves the old file as it was, and no temporary behind where the
    process lives to remove it.

    Raises:
        UsageError: the folder cannot be written, or the disk is full.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        handle, temporary = _open_temporary(path)
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        temporary = None
        _sync_folder(path.parent)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error})", "choose another place") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write bytes whole or not at all; see `whole_file`."""
    with whole_file(path) as stream:
        stream.write(data)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text whole or not at all; see `whole_file`. File names that are no Unicode get backslashes."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: str | Path, value: Any) -> None:
    """Write indented JSON (no NaN: they are an error) whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _open_temporary(path: Path) -> tuple[int, Path]:
    """A new file beside `path`, opened for writing; with the permissions that `open` would give it.

    Not `mkstemp`: its files are private, and the umask that would mend this cannot be read without changing it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    while True:
        temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
        with contextlib.suppress(FileExistsError):
            return os.open(temporary, flags, 0o666), temporary


def _sync_folder(folder: Path) -> None:
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_folder(path: str | Path) -> None:
    """Make a folder and those above it, where they are not there. Raises UsageError."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})", "choose another --output") from None


def check_writable(file: Path) -> None:
    """Raise UsageError where a file cannot be written later: its folder is missing or closed."""
    if not file.parent.is_dir():
        raise UsageError(f"{file}: its folder is not there", "make it first")
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
