"""A MedMNIST file read like folders: its splits, their classes, and the path of every image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitmed.data.dataset_cards import class_names
from vitmed.imaging.npz import file_of, open_npz


def folders(file: Path) -> dict[str, Path]:
    """Split -> the path of its virtual folder. Raises DataError if this is not a MedMNIST file."""
    return {name: file / name for name in open_npz(file)}


def classes_in(folder: Path) -> list[str]:
    """The sorted names of the classes with images in a split. Raises DataError."""
    file, split = _located(folder)
    names = names_of(file)
    return sorted(names[k] for k in np.unique(open_npz(file)[split].labels).tolist())


def images_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Path relative to the file and class name of every image in a split, in the order of the file."""
    file, split = _located(folder)
    names, labels = names_of(file), open_npz(file)[split].labels.tolist()
    for index, label in enumerate(labels):
        yield f"{split}/{label}/{index:06d}", names[label]


def names_of(file: Path) -> dict[int, str]:
    """Class number -> name, from the card if the file's name matches a set, else the number as text. May raise
    DataError."""
    numbers = sorted({k for part in open_npz(file).values() for k in np.unique(part.labels).tolist()})
    known = class_names(file.name)
    if known is not None and numbers[-1] < len(known):
        return dict(enumerate(known))
    return {k: str(k) for k in numbers}


def _located(folder: Path) -> tuple[Path, str]:
    """The file and the split of a path below it."""
    file = file_of(folder)
    assert file is not None, folder
    return file, folder.relative_to(file).parts[0]
