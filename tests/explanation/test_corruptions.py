"""Corruptions: the same each time, worse with strength, and what Pillow, OpenCV and arithmetic say they are."""

from __future__ import annotations

import colorsys
import io
from itertools import pairwise

import cv2
import numpy as np
import pytest
from PIL import Image

from vitmed.core.errors import UsageError
from vitmed.explanation import robustness
from vitmed.explanation.robustness import CORRUPTIONS, HED, corrupt, is_grey, reduced
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.imaging.raw_image import MODES

RNG = np.random.default_rng(0)


def tissue(side: tuple[int, int] = (120, 96), mode: str = "RGB") -> Image.Image:
    """A smooth picture of pinks and violets with darker spots: something like a stain."""
    rough = np.random.default_rng(1).integers((120, 40, 110), (250, 200, 240), (12, 9, 3)).astype(np.uint8)
    image = Image.fromarray(rough).resize(side, Image.Resampling.BICUBIC)
    if mode in ("LA", "RGBA"):
        image.putalpha(Image.linear_gradient("L").resize(side))
    return image.convert(mode)


def psnr(a: Image.Image, b: Image.Image) -> float:
    return float(-10 * np.log10(np.mean((np.asarray(a, float) - np.asarray(b, float)) ** 2) / 255**2))


def usable(mode: str) -> list[str]:
    return [name for name, what in CORRUPTIONS.items() if mode.startswith("RGB") or not what.colour]


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_each_is_worse_with_strength_and_the_same_each_time(mode: str) -> None:
    image = tissue(mode=mode)
    before = np.asarray(image).copy()
    for name in usable(mode):
        worse = [corrupt(image, name, strength, (0, 7)) for strength in range(6)]
        assert worse[0] is image
        quality = [psnr(image, other) for other in worse[1:]]
        assert all(a > b for a, b in pairwise(quality)), (name, quality)
        assert 8 < quality[-1] < quality[0] < 60, (name, quality)
        for strength, other in enumerate(worse):
            assert (other.mode, other.size) == (image.mode, image.size)
            assert np.array_equal(np.asarray(corrupt(image, name, strength, (0, 7))), np.asarray(other))
            if mode.endswith("A"):
                assert np.array_equal(np.asarray(other.getchannel("A")), np.asarray(image.getchannel("A")))
    assert np.array_equal(np.asarray(image), before)


def test_noise_differs_from_image_to_image() -> None:
    image = tissue()
    first, second = (np.asarray(corrupt(image, "gaussian_noise", 1, (0, i))) for i in (1, 2))
    assert not np.array_equal(first, second)


def test_jpeg_and_brightness_and_contrast_are_pillows() -> None:
    image, stream = tissue(), io.BytesIO()
    image.save(stream, "JPEG", quality=15)
    assert np.array_equal(np.asarray(corrupt(image, "jpeg", 3, (0,))), np.asarray(Image.open(stream)))
    pixels = np.asarray(image).astype(float)
    for name, strength, factor in (("brighter", 3, 1.3), ("darker", 5, 0.5)):
        found = np.asarray(corrupt(image, name, strength, (0,))).astype(float)
        assert np.abs(found - (pixels * factor).clip(0, 255)).max() <= 1
    grey = round(float(np.asarray(image.convert("L")).mean()))
    found = np.asarray(corrupt(image, "contrast", 4, (0,))).astype(float)
    assert np.abs(found - (grey + 0.6 * (pixels - grey))).max() <= 1.5


def test_noise_has_the_deviation_that_it_names() -> None:
    flat = Image.new("L", (300, 300), 128)
    for strength, deviation in enumerate(CORRUPTIONS["gaussian_noise"].values[:3], 1):
        found = np.asarray(corrupt(flat, "gaussian_noise", strength, (0,))) / 255
        assert found.std() == pytest.approx(deviation, rel=0.02) and found.mean() == pytest.approx(128 / 255, abs=0.01)
    for strength, photons in enumerate(CORRUPTIONS["shot_noise"].values[:3], 1):
        found = np.asarray(corrupt(flat, "shot_noise", strength, (0,))) / 255
        assert found.std() == pytest.approx((128 / 255 / photons) ** 0.5, rel=0.04)  # Poisson: variance = mean


def test_defocus_is_a_disc_of_that_radius() -> None:
    point = np.zeros((224, 224), np.uint8)
    point[112, 112] = 255
    found = np.asarray(robustness._defocus(Image.fromarray(point), 6, RNG)).astype(float)
    y, x = np.nonzero(found)
    assert np.hypot(y - 112, x - 112).max() <= 6.5
    assert found[112, 112] == found.max() == round(255 / (np.pi * 6**2))  # the light is spread over the area
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (13, 13)).astype(np.float32)
    image = tissue((224, 224))
    theirs = cv2.filter2D(np.asarray(image), -1, disc / disc.sum(), borderType=cv2.BORDER_REFLECT)
    assert np.abs(np.asarray(robustness._defocus(image, 6, RNG)).astype(float) - theirs).mean() < 1.5
    flat = Image.new("RGB", (40, 30), (10, 100, 200))
    assert np.array_equal(np.asarray(corrupt(flat, "defocus", 5, (0,))), np.asarray(flat))
    small = np.asarray(robustness._defocus(Image.fromarray(point[90:134, 90:134]), 6, RNG))
    assert (small > 0).sum() < (found > 0).sum() / 4  # lengths shrink with the image


def test_hue_turns_by_degrees() -> None:
    image = tissue((8, 8))
    found = np.asarray(corrupt(image, "hue", 5, (0,)))
    for before, after in zip(np.asarray(image).reshape(-1, 3), found.reshape(-1, 3), strict=True):
        h, s, v = colorsys.rgb_to_hsv(*(before / 255))
        turned = [np.round(255 * np.array(colorsys.hsv_to_rgb((h + turn / 360) % 1, s, v))) for turn in (30, -30)]
        assert min(np.abs(after - other).max() for other in turned) <= 1


def test_stain_scales_each_stain_by_its_share() -> None:
    amounts = np.random.default_rng(0).uniform(0.1, 0.4, (6, 6, 3))
    pixels = (256 * 10 ** -(amounts @ HED) - 1).round().astype(np.uint8)
    found = np.asarray(corrupt(Image.fromarray(pixels), "stain", 3, (0,))).astype(float)
    again = -np.log10((found + 1) / 256) @ np.linalg.inv(HED)
    ratio = (again / amounts).reshape(-1, 3)
    for column in ratio.T:
        assert min(abs(np.median(column) - 1.2), abs(np.median(column) - 0.8)) < 0.02
    white = Image.new("RGB", (4, 4), (255, 255, 255))
    assert np.asarray(corrupt(white, "stain", 5, (0,))).min() == 255  # no stain: nothing to change


def test_colours_leave_a_grey_image_alone_whatever_the_others_of_its_set_are() -> None:
    grey = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16), np.uint8)).convert("RGB")
    for name in ("stain", "hue"):
        assert np.array_equal(np.asarray(corrupt(grey, name, 5, (0, 0))), np.asarray(grey))


def test_resolution_loses_what_is_finer() -> None:
    board = Image.fromarray((np.indices((40, 40)).sum(axis=0) % 2 * 255).astype(np.uint8))
    assert np.ptp(np.asarray(corrupt(board, "resolution", 2, (0,)))) <= 1  # half the side: black and white become grey
    tiny = Image.new("L", (1, 3), 7)
    assert corrupt(tiny, "resolution", 5, (0,)).size == (1, 3)


@pytest.mark.parametrize("resize", ["pad", "squash", "crop"])
@pytest.mark.parametrize("size", [(300, 200), (200, 300), (40, 30), (90, 20), (64, 64)])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_reduced_changes_nothing_for_the_network(resize: str, size: tuple[int, int], channels: int) -> None:
    how = Preprocessing(64, channels, resize, "half")
    image = tissue(size, MODES[channels])
    small = reduced(image, how)
    assert max(small.size) <= 64 and small.mode == image.mode
    assert np.array_equal(how.fit(small), how.fit(image))


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if not CORRUPTIONS[name].colour])
def test_grey_stays_grey(name: str) -> None:
    """An X-ray is often stored as RGB; its noise has no colour, and is that of the same image in mode L."""
    grey = Image.fromarray(np.random.default_rng(0).integers(40, 200, (32, 32), np.uint8))
    worse = corrupt(grey.convert("RGB"), name, 3, (0,))
    assert worse.mode == "RGB" and is_grey(worse)
    assert (np.asarray(worse)[..., 0] == np.asarray(corrupt(grey, name, 3, (0,)))).all()


def test_grey_is_told() -> None:
    assert is_grey(Image.new("L", (4, 4))) and is_grey(Image.new("RGB", (4, 4), (9, 9, 9)))
    assert not is_grey(tissue())


def test_an_unknown_corruption_lists_what_exists() -> None:
    with pytest.raises(UsageError, match="defocus") as error:
        corrupt(tissue(), "jpg", 1, (0,))
    assert "did you mean 'jpeg'" in str(error.value)
