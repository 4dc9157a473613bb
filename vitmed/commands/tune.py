"""`vitmed tune`: search over settings on validation, train the winner once more, and test that once."""

import contextlib
from collections.abc import Sequence
from typing import Annotated, Any

from vitmed.core import downloads, options, process
from vitmed.core.config import FLAGS, TUNE_FLAGS, Config
from vitmed.core.errors import UsageError, excluded
from vitmed.core.load_config import load_config, read_overrides
from vitmed.core.messages import listener
from vitmed.core.options import Fields, MainOption
from vitmed.core.places import elsewhere
from vitmed.core.run_folder import RunFolder
from vitmed.metrics.tuning_study import SEED
from vitmed.studies import cluster, study
from vitmed.studies.search import Search, TuneResult, new_study, read_space, resumed_study
from vitmed.training.plan.time import Clock


def tune(
    data: options.Data = None,
    *,
    config: options.ConfigFile = None,
    sets: options.Sets = (),
    trials: Annotated[
        int | None, MainOption("Trials; default 20, or as many as --time allows.", metavar="N", min=1)
    ] = None,
    time: Annotated[
        str | float | None, MainOption("How long the whole command may take, such as 2h.", metavar="TIME")
    ] = None,
    space: Annotated[
        Sequence[str],
        MainOption("A setting to search, instead of the plan's; can be repeated.", metavar="SETTING=LOW..HIGH|A,B"),
    ] = (),
    grid: Annotated[
        Sequence[str],
        MainOption("Train every combination of these values instead; can be repeated.", metavar="SETTING=A,B,C"),
    ] = (),
    seeds: Annotated[
        str | Sequence[int] | None, MainOption("With --grid, seeds of training; default --seed.", metavar="A,B,C")
    ] = None,
    prune: Annotated[bool | None, MainOption("Stop poor trials early, as by default.", "--prune/--no-prune")] = None,
    output: options.RunsFolder = "runs",
    name: options.RunName = None,
    resume: options.Resume = None,
    parallel: options.Parallel = None,
    on: options.On = None,
    strict: options.Strict = False,
    devices: options.Devices = None,
    offline: options.Offline = False,
    **flags: Annotated[Any, Fields(Config, TUNE_FLAGS)],
) -> TuneResult:
    """Search over settings on validation, train the winner once more with another seed, and test that once.

    Optuna suggests the settings (tree-structured Parzen estimator) and stops poor trials early (Hyperband). With a
    grid, every combination is trained to its end with every seed instead, and they are compared over the seeds.

    Args:
        data, config, sets, flags: as in `train`. What they set is not searched.
        trials: how many, also failed ones; time: of the whole command, such as "2h", or in seconds.
        space: such as "lr=1e-5..1e-3" or "model.width=64,128"; default: a range around what the plan chose.
        grid: such as "model.heads=2,4,8"; seeds: such as "0,1,2".
        resume: the folder of a study to continue, perhaps with more `trials` or `time`.

    Raises:
        UsageError: a setting or value that cannot be, or Optuna is not installed. VitmedError: as `train`, where no
            trial could be trained.
    """
    clock, listener().began = Clock(listener().began), None  # the trainings have their own
    if process.is_rank():
        raise UsageError("tune: not as one of the processes of torchrun", "vitmed tune DIR --devices N")
    seconds = load_config(None, {"train.time": time}).train.time
    try:
        import optuna
    except ImportError:
        raise UsageError("vitmed tune needs one more package", "pip install 'vitmed[tune]'") from None
    with contextlib.ExitStack() as stack:
        stack.enter_context(downloads.unconnected(offline))
        places = stack.enter_context(cluster.opened(on, parallel, strict))
        if resume is not None:
            given = (data, config, name, prune, seeds) != (None,) * 5 or space or grid or sets or flags
            if given or elsewhere(output, resume):
                raise excluded("resume of tune")
            folder, asked = resumed_study(RunFolder(resume), trials, seconds)
        else:
            own = {"data.root": data, **read_overrides(dict(flags), FLAGS, "tune")}
            settings = load_config(config, own, sets)
            if (grid or seeds is not None) and (not grid or space or trials is not None or prune):
                raise excluded("grid")
            domains = read_space(space or grid, sets, "--grid" if grid else "--space", own)
            if grid:
                numbers = seeds if isinstance(seeds, str) else ",".join(map(str, seeds or [settings.train.seed]))
                domains = {**read_space([f"{SEED}={numbers}"], sets, "--seeds", own if seeds else None), **domains}
            what = {"space": domains, "trials": trials, "prune": not grid and prune is not False, "time": seconds}
            what["offline"] = offline
            folder, asked = new_study(settings, config is None, devices or 1, what, output, name)
        stack.callback(optuna.logging.set_verbosity, optuna.logging.get_verbosity())
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        places = places._replace(devices=devices or 1, logged=True)
        return TuneResult(folder.path, study.conduct(Search(optuna, folder, asked, clock, places)))
