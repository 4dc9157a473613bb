"""`vitmed runs`: the runs of a folder as a table, from their small files alone: no checkpoint is opened."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, ConfigDict, Field, ValidationError

from vitmed.core.base_models import Frozen
from vitmed.core.config import Config
from vitmed.core.errors import UsageError, VitmedError, unknown_key
from vitmed.core.files import read_json_lines, write_text
from vitmed.core.load_config import build_config, read_config
from vitmed.core.outputs import check_output
from vitmed.core.pretrain_config import PretrainConfig
from vitmed.core.run_folder import NUMBERS, RunFolder
from vitmed.core.run_lock import is_running, was_killed
from vitmed.core.targets import CLASSES, Target
from vitmed.core.text import counted, first_line
from vitmed.core.ui import Ui
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.estimates import Estimate
from vitmed.models.sizes import model_label
from vitmed.report.run_list import COLUMNS, Curve, ListedRun, RunKind, RunMetric, State, in_order, summary_of

DEPTH = 3  # folders below the one that is listed: study/cross-validation/fold-1
KILLED = "its process was killed, or the machine stopped"
UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, VitmedError)  # of a file that is not as written
Records = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class RunList:
    """The runs of a folder in the order that was asked for; those inside a run follow it."""

    folder: Path
    runs: list[ListedRun]

    @property
    def summary(self) -> str:
        """`3 runs: 2 finished, 1 running`."""
        return summary_of(self.runs)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, without the place of the folder."""
        return {"folder": self.folder.resolve().name, "runs": [run.to_dict() for run in self.runs]}


def runs(
    folder: str | Path = "runs", *, sort: str = "started", html: str | Path | None = None, force: bool = False,
    ui: Ui | None = None,
) -> RunList:  # fmt: skip
    """List the runs of a folder, also those inside other folders and the folds of a cross-validation.

    Args:
        folder: of the runs, or a run.
        sort: a column: run, kind, data, model, metric, epochs, time, state or started.
        html: a page to write, with the curve of each run.
        force: replace an existing page.

    Raises:
        UsageError: no such folder or column, or a page that may not be written.
    """
    ui, top = ui or Ui(), Path(folder)
    if sort not in COLUMNS:
        raise unknown_key("column", sort, COLUMNS)
    if not top.is_dir():
        found = "is a file, expected a folder of runs" if top.exists() else "no such folder"
        raise UsageError(f"{top}: {found}", "name the folder of the runs, as in vitmed runs DIR")
    if html is not None:
        check_output(html, force=force)
    rows: dict[str, ListedRun] = {}
    with ui.bar("reading", unit="runs") as advance:
        for path, parent in _folders(top, DEPTH):
            name = path.resolve().name if path == top else path.relative_to(top).as_posix()
            rows[name] = _read(RunFolder(path), name, parent)
            advance(len(rows), len(rows))
    found = RunList(top, in_order(_with_folds(rows), sort))
    if html is not None:
        from vitmed.report.runs_page import runs_page

        write_text(html, runs_page(top.resolve().name, found.runs, sort))
        ui.say(f"page: {html}")
    return found


def _folders(top: Path, depth: int, parent: str | None = None, root: Path | None = None) -> Iterator[tuple[Path, Any]]:
    """The run folders in a folder, each with the name of the run that it lies in; a folder that is closed is skipped."""
    root, inner = root or top, list[Path]()
    run, names = RunFolder(top), set[str]()
    with contextlib.suppress(OSError), os.scandir(top) as entries:
        for entry in entries:
            names.add(entry.name)
            if entry.name[:1] != "." and entry.is_dir():
                inner.append(Path(entry.path))
    marks = (run.config, run.folds, run.metrics, run.best, run.last, run.encoder, run.baseline, run.ranking)
    if any(file.name in names for file in marks):
        yield top, parent
        parent = top.resolve().name if top == root else top.relative_to(root).as_posix()
    if depth:
        for path in sorted(inner):
            yield from _folders(path, depth - 1, parent, root)


def _read(run: RunFolder, name: str, parent: str | None) -> ListedRun:
    """One row. Nothing in a run folder, however damaged, raises."""
    row: dict[str, Any] = {"run": name, "parent": parent, "kind": "not known"}
    problem, state, killed = "", None, was_killed(run)
    try:
        for part in (_folds, _training):
            row |= part(run)
        state = row.pop("state")
    except UNREADABLE as error:
        state, problem = "damaged", _without_folder(first_line(error), run)
    if is_running(run):
        state, problem = "running", ""
    elif state in ("interrupted", "incomplete", "not evaluated") and killed:
        problem = KILLED
    with contextlib.suppress(*UNREADABLE):
        started = json.loads(run.environment.read_text(encoding="utf-8"))["started"]
        datetime.fromisoformat(started)
        row["started"] = started
    return ListedRun(**row, state=state, problem=problem)


def _without_folder(text: str, run: RunFolder) -> str:
    """A message without the place of the run on this machine."""
    return text.replace(f"{run.path}{os.sep}", "").replace(f"{run.path.resolve()}{os.sep}", "")
