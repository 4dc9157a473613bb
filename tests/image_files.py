"""Image files made byte by byte, and the pixel that vitmed reads from a file."""

from __future__ import annotations

import struct
import zlib
from functools import cache
from pathlib import Path

import numpy as np
from PIL import ImageCms

from vitmed.imaging.decode import read_image


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(width: int, height: int, bits: int, colour: int, rows: bytes, extra: bytes = b"") -> bytes:
    """A PNG from its specification (ISO/IEC 15948): `colour` 0 grey, 2 RGB; `rows` each after a filter byte 0."""
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


def pixel(file: Path, channels: int = 3) -> tuple[int, ...]:
    """The upper left pixel as read."""
    image = read_image(file, channels)
    return tuple(np.asarray(image).reshape(image.height, image.width, channels)[0, 0].tolist())


def bomb(file: Path) -> Path:
    """A whole PNG of 40,000 x 40,000 px in under 2 MB."""
    file.write_bytes(bomb_content())
    return file


@cache
def bomb_content() -> bytes:
    row = bytes(1 + 40_000 // 8)
    press = zlib.compressobj()
    data = b"".join(press.compress(row * 1000) for _ in range(40)) + press.flush()
    head = struct.pack(">IIBBBBB", 40_000, 40_000, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def profile(name: str) -> bytes:
    """A colour profile: sRGB, or one with red and blue exchanged, which is easily told."""
    data = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    if name == "swapped":
        data = data.replace(b"rXYZ", b"????", 1).replace(b"bXYZ", b"rXYZ", 1).replace(b"????", b"bXYZ", 1)
    return data


# What each EXIF orientation asks for (CIPA DC-008, tag 0x0112), of a stored array: row 0 and column 0 of the
# stored image are these sides of the scene.
ORIENTATIONS = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: np.rot90,
}
