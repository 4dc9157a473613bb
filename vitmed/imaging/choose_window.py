"""Choose the window of a run from its training images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitmed.core.errors import DataError
from vitmed.imaging.decode import decode, read_header
from vitmed.imaging.rasters import PNG
from vitmed.imaging.raw_image import ImageHeader, RawImage
from vitmed.imaging.window import Linear, Window, file_window_index, is_file_window

IMAGES = 256  # images behind the percentiles, evenly spread over the training images
VALUES = 2**16  # values of each of them, drawn with a fixed seed
LOW, HIGH = 0.5, 99.5  # percentiles that become black and white, as in nnU-Net (Isensee 2021)
MUCH = 0.05  # vitmed reports a larger share of saturated pixels
EIGHT_BIT = (".jpg", ".jpeg", ".bmp", ".gif", ".webp")  # formats that cannot hold more than 8 bits here


@dataclass(frozen=True)
class ChosenWindow:
    """The window of a run, with notes and warnings for the user."""

    window: Window
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def choose_window(
    paths: Sequence[Path],
    asked: str | Sequence[float] | None = "auto",
    frame: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ChosenWindow:
    """Resolve `auto` and `percentiles` to the window that the training images need.

    `auto` is None if no image needs a window, "dicom" if every image is a DICOM file that stores one, else the
    percentiles. Unreadable files are skipped here; the data check reports them.

    Args:
        paths: the training images.
        asked: `data.window`.
        frame: `data.frame`.
        progress: called with (done, total) while the headers are read.

    Raises:
        UsageError: a package that reads such files is not installed.
    """
    if asked is None:
        return ChosenWindow(None)
    headers, eight_bit = dict[Path, ImageHeader](), 0
    for done, path in enumerate(paths, 1):
        header = _header_if_windowed(path)
        if isinstance(header, ImageHeader):
            headers[path] = header
        else:
            eight_bit += header
        if progress is not None:
            progress(done, len(paths))
    if not headers:
        given = asked not in ("auto", "percentiles")
        return ChosenWindow(None, [], ["no training image has more than 8 bits: --window has no effect"] * given)
    kind, warnings = _describe(list(headers.values())), list[str]()
    if eight_bit:
        warnings.append(
            f"{eight_bit:,} of {len(paths):,} training images have 8 bits and are not windowed, {len(headers):,} are "
            "windowed: the two look different, and a model may learn the difference"
        )
    if asked == "auto" and not eight_bit and all(header.windows for header in headers.values()):
        asked = "dicom"
    if isinstance(asked, str) and is_file_window(asked):
        index, several = file_window_index(asked), sum(header.windows > 1 for header in headers.values())
        some = f"; {several:,} files have several, and window number {index} is used" if several else ""
        note = f"{kind}: each with its own window{some} (--window dicom:1 takes the second of each)"
        return ChosenWindow(asked, [note, *_saturation(_file_window_shares(list(headers), frame, index))], warnings)
    parts = [part[0] for path in _spread(list(headers)) if (part := _values(path, frame)) is not None]
    sample = np.concatenate(parts) if parts else np.empty(0, np.float32)
    if isinstance(asked, str):
        if not len(sample):
            return ChosenWindow(None, [], warnings)
        low, high = (float(value) for value in np.percentile(sample, (LOW, HIGH)))
        if low >= high:  # nearly all values are equal
            low, high = float(sample.min()), float(sample.max())
        window = low, high if high > low else low + 1
        note = f"{kind}: window {window[0]:g} .. {window[1]:g}, the {LOW} and {HIGH} percentile of {len(parts):,} of "
        return ChosenWindow(window, [f"{note}{len(paths):,} training images"], warnings)
    window = float(asked[0]), float(asked[1])
    note = f"{kind}: window {window[0]:g} .. {window[1]:g}, as given"
    return ChosenWindow(window, [note, *_saturation([_shares(sample, Linear(*window))])], warnings)


def _header_if_windowed(path: Path) -> ImageHeader | bool:
    """The header of an image that needs a window; else True for an 8-bit image, False for an unreadable file."""
    suffix = path.suffix.lower()
    if suffix in EIGHT_BIT:
        return True
    try:
        if suffix == ".png":  # the common case, made fast
            with path.open("rb") as stream:
                head = stream.read(25)
            if head.startswith(PNG) and len(head) == 25 and head[24] <= 8:
                return True
        header = read_header(path)
    except (DataError, OSError):
        return False
    return header if header.needs_window else True


def _describe(headers: Sequence[ImageHeader]) -> str:
    """Depth and format of the images, such as "12- to 16-bit DICOM images"."""
    bits = sorted({header.bits for header in headers})
    depth = f"{bits[0]}-bit" if len(bits) == 1 else f"{bits[0]}- to {bits[-1]}-bit"
    return f"{depth} {'DICOM ' if all(header.format == 'DICOM' for header in headers) else ''}images"


def _spread(paths: Sequence[Path]) -> list[Path]:
    """At most `IMAGES` of them, evenly spread."""
    return [paths[i] for i in np.unique(np.linspace(0, len(paths) - 1, min(IMAGES, len(paths))).round().astype(int))]


def _values(path: Path, frame: int | None) -> tuple[np.ndarray, RawImage] | None:
    """A reproducible sample of an image's values, without padding."""
    try:
        found = decode(path, frame)
    except DataError:
        return None
    if not isinstance(found, RawImage):
        return None
    values = found.values[found.valid] if found.valid is not None and found.valid.any() else found.values.reshape(-1)
    if values.size > VALUES:
        values = values.reshape(-1)[np.random.default_rng(values.size).integers(0, values.size, VALUES)]
    return values.reshape(-1).astype(np.float64 if values.dtype.itemsize > 4 else np.float32), found


def _file_window_shares(paths: Sequence[Path], frame: int | None, index: int) -> list[tuple[float, float]]:
    """Shares of values below and above the window that the file stores, for a sample of images with a linear one."""
    shares = []
    for path in _spread(paths):
        part = _values(path, frame)
        if part is not None and index < len(part[1].windows) and isinstance(own := part[1].windows[index], Linear):
            shares.append(_shares(part[0], own))
    return shares


def _shares(values: np.ndarray, window: Linear) -> tuple[float, float]:
    """Shares of values below and above a window."""
    return (float(np.mean(values < window.low)), float(np.mean(values > window.high))) if len(values) else (0.0, 0.0)


def _saturation(shares: Sequence[tuple[float, float]]) -> list[str]:
    """A note if many pixels lie outside the window."""
    black, white = np.mean(shares, axis=0) if shares else (0.0, 0.0)
    if black + white <= MUCH:
        return []
    return [f"{black + white:.0%} of the pixels lie outside the window: {black:.0%} become black, {white:.0%} white"]
