"""One decode of a file gives a record for the data check and a square for the network."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitmed.core.errors import VitmedError
from vitmed.core.files import check_regular
from vitmed.imaging.decode import decode, read_header, to_8_bit
from vitmed.imaging.personal_data import personal_fields
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.imaging.raw_image import ImageHeader, RawImage
from vitmed.imaging.window import Window

SIDE = 32  # of a thumbnail, px
NUMBERS = ("red", "green", "blue", "border_red", "border_green", "border_blue", "low", "high")
CUT = ("truncated", "cannot be decoded", "broken data stream")  # an image with a sound head


@dataclass(frozen=True, eq=False)
class FileRecord:
    """What the data check knows of a file."""

    size: int = -1  # bytes; -1 if there is no such file
    sha256: str = ""  # of its content; "" if it cannot be read
    header: ImageHeader | None = None  # None if it cannot be read
    # (8,) float32, named by NUMBERS: mean colour and colour of the border, 0..255, and the lowest and highest value of
    # any channel, of a deep image in the window of the run; None if it cannot be decoded
    numbers: np.ndarray | None = None
    thumbnail: np.ndarray | None = None  # (32, 32) uint8 grey, squashed; None if it cannot be decoded
    personal: tuple[str, ...] = ()  # names of the metadata fields that look like a person, never their values
    reduced: bool = False  # whether numbers and thumbnail come from a JPEG that was decoded at a reduced size
    kind: str = ""  # "" for a good file, else empty_file, multi_frame, truncated or unreadable
    problem: str = ""  # in words, without the path, as the fix
    fix: str = ""


class Examined(NamedTuple):
    """The results of one decode, as requested: a record, a square (S, S, C) uint8, and why there is no square."""

    record: FileRecord | None = None
    square: np.ndarray | None = None
    error: VitmedError | None = None


def examine(
    path: Path,
    sha256: str,
    frame: int | None,  # of several, which is decoded
    preprocessing: Preprocessing | None = None,  # makes the square; None if no square is needed
    record: bool = True,  # whether a record is needed, of the content with this sha256
    window: Window = None,  # for the record of an image that needs one; None stretches each such image by itself
) -> Examined:
    """Decode a file once. Never raises for a file that cannot be used: record and error name the problem."""
    begun, made, square = FileRecord(sha256=sha256), None, None
    try:
        if record:
            with suppress(OSError):  # which the decoder raises again
                check_regular(path)
                data = path.read_bytes()
                begun = FileRecord(len(data), sha256, personal=personal_fields(path, data) if data else ())
            if begun.size > 0:
                begun = replace(begun, header=read_header(path))
        decoded = decode(path, frame, None if preprocessing is None else preprocessing.min_size)
        made = _finished(path, begun, decoded, preprocessing is not None, window) if record else None
        if preprocessing is not None:
            square = preprocessing.square(path, decoded)
    except VitmedError as error:
        problem, kind = error.problem.removeprefix(f"{path}: ").replace(str(path), path.name), "unreadable"
        if begun.size == 0:
            kind = "empty_file"
        elif begun.header is not None and begun.header.frames > 1:
            kind = "multi_frame"
        elif any(sign in problem for sign in CUT):
            kind = "truncated"
        failed = replace(begun, kind=kind, problem=problem, fix=error.fix) if record else None
        return Examined(made or failed, None, error)
    return Examined(made, square)


def _finished(path: Path, begun: FileRecord, found: RawImage | Image.Image, again: bool, window: Window) -> FileRecord:
    """The record with what the pixels show; `again`: `found` is used again later, so it must not change."""
    header = begun.header or read_header(path)
    reduced = isinstance(found, Image.Image) and max(found.size) < max(header.width, header.height)
    if isinstance(found, RawImage) and window is None:
        shown = found.values if found.valid is None or not found.valid.any() else found.values[found.valid]
        low, high = (float(value) for value in np.percentile(shown, (0.5, 99.5)))
        window = low, high
    image = to_8_bit(path, found.copy() if again and isinstance(found, Image.Image) else found, window=window)
    small = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=4))  # (32, 32, 3)
    edge = np.concatenate([small[0], small[-1], small[1:-1, 0], small[1:-1, -1]])
    extrema = np.array(image.getextrema())
    numbers = np.array([*small.mean(axis=(0, 1)), *edge.mean(axis=0), extrema[:, 0].min(), extrema[:, 1].max()], "<f4")
    if (extrema[:, 0] == extrema[:, 1]).all():  # one colour, though its channels differ
        numbers[6:] = numbers[0]
    grey = np.asarray(Image.fromarray(small).convert("L"))
    return replace(begun, header=header, numbers=numbers, thumbnail=grey, reduced=reduced)
