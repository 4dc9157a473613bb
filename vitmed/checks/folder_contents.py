"""What lies in a data folder in any state: where training refuses, this goes on and reports what it found."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vitmed.data import npz_folders
from vitmed.data.folders import look_into
from vitmed.data.split_names import SPLIT_NAMES
from vitmed.imaging import npz


class Place(NamedTuple):
    """Which split and which class a file's folders say; None where they say none."""

    split: str | None
    label: str | None


@dataclass(frozen=True)
class Survey:
    """The folder as it is.

    Attributes:
        root: the folder.
        base: where the classes or splits begin, relative to the root: "" or "malaria/".
        files: the path of every image file relative to the root (forward slashes), sorted.
        places: split and class of each.
        folders: the class folders of each split (None where there are no splits), also the empty ones.
        splits: split name -> its folders, relative to the root.
        rubbish: files that systems leave behind (Thumbs.db, .DS_Store, ._x.png).
        others: suffix -> number of files of a type that vitmed does not read.
        outside: image files beside the split folders, which training passes over.
        copies: folders that hold the classes once more, relative to the root -> image files therein, which are not
            in `files`.
        unreadable: folders that cannot be read, relative to the root -> reason.
    """

    root: Path
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


def survey(root: Path) -> Survey:
    """Walk the folder once and find its layout. Links are followed, but not in a circle."""
    if npz.is_npz(root):
        return _survey_npz(root)
    files: list[str] = []
    rubbish: list[str] = []
    others: Counter[str] = Counter()
    unreadable: dict[str, str] = {}
    below: dict[str, list[str]] = {}  # folder, relative with a slash at its end -> names of the folders in it
    stack: list[tuple[str, frozenset[str]]] = [("", frozenset())]
    while stack:
        prefix, followed = stack.pop()
        below[prefix] = []
        try:
            inside = look_into(os.path.join(root, prefix), followed)  # noqa: PTH118
        except OSError as error:
            unreadable[prefix.rstrip("/")] = error.strerror or str(error)
            continue
        below[prefix] = sorted(inside.folders)
        files += [prefix + name for name in inside.images]
        rubbish += [prefix + name for name in inside.rubbish]
        others.update(os.path.splitext(name.lower())[1] or "no suffix" for name in inside.others)  # noqa: PTH122
        stack += [(f"{prefix}{name}/", links) for name, links in inside.folders.items()]
    files.sort()
    loose = {path.rpartition("/")[0] for path in files}
    base = _base(below, loose)
    splits: dict[str, tuple[str, ...]] = {}
    for split, spellings in SPLIT_NAMES.items():
        found = tuple(base + name for name in below.get(base, []) if name.lower() in spellings)
        if found:
            splits[split] = found
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
        names = tuple(name for name in below.get(start, []) if start + name not in copies)
        folders[of_split] = (*folders.get(of_split, ()), *names)
    return Survey(
        root, base, tuple(kept), tuple(places), folders, splits, tuple(sorted(rubbish)), dict(others.most_common()),
        tuple(outside), copies, unreadable,
    )  # fmt: skip


def _survey_npz(file: Path) -> Survey:
    """An .npz file as folders."""
    files, places, folders = [], [], dict[str | None, tuple[str, ...]]()
    for split, folder in npz_folders.folders(file).items():
        folders[split] = tuple(npz_folders.classes_in(folder))
        for path, label in npz_folders.images_in(folder):
            files.append(path)
            places.append(Place(split, label))
    return Survey(file, "", tuple(files), tuple(places), folders, {str(split): (str(split),) for split in folders})


def same_name(name: str) -> str:
    """What is left of a class name without what an eye does not see: case, blanks at its ends, Unicode form."""
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name)).strip().casefold()


def _base(below: dict[str, list[str]], loose: set[str]) -> str:
    """Down through folders that hold nothing but one folder of folders: root/malaria/<class>/ begins at malaria/."""
    base = ""
    spellings = {spelling for names in SPLIT_NAMES.values() for spelling in names}
    while len(below.get(base, [])) == 1 and base.rstrip("/") not in loose:
        (name,) = below[base]
        if name.lower() in spellings or len(below.get(f"{base}{name}/", [])) < 2:
            break
        base += f"{name}/"
    return base


def _copies(start: str, below: dict[str, list[str]]) -> list[str]:
    """Class folders in which the names of two or more of their siblings, or of splits, are found again."""
    names = below.get(start, [])
    splits = {spelling for names in SPLIT_NAMES.values() for spelling in names}
    found = []
    for name in names:
        inner = set(below.get(f"{start}{name}/", []))
        again = inner & (set(names) - {name})
        if len(again) >= 2 or len({n for n in inner if n.lower() in splits}) >= 2:
            found.append(start + name)
    return found
