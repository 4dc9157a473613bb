"""What the readers share: headers, raw images and the windows that map their values to 8 bits, size
limits against hostile files, and colours. `Window` is the setting of a run, `FileWindow` what a DICOM file stores."""

import io
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image, ImageCms, ImageOps

from vitmed.core.errors import DataError
from vitmed.core.text import counted
from vitmed.imaging.window import FileWindow

PIXELS = 100_000_000  # most pixels of an image
BYTES = 400_000_000  # most bytes of a decoded image; processing it may take twice as much again
SMALLER = "cut it into tiles, or scale it down"
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
LEVELS = 2  # a profile that changes no colour by more than this counts as sRGB


@dataclass(frozen=True)
class ImageHeader:
    """What the header of an image file states, read before any pixel is decoded."""

    format: str  # PNG, JPEG, TIFF, DICOM, NPY, ...
    mode: str  # Pillow's (L, P, RGB, CMYK, I;16, ...), or the photometric interpretation of a DICOM file
    bits: int  # per channel
    width: int  # as stored, px
    height: int
    frames: int  # the number of pages or frames
    orientation: int  # the EXIF tag, 1 to 8; 1 if there is none
    needs_window: bool = False  # whether values have more than 8 bits, a sign or a fraction, or are of a grey DICOM
    windows: int = 0  # how many a DICOM file stores for the frame


@dataclass(frozen=True)
class RawImage:
    """Pixels of more than 8 bits, or of grey DICOM: raw values, which a window maps to grey levels."""

    values: np.ndarray  # (H, W) grey or (H, W, 3) colour, in a type that holds them exactly; after the modality LUT
    bits: int  # per channel, as stored
    alpha: np.ndarray | None = None  # (H, W) uint8 opacity, or None
    inverted: bool = False  # low values are white (MONOCHROME1, MinIsWhite)
    windows: tuple[FileWindow, ...] = ()  # stored in the file
    valid: np.ndarray | None = None  # (H, W), False for padding; None if there is none
    orientation: int = 1  # the EXIF tag

    def seen(self) -> np.ndarray:
        """The values without padding and wholly transparent pixels, which are hidden; all if none is left."""
        mask = self.valid if self.alpha is None else self.alpha > 0
        return self.values if mask is None or not mask.any() else self.values[mask]


class TooLargeError(DataError):
    """An image of more pixels than vitmed decodes."""


def pick_frame(path: Path, frames: int, frame: int | None) -> int:
    """The index of the frame to read: `frame`, or where that is None the only one. Raises DataError."""
    if frame is None and frames != 1:
        fix = "save the frame that you want as a file; or train, predict, explain or serve with --frame 0, the first"
        raise DataError(f"{path}: holds {frames:,} frames, expected one", fix)
    frame = frame or 0
    if not 0 <= frame < frames:
        raise DataError(f"{path}: holds {counted(frames, 'frame')}, asked for frame {frame}", "frames count from 0")
    return frame


def refuse_large(path: Path, width: int, height: int, pixel_bytes: int = 1) -> None:
    """Raise DataError if an image has no pixels, or more than `PIXELS` or `BYTES` allow."""
    if width < 1 or height < 1:
        raise DataError(f"{path}: {width} x {height} px, expected at least 1 x 1", "copy it again, or remove it")
    if width * height > PIXELS:
        raise TooLargeError(f"{path}: {width:,} x {height:,} px, more than {PIXELS:,} pixels, refused", SMALLER)
    if width * height * pixel_bytes > BYTES:
        problem = f"{path}: {width * height * pixel_bytes:,} bytes of pixels, more than {BYTES:,}, refused"
        raise TooLargeError(problem, SMALLER)


def to_mode(image: Image.Image, channels: int) -> Image.Image:
    """Any 8-bit Pillow image as L, LA, RGB or RGBA: upright, in sRGB, transparency on black; grey by ITU-R 601 luma."""
    ImageOps.exif_transpose(image, in_place=True)
    profile = image.info.get("icc_profile")
    if image.mode == "La":  # premultiplied, which Pillow converts only to LA
        image = image.convert("LA")
    if image.mode == "P":
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    if profile and image.mode in ("RGB", "RGBA", "CMYK") and (change := _transform(profile, image.mode)) is not None:
        if image.mode == "CMYK":
            image = change.apply(image)
        else:
            change.apply_in_place(image)
    if channels in (2, 4):
        return image.convert("RGBA").convert(MODES[channels])
    if image.has_transparency_data:
        transparent, image = image.convert("RGBA"), Image.new("RGB", image.size)  # black
        image.paste(transparent, mask=transparent)
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
    return image if image.mode == MODES[channels] else image.convert(MODES[channels])


@lru_cache(maxsize=16)
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """From a profile to sRGB; None if it is sRGB, damaged, or does not fit the mode."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        change = ImageCms.buildTransform(
            source, ImageCms.createProfile("sRGB"), mode, "RGB" if mode == "CMYK" else mode
        )
        if mode == "CMYK":
            return change
        cube = Image.new(mode, (125, 1))
        cube.putdata([(r, g, b, 255)[: len(mode)] for r, g, b in product(range(0, 256, 63), repeat=3)])
        pairs = zip(cube.tobytes(), change.apply(cube).tobytes(), strict=True)
        return change if max(abs(a - b) for a, b in pairs) > LEVELS else None
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None
