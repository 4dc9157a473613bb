"""Batches on the device: the distributions of albumentations, as safe, and a function of the seed and the index."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats

from vitmed.imaging.augmentation import POLICIES, Augmenter
from vitmed.imaging.batch_augmentation import BatchAugmenter, Draws, jpeg

DRAWS, SIDE = 400, 48
RANDOM = [name for name in POLICIES if name != "none"]
UPRIGHT = ["light", "medical", "chest_xray", "fundus", "ultrasound", "oct", "ct_mri"]
ANY_WAY_UP = ["blood_smear", "histology", "dermoscopy"]


def picture(side: int = SIDE, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth, coloured, with a bright mark in the upper left quarter: (side, side, C) uint8."""
    noise = ndimage.gaussian_filter(
        np.random.default_rng(seed).random((side, side, channels)), (side / 16, side / 16, 0)
    )
    image = np.uint8(60 + 120 * (noise - noise.min()) / (noise.max() - noise.min()))
    image[side // 5 : side // 3, side // 5 : side // 3] = 240
    return image


def batch_of(image: np.ndarray, policy: str, flips: bool = True, count: int = DRAWS, seed: int = 3) -> np.ndarray:
    """`count` draws of one image, (count, S, S, C) uint8."""
    images = torch.from_numpy(np.stack([image] * count))
    return BatchAugmenter(policy, len(image), image.shape[2], flips)(images, seed, torch.arange(count)).numpy()


def numbers(images: np.ndarray) -> dict[str, np.ndarray]:
    """What a change of geometry, light, colour, sharpness or noise moves: name -> one number for each image."""
    x = images.astype(float)
    grey = x.mean(axis=3)
    light = np.maximum(grey - np.quantile(grey, 0.9, axis=(1, 2), keepdims=True), 0) + 1e-9
    place = np.arange(grey.shape[1])
    return {
        "mean": grey.mean(axis=(1, 2)),
        "contrast": grey.std(axis=(1, 2)),
        "black": (grey < 8).mean(axis=(1, 2)),
        "row of the bright": (light.sum(axis=2) * place).sum(axis=1) / light.sum(axis=(1, 2)),
        "column of the bright": (light.sum(axis=1) * place).sum(axis=1) / light.sum(axis=(1, 2)),
        "colour": (x[..., 0] - x[..., 2]).mean(axis=(1, 2)),
        "edges": np.abs(np.diff(grey, axis=1)).mean(axis=(1, 2)),
    }


@pytest.mark.parametrize("policy", RANDOM)
def test_every_policy_has_the_distribution_of_albumentations(policy: str) -> None:
    image = picture()
    augment = Augmenter(policy, SIDE, 3)
    theirs = numbers(np.stack([augment(image, (0, 0, i)) for i in range(DRAWS)]))
    ours = numbers(batch_of(image, policy))
    for name, values in ours.items():
        assert stats.ks_2samp(values, theirs[name]).pvalue > 1e-3, (name, values.mean(), theirs[name].mean())
    unchanged = [(found["mean"] == numbers(image[None])["mean"]).mean() for found in (ours, theirs)]
    assert unchanged[0] == pytest.approx(unchanged[1], abs=0.1)


def area_left(squares: np.ndarray) -> np.ndarray:
    """The share of its area that is left of each image, whose columns once had the values 2, 4, 6, ..."""
    middle = squares[:, SIDE // 2, SIDE // 4 : -SIDE // 4, 0].astype(float)
    return ((middle[:, -1] - middle[:, 0]) / (2 * (middle.shape[1] - 1))) ** 2


def test_a_random_crop_leaves_at_least_its_share_of_the_area_and_takes_the_place_of_the_policys() -> None:
    ramp = np.ascontiguousarray(np.broadcast_to(np.uint8(2 * np.arange(SIDE))[None, :, None], (SIDE, SIDE, 3)))
    images, indices = torch.from_numpy(np.stack([ramp] * DRAWS)), torch.arange(DRAWS)
    ours = BatchAugmenter("none", SIDE, 3, crop=0.5)(images, 3, indices).numpy()
    augment = Augmenter("none", SIDE, 3, crop=0.5)
    theirs = np.stack([augment(ramp, (0, 0, i)) for i in range(DRAWS)])
    for area in (area_left(ours), area_left(theirs)):  # the sides differ by up to 10 %, and values are rounded
        assert 0.42 < area.min() < 0.5 and 0.9 < area.max() < 1.13 and abs(area.mean() - 0.75) < 0.03
    assert stats.ks_2samp(area_left(ours), area_left(theirs)).pvalue > 1e-3
    assert [change.values for change in POLICIES["histology"].steps(True, 3, 0.5) if change.name == "crop"] == [(0.5,)]
    assert POLICIES["medical"].steps(False, 3, 0.5)[0].name == "crop"


@pytest.mark.parametrize("policy", UPRIGHT)
@pytest.mark.parametrize("flips", [True, False])
def test_modalities_with_an_up_side_stay_upright_and_mirror_only_where_the_table_says(policy: str, flips: bool) -> None:
    found = numbers(batch_of(picture(), policy, flips))
    assert found["row of the bright"].max() < SIDE / 2
    assert (found["column of the bright"].max() > SIDE / 2) == (flips and POLICIES[policy].flips)


@pytest.mark.parametrize("policy", ANY_WAY_UP)
@pytest.mark.parametrize("flips", [True, False])
def test_the_symmetries_are_all_or_without_flips_the_turns(policy: str, flips: bool) -> None:
    image = np.zeros((64, 64, 3), np.uint8)
    image[12:52, 14:24], image[42:52, 14:44] = 150, 150  # the letter L: no symmetry of its own
    forms = {(k, m): np.rot90(image[:, ::-1] if m else image, k) for m in (False, True) for k in range(4)}
    drawn = batch_of(image, policy, flips)
    fit = stats.zscore(drawn.reshape(DRAWS, -1), axis=1) @ stats.zscore([*map(np.ravel, forms.values())], axis=1).T
    fit /= image.size  # (draws, 8) correlations; below 0.9 it is turned by another angle
    reached = {list(forms)[row.argmax()] for row in fit if row.max() > 0.9}
    assert reached == {(k, m) for m in ((False, True) if flips else (False,)) for k in range(4)}


@pytest.mark.parametrize("policy", POLICIES)
def test_an_image_is_a_function_of_its_seed_and_its_index_alone(policy: str) -> None:
    images = torch.from_numpy(np.stack([picture(32, seed=i) for i in range(12)]))
    before, indices, augment = images.clone(), torch.arange(100, 112), BatchAugmenter(policy, 32, 3)
    whole = augment(images, 7, indices)
    state = torch.get_rng_state()
    order = torch.tensor([5, 2, 11, 0])
    assert torch.equal(augment(images[order], 7, indices[order]), whole[order])
    assert torch.equal(pickle.loads(pickle.dumps(augment))(images[3:4], 7, indices[3:4]), whole[3:4])
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(images, before)
    if policy != "none":
        assert not torch.equal(augment(images, 8, indices), whole)
        assert not torch.equal(augment(images, 7, indices + 1), whole)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_takes_1_to_4_channels_and_odd_sizes(policy: str, channels: int) -> None:
    shape = (20, 29, 29, channels)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    images[:5], images[5:10] = 0, 255
    found = BatchAugmenter(policy, 29, channels)(images, 1, torch.arange(20))
    assert found.shape == shape and found.dtype == torch.uint8 and found.is_contiguous()


def test_draws_are_those_of_splitmix64_and_independent() -> None:
    def splitmix(state: int) -> int:
        z = state % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    golden, seed = 0x9E3779B97F4A7C15, 2**62 + 5
    draw = Draws(seed, torch.tensor([0, 1, 977]))
    draw.uniform()
    found = draw.uniform(0, 1, 2)
    for row, index in enumerate((0, 1, 977)):
        key = splitmix(index * golden + seed)
        wanted = [(splitmix(key + k * golden) & 0xFFFFFF) / 2**24 for k in (1, 2)]
        assert found[row].tolist() == wanted
    many = Draws(1, torch.arange(4000)).uniform(0, 1, 8).numpy()
    assert stats.kstest(many.ravel(), "uniform").pvalue > 0.01
    assert np.abs(np.corrcoef(many, rowvar=False) - np.eye(8)).max() < 0.06
    assert np.abs(np.corrcoef(many[:-1, 0], many[1:, 0])[0, 1]) < 0.06
    assert stats.kstest(Draws(2, torch.arange(100)).normal(50).numpy().ravel(), "norm").pvalue > 0.01


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("quality", [60, 80, 95])
def test_compression_is_that_of_a_jpeg_file(channels: int, quality: int) -> None:
    image, file = picture(50, channels), io.BytesIO()
    Image.fromarray(image.squeeze()).save(file, "JPEG", quality=quality)
    theirs = np.asarray(Image.open(file)).reshape(image.shape).astype(float)
    x = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    ours = jpeg(x, torch.full((1, 1, 1, 1, 1), float(quality)))[0].permute(1, 2, 0).numpy()
    assert np.abs(ours - theirs).mean() < 0.35 * np.abs(image - theirs).mean() + 0.5  # they round more often
