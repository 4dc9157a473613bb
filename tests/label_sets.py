"""Tables of labels for tests, drawn images of each kind of label, and the splits that tables of empty files give."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from conftest import COLOURS
from PIL import Image

from vitmed.core.config import DataConfig
from vitmed.data.samples import Splits
from vitmed.data.splits import make_splits

FINDINGS = ("amber", "blue", "rare")
GRADES = ("none", "mild", "severe")


def draw_findings(root: Path, patients: int = 40, images: int = 3) -> Path:
    """Grey noise with a blob for each finding, in its own third; one label in eight is unknown. The table is beside."""
    rng = np.random.default_rng(0)
    (root / "images").mkdir(parents=True)
    rows = []
    for patient in range(patients):
        for i in range(images):
            pixels = rng.integers(90, 130, (24, 24, 3), dtype=np.uint8)
            cells = []
            for f, (colour, share) in enumerate(zip(COLOURS.values(), (0.5, 0.4, 0.1), strict=True)):
                there = bool(rng.random() < share)
                if there:
                    pixels[4:20, 8 * f : 8 * f + 8] = np.array(colour)
                cells.append("" if rng.random() < 0.125 else str(int(there)))
            path = f"images/{patient}_{i}.png"
            Image.fromarray(pixels).save(root / path)
            rows.append([path, f"P{patient}", *cells])
    return _write(root, "labels.csv", [["path", "patient", *FINDINGS], *rows])


def draw_quantities(root: Path, patients: int = 40, images: int = 4) -> Path:
    """Noise whose brightness is the age, from 20 to 80, and in thirds the grade. Two tables are beside."""
    rng = np.random.default_rng(0)
    (root / "images").mkdir(parents=True)
    ages, grades = [["path", "patient", "label"]], [["path", "patient", "label"]]
    for patient in range(patients):
        for i in range(images):
            number = round(float(rng.uniform(20, 80)), 2)
            pixels = np.clip(2.5 * number + rng.normal(0, 12, (20, 20, 1)) + rng.normal(0, 4), 0, 255)
            path = f"images/{patient}_{i}.png"
            Image.fromarray(np.repeat(pixels, 3, axis=2).astype(np.uint8)).save(root / path)
            ages.append([path, f"P{patient}", str(number)])
            grades.append([path, f"P{patient}", GRADES[min(2, int((number - 20) / 20))]])
    return _write(_write(root, "ages.csv", ages), "grades.csv", grades)


def _write(root: Path, name: str, rows: Sequence[Sequence[str]]) -> Path:
    with (root / name).open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return root


def label_set(folder: Path, header: Sequence[object], rows: Sequence[Sequence[object]]) -> Path:
    """folder/labels.csv, whose first column is the path, and the files that it names."""
    folder.mkdir(exist_ok=True)
    for path, *_ in rows:
        (folder / str(path)).parent.mkdir(exist_ok=True)
        (folder / str(path)).touch()
    lines = [",".join(map(str, row)) for row in (header, *rows)]
    (folder / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def split(folder: Path, ordinal: Sequence[str] = (), **fields: Any) -> Splits:
    fields = {"labels": str(folder / "labels.csv"), "cache": False, **fields}
    return make_splits(DataConfig(root=str(folder), **fields), ordinal=ordinal)


def by_path(splits: Splits) -> dict[str, tuple[float, ...]]:
    """Path -> targets, of all splits."""
    return {sample.path: sample.targets for part in splits.samples.values() for sample in part}
