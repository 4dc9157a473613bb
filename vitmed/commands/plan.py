"""`vitmed plan`: the settings that `train` would use, why, and how long training would take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from vitmed.core.config import FLAGS, Config, read_overrides
from vitmed.core.files import write_text
from vitmed.core.load_config import load_config
from vitmed.core.messages import bar, say
from vitmed.core.options import FIRST, ConfigFile, Data, Force, Offline, Option, Sets, Settings
from vitmed.core.places import NewFile, data_folder
from vitmed.models.hardware import describe as describe_device
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
    output: Annotated[
        Path | str, Option("File to write; default plan.yaml.", "--output -o", panel=FIRST)
    ] = "plan.yaml",
    force: Force = False,
    offline: Offline = False,
    **flags: Settings,
) -> PlanResult:
    """Plan the settings of `train` for a folder, with reasons and duration, and write them as a config to edit.

    Nothing is trained: plan counts the training images and times a few steps on random numbers.

    Args:
        data, config, sets, flags: as in `train`. The plan keeps the settings they make.
        output: the YAML file; where it is there already, the next is plan-2.yaml.
        force: replace the file instead; never an input, a file of a run or one in the data folder.
        offline: open no connection, not even for public weights.

    Raises:
        VitmedError: as in `train`.
    """
    overrides = {"data.root": data, **read_overrides(flags, FLAGS, "plan")}
    settings = load_config(config, overrides, sets)
    root, read = data_folder(settings.data.root), [] if config is None else [config]
    file = NewFile.numbered(output, force, root, read).path
    made = make_plan(settings, True, offline)
    say(f"plan for {made.inputs}:")
    for line in describe(made.reasons):
        say(f"  {line}")
    minutes = 0.0
    if not settings.train.freeze:
        with bar("timing steps", unit="steps"):
            seconds, text = time_needed(made)
        minutes = seconds / 60
        say(f"{text}; timed on {describe_device(made.device)}")
    write_text(file, plan_yaml(made, file.parent))
    say(f"plan written to {file}; edit it if you like, then: vitmed train --config {file}")
    return PlanResult(made.config, made.reasons, made.inputs, minutes, file)
