"""Decode an image file, or raise an error that names it. All pixels enter vitmed here."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

import numpy as np
from PIL import Image, UnidentifiedImageError

from vitmed.core.errors import DataError, VitmedError
from vitmed.core.files import check_regular
from vitmed.core.process import NO_WARNINGS
from vitmed.imaging import dicom, rasters
from vitmed.imaging.raw_image import PIXELS, SMALLER, ImageHeader, RawImage, TooLargeError, to_mode
from vitmed.imaging.window import Linear, Window, asked_window, file_window_index, to_grey

# Packages that decode a file or compute with its pixels. Packages that are not installed count as absent.
DECODERS = (
    *("pillow", "numpy"),
    *("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python"),
    *("pydicom", "python-gdcm", "pylibjpeg", "pylibjpeg-libjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle", "pyjpegls"),
)


class NotAnImageError(DataError):
    """A file whose content is of no type that vitmed reads."""


def read_image(
    path: str | Path,
    channels: int = 3,
    *,
    frame: int | None = None,
    window: Window = None,
) -> Image.Image:
    """Decode an image to 8 bits per channel, turned as its EXIF tag says.

    Transparency is composited on black (2 and 4 channels keep it), and colours are converted to sRGB: see `to_mode`.

    Args:
        path: a file with a suffix in `READERS`, or a DICOM file of any name.
        channels: 1 grey, 2 grey + alpha, 3 RGB, 4 RGB + alpha.
        frame: the frame or page to read, from 0; None refuses a file with several.
        window: how values of more than 8 bits become grey levels; None refuses such files.

    Raises:
        DataError: missing, unreadable, truncated, too large, several frames, or more than 8 bits and no window.
        UsageError: a package that reads such files is not installed.
    """
    path = Path(path)
    return to_8_bit(path, decode(path, frame), channels, window)


def to_8_bit(path: Path, pixels: RawImage | Image.Image, channels: int = 3, window: Window = None) -> Image.Image:
    """Convert what `decode` returned to 8 bits per channel; may change a Pillow image in place. See `read_image`."""
    with _as_data_error(path):
        return to_mode(apply_window(path, pixels, window) if isinstance(pixels, RawImage) else pixels, channels)


def decode(path: str | Path, frame: int | None = None) -> RawImage | Image.Image:
    """The stored pixels: a `RawImage` where a window is needed, else a Pillow image. Raises as `read_image`."""
    path = Path(path)
    with _as_data_error(path):
        image: RawImage | Image.Image = _reader(path).read(path, frame)
        if isinstance(image, RawImage) and not np.isfinite([image.values.min(), image.values.max()]).all():
            raise DataError(f"{path}: holds values that are not finite (NaN or infinite)", "repair or remove it")
        return image


def read_header(path: str | Path, frame: int | None = None) -> ImageHeader:
    """Format, size, depth and the windows of the frame, without decoding a pixel. DataError if it is not an image."""
    path = Path(path)
    with _as_data_error(path):
        return dicom.read_header(path, frame) if _reader(path) is dicom else rasters.read_header(path)


def is_image(path: str | os.PathLike[str]) -> bool:
    """Whether vitmed reads a file as an image: its suffix is in `READERS`, or it has none and begins like DICOM.

    DICOM names often end in a number (`IM-0001`, `1.2.840.10008`), which does not count as a suffix.
    """
    name = os.path.basename(path)  # noqa: PTH119  (a million of them)
    suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122
    if suffix in READERS:
        return True
    if (suffix and not suffix[1:].isdigit()) or name.upper() == "DICOMDIR":
        return False
    try:
        check_regular(path)
        if not os.path.getsize(path):  # noqa: PTH202  (empty; or a file of the kernel, such as /proc/kmsg: reading waits)
            return False
        with open(path, "rb") as stream:  # noqa: PTH123
            return dicom.has_magic(stream.read(132))
    except (OSError, DataError):
        return False


@cache
def decoding_version() -> str:
    """16 hexadecimal digits from vitmed's sources in `imaging/` and the versions of `DECODERS`.

    Everything kept from decoded pixels carries this string, so an upgrade makes it again.
    """
    digest = hashlib.sha256()
    for name in DECODERS:
        with suppress(metadata.PackageNotFoundError):
            digest.update(f"{name} {metadata.version(name)}\n".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _reader(path: Path) -> ModuleType:
    """The module that reads a file, chosen by its content, not by its suffix."""
    check_regular(path)
    named = READERS.get(path.suffix.lower())
    if named is None and not is_image(path):
        raise DataError(f"{path}: not an image type that vitmed reads", f"use {', '.join(READERS)}")
    with path.open("rb") as stream:
        head = stream.read(132)
    if not head:
        raise DataError(f"{path}: the file is empty (0 bytes)", "copy it again, or remove it")
    if dicom.has_magic(head):
        return dicom
    if named is dicom and not head.startswith(rasters.NUMPY):
        raise DataError(f"{path}: not a DICOM file: no DICM at byte 128", "export it again, or remove it")
    return rasters  # NumPy's arrays, and what Pillow recognises


@contextmanager
def _as_data_error(path: Path) -> Iterator[None]:
    """Turn every error of a decoder into a DataError that names the file; its warnings are not shown."""
    try:
        with NO_WARNINGS:
            yield
    except VitmedError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file", "check its name") from None
    except PermissionError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})", "check its permissions") from None
    except Image.DecompressionBombError:
        raise TooLargeError(f"{path}: more than {PIXELS:,} pixels, refused", SMALLER) from None
    except UnidentifiedImageError:
        raise NotAnImageError(f"{path}: not an image, despite its name", "remove it or rename it") from None
    except Exception as error:  # decoders raise errors of every kind for damaged files
        reason = " ".join(str(error).replace(str(path), "").split())[:200] or type(error).__name__
        raise DataError(f"{path}: cannot be decoded ({reason})", "copy it again, or remove it") from None


WIDE = 1024  # values of a window, in which an image of 256 is at most a quarter grey


def apply_window(path: Path, raw: RawImage, window: Window) -> Image.Image:
    """Map raw values to 8 bits: L, LA, RGB or RGBA. Raises DataError if the window does not fit."""
    of_8_bits = raw.bits <= 8 and raw.values.min() >= 0 and raw.values.max() <= 255  # after slope and intercept
    whole = raw.values.dtype.kind != "f"
    if not whole and not isinstance(window, tuple | list):  # CENTRE/WIDTH depends on it; few values do not show it
        whole = bool(np.ptp(raw.values) > 16 and (raw.values == np.rint(raw.values)).all())
    if window is None or window in ("auto", "percentiles"):
        raise DataError(
            f"{path}: {raw.bits} bits per channel need a window to become grey, and the training images had none",
            "convert it to 8 bits as the training images were (in Python uint8), or train on images like it (--window "
            "auto); predict, serve, evaluate, stress and explain take --window CENTRE/WIDTH, such as 40/400 for CT",
        )
    index = file_window_index(window)
    if index is not None and index >= len(raw.windows):
        has = f"{len(raw.windows)} windows of its own" if raw.windows else "no window of its own"
        problem = f"{path}: has {has}, and the run's window is {window!r}"
        raise DataError(problem, "train with --window percentiles, or with two numbers such as --window 40,400")
    asked = asked_window(window, whole)
    if asked is not None and of_8_bits and asked.high - asked.low > WIDE:
        problem = f"{path}: has {raw.bits} bits per channel, and would be black in the window {window} of deeper images"
        raise DataError(problem, "predict such files by themselves, with --window 128/256")
    mapped = raw.windows[index] if index is not None else asked or Linear(*window[-2:] if raw.inverted else window[:2])  # type: ignore[arg-type]
    grey = to_grey(raw.values, mapped)
    if raw.inverted:
        np.subtract(255, grey, out=grey)
    if raw.valid is not None and raw.valid.any():  # else the tag is wrong
        grey[~raw.valid] = 0  # padding is background
    image = Image.fromarray(np.ascontiguousarray(grey))
    if raw.alpha is not None:
        image.putalpha(Image.fromarray(raw.alpha))
    image.getexif()[rasters.ORIENTATION] = raw.orientation
    return image


_RASTERS = ".npy .png .jpg .jpeg .jfif .bmp .tif .tiff .webp .gif .jp2 .j2k .jpx"
READERS = dict.fromkeys([".dcm", ".dicom", ".ima"], dicom) | dict.fromkeys(_RASTERS.split(), rasters)
