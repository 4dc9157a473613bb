"""List the images and their classes, from folders or from a table of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path

import numpy as np

from vitmed.core.base_models import CLASSES, NO_FINDING, UNKNOWN, Target
from vitmed.core.errors import DataError
from vitmed.core.places import data_folder
from vitmed.core.sections import DataConfig
from vitmed.core.text import listed
from vitmed.data.folders import SPLITS, class_names, image_names, import_fix, split_folders, split_of, subfolders
from vitmed.data.label_kinds import Asked, finding_strata, grade_order
from vitmed.data.patient_names import Guess, group_word
from vitmed.data.patients import find_patients, suggest_groups
from vitmed.data.samples import Sample
from vitmed.data.thread_batches import Progress

ALL = "all"  # the part that is not split yet


@dataclass(frozen=True)
class Listing:
    """All images before the split, ordered by class, then by path.

    Attributes:
        source: the folder or table that states the class.
        classes: names, sorted; of grades, from the lowest; of findings and numbers, the strata.
        paths: of S images, relative to the root; labels: (S,) int64 indices into `classes`.
        parts: split name, or "all", -> indices of its images, ascending.
        where: split name -> its origin in words; empty for "all".
        columns: names of further columns; rows: their cells for S images, or empty.
        groups: S patients, or None; patients: how they are known, in words.
        notes: messages for the user; guess: patients that the file names suggest, if you named none.
        first_copy: (S,) int64, the first image with the same bytes as each image; None if unknown, or no copies.
        targets: of findings (S, F) 1, 0 or `UNKNOWN`, of a number (S, 1); float64.
        outputs: names of the findings, or of the number; () for classes and grades.
        recognised: what the labels are and where they come from, in words; "" for classes.
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
    notes: tuple[str, ...] = ()
    guess: Guess | None = None
    first_copy: np.ndarray | None = None
    target: Target = CLASSES
    targets: np.ndarray | None = None
    outputs: tuple[str, ...] = ()
    recognised: str = ""

    @property
    def unit(self) -> str:
        """What one group is called; "image" where patients are unknown."""
        return group_word(self.patients) if self.patients else "image"

    def samples(self, indices: np.ndarray) -> tuple[Sample, ...]:
        """These images as samples."""
        chosen = indices.tolist()
        paths, labels = (self.paths[i] for i in chosen), self.labels[indices].tolist()
        groups = repeat(None) if self.groups is None else (self.groups[i] for i in chosen)
        rows = (self.rows[i] for i in chosen) if self.rows else repeat(())
        targets = repeat(()) if self.targets is None else map(tuple, self.targets[indices].tolist())
        return tuple(map(Sample, paths, labels, groups, rows, targets))

    def with_findings(self, kept: np.ndarray) -> Listing:
        """The same with the kept ones (F,) bool of the findings, without the images of which nothing is known then."""
        assert self.targets is not None
        targets = self.targets[:, kept]
        outputs = tuple(name for name, keep in zip(self.outputs, kept.tolist(), strict=True) if keep)
        labels, known = finding_strata(targets), (targets != UNKNOWN).any(axis=1)
        same = replace(self, classes=[*outputs, NO_FINDING], labels=labels, targets=targets, outputs=outputs)
        order = np.argsort(labels, kind="stable")
        return same.take(order[known[order]])

    def take(self, order: np.ndarray) -> Listing:
        """These images, in this order."""
        rows, place = order.tolist(), np.full(len(self.paths), -1)
        place[order] = np.arange(len(order))
        first = None
        if self.first_copy is not None:
            _, begin, where = np.unique(self.first_copy[order], return_index=True, return_inverse=True)
            first = begin[where]
        return replace(
            self,
            paths=[self.paths[i] for i in rows],
            labels=self.labels[order],
            parts={name: np.sort(place[part][place[part] >= 0]) for name, part in self.parts.items()},
            rows=[self.rows[i] for i in rows] if self.rows else (),
            groups=None if self.groups is None else [self.groups[i] for i in rows],
            first_copy=first,
            targets=None if self.targets is None else self.targets[order],
        )

    def location(self, part: str, label: int) -> str:
        """The folder or table that holds, or should hold, the images of a class; for a message."""
        if self.source.is_file():
            return str(self.source)
        folder = self.where.get(part, "").removeprefix("folder ").rstrip("/") if part in self.parts else ""
        return str(self.source / folder / self.classes[label])


def list_images(config: DataConfig, progress: Progress | None = None, ordinal: Sequence[str] = ()) -> Listing:
    """The images, labels, patients and ready-made splits of a configuration. Raises as `make_splits`.

    Layouts: `root/<class>/`, `root/{train,val,test}/<class>/`, train + test or train + val only; any with a table.
    """
    root, asked = data_folder(config.root), Asked.of(config, ordinal)
    if config.labels is not None:
        own_groups = config.group_regex is None and config.groups is None
        listing = list_by_table(root, Path(config.labels), own_groups, asked)
        if not listing.outputs and len(listing.classes) < 2:
            raise DataError(
                f"{config.labels}: all rows have the class {listing.classes[0]!r}; a classifier needs two classes",
                "add rows of another class",
            )
        return with_patients(listing, config, progress)
    asked.check_folders()
    folders = split_folders(root)
    if folders and "train" not in folders:
        names = ", ".join(folder.name for folder in folders.values())
        raise DataError(f"{root}: has {names} but no train folder", "add train/, or name a folder of classes")
    first = folders.get("train", root)
    classes = class_names(first)
    if len(classes) < 2:
        only = first / classes[0]
        fix = f"name {only}" if only.is_dir() and len(subfolders(only)) > 1 else "add a folder for each other class"
        raise DataError(f"{first}: holds one class folder, {classes[0]!r}; a classifier needs two", fix)
    listing = list_by_folder(root, folders or {ALL: root}, classes)
    if asked.kind == "grades":
        listing = _in_grades(listing, asked)
    return with_patients(listing, config, progress)


def _in_grades(listing: Listing, asked: Asked) -> Listing:
    """The classes of folders as grades, from the lowest. Raises as `grade_order`."""
    order = grade_order(listing.classes, asked.order, str(listing.root))
    rank = np.array([order.index(name) for name in listing.classes])
    source = f"{len(order)} grades, from folders"
    labels, target = rank[listing.labels], Target(kind="grades")
    graded = replace(listing, classes=list(order), labels=labels, recognised=source, target=target)
    return graded.take(np.argsort(labels, kind="stable"))


def with_patients(listing: Listing, config: DataConfig, progress: Progress | None = None) -> Listing:
    """Add the patients that the configuration names; if it and the table name none, a guess from file names."""
    by_folder = not listing.source.is_file()
    known = find_patients(config, listing.root, listing.paths, progress, by_folder)
    if known is not None:
        notes = (*listing.notes, *known.notes)
        return replace(listing, groups=known.groups, patients=known.source, notes=notes)
    if listing.groups is not None:
        return listing
    return replace(listing, guess=suggest_groups(listing.paths, by_folder))


def list_by_folder(root: Path, folders: Mapping[str, Path], classes: Sequence[str]) -> Listing:
    """Every image below `<folder>/<class>/` of each split's folder. Raises DataError for a folder not in `classes`."""
    paths: list[str] = []
    labels: list[int] = []
    parts: dict[str, np.ndarray] = {}
    for name, folder in folders.items():
        begin = len(paths)
        there = class_names(folder)
        extra = sorted(set(there) - set(classes))
        if extra:
            raise DataError(
                f"{folder}: class folder {listed([*map(repr, extra)])} is not one of the classes {listed(classes)}",
                "rename or remove it; classes are matched by name",
            )
        above = "" if folder == root else f"{folder.relative_to(root).as_posix()}/"
        for label, class_name in enumerate(classes):
            if class_name not in there:
                continue
            found = image_names(folder / class_name, f"{above}{class_name}/")
            paths += found
            labels += [label] * len(found)
        parts[name] = np.arange(begin, len(paths))
    where = {name: f"folder {folder.name}/" for name, folder in folders.items() if name != ALL}
    return Listing(root, root, list(classes), paths, np.array(labels, dtype=np.int64), parts, where)


def list_by_table(
    root: Path, file: Path, own_groups: bool, asked: Asked = AUTO, classes: Sequence[str] | None = None
) -> Listing:
    """The images that a table names, in any folders below the root, split by its column or by the folders.

    Args:
        own_groups: whether to use the table's patient column.
        classes: names in the order of the labels; default the names in the table, sorted.

    Raises:
        DataError: as `labels_from_table`; a class that is not in `classes`; splits without train.
    """
    every = image_names(root)
    if not every:
        fix = import_fix(root) or "name the folder that the table's paths start from"
        raise DataError(f"{root}: holds no image", fix)
    return _by_labels(root, file, every, labels_from_table(file, root, every, own_groups, asked), classes)


def _by_labels(root: Path, file: Path, every: Sequence[str], table: Labels, classes: Sequence[str] | None) -> Listing:
    read = table.read
    names = list(classes or read.classes)
    extra = sorted(set(read.labels) - set(names))
    if extra:
        raise DataError(
            f"{file}: class {listed([*map(repr, extra)])} is not one of the classes {listed(names)}",
            "rename them, or remove their rows",
        )
    index = {name: k for k, name in enumerate(names)}
    labels = np.array([index[name] for name in read.labels], dtype=np.int64)
    paths = [every[i] for i in table.images]
    splits: Sequence[str | None] = table.splits or [split_of(path.partition("/")[0]) for path in paths]
    origin = f"table {file.name}" if table.splits else "folders"
    if None in splits or (table.splits is None and set(splits) == {"train"}):
        splits, origin = [ALL] * len(paths), ""
    order = np.argsort(labels, kind="stable")
    as_array, rows = np.array(splits)[order], order.tolist()
    parts = {name: np.flatnonzero(as_array == name) for name in (*SPLITS, ALL) if name in set(splits)}
    return Listing(
        root=root,
        source=file,
        classes=names,
        paths=[paths[i] for i in rows],
        labels=labels[order],
        parts=parts,
        where=dict.fromkeys(parts, origin) if origin else {},
        columns=table.columns,
        rows=[table.rows[i] for i in rows] if table.columns else (),
        groups=None if table.groups is None else [table.groups[i] for i in rows],
        patients=table.known,
        notes=table.notes,
        target=read.target,
        targets=None if read.values is None else read.values[order],
        outputs=read.outputs,
        recognised=read.source,
    )
