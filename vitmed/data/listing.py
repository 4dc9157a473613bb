"""Which images are there and under which class: by folders, or by a table of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path

import numpy as np

from vitmed.core.config import GROUP_WORDS, DataConfig
from vitmed.core.errors import DataError
from vitmed.data import npz_folders
from vitmed.data.folders import class_names, data_folder, image_names, split_folders, subfolders
from vitmed.data.patient_names import Guess, guess_patients
from vitmed.data.patients import Progress, know_patients
from vitmed.data.samples import Sample
from vitmed.data.split_names import SPLITS, split_of
from vitmed.data.tables import labels_from_table
from vitmed.imaging import npz

ALL = "all"  # the part that nobody has split yet


@dataclass(frozen=True)
class Listing:
    """All images that are there, before they are split; by class, and within a class in the order of their paths.

    Attributes:
        root: the data folder.
        source: the folder or table that says the class.
        classes: names, sorted.
        paths: of S images, relative to the root.
        labels: (S,) int64 indices into `classes`.
        parts: split name, or "all", -> indices of its images, ascending.
        where: split name -> where it came from, in words; none for "all".
        columns: names of further columns; rows: S times their cells, or none.
        groups: S patients, or None; patients: how they are known, in words.
        messages: for the user.
        guess: what the file names look like where nothing was said of patients.
        first: (S,) int64, for every image the first one of the same bytes; None: not known, or no copies.
    """

    root: Path
    source: Path
    classes: list[str]
    paths: list[str]
    labels: np.ndarray
    parts: dict[str, np.ndarray]
    where: dict[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    groups: list[str] | None = None
    patients: str = ""
    messages: tuple[str, ...] = ()
    guess: Guess | None = None
    first: np.ndarray | None = None

    def samples(self, indices: np.ndarray) -> tuple[Sample, ...]:
        """These images as samples."""
        chosen = indices.tolist()
        groups = repeat(None) if self.groups is None else (self.groups[i] for i in chosen)
        rows = (self.rows[i] for i in chosen) if self.rows else repeat(())
        labels = self.labels[indices].tolist()
        return tuple(map(Sample, (self.paths[i] for i in chosen), labels, groups, rows))

    def place(self, part: str, label: int) -> str:
        """Where the images of a class are, or should be; for a message."""
        if self.source.is_file():
            return str(self.source)
        folder = self.where.get(part, "").removeprefix("folder ").rstrip("/") if part in self.parts else ""
        return str(self.source / folder / self.classes[label])


def list_images(config: DataConfig, progress: Progress | None = None) -> Listing:
    """The images, classes, patients and ready-made splits that a configuration means.

    Layouts: `root/<class>/`, `root/{train,val,test}/<class>/`, train + test or train + val only; or any, with a table.

    Raises:
        DataError, UsageError: as `make_splits`.
    """
    root = data_folder(config.root)
    if config.labels is not None:
        own_groups = config.group_regex is None and config.groups is None
        listing = list_by_table(root, Path(config.labels), own_groups)
        if len(listing.classes) < 2:
            raise DataError(
                f"{config.labels}: all rows are of one class, {listing.classes[0]!r}; a classifier needs two",
                "add rows of another class",
            )
    else:
        folders = split_folders(root)
        if folders and "train" not in folders:
            names = ", ".join(folder.name for folder in folders.values())
            raise DataError(f"{root}: has {names} but no train folder", "add train/, or point at a folder of classes")
        first = folders.get("train", root)
        classes = class_names(first)
        _need_two(first, classes)
        listing = list_by_folder(root, folders or {ALL: root}, classes)
    return with_patients(listing, config, progress)


def with_patients(listing: Listing, config: DataConfig, progress: Progress | None = None) -> Listing:
    """The same, with the patients that the configuration asks for; else, where its table has none, with a guess."""
    if npz.is_npz(listing.root) and (config.group_regex is not None or config.groups in GROUP_WORDS):
        raise DataError(f"{listing.root}: an .npz file tells no patients", "name them by --groups TABLE")
    by_folder = not listing.source.is_file() or npz.is_npz(listing.root)
    known = know_patients(config, listing.root, listing.paths, progress, by_folder)
    if known is not None:
        messages = (*listing.messages, *known.messages)
        return replace(listing, groups=known.groups, patients=known.how, messages=messages)
    if listing.groups is not None:
        return listing
    guess = guess_patients(listing.paths, by_folder)
    return replace(listing, guess=guess) if guess.expression is not None else listing


def list_by_folder(root: Path, folders: Mapping[str, Path], classes: Sequence[str]) -> Listing:
    """Every image below `<folder>/<class>/` of each split's folder, or of "all".

    Raises:
        DataError: a class folder that is not in `classes`.
    """
    paths: list[str] = []
    labels: list[np.ndarray] = []
    parts: dict[str, np.ndarray] = {}
    for name, folder in folders.items():
        begin = len(paths)
        extra = sorted(set(class_names(folder)) - set(classes))
        if extra:
            raise DataError(
                f"{folder}: class folder {', '.join(map(repr, extra))} is not one of the classes {', '.join(classes)}",
                "rename or remove it; classes are matched by name",
            )
        above = "" if folder == root else f"{folder.relative_to(root).as_posix()}/"
        if npz.inside(folder):
            for label, class_name in enumerate(classes):
                found = [path for path, of_class in npz_folders.images_in(folder) if of_class == class_name]
                paths += found
                labels.append(np.full(len(found), label, dtype=np.int64))
            parts[name] = np.arange(begin, len(paths))
            continue
        for label, class_name in enumerate(classes):
            if (folder / class_name).is_dir():
                found = image_names(folder / class_name, f"{above}{class_name}/")
                paths += found
                labels.append(np.full(len(found), label, dtype=np.int64))
        parts[name] = np.arange(begin, len(paths))
    where = {name: f"folder {folder.name}/" for name, folder in folders.items() if name != ALL}
    every = np.concatenate(labels) if labels else np.empty(0, np.int64)
    return Listing(root, root, list(classes), paths, every, parts, where)


def list_by_table(root: Path, file: Path, own_groups: bool, classes: Sequence[str] | None = None) -> Listing:
    """The images that a table names, in any folders below the root, split as its column says or as the folders do.

    Args:
        own_groups: whether the table's column of patients counts.
        classes: names in the order of the labels; default those of the table, sorted.

    Raises:
        DataError: as `labels_from_table`; a class that is not in `classes`; splits without train.
    """
    every = image_names(root)
    if not every:
        raise DataError(f"{root}: holds no image", "point at the folder that the table's paths begin in")
    table = labels_from_table(file, root, every, own_groups)
    names = sorted(set(table.labels))
    extra = sorted(set(names) - set(classes or names))
    if extra:
        raise DataError(
            f"{file}: class {', '.join(map(repr, extra))} is not one of the classes {', '.join(classes or [])}",
            "rename them, or remove their rows",
        )
    names = list(classes or names)
    index = {name: k for k, name in enumerate(names)}
    labels = np.array([index[name] for name in table.labels], dtype=np.int64)
    order = np.argsort(labels, kind="stable")
    paths = [every[table.images[i]] for i in order.tolist()]
    parts, where = {ALL: np.arange(len(paths))}, dict[str, str]()
    splits, said = table.splits, f"table {file.name}"
    if splits is not None:
        splits = [splits[i] for i in order.tolist()]
    elif (by_folder := [split_of(path.partition("/")[0]) for path in paths]) and None not in by_folder:
        splits, said = [str(name) for name in by_folder], "folders"
        if set(splits) == {"train"}:
            splits = None
    if splits is not None:
        as_array = np.array(splits)
        parts = {name: np.flatnonzero(as_array == name) for name in SPLITS if name in set(splits)}
        where = dict.fromkeys(parts, said)
    return Listing(
        root=root,
        source=file,
        classes=names,
        paths=paths,
        labels=labels[order],
        parts=parts,
        where=where,
        columns=table.columns,
        rows=[table.rows[i] for i in order.tolist()] if table.columns else (),
        groups=None if table.groups is None else [table.groups[i] for i in order.tolist()],
        patients="" if table.groups is None else "by table (--labels)",
        messages=table.messages,
    )


def _need_two(folder: Path, classes: Sequence[str]) -> None:
    if len(classes) < 2:
        inner = class_names(folder / classes[0]) if any(subfolders(folder / classes[0])) else []
        fix = f"point at {folder / classes[0]}" if len(inner) > 1 else "add a folder for each other class"
        raise DataError(f"{folder}: holds one class folder, {classes[0]!r}; a classifier needs two", fix)
