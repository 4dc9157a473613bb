<<<<<<< HEAD
"""The drawn chests: what the tables say is what the pictures show."""
=======
"""Drawn chests: the same arguments draw the same images, no two are alike, and colours do not show the findings."""

from __future__ import annotations
>>>>>>> findings

import csv
from pathlib import Path

import numpy as np
from PIL import Image
<<<<<<< HEAD

from vitmed.data.synthetic_chests import HEARTS, TABLE, draw_chests


def test_the_width_of_the_heart_is_that_of_the_picture(tmp_path: Path) -> None:
    """Measured again in the row of the heart's middle, 0.62 of the height, where 96 px are 380 mm: bright right of the
    spine up to the margin, in images without an effusion or a nodule, which may touch the heart.
    """
    draw_chests(tmp_path / "set", images=60, patients=12)
    tables = [list(csv.DictReader((tmp_path / "set" / name).open())) for name in (TABLE, HEARTS)]
    assert [row["path"] for row in tables[0]] == [row["path"] for row in tables[1]]
    assert [row["patient"] for row in tables[0]] == [row["patient"] for row in tables[1]]
    given, seen = [], []
    for findings, heart in zip(*tables, strict=True):
        width = float(heart["heart_width"])
        if findings["large_heart"]:
            assert (width > 121) == (findings["large_heart"] == "1")
        if findings["effusion"] == findings["nodule"] == "0":
            row = np.asarray(Image.open(tmp_path / "set" / heart["path"]), np.float64)[57:62].mean(axis=0)
            middle = round(0.55 * 96)
            level = (row[middle] + row[middle + 12 : 90].min()) / 2
            given.append(width)
            seen.append(2 * (np.argmax(row[middle:] < level) + 0.5) * 380 / 96)
    off = np.array(given) - np.array(seen)  # a pixel is 4 mm, so twice a half width goes in steps of 8 mm
    assert len(given) > 20 and abs(off.mean()) < 4 and np.abs(off).mean() < 8
=======
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vitmed.checks.duplicates import near_pairs
from vitmed.data.synthetic_chests import FINDINGS, SHARES, TABLE, draw_chests


def drawn(folder: Path, **more: int) -> tuple[np.ndarray, list[dict[str, str]]]:
    draw_chests(folder, **more)
    with (folder / TABLE).open() as stream:
        rows = list(csv.DictReader(stream))
    return np.stack([np.asarray(Image.open(folder / row["path"])) for row in rows]), rows


def test_the_chests_of_the_demo(tmp_path: Path) -> None:
    images, rows = drawn(tmp_path / "chests", images=600, patients=120)
    thumbnails = [np.asarray(Image.fromarray(one).resize((32, 32), Image.Resampling.BOX)) for one in images]
    assert near_pairs(np.stack(thumbnails), np.ones(len(rows))) == []
    values = images.reshape(len(images), -1)
    colours = np.column_stack(
        [values.mean(axis=1), values.std(axis=1), *np.quantile(values, (0.05, 0.5, 0.95), axis=1)]
    )
    groups, areas = [row["patient"] for row in rows], []
    for name, share in zip(FINDINGS, SHARES, strict=True):
        known = np.array([row[name] != "" for row in rows])
        truth = np.array([row[name] == "1" for row in rows])
        assert 0.9 < known.mean() < 1 and abs(truth[known].mean() - share) < 0.06
        model = make_pipeline(StandardScaler(), LogisticRegression())
        found = cross_val_predict(model, colours, truth, groups=groups, cv=GroupKFold(5), method="predict_proba")
        areas.append(roc_auc_score(truth, found[:, 1]))
    assert np.mean(areas) < 0.65


def test_the_same_arguments_draw_the_same_chests(tmp_path: Path) -> None:
    first, again, other = (
        drawn(tmp_path / name, seed=seed, images=4, patients=2) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert np.array_equal(first[0], again[0]) and first[1] == again[1]
    assert not np.array_equal(first[0], other[0])
>>>>>>> findings
