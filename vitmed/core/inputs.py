"""The files and folders that a command line names: checked before torch is loaded, which takes seconds."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitmed.core.config import read_overrides
from vitmed.core.errors import CheckpointError, DataError, UsageError
from vitmed.core.load_config import load_config
from vitmed.core.run_folder import RunFolder
from vitmed.core.settings import flags_of
from vitmed.core.text import lines_of
from vitmed.core.upgrade import READER

ARCHIVES = (".npz", ".tar")  # which hold images, and are imported before use


def check_inputs(options: dict[str, Any], kind: Any) -> None:
    """Check that what the options of a command name exists, and that its settings have allowed values.

    Args:
        options: keyword of the command -> value, of the options that were given.
        kind: `Config` or `PretrainConfig`, which the command reads; None without one.

    Raises:
        VitmedError: as the command itself would raise it, seconds later.
    """
    if "resume" in options:
        if not Path(options["resume"]).exists():
            fix = "name the run folder of an interrupted run"
            raise CheckpointError(f"{options['resume']}: no such run folder", fix)
    elif kind is not None:
        given = {"data.root": options.get("data")}
        known = flags_of(kind)
        given |= read_overrides({flag: options[flag] for flag in known if flag in options}, known, "vitmed")
        data_folder(load_config(options.get("config"), given, options.get("sets", ()), kind).data.root)
    elif "data" in options:
        data_folder(options["data"])
    checkpoint = Path(options.get("checkpoint", "."))
    if not checkpoint.exists() and checkpoint.suffix == ".csv":
        raise DataError(f"{checkpoint}: no such file", "name a predictions.csv")
    if not checkpoint.exists():
        raise CheckpointError(f"{checkpoint}: no such file", "name the best.pt of a run, or its folder")
    for result in options.get("results", ()):
        if not Path(result).exists():
            raise DataError(
                f"{result}: no such file or folder", "name a predictions.csv, the folder of a report, or a run"
            )
    if "images" in options and not isinstance(options["images"], int):  # of stress it is a number
        if "checkpoint" not in options:
            newest_run(options.get("runs", "runs"))
        check_images(options["images"])


def data_folder(root: str | Path | None) -> Path:
    """The folder, checked. Raises DataError if it does not exist."""
    if root is None:
        raise UsageError("no data folder is named", "vitmed train DIR, or data.root in the config")
    folder = Path(root)
    refuse_archive(folder)
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {what}", "name a folder that contains one folder of images per class")
    return folder


def refuse_archive(path: Path) -> None:
    """Raise DataError if a path is, or lies in, a .npz or .tar file, with the command that unpacks it."""
    for archive in (path, *path.parents) if set(ARCHIVES) & {part[-4:].lower() for part in path.parts} else ():
        if archive.suffix.lower() in ARCHIVES and archive.is_file():
            problem = f"{archive}: vitmed reads no images from archives; vitmed {READER} does"
            raise DataError(problem, f"vitmed data import {archive} FOLDER")


def check_images(names: Sequence[str]) -> None:
    """Raise DataError if not one of these files, folders and patterns exists; one of many becomes a row of its own."""
    paths = [Path(name) for name in names]
    for path in paths:
        refuse_archive(path)
    if not any(path.exists() or path.is_symlink() or glob.has_magic(str(path)) for path in paths):
        missing = [f"{name}: no such file or folder" for name in names]
        raise DataError(lines_of(missing), "name images, folders or patterns")


def newest_run(runs: str | Path) -> RunFolder:
    """The newest run with a best.pt. Raises CheckpointError without any."""
    newest = RunFolder.newest(runs)
    if newest is None:
        fix = "vitmed train DIR first, or name a place: --runs FOLDER, --checkpoint FILE"
        raise CheckpointError(f"{runs}: no run with a best.pt is there", fix)
    return newest
