"""The drawn demo set: seeded, split by patient, all or nothing, and only the parasite gives the class away."""

import hashlib
import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitmed.core.errors import DataError, UsageError
from vitmed.data import synthetic
from vitmed.data.synthetic import CLASSES, draw_cells

SMALL = {"cells": 48, "patients": 8, "size": 32}


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """The set that `vitmed demo` draws, but smaller images."""
    root = tmp_path_factory.mktemp("demo") / "cells"
    draw_cells(root, seed=0, size=24)
    return root


def digest(root):
    files = sorted(path for path in Path(root).rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def patient(path):
    return re.search(r"(P\d+)_", str(path)).group(1)


def mean_colours(root, splits):
    """Mean colour of each image (S, 3), and 1 where it is infected (S,)."""
    files = [path for split in splits for path in sorted((root / split).rglob("*.png"))]
    colours = [np.asarray(Image.open(path)).reshape(-1, 3).mean(axis=0) for path in files]
    return np.array(colours), np.array([path.parent.name == "infected" for path in files]).astype(int)


def test_a_seed_draws_the_same_bytes_and_another_seed_does_not(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        draw_cells(tmp_path / name, seed, **SMALL)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    images = [set(digest(tmp_path / name).values()) for name in ("a", "c")]
    assert len(images[0]) == 49 and not images[0] & images[1]


def weighed(pixels):
    """The mean of an image with every pixel weighed at random: it moves if any part of the image does."""
    return float((pixels * np.random.default_rng(34).random(pixels.shape)).mean())


# Of drawing 1, in the order of the names. Sets that were drawn before are taken for the same: where these numbers have
# to change, increase `DRAWING`.
DRAWN = """
48.837 48.262 46.665 49.065 49.524 53.563 54.198 54.709 38.407 52.019 53.061 58.797 50.440 39.545 40.289 37.345 31.000
44.609 43.883 45.507 45.444 46.586 42.921 45.172 54.773 58.898 47.051 38.749 38.587 43.329 40.272 40.280 50.648 45.359
47.614 50.144 43.109 45.831 42.809 49.012 54.376 41.428 47.335 40.833 32.194 36.364 33.690 47.723 42.307 45.255 37.672
50.815 49.187 45.813 49.197 54.359 41.731 46.280 50.145 48.943 44.902 47.502 38.988 38.220 41.305 45.810 39.400 41.641
34.279 42.279 42.446 47.519
"""


def test_a_drawing_stays_what_its_number_says(tmp_path):
    """Every cell by its weighed mean, whatever the machine; the last digit of a few pixels may differ."""
    assert synthetic.DRAWING == 1
    draw_cells(tmp_path / "set", seed=3, cells=72, patients=9, size=48)
    files = sorted((tmp_path / "set").rglob("*.png"))
    names = "\n".join(path.relative_to(tmp_path / "set").as_posix() for path in files)
    assert hashlib.sha256(names.encode()).hexdigest()[:16] == "6ad79b49cf4b08c2"
    found = [weighed(np.asarray(Image.open(path))) for path in files]
    assert found == pytest.approx([float(number) for number in DRAWN.split()], abs=0.006)


@pytest.mark.parametrize(
    ("cells", "patients", "wanted"),
    [(16, 4, "123796217d4ff9f7"), (103, 7, "393fbc7038dc3301"), (1000, 50, "8b87a8f6bd5fceca")],
)
def test_who_is_ill_and_who_is_tested_stays_too(cells, patients, wanted):
    plan = synthetic._plan(0, cells, patients)
    assert hashlib.sha256(repr(plan).encode()).hexdigest()[:16] == wanted
    assert len(plan) == cells and len({(patient, cell) for _, patient, cell, _ in plan}) == cells


def test_the_smallest_set_that_can_be_drawn(tmp_path):
    draw_cells(tmp_path / "set", cells=16, patients=4, size=16)
    assert len(list((tmp_path / "set").rglob("*.png"))) == 16


def test_layout_and_images(full, tmp_path):
    files = sorted(full.rglob("*.png"))
    assert len(files) == 1000
    assert {path.relative_to(full).parts[0] for path in files} == {"train", "val", "test"}
    assert sorted(path.name for path in full.iterdir()) == ["demo.json", "test", "train", "val"]
    draw_cells(tmp_path / "set", cells=27, patients=4)
    for path in sorted((tmp_path / "set").rglob("*.png")):
        image = Image.open(path)
        assert (image.mode, image.size) == ("RGB", (64, 64))
        assert re.fullmatch(r"P\d{3}_c\d{3}\.png", path.name)
        corners = np.asarray(image)[[0, 0, -1, -1], [0, -1, 0, -1]]
        assert (corners == 0).all() and np.asarray(image)[28:36, 28:36].min() > 0


def test_no_patient_lies_in_two_splits_and_every_split_has_both_classes(full):
    splits, classes = defaultdict(set), defaultdict(set)
    for path in full.rglob("*.png"):
        splits[patient(path)].add(path.parent.parent.name)
        classes[patient(path)].add(path.parent.name)
    assert len(splits) == 50 and all(len(of) == 1 for of in splits.values())
    assert sum(len(of) == 2 for of in classes.values()) == 38  # ill: cells of both classes
    assert sum(of == {"uninfected"} for of in classes.values()) == 12  # healthy
    for split, least in (("train", 550), ("val", 120), ("test", 180)):
        counts = [len(list((full / split / name).iterdir())) for name in CLASSES]
        assert sum(counts) >= least and min(counts) > 0.35 * sum(counts)


@pytest.mark.parametrize(("cells", "patients"), [(16, 4), (21, 5), (103, 7)])
def test_few_patients_still_fill_every_split(tmp_path, cells, patients):
    draw_cells(tmp_path / "set", cells=cells, patients=patients, size=16)
    files = list((tmp_path / "set").rglob("*.png"))
    assert len(files) == cells and len({patient(path) for path in files}) == patients
    assert len({path.parent for path in files}) == 6


def test_the_mean_colour_does_not_give_the_class_away(full):
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    train, labels = mean_colours(full, ["train"])
    test, truth = mean_colours(full, ["test"])
    mean, spread = train.mean(axis=0), train.std(axis=0)
    model = LogisticRegression(C=100).fit((train - mean) / spread, labels)
    assert roc_auc_score(truth, model.decision_function((test - mean) / spread)) < 0.7


def test_patients_differ_more_in_colour_than_their_cells_do(full):
    colours = defaultdict(list)
    for path in full.rglob("*.png"):
        image = np.asarray(Image.open(path))
        colours[patient(path)].append(image[image.sum(axis=2) > 0].mean(axis=0))
    between = np.std([np.mean(of, axis=0) for of in colours.values()], axis=0)
    within = np.mean([np.std(of, axis=0) for of in colours.values()], axis=0)
    assert (between > 1.2 * within).all()


@pytest.mark.parametrize("stop", [OSError("disk full"), KeyboardInterrupt(), RuntimeError("bug")])
def test_an_interrupted_drawing_leaves_nothing(tmp_path, monkeypatch, stop):
    root = tmp_path / "set"

    def breaks_off(done, total):
        assert not root.exists()
        if done == 20:
            raise stop

    with pytest.raises(UsageError if isinstance(stop, OSError) else type(stop)):
        draw_cells(root, **SMALL, progress=breaks_off)
    assert list(tmp_path.iterdir()) == []


def test_a_complete_set_is_reused_and_an_empty_folder_is_filled(tmp_path, monkeypatch):
    root = tmp_path / "set"
    root.mkdir()
    calls = []
    draw_cells(root, seed=5, **SMALL, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(i, 48) for i in range(1, 49)]
    assert json.loads((root / "demo.json").read_text()) == {"drawing": synthetic.DRAWING, "seed": 5, **SMALL}
    before = digest(root)
    monkeypatch.setattr(synthetic, "_cell", None)  # drawing again would fail
    draw_cells(root, seed=5, **SMALL)
    assert digest(root) == before


def test_another_folder_is_never_touched(tmp_path):
    foreign, other, short, file = (tmp_path / name for name in ("foreign", "other", "short", "file"))
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    draw_cells(other, seed=1, **SMALL)
    draw_cells(short, **SMALL)
    next(short.rglob("*.png")).unlink()
    file.write_text("mine")
    before = digest(tmp_path)
    for root in (foreign, other, short, file):
        with pytest.raises(DataError, match=root.name):
            draw_cells(root, **SMALL)
    assert digest(tmp_path) == before
