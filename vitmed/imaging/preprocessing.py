"""From a file to the network's input, deterministically: decode, window, make square, normalise.

The members of an ensemble share one decoding of an image: `JointPreprocessing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

from vitmed.core.config import Config, PretrainConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.imaging.decode import decode, read_image, to_8_bit
from vitmed.imaging.raw_image import RawImage
from vitmed.imaging.window import Window

if TYPE_CHECKING:  # an exported model runs without torch
    import torch


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the network's input."""

    image_size: int  # side S of the square, px
    channels: int  # C
    resize: str  # "pad", "squash" or "crop"; antialiased by Pillow
    normalize: str  # "imagenet", "half", "image" or "given"; see `DataConfig.normalize`
    mean: tuple[float, ...] | None = None  # for "given": one number, one each for R, G and B, or one per channel
    std: tuple[float, ...] | None = None
    interpolation: str = "bilinear"  # a key of `RESAMPLING`
    frame: int | None = None  # to read of a file with several; None refuses such files
    window: Window = None  # how values of more than 8 bits become grey levels; None refuses such files

    @classmethod
    def of(cls, config: Config | PretrainConfig) -> Preprocessing:
        data, model = config.data, config.model
        mean, std = (None if values is None else tuple(values) for values in (data.mean, data.std))
        window: Window = None  # also before it is chosen: until then vitmed reads 8-bit images only
        if isinstance(data.window, list):
            window = tuple(data.window)
        elif data.window not in ("auto", "percentiles"):
            window = data.window
        size, way = model.image_size, data.interpolation
        return cls(size, model.channels, data.resize, data.normalize, mean, std, way, data.frame, window)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for the checkpoint."""
        return asdict(self)

    def read(self, path: str | Path) -> np.ndarray:
        """Decode a file and make it square: (S, S, C) uint8. Raises DataError: as `read_image`; also if padding would
        leave less than a pixel of a long, thin image."""
        path = Path(path)
        return self.square(path, decode(path, self.frame))

    def square(self, path: Path, pixels: RawImage | Image.Image) -> np.ndarray:
        """Make square what `decode` returned for a file: (S, S, C) uint8. Raises as `read`."""
        image = to_8_bit(path, pixels, self.channels, self.window)
        self.refuse_thin(path, image)
        return self.fit(image)

    def refuse_thin(self, path: Path, image: Image.Image) -> None:
        """Raises DataError if padding would leave less than a pixel of a long, thin image."""
        if self.resize == "pad" and min(image.size) * self.image_size <= 0.5 * max(image.size):
            width, height = image.size
            problem = f"{path}: {width} x {height} px is too thin to pad to {self.image_size} px"
            raise DataError(problem, "train with --resize squash or crop")

    def fit(self, image: Image.Image) -> np.ndarray:
        """Make an image square: (S, S, C) uint8; padding is black."""
        side = (self.image_size, self.image_size)
        if image.size != side:
            image = RESIZES[self.resize](image, side, RESAMPLING[self.interpolation])
        return np.asarray(image).reshape(*side, self.channels)

    def shown(self, square: np.ndarray) -> np.ndarray:
        """What a picture shows of what `square` returned: (S, S, C) uint8."""
        return square

    def drawn(self) -> np.ndarray:
        """A texture of every grey value, the same on every machine: (S, S, C) uint8."""
        y, x, c = np.indices((self.image_size, self.image_size, self.channels))
        return ((y * y + 3 * x + x * y // 7 + 85 * c) % 256).astype(np.uint8)

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """(B, S, S, C) uint8 -> (B, C, S, S) float32 of about mean 0 and standard deviation 1, on the same device."""
        import torch

        B, S, _, C = images.shape
        # On whole rows, channels interleaved: on a CPU four times as fast as along an axis of length C.
        x = images.reshape(B, S, S * C).float().div_(255)
        if self.normalize == "image":
            x.sub_(x.mean(dim=1).view(B, -1, C).mean(dim=1, keepdim=True).repeat(1, 1, S))  # mean (B, 1, C)
            variance = x.square().mean(dim=1).view(B, -1, C).mean(dim=1, keepdim=True)
            x.div_(variance.sqrt_().clamp_min_(1 / 255).repeat(1, 1, S))  # constant image: zeros
        else:
            # Filled on the device: a copy from the CPU, as of `new_tensor`, waits for a GPU.
            constants = self.constants(self.channels)
            mean, std = (torch.stack([x.new_full((), value) for value in values]) for values in constants)  # (C,)
            x.sub_(mean.repeat(S)).div_(std.repeat(S))
        return x.view(B, S, S, C).permute(0, 3, 1, 2)

    def display(self, x: torch.Tensor) -> torch.Tensor:
        """Undo `normalise` for display: (B, C, S, S) float -> (B, S, S, C) uint8; "image" is shown as 0.5 + x / 5."""
        if self.normalize == "image":
            x = 0.5 + x / 5
        else:
            mean, std = (x.new_tensor(values) for values in self.constants(self.channels))
            x = x * std[:, None, None] + mean[:, None, None]
        return x.mul(255).round_().clamp_(0, 255).byte().permute(0, 2, 3, 1)

    def constants(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation for a number of channels; 0 and 1 if `normalize` is "image"."""
        if self.normalize == "given":
            assert self.mean is not None and self.std is not None
            mean, std = self.mean, self.std
        else:
            mean, std = CONSTANTS.get(self.normalize, ((0.0,), (1.0,)))
        return _for_channels(mean, channels), _for_channels(std, channels)


@dataclass(frozen=True)
class JointPreprocessing(Preprocessing):
    """The readings of several members; its own fields are those of the first, and `each` has the different ones.

    Folds of deep images have a window each, and members may have sizes of their own, so what one square of pixels is
    elsewhere is here the pixels of all readings in a row: (N,) uint8.
    """

    each: tuple[Preprocessing, ...] = ()

    def square(self, path: Path, pixels: RawImage | Image.Image) -> np.ndarray:
        """(N,) uint8: every reading, flat, in turn."""
        return np.concatenate([how.square(path, pixels).ravel() for how in self.each])

    def drawn(self) -> np.ndarray:
        """(N,) uint8."""
        return np.concatenate([how.drawn().ravel() for how in self.each])

    def shown(self, square: np.ndarray) -> np.ndarray:
        """The first reading, for display: (S, S, C) uint8."""
        return self.reading(square[None], 0)[0]

    def reading(self, squares: np.ndarray, number: int) -> np.ndarray:
        """(B, N) uint8 -> (B, S, S, C): one of the readings."""
        ends = np.cumsum([0, *(how.image_size**2 * how.channels for how in self.each)])
        side, channels = self.each[number].image_size, self.each[number].channels
        return squares[:, ends[number] : ends[number + 1]].reshape(-1, side, side, channels)


def joint(members: Sequence[Preprocessing]) -> tuple[Preprocessing, tuple[int, ...]]:
    """How to read an image once for several members, and which reading each member takes. Raises UsageError: members
    that read files in different ways: other channels or frames."""
    for name in ("channels", "frame"):
        if len(values := {getattr(how, name) for how in members}) > 1:
            shown = " and ".join(sorted(map(str, values)))
            raise UsageError(f"the members differ in {name}: {shown}", "join runs that read images in one way")
    # What decides about the pixels, without the normalisation, which each network does itself.
    readings = [replace(how, normalize="half", mean=None, std=None) for how in members]
    each = tuple(dict.fromkeys(readings))
    numbers = tuple(each.index(reading) for reading in readings)
    if len(each) == 1:
        return members[0], numbers
    return JointPreprocessing(**{f.name: getattr(members[0], f.name) for f in fields(members[0])}, each=each), numbers


def thumbnail(path: Path, how: Preprocessing, side: int = 320) -> np.ndarray:
    """An image for display, (H, W, 3) uint8, no side longer than `side`; with the window of the run."""
    image = read_image(path, frame=how.frame, window=how.window)
    image.thumbnail((side, side))
    return np.asarray(image)


def is_blank(square: np.ndarray) -> bool:
    """Whether what the network sees, (S, S, C) uint8, has one colour all over, beside black padding at two sides."""
    for lines in (square, square.swapaxes(0, 1)):
        first = lines[:, :1]  # (S, 1, C)
        if (lines == first).all():
            filled = np.flatnonzero(first.any(axis=(1, 2)))
            inside = first[filled[0] : filled[-1] + 1] if len(filled) else first
            centred = not len(filled) or abs(int(filled[0] + filled[-1]) - len(square) + 1) <= 1
            if centred and (inside == inside[0]).all():
                return True
    return False


def _for_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """One number per channel: grey takes the mean of the three, alpha a half."""
    if len(values) == channels:
        return values
    colour = (sum(values) / len(values),) if channels in (1, 2) else values * (3 // len(values))
    return (*colour, 0.5) if channels in (2, 4) else colour


RESIZES: dict[str, Callable[[Image.Image, tuple[int, int], Image.Resampling], Image.Image]] = {
    "pad": ImageOps.pad,
    "squash": Image.Image.resize,
    "crop": ImageOps.fit,
}
RESAMPLING = {way.name.lower(): way for way in Image.Resampling}  # "bilinear" and the others of Pillow
CONSTANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
