"""`vitmed probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitmed.cli.flags import command
from vitmed.cli.options import AsJson, ConfigFile, Data, Fail, Name, Offline, Output, Sets
from vitmed.cli.terminal import evaluated, train_json, ui


def probe(
    data: Data = None,
    config: ConfigFile = None,
    output: Output = Path("runs"),
    name: Name = None,
    sets: Sets = None,
    fail_under: Fail = None,
    offline: Offline = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Evaluate a baseline that trains no network: with --weights frozen features, else colours and size alone."""
    from vitmed.commands.probe import probe as run

    options: dict[str, Any] = {"config": config, "sets": sets or (), "output": output, "name": name}
    options |= {"offline": offline, "fail_under": fail_under or ()}
    evaluated(lambda: run(data, ui=ui(), **options, **flags), as_json, train_json)


PLACES = ("data", "model.weights", "model.image_size", "train.seed", "train.device", "train.workers", "evaluate")
app = command(probe, *PLACES)
