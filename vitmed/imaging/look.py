"""Decode a file once for two purposes: a record for the data check, and a square for the network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image

from vitmed.core.errors import VitmedError
from vitmed.imaging import npz
from vitmed.imaging.decode import apply_window, decode, read_header, to_8_bit
from vitmed.imaging.decoded import ImageHeader, RawImage
from vitmed.imaging.personal_data import personal_fields

if TYPE_CHECKING:  # it imports torch, which `vitmed check` does without
    from vitmed.imaging.preprocessing import Preprocessing

SIDE = 32  # of a thumbnail, px
NUMBERS = ("red", "green", "blue", "border_red", "border_green", "border_blue", "low", "high")
CUT = ("truncated", "cannot be decoded", "broken data stream")  # readable header, damaged pixels


@dataclass(frozen=True, eq=False)
class Record:
    """What vitmed knows about a file.

    Attributes:
        size: bytes; -1 if there is no such file.
        sha256: of its content, hexadecimal; "" if it cannot be read.
        header: None if it cannot be read.
        numbers: (8,) float32, named by NUMBERS: mean colour and colour of the border, 0..255, and the lowest and
            highest value of a channel; None if the file cannot be decoded.
        thumbnail: (32, 32) uint8 grey, squashed; None if the file cannot be decoded.
        personal: names of the metadata fields that look like personal data, never their values.
        reduced: whether numbers and thumbnail come from a JPEG that was decoded at a reduced size.
        kind: "" for a good file, else empty_file, multi_frame, truncated or unreadable.
        problem, fix: in words, without the path.
    """

    size: int = -1
    sha256: str = ""
    header: ImageHeader | None = None
    numbers: np.ndarray | None = None
    thumbnail: np.ndarray | None = None
    personal: tuple[str, ...] = ()
    reduced: bool = False
    kind: str = ""
    problem: str = ""
    fix: str = ""


class Look(NamedTuple):
    """The result of one decode: a record and a square (S, S, C) uint8, where asked for, or the error."""

    record: Record | None = None
    square: np.ndarray | None = None
    error: VitmedError | None = None


def look(
    path: Path, sha256: str, frame: int | None, preprocessing: Preprocessing | None = None, record: bool = True
) -> Look:
    """Decode a file once. For an unusable file it raises nothing: the record and `error` state the problem.

    Args:
        sha256: of its content, for the record.
        frame: the frame to decode.
        preprocessing: makes the square; None for no square.
        record: whether to make a record.
    """
    begun = Record(sha256=sha256)
    try:
        if record:
            begun = _head(path, sha256)
            if begun.size > 0:
                begun = replace(begun, header=read_header(path))
        found = decode(path, frame, None if preprocessing is None else preprocessing.min_size)
        made = _finished(path, begun, found, preprocessing is not None) if record else None
    except VitmedError as error:
        return Look(_failed(path, begun, error) if record else None, None, error)
    if preprocessing is None:
        return Look(made)
    try:
        return Look(made, preprocessing.square(path, found))
    except VitmedError as error:
        return Look(made, None, error)


def _head(path: Path, sha256: str) -> Record:
    """Size and metadata. For a file that cannot be opened, the decoder raises the error later."""
    try:
        data = npz.content(path)
    except OSError:
        return Record(sha256=sha256)
    return Record(len(data), sha256, personal=personal_fields(path, data) if data else ())


def _finished(path: Path, begun: Record, found: RawImage | Image.Image, again: bool) -> Record:
    """The record, completed from the pixels; `again`: `found` is still needed afterwards, so it must not change."""
    facts = begun.header if begun.header is not None else read_header(path)
    reduced = isinstance(found, Image.Image) and max(found.size) < max(facts.width, facts.height)
    image = _stretched(path, found) if isinstance(found, RawImage) else to_8_bit(path, found.copy() if again else found)
    small = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=4))  # (32, 32, 3)
    edge = np.concatenate([small[0], small[-1], small[1:-1, 0], small[1:-1, -1]])
    extrema = np.array(image.getextrema())
    numbers = np.array([*small.mean(axis=(0, 1)), *edge.mean(axis=0), extrema[:, 0].min(), extrema[:, 1].max()], "<f4")
    if (extrema[:, 0] == extrema[:, 1]).all():  # one colour; lowest and highest of different channels would hide it
        numbers[6:] = numbers[0]
    grey = np.asarray(Image.fromarray(small).convert("L"))
    return replace(begun, header=facts, numbers=numbers, thumbnail=grey, reduced=reduced)


def _stretched(path: Path, found: RawImage) -> Image.Image:
    """A raw image as RGB, stretched between its own percentiles: a record does not depend on the run's window."""
    shown = found.values if found.valid is None or not found.valid.any() else found.values[found.valid]
    low, high = (float(value) for value in np.percentile(shown, (0.5, 99.5)))
    return to_8_bit(path, apply_window(path, found, (low, high)))


def _failed(path: Path, begun: Record, error: VitmedError) -> Record:
    problem = error.problem.removeprefix(f"{path}: ").replace(str(path), path.name)
    kind = "unreadable"
    if begun.size == 0:
        kind = "empty_file"
    elif begun.header is not None and begun.header.frames > 1:
        kind = "multi_frame"
    elif any(sign in problem for sign in CUT):
        kind = "truncated"
    return replace(begun, kind=kind, problem=problem, fix=error.fix)
