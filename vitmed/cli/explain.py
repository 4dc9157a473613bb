"""`vitmed explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.flags import command, given
from vitmed.cli.options import AsJson, Images, NewestRun, Runs
from vitmed.cli.terminal import print_json, refuse_unread, ui


def explain(
    images: Images,
    checkpoint: NewestRun = None,
    runs: Runs = Path("runs"),
    method: Annotated[
        list[str] | None, typer.Option(help="rollout, gradient_rollout or grad_cam; can be repeated; default all.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Class to explain; default the predicted one.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the pictures; default explain.")
    ] = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Draw where the network looked, and report whether such maps explain anything."""
    from vitmed.commands.explain import explain as run
    from vitmed.commands.explain import explanation_json

    options: dict[str, Any] = {"runs": runs, "methods": method or (), "target": target, "output": output}
    found = run(images, checkpoint=checkpoint, ui=ui(), **options, **given(flags))
    if as_json:
        name = "best.pt" if checkpoint is None else checkpoint.name
        print_json({"folder": str(found.folder), **explanation_json(found, name)})
    refuse_unread(found.predictions)


app = command(explain, "train.device", "data.frame")
