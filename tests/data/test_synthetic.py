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
    """The set that `vitmed demo` draws."""
    root = tmp_path_factory.mktemp("demo") / "cells"
    draw_cells(root, seed=0)
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


def test_layout_and_images(full):
    files = sorted(full.rglob("*.png"))
    assert len(files) == 1000
    assert {path.relative_to(full).parts[0] for path in files} == {"train", "val", "test"}
    assert sorted(path.name for path in full.iterdir()) == ["demo.json", "test", "train", "val"]
    for path in files[::37]:
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


@pytest.mark.parametrize("wrong", [{"patients": 3}, {"cells": 31, "patients": 8}, {"size": 8}])
def test_impossible_sizes_are_refused(tmp_path, wrong):
    with pytest.raises(UsageError):
        draw_cells(tmp_path / "set", **{**SMALL, **wrong})
    assert list(tmp_path.iterdir()) == []
