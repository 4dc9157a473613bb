"""What the readers share: file facts, deep pixels, and the limits that stop a hostile file from filling the memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitmed.core.errors import DataError
from vitmed.imaging.window import Own

PIXELS = 100_000_000  # most pixels of an image
BYTES = 400_000_000  # most bytes of a decoded image: working on it may take twice that again
FRAMES = 100_000  # frames or pages are counted up to this number

Least = Callable[[tuple[int, int]], tuple[int, int]]  # (width, height) of a file -> the smallest size that is enough


@dataclass(frozen=True)
class FileFacts:
    """What the head of an image file states, read before any pixel is decoded.

    Attributes:
        format: PNG, JPEG, TIFF, DICOM, NPY, ...
        mode: as stored: Pillow's mode (L, P, RGB, CMYK, I;16, ...), or the photometric interpretation of a DICOM.
        bits: per channel.
        width, height: as stored, px.
        frames: pages or frames.
        orientation: the EXIF tag, 1 to 8; 1 where there is none.
        deep: whether its values need a window: more than 8 bits, signed or floating point, or a grey DICOM.
        windows: how many windows a DICOM file stores.
        profile: the name of an embedded colour profile; "" where there is none.
    """

    format: str
    mode: str
    bits: int
    width: int
    height: int
    frames: int
    orientation: int
    deep: bool = False
    windows: int = 0
    profile: str = ""


@dataclass(frozen=True)
class Deep:
    """Pixels of more than 8 bits, or of grey DICOM: real values, which a window maps to grey levels.

    Attributes:
        values: (H, W) grey or (H, W, 3) colour, of the type that holds them exactly; after the modality LUT.
        bits: per channel, as stored.
        alpha: (H, W) uint8 opacity, or None.
        inverted: low values are white (MONOCHROME1, MinIsWhite).
        windows: those stored in the file.
        valid: (H, W) False for padding; None where there is none.
        orientation: the EXIF tag.
    """

    values: np.ndarray
    bits: int
    alpha: np.ndarray | None = None
    inverted: bool = False
    windows: tuple[Own, ...] = ()
    valid: np.ndarray | None = None
    orientation: int = 1


def pick_frame(path: Path, frames: int, asked: int | None) -> int:
    """The frame to read: the only one, or the one that was asked for. Raises DataError."""
    if asked is None:
        if frames != 1:
            raise DataError(
                f"{path}: holds {frames:,} frames, expected one",
                "say which: --frame 0 is the first; or save the frame that you mean as a file of its own",
            )
        return 0
    if not 0 <= asked < frames:
        count = f"{frames:,} frames" if frames != 1 else "1 frame"
        raise DataError(f"{path}: holds {count}, asked for frame {asked}", "frames are counted from 0")
    return asked


def refuse_large(path: Path, width: int, height: int, pixel_bytes: int = 1) -> None:
    """Raise DataError where an image has no pixel, or more than can be decoded within `BYTES`."""
    if width < 1 or height < 1:
        raise DataError(f"{path}: is {width} x {height} px, which is no image", "copy it again, or remove it")
    fix = "cut it into tiles, or scale it down"
    if width * height > PIXELS:
        raise DataError(f"{path}: {width:,} x {height:,} px, more than {PIXELS:,} pixels, refused", fix)
    if width * height * pixel_bytes > BYTES:
        raise DataError(f"{path}: {width * height * pixel_bytes:,} bytes of pixels, more than {BYTES:,}, refused", fix)
