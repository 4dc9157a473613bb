"""The drawn chests: what the tables say is what the pictures show."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

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
