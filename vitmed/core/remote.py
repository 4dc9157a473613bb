"""Images at s3:// or gs:// addresses, copied into the cache folder before anything reads them.

The list of an address (name, size and etag of each file) decides what is copied: a file once per machine, again when it
has changed; what the list no longer names is removed from the copy. Nothing is written to the address.
"""

import functools
import json
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from vitmed.core.downloads import OFFLINE, check_room, is_offline, megabytes
from vitmed.core.errors import DataError, UsageError, VitmedError
from vitmed.core.files import claim, is_full, not_written, read_json_lines
from vitmed.core.messages import bar, say
from vitmed.core.run_folder import REMOTE, address_of, copies, is_remote, place_of
from vitmed.core.text import counted, first_line

AT_ONCE = 32  # files that are copied at the same time
MARGIN = 2**30  # bytes that stay free
WHOLE = "whole"  # key of the line of a record that says which address was copied to its end


class Remote(NamedTuple):
    """A file at an address: its key, size in bytes (-1: not known), and etag, which changes with the content."""

    key: str
    size: int
    etag: str


@functools.cache
def copied(address: str, place: Path) -> Path:
    """Copy what lies at an s3:// or gs:// address into its place in the cache folder, and return the place.

    Looks at an address once per process. With `--offline` or `VITMED_OFFLINE`, what was copied to its end before.

    Raises:
        UsageError: a package is missing, the copy does not fit on the disk, or there is no network and no whole copy.
        DataError: the address cannot be read, is empty, or names files that a folder cannot hold.
    """
    home, bucket = _bucket(address, place)
    record = home / f".{bucket}.jsonl"
    earlier = [copies() / line[WHOLE] for line in read_json_lines(record) if WHOLE in line]
    if is_offline(names=OFFLINE[:1]) and any(map(place.is_relative_to, earlier)):
        return place
    with _readable(address, home):
        copies().mkdir(mode=0o700, parents=True, exist_ok=True)  # a user's images
        home.mkdir(exist_ok=True)
        system, files = _listed(address, home)
        with (home / f".{bucket}.lock").open("w") as lock:
            while claim(lock.fileno()) is False:  # another process copies from the same bucket
                time.sleep(0.2)
            _fetch(system, address, files, place, record)
    return place


def names_below(address: str) -> dict[str, str]:
    """List the files at an address: sorted address -> version; nothing is copied. Raises as `copied`."""
    home, _ = _bucket(address, place := place_of(address))
    with _readable(address := f"{address_of(place)}", home):
        _, files = _listed(address, home)
    return dict(sorted((f"{address_of(path)}", f"{file.size} {file.etag}") for path, file in files.items()))


@contextmanager
def fetched(names: Sequence[str]) -> Iterator[dict[str, Path]]:
    """For the time of the block, copy the files that are at addresses: address -> the copy, which does not exist if the
    file no longer does. Raises as `copied`."""
    if not (addresses := [name for name in names if is_remote(name)]):
        yield {}
        return
    copies().mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=copies()) as folder:
        places = {name: Path(folder, f"{i}{Path(name).suffix}") for i, name in enumerate(addresses)}
        for scheme in REMOTE:
            some = [name for name in addresses if name.startswith(f"{scheme}://")]
            for start in range(0, len(some), AT_ONCE):
                batch = some[start : start + AT_ONCE]
                with _readable(batch[0], copies()):
                    files = {places[name]: Remote(name.partition("://")[2], -1, "") for name in batch}
                    _get(_system(batch[0]), files, batch[0])
        yield places


def _bucket(address: str, place: Path) -> tuple[Path, str]:
    """The folder of the copies of a scheme, and the name of the bucket. Raises UsageError without a bucket."""
    scheme, *keys = place.relative_to(copies()).parts
    if not keys:
        raise UsageError(f"{address}: names no bucket", "s3://BUCKET/FOLDER")
    return copies() / scheme, keys[0]


@contextmanager
def _readable(address: str, home: Path) -> Iterator[None]:
    """Turn what the libraries of an address raise into a DataError; they have no common class."""
    try:
        yield
    except VitmedError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and is_full(error):
            raise not_written(home, error) from None
        problem = f"{address}: cannot be read: {first_line(error) or type(error).__name__}"
        raise DataError(problem, "check the name, the network and the credentials (docs/data.md)") from None


def _system(address: str) -> Any:
    """The file system of an address. Raises UsageError."""
    scheme = address.split(":")[0]
    if is_offline(names=OFFLINE[:1]):  # the hub may be forbidden, and the lab's own store allowed
        raise UsageError(f"{address}: needs a network, which --offline or VITMED_OFFLINE forbids", "leave it out")
    try:
        import fsspec

        logging.getLogger("gcsfs").setLevel(logging.ERROR)  # which else says of each file what it could not ask
        return fsspec.filesystem(scheme)
    except ImportError:
        problem = f"{address}: {scheme}:// needs the packages fsspec and {REMOTE[scheme]}"
        raise UsageError(problem, "pip install 'vitmed[remote]'") from None


def _listed(address: str, home: Path) -> tuple[Any, dict[Path, Remote]]:
    """The file system of an address, and its files by the places of their copies below `home`."""
    system, files = _system(address), {}
    system.invalidate_cache()
    for key, about in system.find(address.partition("://")[2], detail=True).items():
        parts = key.removeprefix("/").split("/")
        if parts[-1] == "" or any(part.startswith(".") and part != ".." for part in parts):
            continue  # the mark of a folder, or hidden
        if ".." in parts or "" in parts or "\\" in key or "\0" in key:
            raise DataError(f"{address}: a key that is no path: {key!r}", "rename it, or name a folder below")
        etag = about.get("ETag") or about.get("etag") or about.get("md5Hash") or about.get("created") or ""
        files[home.joinpath(*parts)] = Remote(key, int(about["size"]), str(etag).strip('"'))
    if not files:
        raise DataError(f"{address}: nothing lies there", "name a folder that contains one folder of images per class")
    if both := sorted(files.keys() & {parent for path in files for parent in path.parents}):
        raise DataError(f"{address}: {files[both[0]].key} is a file and a folder", "rename one of the two")
    return system, files


def _fetch(system: Any, address: str, files: Mapping[Path, Remote], place: Path, record: Path) -> None:
    """Make `place` hold exactly these files: copy what is new or has changed, remove what is not among them.

    Args:
        record: a line for each file that was copied from the bucket: its key, size and etag; and one for each address
            that was copied to its end.
    """
    earlier = {line["key"]: line for line in read_json_lines(record) if "key" in line}
    missing = [
        path
        for path, file in files.items()
        if earlier.get(file.key) != file._asdict() or not path.is_file() or path.stat().st_size != file.size
    ]
    size = sum(files[path].size for path in missing)
    say(f"{address}: {counted(len(files), 'file')}; {len(missing)} to copy, {megabytes(size)}, into the cache folder")
    check_room(record.parent, size + MARGIN * bool(size))
    for path in sorted(place.rglob("*"), reverse=True):  # what is in a folder before it
        if path.is_dir():
            with suppress(OSError):  # one that is not empty stays
                path.rmdir()
        elif path not in files:
            path.unlink()
    with bar(f"copying {address}", unit="files") as advance, record.open("a", encoding="utf-8") as lines:
        for start in range(0, len(missing), AT_ONCE):
            some = {path: files[path] for path in missing[start : start + AT_ONCE]}
            if gone := _get(system, some, address):
                raise DataError(f"{address}: {gone[0]} vanished while it was copied", "run the command again")
            lines.writelines(json.dumps(file._asdict()) + "\n" for file in some.values())
            lines.flush()
            advance(start + len(some), len(missing))
        lines.write(json.dumps({WHOLE: place.relative_to(copies()).as_posix()}) + "\n")


def _get(system: Any, files: Mapping[Path, Remote], address: str) -> list[str]:
    """Copy files, each whole or not at all, and return the keys of those that are no longer there."""
    parts = {path: path.with_name(f".{secrets.token_hex(8)}.part") for path in files}
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        system.get([file.key for file in files.values()], [str(part) for part in parts.values()])
        for path, file in files.items():
            if file.size not in (-1, parts[path].stat().st_size):
                raise DataError(f"{address}: {file.key} changed while it was copied", "run the command again")
            with parts[path].open("rb") as stream:
                os.fsync(stream.fileno())
            parts[path].replace(path)
        return []
    except FileNotFoundError:
        if len(files) == 1:
            return [file.key for file in files.values()]
        return [key for path in files for key in _get(system, {path: files[path]}, address)]
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
