"""`vitmed auto`: check the data, rank the weights, train one network or folds with the best, and test once."""

from vitmed.core import downloads, options
from vitmed.core.errors import Interrupted, excluded
from vitmed.core.messages import listener
from vitmed.core.places import elsewhere
from vitmed.core.run_folder import RunFolder, run_lock
from vitmed.core.text import quoted
from vitmed.studies.auto import Auto, AutoRun, begin_auto
from vitmed.studies.cluster import opened
from vitmed.training.plan.time import Clock


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
    clock, listener().began = Clock(listener().began), None  # the trainings have their own part of the time
    given = (data, config, name) != (None,) * 3 or sets or flags
    if resume is not None and (given or elsewhere(output, resume)):
        raise excluded("resume of auto")
    arguments = {"data": data, "config": config, "sets": sets, "offline": offline, **flags}
    with downloads.unconnected(offline), opened(on, parallel, strict) as places:
        folder = RunFolder(resume) if resume is not None else begin_auto(arguments, output, name)
        ongoing = Auto(folder, places, clock)
        with run_lock(folder):
            try:
                return ongoing.finish()
            except (Interrupted, KeyboardInterrupt) as error:
                problem = getattr(error, "problem", "stopped at once")
                raise Interrupted(problem, f"vitmed auto --resume {quoted(folder.path)}") from None
            finally:
                ongoing.save()
