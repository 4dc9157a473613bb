"""`vitmed runs`: the runs of a folder as a table, from their small files alone: no checkpoint is opened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitmed.core.errors import UsageError, unknown_key
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted
from vitmed.report.run_list import COLUMNS, STATES, ListedRun, in_order, with_parts
from vitmed.studies.run_rows import read_run

DEPTH = 3  # folders below the one that is listed: study/cross-validation/fold-1


@dataclass(frozen=True)
class RunList:
    """The runs of a folder in the order that was asked for; those inside a run follow it."""

    folder: Path
    runs: list[ListedRun]

    @property
    def summary(self) -> str:
        """`3 runs: 2 finished, 1 running`."""
        states = [run.state for run in self.runs]
        counts = [f"{states.count(state)} {state}" for state in STATES if state in states]
        return f"{counted(len(states), 'run')}{': ' if counts else ''}{', '.join(counts)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain types, without the place of the folder."""
        return {"folder": self.folder.resolve().name, "runs": [run.to_dict() for run in self.runs]}


def runs(
    folder: str | Path = "runs",
    *,
    sort: str = "started",
) -> RunList:
    """List the runs of a folder, also those inside other folders and the folds of a cross-validation.

    Args:
        folder: of the runs, or a run.
        sort: a column: run, kind, data, model, metric, epochs, time, state or started.

    Raises:
        UsageError: no such folder or column.
    """
    top, rows = Path(folder), list[ListedRun]()
    if sort not in COLUMNS:
        raise unknown_key("column", sort, COLUMNS)
    if not top.is_dir():
        found = "is a file, expected a folder of runs" if top.exists() else "no such folder"
        raise UsageError(f"{top}: {found}", "name the folder of the runs: vitmed runs DIR")
    names: dict[Path | None, str | None] = {None: None}
    for path, parent in _folders(top):
        name = path.resolve().name if path == top else path.relative_to(top).as_posix()
        names[path] = name
        rows.append(read_run(RunFolder(path), name, names[parent]))
    return RunList(top, in_order(with_parts(rows), sort))


def _folders(top: Path) -> Iterator[tuple[Path, Path | None]]:
    """The run folders in a folder, and itself if it is one, each after the run that it lies in.

    An empty folder beside a run counts as one, since a run folder is made before its first file. A folder that may not
    be read is left out.
    """
    waiting: list[tuple[Path, Path | None, int]] = [(top, None, DEPTH)]
    beside, empty = set[Path](), list[tuple[Path, Path | None]]()
    while waiting:
        folder, parent, depth = waiting.pop()
        names, inner = set[str](), list[Path]()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                names.add(entry.name)
                if entry.name[:1] != "." and entry.is_dir():
                    inner.append(folder / entry.name)
        if any(file.name in names for file in RunFolder(folder).marks):
            yield folder, parent
            beside.add(folder.parent)
            parent = folder
        elif not names and folder != top:
            empty.append((folder, parent))
        waiting += [(path, parent, depth - 1) for path in inner] if depth else []
    yield from (found for found in empty if found[0].parent in beside)
