"""`vitmed cross-validate`: every image evaluated by a model that never saw it, nor its patient."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitmed.commands.train import TrainResult, train
from vitmed.core.errors import CheckpointError
from vitmed.core.load_config import load_config
from vitmed.core.run_folder import RunFolder

USUAL = 5  # folds


def cross_validate(
    data: str | Path | None = None,
    *,
    config: str | Path | None = None,
    sets: Sequence[str] = (),
    output: str | Path = "runs",
    name: str | None = None,
    resume: str | Path | None = None,
    parallel: int = 1,
    fail_under: Sequence[str] = (),
    offline: bool = False,
    **flags: Any,
) -> TrainResult:
    """Divide the images into folds, by patient where known; train a model for each, and evaluate it on its fold.

    The same as `train` with `folds`, five by default.

    Args:
        data: the folder, as in `train`.
        config: a YAML file or the name of a recipe; `sets` ("train.lr=1e-4") and flags override it.
        output: the folder in which to make the folder of the folds.
        name: of that folder; default date, data, model and folds.
        resume: a folder of folds to continue.
        parallel: how many folds to train at the same time, each in a process of its own.
        fail_under: gates on the pooled test metrics, such as "auroc=0.9".
        offline: open no connection.
        **flags: as in `train`; of folds folds=5, repeats=3, sites="hospital", hold_out=0.2.

    Raises:
        VitmedError: as `train`.
    """
    if resume is not None and not RunFolder(resume).folds.is_file():
        raise CheckpointError(f"{resume}: holds no folds", f"vitmed train --resume {resume}")
    named = flags.get("folds") is not None or flags.get("sites") is not None
    if resume is None and not named and not load_config(config, {}, sets).data.divided:
        flags["folds"] = USUAL
    return train(
        data, config=config, sets=sets, output=output, name=name, resume=resume, fail_under=fail_under, offline=offline,
        parallel=parallel, **flags,
    )  # fmt: skip
