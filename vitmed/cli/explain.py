"""`vitmed explain` and `vitmed stress`: a closer look at a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitmed.cli.app import app
from vitmed.cli.options import AsJson, Device, Frame, Groups, Labels
from vitmed.cli.terminal import print_json, ui
from vitmed.core.errors import DataError


@app.command()
def explain(
    images: Annotated[list[str], typer.Argument(help="Image files, folders or patterns.")],
    checkpoint: Annotated[Path | None, typer.Option(help="Default: best.pt of the newest run in --runs.")] = None,
    runs: Annotated[Path, typer.Option(help="Where runs are looked for.")] = Path("runs"),
    method: Annotated[
        list[str] | None, typer.Option(help="rollout, gradient_rollout or grad_cam; default all.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Class to explain; default the predicted one.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the pictures; default explain.")
    ] = None,
    device: Device = "auto",
    frame: Frame = None,
    as_json: AsJson = False,
) -> None:
    """Draw where the network looked, and say whether such maps explain anything."""
    from vitmed.commands.explain import explain as command
    from vitmed.commands.explain import explanation_json

    found = command(
        images, checkpoint=checkpoint, runs=runs, methods=method or (), target=target, output=output, device=device,
        frame=frame, ui=ui(),
    )  # fmt: skip
    if as_json:
        name = "best.pt" if checkpoint is None else checkpoint.name
        print_json({"folder": str(found.folder), **explanation_json(found, name)})
    errors = found.predictions.errors
    if errors:
        problems = "\n".join(problem for _, problem in errors[:20])
        raise DataError(f"{len(errors):,} of {len(errors) + len(found.predictions):,} images not read:\n{problems}")


@app.command()
def stress(
    checkpoint: Annotated[Path, typer.Argument(help="best.pt of a run, or its folder.")],
    data: Annotated[Path | None, typer.Option(help="Another labelled folder; classes matched by name.")] = None,
    split: Annotated[str, typer.Option(help="test, val or train.")] = "test",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder; default stress beside it.")] = None,
    images: Annotated[int, typer.Option(min=1, help="At most so many, a stratified sample.")] = 1000,
    corruption: Annotated[list[str] | None, typer.Option(help="Only this one, such as jpeg; can be repeated.")] = None,
    resamples: Annotated[int, typer.Option(min=0, help="Bootstrap resamples behind the intervals.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Of the sample and of the corruptions.")] = 0,
    device: Device = "auto",
    labels: Labels = None,
    groups: Groups = None,
    group_regex: Annotated[str | None, typer.Option(help="Finds the patient in a path of --data.")] = None,
    allow_leakage: Annotated[bool, typer.Option(help="Judge images although the model was made with them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Judge a checkpoint on images made worse: blur, noise, JPEG, brightness, contrast, stain, resolution."""
    from vitmed.commands.stress import stress as command

    found = command(
        checkpoint, data=data, split=split, output=output, images=images, corruptions=corruption or (),
        resamples=resamples, seed=seed, device=device, labels=labels, groups=groups, group_regex=group_regex,
        allow_leakage=allow_leakage, ui=ui(),
    )  # fmt: skip
    if as_json:
        print_json({"folder": str(found.folder), **found.content.to_dict()})
