"""Files of a public set, or archives of them, as a folder of images: arrays of MedMNIST, CIFAR-10, MNIST's IDX.

Archives are unpacked safely: no file outside the folder, no links, no bombs, and no partial result. The standard
library reads them. Its filters are not enough: `tarfile.data_filter` allows links within the folder and limits no size,
and `zipfile` has no filter (docs/libraries.md).

MedMNIST: `{train,val,test}_images`, (N, H, W) or (N, H, W, 3) uint8, and `{train,val,test}_labels`: (N, 1) or (N,)
integers or a few whole floats from 0 on, which are classes; other floats, a number; (N, F) findings: 1, 0, -1 unknown.

CIFAR-10: https://www.cs.toronto.edu/~kriz/cifar.html. A record of the binary version is one label byte and 3 planes of
32 x 32, red, green, blue. IDX: two zero bytes, the type (8: uint8), the number of dimensions, each dimension as four
bytes, big-endian, and the values.
"""

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

import numpy as np
from PIL import Image

from vitmed.core.dataset_cards import Card, cards
from vitmed.core.downloads import check_room
from vitmed.core.errors import DataError
from vitmed.core.files import write_text
from vitmed.core.messages import bar
from vitmed.core.text import quoted
from vitmed.core.text_files import csv_text
from vitmed.data.folders import SPLITS, has_classes, image_names
from vitmed.data.label_kinds import MANY_VALUES
from vitmed.data.thread_batches import in_threads

BLOCK = 1 << 20  # bytes
RATIO = 100  # unpacked bytes per packed byte above which an archive counts as a bomb; images stay below 10
LEAST = 1 << 24  # bytes that every archive may unpack to
MEMBERS = 5_000_000
ZIPS = (".zip", ".npz")
SUFFIXES = (*ZIPS, ".tar", ".tar.gz", ".tgz")  # of what `unpack` reads
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, UnicodeError)
AGAIN = "fetch or copy it again"
BOMB = f"would unpack to over {RATIO} times its size, unlike any images"
HOSTILE = "do not use this archive; get it from its owner and check its hash"
KINDS = "a MedMNIST .npz, CIFAR-10 or MNIST files, or a zip or tar of one of these or of images"
PIXELS = 3 * 32 * 32
LABELS = "labels.csv"
CLASSES = 10_000  # larger labels are not classes
OTHER = "vitmed reads the files of MedMNIST: {train,val,test}_{images,labels}, images uint8"


class Member(NamedTuple):
    """A member of an archive: name, size in bytes, a function that opens it, None for a folder; no link, no device."""

    name: str
    size: int
    open: Callable[[], IO[bytes]] | None
    plain: bool


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
    try:
        with stream, bar(f"unpacking {archive.name}", unit="files") as advance:
            members: list[Member] = []
            total, limit = 0, max(LEAST, RATIO * archive.stat().st_size)
            for member in _members(archive, stream):
                name = member.name  # may lead out of the folder, on this system or another
                if not member.plain:
                    raise DataError(f"{archive}: {name!r} is a link or a device, not a file", HOSTILE)
                total += abs(member.size)
                if total > limit or len(members) > MEMBERS:  # before more of a tar is unpacked
                    raise DataError(f"{archive}: {BOMB}", HOSTILE)
                odd = ".." in PurePosixPath(name).parts or any(c in name for c in "\\:\0")
                if not name or name.startswith("/") or odd:
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
    except (*DAMAGED, OSError) as error:
        # Of the disk; gzip has no number, and EINVAL is an offset that the file states.
        if getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise
        raise DataError(f"{archive}: not a complete archive ({error})", AGAIN) from None
    except (NotImplementedError, RuntimeError) as error:  # an unknown compression, or a password
        raise DataError(f"{archive}: cannot be unpacked ({error})", AGAIN) from None


def _members(archive: Path, stream: IO[bytes]) -> Iterator[Member]:
    if archive.name.lower().endswith(ZIPS):
        of_zip = zipfile.ZipFile(stream)  # reads no more of a member than its stated size
        for entry in of_zip.infolist():
            usual = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)  # 0: not stated
            name = entry.filename.replace("\\", "/")  # as some programs of Windows write it
            reader = None if name.endswith("/") else partial(of_zip.open, entry)
            yield Member(name, entry.file_size, reader, usual)
        return
    packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    plain: Any = _LimitedReads(archive, cast(Any, gzip.GzipFile(fileobj=stream)) if packed else stream)
    of_tar = tarfile.TarFile(fileobj=plain)
    for info in of_tar:
        opened = cast(Any, partial(of_tar.extractfile, info)) if info.isreg() else None
        yield Member(info.name, info.size, opened, info.isreg() or info.isdir())
    plain.seek(of_tar.offset)
    if any(plain.read(tarfile.BLOCKSIZE) or b"x"):  # a whole tar ends in blocks of zeros
        raise tarfile.ReadError("it ends early")


class _LimitedReads:
    """A stream that refuses large reads: a tar may claim a name of gigabytes, which tarfile would keep in memory."""

    def __init__(self, archive: Path, stream: IO[bytes]):
        self.archive, self.stream = archive, stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= LEAST:
            raise DataError(f"{self.archive}: {BOMB}", HOSTILE)
        return self.stream.read(size)


def labels_flag(folder: Path, source: Path) -> str:
    """Name the flags for the labels of a folder without classes, and for the grades of MedMNIST; "" for classes."""
    grades = " --target grades" * source.name.lower().startswith("retinamnist")  # of classes, by all but its name
    if grades or not (table := folder / LABELS).is_file():
        return grades
    number = source.suffix.lower() == ".npz" and table.read_bytes().startswith(b"path,split,label\r\n")
    return f" --labels {quoted(table)}{' --target number' * number}"


def convert(source: Path, part: Path) -> None:
    """Fill the folder `part` from a folder of a public set, or from an archive of one or of images, which stay as they
    are. Raises DataError for anything else."""
    original = read_public_files(source) if source.is_dir() else None
    if original is not None:
        write_folder(original, part)
        return
    if source.is_dir() or not source.name.lower().endswith(SUFFIXES):
        raise DataError(f"{source}: vitmed does not know this kind of file", f"name {KINDS}")
    with _unpacked(source, part) as place:
        while (original := read_public_files(place, source)) is None and not has_classes(place):
            inner = [entry for entry in place.iterdir() if not entry.name.startswith(".")]
            if source.suffix.lower() == ".npz":
                names = ", ".join(sorted(entry.name for entry in inner)[:8]) or "nothing"
                raise DataError(f"{source}: not a file of MedMNIST, it holds {names}", OTHER)
            if len(inner) == 1 and inner[0].is_dir():
                place = inner[0]
            elif image_names(place):
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
            folder = top / card.download.folder / name
            if not folder.is_dir():
                missing = f"{archive}: has no folder {card.download.folder}/{name}"
                raise DataError(missing, "report it: the card of this set may be out of date")
            folder.rename(part / name)


class Split(NamedTuple):
    """Images (N, H, W) or (N, H, W, 3) uint8; labels (N,) int64 classes, (N, F) int64 findings, or (N,) float64."""

    images: np.ndarray
    labels: np.ndarray

    @property
    def classified(self) -> bool:
        return self.labels.ndim == 1 and self.labels.dtype.kind in "iu"


class PublicSet(NamedTuple):
    """A complete data set: number -> name of the class or finding, and split name -> images and labels."""

    classes: dict[int, str]
    parts: dict[str, Split]


def read_public_files(folder: Path, source: Path | None = None) -> PublicSet | None:
    """A folder of MedMNIST's arrays, or of CIFAR or MNIST files; None for any other folder. Raises DataError.

    `source`: the file that it was unpacked from, whose name says which set of MedMNIST it is.
    """
    path = source or folder
    if (original := _medmnist(folder, path) or _cifar(folder) or _mnist(folder)) is None:
        return None
    for split, part in original.parts.items():
        count, labels = len(part.images), part.labels
        if count != len(labels) or not len(labels):
            raise DataError(f"{path}: {count:,} images but {len(labels):,} labels in {split}", AGAIN)
        unknown = sorted(set(np.unique(labels).tolist()) - set(original.classes)) if part.classified else []
        if unknown:
            problem = f"{path}: label {unknown[0]} in {split} is not one of {len(original.classes)} classes"
            raise DataError(problem, AGAIN)
    return original


def write_folder(original: PublicSet, folder: Path) -> None:
    """Write lossless `folder/<split>/<class>/<index>.png`, without classes `folder/<split>/<index>.png` and a table of
    labels. May raise OSError."""
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


# --- MedMNIST


def _medmnist(folder: Path, source: Path) -> PublicSet | None:
    have = [name for name in SPLITS if (folder / f"{name}_images.npy").is_file()]
    if not have or not all((folder / f"{name}_labels.npy").is_file() for name in have):
        return None
    parts = {name: _split(folder, name, source) for name in have}
    every = np.concatenate([part.labels.ravel() for part in parts.values()])
    if every.dtype.kind == "i" or (len(of := np.unique(every)) <= MANY_VALUES and of[0] >= 0 and (of == of // 1).all()):
        parts = {name: part._replace(labels=part.labels.astype(np.int64)) for name, part in parts.items()}
        for name, (_, found) in parts.items():
            if found.ndim == 1 and (found.min() < 0 or found.max() >= CLASSES):
                problem = f"{source}: {name}_labels holds {found.min()} to {found.max()}, expected classes"
                raise DataError(problem, OTHER)
    if len({(part.labels.shape[1:], part.labels.dtype) for part in parts.values()}) > 1:
        shapes = ", ".join(f"{name} {part.labels.dtype} {part.labels.shape}" for name, part in parts.items())
        raise DataError(f"{source}: its splits have labels of several kinds: {shapes}", OTHER)
    stem, labels = source.name.lower().partition(".")[0].partition("_")[0], parts[have[0]].labels  # bloodmnist_224.npz
    sets: Any = cards()["medmnist_plus"].classes  # of each the classes in numeric order
    names = {name.lower(): classes for name, classes in sets.items()}.get(stem, [])
    if labels.ndim == 2:
        unnamed = [f"finding {k}" for k in range(labels.shape[1])]
        return PublicSet(dict(enumerate(names if len(names) == len(unnamed) else unnamed)), parts)
    if not parts[have[0]].classified:
        return PublicSet({}, parts)
    numbers = sorted({k for part in parts.values() for k in np.unique(part.labels).tolist()})
    return PublicSet(dict(enumerate(names)) if numbers[-1] < len(names) else {k: str(k) for k in numbers}, parts)


def _split(folder: Path, name: str, source: Path) -> Split:
    arrays = []
    for file in (folder / f"{name}_{kind}.npy" for kind in ("images", "labels")):
        try:
            array = np.load(file, mmap_mode="r", allow_pickle=False)  # no objects, which can run programs
            if array.offset + array.nbytes != file.stat().st_size:
                raise ValueError(f"{array.dtype} {array.shape} is not what it holds")
        except Exception as error:  # NumPy raises errors of every kind for damaged files
            raise DataError(f"{source}: {file.name} is not an array ({str(error)[:200]})", OTHER) from None
        arrays.append(array)
    images, labels = arrays
    shape = images.shape
    if images.dtype != np.uint8 or not (len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)) or 0 in shape:
        problem = f"{source}: {name}_images is {images.dtype} {shape}, expected uint8 (N, H, W) or (N, H, W, 3)"
        raise DataError(problem, "vitmed reads no volumes (MedMNIST 3D); save the slices" if len(shape) == 4 else OTHER)
    if labels.dtype.kind not in "iubf" or labels.ndim not in (1, 2) or len(labels) != shape[0] or not labels.size:
        expected = f"expected numbers ({shape[0]}, 1) or findings ({shape[0]}, F)"
        raise DataError(f"{source}: {name}_labels is {labels.dtype} {labels.shape}, {expected}", OTHER)
    if labels.ndim == 2 and labels.shape[1] > 1:
        labels = np.nan_to_num(labels, nan=-1)
        if not np.isin(labels, (-1, 0, 1)).all():
            what = f"{labels.min():g} to {labels.max():g}, expected 1, 0, or -1 (not known)"
            raise DataError(f"{source}: {name}_labels of {labels.shape[1]} findings holds {what}", OTHER)
        return Split(images, labels.astype(np.int64))
    return Split(images, labels.reshape(-1).astype(np.float64 if labels.dtype.kind == "f" else np.int64))


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
        batches = []
        for name in names:
            data = np.frombuffer(_read(path / name), dtype=np.uint8)
            if not len(data) or len(data) % (1 + PIXELS):
                what = f"{len(data):,} bytes are no whole number of records of {1 + PIXELS}"
                raise DataError(f"{path / name}: {what}", AGAIN)
            batches.append(data.reshape(-1, 1 + PIXELS))
        records = np.concatenate(batches)
        planes = records[:, 1:].reshape(-1, 3, 32, 32)
        parts[split] = Split(planes.transpose(0, 2, 3, 1), records[:, 0].astype(np.int64))
    return PublicSet(dict(enumerate(cards()["cifar10"].classes)), parts)


# --- MNIST

MNIST = {"train": ("train-images-idx3", "train-labels-idx1"), "test": ("t10k-images-idx3", "t10k-labels-idx1")}


def _mnist(path: Path) -> PublicSet | None:
    names = [name for both in MNIST.values() for name in both]
    files = {}
    for name in names:  # some programs unpack "train-images-idx3-ubyte" as "train-images.idx3-ubyte"
        written = [f"{text}-ubyte{gz}" for text in (name, name.replace("-idx", ".idx")) for gz in ("", ".gz")]
        if file := next((path / text for text in written if (path / text).is_file()), None):
            files[name] = file
    if not files:
        return None
    if missing := [name.rpartition("-")[0] for name in names if name not in files]:
        raise DataError(f"{path}: {', '.join(missing)} is missing, expected MNIST's four files", AGAIN)
    parts = {split: Split(read_idx(files[x], 3), read_idx(files[y], 1)) for split, (x, y) in MNIST.items()}
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
