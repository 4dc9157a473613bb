"""What `train` and `pretrain` share: train until the end or an interruption, and go on from last.pt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vitmed.core.errors import CheckpointError, DataError, UsageError, VitmedError
from vitmed.core.exclusions import excluded
from vitmed.core.load_config import AnyConfig, find_paths
from vitmed.core.run_folder import RunFolder
from vitmed.training.training_run import Run


def folder_to_resume(
    path: Path, name: str | None, changes: Iterable[str], known: Mapping[str, str], allowed: set[str]
) -> RunFolder:
    """The run folder given to --resume, which holds a last.pt.

    Args:
        changes: the settings given beside --resume.
        known: keyword -> setting; allowed: the settings that may be given.
    """
    folder = RunFolder(path.parent if path.suffix == ".pt" else path)
    if name is not None:
        raise excluded("resume and name")
    if folder.best.is_file() and not folder.last.is_file():
        raise UsageError(f"{folder.path}: this run is finished; --freeze leaves nothing to resume", "start a new run")
    if not folder.last.is_file():
        raise CheckpointError(f"{folder.path}: holds no last.pt to resume", "name the run folder of an interrupted run")
    if set(changes) - allowed:
        flags = ", ".join(f"--{flag.replace('_', '-')}" for flag, place in known.items() if place in allowed)
        raise UsageError("--resume uses the run's own configuration", f"add only {flags}")
    return folder


def resumed_settings(config: AnyConfig, folder: RunFolder, root: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    """The stored settings of a run with the data folder and the overrides of today."""
    tree = find_paths(config.model_dump(), folder.path)
    for key, value in {**overrides, "data.root": str(root)}.items():
        section, _, field = key.partition(".")
        tree[section][field] = value
    return tree


def resumable(error: VitmedError, run: Run[Any]) -> VitmedError:
    """The same error with the command that continues the run, where there is a last.pt.

    A run goes on with the images that it began with, or not at all.
    """
    if not run.folder.last.is_file():
        return error
    go_on = run.go_on()
    if isinstance(error, DataError):
        again = "start a new run (--on-bad-file skip leaves unreadable files out)"
        return DataError(error.problem, f"{again}; or restore the files as they were, then continue: {go_on}")
    return type(error)(error.problem, f"{error.fix}; then continue from {run.folder.last.name}: {go_on}")


def train_and_draw(run: Run[Any], draw: Callable[[], None]) -> None:
    """Train until the end, then draw; also draw when training ends early."""
    try:
        run.run_epochs()
    except BaseException:
        with contextlib.suppress(Exception):  # a failing figure must not hide why the training ended
            draw()
        raise
    draw()
