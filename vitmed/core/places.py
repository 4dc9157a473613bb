"""Where a command may write; checked before any work.

An existing file is replaced only with --force, and never one that the command reads, one of a run, a checkpoint, or
anything in a data folder. Devices and pipes are written to.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitmed.core.errors import UsageError
from vitmed.core.files import free_name, is_stream
from vitmed.core.load_config import read_config
from vitmed.core.run_folder import RunFolder

CHECKPOINTS = {".pt", ".pth", ".ckpt", ".safetensors"}
LONGEST = 200  # bytes of a name; the system allows 255, and numbers and suffixes are added


def check_output(
    path: str | Path,
    *,
    force: bool = False,
    data: Iterable[str | Path] = (),
    inputs: Iterable[str | Path] = (),
    png: bool = False,
) -> None:
    """Check that a command may write a file. `whole_file` writes it.

    Args:
        path: a file, a device or a pipe; a link stands for its target.
        force: replace an existing file.
        data: the data folders of the command; nothing is written into them.
        inputs: files that the command reads.
        png: whether it is a picture.

    Raises:
        UsageError: the file may not or cannot be written.
    """
    path = Path(path)
    if is_stream(path):
        return
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
    if why := _precious(target, inputs):
        raise UsageError(f"{path}: {why}, which vitmed never replaces", "name another file")
    if target.exists() and not force:
        raise UsageError(f"{path}: is there already", "name another file, or --force to replace it")
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})", "choose another place") from None


def numbered_output(path: str | Path, force: bool, data: Path, inputs: Sequence[str | Path] = ()) -> Path:
    """The file that a command may write: `path`, or without `force` and where it is there, the same with -2, -3, ...

    Args:
        path, force, inputs: as in `check_output`; a file of a run gets no number either.
        data: the data folder of the command.

    Raises:
        UsageError: as in `check_output`.
    """
    path = Path(path)
    check_output(path, force=True, data=[data], inputs=inputs if force else ())
    return path if force or is_stream(path) else free_name(path, path.suffix)


def _precious(target: Path, inputs: Iterable[str | Path]) -> str | None:
    """Why a file may not even be replaced with --force; None if it may."""
    if RunFolder.owns(target):
        return "is a file of a run"
    if not target.exists():
        return None
    if any(os.path.exists(file) and os.path.samefile(target, file) for file in inputs):  # noqa: PTH110, PTH121
        return "is read by this command"
    with target.open("rb") as stream:
        head = stream.read(256)
    if target.suffix.lower() in CHECKPOINTS or (head[:2] == b"PK" and b"data.pkl" in head):
        return "is a checkpoint"
    return None


def refuse_inside(data: str | Path, path: str | Path) -> None:
    """Raise UsageError if an output is a data folder or lies in one, where a picture would become data."""
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(data)):
        raise UsageError(
            f"{path}: lies in the data folder {data}, where vitmed writes nothing", "choose a place outside it"
        )


def refuse_file(folder: str | Path) -> None:
    """Raise UsageError if something other than a folder is where a folder is to be made."""
    if Path(os.path.realpath(folder)).is_symlink():
        raise UsageError(f"{folder}: is a link to itself", "name a new folder")
    if Path(folder).exists() and not Path(folder).is_dir():
        raise UsageError(f"{folder}: cannot be written (it is a file, expected a folder)", "name a new folder")


def check_folder(folder: str | Path, data: Iterable[str | Path] = ()) -> None:
    """Check that a command may write a new folder, which `whole_folder` does.

    Args:
        data: the data folders of the command; nothing is written into them.

    Raises:
        UsageError: it lies in one of them, or something is there.
    """
    refuse_file(folder)
    for root in data:
        refuse_inside(root, folder)
    if Path(folder).is_dir() and any(Path(folder).iterdir()):
        raise UsageError(f"{folder}: exists already and is not empty", "name a new folder")


def check_name(name: str) -> None:
    """Raise UsageError if a name cannot be that of a new folder in the output folder."""
    size = len(name.encode("utf-8", "surrogateescape"))
    problems = {
        "is empty": not name.strip(),
        "holds a / or \\, expected a name without folders": bool(re.search(r"[/\\]", name)),
        "begins with a dot": name[:1] == ".",
        "holds control characters, or characters that are not UTF-8": not name.isprintable(),
        f"is {size} bytes long, expected at most {LONGEST}": size > LONGEST,
    }
    for problem, wrong in problems.items():
        if wrong:
            raise UsageError(
                f"--name {name!r} {problem}",
                "a plain name, such as first; the folder of the run folders is another setting",
            )


def data_of_runs(places: Iterable[Path]) -> list[Path]:
    """The data folders of the runs that these files and folders belong to, where a config.yaml names them."""
    found = []
    for place in places:
        for folder in (place, place / "fold-1", *list(place.absolute().parents)[:2]):
            config = RunFolder(folder).config
            if config.is_file():
                try:
                    root = read_config(config)["data"]["root"]
                except (UsageError, KeyError, TypeError):  # not the configuration of a run
                    continue
                found += [Path(root)] if isinstance(root, str) else []
    return found
