"""Choose the window of a run from its training images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.files import check_regular
from vitmed.core.messages import bar
from vitmed.core.text import counted, counted_doing
from vitmed.imaging.decode import decode, read_header
from vitmed.imaging.rasters import PNG
from vitmed.imaging.raw_image import ImageHeader, RawImage
from vitmed.imaging.window import FileWindow, Linear, Window, asked_window, file_window_index, limits_text

IMAGES = 256  # images behind the percentiles, evenly spread over the training images
VALUES = 2**16  # values of each of them, drawn with a fixed seed
LOW, HIGH = 0.5, 99.5  # percentiles that become black and white, as in nnU-Net (Isensee 2021)
MUCH = 0.05  # vitmed reports a larger share of saturated pixels
LOST, BURNT = 0.8, 0.5  # and warns of a larger one, or of so many white ones; the air around a patient becomes black
EMPTY = 0.99  # and of a larger one in the window of a model, whose images may have been as dark
FLAT = 16  # times the range of an image in a window: so much wider, it leaves hardly any contrast
FAINT = 8  # and of one bit depth in the window of several: fewer than 32 of its 256 grey levels are left
SOME = 8  # images that show whether a window that was asked for fits
EIGHT_BIT = (".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp")  # formats that cannot hold more than 8 bits here


@dataclass(frozen=True)
class ChosenWindow:
    """The window of a run, with notes and warnings for the user."""

    window: Window
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def choose_window(
    paths: Sequence[Path], setting: Window | list[float] = "auto", frame: int | None = None, of: str = "training images"
) -> ChosenWindow:
    """Resolve `auto` and `percentiles` (`data.window`) to the window that images need, which messages call `of`.

    `auto` is None if no image needs a window, "dicom" if every image is a DICOM file that stores one, else the
    percentiles. Unreadable files are left to the data check. Raises UsageError if a package that reads some is missing.
    """
    if setting is None:
        return ChosenWindow(None)
    looked = dict[Path, ImageHeader | bool]()
    with bar(f"looking at {of}") as advance:
        for done, path in enumerate(paths, 1):
            looked[path] = _header_if_windowed(path, frame)
            advance(done, len(paths))
    headers = {path: header for path, header in looked.items() if isinstance(header, ImageHeader)}
    eight_bit = sum(header is True for header in looked.values())
    if not headers:
        idle = "no training image has more than 8 bits: --window has no effect"
        return ChosenWindow(None, [], [idle] * (setting != "auto"))
    bits, warnings = sorted({header.bits for header in headers.values()}), list[str]()
    depth = f"{bits[0]}-bit" if len(bits) == 1 else f"{bits[0]}- to {bits[-1]}-bit"
    kind = f"{depth} {'DICOM ' if all(header.format == 'DICOM' for header in headers.values()) else ''}images"
    if eight_bit:
        mixed = f"{eight_bit:,} of {len(paths):,} {of} have 8 bits and are not windowed, {len(headers):,} "
        warnings.append(f"{mixed}are windowed: the two look different, and a model may learn the difference")
    if setting == "auto" and not eight_bit and all(header.windows for header in headers.values()):
        setting = "dicom"
    spread = np.unique(np.linspace(0, len(headers) - 1, min(IMAGES, len(headers))).round().astype(int))
    parts = [part for path in np.array([*headers])[spread] if (part := _values(path, frame)) is not None]
    if (index := file_window_index(setting)) is not None:
        several = sum(header.windows > 1 for header in headers.values())
        some = f"; {several:,} files have several, and number {index}, from 0, is used" if several else ""
        note = f"{kind}: each with its own window{some} (--window dicom:1 takes the second of each)"
        own = [(values, windows[index], inverted) for values, windows, inverted in parts if index < len(windows)]
        if index and parts and not own:
            has = counted(max(len(windows) for _, windows, _ in parts), "window")
            raise DataError(f"--window {setting}: no training image has it, but {has} at most", "count from 0")
        return ChosenWindow(str(setting), [note, *_saturation(own)], warnings)
    samples = [[values for values, _, inverted in parts if inverted == white] for white in (False, True)]
    joined = {white: np.concatenate(values) for white, values in enumerate(samples) if values}  # 1: of MONOCHROME1
    if isinstance(setting, str):
        if not joined:
            return ChosenWindow(None, [], warnings)
        limits = tuple(limit for sample in joined.values() for limit in _percentiles(sample))
        how, outside = f"the {LOW} and {HIGH} percentile of {len(parts):,} of {len(paths):,} {of}", []
        wide = [(_percentiles(v), limits[-2:] if white else limits[:2]) for v, _, white in parts if len(bits) > 1]
        if 10 * (faint := sum(FAINT * (high - low) < of[1] - of[0] for (low, high), of in wide)) > len(wide):
            shown = f"{faint:,} of {len(parts):,} images fill less than 1/{FAINT} of the window of all bit depths"
            warnings.append(f"{shown}: they become almost uniform. Convert all to one bit depth before you train")
    else:
        limits, how = tuple(float(value) for value in setting), "as given"
        outside, advice = list[str](), "--window percentiles gives them a window of their own"
        for white, sample in joined.items():
            parted = [(sample, Linear(*limits[-2:] if white else limits[:2]), bool(white))]
            of = f"MONOCHROME{2 - white} images ({advice}): " * (len(joined) > 1)
            lost = [of + text for text in _saturation(parted, LOST, BURNT)]
            warnings += lost
            outside += [] if lost else [of + text for text in _saturation(parted)]
    return ChosenWindow(limits, [f"{kind}: {limits_text(limits)}, {how}", *outside], warnings)


def _percentiles(sample: np.ndarray) -> tuple[float, float]:
    """The values of a sample that become black and white."""
    low, high = (float(value) for value in np.percentile(sample, (LOW, HIGH)))
    if low >= high:  # nearly all values are equal
        low, high = float(sample.min()), float(sample.max())
    return low, high if high > low else low + 1


def _header_if_windowed(path: Path, frame: int | None) -> ImageHeader | bool:
    """The header of an image that needs a window; else True for an 8-bit image, False for an unreadable file."""
    suffix = path.suffix.lower()
    if suffix in EIGHT_BIT:
        return True
    try:
        check_regular(path)
        if suffix == ".png":  # the common case, made fast
            with path.open("rb") as stream:
                head = stream.read(25)
            if head.startswith(PNG) and len(head) == 25 and head[24] <= 8:
                return True
        header = read_header(path, frame)
    except (DataError, OSError):
        return False
    return header if header.needs_window else True


def _values(path: Path, frame: int | None) -> tuple[np.ndarray, Sequence[FileWindow], bool] | None:
    """A reproducible sample of the values that can be seen; the windows that the file stores; and whether low values
    are white."""
    try:
        raw = decode(path, frame)
    except DataError:
        return None
    if not isinstance(raw, RawImage):
        return None
    values = raw.seen().reshape(-1)
    if values.size > VALUES:
        values = values[np.random.default_rng(values.size).integers(0, values.size, VALUES)]
    return values.astype(np.float64 if values.dtype.itemsize > 4 else np.float32), raw.windows, raw.inverted


def lost_outside(paths: Sequence[Path], frame: int | None, window: Window) -> list[str]:
    """Warnings if most pixels of some images lie outside a window that was asked for, or nearly all outside that of a
    model, or if some fill little of it. None where each image has its own window."""
    asked, shown, flat = asked_window(window), list[tuple[np.ndarray, FileWindow, bool]](), 0
    for path in paths[:: max(1, len(paths) // SOME)][:SOME] if asked or isinstance(window, tuple) else ():
        if (part := _values(path, frame)) is not None:
            values, _, inverted = part
            own = asked_window(window, not (values % 1).any())
            own = own or Linear(*(window[-2:] if inverted else window[:2]))  # type: ignore[arg-type, index]
            shown.append((values, own, inverted))
            flat += int(np.ptp(values) < (own.high - own.low) / FLAT)
    text = f"{counted_doing(flat, 'image', 'has', 'have')} values in less than 1/{FLAT} of it, as of 8 bits: uniform"
    return [*_saturation(shown, LOST if asked else EMPTY, BURNT), *[text] * bool(flat)]


def _saturation(
    parts: Iterable[tuple[np.ndarray, FileWindow, bool]], much: float = MUCH, burnt: float = 1.0
) -> list[str]:
    """A note if more than a share `much` of the values lies outside their linear window, or more than `burnt` becomes
    white, on average over the parts: values, their window, and whether low values are white."""
    shares = [
        (np.mean(values < window.low), np.mean(values > window.high))[:: -1 if inverted else 1]
        for values, window, inverted in parts
        if isinstance(window, Linear) and len(values)
    ]
    black, white = np.mean(shares, axis=0) if shares else (0.0, 0.0)
    if black + white <= much and white <= burnt:
        return []
    return [f"{black + white:.0%} of the pixels lie outside the window: {black:.0%} become black, {white:.0%} white"]
