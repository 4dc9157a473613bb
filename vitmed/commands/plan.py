"""`vitmed plan`: the settings that `train` would use, why, and how long training would take."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from vitmed.checks.data_check import check_folder
from vitmed.core import downloads, files, places
from vitmed.core.config import FLAGS, Config
from vitmed.core.errors import TimeTooShortError
from vitmed.core.load_config import load_config, read_overrides, with_values
from vitmed.core.messages import bar, say, warn
from vitmed.core.options import ConfigFile, Data, Force, MainOption, Offline, Sets, Settings
from vitmed.core.text import quoted
from vitmed.data.patients import report_patients
from vitmed.models.hardware import describe as describe_device
from vitmed.studies.folds import SharedTime
from vitmed.training.plan.make_plan import make_plan, plan_yaml, time_needed
from vitmed.training.plan.rules import PlanInputs, PlannedSetting, describe


@dataclass(frozen=True)
class PlanResult:
    """The planned configuration, its reasons, the estimated minutes, and the file with the plan."""

    config: Config
    decisions: list[PlannedSetting]
    situation: PlanInputs
    minutes: float
    file: Path


def plan(
    data: Data = None,
    *,
    config: ConfigFile = None,
    sets: Sets = (),
    output: Annotated[Path | str, MainOption("File to write; default plan.yaml.", "--output -o")] = "plan.yaml",
    force: Force = False,
    offline: Offline = False,
    **flags: Settings,
) -> PlanResult:
    """Plan the settings of `train` for a folder, with reasons and duration, and write them as a config to edit.

    Nothing is trained: plan counts the training images and times a few steps on random numbers. The plan keeps the
    settings that are given, as in `train`. Where the file is there already, the next is plan-2.yaml; `force` replaces
    it, but never an input, a file of a run or one in the data folder. Raises VitmedError.
    """
    settings = load_config(config, {"data.root": data, **read_overrides(flags, FLAGS, "plan")}, sets)
    root, read = places.data_folder(settings.data.root), [] if config is None or not force else [config]
    file = places.new_file(output, force=True, data=[root], inputs=read)
    file = file if force or files.is_stream(file) else files.free_name(file, file.suffix)
    shared, limit = SharedTime.of(settings), settings.train.time
    try:
        if shared is not None:
            settings = with_values(settings, {"train.time": shared.each()})
        with downloads.unconnected(offline):
            check_folder(settings.data, settings.evaluate.ordinal)  # which `train` would refuse
            made = make_plan(settings, True)
    except TimeTooShortError as error:
        raise (shared.of_all(error) if shared else error) from None
    report_patients(made.splits)
    say(f"plan for {made.inputs}:")
    for line in describe(made.reasons):
        say(f"  {line}")
    minutes = 0.0
    if not settings.train.freeze:
        with bar("timing steps", unit="steps"):
            seconds, text, short = time_needed(made)
        minutes = seconds / 60
        say(f"{text}{', for each fold' * settings.data.divided}; timed on {describe_device(made.device)}")
        if short:
            warn(short)
    made = replace(made, config=with_values(made.config, {"train.time": limit}))  # of all folds, as `train` takes it
    files.write_text(file, plan_yaml(made, file.parent))
    say(f"plan written to {file}; edit it if you like, then: vitmed train --config {quoted(file)}")
    return PlanResult(made.config, made.reasons, made.inputs, minutes, file)
