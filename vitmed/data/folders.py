"""List files, class folders and the folders of splits.

One pass of `os.scandir`, in strings, is fast enough for a million files.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vitmed.core.errors import DataError, UsageError
from vitmed.core.places import ARCHIVES, new_folder
from vitmed.core.text import counted
from vitmed.imaging.decode import READERS, is_image

CLOSED = "check its permissions; or move it, if its path is too long"  # what to do about a folder
TABLES = (".csv", ".tsv", ".xlsx")
NAMED = "--labels TABLE, with the columns path and label"  # how to name the classes without folders
RUBBISH = {"thumbs.db", "ehthumbs.db", "desktop.ini", ".ds_store", ".directory", "icon\r"}
RUBBISH_FOLDERS = {"__macosx", "@eadir", "$recycle.bin"}  # beside the hidden ones

SPLITS = ("train", "val", "test")
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
BEHIND_SPLIT = r"[ _-]?(?:data(?:[ _-]?sets?)?|sets?|images|imgs|splits?)"  # as in training_set and TestData


@cache
def split_of(word: str) -> str | None:
    """train, val or test for a usual spelling in a folder name or a table, else None."""
    return SPLIT_WORDS.get(re.sub(f"{BEHIND_SPLIT}$", "", word.lower()))


def split_folders(root: Path) -> dict[str, Path]:
    """Split name -> its folder, if the root has split folders. Raises DataError for two folders of one split."""
    folders: dict[str, Path] = {}
    for folder in subfolders(root):
        if (name := split_of(folder.name)) is not None and folders.setdefault(name, folder) != folder:
            raise DataError(f"{root}: both {folders[name].name}/ and {folder.name}/ are {name}", "keep one of them")
    return {name: folders[name] for name in SPLITS if name in folders}


def has_classes(root: Path) -> bool:
    """Whether the images are in two or more folders that training would use as classes."""
    folders = split_folders(root)
    return len(subfolders(folders.get("train", root))) > 1 and (not folders or "train" in folders)


def class_names(folder: Path) -> list[str]:
    """The class folders, sorted by name. Raises DataError if there are none."""
    names = sorted(entry.name for entry in subfolders(folder))
    if not names:
        loose = len(list_folder(str(folder)).images)
        what = f"{counted(loose, 'image')} but no class folders" if loose else "neither class folders nor images"
        fix = f"{NAMED}; or sort the images into one folder per class"
        raise DataError(f"{folder}: contains {what}", import_fix(folder) or fix)
    return names


def import_fix(folder: Path) -> str:
    """The command that unpacks the archives in a folder without images, or beside one of its splits; "" without any."""
    root = folder.parent if split_of(folder.name) else folder
    for place in (root, *subfolders(root)):
        inside = list_folder(str(place))
        for name in () if inside.images else inside.others:
            if name.lower().endswith((*ARCHIVES, ".zip", ".tar.gz", ".tgz")):
                return f"vitmed data import {place / name} FOLDER"
    return ""


def subfolders(root: Path) -> list[Path]:
    """The folders in a folder, sorted; ignores hidden and system folders. Raises DataError."""
    try:
        return [root / name for name in sorted(list_folder(str(root)).folders)]
    except OSError as error:
        raise DataError(f"{root}: cannot be read ({error.strerror})", CLOSED) from None


def walk(root: Path) -> Iterator[tuple[str, "FolderEntries | OSError"]]:
    """Every folder below the root, and the root: its path relative to it, with a final slash ("" of the root), and what
    it holds, or why it cannot be read. Ignores hidden and system folders; links are followed, but never in a circle."""
    folders: list[tuple[str, frozenset[str]]] = [("", frozenset())]
    while folders:
        below, followed = folders.pop()
        try:
            inside = list_folder(os.path.join(root, below), followed)  # noqa: PTH118
        except OSError as error:
            yield below, error
            continue
        yield below, inside
        folders += [(f"{below}{name}/", inside.folders[name]) for name in sorted(inside.folders, reverse=True)]


def image_names(folder: Path, prefix: str = "") -> list[str]:
    """The image files below a folder, sorted folder by folder, without hidden files and folders: each is `prefix` and
    its path relative to `folder`, with forward slashes. Raises DataError for a folder that cannot be read."""
    names: list[str] = []
    for below, inside in walk(folder):
        if isinstance(inside, OSError):
            problem = f"{Path(folder, below)}: cannot be read ({inside.strerror})"
            raise DataError(problem, CLOSED)
        names += [f"{prefix}{below}{name}" for name in inside.images]
    return sorted(names, key=lambda name: name.replace("/", "\0"))  # a/b before a-b, as its folder is


def new_outside_data(path: str | Path, filled: bool = False) -> None:
    """Check a folder to be written as `new_folder` does, and raise UsageError if it is, or lies in, what looks like
    somebody's data folder: two or more folders, each with images and nothing else, also in one of its splits."""
    new_folder(path, filled=filled)
    place = Path(os.path.realpath(path))
    for root in (place, *[parent for parent in list(place.parents)[:3] if parent != parent.parent]):  # not "/"
        with contextlib.suppress(OSError, DataError):  # nothing there, or no right to look
            for folder in (root, *split_folders(root).values()) if root.is_dir() else ():
                names = subfolders(folder)
                inside = (list_folder(str(name)) for name in names)  # up to the first that is no class
                if len(names) > 1 and all(part.images and not part.folders and not part.others for part in inside):
                    problem = f"{path}: lies in {root}, which looks like a data folder, where vitmed writes nothing"
                    raise UsageError(problem, "choose a place outside it")


class FolderEntries(NamedTuple):
    """The names in one folder, without hidden files and hidden or system folders."""

    images: list[str]  # sorted
    folders: dict[str, frozenset[str]]  # name -> the links followed to it
    others: list[str]  # files that are no images
    rubbish: list[str]  # files left behind by the operating system


def list_folder(where: str, followed: frozenset[str] = frozenset()) -> FolderEntries:
    """One pass of `os.scandir` over one folder. Links are followed, but never in a circle.

    `followed`: the targets of the links that lead here. Raises OSError if the folder cannot be read.
    """
    listed = FolderEntries([], {}, [], [])
    with os.scandir(where) as entries:
        for entry in entries:
            name, is_folder = entry.name, False
            with contextlib.suppress(OSError):  # a link to itself
                is_folder = entry.is_dir()
            if name[0] == "." or name.lower() in RUBBISH:
                if (name[:2] == "._" or name.lower() in RUBBISH) and not is_folder:
                    listed.rubbish.append(name)
            elif not is_folder:
                image = name[name.rfind(".") :].lower() in READERS or is_image(entry.path)  # the first is faster
                (listed.images if image else listed.others).append(name)
            elif name.lower() in RUBBISH_FOLDERS:
                continue
            elif not entry.is_symlink():
                listed.folders[name] = followed
            elif (target := os.path.realpath(entry.path)) not in followed:
                real = os.path.realpath(where)  # in the target, the link would lead round in a circle
                if real != target and not real.startswith(target.rstrip(os.sep) + os.sep):
                    listed.folders[name] = followed | {target}
    listed.images.sort()
    # Names can be listed, but no file be opened.
    if (listed.images or listed.others) and not os.access(where, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), where)
    return listed
