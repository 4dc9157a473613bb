"""Drawn chests: the same arguments draw the same images, no two are alike, and colours do not show the findings."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vitmed.data import synthetic
from vitmed.data.duplicates import near_pairs
from vitmed.data.synthetic import FINDINGS, HEARTS, SHARES, TABLE, draw_chests
from vitmed.imaging.file_record import FileRecord
from vitmed.imaging.raw_image import ImageHeader


def drawn(folder: Path, **more: Any) -> tuple[np.ndarray, list[dict[str, str]]]:
    draw_chests(folder, **more)
    with (folder / TABLE).open() as stream:
        rows = list(csv.DictReader(stream))
    return np.stack([np.asarray(Image.open(folder / row["path"])) for row in rows]), rows


def test_the_chests_of_the_demo(tmp_path: Path) -> None:
    images, rows = drawn(tmp_path / "chests", images=600, patients=120)
    thumbnails = [np.asarray(Image.fromarray(one).resize((32, 32), Image.Resampling.BOX)) for one in images]
    head = ImageHeader("PNG", "L", 8, 96, 96, 1, 1)
    assert near_pairs([FileRecord(header=head, thumbnail=thumbnail) for thumbnail in thumbnails]) == []
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


# Of drawing 2, in the order of the table. Where these numbers have to change, increase `DRAWING`.
DRAWN = """
47.619 49.543 51.900 70.273 68.946 50.880 60.578 62.743 59.015 60.097 67.629 56.437 63.585 77.964 67.169 70.981 75.599
58.005 50.309 56.464 54.151 50.189 77.869 75.437 61.698 56.967 57.674 79.205 67.789 74.328 74.297 66.206 56.593 51.976
60.818 65.913 74.291 60.701 52.592 64.605 78.439 73.531 61.129 54.794 63.027 74.201 56.964 58.079 57.379 78.154 45.268
54.387 44.302 65.163 71.418 59.804 57.665 63.619 60.682 76.540 66.737 62.184 39.214 65.356
"""


def test_a_drawing_stays_what_its_number_says(tmp_path: Path) -> None:
    """Every chest by the mean with every pixel weighed at random, and both tables to the letter."""
    assert synthetic.DRAWING_OF_CHESTS == 2
    told: list[tuple[int, int]] = []
    folder = tmp_path / "set"
    images, _ = drawn(folder, seed=3, images=64, patients=16, size=48, progress=lambda *done: told.append(done))
    assert told == [(i, 64) for i in range(1, 65)]
    weights = np.random.default_rng(34).random(images.shape[1:])
    assert (images * weights).mean(axis=(1, 2)) == pytest.approx(
        np.array([float(number) for number in DRAWN.split()]), abs=0.01
    )
    tables = [(tmp_path / "set" / name).read_bytes() for name in (TABLE, HEARTS)]
    assert [hashlib.sha256(table).hexdigest()[:16] for table in tables] == ["7837fabc73d62178", "965ebbb5961138a3"]


def test_the_table_of_hearts_has_the_same_images_and_large_hearts_are_wider(tmp_path: Path) -> None:
    _, rows = drawn(tmp_path / "set", images=200, patients=40)
    hearts = list(csv.DictReader((tmp_path / "set" / HEARTS).open()))
    assert [(row["path"], row["patient"]) for row in hearts] == [(row["path"], row["patient"]) for row in rows]
    known = [i for i, row in enumerate(rows) if row["large_heart"]]
    widths = [float(hearts[i]["heart_width"]) for i in known]
    assert roc_auc_score([rows[i]["large_heart"] == "1" for i in known], widths) > 0.95
    assert 70 < min(widths) < max(widths) < 190  # mm
