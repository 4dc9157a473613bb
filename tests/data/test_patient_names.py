"""What file names say of patients: right, or nothing."""

from __future__ import annotations

import csv
import re
from itertools import product
from pathlib import Path

import pytest

from vitmed.data.patient_names import guess_patients
from vitmed.data.patients import groups_of


def ids(paths: list[str], **options: bool) -> list[str | None] | None:
    """The patient of every path by the guess, or None for no guess."""
    guess = guess_patients(paths, **options)
    if guess is None:
        return None
    found = groups_of(guess.expression, paths)
    assert guess.patients == len(set(found)) and list(guess.examples) == sorted(set(map(str, found)))[:3]
    return found


def names(shape: str, first: range, second: range = range(1), folders: tuple[str, ...] = ("a", "b")) -> list[str]:
    """`shape` with {i}, {j} of both ranges, in the folders in turn."""
    return [f"{folders[i % len(folders)]}/{shape.format(i=i, j=j)}" for i, j in product(first, second)]


@pytest.mark.parametrize(
    ("shape", "patient"),
    [
        ("patient_{i:04}/scan_{j}.png", "patient_{i:04}"),
        ("Patient {i}/{j}.png", "Patient {i}"),
        ("person{i}_bacteria_{j}.jpeg", "person{i}"),
        ("P{i:03}_c{j:03}.png", "P{i:03}"),
        ("P{i:03}/c{j:03}.png", "P{i:03}"),
        ("{i:07}/c{j:03}.png", "{i:07}"),
        ("C{i}P61ThinF_IMG_20150918_144104_cell_{j}.png", "C{i}"),
        ("sub-{i:02}_ses-{j:02}.png", "sub-{i:02}"),
        ("sub-ctrl{i:02}/anat/T1w_{j:02}.png", "sub-ctrl{i:02}"),
        ("TCGA-3C-AA{i:02}-01Z-00-DX{j}.png", "TCGA-3C-AA{i:02}"),
        ("ADNI_002_S_{i:04}_slice_{j}.png", "002_S_{i:04}"),
        ("{i:08}_{j:03}.png", "{i:08}"),
        ("images/study_3_subject-{i}_{j}.png", "subject-{i}"),
    ],
)
def test_names_that_tell_a_patient(shape: str, patient: str) -> None:
    paths = names(shape, range(1, 13), range(4))
    assert ids(paths) == [patient.format(i=i) for i in range(1, 13) for _ in range(4)]
    assert ids([f"train/{path}" for path in paths[:24]] + [f"test/{path}" for path in paths[24:]]) == ids(paths)


def test_a_number_after_the_word_patient_is_enough() -> None:
    """Also where hardly any patient has several images; but not where none has."""
    paths = [f"a/patient{i}.png" for i in range(60)] + ["b/patient7.png"]
    assert ids(paths) == [f"patient{i}" for i in range(60)] + ["patient7"]
    assert ids(paths[:60]) is None


def test_two_eyes_are_one_person() -> None:
    paths = [f"{grade}/{i}_{eye}.jpeg" for i in range(10, 20) for grade, eye in (("0", "left"), ("2", "right"))]
    assert ids(paths) == [str(i) for i in range(10, 20) for _ in range(2)]
    paths = [f"KL{side == 'R':d}/{9003175 + i}{side}.jpg" for i in range(10) for side in "LR"]  # knees
    assert ids(paths) == [str(9003175 + i) for i in range(10) for _ in range(2)]


@pytest.mark.parametrize(
    "shape",
    [
        "ISIC_{i:07}.jpg",
        "IMG_{i:04}.png",
        "img ({i}).png",
        "cell_{i}.png",
        "{i}.png",
        "{i:05}.png",
        "frame{i:03}_crop{j}.png",
        "ct{i:03}_{j}.png",
        "t{i:02}_z{j:02}.png",
        "2015010{j}_{i:03}.png",
        "patient_{i}.png",  # no two images share it: a running number under another name
        "P{i:03}.png",
        "x{j}_{i}.png",
        "scan{i}.v{j}.png",
    ],
)
def test_names_that_count_images_or_mean_something_else(shape: str) -> None:
    few = range(4) if "{j}" in shape or "{j:" in shape else range(1)
    assert ids(names(shape, range(1, 10), few)) is None


HASHES = [f"{i % 2}/{(i * 2654435761) % 2**32:08x}{i:08x}.png" for i in range(99)]
# Kermany's chest X-rays: pneumonia by person, normal ones by another scheme.
KERMANY = names("person{i}_virus_{j}.jpeg", range(9), range(3), ("PNEUMONIA",))
KERMANY += names("IM-{i:04}-0001.jpeg", range(9), folders=("NORMAL",))
SPLITS = ("train", "test")


@pytest.mark.parametrize(
    "paths",
    [
        [f"{name}/{shape}_{i}.png" for name in "ab" for i in range(50) for shape in ("cell", "P")],  # other cells
        [f"{name}/P{i}.png" for name in "ab" for i in range(50)],
        HASHES,
        [f"{split}/{k}/{i}.png" for split in SPLITS for k in range(10) for i in range(20)],
        [f"{split}/{k}/{i:04}.jpg" for split in SPLITS for k in ("cat", "dog") for i in range(9)],
        [f"class{k}/c{k}_{i}.png" for k in range(9) for i in range(9)],  # the class under another name
        [f"patient_{k}/{i}.png" for k in range(9) for i in range(9)],
        KERMANY,
        [],
        ["a/P1_1.png"],
    ],
)
def test_names_that_tell_no_patient(paths: list[str]) -> None:
    assert ids(paths) is None


@pytest.mark.parametrize(
    "shape", ["{c}/P{i:03}_c{j}.png", "{c}/P{i:03}/c{j}.png", "{c}/{i:02}_{eye}.png", "{c}/{i:06}_{j}.png"]
)
@pytest.mark.parametrize(("together", "known"), [(4, False), (8, True)])
def test_names_are_patients_only_where_at_least_half_of_the_images_have_a_sibling(
    shape: str, together: int, known: bool
) -> None:
    """Of 16 images, 4 or 8 share their number with another one; a few alike numbers among many may be chance."""
    numbers = [*(i for i in range(together // 2) for _ in range(2)), *range(20, 36 - together)]
    seen = [numbers[:k].count(i) for k, i in enumerate(numbers)]
    paths = [
        shape.format(c="ab"[k % 2], i=i, j=j, eye=("left", "right")[j])
        for k, (i, j) in enumerate(zip(numbers, seen, strict=True))
    ]
    assert len(set(paths)) == 16 and (ids(paths) is not None) == known


def test_folders_may_be_patients() -> None:
    paths = [f"patient_{k}/{i}.png" for k in range(2) for i in range(3)]
    assert ids(paths, folders_are_classes=False) == [f"patient_{k}" for k in range(2) for _ in range(3)]


def test_a_patch_is_no_patient() -> None:
    """Of histology: the same number of patch lies in every slide."""
    for name in ("slide{}/patch{:03d}.png", "S{:02d}_patch{}.png", "P{:03d}/patch{:03d}.png"):
        found = ids([f"{c}/{name.format(s, p)}" for c in "ab" for s in range(7) for p in range(9)])
        assert found is None or not any("patch" in str(patient) for patient in found)


def test_half_of_an_id_is_no_patient() -> None:
    """patient_1a2b and patient_1c9d are not both patient 1; a letter or a slice behind the number is of the image."""
    for word in ("patient", "pt", "pat", "case"):
        number = [f"{i * 7919 % 900 + 9}{'abcdef'[i % 6]}{i}" for i in range(9)]
        assert ids([f"{c}/{word}_{i}_{j}.png" for c in "ab" for i in number for j in "12"]) is None
        for images in ("abc", ("L", "R", "V"), ("slice3", "slice4", "slice12"), ("_c3", "_c4", "_1a2b")):
            found = ids(
                [f"{'ab'[k % 2]}/{word}{i}{image}.png" for k, image in enumerate(images) for i in range(10, 20)]
            )
            assert found == [f"{word}{i}" for _ in range(3) for i in range(10, 20)]


def test_the_malaria_cells_are_of_200_patients(data_dir: Path) -> None:
    """18 shapes of file name, no hint; against a table that somebody else made."""
    with (data_dir / "malaria_gray50_patients.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    paths = [row["path"] for row in rows]
    assert len({re.sub(r"\d+", "9", path.partition("/")[2]) for path in paths}) == 18
    assert ids(paths) == [row["patient"] for row in rows] and guess_patients(paths).patients == 200
