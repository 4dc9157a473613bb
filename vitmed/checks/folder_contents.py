"""What lies in a data folder, whatever its state: where training would refuse, this goes on and says what it saw."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vitmed.data import npz_folders
from vitmed.data.split_names import SPLIT_NAMES
from vitmed.imaging import npz
from vitmed.imaging.decode import is_image

RUBBISH = {"thumbs.db", "ehthumbs.db", "desktop.ini", ".ds_store", ".directory", "icon\r"}
RUBBISH_FOLDERS = {"__macosx", ".ipynb_checkpoints", "@eadir", ".trashes", ".spotlight-v100", "$recycle.bin"}


class File(NamedTuple):
    """An image file: path relative to the root (forward slashes), size in bytes (-1: no such file), time of change."""

    path: str
    size: int
    mtime_ns: int


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
        files: every image file, in the order of their paths.
        places: split and class of each.
        folders: the class folders of each split (None where there are no splits), also the empty ones.
        splits: split name -> its folders, relative to the root.
        rubbish: files that systems leave behind (Thumbs.db, .DS_Store, ._x.png).
        others: suffix -> number of files of a type that vitmed does not read.
        outside: image files beside the split folders, which training passes over.
        copies: folders that hold the classes once more, relative to the root -> image files therein, which are not
            in `files`.
    """

    root: Path
    base: str
    files: tuple[File, ...]
    places: tuple[Place, ...]
    folders: dict[str | None, tuple[str, ...]]
    splits: dict[str, tuple[str, ...]]
    rubbish: tuple[str, ...] = ()
    others: dict[str, int] = field(default_factory=dict)
    outside: tuple[str, ...] = ()
    copies: dict[str, int] = field(default_factory=dict)


def survey(root: Path) -> Survey:
    """Walk the folder once and make out its layout. Links are followed, but for those that lead back up."""
    if npz.is_npz(root):
        return _survey_npz(root)
    files: list[File] = []
    rubbish: list[str] = []
    others: Counter[str] = Counter()
    below: dict[str, list[str]] = {}  # folder, relative with a slash at its end -> names of the folders in it
    for name, entry in _walk(root, "", below):
        lower = entry.name.lower()
        if lower in RUBBISH or lower.startswith("._"):
            rubbish.append(name)
        elif not entry.name.startswith("."):
            if is_image(entry.path):
                files.append(_file(name, entry))
            else:
                others[os.path.splitext(lower)[1] or "no suffix"] += 1  # noqa: PTH122  (a million of them)
    files.sort()
    loose = {file.path.rpartition("/")[0] for file in files}
    base = _base(below, loose)
    splits: dict[str, tuple[str, ...]] = {}
    for split, spellings in SPLIT_NAMES.items():
        found = tuple(base + name for name in below.get(base, []) if name.lower() in spellings)
        if found:
            splits[split] = found
    starts: dict[str, str | None] = {f"{f}/": split for split, names in splits.items() for f in names} or {base: None}
    copies = {copy: 0 for start in starts for copy in _copies(start, below)}
    kept, places, outside = [], [], []
    for file in files:
        start = next((s for s in starts if file.path.startswith(s)), None)
        copy = next((c for c in copies if file.path.startswith(f"{c}/")), None)
        if start is None:
            outside.append(file.path)
        elif copy is not None:
            copies[copy] += 1
        else:
            label, slash, _ = file.path[len(start) :].partition("/")
            kept.append(file)
            places.append(Place(starts[start], label if slash else None))
    folders: dict[str | None, tuple[str, ...]] = {}
    for start, of_split in starts.items():
        names = tuple(name for name in below.get(start, []) if start + name not in copies)
        folders[of_split] = (*folders.get(of_split, ()), *names)
    return Survey(
        root, base, tuple(kept), tuple(places), folders, splits, tuple(sorted(rubbish)), dict(others.most_common()),
        tuple(outside), copies,
    )  # fmt: skip


def _survey_npz(file: Path) -> Survey:
    """An .npz file, whose images have its size and time of change."""
    about = file.stat()
    files, places, folders = [], [], dict[str | None, tuple[str, ...]]()
    for split, folder in npz_folders.folders(file).items():
        folders[split] = tuple(npz_folders.classes_in(folder))
        for path, label in npz_folders.images_in(folder):
            files.append(File(path, about.st_size, about.st_mtime_ns))
            places.append(Place(split, label))
    return Survey(file, "", tuple(files), tuple(places), folders, {str(split): (str(split),) for split in folders})


def same_name(name: str) -> str:
    """What is left of a class name without what an eye does not see: case, blanks at its ends, Unicode form."""
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name)).strip().casefold()


def _walk(folder: Path, prefix: str, below: dict[str, list[str]]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every file, its path relative to the root; fills `below`. Folders that cannot be read are passed over."""
    stack = [(os.fspath(folder), prefix)]
    while stack:
        where, prefix = stack.pop()
        below[prefix] = []
        try:
            entries = sorted(os.scandir(where), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir():
                if entry.name.lower() in RUBBISH_FOLDERS or entry.name.startswith("."):
                    continue
                if entry.is_symlink() and Path(where).resolve().is_relative_to(Path(entry.path).resolve()):
                    continue
                below[prefix].append(entry.name)
                stack.append((entry.path, f"{prefix}{entry.name}/"))
            else:
                yield prefix + entry.name, entry


def _file(name: str, entry: os.DirEntry[str]) -> File:
    try:
        facts = entry.stat()
    except OSError:  # a link to nowhere
        return File(name, -1, 0)
    return File(name, facts.st_size, facts.st_mtime_ns)


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
