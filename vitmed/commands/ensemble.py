"""`vitmed ensemble`: folds or runs -> one model, which every command takes."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from vitmed.core.errors import UsageError
from vitmed.core.options import FIRST, Argument, Option
from vitmed.core.places import new_folder
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import listed
from vitmed.studies.folds import EnsembleResult, join, read_candidate


def ensemble(
    runs: Annotated[
        Sequence[Path | str] | Path | str, Argument("Folders of cross-validate, or run folders with the same splits.")
    ],
    *,
    output: Annotated[
        Path | str | None,
        Option("A new folder; default: ensemble in the only folder of folds.", "--output -o", panel=FIRST),
    ] = None,
) -> EnsembleResult:
    """Join folds or runs into one model, with a decision policy of its own.

    Raises:
        UsageError, DataError: runs that do not fit each other. CheckpointError: a run is incomplete or damaged.
    """
    runs = [runs] if isinstance(runs, Path | str) else list(runs)
    if not runs:
        raise UsageError("no run is named", "vitmed ensemble RUN RUN --output FOLDER")
    if len({Path(run).resolve() for run in runs}) < len(runs):
        raise UsageError("a run is named twice", "name each run once")
    candidates = [read_candidate(RunFolder(run)) for run in runs]
    names = listed([str(one.folder.path) for one in candidates])
    models = {frozenset(member.weights_hash for member in one.members) for one in candidates}
    if len(models) < len(candidates):  # two folds of few patients may train on the same images, and are alike
        raise UsageError(f"{names}: some hold the same model", "name each once")
    if len({one.folds for one in candidates}) > 1:
        raise UsageError(f"{names}: some are folds and some are single runs", "join folds alone, or runs alone")
    if len(candidates) == 1 and not candidates[0].folds:
        raise UsageError(f"{candidates[0].folder.path}: one run is no ensemble", "name several runs, or folds")
    if output is None and len(candidates) > 1:
        raise UsageError("an ensemble of several runs needs a folder", "--output FOLDER")
    place = RunFolder(candidates[0].folder.joined if output is None else output)
    if output is None and place.path.is_dir() and not place.ensemble.is_file():
        shutil.rmtree(place.path)  # an earlier process ended before it was complete
    new_folder(place.path, [candidates[0].members[0].splits.root])
    return join(candidates, place, output is not None)
