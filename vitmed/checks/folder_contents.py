"""The contents of a data folder in any state, which unlike training this never refuses, and what its names show."""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitmed.checks.detect import SMALL_CLASS, Problem, make
from vitmed.core.text import counted, listed
from vitmed.data.folders import SPLITS, list_folder, split_of
from vitmed.data.label_kinds import Labels

LONG_WORD = 5  # letters; shorter names, such as a and b, differ by one letter on purpose


class Place(NamedTuple):
    """The split and the class of a file by its folders; None where they name none."""

    split: str | None
    label: str | None


@dataclass(frozen=True)
class FolderContents:
    """The layout of a folder. All paths are relative to its root, with forward slashes."""

    base: str  # where the classes or splits begin: "" or "malaria/"
    files: tuple[str, ...]  # every image file, sorted
    places: tuple[Place, ...]  # split and class of each
    folders: dict[str | None, tuple[str, ...]]  # class folders of each split (None: no splits), also empty ones
    splits: dict[str, tuple[str, ...]]  # split name -> its folders
    rubbish: tuple[str, ...] = ()  # left behind by the operating system (Thumbs.db, .DS_Store, ._x.png)
    others: dict[str, int] = field(default_factory=dict)  # suffix -> number of files that vitmed does not read
    outside: tuple[str, ...] = ()  # image files beside the split folders, which training ignores
    copies: dict[str, int] = field(default_factory=dict)  # folder with the classes again -> its images, not in `files`
    unreadable: dict[str, str] = field(default_factory=dict)  # folder -> reason
    read: Labels | None = None  # the labels of the files, where they do not come from folders


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
    copies = dict[str, int]()  # class folders that hold two or more folders named as their siblings, or as splits
    for begin in starts:
        for name in below.get(begin, []):
            inner = below.get(f"{begin}{name}/", [])
            again = set(inner) & set(below[begin]) - {name}
            if len(again) >= 2 or sum(split_of(other) is not None for other in inner) >= 2:
                copies[begin + name] = 0
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
    for begin, of_split in starts.items():
        own = [name for name in below.get(begin, []) if begin + name not in copies]
        folders[of_split] = (*folders.get(of_split, ()), *own)
    return FolderContents(
        base,
        tuple(kept),
        tuple(places),
        folders,
        splits,
        tuple(sorted(rubbish)),
        dict(others.most_common()),
        tuple(outside),
        copies,
        unreadable,
    )


def named_in_table(contents: FolderContents, table: Labels) -> FolderContents:
    """Keep the images that a table names, with its classes, and its splits or, without, those of the folder."""
    files = tuple(contents.files[i] for i in table.images)
    splits: Sequence[str | None] = table.splits or [contents.places[i].split for i in table.images]
    places = tuple(map(Place, splits, table.labels))
    folders = {
        split: tuple(sorted({p.label or "" for p in places if p.split == split})) for split in dict.fromkeys(splits)
    }
    named = replace(contents, base="", files=files, places=places, folders=folders, read=table)
    return replace(named, splits={}, outside=(), copies={})


def _base(below: dict[str, list[str]], loose: set[str]) -> str:
    """Descend through folders that contain a single folder of folders: root/malaria/<class>/ begins at malaria/."""
    base = ""
    while len(below.get(base, [])) == 1 and base.rstrip("/") not in loose:
        (name,) = below[base]
        if split_of(name) or len(below.get(f"{base}{name}/", [])) < 2:
            break
        base += f"{name}/"
    return base


def folder_problems(contents: FolderContents) -> Iterator[Problem]:
    """Problems that folder names show alone, before any file is opened."""
    names = {name for of_split in contents.folders.values() for name in of_split}
    labels = {place.label for place in contents.places if place.label is not None}
    several = contents.read is not None and bool(contents.read.outputs)  # findings, or a number
    if contents.base:
        text = f"the images begin at {contents.base}, a folder within the folder"
        yield make("nested_root", text, [contents.base], "warning", f"point at {contents.base}")
    for copy, count in contents.copies.items():
        text = f"{copy}/ lies beside the classes, but contains the classes again ({counted(count, 'image')})"
        yield make("nested_root", text, [copy])
    for folder, reason in contents.unreadable.items():
        text = f"folder {folder or '.'} cannot be read ({reason})"
        yield make("unreadable", text, [folder or "."], fix="check its permissions")
    for split, folders in contents.splits.items():
        if len(folders) > 1:
            yield make("two_split_folders", f"{' and '.join(folders)} are both {split}", folders)
    if not labels:
        yield make("no_classes", f"{counted(len(contents.files), 'image')} in no class folder")
    elif len(labels) == 1 and not contents.unreadable and not several:
        yield make("one_class", f"one class only: {next(iter(labels))!r}")
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):  # alike but for what is easily missed: case, separators and Unicode form
        alike[re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name)).strip().casefold()].append(name)
    for same in alike.values():
        if len(same) > 1:
            what, fix = ("labels", "write one of the names in the table") if contents.read else ("class folders", "")
            text = f"{what} {' and '.join(map(repr, same))} are hard to tell apart by eye"
            yield make("class_names_alike", text, same, fix=fix)
    for first, second in itertools.combinations(alike, 2):
        if _one_letter_apart(first, second):
            same = [alike[first][0], alike[second][0]]
            what, fix = ("labels", "the table") if contents.read else ("class folders", "the folders")
            text = f"{what} {' and '.join(map(repr, same))} differ by one letter"
            yield make("class_names_alike", text, same, "warning", f"if they are one class, give it one name in {fix}")
    loose = [path for path, place in zip(contents.files, contents.places, strict=True) if place.label is None]
    if loose and labels:
        yield make("loose_images", f"{counted(len(loose), 'image')} in no class folder", loose)
    if contents.outside:
        text = f"{counted(len(contents.outside), 'image')} beside the split folders, which training ignores"
        yield make("outside_splits", text, contents.outside)
    yield from _finding_counts(contents) if several else _class_counts(contents, sorted(names | labels))
    if contents.rubbish:
        text = f"{counted(len(contents.rubbish), 'file')} left behind by the operating system; vitmed ignores them"
        yield make("rubbish", text, contents.rubbish)
    if contents.others:
        types = ", ".join(f"{count:,} {suffix}" for suffix, count in list(contents.others.items())[:8])
        yield make("other_files", f"files of a type that vitmed does not read: {types}")


def _one_letter_apart(first: str, second: str) -> bool:
    """Whether one word of two names has a letter too many, another letter or two letters exchanged within it: not at
    its beginning, as in typical and atypical, nor another at its end, as in graded and grades; of five letters or more.
    """
    apart = [(a, b) for a, b in itertools.zip_longest(first.split(), second.split(), fillvalue="") if a != b]
    if len(apart) != 1 or not all(word.isalpha() and len(word) >= LONG_WORD for word in apart[0]):
        return False
    short, long = sorted(apart[0], key=len)
    k = next((k for k, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(short) < len(long):
        return k > 0 and short[k:] == long[k + 1 :]
    exchanged = short[k] == long[k + 1 : k + 2] and short[k + 1 : k + 2] == long[k] and short[k + 2 :] == long[k + 2 :]
    return 0 < k < len(short) - 1 and (short[k + 1 :] == long[k + 1 :] or exchanged)


def _class_counts(contents: FolderContents, classes: Sequence[str]) -> Iterator[Problem]:
    counts = Counter((place.split, place.label) for place in contents.places)
    for split, folders in contents.folders.items():
        where = f"{split}: " if split else ""
        starts = contents.splits.get(split, ()) if split is not None else (contents.base.rstrip("/"),)
        empty = []  # a folder that cannot be read, or holds one, may hold images
        for name in folders:
            places = tuple(f"{start}/{name}/".lstrip("/") for start in starts)
            if not counts[split, name] and not any(f"{path}/".startswith(places) for path in contents.unreadable):
                empty.append(name)
        if empty and classes:
            yield make("empty_class", f"{where}no image of {listed([*map(repr, empty)])}", empty)
        needed = 1
        if set(contents.folders) == {None} or (split == "train" and split in contents.splits):
            needed += sum(name not in contents.folders for name in ("val", "test"))  # which are split off
        if few := [name for name in folders if 0 < counts[split, name] < needed]:
            text = listed([f"{name!r} has {counted(counts[split, name], 'image')}" for name in few])
            yield make("too_small_class", f"{where}class {text}, and training needs {needed} to split them", few)
        if small := [name for name in folders if needed <= counts[split, name] < SMALL_CLASS]:
            text = listed([f"{counts[split, name]} of {name!r}" for name in small])
            yield make("small_class", f"{where}very few images: {text}", small)
        missing = [name for name in classes if name not in folders]
        if split and missing and folders:
            text = f"{where}no folder for class {listed([*map(repr, missing)])}, which other splits have"
            yield make("missing_class", text, missing)


def _finding_counts(contents: FolderContents) -> Iterator[Problem]:
    """Findings that are rare, and those that a split lacks; nothing of a number."""
    assert contents.read is not None
    if contents.read.target.kind != "findings":
        return
    assert contents.read.values is not None
    splits = np.array([place.split or "" for place in contents.places])
    for split in dict.fromkeys(splits.tolist()):
        where, values = f"{split}: " if split else "", contents.read.values[splits == split]
        counts = dict(zip(contents.read.outputs, (values == 1).sum(axis=0).tolist(), strict=True))
        if missing := [name for name, count in counts.items() if not count]:
            text = f"{where}no image has {listed([*map(repr, missing)])}"
            yield make("missing_class", text, missing, "warning", "nothing can be learned or said of it there")
        if always := [n for n, of in zip(counts, values.T, strict=True) if counts[n] and not (of == 0).any()]:
            text = f"{where}every image with a label has {listed([*map(repr, always)])}"
            yield make("missing_class", text, always, "warning", "nothing can be learned or said of its absence there")
        if small := [name for name, count in counts.items() if 0 < count < SMALL_CLASS]:
            text = listed([f"{counts[name]} with {name!r}" for name in small])
            yield make("small_class", f"{where}very few images: {text}", small)
