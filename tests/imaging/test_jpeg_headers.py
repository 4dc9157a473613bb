"""The size and depth in the header of a stream, byte by byte from the standards, and of files of Pillow."""

from __future__ import annotations

import io
import struct

import pytest
from PIL import Image

from vitmed.imaging.rasters import Stream, read_stream

SOI = b"\xff\xd8"


def frame(marker: int = 0xC0, bits: int = 8, height: int = 21, width: int = 37, components: int = 3) -> bytes:
    """A frame header (T.81, B.2.2): length, precision, lines, samples per line, components."""
    body = struct.pack(">BHHB", bits, height, width, components) + bytes(3 * components)
    return bytes([0xFF, marker]) + struct.pack(">H", 2 + len(body)) + body


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", 2 + len(content)) + content


@pytest.mark.parametrize(
    "marker", [*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0), 0xF7]
)
def test_every_kind_of_frame(marker: int) -> None:
    assert read_stream(SOI + frame(marker, 12, 300, 517, 1)) == Stream(517, 300, 1, 12)


@pytest.mark.parametrize("marker", [0xC4, 0xC8, 0xCC, 0xDB, 0xE0, 0xFE, 0xF8])
def test_tables_and_comments_are_no_frames_and_are_passed_over(marker: int) -> None:
    """Whatever they hold: 600 bytes that look like a frame, or none."""
    for content in (frame(height=1, width=1) * 30, b"", b"\xff\xc0"):
        assert read_stream(SOI + segment(marker, content) + segment(0xE1, content) + frame()) == Stream(37, 21, 3, 8)
    assert read_stream(SOI + segment(marker, bytes(8))) is None


@pytest.mark.parametrize("marker", [0x01, 0xD0, 0xD3, 0xD7])
def test_markers_without_a_length_and_padding(marker: int) -> None:
    assert read_stream(SOI + bytes([0xFF, marker]) + frame()) == Stream(37, 21, 3, 8)
    assert read_stream(SOI + b"\xff\xff\xff" + frame()) == Stream(37, 21, 3, 8)


def test_what_is_no_stream_or_is_cut() -> None:
    whole = SOI + frame(components=0)
    assert len(whole) == 12 and read_stream(whole) == Stream(37, 21, 0, 8)
    for cut in range(len(whole)):
        assert read_stream(whole[:cut]) is None
    assert read_stream(b"") is None and read_stream(b"\x89PNG" + bytes(60)) is None
    assert read_stream(SOI + b"\x00" + frame()) is None  # not at a marker


def codestream(depths: list[int], right: int = 640, bottom: int = 480, left: int = 40, top: int = 30) -> bytes:
    """The SIZ segment of JPEG 2000 (T.800, A.5.1): the image is the reference grid without its offset."""
    sizes = struct.pack(">IIIIIIII", right, bottom, left, top, 64, 64, 0, 0)
    parts = b"".join(bytes([depth, 1, 1]) for depth in depths)
    body = struct.pack(">H", 0) + sizes + struct.pack(">H", len(depths)) + parts
    return b"\xff\x4f\xff\x51" + struct.pack(">H", 2 + len(body)) + body + b"\xff\x52" + bytes(20)


@pytest.mark.parametrize("before", [b"", b"\x00\x00\x00\x0cjP  boxes of a .jp2" * 9])
def test_jpeg_2000(before: bytes) -> None:
    assert read_stream(before + codestream([7])) == Stream(600, 450, 1, 8)
    assert read_stream(before + codestream([11, 15, 7])) == Stream(600, 450, 3, 16)
    assert read_stream(before + codestream([0x80 | 11])) == Stream(600, 450, 1, 12)
    assert read_stream(before + codestream([7, 7, 0x80 | 9, 7])) == Stream(600, 450, 4, 10)
    assert read_stream(before + codestream([])) is None
    assert read_stream(before + codestream([7])[:44]) is None and read_stream(before + codestream([7])[:45]) is not None


@pytest.mark.parametrize(("mode", "components"), [("L", 1), ("RGB", 3), ("CMYK", 4)])
@pytest.mark.parametrize(
    "how", [{}, {"progressive": True}, {"comment": b"\xff\xc0 no frame"}, {"restart_marker_rows": 1}]
)
def test_files_of_pillow(mode: str, components: int, how: dict[str, object]) -> None:
    file = io.BytesIO()
    Image.new(mode, (37, 21)).save(file, "JPEG", **how)
    assert read_stream(file.getvalue()) == Stream(37, 21, components, 8)


def test_a_jpeg_2000_file_of_pillow() -> None:
    file = io.BytesIO()
    Image.new("RGB", (37, 41)).save(file, "JPEG2000")
    assert read_stream(file.getvalue()) == Stream(37, 41, 3, 8)
