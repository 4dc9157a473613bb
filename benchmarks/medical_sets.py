"""The sets of medical.py and gpu_search.py: their images, labels and patients, and the part that each image belongs to.

`split_table` writes `WORK/sets/<set>.csv` (path, label, group, part) once; training seeds do not change it. The parts:

    train    what every contender learns from
    val      a random fifth of what is not test or shift, by patient or group where known: for choosing
    shift    as a new hospital differs: the brightest fifth of every class, or the largest files (sharper or noisier
             images), by patient where known; no image of such a patient is in train or val
    test     the official one, otherwise a random fifth by patient or group; scored once, with --final
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from sklearn.model_selection import StratifiedGroupKFold
from trees import PATIENT, unpack
from vitmed.core.text_files import csv_text

from vitmed.core.files import write_text
from vitmed.data.thread_batches import in_threads
from vitmed.explanation.robustness import pick_images

MOST = {"train": 5000, "val": 2000, "shift": 2000, "test": 6000}  # so that one set runs in minutes


@dataclass(frozen=True)
class Set:
    """How the table of a set is read.

    Attributes:
        group: column of the patient, slide or copies; where its cell is empty, the image is a group of its own.
        label: column of the class.
        official: column of a split by patient; `kept`: its parts that are taken over, the rest is divided anew.
        stratum: a key of `STRATA`: what makes the images of `shift` different.
        turns: whether an image turned by 90 degrees is as good; `colour`: whether colours vary.
    """

    group: str | None = None
    label: str = "label"
    official: str | None = None
    kept: tuple[str, ...] = ()
    stratum: str = "brightness"
    turns: bool = False
    colour: bool = False


class Row(NamedTuple):
    """An image of a set."""

    path: str
    label: str
    group: str
    part: str


SETS = {
    "busi": Set(group="dup_group"),
    "herlev_pap": Set(group="slide_field", stratum="bytes", turns=True, colour=True),
    "oscc_histology": Set(group="dup_group", turns=True, colour=True),
    "knee_oa_kl": Set(group="patient", official="split", kept=("val", "test"), stratum="bytes"),
    # Its 94 validation images cannot rank two networks.
    "nih_cxr_multilabel": Set(group="patient", label="binary", official="chexnet_split", kept=("test",)),
    "pbc_blood": Set(turns=True, colour=True),
    "malaria_gray50": Set(turns=True),  # no table: class folders, and the patient is part of the file name
}


def folder_of(name: str, data: Path, work: Path) -> Path:
    """The folder of a set: unpacked in `data`, otherwise unpacked into `work`."""
    return data / name if (data / name).is_dir() else unpack(data, work / "unpacked", name)


def split_table(name: str, data: Path, work: Path) -> list[Row]:
    """The images of a set with their parts: the table in `work` where it is there, otherwise made."""
    file = work / "sets" / f"{name}.csv"
    if not file.is_file():
        folder = folder_of(name, data, work)
        rows = divided(_rows(folder, SETS[name]), folder, SETS[name])
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, csv_text([[*Row._fields], *map(list, rows)]))
    with file.open(newline="", encoding="utf-8") as stream:
        return [Row(**row) for row in csv.DictReader(stream)]


def labels_table(rows: Sequence[Row], file: Path) -> Path:
    """The table for `vitmed train --labels`, in which `shift` is the test and the true test is missing."""
    parts = {"train": "train", "val": "val", "shift": "test"}
    cells = [[row.path, row.label, row.group, parts[row.part]] for row in rows if row.part in parts]
    write_text(file, csv_text([["path", "label", "group", "split"], *cells]))
    return file


def _rows(folder: Path, known: Set) -> list[Row]:
    """The images of a folder, without those whose copies contradict each other."""
    if not (folder / "labels.csv").is_file():
        paths = sorted(file.relative_to(folder).as_posix() for file in folder.glob("*/*.png"))
        found = [(path, re.search(PATIENT, path)) for path in paths]
        return [Row(path, path.partition("/")[0], match[1] if match else path, "") for path, match in found]
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as stream:
        table = [row for row in csv.DictReader(stream) if row.get("label_conflict") != "1"]
    groups = [(row[known.group] if known.group else "") or row["path"] for row in table]
    parts = [row[known.official] if known.official else "" for row in table]
    return [
        Row(row["path"], row[known.label], group, part if part in known.kept else "")
        for row, group, part in zip(table, groups, parts, strict=True)
    ]


def divided(rows: Sequence[Row], folder: Path, known: Set) -> list[Row]:
    """The rows with a part each; those above `MOST` are left out."""
    labels, groups = (np.array([row[i] for row in rows]) for i in (1, 2))
    part = np.array([row.part for row in rows], dtype="U5")
    if "test" not in known.kept:
        part[_fold(np.flatnonzero(part == ""), labels, groups, seed=0)] = "test"
    rest = np.flatnonzero(part == "")
    measured = np.array(list(in_threads(lambda i: STRATA[known.stratum](folder / rows[i].path), rest.tolist())))
    part[rest[_uppermost_fifth(measured, labels[rest], groups[rest])]] = "shift"
    if "val" not in known.kept:
        part[_fold(np.flatnonzero(part == ""), labels, groups, seed=1)] = "val"
    part[part == ""] = "train"
    found = []
    for name, most in MOST.items():
        here = np.flatnonzero(part == name)
        kept = pick_images(np.unique(labels[here], return_inverse=True)[1].tolist(), most, 0)
        assert set(labels[here[kept]]) == set(labels), f"a class is missing from {name}"
        found += [rows[i]._replace(part=name) for i in here[kept]]
    return found


def _fold(indices: np.ndarray, labels: np.ndarray, groups: np.ndarray, seed: int) -> np.ndarray:
    """A fifth of these images, by group; of malaria_gray50 with seed 0 the patients of `trees.gray50_by_patient`."""
    folds = StratifiedGroupKFold(5, shuffle=True, random_state=seed)
    return indices[next(folds.split(indices, labels[indices], groups[indices]))[1]]


def _uppermost_fifth(values: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """(S,) bool: whole groups with the highest mean rank within their classes, up to a fifth of the images."""
    rank = np.empty(len(values))  # 0 to 1 within the class
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        rank[of_class] = values[of_class].argsort(kind="stable").argsort() / len(of_class)
    index = np.unique(groups, return_inverse=True)[1]
    sizes = np.bincount(index)
    order = np.argsort(-np.bincount(index, rank) / sizes, kind="stable")
    return np.isin(index, order[np.cumsum(sizes[order]) <= len(values) / 5])


def _brightness(file: Path) -> float:
    with Image.open(file) as image:
        return float(np.asarray(image.convert("L")).mean())


STRATA = {"brightness": _brightness, "bytes": lambda file: float(file.stat().st_size)}
