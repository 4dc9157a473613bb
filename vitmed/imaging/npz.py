"""MedMNIST files read like folders: `bloodmnist_224.npz/train/7/000123` is an image (split/class number/index).

A file holds `{train,val,test}_images`, (N, H, W) or (N, H, W, 3) uint8, and `{train,val,test}_labels`: (N, 1) or (N,)
integers, which are classes, or floats, a number; or (N, F) findings, as ChestMNIST has: 1, 0, or -1 where not known. An
image of a file without classes is `chestmnist.npz/train/000123`. The members of a file are unpacked once into the cache
and mapped into memory, so only what is used is read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import lzma
import math
import os
import shutil
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock

from vitmed.core.cache_folder import cache_folder
from vitmed.core.downloads import ROOM, check_room
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import check_regular
from vitmed.imaging import tars

SPLITS = ("train", "val", "test")
BLOCK = 1 << 20  # bytes
CLASSES = 10_000  # larger labels are not classes
OTHER = "vitmed reads the files of MedMNIST: {train,val,test}_{images,labels}, images uint8"


class Split(NamedTuple):
    """Images (N, H, W) or (N, H, W, 3) uint8, mapped into memory; labels (N,) int64 classes, (N, F) int64 findings, or
    (N,) float64 numbers."""

    images: np.ndarray
    labels: np.ndarray

    @property
    def paths(self) -> list[str]:
        """Of the images, relative to the split."""
        if not self.classified:
            return [f"{index:06d}" for index in range(len(self.labels))]
        return [f"{label}/{index:06d}" for index, label in enumerate(self.labels.tolist())]

    @property
    def classified(self) -> bool:
        """Whether the labels are classes."""
        return self.labels.ndim == 1 and self.labels.dtype.kind in "iu"


def is_npz(path: str | Path) -> bool:
    """Whether the path is an existing .npz file."""
    return str(path).lower().endswith(".npz") and Path(path).is_file()


def file_of(path: str | Path) -> Path | None:
    """The .npz file at the path or above it; None for other paths, and for a folder with such a name."""
    if ".npz" not in str(path).lower():  # fast: called for millions of paths
        return None
    path = Path(path)
    return next((p for p in (path, *path.parents) if p.suffix.lower() == ".npz" and p.is_file()), None)


def inside(path: str | Path) -> bool:
    """Whether the path lies below an .npz file, as its images do."""
    file = file_of(path)
    return file is not None and file != Path(path)


def read(path: Path) -> np.ndarray:
    """(H, W) or (H, W, 3) uint8: the image at a path below an .npz file. Raises DataError."""
    file = file_of(path)
    assert file is not None, path
    parts = path.relative_to(file).parts
    with contextlib.suppress(ValueError, KeyError, IndexError):
        split, *label, index = parts
        part = open_npz(file)[split]
        of_class = [int(part.labels[int(index)])] if part.classified else []
        if int(index) >= 0 and [*map(int, label)] == of_class:
            return np.ascontiguousarray(part.images[int(index)])
    raise DataError(f"{path}: no such image in {file.name}", "the file has changed: restore it, or name the right one")


def content(path: Path) -> bytes:
    """The bytes that identify an image: those of its file, in a tar or not, or its pixels in an .npz file.

    Raises:
        OSError: no such file. DataError: not a regular file, or no such image in the .npz file or tar.
    """
    if inside(path):
        return read(path).tobytes()
    if tars.inside(path):
        return tars.read(path)
    check_regular(path)
    return path.read_bytes()


def open_npz(file: Path) -> dict[str, Split]:
    """The splits of a file, in the order train, val, test.

    Raises:
        DataError: not a MedMNIST file, damaged, or changed while it was read.
        UsageError: the cache cannot be written.
    """
    try:
        about = file.stat()
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}", "restore the file") from None
    return _open(file.absolute(), about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=8)
def _open(file: Path, size: int, changed: int) -> dict[str, Split]:
    folder = cache_folder() / "npz" / hashlib.sha256(os.fsencode(file)).hexdigest()[:32]
    place = folder / f"{size}-{changed}"
    try:
        if not place.is_dir():
            for made in (folder.parent, folder):
                made.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(folder / "lock"):  # one process unpacks; the system releases the lock of a dead process
                if not place.is_dir():
                    _unpack(file, folder, place)
        arrays = {member.stem: np.load(member, mmap_mode="r", allow_pickle=False) for member in place.glob("*.npy")}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{folder}: cannot be used ({reason})", ROOM) from None
    splits = {}
    for name in SPLITS:
        if f"{name}_images" in arrays:
            splits[name] = Split(arrays[f"{name}_images"], _labels(file, name, arrays[f"{name}_labels"]))
    shapes = {f"{part.labels.dtype} (N{', F' * (part.labels.ndim - 1)})": name for name, part in splits.items()}
    if len({(part.labels.shape[1:], part.labels.dtype) for part in splits.values()}) > 1:
        raise DataError(f"{file}: its splits have labels of several kinds: {', '.join(shapes)}", OTHER)
    return splits


def _labels(file: Path, split: str, array: np.ndarray) -> np.ndarray:
    """The labels of a split, as in `Split`. Raises DataError for values that are none."""
    labels = np.asarray(array)
    if labels.ndim == 2 and labels.shape[1] > 1:
        labels = np.nan_to_num(labels, nan=-1)
        if not np.isin(labels, (-1, 0, 1)).all():
            what = f"{labels.min():g} to {labels.max():g}, expected 1, 0, or -1 (not known)"
            raise DataError(f"{file}: {split}_labels of {labels.shape[1]} findings holds {what}", OTHER)
        return labels.astype(np.int64)
    labels = labels.reshape(-1)
    if labels.dtype.kind == "f" and not np.all(labels == labels // 1):
        return labels.astype(np.float64)
    labels = labels.astype(np.int64)
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise DataError(f"{file}: {split}_labels holds {labels.min()} to {labels.max()}, expected classes", OTHER)
    return labels


def _unpack(file: Path, folder: Path, place: Path) -> None:
    """Write the images and labels as .npy files, all or none; remove those of an older version of the file."""
    part = folder / "part"
    for old in folder.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
    part.mkdir(mode=0o700)
    try:
        with _opened(file) as archive:
            members = _members(file, archive)
            check_room(folder, sum(info.file_size for info in members))
            for info in members:
                with archive.open(info) as source, (part / info.filename).open("wb") as target:
                    shutil.copyfileobj(source, target, BLOCK)  # stops at the stated size, and checks the CRC
        part.replace(place)
    finally:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; an error in its bytes becomes a DataError."""
    try:
        stream = file.open("rb")
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}", "check its permissions") from None
    try:
        with stream, zipfile.ZipFile(stream) as archive:
            yield archive
    except (OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        # An error of the disk has a number; bz2's have none, and EINVAL is a seek to an offset that the file states.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise DataError(f"{file}: not a whole .npz file ({error})", "copy or fetch it again") from None


def _members(file: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The members to unpack, checked by their headers: type, shape, and a size that agrees with both."""
    names = archive.namelist()
    have = [name for name in SPLITS if f"{name}_images.npy" in names]
    if not have or any(f"{name}_labels.npy" not in names for name in have):
        inside = ", ".join(sorted(names)[:8]) or "nothing"
        raise DataError(f"{file}: not a file of MedMNIST, it holds {inside}", OTHER)
    if len(set(names)) < len(names):
        raise DataError(f"{file}: two members have one name", "copy or fetch it again")
    members = []
    for name in have:
        images, labels = (archive.getinfo(f"{name}_{kind}.npy") for kind in ("images", "labels"))
        (shape, dtype), (rows, kind) = _header(file, archive, images), _header(file, archive, labels)
        if dtype != np.uint8 or not (len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)) or 0 in shape:
            raise DataError(
                f"{file}: {name}_images is {dtype} {shape}, expected uint8 (N, H, W) or (N, H, W, 3)",
                "vitmed reads no volumes (MedMNIST 3D); save the slices" if len(shape) == 4 else OTHER,
            )
        if kind.kind not in "iubf" or len(rows) not in (1, 2) or rows[0] != shape[0] or 0 in rows:
            raise DataError(
                f"{file}: {name}_labels is {kind} {rows}, expected numbers ({shape[0]}, 1) or findings ({shape[0]}, F)",
                OTHER,
            )
        members += [images, labels]
    return members


def _header(file: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type that a member states. Raises DataError if its size disagrees."""
    with archive.open(info) as stream:
        try:
            version = np.lib.format.read_magic(stream)
            if version != (1, 0):  # later versions allow headers of up to 4 GB, which no image has
                raise ValueError(f"version {version[0]}.{version[1]} of the format")
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=10_000)
        except (ValueError, TypeError, EOFError, tokenize.TokenError, RecursionError, MemoryError) as error:
            raise DataError(f"{file}: {info.filename} is not an array ({error})", OTHER) from None
        begin = stream.tell()
    if dtype.hasobject:
        raise DataError(f"{file}: {info.filename} holds Python objects, which can run programs", "do not use this file")
    size = begin + math.prod(shape) * dtype.itemsize
    if size != info.file_size:
        raise DataError(
            f"{file}: {info.filename} states {dtype} {shape}, {size:,} bytes, but has {info.file_size:,}",
            "copy or fetch it again",
        )
    return shape, dtype
