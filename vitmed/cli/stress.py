"""`vitmed stress`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.flags import command, given
from vitmed.cli.options import AsJson, Leakage, OtherData, Split
from vitmed.cli.terminal import print_json, ui


def stress(
    checkpoint: Annotated[Path, typer.Argument(help="best.pt of a run, or its folder.")],
    data: OtherData = None,
    split: Split = "test",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder; default stress beside the checkpoint.")
    ] = None,
    images: Annotated[int, typer.Option(min=1, help="Take a stratified sample of at most this many.")] = 1000,
    corruption: Annotated[list[str] | None, typer.Option(help="Only this one, such as jpeg; can be repeated.")] = None,
    resamples: Annotated[int, typer.Option(min=0, help="Bootstrap resamples behind the intervals.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample and of the corruptions.")] = 0,
    allow_leakage: Leakage = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Evaluate a checkpoint on corrupted images: blur, noise, JPEG, brightness, contrast, stain, resolution."""
    from vitmed.commands.stress import stress as run

    options: dict[str, Any] = {"data": data, "split": split, "output": output, "images": images}
    options |= {"corruptions": corruption or (), "resamples": resamples, "seed": seed}
    found = run(checkpoint, allow_leakage=allow_leakage, ui=ui(), **options, **given(flags))
    if as_json:
        print_json({"folder": str(found.folder), **found.content.to_dict()})


app = command(stress, "data.group_regex", "data.groups", "data.labels", "train.device")
