"""What the readers share: image headers, raw images, and the size limits that protect against hostile files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.text import counted
from vitmed.imaging.window import FileWindow

PIXELS = 100_000_000  # most pixels of an image
BYTES = 400_000_000  # most bytes of a decoded image; processing it may take twice as much again
SMALLER = "cut it into tiles, or scale it down"
FRAMES = 100_000  # counting of frames or pages stops here

MinSize = Callable[[tuple[int, int]], tuple[int, int]]  # (width, height) of a file -> the smallest size that is enough


@dataclass(frozen=True)
class ImageHeader:
    """What the header of an image file states, read before any pixel is decoded.

    Attributes:
        format: PNG, JPEG, TIFF, DICOM, NPY, ...
        mode: Pillow's mode (L, P, RGB, CMYK, I;16, ...), or the photometric interpretation of a DICOM file.
        bits: per channel.
        width, height: as stored, px.
        frames: number of pages or frames.
        orientation: the EXIF tag, 1 to 8; 1 if there is none.
        needs_window: more than 8 bits, signed or floating point, or a grey DICOM.
        windows: how many windows a DICOM file stores.
    """

    format: str
    mode: str
    bits: int
    width: int
    height: int
    frames: int
    orientation: int
    needs_window: bool = False
    windows: int = 0


@dataclass(frozen=True)
class RawImage:
    """Pixels of more than 8 bits, or of grey DICOM: raw values, which a window maps to grey levels.

    Attributes:
        values: (H, W) grey or (H, W, 3) colour, in a type that holds them exactly; after the modality LUT.
        bits: per channel, as stored.
        alpha: (H, W) uint8 opacity, or None.
        inverted: low values are white (MONOCHROME1, MinIsWhite).
        windows: stored in the file.
        valid: (H, W), False for padding; None if there is none.
        orientation: the EXIF tag.
    """

    values: np.ndarray
    bits: int
    alpha: np.ndarray | None = None
    inverted: bool = False
    windows: tuple[FileWindow, ...] = ()
    valid: np.ndarray | None = None
    orientation: int = 1


class TooLargeError(DataError):
    """An image of more pixels than vitmed decodes."""


def pick_frame(path: Path, frames: int, asked: int | None) -> int:
    """The index of the frame to read: the only frame, or the one `asked` for. Raises DataError."""
    if asked is None and frames != 1:
        raise DataError(
            f"{path}: holds {frames:,} frames, expected one",
            "save the frame that you want as its own file; or train with --frame 0, the first",
        )
    asked = asked or 0
    if not 0 <= asked < frames:
        raise DataError(f"{path}: holds {counted(frames, 'frame')}, asked for frame {asked}", "frames count from 0")
    return asked


def refuse_large(path: Path, width: int, height: int, pixel_bytes: int = 1) -> None:
    """Raise DataError if an image has no pixels, or more than `PIXELS` or `BYTES` allow."""
    if width < 1 or height < 1:
        raise DataError(f"{path}: {width} x {height} px, expected at least 1 x 1", "copy it again, or remove it")
    if width * height > PIXELS:
        raise too_large(path, f"{width:,} x {height:,} px, ")
    if width * height * pixel_bytes > BYTES:
        raise TooLargeError(
            f"{path}: {width * height * pixel_bytes:,} bytes of pixels, more than {BYTES:,}, refused", SMALLER
        )


def too_large(path: Path, size: str = "") -> TooLargeError:
    """The error for an image of more than `PIXELS`; `size` in words and with a comma, where it is known."""
    return TooLargeError(f"{path}: {size}more than {PIXELS:,} pixels, refused", SMALLER)
