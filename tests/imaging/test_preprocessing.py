"""Which images have no content: one colour all over, whatever their size and however they are made square."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitmed.core.config import Config
from vitmed.core.errors import DataError
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


def test_what_the_configuration_says_is_taken() -> None:
    sets = {
        "data": {
            "resize": "crop",
            "interpolation": "lanczos",
            "frame": 2,
            "normalize": "given",
            "mean": [0.4],
            "std": [0.1, 0.2, 0.3],
        }
    }
    given = Config.model_validate(sets | {"model": {"image_size": 48, "channels": 3}})
    found = Preprocessing.of(given)
    assert (found.image_size, found.channels, found.resize, found.interpolation, found.frame) == (
        48,
        3,
        "crop",
        "lanczos",
        2,
    )
    assert found.normalize == "given" and found.mean == (0.4,) and found.std == (0.1, 0.2, 0.3)
    assert Preprocessing(**found.to_dict()) == found
    for asked, window in (
        ("auto", None),
        ("percentiles", None),
        ("dicom", "dicom"),
        ("dicom:1", "dicom:1"),
        ([-100, 200], (-100, 200)),
        (None, None),
    ):
        config = Config.model_validate({"data": {"window": asked}})
        assert Preprocessing.of(config).window == window
        assert Preprocessing.of(config).mean is None and Preprocessing.of(config).std is None


@pytest.mark.parametrize(("size", "fits"), [((63, 1), True), ((64, 1), False), ((1, 63), True), ((128, 2), False)])
def test_padding_leaves_something_of_the_image(size: tuple[int, int], fits: bool) -> None:
    """An image of 64 x 1 px padded to 32 px would be half a pixel high, which rounds to none."""
    image = Image.new("RGB", size, "white")
    for resize in ("squash", "crop"):
        assert Preprocessing(32, 3, resize, "half").square(Path("x"), image).shape == (32, 32, 3)
    if fits:
        assert Preprocessing(32, 3, "pad", "half").square(Path("x"), image).max() == 255
    else:
        with pytest.raises(DataError, match=f"x: {size[0]} x {size[1]} px is too thin to pad to 32 px"):
            Preprocessing(32, 3, "pad", "half").square(Path("x"), image)


def test_the_texture_of_the_self_test_by_hand() -> None:
    """y y + 3 x + x y / 7 + 85 c, as bytes: what an exported model is compared on, so it never changes."""
    found = Preprocessing(64, 3, "pad", "half").drawn()
    assert found.shape == (64, 64, 3) and found.dtype == np.uint8
    for y, x, c in ((0, 0, 0), (0, 5, 0), (3, 0, 1), (10, 11, 2), (63, 63, 2), (40, 7, 1), (63, 0, 0), (1, 62, 0)):
        assert found[y, x, c] == (y * y + 3 * x + x * y // 7 + 85 * c) % 256, (y, x, c)
    assert found[10, 11].tolist() == [148, 233, 62]  # 100 + 33 + 15, + 85, + 170 - 256


def test_a_mean_for_each_channel() -> None:
    """One number for all colours, or one for each channel; grey takes the mean of three, alpha a half."""

    def of(channels: int, *mean: float) -> tuple[float, ...]:
        how = Preprocessing(8, channels, "pad", "given", mean=mean, std=mean)
        assert how.constants(channels)[0] == how.constants(channels)[1]
        return how.constants(channels)[0]

    assert of(3, 0.2) == (0.2, 0.2, 0.2) and of(4, 0.2) == (0.2, 0.2, 0.2, 0.5) and of(2, 0.2) == (0.2, 0.5)
    assert of(3, 0.1, 0.2, 0.6) == (0.1, 0.2, 0.6) and of(4, 0.1, 0.2, 0.6) == (0.1, 0.2, 0.6, 0.5)
    assert of(1, 0.1, 0.2, 0.6) == pytest.approx((0.3,)) and of(2, 0.1, 0.2, 0.6) == pytest.approx((0.3, 0.5))
    assert of(1, 0.7) == (0.7,) and of(2, 0.1, 0.7) == (0.1, 0.7) and of(4, 0.1, 0.2, 0.3, 0.4) == (0.1, 0.2, 0.3, 0.4)
    assert Preprocessing(8, 3, "pad", "image").constants(3) == ((0, 0, 0), (1, 1, 1))
    assert Preprocessing(8, 3, "pad", "imagenet").constants(3) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert Preprocessing(8, 1, "pad", "half").constants(1) == ((0.5,), (0.5,))


@pytest.mark.parametrize("first", [3, 4])
def test_padding_is_told_from_a_black_bar(first: int) -> None:
    """A bar in the middle, give or take a pixel, is a padded image of one colour; elsewhere it is a shape."""
    bar = np.zeros((16, 16, 3), np.uint8)
    bar[first:12] = 200
    assert is_blank(bar) and is_blank(bar.swapaxes(0, 1))
    away = np.zeros((16, 16, 3), np.uint8)
    away[first + 3 : 14] = 200
    assert not is_blank(away) and not is_blank(away.swapaxes(0, 1))
    for rows in (slice(8, 12), slice(first, first + 1), slice(11, 12)):
        uneven = bar.copy()
        uneven[rows] = 100
        assert not is_blank(uneven)
