"""Corruptions: how image quality differs between microscopes, scanners and archives. `CORRUPTIONS` is at the end.

Each is a function of a Pillow image, a strength and a random generator, built from Pillow, OpenCV and NumPy. The kinds
follow Hendrycks & Dietterich 2019 (ImageNet-C, arXiv 1903.12261); the milder strengths are those of Di Salvo et al.
2024 for medical images of 224 px (MedMNIST-C, arXiv 2406.17536).
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from vitmed.core.errors import unknown_key
from vitmed.imaging.preprocessing import RESAMPLING, Preprocessing

SIDE = 224  # px: the image side for the lengths in the table, which scale with the image
HED = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])  # Ruifrok & Johnston 2001: rows H, E, DAB

Change = Callable[[Image.Image, float, np.random.Generator], Image.Image]


@dataclass(frozen=True)
class Corruption:
    """A kind of corruption."""

    title: str  # name in the report
    change: Change  # (L or RGB image, value of the strength, generator) -> image of the same mode and size
    values: tuple[float, float, float, float, float]  # for strengths 1 to 5, the weakest first
    text: str  # meaning of the values
    source: str  # origin of the values
    colour: bool = False  # whether it applies only to colour images


def corrupt(image: Image.Image, name: str, strength: int, seed: tuple[int, ...]) -> Image.Image:
    """Corrupt an image of mode L, LA, RGB or RGBA, at strength 1 to 5; 0 leaves it unchanged, and alpha always. The
    result depends only on the arguments: all strengths of a corruption use the same random draw of the seed, such as
    (seed of the run, index of the image), so a stronger one is the same change taken further."""
    if name not in CORRUPTIONS:
        raise unknown_key("corruption", name, CORRUPTIONS)
    if strength == 0:
        return image
    alpha = image.getchannel("A") if image.mode in ("LA", "RGBA") else None
    colour = image.convert("RGB" if image.mode.startswith("RGB") else "L") if alpha is not None else image
    rng = np.random.default_rng([*seed, zlib.crc32(name.encode())])
    worse = CORRUPTIONS[name].change(colour, CORRUPTIONS[name].values[strength - 1], rng)
    if alpha is not None:
        worse.putalpha(alpha)
    return worse


def reduced(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    """The decoded image reduced to the network's input size, before any padding; this is the image to corrupt.

    A smaller image stays unchanged. Noise or a blur of a few pixels would vanish when a large image is reduced later.
    `Preprocessing.fit` gives the same result for the reduced as for the original image, to the bit.
    """
    side = preprocessing.image_size
    if max(image.size) <= side:
        return image
    if preprocessing.resize == "pad":
        return ImageOps.contain(image, (side, side), RESAMPLING[preprocessing.interpolation])
    square = preprocessing.fit(image)
    return Image.fromarray(square[..., 0] if square.shape[2] == 1 else square)


def is_grey(image: Image.Image) -> bool:
    """Whether red, green and blue are equal in every pixel."""
    return not image.mode.startswith("RGB") or not np.ptp(np.asarray(image)[..., :3], axis=2).any()


def _image(values: np.ndarray) -> Image.Image:
    """An image from values in 0..1."""
    return Image.fromarray((values * 255).round().clip(0, 255).astype(np.uint8))


def _values(image: Image.Image) -> np.ndarray:
    """(H, W) or (H, W, 3) float32 in 0..1."""
    return np.asarray(image, dtype=np.float32) / 255


def _defocus(image: Image.Image, radius: float, rng: np.random.Generator) -> Image.Image:
    """Blur with a disc of this radius, px at 224 px; its soft rim allows radii below a pixel."""
    radius *= max(image.size) / SIDE
    reach = int(np.ceil(radius))
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disc = np.clip(radius + 0.5 - np.hypot(x, y), 0, 1).astype(np.float32)
    return _image(cv2.filter2D(_values(image), -1, disc / disc.sum(), borderType=cv2.BORDER_REFLECT))


def _gaussian_noise(image: Image.Image, deviation: float, rng: np.random.Generator) -> Image.Image:
    values = _values(image)
    return _image(values + rng.standard_normal(values.shape, dtype=np.float32) * deviation)


def _jpeg(image: Image.Image, quality: float, rng: np.random.Generator) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, format="JPEG", quality=int(quality))
    return Image.open(stream).convert(image.mode)


def _stain(image: Image.Image, share: float, rng: np.random.Generator) -> Image.Image:
    """Strengthen or weaken each stain by this share, by colour deconvolution (Ruifrok & Johnston 2001)."""
    density = -np.log10((np.asarray(image, dtype=np.float64) + 1) / 256)  # + 1: black has a finite density
    stains = density @ np.linalg.inv(HED) * (1 + share * rng.choice([-1.0, 1.0], 3))
    return _image((256 * 10 ** -(stains @ HED) - 1) / 255)


def _hue(image: Image.Image, degrees: float, rng: np.random.Generator) -> Image.Image:
    hsv = cv2.cvtColor(_values(image), cv2.COLOR_RGB2HSV)  # hue in degrees
    hsv[..., 0] = (hsv[..., 0] + degrees * rng.choice([-1, 1])) % 360
    return _image(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB))


def _resolution(image: Image.Image, factor: float, rng: np.random.Generator) -> Image.Image:
    width, height = (max(1, round(side * factor)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BOX).resize(image.size, Image.Resampling.BILINEAR)


BLOOD, DERMA = "MedMNIST-C, blood cells", "MedMNIST-C, skin and chest X-ray"
STAINS = "Tellez et al. 2019 (arXiv 1902.06543) call 0.05 light and 0.2 strong; further by us"
_brightness: Change = lambda image, factor, rng: ImageEnhance.Brightness(image).enhance(factor)  # noqa: E731
_contrast: Change = lambda image, factor, rng: ImageEnhance.Contrast(image).enhance(factor)  # noqa: E731
_shot_noise: Change = lambda image, photons, rng: _image(rng.poisson(_values(image) * photons) / photons)  # noqa: E731
CORRUPTIONS: dict[str, Corruption] = {
    "defocus": Corruption("Defocus blur", _defocus, (2, 3, 4, 5, 6), "radius, px at 224 px", BLOOD),
    "gaussian_noise": Corruption(
        "Gaussian noise", _gaussian_noise, (0.04, 0.08, 0.12, 0.18, 0.26), "standard deviation, white = 1", DERMA
    ),
    "shot_noise": Corruption("Shot noise", _shot_noise, (60, 25, 18, 10, 5), "photons in a white pixel", DERMA),
    "jpeg": Corruption("JPEG", _jpeg, (50, 30, 15, 10, 7), "quality, of 100", BLOOD),
    "brighter": Corruption("Brighter", _brightness, (1.1, 1.2, 1.3, 1.4, 1.5), "factor", DERMA),
    "darker": Corruption("Darker", _brightness, (0.9, 0.8, 0.7, 0.6, 0.5), "factor", DERMA),
    "contrast": Corruption("Less contrast", _contrast, (0.9, 0.8, 0.7, 0.6, 0.4), "factor", "MedMNIST-C, chest X-ray"),
    "stain": Corruption(
        "Stain", _stain, (0.05, 0.1, 0.2, 0.3, 0.4), "share by which each of three stains changes", STAINS, colour=True
    ),
    "hue": Corruption("Hue", _hue, (5, 10, 15, 20, 30), "turn, degrees", "ours", colour=True),
    "resolution": Corruption(
        "Resolution", _resolution, (0.6, 0.5, 0.4, 0.3, 0.25), "side that is left, then enlarged again", BLOOD
    ),
}
