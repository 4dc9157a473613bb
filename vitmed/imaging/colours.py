"""Convert any 8-bit Pillow image to grey or RGB: upright, in sRGB, transparency on black."""

from __future__ import annotations

import io
from functools import lru_cache
from itertools import product

from PIL import Image, ImageCms, ImageOps

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
STRIP = 2**22  # pixels that are composited at a time
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
    alpha = image.has_transparency_data
    if channels in (2, 4):
        return image.convert("RGBA").convert(MODES[channels])
    if alpha:
        image = _on_black(image.convert("RGBA"))
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode in ("1", "LA", "La") else "RGB")
    return image if image.mode == MODES[channels] else image.convert(MODES[channels])


def _on_black(image: Image.Image) -> Image.Image:
    """RGBA -> RGB, in strips, since the whole would need three copies of the image."""
    out = Image.new("RGB", image.size)
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(image.height, top + rows)))
        black = Image.new("RGBA", strip.size, (0, 0, 0, 255))
        out.paste(Image.alpha_composite(black, strip).convert("RGB"), (0, top))
    return out


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
