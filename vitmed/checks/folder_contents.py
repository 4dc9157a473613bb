"""The contents of a data folder in any state; unlike training, this never refuses a folder."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from vitmed.data.folders import SPLITS, list_folder, split_of
from vitmed.data.label_kinds import Read
from vitmed.data.label_tables import Labels


class Place(NamedTuple):
    """The split and the class of a file by its folders; None where they name none."""

    split: str | None
    label: str | None


@dataclass(frozen=True)
class FolderContents:
    """The layout of a folder. All paths are relative to its root, with forward slashes.

    Attributes:
        base: where the classes or splits begin: "" or "malaria/".
        files: every image file, sorted.
        places: split and class of each.
        folders: the class folders of each split (None where there are no splits), including empty ones.
        splits: split name -> its folders.
        rubbish: files left behind by the operating system (Thumbs.db, .DS_Store, ._x.png).
        others: suffix -> number of files of a type that vitmed does not read.
        outside: image files beside the split folders, which training ignores.
        copies: folders that contain the classes again -> number of image files in them, which are not in `files`.
        unreadable: folders that cannot be read -> reason.
        read: the labels of the files, where they do not come from folders.
    """

    base: str
    files: tuple[str, ...]
    places: tuple[Place, ...]
    folders: dict[str | None, tuple[str, ...]]
    splits: dict[str, tuple[str, ...]]
    rubbish: tuple[str, ...] = ()
    others: dict[str, int] = field(default_factory=dict)
    outside: tuple[str, ...] = ()
    copies: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    read: Read | None = None

    def without_splits(self) -> FolderContents:
        """The same as if nothing divided the files into splits."""
        names = tuple(sorted({name for of_split in self.folders.values() for name in of_split}))
        places = tuple(place._replace(split=None) for place in self.places)
        return replace(self, places=places, folders={None: names}, splits={})


def read_contents(root: Path) -> FolderContents:
    """Walk the folder once. Links are followed, but never in a circle."""
    files, rubbish, others, unreadable = list[str](), list[str](), Counter[str](), dict[str, str]()
    below: dict[str, list[str]] = {}  # folder with a final slash -> names of the folders in it
    stack: list[tuple[str, frozenset[str]]] = [("", frozenset())]
    while stack:
        prefix, followed = stack.pop()
        below[prefix] = []
        try:
            inside = list_folder(os.path.join(root, prefix), followed)  # noqa: PTH118
        except OSError as error:
            unreadable[prefix.rstrip("/")] = error.strerror or str(error)
            continue
        below[prefix] = sorted(inside.folders)
        files += [prefix + name for name in inside.images]
        rubbish += [prefix + name for name in inside.rubbish]
        others.update(os.path.splitext(name.lower())[1] or "no suffix" for name in inside.others)  # noqa: PTH122
        stack += [(f"{prefix}{name}/", links) for name, links in inside.folders.items()]
    files.sort()
    base = _base(below, {path.rpartition("/")[0] for path in files})
    top = below.get(base, [])
    splits = {s: found for s in SPLITS if (found := tuple(base + name for name in top if split_of(name) == s))}
    starts: dict[str, str | None] = {f"{f}/": split for split, names in splits.items() for f in names} or {base: None}
    copies = {copy: 0 for start in starts for copy in _copies(start, below)}
    kept, places, outside = [], [], []
    for path in files:
        start = next((s for s in starts if path.startswith(s)), None)
        copy = next((c for c in copies if path.startswith(f"{c}/")), None)
        if start is None:
            outside.append(path)
        elif copy is not None:
            copies[copy] += 1
        else:
            label, slash, _ = path[len(start) :].partition("/")
            kept.append(path)
            places.append(Place(starts[start], label if slash else None))
    folders: dict[str | None, tuple[str, ...]] = {}
    for start, of_split in starts.items():
        own = [name for name in below.get(start, []) if start + name not in copies]
        folders[of_split] = (*folders.get(of_split, ()), *own)
    return FolderContents(
        base, tuple(kept), tuple(places), folders, splits, tuple(sorted(rubbish)), dict(others.most_common()),
        tuple(outside), copies, unreadable,
    )  # fmt: skip


def named_in_table(contents: FolderContents, table: Labels) -> FolderContents:
    """The images that a table names, with its classes and splits; without a column of splits, with those of the folder.

    Args:
        table: of the files in `contents`.
    """
    files = tuple(contents.files[i] for i in table.images)
    splits: Sequence[str | None] = table.splits or [contents.places[i].split for i in table.images]
    places = tuple(map(Place, splits, table.read.labels))
    folders = {
        split: tuple(sorted({p.label or "" for p in places if p.split == split})) for split in dict.fromkeys(splits)
    }
    named = replace(contents, base="", files=files, places=places, folders=folders, read=table.read)
    return replace(named, splits={}, outside=(), copies={})


def same_name(name: str) -> str:
    """A class name without the differences that are easily missed: case, separators and Unicode form."""
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name)).strip().casefold()


def _base(below: dict[str, list[str]], loose: set[str]) -> str:
    """Descend through folders that contain a single folder of folders: root/malaria/<class>/ begins at malaria/."""
    base = ""
    while len(below.get(base, [])) == 1 and base.rstrip("/") not in loose:
        (name,) = below[base]
        if split_of(name) or len(below.get(f"{base}{name}/", [])) < 2:
            break
        base += f"{name}/"
    return base


def _copies(start: str, below: dict[str, list[str]]) -> list[str]:
    """Class folders that contain folders named as two or more of their siblings, or as two or more splits."""
    found = []
    for name in below.get(start, []):
        inner = below.get(f"{start}{name}/", [])
        again = set(inner) & set(below[start]) - {name}
        if len(again) >= 2 or sum(split_of(other) is not None for other in inner) >= 2:
            found.append(start + name)
    return found
