"""`vitmed lr-find`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.flags import command
from vitmed.cli.options import FIRST, AsJson, ConfigFile, Data, Offline, Sets
from vitmed.cli.terminal import print_json, ui


def lr_find(
    data: Data = None,
    config: ConfigFile = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG to write.", **FIRST)] = Path("lr_find.png"),
    low: Annotated[float, typer.Option(help="First learning rate.", **FIRST)] = 1e-7,
    high: Annotated[float, typer.Option(help="Last learning rate.", **FIRST)] = 1.0,
    steps: Annotated[int, typer.Option(help="Optimiser steps.", **FIRST)] = 100,
    sets: Sets = None,
    offline: Offline = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Train a hundred steps while the learning rate rises, draw the loss, suggest a rate."""
    from vitmed.commands.lr_find import lr_find as run

    options: dict[str, Any] = {"config": config, "sets": sets or (), "output": output, "offline": offline}
    found = run(data, low=low, high=high, steps=steps, ui=ui(), **options, **flags)
    if as_json:
        print_json(asdict(found))


OF_TRAIN = "batch_size accumulate weight_decay layer_decay freeze_blocks lora smoothing balance seed device"
app = command(lr_find, "data", "model", "augment", *(f"train.{name}" for name in OF_TRAIN.split()))
