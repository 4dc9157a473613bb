"""`JointPreprocessing`: how the members of an ensemble read an image, which is decoded once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from PIL import Image

from vitmed.core.errors import UsageError
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.imaging.raw_image import RawImage


@dataclass(frozen=True)
class JointPreprocessing(Preprocessing):
    """The readings of several members; its own fields are those of the first.

    Folds of deep images have a window each, and members may have sizes of their own, so what one square of pixels is
    elsewhere is here the pixels of all readings in a row: (N,) uint8.

    Attributes:
        each: the different ways to read an image.
    """

    each: tuple[Preprocessing, ...] = ()

    def square(self, path: Path, found: RawImage | Image.Image) -> np.ndarray:
        """(N,) uint8: every reading, flat, in turn."""
        return self._flat([how.square(path, found) for how in self.each])

    def fit(self, image: Image.Image) -> np.ndarray:
        """(N,) uint8: an image of 8 bits, made square in every way."""
        return self._flat([how.fit(image) for how in self.each])

    def drawn(self) -> np.ndarray:
        """(N,) uint8."""
        return self._flat([how.drawn() for how in self.each])

    def min_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """The largest of what the readings need."""
        sizes = [how.min_size(size) for how in self.each]
        return max(width for width, _ in sizes), max(height for _, height in sizes)

    def shown(self, square: np.ndarray) -> np.ndarray:
        """The first reading, for display: (S, S, C) uint8."""
        return self.reading(square[None], 0)[0]

    def reading(self, squares: np.ndarray, number: int) -> np.ndarray:
        """(B, N) uint8 -> (B, S, S, C): one of the readings."""
        ends = np.cumsum([0, *(how.image_size**2 * how.channels for how in self.each)])
        side, channels = self.each[number].image_size, self.each[number].channels
        return squares[:, ends[number] : ends[number + 1]].reshape(-1, side, side, channels)

    @staticmethod
    def _flat(squares: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate([square.reshape(-1) for square in squares])


def joint(members: Sequence[Preprocessing]) -> tuple[Preprocessing, tuple[int, ...]]:
    """How to read an image once for several members, and which reading each member takes.

    Raises:
        UsageError: members that read files in different ways: other channels or frames.
    """
    for name in ("channels", "frame"):
        if len(values := {getattr(how, name) for how in members}) > 1:
            found = " and ".join(sorted(map(str, values)))
            raise UsageError(f"the members differ in {name}: {found}", "join runs that read images in one way")
    readings = [_reading(how) for how in members]
    each = tuple(dict.fromkeys(readings))
    numbers = tuple(each.index(reading) for reading in readings)
    if len(each) == 1:
        return members[0], numbers
    return JointPreprocessing(**{f.name: getattr(members[0], f.name) for f in fields(members[0])}, each=each), numbers


def _reading(how: Preprocessing) -> Preprocessing:
    """What decides about the pixels, without the normalisation, which each network does itself."""
    return replace(how, normalize="half", mean=None, std=None)
