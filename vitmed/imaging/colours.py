"""Convert any 8-bit Pillow image to grey or RGB: upright, in sRGB, transparency on black."""

from __future__ import annotations

import io
from functools import lru_cache
from itertools import product

from PIL import Image, ImageCms, ImageOps

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
LEVELS = 2  # a profile that changes no colour by more than this counts as sRGB


def to_mode(image: Image.Image, channels: int) -> Image.Image:
    """L, LA, RGB or RGBA. CMYK, palettes and the like become RGB; RGB becomes grey by ITU-R 601 luma."""
    ImageOps.exif_transpose(image, in_place=True)
    profile = image.info.get("icc_profile")
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
        image = image.convert("L" if image.mode in ("1", "LA", "La") else "RGB")
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
