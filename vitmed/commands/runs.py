"""`vitmed runs`: the runs of a folder, from their small files alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from vitmed.core.errors import UsageError, unknown_key
from vitmed.core.options import Argument, Option
from vitmed.core.text import counted
from vitmed.studies.run_list import ORDERS, STATES, ListedRun, list_runs


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
    folder: Annotated[Path | str, Argument("Folder of the runs; default runs.", "DIR")] = "runs",
    *,
    sort: Annotated[
        str, Option("metric, run, or started, the newest first; default started.", metavar="COLUMN")
    ] = "started",
) -> RunList:
    """List the runs of a folder, or one run, also those inside other folders and the folds of a cross-validation.

    Raises:
        UsageError: no such folder or column.
    """
    top = Path(folder)
    if sort not in ORDERS:
        raise unknown_key("column", sort, ORDERS)
    if not top.is_dir():
        problem = "is a file, expected a folder of runs" if top.exists() else "no such folder"
        raise UsageError(f"{top}: {problem}", "name the folder of the runs: vitmed runs DIR")
    return RunList(top, list_runs(top, sort))
