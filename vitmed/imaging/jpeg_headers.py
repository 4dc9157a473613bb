"""Size and depth from the header of a JPEG, JPEG-LS or JPEG 2000 stream (ITU-T T.81 B.2.2, T.87 C.2.2, T.800 A.5.1)."""

from __future__ import annotations

import struct
from typing import NamedTuple

FRAME_MARKERS = frozenset({*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0), 0xF7})


class Stream(NamedTuple):
    """What the header states: pixels, components, bits per component, and whether values are signed."""

    width: int
    height: int
    components: int
    bits: int
    signed: bool = False


def read_stream(data: bytes) -> Stream | None:
    """Size and depth of a stream, or None if there is none."""
    if data[:2] == b"\xff\xd8":
        return _jpeg(data)
    start = data.find(b"\xff\x4f\xff\x51")  # a bare codestream, or one in the boxes of a .jp2
    return _jpeg_2000(data[start:]) if start >= 0 else None


def _jpeg(data: bytes) -> Stream | None:
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker in FRAME_MARKERS:
            bits, height, width, components = struct.unpack_from(">BHHB", data, at + 4)
            return Stream(width, height, components, bits)
        else:
            at += 2 if marker == 0x01 or 0xD0 <= marker <= 0xD7 else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _jpeg_2000(data: bytes) -> Stream | None:
    if len(data) < 45:
        return None
    right, bottom, left, top = struct.unpack_from(">IIII", data, 8)
    components = int.from_bytes(data[40:42], "big")
    depths = data[42 : 42 + 3 * components : 3]
    if not depths:
        return None
    bits = 1 + max(depth & 0x7F for depth in depths)
    return Stream(right - left, bottom - top, components, bits, any(depth & 0x80 for depth in depths))
