"""From a file to the square array that the network sees: one implementation, for training and ever after.

`read_image` decodes faithfully or refuses; `Preprocessing` makes it square and, per batch, normalises it.
It is stored in the checkpoint, so that `predict` rebuilds it and never uses today's defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from vitmed import npz
from vitmed.config import Config, PretrainConfig
from vitmed.errors import DataError

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
LATER = "convert it to 8 bits with a window that you chose; vitmed will not guess one"


def read_image(path: str | Path, channels: int = 3) -> Image.Image:
    """Decode an 8-bit image in the orientation that its EXIF tag asks for.

    Transparency is composited on black (kept for 2 and 4 channels); palettes, CMYK and the like become RGB,
    and RGB becomes grey by ITU-R 601 luma for one channel.

    Args:
        path: a file whose suffix stands in `READERS`.
        channels: 1 grey, 2 grey + alpha, 3 RGB, 4 RGB + alpha.

    Returns:
        a Pillow image of mode L, LA, RGB or RGBA, 8 bits per channel.

    Raises:
        DataError: missing, unreadable, truncated, too large, several frames, or more than 8 bits.
    """
    path = Path(path)
    if npz.inside(path):
        return _to_mode(Image.fromarray(npz.read(path)), channels)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: not an image type that vitmed reads", f"use {', '.join(READERS)}")
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path}: the file is empty (0 bytes)", "copy it again, or remove it")
        return _to_mode(reader(path), channels)
    except DataError:
        raise
    except FileNotFoundError:
        what = "a broken link" if path.is_symlink() else "no such file"
        raise DataError(f"{path}: {what}", "restore or remove it") from None
    except Image.DecompressionBombError:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise DataError(f"{path}: more than {limit:,} pixels, refused", "cut it into tiles, or scale it down") from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: not an image, whatever its name says", "remove it or rename it") from None
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError, KeyError, MemoryError) as error:
        reason = str(error).replace(str(path), "").strip() or type(error).__name__
        raise DataError(f"{path}: cannot be decoded ({reason})", "copy it again, or remove it") from None


@dataclass(frozen=True)
class FileFacts:
    """What the head of an image file says, before its pixels are decoded.

    Attributes:
        format: PNG, JPEG, TIFF, DICOM, ...
        mode: as stored: Pillow's mode (L, P, RGB, CMYK, I;16, ...), or the photometric interpretation of a DICOM.
        bits: per channel.
        width, height: as stored, px.
        frames: pages or frames.
        orientation: the EXIF tag, 1 to 8; 1 where there is none.
    """

    format: str
    mode: str
    bits: int
    width: int
    height: int
    frames: int
    orientation: int


def inspect(path: str | Path) -> FileFacts:
    """The facts of a file, from its head alone. Raises DataError where it is no image."""
    if npz.inside(path):
        pixels = npz.read(Path(path))
        return FileFacts("NPZ", "L" if pixels.ndim == 2 else "RGB", 8, pixels.shape[1], pixels.shape[0], 1, 1)
    try:
        with Image.open(path) as image:
            tag = image.getexif().get(0x0112, 1)
            orientation = tag if tag in range(1, 9) else 1
            frames = getattr(image, "n_frames", 1) if image.format != "MPO" else 1
            bits = 1 if image.mode == "1" else 8
            return FileFacts(str(image.format), image.mode, bits, *image.size, frames, orientation)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a readable image ({error})", "copy it again, or remove it") from None


def read_size(path: str | Path) -> tuple[int, int]:
    """Width and height, px, from the head of the file alone. Raises DataError where it is no image."""
    facts = inspect(path)
    return facts.width, facts.height


def _read_raster(path: Path) -> Image.Image:
    with path.open("rb") as stream:
        head = stream.read(132)
        if head[128:132] == b"DICM":
            raise DataError(f"{path}: a DICOM file, which this version does not read", LATER)
        if head[:8] == b"\x89PNG\r\n\x1a\n" and head[24:25] == b"\x10":  # Pillow cuts 16-bit RGB to 8 silently
            raise DataError(f"{path}: 16 bits per channel; this version reads 8", LATER)
        stream.seek(0)
        with Image.open(stream) as image:
            bits = image.tag_v2.get(258, (8,)) if hasattr(image, "tag_v2") else (8,)  # TIFF BitsPerSample
            deep = bits if isinstance(bits, tuple) else (bits,)
            if image.mode.startswith(("I", "F")) or max(deep) > 8:
                raise DataError(
                    f"{path}: more than 8 bits per channel (mode {image.mode}); this version reads 8", LATER
                )
            # A camera's MPO is a JPEG with previews behind the picture; elsewhere no frame is the picture.
            frames = getattr(image, "n_frames", 1) if image.format != "MPO" else 1
            if frames > 1:
                raise DataError(f"{path}: holds {frames} frames, expected one", "save the frame that you mean as a PNG")
            image.load()
            return image


def _to_mode(image: Image.Image, channels: int) -> Image.Image:
    image = ImageOps.exif_transpose(image)
    alpha = image.has_transparency_data
    if channels in (2, 4):
        return image.convert("RGBA").convert(MODES[channels])
    if alpha:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode in ("1", "LA", "La") else "RGB")
    return image.convert(MODES[channels])


@dataclass(frozen=True)
class Preprocessing:
    """The deterministic way from a decoded image to the network's input.

    Attributes:
        image_size: side S of the square, px.
        channels: C.
        resize: "pad", "squash" or "crop"; antialiased by Pillow.
        normalize: "imagenet", "half", "image" or "given"; see `DataConfig.normalize`.
        mean, std: of the channels, for "given": one number, one for each of R, G, B, or one a channel.
        interpolation: a key of `RESAMPLING`.
    """

    image_size: int
    channels: int
    resize: str
    normalize: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    interpolation: str = "bilinear"

    @classmethod
    def of(cls, config: Config | PretrainConfig) -> Preprocessing:
        """What a configuration asks for."""
        data, model = config.data, config.model
        mean, std = (None if values is None else tuple(values) for values in (data.mean, data.std))
        return cls(model.image_size, model.channels, data.resize, data.normalize, mean, std, data.interpolation)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for the checkpoint."""
        return asdict(self)

    def read(self, path: str | Path) -> np.ndarray:
        """Decode a file and make it square: (S, S, C) uint8.

        Raises:
            DataError: as `read_image`; and where padding would leave less than a pixel of a long, thin image.
        """
        image = read_image(path, self.channels)
        if self.resize == "pad" and min(image.size) * self.image_size < 0.5 * max(image.size):
            width, height = image.size
            raise DataError(
                f"{path}: {width} x {height} px is too thin to be padded to {self.image_size} px",
                "--resize squash or crop",
            )
        return self.fit(image)

    def fit(self, image: Image.Image) -> np.ndarray:
        """Make an image square: (S, S, C) uint8; padding is black."""
        side = (self.image_size, self.image_size)
        if image.size != side:
            image = RESIZES[self.resize](image, side, RESAMPLING[self.interpolation])
        return np.asarray(image).reshape(*side, self.channels)

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """(B, S, S, C) uint8 -> (B, C, S, S) float32 of about mean 0 and standard deviation 1, on the same device."""
        B, S, _, C = images.shape
        # Whole rows, channels interleaved: four times as fast on a CPU as arithmetic along an axis of C numbers.
        x = images.reshape(B, S, S * C).float().div_(255)
        if self.normalize == "image":
            x.sub_(_channel_mean(x, C).repeat(1, 1, S))
            x.div_(_channel_mean(x.square(), C).sqrt_().clamp_min_(1 / 255).repeat(1, 1, S))  # constant image: zeros
        else:
            mean, std = (x.new_tensor(values) for values in self.constants(self.channels))
            x.sub_(mean.repeat(S)).div_(std.repeat(S))
        return x.view(B, S, S, C).permute(0, 3, 1, 2)

    def display(self, x: torch.Tensor) -> torch.Tensor:
        """(B, C, S, S) normalised float -> (B, S, S, C) uint8 for the eye; "image" is shown as 0.5 + x / 5."""
        if self.normalize == "image":
            x = 0.5 + x / 5
        else:
            mean, std = (x.new_tensor(values) for values in self.constants(self.channels))
            x = x * std[:, None, None] + mean[:, None, None]
        return x.mul(255).round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)

    def constants(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each of so many channels; 0 and 1 where each image has its own."""
        if self.normalize == "given":
            assert self.mean is not None and self.std is not None
            mean, std = self.mean, self.std
        else:
            mean, std = CONSTANTS.get(self.normalize, ((0.0,), (1.0,)))
        return _for_channels(mean, channels), _for_channels(std, channels)


def _for_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """One number a channel: grey takes the mean of the three, alpha a half."""
    if len(values) == channels:
        return values
    colour = (sum(values) / len(values),) if channels in (1, 2) else values * (3 // len(values))
    return (*colour, 0.5) if channels in (2, 4) else colour


def _channel_mean(x: torch.Tensor, channels: int) -> torch.Tensor:
    """(B, S, S x C), channels interleaved -> (B, 1, C): the mean of each channel."""
    return x.mean(dim=1).view(len(x), -1, channels).mean(dim=1, keepdim=True)


Side = tuple[int, int]


def _pad(image: Image.Image, side: Side, method: Image.Resampling) -> Image.Image:
    return ImageOps.pad(image, side, method)


def _squash(image: Image.Image, side: Side, method: Image.Resampling) -> Image.Image:
    return image.resize(side, method)


def _crop(image: Image.Image, side: Side, method: Image.Resampling) -> Image.Image:
    return ImageOps.fit(image, side, method)


RESIZES: dict[str, Callable[[Image.Image, Side, Image.Resampling], Image.Image]] = {
    "pad": _pad,
    "squash": _squash,
    "crop": _crop,
}
RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}
CONSTANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
READERS: dict[str, Callable[[Path], Image.Image]] = {
    ".png": _read_raster,
    ".jpg": _read_raster,
    ".jpeg": _read_raster,
    ".bmp": _read_raster,
    ".tif": _read_raster,
    ".tiff": _read_raster,
    ".webp": _read_raster,
    ".gif": _read_raster,
    # Recognised so that they are refused by name, never skipped in silence.
    ".dcm": _read_raster,
    ".dicom": _read_raster,
}
