"""`vitmed cross-validate`: every image evaluated by a model that never saw it, nor its patient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitmed.commands.folds import join_folds
from vitmed.commands.train import TrainResult, train
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.run_folder import RunFolder
from vitmed.core.ui import Ui

USUAL = 5  # folds


def cross_validate(
    data: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    join: str | Path | None = None,
    parallel: int = 1,
    ui: Ui | None = None,
    **options: Any,
) -> TrainResult | None:
    """Divide the images into folds, by patient where known, train a model for each, and evaluate it on its fold.

    The same as `train` with `folds`.

    Args:
        data: as in `train`, and so are `options`: folds=5 (the default), repeats=3, sites="hospital", hold_out=0.2,
            config, sets, output, name, offline, fail_under and the flags of `train`.
        resume: a folder of folds to continue.
        join: a folder of folds that another process trains, perhaps on another machine with the same file system: train
            those that no process trains, and return None when all are finished.
        parallel: how many processes train folds at the same time.

    Raises:
        VitmedError: as `train`.
    """
    ui = ui or Ui()
    if join is not None:
        if data is not None or resume is not None or options:
            raise UsageError("--join uses the configuration of the folds", "give --join alone")
        folder = RunFolder(join)
        if not folder.folds.is_file():
            raise CheckpointError(f"{join}: holds no folds", "name the folder that cross-validate makes")
        join_folds(train, folder, ui)
        return None
    if resume is not None:
        if not RunFolder(resume).folds.is_file():
            raise CheckpointError(f"{resume}: holds no folds", f"vitmed train --resume {resume}")
        return train(data, resume=resume, parallel=parallel, ui=ui, **options)
    if options.get("folds") is None and options.get("sites") is None and not _are_divided(options):
        options["folds"] = USUAL
    return train(data, parallel=parallel, ui=ui, **options)


def _are_divided(options: dict[str, Any]) -> bool:
    """Whether the configuration names folds or sites."""
    from vitmed.core.load_config import load_config

    return load_config(options.get("config"), {}, options.get("sets", ())).data.divided
