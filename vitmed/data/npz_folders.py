"""A MedMNIST file as folders: its splits, the classes in each, and the path of every image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitmed.data.cards import class_names
from vitmed.imaging.npz import file_of, open_npz


def folders(file: Path) -> dict[str, Path]:
    """Split -> the path that stands for its folder. Raises DataError where the file is not of the kind."""
    return {name: file / name for name in open_npz(file)}


def classes_in(folder: Path) -> list[str]:
    """The names of the classes that a split has images of, sorted. Raises DataError."""
    file, split = _located(folder)
    names = names_of(file)
    return sorted(names[k] for k in np.unique(open_npz(file)[split].labels).tolist())


def images_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Path relative to the file, and class name, of every image of a split, in the order of the file."""
    file, split = _located(folder)
    names, labels = names_of(file), open_npz(file)[split].labels.tolist()
    for index, label in enumerate(labels):
        yield f"{split}/{label}/{index:06d}", names[label]


def names_of(file: Path) -> dict[int, str]:
    """Number of a class -> its name: the card's where the file's name tells the set, else the number as text.

    Raises:
        DataError: the file is not of the kind.
    """
    numbers = sorted({k for part in open_npz(file).values() for k in np.unique(part.labels).tolist()})
    known = class_names(file.name)
    if known is not None and numbers[-1] < len(known):
        return dict(enumerate(known))
    return {k: str(k) for k in numbers}


def _located(folder: Path) -> tuple[Path, str]:
    """The file, and the split that a path below it means."""
    file = file_of(folder)
    assert file is not None, folder
    return file, folder.relative_to(file).parts[0]
