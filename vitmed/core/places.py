"""Where a command may write; checked before any work.

An existing file is replaced only with --force, and never one that the command reads, one of a run, a checkpoint, or
anything in a data folder. Devices and pipes are written to.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitmed.core.config import RunConfig
from vitmed.core.errors import UsageError
from vitmed.core.files import free_name, is_empty, is_stream
from vitmed.core.inputs import data_folder
from vitmed.core.load_config import read_config
from vitmed.core.run_folder import RunFolder

CHECKPOINTS = {".pt", ".pth", ".ckpt", ".safetensors"}
LONGEST = 200  # bytes of a name; the system allows 255, and numbers and suffixes are added


@dataclass(frozen=True)
class NewFile:
    """A file that a command may write, checked before any work; `whole_file` writes it."""

    path: Path

    @classmethod
    def checked(
        cls,
        path: str | Path,
        *,
        force: bool = False,
        data: Iterable[str | Path] = (),
        inputs: Iterable[str | Path] = (),
        png: bool = False,
    ) -> NewFile:
        """Take this very file.

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
            return cls(path)
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
        return cls(path)

    @classmethod
    def numbered(cls, path: str | Path, force: bool, data: Path, inputs: Sequence[str | Path] = ()) -> NewFile:
        """Take the file or, without `force` and where it is there, the same with -2, -3, ...

        Args:
            path, force, inputs: as in `checked`; a file of a run gets no number either.
            data: the data folder of the command.

        Raises:
            UsageError: as in `checked`.
        """
        path = cls.checked(path, force=True, data=[data], inputs=inputs if force else ()).path
        return cls(path if force or is_stream(path) else free_name(path, path.suffix))


@dataclass(frozen=True)
class NewFolder:
    """A new or empty folder that a command may write, checked before any work; `whole_folder` writes it."""

    path: Path

    @classmethod
    def checked(cls, folder: str | Path, data: Iterable[str | Path] = ()) -> NewFolder:
        """Take this very folder.

        Args:
            data: the data folders of the command; nothing is written into them.

        Raises:
            UsageError: it lies in one of them, or something is there.
        """
        refuse_file(folder)
        for root in data:
            refuse_inside(root, folder)
        if Path(folder).is_dir() and not is_empty(Path(folder)):
            raise UsageError(f"{folder}: exists already and is not empty", "name a new folder")
        return cls(Path(folder))

    @classmethod
    def numbered(cls, output: str | Path | None, default: Path, *data: Path) -> NewFolder:
        """Take `output` or, where it is None, the default, with -2, -3, ... where that is not empty.

        Raises:
            UsageError: it is not empty, lies in one of the folders `data`, or cannot be written.
        """
        folder = Path(output) if output is not None else default if is_empty(default) else free_name(default)
        refuse_file(folder)
        if folder.exists() and not is_empty(folder):
            raise UsageError(f"{folder}: is there already and not empty", "name a new folder with --output")
        for place in data:
            refuse_inside(place, folder)
        RunFolder.probe(folder.parent)
        return cls(folder)


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


def check_run_place(config: RunConfig, output: str | Path, name: str | None) -> None:
    """Raise UsageError, before any work, if the run folder has no plain name, or its place cannot be used."""
    if name is not None:
        check_name(name)
    refuse_inside(data_folder(config.data.root), output)
    refuse_file(output)
    RunFolder.refuse_run(output)
