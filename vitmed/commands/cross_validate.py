"""`vitmed cross-validate`: a run for each fold, and one evaluation of all their tests."""

from typing import Any

from vitmed.commands.train import train
from vitmed.core import options, process
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.load_config import load_config
from vitmed.core.run_folder import RunFolder
from vitmed.studies.one_run import TrainResult

FOLDS = 5  # of `cross_validate`, where none are named


def cross_validate(
    data: options.Data = None,
    *,
    config: options.ConfigFile = None,
    sets: options.Sets = (),
    output: options.RunsFolder = "runs",
    name: options.RunName = None,
    resume: options.Resume = None,
    parallel: options.Parallel = None,
    on: options.On = None,
    strict: options.Strict = False,
    fail_under: options.Gates = (),
    offline: options.Offline = False,
    **flags: options.Settings,
) -> TrainResult:
    """Divide the images into folds, by patient where known; train a model for each, and evaluate it on its fold.

    The same as `train` with `folds`, five by default; `resume` takes the folder of the folds. Raises VitmedError.
    """
    if process.is_rank():
        raise UsageError("cross-validate: not as one of the processes of torchrun", "vitmed train --folds N --fold I")
    if resume is not None and not RunFolder(resume).folds.is_file():
        raise CheckpointError(f"{resume}: holds no folds", f"vitmed train --resume {resume}")
    named = flags.get("folds") is not None or flags.get("sites") is not None
    if resume is None and not named and not load_config(config, {}, sets).data.divided:
        flags["folds"] = FOLDS
    given: dict[str, Any] = {"config": config, "sets": sets, "output": output, "name": name, "resume": resume, **flags}
    given |= {"parallel": parallel, "on": on, "strict": strict}
    return train(data, fail_under=fail_under, offline=offline, **given)
