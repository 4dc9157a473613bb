"""NumPy arrays on disk: .npy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from vitmed.core.errors import DataError
from vitmed.imaging.raw_image import MODES, ImageHeader, MinSize, RawImage, pick_frame, refuse_large

MAGIC = b"\x93NUMPY"


def read_header(path: Path) -> ImageHeader:
    """The header of an array. Raises DataError if the array is not an image."""
    array = _open(path)
    frames, height, width, channels = _shape(path, array)
    bits = 1 if array.dtype == bool else 8 * array.dtype.itemsize
    deep = array.dtype not in (bool, np.uint8)
    return ImageHeader("NPY", MODES[channels], bits, width, height, frames, 1, deep)


def read(path: Path, frame: int | None, min_size: MinSize | None) -> RawImage | Image.Image:
    """(H, W) or (H, W, C): uint8 and bool as an 8-bit image, other types as a `RawImage`. Raises DataError."""
    array = _open(path)
    frames, height, width, channels = _shape(path, array)
    index = pick_frame(path, frames, frame)
    refuse_large(path, width, height, max(4, channels * array.dtype.itemsize))
    shown = np.asarray((array if frames == 1 and array.ndim < 4 else array[index]).reshape(height, width, channels))
    if shown.dtype == bool:
        shown = shown.astype(np.uint8) * 255
    shown = np.ascontiguousarray(shown[..., 0] if channels == 1 else shown)
    if shown.dtype == np.uint8:
        return Image.fromarray(shown)
    if channels in (2, 4):
        raise DataError(
            f"{path}: {channels} channels of {shown.dtype}, expected 1 or 3: it is unknown which one is opacity",
            "save 1 or 3 channels, or uint8",
        )
    return RawImage(shown.astype(shown.dtype.newbyteorder("="), copy=False), 8 * shown.dtype.itemsize)


def _open(path: Path) -> np.ndarray:
    """The array, mapped from its file."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "buif" or array.dtype.itemsize > 8:
        kind = getattr(array, "dtype", "several arrays")
        raise DataError(f"{path}: holds {kind}, expected integers or real numbers", "save a plain array of the pixels")
    return array


def _shape(path: Path, array: np.ndarray) -> tuple[int, int, int, int]:
    """Frames, height, width, channels. Three axes are (H, W, C) if the last is at most 4, else (frames, H, W)."""
    shape = array.shape
    if 0 not in shape:
        if len(shape) == 2:
            return 1, *shape, 1
        if len(shape) == 3:
            return (1, *shape) if shape[2] <= 4 else (*shape, 1)
        if len(shape) == 4 and shape[3] <= 4:
            return shape  # type: ignore[return-value]
    raise DataError(
        f"{path}: an array of shape {shape}, expected (H, W) or (H, W, C) with C of 1 to 4, or frames of these",
        "save one image in a file",
    )
