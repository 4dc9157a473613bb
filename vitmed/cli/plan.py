"""`vitmed plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.flags import command
from vitmed.cli.options import FIRST, AsJson, ConfigFile, Data, Offline, Sets
from vitmed.cli.terminal import print_json, ui


def plan(
    data: Data = None,
    config: ConfigFile = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.", **FIRST)] = Path("plan.yaml"),
    sets: Sets = None,
    offline: Offline = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Show the settings that train would use for a folder, why, and how long it takes; write them as a config to edit.

    plan takes the flags of train.
    """
    from vitmed.commands.plan import plan as run

    found = run(data, config=config, sets=sets or (), output=output, offline=offline, ui=ui(), **flags)
    if as_json:
        decided = [decision._asdict() for decision in found.decisions]
        print_json({"file": str(found.file), "minutes": found.minutes, "plan": decided})


app = command(plan)
