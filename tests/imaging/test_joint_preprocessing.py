"""Members of an ensemble that read an image in several ways: it is decoded once, and each gets its own pixels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitmed.core.errors import UsageError
from vitmed.imaging.preprocessing import JointPreprocessing, Preprocessing, joint

SMALL = Preprocessing(8, 3, "pad", "imagenet")
LARGE = Preprocessing(12, 3, "crop", "half", interpolation="bicubic")


def test_members_that_read_alike_share_one_reading() -> None:
    same = replace(SMALL, normalize="given", mean=(0.5,), std=(0.2,))
    how, numbers = joint([SMALL, same])
    assert how is SMALL and numbers == (0, 0)
    how, numbers = joint([SMALL, LARGE, same, LARGE])
    assert isinstance(how, JointPreprocessing) and numbers == (0, 1, 0, 1) and len(how.each) == 2
    assert (how.image_size, how.resize, how.normalize) == (8, "pad", "imagenet")  # its own fields: of the first


def test_each_member_gets_the_pixels_that_it_would_read_alone(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    how, _ = joint([SMALL, LARGE])
    both = how.read(tmp_path / "a.png")
    assert both.shape == (8 * 8 * 3 + 12 * 12 * 3,)
    squares = np.stack([both, both[::-1]])
    for number, alone in enumerate((SMALL, LARGE)):
        read = how.reading(squares, number)
        assert read.shape == (2, alone.image_size, alone.image_size, 3)
        assert np.array_equal(read[0], alone.read(tmp_path / "a.png"))
    assert np.array_equal(how.shown(both), SMALL.read(tmp_path / "a.png"))
    assert np.array_equal(how.reading(how.drawn()[None], 1)[0], LARGE.drawn())


@pytest.mark.parametrize(("field", "value"), [("channels", 1), ("frame", 2)])
def test_members_that_read_files_differently_are_refused(field: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"the members differ in {field}: "):
        joint([SMALL, replace(SMALL, **{field: value})])  # type: ignore[arg-type]
