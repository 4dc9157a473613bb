"""Decode a file faithfully, or refuse it by name: the one door to pixels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from vitmed.core.errors import DataError, VitmedError
from vitmed.imaging import arrays, dicom, npz, rasters
from vitmed.imaging.colours import to_mode
from vitmed.imaging.decoded import Deep, FileFacts, Least
from vitmed.imaging.window import Linear, Own, Window, is_own, own_index, to_grey

Reader = Callable[[Path, int | None, Least | None], Deep | Image.Image]


def read_image(
    path: str | Path,
    channels: int = 3,
    *,
    frame: int | None = None,
    window: Window = None,
    least: Least | None = None,
) -> Image.Image:
    """Decode an image in the orientation that its EXIF tag asks for, 8 bits per channel.

    Transparency is composited on black (kept for 2 and 4 channels); palettes, CMYK and the like become RGB,
    and RGB becomes grey by ITU-R 601 luma for one channel. A colour profile other than sRGB is applied.

    Args:
        path: a file whose suffix stands in `READERS`, or a DICOM file of any name.
        channels: 1 grey, 2 grey + alpha, 3 RGB, 4 RGB + alpha.
        frame: which of several frames or pages, from 0; None refuses a file that has several.
        window: how values of more than 8 bits become grey levels; None refuses a file that has such.
        least: (width, height) of the file -> the least size that will do; a JPEG may be decoded so small.

    Returns:
        a Pillow image of mode L, LA, RGB or RGBA, 8 bits per channel.

    Raises:
        DataError: missing, unreadable, truncated, too large, several frames, or no window for what is deep.
        UsageError: a package that reads such files is not installed.
    """
    path = Path(path)
    return picture(path, decode(path, frame, least), channels, window)


def picture(path: Path, found: Deep | Image.Image, channels: int = 3, window: Window = None) -> Image.Image:
    """What `decode` returned, as 8 bits per channel; changes a picture in place. Arguments and errors: `read_image`."""
    with _told(path):
        return to_mode(in_window(path, found, window) if isinstance(found, Deep) else found, channels)


def decode(path: str | Path, frame: int | None = None, least: Least | None = None) -> Deep | Image.Image:
    """The pixels as they are stored: real values for what is deep, else a picture. Raises as `read_image`."""
    path = Path(path)
    with _told(path):
        found = _reader(path)[0](path, frame, least)
        if isinstance(found, Deep) and found.values.dtype.kind == "f" and not _finite(found.values):
            raise DataError(f"{path}: holds values that are not finite (NaN or infinite)", "mend or remove it")
        return found


def inspect(path: str | Path) -> FileFacts:
    """The facts of a file, from its head alone. Raises DataError where it is no image."""
    path = Path(path)
    with _told(path):
        return _reader(path)[1](path)


def read_size(path: str | Path) -> tuple[int, int]:
    """Width and height, px, from the head of the file alone. Raises DataError where it is no image."""
    facts = inspect(path)
    return facts.width, facts.height


def is_image(path: str | os.PathLike[str]) -> bool:
    """Whether a file is taken for an image: by its suffix, or, where it has none, as DICOM by its head.

    The names of DICOM files often end in a number (`IM-0001`, `1.2.840.10008`): that is no suffix.
    """
    name = os.path.basename(path)  # noqa: PTH119  (a million of them)
    suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122
    if suffix in READERS:
        return True
    if (suffix and not suffix[1:].isdigit()) or name.upper() == "DICOMDIR":
        return False
    try:
        with open(path, "rb") as stream:  # noqa: PTH123
            return dicom.has_magic(stream.read(132))
    except OSError:
        return False


def _reader(path: Path) -> tuple[Reader, Callable[[Path], FileFacts]]:
    """The reader for a file, by what it holds rather than by how it is called."""
    if npz.inside(path):
        return arrays.read_member, arrays.member_facts
    named = READERS.get(path.suffix.lower())
    if named is None and not (path.is_file() and is_image(path)):
        raise DataError(f"{path}: not an image type that vitmed reads", f"use {', '.join(READERS)}")
    with path.open("rb") as stream:
        head = stream.read(132)
    if not head:
        raise DataError(f"{path}: the file is empty (0 bytes)", "copy it again, or remove it")
    if dicom.has_magic(head):
        return dicom.read, dicom.facts
    if head.startswith(arrays.MAGIC):
        return arrays.read, arrays.facts
    if named is dicom.read:
        raise DataError(f"{path}: not a DICOM file: DICM does not stand at byte 128", "export it anew, or remove it")
    return rasters.read, rasters.facts


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Whatever a decoder raises, told by the name of the file."""
    try:
        yield
    except VitmedError:
        raise
    except FileNotFoundError:
        what, fix = (
            ("a broken link", "restore or remove it") if path.is_symlink() else ("no such file", "check its name")
        )
        raise DataError(f"{path}: {what}", fix) from None
    except PermissionError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})", "check its permissions") from None
    except Image.DecompressionBombError:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise DataError(f"{path}: more than {limit:,} pixels, refused", "cut it into tiles, or scale it down") from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: not an image, whatever its name says", "remove it or rename it") from None
    except Exception as error:  # decoders meet damaged files with errors of every kind
        reason = " ".join(str(error).replace(str(path), "").split())[:200] or type(error).__name__
        raise DataError(f"{path}: cannot be decoded ({reason})", "copy it again, or remove it") from None


def in_window(path: Path, found: Deep, window: Window) -> Image.Image:
    """Deep values as an 8-bit picture: L, LA, RGB or RGBA. Raises DataError where the window does not fit."""
    if window is None or window in ("auto", "percentiles"):
        raise DataError(
            f"{path}: {found.bits} bits per channel, which need a window; this run knows 8-bit images alone",
            "convert it to 8 bits as the images of training were; or train with --window auto on images like it",
        )
    grey = to_grey(found.values, _own(path, found, window) if is_own(window) else Linear(*window))  # type: ignore[misc]
    if found.inverted:
        np.subtract(255, grey, out=grey)
    image = Image.fromarray(np.ascontiguousarray(grey))
    if found.alpha is not None:
        image.putalpha(Image.fromarray(found.alpha))
    image.getexif()[rasters.ORIENTATION] = found.orientation
    return image


def _own(path: Path, found: Deep, window: str) -> Own:
    index = own_index(window)
    if index >= len(found.windows):
        has = f"{len(found.windows)} windows of its own" if found.windows else "no window of its own"
        raise DataError(
            f"{path}: has {has}, and the run's window is {window!r}",
            "train with --window percentiles, or with two numbers such as --window 40,400",
        )
    return found.windows[index]


def _finite(values: np.ndarray) -> bool:
    """In blocks, without a mask of the size of the image."""
    return all(np.isfinite(row).all() for row in np.array_split(values, max(1, values.size // 2**22)))


READERS: dict[str, Reader] = {
    ".png": rasters.read,
    ".jpg": rasters.read,
    ".jpeg": rasters.read,
    ".bmp": rasters.read,
    ".tif": rasters.read,
    ".tiff": rasters.read,
    ".webp": rasters.read,
    ".gif": rasters.read,
    ".jp2": rasters.read,
    ".j2k": rasters.read,
    ".jpx": rasters.read,
    ".dcm": dicom.read,
    ".dicom": dicom.read,
    ".npy": arrays.read,
}
