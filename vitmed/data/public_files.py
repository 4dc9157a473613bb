"""Convert the files of public data sets to folders: MedMNIST's arrays, CIFAR-10's batches, MNIST's IDX.

MedMNIST: `{train,val,test}_images`, (N, H, W) or (N, H, W, 3) uint8, and `{train,val,test}_labels`: (N, 1) or (N,)
integers, which are classes, or floats, a number; or (N, F) findings: 1, 0, or -1 where not known.

CIFAR-10: https://www.cs.toronto.edu/~kriz/cifar.html. A record of the binary version is one label byte and 3 planes of
32 x 32, red, green, blue. IDX: two zero bytes, the type (8: uint8), the number of dimensions, each dimension as four
bytes, big-endian, and the values.
"""

from __future__ import annotations

import gzip
import tokenize
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitmed.core.dataset_cards import cards, medmnist_classes
from vitmed.core.errors import DataError
from vitmed.core.files import write_text
from vitmed.core.messages import bar
from vitmed.core.text_files import csv_text
from vitmed.data.folders import SPLITS
from vitmed.data.thread_batches import in_threads

PIXELS = 3 * 32 * 32
RATIO = 100  # unpacked bytes per packed byte of an IDX file; MNIST's is 5
LEAST = 1 << 24
LABELS = "labels.csv"
CLASSES = 10_000  # larger labels are not classes
AGAIN = "fetch or copy it again"
OTHER = "vitmed reads the files of MedMNIST: {train,val,test}_{images,labels}, images uint8"

# What `np.load` raises for damaged files.
UNREADABLE = (
    *(ValueError, TypeError, AttributeError, EOFError, OverflowError, OSError, RecursionError, MemoryError),
    tokenize.TokenError,
)


class Split(NamedTuple):
    """Images (N, H, W) or (N, H, W, 3) uint8; labels (N,) int64 classes, (N, F) int64 findings, or (N,) float64."""

    images: np.ndarray
    labels: np.ndarray

    @property
    def classified(self) -> bool:
        """Whether the labels are classes."""
        return self.labels.ndim == 1 and self.labels.dtype.kind in "iu"


class PublicSet(NamedTuple):
    """A complete data set: number -> name of the class or finding, and split name -> images and labels."""

    classes: dict[int, str]
    parts: dict[str, Split]


def read_public_files(folder: Path, source: Path | None = None) -> PublicSet | None:
    """A folder of MedMNIST's arrays, or of CIFAR or MNIST files; None for any other folder. Raises DataError.

    `source`: the file that it was unpacked from, whose name says which set of MedMNIST it is.
    """
    found = _medmnist(folder, source or folder) or _cifar(folder) or _mnist(folder)
    if found is None:
        return None
    path = source or folder
    for split, (images, labels) in found.parts.items():
        if len(images) != len(labels) or not len(labels):
            raise DataError(f"{path}: {len(images):,} images but {len(labels):,} labels in {split}", AGAIN)
        unknown = sorted(set(np.unique(labels).tolist()) - set(found.classes))
        if unknown and found.parts[split].classified:
            problem = f"{path}: label {unknown[0]} in {split} is not one of {len(found.classes)} classes"
            raise DataError(problem, AGAIN)
    return found


def write_folder(original: PublicSet, folder: Path) -> int:
    """Write lossless `folder/<split>/<class>/<index>.png`, without classes `folder/<split>/<index>.png` and a table of
    labels; return the number of images. May raise OSError."""
    files = {}
    for split, part in original.parts.items():
        for index, label in enumerate(part.labels):
            above = f"{original.classes[int(label)]}/" if part.classified else ""
            files[split, index] = f"{split}/{above}{index:06d}.png"
    for above in {file.rpartition("/")[0] for file in files.values()}:
        (folder / above).mkdir(parents=True)

    def write(row: tuple[str, int]) -> None:
        split, index = row
        image = Image.fromarray(np.ascontiguousarray(original.parts[split].images[index]))
        image.save(folder / files[split, index], compress_level=4)

    with bar("writing", unit="images") as advance:
        for done, _ in enumerate(in_threads(write, list(files)), 1):
            advance(done, len(files))
    if not all(part.classified for part in original.parts.values()):
        rows = [["path", "split", *(original.classes.values() or ["label"])]]
        for (split, index), file in files.items():
            values = np.atleast_1d(original.parts[split].labels[index]).tolist()
            known = ["" if value == -1 or value != value else value for value in values]
            rows.append([file, split, *(known if original.classes else values)])
        write_text(folder / LABELS, csv_text(rows))
    return len(files)


# --- MedMNIST


def _medmnist(folder: Path, source: Path) -> PublicSet | None:
    have = [name for name in SPLITS if (folder / f"{name}_images.npy").is_file()]
    if not have or not all((folder / f"{name}_labels.npy").is_file() for name in have):
        return None
    parts = {name: _split(folder, name, source) for name in have}
    if len({(part.labels.shape[1:], part.labels.dtype) for part in parts.values()}) > 1:
        shapes = ", ".join(f"{name} {part.labels.dtype} {part.labels.shape}" for name, part in parts.items())
        raise DataError(f"{source}: its splits have labels of several kinds: {shapes}", OTHER)
    names, labels = medmnist_classes(source.name) or [], parts[have[0]].labels
    if labels.ndim == 2:
        unnamed = [f"finding {k}" for k in range(labels.shape[1])]
        return PublicSet(dict(enumerate(names if len(names) == len(unnamed) else unnamed)), parts)
    if not parts[have[0]].classified:
        return PublicSet({}, parts)
    numbers = sorted({k for part in parts.values() for k in np.unique(part.labels).tolist()})
    return PublicSet(dict(enumerate(names)) if numbers[-1] < len(names) else {k: str(k) for k in numbers}, parts)


def _split(folder: Path, name: str, source: Path) -> Split:
    images, labels = (_array(folder / f"{name}_{kind}.npy", source) for kind in ("images", "labels"))
    shape = images.shape
    if images.dtype != np.uint8 or not (len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)) or 0 in shape:
        raise DataError(
            f"{source}: {name}_images is {images.dtype} {shape}, expected uint8 (N, H, W) or (N, H, W, 3)",
            "vitmed reads no volumes (MedMNIST 3D); save the slices" if len(shape) == 4 else OTHER,
        )
    if labels.dtype.kind not in "iubf" or labels.ndim not in (1, 2) or len(labels) != shape[0] or not labels.size:
        expected = f"expected numbers ({shape[0]}, 1) or findings ({shape[0]}, F)"
        raise DataError(f"{source}: {name}_labels is {labels.dtype} {labels.shape}, {expected}", OTHER)
    if labels.ndim == 2 and labels.shape[1] > 1:
        labels = np.nan_to_num(labels, nan=-1)
        if not np.isin(labels, (-1, 0, 1)).all():
            what = f"{labels.min():g} to {labels.max():g}, expected 1, 0, or -1 (not known)"
            raise DataError(f"{source}: {name}_labels of {labels.shape[1]} findings holds {what}", OTHER)
        return Split(images, labels.astype(np.int64))
    labels = labels.reshape(-1)
    if labels.dtype.kind == "f" and not np.all(labels == labels // 1):
        return Split(images, labels.astype(np.float64))
    labels = labels.astype(np.int64)
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise DataError(f"{source}: {name}_labels holds {labels.min()} to {labels.max()}, expected classes", OTHER)
    return Split(images, labels)


def _array(file: Path, source: Path) -> np.ndarray:
    """Map an array from its file. Objects, which can run programs, are refused."""
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        if array.offset + array.nbytes != file.stat().st_size:
            raise ValueError(f"{array.dtype} {array.shape} is not what it holds")
    except UNREADABLE as error:
        raise DataError(f"{source}: {file.name} is not an array ({str(error)[:200]})", OTHER) from None
    return array


# --- CIFAR-10

BATCHES = {"train": [f"data_batch_{k}.bin" for k in range(1, 6)], "test": ["test_batch.bin"]}


def _cifar(path: Path) -> PublicSet | None:
    missing = [name for part in BATCHES.values() for name in part if not (path / name).is_file()]
    if len(missing) == sum(map(len, BATCHES.values())):
        return None
    if missing:
        raise DataError(f"{path}: {', '.join(missing)} is missing, of CIFAR-10", AGAIN)
    parts = {}
    for split, names in BATCHES.items():
        batches = [_batch(path / name) for name in names]
        parts[split] = Split(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))
    classes = cards()["cifar10"].classes
    return PublicSet(dict(enumerate(classes)), parts)


def _batch(file: Path) -> Split:
    data = np.frombuffer(_read(file), dtype=np.uint8)
    if not len(data) or len(data) % (1 + PIXELS):
        raise DataError(f"{file}: {len(data):,} bytes are no whole number of records of {1 + PIXELS}", AGAIN)
    records = data.reshape(-1, 1 + PIXELS)
    planes = records[:, 1:].reshape(-1, 3, 32, 32)
    return Split(planes.transpose(0, 2, 3, 1), records[:, 0].astype(np.int64))


# --- MNIST

MNIST = {"train": ("train-images-idx3", "train-labels-idx1"), "test": ("t10k-images-idx3", "t10k-labels-idx1")}


def _mnist(path: Path) -> PublicSet | None:
    names = [name for both in MNIST.values() for name in both]
    found = {}
    for name in names:  # some programs unpack "train-images-idx3-ubyte" as "train-images.idx3-ubyte"
        written = [f"{text}-ubyte{gz}" for text in (name, name.replace("-idx", ".idx")) for gz in ("", ".gz")]
        if file := next((path / text for text in written if (path / text).is_file()), None):
            found[name] = file
    if not found:
        return None
    if missing := [name.rpartition("-")[0] for name in names if name not in found]:
        raise DataError(f"{path}: {', '.join(missing)} is missing, expected MNIST's four files", AGAIN)
    parts = {split: Split(read_idx(found[x], 3), read_idx(found[y], 1)) for split, (x, y) in MNIST.items()}
    numbers = sorted({k for part in parts.values() for k in np.unique(part.labels).tolist()})
    return PublicSet({k: str(k) for k in numbers}, parts)


def read_idx(file: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of an IDX file, plain or gzipped. Raises DataError for another kind or a false header."""
    data = _read(file, max(LEAST, RATIO * file.stat().st_size))
    head = 4 + 4 * dimensions
    if data[:4] != bytes((0, 0, 8, dimensions)) or len(data) < head:
        raise DataError(f"{file}: not an IDX file of bytes with {dimensions} dimensions", AGAIN)
    shape = tuple(int(n) for n in np.frombuffer(data, dtype=">u4", count=dimensions, offset=4))
    values = np.frombuffer(data, dtype=np.uint8, offset=head)
    if values.size != int(np.prod(shape, dtype=object)):
        raise DataError(f"{file}: states {' x '.join(map(str, shape))} values, but holds {values.size:,}", AGAIN)
    return values.reshape(shape)


def _read(file: Path, limit: int = 1 << 30) -> bytes:
    """Content of a file, unpacked if it is gzipped. Raises DataError for more than `limit` bytes."""
    try:
        with file.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
            stream.seek(0)
            data = gzip.GzipFile(fileobj=stream).read(limit + 1) if packed else stream.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: cannot be read ({error})", AGAIN) from None
    if len(data) > limit:
        raise DataError(f"{file}: holds over {limit:,} bytes, too many for such a file", AGAIN)
    return data
