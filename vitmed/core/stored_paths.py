"""Paths of data and weights, stored in a run without the names of private folders.

Inside a project the relative path is stored, so run and data can move together. For anything elsewhere only the name
and a random mark are stored; a note in this machine's cache folder, which is not shared, holds the path.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path
from types import ModuleType

from vitmed.core.errors import UsageError
from vitmed.core.files import write_text
from vitmed.core.stored_paths import cache_folder

UP = 3  # folders from a run up to its project: project/runs/folds/fold-1
PRIVATE = ("home", "users", "root")  # folders that hold folders named after a person
NOWHERE = f"elsewhere-{'0' * 12}/images"  # of a data folder that is not named: no note has this mark
_MARK = re.compile(r"elsewhere-([0-9a-f]{12})/.+")
_NOTES: dict[str, str] = {}  # mark -> path, for a cache folder that cannot be written


def store_path(path: str | Path, folder: str | Path) -> str:
    """How a file in `folder` names `path`: relative within a project, else `elsewhere-<mark>/<name>`."""
    for way in (Path.absolute, Path.resolve):  # unresolved first: a link in the project belongs to the project
        whole = way(Path(path))
        near = project_path(os.path.normpath(whole), os.path.normpath(way(Path(folder))), _home())
        if near is not None:
            return near
    return f"elsewhere-{_mark_of(str(whole))}/{whole.name}"


def as_written(path: str | Path, folder: str | Path) -> str:
    """How a person would name `path` in a file in `folder`: relative within a project, else absolute."""
    whole = os.path.normpath(Path(path).absolute())
    return project_path(whole, os.path.normpath(Path(folder).absolute()), _home()) or whole


def find_path(stored: str, folder: Path) -> Path:
    """The path that `store_path` named, from a file in `folder`; it may not exist.

    Without a note on this machine for a path elsewhere, a path below `folder` that does not exist.
    """
    if mark := _MARK.fullmatch(stored):
        return Path(_note(mark[1]) or folder / stored)
    here, there = (Path(os.path.normpath(base / stored)) for base in (folder, folder.resolve()))
    return there if there.exists() and not here.exists() else here


def is_elsewhere(path: Path) -> bool:
    """Whether `find_path` found no note for a stored path."""
    return _MARK.fullmatch("/".join(path.parts[-2:])) is not None


def project_path(path: str, folder: str, home: str, paths: ModuleType = os.path) -> str | None:
    """`path` relative to `folder`, with forward slashes, or None if that would name private folders.

    A path with no named part but its own name may be any number of folders up. A longer path must lie in the project:
    at most `UP` folders up, not in or above the user's home itself, and without the user's name. From the root of the
    file system, as in a container, it may be /data/name, but not /home/name.

    Args:
        path, folder, home: absolute and normalised; `home` may be empty.
        paths: `os.path`, or `ntpath` or `posixpath` for paths of another system.
    """
    try:
        parts = paths.relpath(path, folder).split(paths.sep)
    except ValueError:  # on another drive
        return None
    up = parts.count("..")
    named = [paths.normcase(part) for part in parts[up:]]
    if len(named) > 1:
        common, own = (paths.normcase(name) for name in (paths.commonpath([path, folder]), home))
        if up > UP or paths.basename(own) in named[:-1]:
            return None
        if common == paths.dirname(common):
            if len(named) > 2 or named[0].lower() in PRIVATE:
                return None
        elif own and paths.commonprefix([own + paths.sep, common + paths.sep]) == common + paths.sep:
            return None
    return "/".join(parts)


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:  # the system does not know the user, and HOME is not set
        return ""


def _mark_of(path: str) -> str:
    """The mark in the note of a path, or a new mark and note."""
    folder = cache_folder() / "places"
    with contextlib.suppress(OSError):
        _NOTES.update({file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()})
    known = next((mark for mark, noted in _NOTES.items() if noted == path), None)
    mark = known or secrets.token_hex(6)
    _NOTES[mark] = path
    with contextlib.suppress(OSError, UsageError):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / mark, path)
    return mark


def _note(mark: str) -> str | None:
    with contextlib.suppress(OSError):
        return (cache_folder() / "places" / mark).read_text(encoding="utf-8")
    return _NOTES.get(mark)
