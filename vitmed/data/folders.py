"""List files and class folders; a MedMNIST .npz file reads like a folder of splits.

One pass of `os.scandir`, in strings, is fast enough for a million files.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitmed.core.errors import DataError, UsageError
from vitmed.core.text import counted
from vitmed.data.dataset_cards import medmnist_classes
from vitmed.data.split_names import SPLITS, split_of
from vitmed.imaging import npz, tars
from vitmed.imaging.decode import READERS, is_image

RUBBISH = {"thumbs.db", "ehthumbs.db", "desktop.ini", ".ds_store", ".directory", "icon\r"}
RUBBISH_FOLDERS = {"__macosx", "@eadir", "$recycle.bin"}  # beside the hidden ones


def split_folders(root: Path) -> dict[str, Path]:
    """Split name -> its folder, if the root has split folders. Raises DataError for two folders of one split."""
    if npz.is_npz(root):
        return {name: root / name for name in npz.open_npz(root)}
    found: dict[str, Path] = {}
    for folder in subfolders(root):
        if (name := split_of(folder.name)) is not None:
            if name in found:
                raise DataError(f"{root}: both {found[name].name}/ and {folder.name}/ are {name}", "keep one of them")
            found[name] = folder
    return {name: found[name] for name in SPLITS if name in found}


def has_classes(root: Path) -> bool:
    """Whether the images are in two or more folders that training would use as classes."""
    folders = split_folders(root)
    if npz.is_npz(root):
        return "train" in folders
    return len(subfolders(folders.get("train", root))) > 1 and (not folders or "train" in folders)


def class_names(folder: Path) -> list[str]:
    """The class folders, sorted by name. Raises DataError if there are none."""
    if npz.inside(folder):
        return sorted({name for _, name in npz_images(folder)})
    names = sorted(entry.name for entry in subfolders(folder))
    if not names:
        loose = len(list_folder(str(folder)).images)
        what = f"{counted(loose, 'image')} but no class folders" if loose else "neither class folders nor images"
        raise DataError(f"{folder}: contains {what}", "sort the images into one folder per class, or --labels TABLE")
    return names


def subfolders(root: Path) -> list[Path]:
    """The folders in a folder, sorted; ignores hidden and system folders. Raises DataError."""
    try:
        return [root / name for name in sorted(list_folder(str(root)).folders)]
    except OSError as error:
        raise _unreadable(root, error) from None


def image_files(folder: Path) -> list[Path]:
    """The image files below a folder, sorted; ignores hidden files and folders."""
    return [folder / name for name in image_names(folder)]


def image_names(folder: Path, prefix: str = "") -> list[str]:
    """As `image_files`, but each is `prefix` and the path relative to `folder` with forward slashes.

    Links are followed, but never in a circle.

    Raises:
        DataError: a folder that cannot be read, or folders nested too deep.
    """
    if npz.is_npz(folder):
        return [f"{prefix}{name}/{path}" for name, part in npz.open_npz(folder).items() for path in part.paths]
    found: list[str] = []
    try:
        _collect(str(folder), prefix, found, frozenset())
    except RecursionError:
        raise DataError(f"{folder}: folders are nested too deep", "look for a folder that holds itself") from None
    return found


def tar_images(file: Path, prefix: str = "") -> list[str]:
    """The images of a tar, sorted, each with `prefix` before its name. Raises DataError if the tar is damaged."""
    return [prefix + name for name in tars.image_names(file, frozenset(READERS))]


def holds_tars(folder: Path) -> bool:
    """Whether a folder holds WebDataset tars, and neither images nor folders."""
    return folder.is_dir() and bool(list_folder(str(folder)).tars)


def tar_labels(root: Path, paths: Sequence[str]) -> list[str | None]:
    """The class of each image in the tars of a folder, from its .cls or .json; None where it has none."""
    found: list[str | None] = []
    for file, of_tar in groupby(paths, lambda path: tars.file_of(root / path)):
        inside = list(of_tar)
        if file is None:
            found += [None] * len(inside)
        else:
            above = f"{file.relative_to(root).as_posix()}/"
            found += tars.labels(file, [path.removeprefix(above) for path in inside])
    return found


def npz_images(folder: Path) -> list[tuple[str, str]]:
    """Path relative to the .npz file and class name of every image in `file.npz/split`, in the order of the file."""
    file, split = folder.parent, folder.name
    names, part = npz_classes(file), npz.open_npz(file)[split]
    return [(f"{split}/{path}", names[label]) for path, label in zip(part.paths, part.labels.tolist(), strict=True)]


def npz_classes(file: Path) -> dict[int, str]:
    """Class number -> name, from the card if the file's name matches a set, else the number as text."""
    numbers = np.unique(np.concatenate([part.labels for part in npz.open_npz(file).values()])).tolist()
    known = medmnist_classes(file.name)
    return dict(enumerate(known)) if known and numbers[-1] < len(known) else {k: str(k) for k in numbers}


def has_npz_classes(file: Path) -> bool:
    """Whether the labels of an .npz file are classes, not findings or numbers."""
    return all(part.classified for part in npz.open_npz(file).values())


def npz_findings(file: Path) -> tuple[str, ...]:
    """Names of the findings of a file, from the card if the file's name matches a set, else "finding 0" and so on."""
    count = next(iter(npz.open_npz(file).values())).labels.shape[1]
    known = medmnist_classes(file.name)
    return tuple(known) if known and len(known) == count else tuple(f"finding {k}" for k in range(count))


def refuse_among_classes(path: str | Path) -> None:
    """Raise UsageError if a folder to be written is, or lies in, what looks like somebody's data folder.

    There are two or more folders, each with images and nothing else; or there are such folders in one of its splits.
    """
    place = Path(os.path.realpath(path))
    for root in (place, *list(place.parents)[:3]):
        with contextlib.suppress(OSError, DataError):  # nothing there, or no right to look
            if root.is_dir() and any(map(_are_classes, (root, *split_folders(root).values()))):
                raise UsageError(
                    f"{path}: lies in {root}, which looks like a data folder, where vitmed writes nothing",
                    "choose a place outside it",
                )


def _are_classes(folder: Path) -> bool:
    inside = subfolders(folder)
    parts = (list_folder(str(name)) for name in inside)
    return len(inside) > 1 and all(part.images and not part.folders and not part.others for part in parts)


def _collect(where: str, prefix: str, found: list[str], followed: frozenset[str]) -> None:
    try:
        inside = list_folder(where, followed)
    except OSError as error:
        raise _unreadable(where, error) from None
    for name in inside.tars:
        found += tar_images(Path(where, name), f"{prefix}{name}/")
    if not inside.folders:
        found += [prefix + name for name in inside.images] if prefix else inside.images
        return
    for name in sorted([*inside.images, *inside.folders]):
        if name in inside.folders:
            _collect(os.path.join(where, name), f"{prefix}{name}/", found, inside.folders[name])  # noqa: PTH118
        else:
            found.append(prefix + name)


class FolderEntries(NamedTuple):
    """The names in one folder, without hidden files and hidden or system folders.

    Attributes:
        images: sorted; folders: name -> the links followed to it; others: files that are no images.
        rubbish: files left behind by the operating system.
        tars: sorted, of a folder without images and folders, where they count as folders of images.
    """

    images: list[str]
    folders: dict[str, frozenset[str]]
    others: list[str]
    rubbish: list[str]
    tars: list[str]


def list_folder(where: str, followed: frozenset[str] = frozenset()) -> FolderEntries:
    """One pass of `os.scandir` over one folder. Links are followed, but never in a circle.

    Args:
        followed: the targets of the links that lead here.

    Raises:
        OSError: the folder cannot be read.
    """
    found = FolderEntries([], {}, [], [], [])
    with os.scandir(where) as entries:
        for entry in entries:
            name = entry.name
            if name[0] == "." or name.lower() in RUBBISH:
                if (name[:2] == "._" or name.lower() in RUBBISH) and not _is_folder(entry):
                    found.rubbish.append(name)
            elif not _is_folder(entry):
                image = name[name.rfind(".") :].lower() in READERS or is_image(entry.path)  # the first is faster
                (found.images if image else found.others).append(name)
            elif name.lower() in RUBBISH_FOLDERS:
                continue
            elif not entry.is_symlink():
                found.folders[name] = followed
            elif (target := os.path.realpath(entry.path)) not in followed and not _within(where, target):
                found.folders[name] = followed | {target}
    found.images.sort()
    if not found.images and not found.folders:
        found.tars[:] = sorted(name for name in found.others if name.lower().endswith(tars.SUFFIX))
        found.others[:] = [name for name in found.others if name not in found.tars]
    # Names can be listed, but no file be opened.
    if (found.images or found.others or found.tars) and not os.access(where, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), where)
    return found


def _unreadable(where: str | Path, error: OSError) -> DataError:
    return DataError(f"{where}: cannot be read ({error.strerror})", "check its permissions")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _within(where: str, target: str) -> bool:
    """Whether a folder is in the target of a link, so that following it would never end."""
    real = os.path.realpath(where)
    return real == target or real.startswith(target.rstrip(os.sep) + os.sep)
