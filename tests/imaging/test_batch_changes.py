"""Each change of a batch against numpy, scipy, Pillow's colours and the JPEG standard, from the same random numbers."""

from __future__ import annotations

import colorsys
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import fft, ndimage, stats

from vitmed.imaging.augmentation import POLICIES, Change, margin_and_area, stain_matrices
from vitmed.imaging.batch_augmentation import BATCH_CHANGES, BatchAugmenter, Draws, jpeg

B, S = 40, 16
SEED = 11


def pictures(count: int = B, side: int = S, channels: int = 3) -> np.ndarray:
    """(B, C, S, S) float64 of whole numbers, of all colours."""
    rng = np.random.default_rng(5)
    smooth = ndimage.gaussian_filter(rng.normal(size=(count, channels, side, side)), (0, 0, 1.5, 1.5))
    return np.round(np.clip(128 + 200 * smooth, 0, 255))


def changed(name: str, x: np.ndarray, *values: Any, **named: Any) -> np.ndarray:
    """One change of a whole batch, (B, C, S, S)."""
    return BATCH_CHANGES[name](torch.from_numpy(x).float(), draws(len(x)), *values, **named).double().numpy()


def draws(count: int = B) -> Draws:
    return Draws(SEED, torch.arange(count))


def flat(values: torch.Tensor) -> np.ndarray:
    """(B, ...) float64 without axes of length 1."""
    return values.double().numpy().reshape(len(values), *(n for n in values.shape[1:] if n > 1))


def sampled(image: np.ndarray, rows: np.ndarray, columns: np.ndarray, outside: str = "grid-constant") -> np.ndarray:
    return np.stack([ndimage.map_coordinates(one, [rows, columns], order=1, mode=outside) for one in image])


ROWS, COLUMNS = np.mgrid[:S, :S].astype(float)


@pytest.mark.parametrize("flips", [True, False])
def test_symmetries(flips: bool) -> None:
    """Transposed, mirrored and upturned by turns; without flips an even number of the three. All alike likely."""
    x, draw = pictures(), draws()
    found = changed("symmetry", x, flips)
    reached = []
    for image, own, t, m, u in zip(x, found, *(flat(draw.chosen(0.5)) for _ in range(3)), strict=True):
        u = u if flips else float(t != m)
        turned = image.transpose(0, 2, 1) if t else image
        turned = turned[:, :, ::-1] if m else turned
        assert np.array_equal(own, turned[:, ::-1] if u else turned)
        reached.append((t, m, u))
    assert len(set(reached)) == (8 if flips else 4)


def test_mirrors() -> None:
    x, chosen = pictures(), flat(draws().chosen(0.5))
    found = changed("mirror", x)
    for image, own, mirrored in zip(x, found, chosen, strict=True):
        assert np.array_equal(own, image[:, :, ::-1] if mirrored else image)
    assert BatchAugmenter("light", S, 3, flips=False).changes == [
        step for step in POLICIES["light"].changes if step.name != "mirror"
    ]


def test_an_affine_map_turns_shifts_and_scales_about_the_middle() -> None:
    x, draw = pictures(), draws()
    found = changed("affine", x, 30, 0.2, 0.25, p=0.8)
    chosen, angle, size = (flat(v) for v in (draw.chosen(0.8), draw.uniform(-30, 30), draw.uniform(0.75, 1.25)))
    moved = np.trunc(flat(draw.uniform(-0.2 * S, 0.2 * S, 2)))
    assert 0 < chosen.sum() < B and np.abs(moved).max() > 1
    middle = (S - 1) / 2
    for i in range(B):
        if not chosen[i]:
            assert found[i] == pytest.approx(x[i], abs=1e-3)
            continue
        turn, right, down = math.radians(angle[i]), *moved[i]
        u, v = COLUMNS - middle - right, ROWS - middle - down
        columns = (math.cos(turn) * u - math.sin(turn) * v) / size[i] + middle
        rows = (math.sin(turn) * u + math.cos(turn) * v) / size[i] + middle
        assert np.abs(found[i] - sampled(x[i], rows, columns)).max() < 0.05


@pytest.mark.parametrize("margin", [0, 2])
def test_a_crop_is_the_first_of_ten_that_fits(margin: int) -> None:
    """A part of the area, of some shape, enlarged to the full size; with a margin of black around the image."""
    x, draw, ratio = pictures(), draws(), (0.5, 2.0)
    found = changed("crop", x, 0.3, 1.0, ratio, margin=margin)
    side = S + 2 * margin
    area, shape = flat(draw.uniform(0.3 * side**2, side**2, 10)), np.exp(flat(draw.uniform(*np.log(ratio), 10)))
    wide, high = np.round(np.sqrt(area * shape)), np.round(np.sqrt(area / shape))
    at = flat(draw.uniform(0, 1, 2))
    assert ((wide > side) | (high > side)).any()  # some tries do not fit
    for i in range(B):
        fits = np.flatnonzero((wide[i] <= side) & (high[i] <= side))
        w, h = (wide[i, fits[0]], high[i, fits[0]]) if len(fits) else (side, side)
        left, top = np.floor(at[i] * (side - np.array([w, h]) + 1)) - margin
        columns, rows = left + (COLUMNS + 0.5) * w / S - 0.5, top + (ROWS + 0.5) * h / S - 0.5
        expected = sampled(x[i], rows, columns, "grid-constant" if margin else "nearest")
        assert np.abs(found[i] - expected).max() < 0.05


def test_a_crop_that_never_fits_is_the_whole_image_and_a_bicubic_one_is_near_a_bilinear_one() -> None:
    x = pictures()
    assert changed("crop", x, 1.0, 1.0, ratio=(8, 9)) == pytest.approx(x, abs=1e-3)
    assert changed("crop", x[:, :, :8, :8], 1.0).shape == (B, 3, 8, 8)
    two, three = (changed("crop", x, 0.3, 0.6, interpolation=way) for way in (1, 2))
    assert 0.1 < np.abs(two - three).mean() < 6
    plain = changed("crop", x, 0.3, 0.6, (0.9, 1.1), margin=0)
    assert np.array_equal(plain, two)


def test_shift_and_scale_is_a_crop_with_a_margin_of_a_tenth() -> None:
    """At 20 px: 2 px of black around, and parts of (0.9 x 20 / 24)^2 of the area up to (1.1 x 20 / 24)^2."""
    x = pictures(B, 20)
    found = changed("shift_and_scale", x)
    assert np.array_equal(found, changed("crop", x, 0.75**2, (22 / 24) ** 2, (1, 1), margin=2))
    assert margin_and_area(20) == pytest.approx((2, 0.75**2, (22 / 24) ** 2))
    assert margin_and_area(4) == pytest.approx((1, 0.36, (4.4 / 6) ** 2))


def test_brightness_gamma_and_speckle() -> None:
    x = pictures()
    draw = draws()
    chosen, factor = flat(draw.chosen(0.6)), flat(draw.uniform(0.7, 1.3, 1, 1, 1))
    added = flat(draw.uniform(-0.3 * 255, 0.3 * 255, 1, 1, 1))
    factor, added = np.where(chosen, factor, 1), np.where(chosen, added, 0)
    expected = np.clip(x * factor[:, None, None, None] + added[:, None, None, None], 0, 255)
    found = changed("brightness", x, 0.3, p=0.6)
    assert np.abs(found - expected).max() < 1e-3 and found.max() == 255 and 0 < chosen.sum() < B

    draw = draws()
    chosen, power = flat(draw.chosen(0.5)), flat(draw.uniform(0.8, 1.2, 1, 1, 1))
    expected = 255 * (x / 255) ** np.where(chosen, power, 1)[:, None, None, None]
    assert np.abs(changed("gamma", x) - expected).max() < 1e-3
    draw = draws()
    chosen, power = flat(draw.chosen(0.9)), flat(draw.uniform(0.5, 0.6, 1, 1, 1))
    expected = 255 * (x / 255) ** np.where(chosen, power, 1)[:, None, None, None]
    assert np.abs(changed("gamma", x, 50, 60, p=0.9) - expected).max() < 1e-3

    draw = draws()
    chosen, each = flat(draw.chosen(0.3)), flat(draw.uniform(0.9, 1.1, 1, S, S))
    expected = np.clip(x * np.where(chosen[:, None, None], each, 1)[:, None], 0, 255)
    assert np.abs(changed("speckle", x) - expected).max() < 1e-3


def test_hue_saturation_and_value_by_colorsys() -> None:
    """Up to 5 of 180 steps of hue, 15 of 255 of saturation and 10 of value; grey stays grey."""
    x, draw = pictures(12, 6), draws(12)
    x[:, :, 0] = x[:, :1, 0]
    found = changed("hue", x, p=0.7)
    chosen, (hue, grey, light) = flat(draw.chosen(0.7)), (flat(draw.uniform(-v, v, 1, 1)) for v in (5 / 30, 15, 10))
    assert 0 < chosen.sum() < 12
    for i, image in enumerate(x):
        expected = image.copy()
        for row, column in np.ndindex(6, 6) if chosen[i] else ():
            h, s, v = colorsys.rgb_to_hsv(*(image[:, row, column] / 255))
            s = np.clip(s + grey[i] / 255, 0, 1) if s > 0 else 0
            v = np.clip(v + light[i] / 255, 0, 1)
            expected[:, row, column] = 255 * np.array(colorsys.hsv_to_rgb((h + hue[i] / 6) % 1, s, v))
        assert np.abs(found[i] - expected).max() < 0.01
    assert "hue" not in [step.name for step in BatchAugmenter("blood_smear", S, 1).changes]


def test_stains_change_in_their_own_space() -> None:
    """Optical density = amounts of two stains x their colours; tissue is what is darker than 0.85."""
    x, draw, of_stains = pictures(), draws(), stain_matrices()
    x[:, :, :4] = 250  # glass
    found = changed("stain", x, p=0.8)
    chosen, scale = flat(draw.chosen(0.8)), flat(draw.uniform(0.8, 1.2, 2, 1, 1))
    shift, kind = flat(draw.uniform(-0.1, 0.1, 2, 1, 1)), flat(draw.uniform(0, len(of_stains))).astype(int)
    for i, image in enumerate(x):
        density = -np.log(np.maximum(image / 255, 1e-6)).reshape(3, -1)
        amounts, *_ = np.linalg.lstsq(of_stains[kind[i]].T, density, rcond=None)
        tissue = np.array([0.299, 0.587, 0.114]) @ image.reshape(3, -1) / 255 < 0.85
        amounts = np.where(tissue, amounts * scale[i][:, None] + shift[i][:, None], amounts)
        expected = np.clip(255 * np.exp(-(of_stains[kind[i]].T @ amounts)), 0, 255).reshape(image.shape)
        assert np.abs(found[i] - (expected if chosen[i] else image)).max() < 0.05
    assert len(set(kind)) == len(of_stains) == 8
    assert "stain" not in [step.name for step in BatchAugmenter("histology", S, 1).changes]


def test_blur_is_a_gauss_or_a_disk() -> None:
    """Of 3 or 5 px and a sigma of 0.5 to 3, or of radius 1 to 3 with a soft margin; mirrored at the border."""
    x, draw = pictures(), draws()
    found = changed("blur", x, p=0.9)
    chosen, gauss = flat(draw.chosen(0.9)), flat(draw.chosen(0.5))
    wide, sigma = flat(draw.chosen(2 / 3)), flat(draw.uniform(0.5, 3, 1))
    radius, soft = 1 + np.floor(flat(draw.uniform(0, 3))), flat(draw.uniform(0.1, 0.5, 1))
    place = np.arange(-4, 5)

    def bell(width: float, reach: int) -> np.ndarray:
        line = np.exp(-0.5 * (place / width) ** 2) * (np.abs(place) <= reach)
        return np.outer(line, line) / line.sum() ** 2

    for i, image in enumerate(x):
        disk = (np.hypot(*np.meshgrid(place, place)) <= radius[i]).astype(float)
        disk = ndimage.convolve(disk / disk.sum(), bell(soft[i], 1)[3:6, 3:6], mode="constant")
        kernel = bell(sigma[i], 2 if wide[i] else 1) if gauss[i] else disk
        expected = np.stack([ndimage.convolve(one, kernel, mode="mirror") for one in image])
        assert np.abs(found[i] - (expected if chosen[i] else image)).max() < 0.01
    assert {1.0, 2.0, 3.0} == set(radius) and 0 < gauss.sum() < B and 0 < wide.sum() < B and chosen.sum() < B


@pytest.mark.parametrize(("channels", "grey", "drawn"), [(3, False, 3), (3, True, 1), (1, False, 1)])
def test_noise_is_normal_and_grey_unless_colours_are_asked_for(channels: int, grey: bool, drawn: int) -> None:
    x, draw = pictures(channels=channels), draws()
    found = changed("noise", x, 0.1, p=0.7, grey=grey)
    amount = np.where(flat(draw.chosen(0.7)), flat(draw.uniform(0.01, 0.1, 1, 1, 1)) * 255, 0)
    first, second = (draw.uniform(0, 1, drawn, S, S).double().numpy() for _ in range(2))
    normal = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * math.pi * second)
    assert np.abs(found - np.clip(x + amount[:, None, None, None] * normal, 0, 255)).max() < 0.01
    assert stats.kstest(normal.ravel(), "norm").pvalue > 0.01 and (amount == 0).any()
    draw = draws()
    amount = np.where(flat(draw.chosen(0.2)), flat(draw.uniform(0.01, 0.03, 1, 1, 1)) * 255, 0)  # unless told otherwise
    usual = changed("noise", np.full_like(x, 128)) - 128
    assert (usual[:, 0].std(axis=(1, 2)) / np.maximum(amount, 1e-9))[amount > 0] == pytest.approx(1, abs=0.2)
    assert not usual[amount == 0].any() and np.array_equal(usual[:, 0], usual[:, -1])


def test_holes_are_up_to_three_black_rectangles() -> None:
    """With sides of 5 to 12 % of the image's, anywhere inside."""
    x, draw = np.full((B, 1, 50, 50), 200.0), draws()
    found = changed("holes", x, p=0.8)
    count = np.where(flat(draw.chosen(0.8)), 1 + np.floor(flat(draw.uniform(0, 3, 1, 1))), 0).astype(int)
    sides = np.floor(flat(draw.uniform(0.05, 0.12, 3, 2)) * 50).astype(int)
    start = np.floor(flat(draw.uniform(0, 1, 3, 2)) * (50 - sides + 1)).astype(int)
    for i in range(B):
        expected = np.full((50, 50), 200.0)
        for (row, column), (high, wide) in zip(start[i, : count[i]], sides[i, : count[i]], strict=True):
            expected[row : row + high, column : column + wide] = 0
        assert np.array_equal(found[i, 0], expected)
    assert set(count) == {0, 1, 2, 3}


def test_bending_moves_by_smooth_noise() -> None:
    """Normal noise over its largest value, smoothed by a Gauss of 8 px, times 20 px; black outside."""
    x, draw = pictures(12), draws(12)
    found = changed("bending", x, p=0.7)
    chosen = flat(draw.chosen(0.7))
    first, second = (draw.uniform(0, 1, 2, S, S).double().numpy() for _ in range(2))
    noise = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * math.pi * second)
    for i, image in enumerate(x):
        field = noise[i] / np.abs(noise[i]).max()
        right, down = (20 * ndimage.gaussian_filter(one, 8, mode="nearest", truncate=4) for one in field)
        expected = sampled(image, ROWS + down, COLUMNS + right) if chosen[i] else image
        assert np.abs(found[i] - expected).max() < 0.05
    assert 0 < chosen.sum() < 12


TO_YCC = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])  # JFIF 1.02
LIGHT = np.array([
    [16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55], [14, 13, 16, 24, 40, 57, 69, 56],
    [14, 17, 22, 29, 51, 87, 80, 62], [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
    [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99],
])  # fmt: skip
COLOUR = np.full((8, 8), 99)
COLOUR[:4, :4] = [[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]]


def quantised(plane: np.ndarray, quality: float, table: np.ndarray) -> np.ndarray:
    """Blocks of 8 x 8: the cosine transform of scipy, rounded to the steps of the IJG library, and back."""
    steps, found = np.clip(np.floor((table * (200 - 2 * quality) + 50) / 100), 1, 255), plane - 128
    for row, column in np.ndindex(plane.shape[0] // 8, plane.shape[1] // 8):
        block = np.s_[8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
        found[block] = fft.idctn(np.round(fft.dctn(found[block], norm="ortho") / steps) * steps, norm="ortho")
    return np.clip(found + 128, 0, 255)


@pytest.mark.parametrize("quality", [50, 73, 100])
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("side", [32, 21])
def test_compression_is_that_of_the_standard(quality: int, channels: int, side: int) -> None:
    image = pictures(1, side, channels)
    image += np.random.default_rng(0).uniform(-0.4, 0.4, image.shape)  # no coefficient is half way between two steps
    found = jpeg(torch.from_numpy(image).float(), torch.full((1, 1, 1, 1, 1), float(quality)))[0].double().numpy()
    more = -side % 16
    padded = np.pad(image[0], [(0, 0), (0, more), (0, more)], mode="edge")
    if channels != 3:
        expected = np.stack([quantised(one, quality, LIGHT) for one in padded])
    else:
        light, *colours = np.einsum("yc,chw->yhw", TO_YCC, padded) + np.array([0, 128, 128])[:, None, None]
        light = quantised(light, quality, LIGHT)
        size = side + more
        line = (np.arange(size) + 0.5) / 2 - 0.5
        for k, colour in enumerate(colours):
            small = quantised(colour.reshape(size // 2, 2, size // 2, 2).mean(axis=(1, 3)), quality, COLOUR)
            rows, columns = np.meshgrid(line, line, indexing="ij")
            colours[k] = ndimage.map_coordinates(small, [rows, columns], order=1, mode="nearest") - 128
        expected = np.einsum("cy,yhw->chw", np.linalg.inv(TO_YCC), np.stack([light, *colours]))
    expected = np.clip(expected, 0, 255)[:, :side, :side]
    assert np.quantile(np.abs(found - expected), 0.98) < 0.02


def test_the_quality_of_a_compression_is_drawn_up_to_100() -> None:
    x, draw = pictures(), draws()
    found = changed("compression", x, 60, p=0.5)
    chosen, quality = flat(draw.chosen(0.5)), draw.uniform(60, 101, 1, 1, 1, 1).floor()
    whole = jpeg(torch.from_numpy(x).float(), quality).double().numpy()
    assert np.array_equal(found, np.where(chosen[:, None, None, None], whole, x)) and 0 < chosen.sum() < B


def test_a_grey_picture_stays_grey_and_values_are_rounded() -> None:
    """Beside coloured ones in the same batch; what is drawn for one does not depend on the others."""
    x = pictures(24).astype(np.uint8)
    x[:20] = x[:20, :1]
    images, numbers = torch.from_numpy(x).permute(0, 2, 3, 1).contiguous(), torch.arange(24)
    for policy in POLICIES:
        augment = BatchAugmenter(policy, S, 3)
        found = augment(images, 3, numbers)
        of_one_grey = (found == found[..., :1]).all(dim=3).flatten(1).all(dim=1)
        assert of_one_grey.tolist() == [True] * 20 + [False] * 4
        assert torch.equal(augment(images[21:22], 3, numbers[21:22])[0], found[21])
        assert torch.equal(found, images) == (policy == "none")
    assert [len(BatchAugmenter("blood_smear", S, channels).changes) for channels in (1, 3)] == [5, 6]  # no hue of grey
    assert [len(BatchAugmenter("light", S, 3, *flips).changes) for flips in ((), (True,), (False,))] == [2, 2, 1]
    x, draw = np.full((8, 1, S, S), 100.0), Draws(3, torch.arange(8))
    found = BatchAugmenter("chest_xray", S, 1)(torch.full((8, S, S, 1), 100, dtype=torch.uint8), 3, torch.arange(8))
    for change in BatchAugmenter("chest_xray", S, 1).changes:
        x = BATCH_CHANGES[change.name](torch.as_tensor(x).float(), draw, *change.values, **change.named)
    assert torch.equal(found[..., 0].float(), x[:, 0].round())


def in_words(step: Change) -> str:
    """A change with its arguments."""
    texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in step.values]
    return f"{step.name}({', '.join(texts + [f'{key}={value}' for key, value in step.named.items()])})"


STRENGTHS = {
    "none": "",
    "light": "mirror() shift_and_scale()",
    "medical": "affine(10, 0.05, 0.1, p=0.7) brightness(0.1, p=0.5) blur(p=0.2) noise(0.1, p=0.25, grey=False)",
    "blood_smear": (
        "symmetry() affine(180, 0.05, 0.1, p=0.5) brightness(0.15, p=0.5) hue(p=0.5) blur(p=0.1) compression(70, p=0.2)"
    ),
    "histology": "crop(0.7) symmetry() stain(p=0.5) brightness(0.1, p=0.3) blur(p=0.15) compression(60, p=0.2)",
    "dermoscopy": "crop(0.6) symmetry() affine(180, 0, 0, p=0.5) brightness(0.15, p=0.5) hue(p=0.3) holes(p=0.2)",
    "chest_xray": "affine(7, 0.04, 0.07, p=0.7) gamma() brightness(0.1, p=0.5) noise()",
    "fundus": "mirror() affine(15, 0.04, 0.07, p=0.7) gamma() brightness(0.1, p=0.5)",
    "ultrasound": "mirror() affine(10, 0.05, 0.05, p=0.7) gamma() speckle()",
    "oct": "mirror() affine(8, 0.05, 0, p=0.7) gamma() speckle()",
    "ct_mri": "affine(10, 0.04, 0.1, p=0.7) bending(p=0.2) gamma(90, 110, p=0.3) noise()",
    "mae": f"crop(0.2, 1, ratio=({3 / 4}, {4 / 3}), interpolation=2) mirror()",
}


def test_how_strong_every_policy_is() -> None:
    """Measured results are of these strengths: a change of one is a change of the method."""
    assert {name: " ".join(map(in_words, policy.changes)) for name, policy in POLICIES.items()} == STRENGTHS
    mirroring = {name for name, text in STRENGTHS.items() if "mirror" in text or "symmetry" in text or "shift" in text}
    assert {name for name, policy in POLICIES.items() if policy.flips} == mirroring
    assert {name for name, policy in POLICIES.items() if policy.turns} == {
        name for name, text in STRENGTHS.items() if "symmetry" in text
    }
