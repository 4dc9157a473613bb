"""Write files and folders completely or not at all, never overwrite folders, and open nothing that is not a file."""

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from vitmed.core.errors import DataError, DiskFullError, UsageError

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
        fix = "name the files in it" if kind == stat.S_IFDIR else "remove or rename it"
        raise DataError(f"{path}: {SPECIAL.get(kind, 'of an unknown kind')}, expected a file", fix)


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PART = re.compile(r"\..+\.[0-9a-f]{16}\.part")  # the hidden name of what is being written
NEW = 1  # s after which a part is locked by its writer
OLD = 24 * 3600  # s after which a part is abandoned, where files have no locks


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Write a file completely or not at all: temporary file, fsync, rename, fsync of the folder.

    After a crash, a full disk or an exception, the old file is unchanged. The target of a link is replaced, not the
    link. A device or a pipe is written to. Raises UsageError: the folder cannot be written, or the disk is full.
    """
    path, target = Path(path), Path(os.path.realpath(path))
    # Not of `mkstemp`, which makes private files: the umask to correct this cannot be read without changing it.
    part = target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}.part")
    try:
        if match := _DESCRIPTOR.fullmatch(str(path)):  # opened by its name, a file would be written from its start
            with os.fdopen(os.dup(int(match["number"] or (1 if match["out"] else 2))), "wb") as stream:
                yield stream
        elif is_stream(path):
            with path.open("wb") as stream:
                yield stream
        else:
            try:
                with part.open("xb") as stream:
                    claim(stream.fileno())
                    yield stream
                    stream.flush()
                    os.fsync(stream.fileno())
                part.replace(target)
                _sync(target.parent)
            finally:
                with contextlib.suppress(OSError):
                    part.unlink()
    except OSError as error:
        raise not_written(path, error) from None


_DESCRIPTOR = re.compile(r"/dev/(?:fd/(?P<number>\d+)|(?P<out>stdout)|stderr)")


def is_stream(path: Path) -> bool:
    """Whether a path names a device, a pipe, or an open file of this process, as /dev/stdout does."""
    return _DESCRIPTOR.fullmatch(str(path)) is not None or (path.exists() and not path.is_file() and not path.is_dir())


@contextlib.contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Fill a new folder completely or not at all: yields a hidden folder beside it, which gets its name at the end.

    After a crash, a full disk or an exception there is no folder. Removes what killed processes left beside it. Raises
    UsageError: the folder cannot be written, the disk is full, or the folder is not empty.
    """
    path = Path(path).resolve()  # a link is followed, not replaced
    part, handle = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}.part"), None
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(path.parent)
            part.mkdir()
            if fcntl is not None:
                handle = os.open(part, os.O_RDONLY)
                claim(handle)
            yield part
            _sync(part)
            if os.name == "nt" and path.is_dir():  # elsewhere an empty folder is replaced
                path.rmdir()
            try:
                part.rename(path)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                for entry in list(part.iterdir()):  # into an empty folder that is mounted, as in a container
                    shutil.move(entry, path)
            _sync(path.parent)
        finally:
            if handle is not None:
                os.close(handle)
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise UsageError(f"{path}: exists already and is not empty", "name a new folder") from None
        raise not_written(path, error) from None


def remove_abandoned(folder: Path) -> None:
    """Remove the unfinished files and folders that killed processes left in a folder; one in use stays."""
    for part in folder.glob(".*.part"):
        if PART.fullmatch(part.name) is None:
            continue
        with contextlib.suppress(OSError):  # gone, or not ours
            age, free = time.time() - part.stat().st_mtime, None
            if fcntl is not None and age >= NEW:
                handle = os.open(part, os.O_RDONLY)
                try:
                    free = claim(handle)  # whether the process that wrote the part has ended
                finally:
                    os.close(handle)
            if age > OLD if free is None else free:
                shutil.rmtree(part) if part.is_dir() else part.unlink()


def claim(handle: int, shared: bool = False) -> bool | None:
    """Lock an open file or folder until it is closed; False: another process has it; None: there are no locks here.
    `shared`: beside others that share it; it need not be open for writing."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):
        return None
    return True


@contextlib.contextmanager
def locked(file: Path, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Let one process at a time into the block; if another is in it, call `waiting` and wait, or raise TimeoutError.
    The system releases the lock of a dead process. Raises OSError, also on a file system without locks."""
    from filelock import FileLock, Timeout  # here, since `predict` locks nothing

    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:  # a TimeoutError
        if waiting is None:
            raise
        waiting()
        lock.acquire()
    except NotImplementedError:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)) from None
    try:
        yield
    finally:
        lock.release()


def _sync(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_full(error: OSError) -> bool:
    """Whether a disk has no room; of the errors of many files, `shutil` gives only the text."""
    text = str(error) if isinstance(error, shutil.Error) else f"[Errno {error.errno}]"
    return any(f"[Errno {number}]" in text for number in (errno.ENOSPC, errno.EDQUOT))


def not_written(path: Path, error: OSError) -> UsageError:
    """The error for a file that the system does not let us write."""
    if not is_full(error) or is_stream(path):
        limited = "ulimit -f unlimited lifts a limit on the size of files; or choose a disk that takes larger ones"
        fix = limited if error.errno == errno.EFBIG else "choose another place"
        return UsageError(f"{path}: cannot be written ({error.strerror or error})", fix)
    free = "unknown"
    with contextlib.suppress(OSError):
        free = f"{shutil.disk_usage(path if path.is_dir() else path.parent).free / 2**20:,.1f} MB"
    return DiskFullError(f"{path}: cannot be written ({error.strerror}; free: {free})", DiskFullError.ROOM)


def write_bytes(path: str | Path, data: bytes) -> None:
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


def probe(folder: str | Path, named: str | Path | None = None) -> None:
    """Check, before the long work, that files can be made in a folder, which is made where it is missing, and that its
    disk has room for 1 MB. Raises UsageError, which names the folder or `named`."""
    make_folder(folder)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**20))
    except OSError as error:
        raise not_written(Path(named or folder), error) from None


def free_name(path: Path, suffix: str = "") -> Path:
    """The path itself, or with -2, -3, ... (before a file's `suffix`) where something of that name is there."""
    number, free = 1, path
    while free.exists() or free.is_symlink():
        number += 1
        free = path.with_name(f"{path.name.removesuffix(suffix)}-{number}{suffix}")
    return free


def is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


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


def json_of(text: str | bytes) -> Any:
    """What a JSON text of a user's file holds. Raises ValueError, also where it nests without end."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a .jsonl file; none where it is missing. A torn last line is left out."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            records.append(json_of(line))
    return records
