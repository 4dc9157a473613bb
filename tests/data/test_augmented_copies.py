"""Augmented copies by file name: copies of one original in one group, or nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitmed.core.config import DataConfig
from vitmed.data.patient_names import guess_copies
from vitmed.data.patients import groups_of, patient_notes
from vitmed.data.splits import make_splits

RNG = np.random.default_rng(0)


def keras(limit: int = 10**4) -> int:
    """The number that Keras appends with save_to_dir: `np.random.randint(limit)`."""
    return int(RNG.integers(limit))


def roboflow() -> str:
    return f"{int(RNG.integers(2**62)):032x}"


def augmentor() -> str:
    return f"{int(RNG.integers(2**32)):08x}-ac8a-11ea-93f2-{int(RNG.integers(2**47)):012x}"


def uncovered(names: list[list[str]]) -> None:
    """The guess groups exactly the names of each list."""
    paths = [name for group in names for name in group]
    guess = guess_copies(paths)
    assert guess is not None and guess.what == "original"
    found = groups_of(guess.expression, paths)
    truth = [i for i, group in enumerate(names) for _ in group]
    assert None not in found
    assert len(set(zip(found, truth, strict=True))) == len(set(found)) == len(set(truth)) == guess.patients


@pytest.mark.parametrize(
    "copies",
    [
        lambda c, i: [f"{c}/img{i}.png", f"{c}/img{i}_flip.png", f"{c}/img{i}_rot90.png"],
        lambda c, i: [f"{c}/img{i}_{k}.png" for k in ("hflip", "vflip", "rotated_180", "blur", "noise_2", "aug3")],
        lambda c, i: [f"{c}/IMG {i}.JPG", f"{c}/IMG {i} - Copy.JPG", f"{c}/IMG {i} - Copy (2).JPG"],
        lambda c, i: [f"{c}/{c}{i}.png", f"{c}/{c}{i} (1).png", f"{c}/{c}{i} (2).png"],
        lambda c, i: [f"{c}/x{c}{i}_jpg.rf.{roboflow()}.jpg" for _ in range(3)],
        lambda c, i: [f"{c}/{c}{i}.jpg", f"{c}/aug_1_{c}{i}.jpg", f"{c}/aug_2_{c}{i}.jpg"],
        lambda c, i: [f"{c}/{c}_original_im{i}.jpg_{augmentor()}.jpg" for _ in range(4)],
        lambda c, i: [f"{c}/_{i}_{keras()}.png" for _ in range(8)],
        lambda c, i: [f"{c}/aug_{i}_{keras(10**7)}.png" for _ in range(8)],
        lambda c, i: [f"{c}/{c}{i}.png", *(f"{c}/{c}{i}_0_{keras(10**7)}.png" for _ in range(4))],
    ],
)
def test_names_of_programs_that_augment_or_copy(copies: object) -> None:
    uncovered([copies(c, i) for c in ("benign", "malignant") for i in range(20)])  # type: ignore[operator]


def test_copies_over_splits() -> None:
    """Made before the split: a name of train occurs, with a mark, in test; or the names begin anew in every split."""
    uncovered([[f"train/a/p{i}.png", f"test/a/p{i}_flip.png"] for i in range(20)])
    folders = [f"{split}/{name}" for split in ("train", "test") for name in "ab"]
    uncovered([[f"{folder}/{i}.png", f"{folder}/{i}_rot90.png"] for folder in folders for i in range(9)])


@pytest.mark.parametrize(
    "shape",
    [
        "benign/benign ({i}).png",  # numbers of Windows, not copies
        "{c}/cell_{i}_{j}.png",
        "{c}/tile_{x}_{y}.png",
        "{c}/img_0_{i}.png",
        "{c}/P{i:03}_{j:04}.png",
        "{c}/rotation{i}_{j}.png",
        "{c}/{i}_contrast.png",  # every image has it: no original is there
        "{c}/{i}{j}.png",
    ],
)
def test_names_of_other_meaning(shape: str) -> None:
    paths = {shape.format(c=c, i=i, j=j, x=256 * i, y=256 * j) for c in "ab" for i in range(30) for j in range(30)}
    assert guess_copies(sorted(paths)) is None


def test_originals_are_reported_and_used_only_on_request(tmp_path: Path) -> None:
    paths = [f"{c}/img{i}{mark}.png" for c in "ab" for i in range(20) for mark in ("", "_flip", "_rot90")]
    for k, path in enumerate(paths):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8), k, np.uint8)).save(tmp_path / path)
    without = make_splits(DataConfig(root=str(tmp_path), cache=False))
    assert not without.grouped and without.guess is not None and without.guess.patients == 40
    assert without.guess.evidence == "80 of 120 file names look like copies, such as img0.png and img0_flip.png"
    splits = make_splits(DataConfig(root=str(tmp_path), cache=False, groups="names"))
    assert splits.shared() == {} and len(set().union(*splits.groups().values())) == 40
    assert "by original, seed 0" in splits.made["test"]
    assert "one patient may be in two splits" in patient_notes(splits, "test")[0]
