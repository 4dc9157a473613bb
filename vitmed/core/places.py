"""Where a command reads and writes: checked before any work, and before torch is loaded, which takes seconds.

An existing file is replaced only with --force, and never one that the command reads, one of a run, a checkpoint, or
anything in a data folder. Devices and pipes are written to.
"""

import contextlib
import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vitmed.core.base_models import flags_of
from vitmed.core.config import RunConfig
from vitmed.core.errors import CheckpointError, DataError, UsageError
from vitmed.core.files import free_name, is_empty, is_stream, probe
from vitmed.core.load_config import load_config, read_config, read_overrides
from vitmed.core.run_folder import RunFolder, address_of, cache_folder, is_elsewhere, is_remote, place_of
from vitmed.core.text import lines_of, quoted
from vitmed.core.upgrade import READER

RUNS = "runs"  # the default of --output
ARCHIVES = (".npz", ".tar")  # which hold images, and are imported before use
CHECKPOINTS = {".pt", ".pth", ".ckpt", ".safetensors"}
LONGEST = 200  # bytes of a name; the system allows 255, and numbers and suffixes are added


def new_file(
    path: str | Path,
    *,
    force: bool = False,  # replace an existing file
    data: Iterable[str | Path] = (),  # the data folders of the command
    inputs: Iterable[str | Path] = (),  # files that it reads
    png: bool = False,  # whether it is a picture
) -> Path:
    """Check that a command may write this very file, a device or a pipe; `whole_file` writes it. Raises UsageError."""
    path = Path(path)
    if is_stream(path):
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise UsageError(f"{path}: is a link to itself", "name another file")
    if not target.parent.is_dir():
        raise UsageError(f"{path}: its folder is missing", "make it first")
    if target.is_dir():
        raise UsageError(f"{path}: cannot be written (it is a folder)", "name a file")
    if png and path.suffix.lower() != ".png":
        raise UsageError(f"{path}: the picture is a PNG", f"name it {path.with_suffix('.png')}")
    for folder in data:
        refuse_inside(folder, path)
    why = "is a file of a run" if RunFolder.owns(target) else ""
    if not why and target.exists():  # what may not even be replaced with --force
        if any(os.path.exists(file) and os.path.samefile(target, file) for file in inputs):  # noqa: PTH110, PTH121
            why = "is read by this command"
        else:
            with target.open("rb") as stream:
                head = stream.read(256)
            if target.suffix.lower() in CHECKPOINTS or (head[:2] == b"PK" and b"data.pkl" in head):
                why = "is a checkpoint"
    if why:
        raise UsageError(f"{path}: {why}, which vitmed never replaces", "name another file")
    if target.exists() and not force:
        raise UsageError(f"{path}: is there already", "name another file, or --force to replace it")
    probe(target.parent, path)
    return path


def new_folder(folder: str | Path, data: Iterable[str | Path] = (), filled: bool = False) -> None:
    """Check that a folder is new or empty, or may be `filled`, and in no data folder; `whole_folder` writes it. Raises
    UsageError."""
    for root in data:
        refuse_inside(root, folder)
    folder = Path(folder)
    if Path(os.path.realpath(folder)).is_symlink():
        raise UsageError(f"{folder}: is a link to itself", "name a new folder")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: cannot be written (it is a file, expected a folder)", "name a new folder")
    if not filled and folder.is_dir() and not is_empty(folder):
        raise UsageError(f"{folder}: exists already and is not empty", "name a new folder")


def output_folder(output: str | Path | None, default: Path, *data: Path) -> Path:
    """The new or empty folder `output` or, where it is None, the default, with -2, -3, ... where that is not empty.
    Raises UsageError: it is not empty, lies in one of the folders `data`, or cannot be written."""
    folder = Path(output) if output is not None else default if is_empty(default) else free_name(default)
    new_folder(folder, data)
    probe(folder.parent)
    return folder


def refuse_inside(data: str | Path, path: str | Path) -> None:
    """Raise UsageError if an output is a data folder or lies in one, where a picture would become data."""
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(data)):
        problem = f"{path}: lies in the data folder {data}, where vitmed writes nothing"
        raise UsageError(problem, "choose a place outside it")


def check_run_place(config: RunConfig, output: str | Path, name: str | None) -> None:
    """Raise UsageError, before any work, if the run folder has no plain name, or its place is a run or of no use."""
    if name is not None:
        size = len(name.encode("utf-8", "surrogateescape"))
        problems = {
            "is empty": not name.strip(),
            "holds a / or \\, expected a name without folders": bool(re.search(r"[/\\]", name)),
            "begins with a dot": name[:1] == ".",
            "holds control characters, or characters that are not UTF-8": not name.isprintable(),
            f"is {size} bytes long, expected at most {LONGEST}": size > LONGEST,
        }
        if problem := next((problem for problem, wrong in problems.items() if wrong), None):
            fix = "a plain name, such as first; the folder of the run folders is another setting"
            raise UsageError(f"--name {name!r} {problem}", fix)
    new_folder(output, [data_folder(config.data.root)], filled=True)
    parent = Path(output)
    if RunFolder(parent).config.exists() or RunFolder(parent).last.exists():
        fix = f"--output {quoted(parent.parent)}, or vitmed train --resume {quoted(parent)}"
        raise UsageError(f"{parent}: holds a run, expected a folder for runs", fix)


def data_of_runs(places: Iterable[Path]) -> list[Path]:
    """The data folders of the runs that these files and folders belong to, where a config.yaml names them."""
    roots = []
    for place in places:
        for folder in (place, place / "fold-1", *list(place.absolute().parents)[:2]):
            if (config := RunFolder(folder).config).is_file():
                with contextlib.suppress(UsageError, KeyError, TypeError):  # not the configuration of a run
                    roots.append(read_config(config)["data"]["root"])
    return [Path(root) for root in roots if isinstance(root, str)]


def check_inputs(options: dict[str, Any], kind: Any) -> None:
    """Check, before torch is loaded, that what the given options of a command name exists and their values are allowed.

    `kind` is `Config` or `PretrainConfig`, which the command reads; None without one. Raises VitmedError as the command
    itself would, seconds later.
    """
    if "resume" in options:
        if not Path(options["resume"]).exists():
            raise CheckpointError(f"{options['resume']}: no such run folder", "name the folder of an interrupted run")
    elif kind is not None:
        given = {"data.root": options.get("data")}
        known = flags_of(kind)
        given |= read_overrides({flag: options[flag] for flag in known if flag in options}, known, "vitmed")
        data_folder(load_config(options.get("config"), given, options.get("sets", ()), kind).data.root)
    elif "data" in options:
        data_folder(options["data"])
    checkpoint = Path(options.get("checkpoint", "."))
    if not checkpoint.exists():
        if checkpoint.suffix == ".csv":
            raise DataError(f"{checkpoint}: no such file", "name a predictions.csv")
        raise CheckpointError(f"{checkpoint}: no such file", "name the best.pt of a run, or its folder")
    for result in options.get("results", ()):
        if not Path(result).exists():
            fix = "name a predictions.csv, the folder of a report, or a run"
            raise DataError(f"{result}: no such file or folder", fix)
    if "images" in options and not isinstance(options["images"], int):  # of stress it is a number
        if "checkpoint" not in options:
            RunFolder.newest(options.get("runs", "runs"))
        check_images(options["images"])


def local_path(name: str | Path) -> Path:
    """The path of a file or folder; for an s3:// or gs:// address, or an earlier copy, the path of an up-to-date copy.

    Raises as `remote.copied`.
    """
    place = place_of(name) if is_remote(name) else Path(name)
    if (address := address_of(place)) is None:
        return place
    from vitmed.core.remote import copied  # many files need no network

    return copied(address, place)


def data_folder(root: str | Path | None) -> Path:
    """The folder, checked; of an s3:// or gs:// address its copy. Raises DataError if it does not exist."""
    if root is None:
        raise UsageError("no data folder is named", "vitmed train DIR, or data.root in the config")
    folder = local_path(root)
    refuse_archive(folder)
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "no such folder"
        fix = "name a folder that holds a folder of images per class, or put it back"
        if is_elsewhere(folder):
            fix = "name it in the command, also beside --resume; of a study, resume where it began, or copy places/ of "
            fix += f"the cache folder there into that here, {cache_folder()}"
        raise DataError(f"{folder}: {what}", fix)
    return folder


def refuse_archive(path: Path) -> None:
    """Raise DataError if a path is, or lies in, a .npz or .tar file, with the command that unpacks it, or is an
    address of another kind than `local_path` reads."""
    if (address := re.match("([a-z][a-z0-9+.-]+):/+(.*)", f"{path}")) and not path.exists():
        scheme, rest = address.groups()  # a `Path` has one slash
        problem = f"{scheme}://{rest}: vitmed reads no {scheme}:// addresses"
        raise DataError(problem, "mount it as a folder, or copy the files")
    for archive in (path, *path.parents) if set(ARCHIVES) & {part[-4:].lower() for part in path.parts} else ():
        if archive.suffix.lower() in ARCHIVES and archive.is_file():
            problem = f"{archive}: vitmed reads no images from archives; vitmed {READER} does"
            raise DataError(problem, f"vitmed data import {archive} FOLDER")


def check_images(names: Sequence[str]) -> None:
    """Raise DataError if not one of these files, folders and patterns exists; one of many becomes a row of its own."""
    paths = [Path(name) for name in names if not is_remote(name)]
    for path in paths:
        refuse_archive(path)
    if len(paths) == len(names) and not any(p.exists() or p.is_symlink() or glob.has_magic(str(p)) for p in paths):
        missing = [f"{name}: no such file or folder" for name in names]
        raise DataError(lines_of(missing), "name images, folders or patterns")


def elsewhere(output: Path | str, folder: Path | str) -> bool:
    """Whether --output names another place than that of this run folder, which is to be resumed."""
    return str(output) != RUNS and Path(output).resolve() != Path(folder).resolve().parent
