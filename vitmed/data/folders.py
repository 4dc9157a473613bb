"""Which files and folders are there: one pass of `os.scandir`, in strings, fast enough for a million files."""

from __future__ import annotations

import os
from pathlib import Path

from vitmed.core.errors import DataError, UsageError
from vitmed.data import npz_folders
from vitmed.data.split_names import SPLITS, split_of
from vitmed.imaging import npz
from vitmed.imaging.decode import READERS, is_image


def data_folder(root: str | Path | None) -> Path:
    """The folder, checked. Raises DataError where there is none."""
    if root is None:
        raise UsageError("no data folder is named", "vitmed train DIR, or data.root in the config")
    folder = Path(root)
    if not folder.is_dir() and not npz.is_npz(folder):
        what = "is a file, not a folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {what}", "name a folder that holds one folder of images per class")
    return folder


def split_folders(root: Path) -> dict[str, Path]:
    """Split name -> its folder, where the root is laid out by split. Raises DataError for two of one kind."""
    if npz.is_npz(root):
        return npz_folders.folders(root)
    found: dict[str, Path] = {}
    for folder in subfolders(root):
        if (name := split_of(folder.name)) is not None:
            if name in found:
                raise DataError(f"{root}: both {found[name].name}/ and {folder.name}/ are there", "keep one of them")
            found[name] = folder
    return {name: found[name] for name in SPLITS if name in found}


def has_classes(root: Path) -> bool:
    """Whether the images lie in two or more folders that training would take as classes."""
    folders = split_folders(root)
    if npz.is_npz(root):
        return "train" in folders
    return len(subfolders(folders.get("train", root))) > 1 and (not folders or "train" in folders)


def class_names(folder: Path) -> list[str]:
    """The class folders, sorted by name. Raises DataError where there are none."""
    if npz.inside(folder):
        return npz_folders.classes_in(folder)
    names = sorted(entry.name for entry in subfolders(folder))
    if not names:
        with os.scandir(folder) as entries:
            loose = sum(1 for entry in entries if entry.is_file() and is_image(entry.path))
        what = f"{loose:,} images but no class folders" if loose else "neither class folders nor images"
        raise DataError(f"{folder}: holds {what}", "sort the images into one folder per class, or --labels TABLE")
    return names


def subfolders(root: Path) -> list[Path]:
    """The folders in a folder, sorted; hidden ones are passed over."""
    try:
        with os.scandir(root) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{root}: cannot be read ({error.strerror})", "check its permissions") from None


def image_files(folder: Path) -> list[Path]:
    """Files below a folder whose suffix vitmed knows, sorted; hidden files and folders are passed over."""
    return [folder / name for name in image_names(folder)]


def image_names(folder: Path, prefix: str = "") -> list[str]:
    """As `image_files`: paths relative to `folder`, with forward slashes, behind `prefix`; sorted part by part.

    Links are followed, but not in a circle.

    Raises:
        DataError: a folder that cannot be read, or folders nested too deep.
    """
    if npz.is_npz(folder):
        return [
            prefix + path for part in npz_folders.folders(folder).values() for path, _ in npz_folders.images_in(part)
        ]
    found: list[str] = []
    try:
        _walk(str(folder), prefix, found, frozenset())
    except RecursionError:
        raise DataError(f"{folder}: folders are nested too deep", "look for a folder that holds itself") from None
    return found


def _walk(where: str, prefix: str, found: list[str], followed: frozenset[str]) -> None:
    files: list[str] = []
    folders: dict[str, frozenset[str]] = {}  # name -> the targets of the links that lead there
    try:
        with os.scandir(where) as entries:
            for entry in entries:
                name = entry.name
                if name[0] == ".":
                    continue
                if not _is_folder(entry):
                    if _is_image(where, name):
                        files.append(name)
                elif not entry.is_symlink():
                    folders[name] = followed
                elif (target := os.path.realpath(entry.path)) not in followed and not _within(where, target):
                    folders[name] = followed | {target}
    except OSError as error:
        raise DataError(f"{where}: cannot be read ({error.strerror})", "check its permissions") from None
    files.sort()
    if not folders:
        found += [prefix + name for name in files] if prefix else files
        return
    for name in sorted([*files, *folders]):
        if name in folders:
            _walk(os.path.join(where, name), f"{prefix}{name}/", found, folders[name])  # noqa: PTH118
        else:
            found.append(prefix + name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _within(where: str, target: str) -> bool:
    """Whether a folder lies in the target of a link: following it would never end."""
    real = os.path.realpath(where)
    return real == target or real.startswith(target.rstrip(os.sep) + os.sep)


def _is_image(where: str, name: str) -> bool:
    """As `is_image`, quick for names that say it."""
    return name[name.rfind(".") :].lower() in READERS or is_image(f"{where}{os.sep}{name}")
