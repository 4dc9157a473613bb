"""`vitmed demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.flags import command, given
from vitmed.cli.options import AsJson, Fail
from vitmed.cli.terminal import evaluated, train_json, ui


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for images and runs.")] = Path("vitmed-demo"),
    seed: Annotated[int, typer.Option(help="Seed of the drawing and of the training.")] = 0,
    cells: Annotated[int, typer.Option(min=200, max=100_000, help="About how many cells to draw.")] = 1000,
    fail_under: Fail = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Draw blood-smear cells, train a small ViT, evaluate it on other patients (minutes on a CPU)."""
    from vitmed.commands.demo import demo as run

    options = {"seed": seed, "cells": cells, "fail_under": tuple(fail_under or ()), **given(flags)}
    evaluated(lambda: run(output, ui=ui(), **options), as_json, train_json)


app = command(demo, "train.device")
