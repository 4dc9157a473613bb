"""Windows map the values of a raw image to grey levels: which become black, which white, and what lies in between."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from vitmed.core.errors import UsageError

# "dicom:1": the second of each file; "40/400": centre and width, asked for now; None: 8-bit images only;
# (low, high), or (low, high, low, high), whose second pair is for inverted images (MONOCHROME1)
Window = str | tuple[float, ...] | None
ROWS = 2**20  # values that are mapped at a time, to save memory


class Linear(NamedTuple):
    """A straight line: `low` and below are black, `high` and above white. If both are equal, a threshold."""

    low: float
    high: float

    @classmethod
    def of(cls, centre: float, width: float, exact: bool = False) -> Self:
        """From centre and width by DICOM PS3.3, C.11.2.1.2.1 (LINEAR) or C.11.2.1.3.2 (LINEAR_EXACT)."""
        if exact:
            return cls(centre - width / 2, centre + width / 2)
        return cls(centre - 0.5 - (width - 1) / 2, centre - 0.5 + (width - 1) / 2)

    def grey(self, x: np.ndarray) -> np.ndarray:
        """Float values -> 0..255 in place, or a new array."""
        if self.high <= self.low:
            return np.where(x > self.low, 255.0, 0.0)
        x -= self.low
        x *= 255 / (self.high - self.low)
        return x


class Sigmoid(NamedTuple):
    """DICOM PS3.3, C.11.2.1.3.1: 1 / (1 + exp(-4 (x - centre) / width))."""

    centre: float
    width: float

    def grey(self, x: np.ndarray) -> np.ndarray:
        """As `Linear.grey`."""
        x -= self.centre
        x *= -4 / self.width
        with np.errstate(over="ignore"):
            return 255 / (1 + np.exp(x))


class Table(NamedTuple):
    """A VOI LUT (DICOM PS3.3, C.11.2). Values below `first` take the first entry, values above the end the last."""

    first: int
    entries: np.ndarray  # (N,) float32 grey levels, 0..255

    def grey(self, x: np.ndarray) -> np.ndarray:
        """As `Linear.grey`."""
        x -= self.first
        np.rint(x, out=x)
        np.clip(x, 0, len(self.entries) - 1, out=x)
        return self.entries[x.astype(np.int64)]


FileWindow = Linear | Sigmoid | Table


def to_grey(values: np.ndarray, window: FileWindow) -> np.ndarray:
    """Real values of any shape -> uint8 grey levels, rounded to the nearest."""
    wide = values.dtype.itemsize > 4 or (values.dtype.kind in "iu" and values.dtype.itemsize == 4)
    flat, out = values.reshape(-1), np.empty(values.size, np.uint8)
    for start in range(0, len(flat), ROWS):
        x = window.grey(flat[start : start + ROWS].astype(np.float64 if wide else np.float32))
        np.rint(x, out=x)
        np.clip(x, 0, 255, out=x)
        out[start : start + ROWS] = x
    return out.reshape(values.shape)


def limits_text(window: Sequence[float]) -> str:
    """The pairs of a window in words."""
    low, high, *inverted = window
    other = f"; of MONOCHROME1 images {inverted[0]:g} .. {inverted[1]:g}" if inverted else ""
    return f"window {low:g} .. {high:g}{other}"


def asked_window(window: Window, whole: bool = True) -> Linear | None:
    """What centre and width, such as "40/400", ask for; LINEAR_EXACT for values that are not `whole`, and up to a width
    of 1. None for any other `Window`. Raises UsageError where they are no numbers, or the width is not above 0."""
    if not isinstance(window, str) or "/" not in window:
        return None
    try:
        centre, width = (float(part) for part in window.split("/"))
    except ValueError:
        centre = width = math.nan
    if not (math.isfinite(centre) and 0 < width < math.inf):
        fix = "for example 40/400; LOW to HIGH is (LOW + HIGH + 1) / 2 and HIGH - LOW + 1, of fractions without + 1"
        raise UsageError(f"--window {window}: expected the centre and the width of the window", fix)
    return Linear.of(centre, width, exact=width <= 1 or not whole)  # LINEAR of width 1 is a threshold


def file_window_index(window: object) -> int | None:
    """Which of the windows that a file stores: 0 for "dicom", 1 for "dicom:1"; None for any other `Window`."""
    name, _, index = str(window).partition(":")
    return int(index or 0) if name == "dicom" else None
