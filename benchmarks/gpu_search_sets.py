"""Seven medical sets for choosing networks and training: their images outside the test parts, and folds of these.

Each set is a folder, or a `<set>.tar.gz` that is unpacked, with labels.csv; of malaria_gray50 the table is
malaria_gray50_patients.csv, beside it. No image of a test part is opened: that part is the set's own, or a fifth of the
groups (patients, slides or copies, where known) of each label.
"""

from __future__ import annotations

import csv
import functools
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from trees import unpack

FOLDS = 4


class Set(NamedTuple):
    """Columns of the set's table, and what its images look like."""

    label: str = "label"
    group: str = "path"
    split: str | None = None  # the column that names the test part; None: it is a fifth of the groups of each label
    most: int | None = None  # images, drawn at random; None: all
    turns: bool = False  # whether an image turned by 90 degrees is as good
    colour: bool = False  # whether colours vary


class Images(NamedTuple):
    pixels: Tensor  # (S, 3, H, W) uint8
    labels: np.ndarray  # (S,) numbers of the classes
    groups: np.ndarray  # (S,) numbers of the groups


@functools.cache
def read(name: str, side: int, data: Path, work: Path) -> Images:
    """The development images of a set, padded to squares of `side` px."""
    paths, labels, groups = zip(*development(name, data, work), strict=True)
    pixels = torch.from_numpy(np.stack([square(path, side) for path in paths])).permute(0, 3, 1, 2).contiguous()
    return Images(pixels, *(np.unique(names, return_inverse=True)[1] for names in (labels, groups)))


def development(name: str, data: Path, work: Path) -> list[tuple[Path, str, str]]:
    """File, label and group of every image that is not of the test part."""
    chosen, folder = SETS[name], data / name
    if not folder.is_dir():
        folder = unpack(data, work, name)
    table = folder / "labels.csv"
    with (table if table.is_file() else data / f"{name}_patients.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row.get("label_conflict") != "1"]
    if chosen.split:
        rows = [row for row in rows if row[chosen.split] != "test"]
    items = [
        (folder / row["path"], row.get(chosen.label) or Path(row["path"]).parent.name, row[chosen.group] or row["path"])
        for row in rows
    ]
    if not chosen.split:
        items = without_a_fifth(items)
    drawn = np.random.default_rng(1).permutation(len(items))[: chosen.most] if chosen.most else range(len(items))
    return [items[i] for i in sorted(drawn)]


def without_a_fifth(items: list[tuple[Path, str, str]]) -> list[tuple[Path, str, str]]:
    """Leave out a fifth of the groups of each label: the test part."""
    groups, of_label, rng = defaultdict(list), defaultdict(list), np.random.default_rng(0)
    for item in items:
        groups[item[2]].append(item)
    for group, members in groups.items():
        of_label[Counter(label for _, label, _ in members).most_common(1)[0][0]].append(group)
    kept = []
    for label in sorted(of_label):
        names = sorted(of_label[label])
        rng.shuffle(names)
        kept += [item for group in names[round(0.2 * len(names)) :] for item in groups[group]]
    return kept


def square(path: Path, side: int) -> np.ndarray:
    """(side, side, 3) uint8, padded with black."""
    with Image.open(path) as image:
        how = Image.Resampling.BILINEAR if side > max(image.size) else Image.Resampling.BICUBIC
        return np.asarray(ImageOps.pad(image.convert("RGB"), (side, side), how))


def split(images: Images, fold: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices of the training images and of random and bright validation; training shares no group with these."""
    labels, light = images.labels, images.pixels.float().mean((1, 2, 3)).numpy()
    place = np.argsort(np.random.default_rng(100).permutation(images.groups.max() + 1))
    val, bright = place[images.groups] % FOLDS == fold, np.zeros(len(labels), bool)
    for k in np.unique(labels):
        bright |= (labels == k) & (light >= np.quantile(light[labels == k], 0.8))
    return np.flatnonzero(~val & ~bright), np.flatnonzero(val & ~bright), np.flatnonzero(val & bright)


SETS = {
    "busi": Set(group="dup_group"),
    "herlev_pap": Set(group="slide_field", turns=True, colour=True),
    "knee_oa_kl": Set(group="patient", split="split"),
    "pbc_blood": Set(most=1600, turns=True, colour=True),
    "oscc_histology": Set(group="dup_group", turns=True, colour=True),
    "nih_cxr_multilabel": Set("binary", "patient", "chexnet_split"),
    "malaria_gray50": Set(group="patient", most=4000, turns=True),
}
