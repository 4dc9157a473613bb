"""`vitmed auto`: check the data, rank the weights, train one network or folds with the best, and test once."""

import time

from vitmed.core import options
from vitmed.core.downloads import unconnected
from vitmed.core.errors import CheckpointError, Interrupted, excluded
from vitmed.core.files import json_of, write_json
from vitmed.core.messages import listener
from vitmed.core.places import elsewhere
from vitmed.core.run_folder import RunFolder, run_lock
from vitmed.core.upgrade import READER
from vitmed.studies.auto import AutoRun, begin_auto, finish_auto
from vitmed.studies.cluster import opened


def auto(
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
    offline: options.Offline = False,
    **flags: options.Settings,
) -> AutoRun:
    """Check the data, rank the weights on this machine, and train with the best: folds that are joined to an ensemble,
    or one network where the time is too short for folds.

    Weights are ranked as frozen features, on validation. A fifth of the patients, or the test of the folder, is held
    out of everything and read once, at the end. The arguments are those of `train`; `time` is of the whole, default an
    hour, and `resume` goes on with the time that was left.

    Raises:
        DataError: data that training refuses. VitmedError: as `train`.
    """
    began = listener().began or time.monotonic()
    listener().began = None  # the trainings have their own part of the time
    given = (data, config, name) != (None,) * 3 or sets or flags
    if resume is not None and (given or elsewhere(output, resume)):
        raise excluded("resume of auto")
    sets = [sets] if isinstance(sets, str) else list(sets)
    arguments = {"data": data, "config": config, "sets": sets, "offline": offline, **flags}
    with unconnected(offline), opened(on, parallel, strict) as places:
        folder = RunFolder(resume) if resume is not None else begin_auto(arguments, output, name)
        if folder.path.is_dir() and not folder.auto.exists():
            problem = f"{folder.path}: no auto has begun here, or it ended in the data check"
            raise CheckpointError(problem, "start it again, without --resume")
        try:
            state = dict(json_of(folder.auto.read_text(encoding="utf-8")))
            before, _, _ = float(state["used"]), state["divided"], state["held_out"]
        except (OSError, ValueError, KeyError, TypeError):
            fix = f"vitmed {READER} continues what it began"
            raise CheckpointError(f"{folder.auto}: cannot be read", fix) from None

        def save() -> float:  # so that also a killed one goes on with the time that was left after its last step
            state["used"] = before + time.monotonic() - began
            write_json(folder.auto, state)
            return float(state["used"])

        with run_lock(folder):
            try:
                return finish_auto(folder, state, save, places)
            except (Interrupted, KeyboardInterrupt) as error:
                problem = getattr(error, "problem", "stopped at once")
                raise Interrupted(problem, f"vitmed auto --resume {folder.path}") from None
            finally:
                save()
