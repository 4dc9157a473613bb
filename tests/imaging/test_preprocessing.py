"""Which images have no content: one colour all over, whatever their size and however they are made square."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitmed.imaging.preprocessing import Preprocessing, is_blank


@pytest.mark.parametrize("resize", ["pad", "squash", "crop"])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_an_image_of_one_colour_has_no_content(resize: str, mode: str) -> None:
    how = Preprocessing(16, len(mode), resize, "half")
    for size in ((1, 1), (16, 16), (40, 25), (25, 40)):
        for colour in ("black", "white", "orange"):
            assert is_blank(how.square(Path("x"), Image.new(mode, size, colour)))


def test_whatever_has_a_shape_has_content() -> None:
    rng = np.random.default_rng(0)
    square = np.full((16, 16, 3), 90, np.uint8)
    dot, edge, stripes, faint = (square.copy() for _ in range(4))
    dot[3, 3], edge[:, 8:], stripes[::2], faint[8, 8, 1] = 0, 0, 0, 91
    assert is_blank(square)
    for one in (dot, edge, stripes, faint, rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)):
        assert not is_blank(one)
