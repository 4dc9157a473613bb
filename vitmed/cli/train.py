"""`vitmed train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitmed.cli.flags import command
from vitmed.cli.options import AsJson, ConfigFile, Data, Fail, Name, Offline, Output, Resume, Sets
from vitmed.cli.terminal import evaluated, train_json, ui


def train(
    data: Data = None,
    config: ConfigFile = None,
    output: Output = Path("runs"),
    name: Name = None,
    resume: Resume = None,
    sets: Sets = None,
    fail_under: Fail = None,
    offline: Offline = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Train on a folder of labelled images, then evaluate the best checkpoint on the test split."""
    from vitmed.commands.train import train as run

    options: dict[str, Any] = {"config": config, "sets": sets or (), "output": output, "name": name, "resume": resume}
    options |= {"offline": offline, "fail_under": fail_under or ()}
    evaluated(lambda: run(data, ui=ui(), **options, **flags), as_json, train_json)


app = command(train)
