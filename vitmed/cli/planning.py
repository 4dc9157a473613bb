"""`vitmed plan` and `vitmed lr-find`: before training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.app import AsJson, Offline, Sets, app
from vitmed.cli.terminal import print_json, ui

Weights = Annotated[str | None, typer.Option(help="Weight file to start from.")]
Model = Annotated[str | None, typer.Option(help="vit_tiny, vit_small, vit_base, vit_large.")]
ImageSize = Annotated[int | None, typer.Option(help="Side of the input, px.")]
PatchSize = Annotated[int | None, typer.Option(help="Side of a patch, px.")]
Lora = Annotated[int | None, typer.Option(metavar="RANK", help="Train additions of this rank (LoRA).")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", "-b", help="Images per forward pass.")]
Policy = Annotated[str | None, typer.Option("--policy", "--augment", help="Augmentation for the modality.")]
MaxTrain = Annotated[int | None, typer.Option(help="Train on a stratified sample of so many.")]
GroupRegex = Annotated[str | None, typer.Option(help="Finds the patient in a file's path.")]
OwnDevice = Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")]


@app.command()
def plan(
    data: Annotated[Path | None, typer.Argument(help="Folder: <class>/ or {train,val,test}/<class>/.")] = None,
    weights: Weights = None,
    config: Annotated[str | None, typer.Option("--config", "-c", help="YAML file or recipe; its values stay.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File that is written.")] = Path("plan.yaml"),
    model: Model = None,
    image_size: ImageSize = None,
    patch_size: PatchSize = None,
    lora: Lora = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    batch_size: BatchSize = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    policy: Policy = None,
    max_train: MaxTrain = None,
    group_regex: GroupRegex = None,
    device: OwnDevice = None,
    sets: Sets = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Show what training would take for a folder, why and how long, and write it as a config to edit."""
    flags = {k: v for k, v in locals().items() if k not in _NOT_FLAGS}
    from vitmed import commands

    found = commands.plan(data, config=config, sets=sets or (), output=output, offline=offline, ui=ui(), **flags)
    if as_json:
        decided = [decision._asdict() for decision in found.decisions]
        print_json({"file": str(found.file), "minutes": found.minutes, "plan": decided})


@app.command("lr-find")
def lr_find(
    data: Annotated[Path | None, typer.Argument(help="Folder: <class>/ or {train,val,test}/<class>/.")] = None,
    weights: Weights = None,
    config: Annotated[str | None, typer.Option("--config", "-c", help="YAML file or the name of a recipe.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture that is written.")] = Path("lr_find.png"),
    low: Annotated[float, typer.Option(help="First learning rate.")] = 1e-7,
    high: Annotated[float, typer.Option(help="Last learning rate.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 100,
    model: Model = None,
    image_size: ImageSize = None,
    patch_size: PatchSize = None,
    lora: Lora = None,
    batch_size: BatchSize = None,
    policy: Policy = None,
    max_train: MaxTrain = None,
    group_regex: GroupRegex = None,
    device: OwnDevice = None,
    sets: Sets = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Train a hundred steps while the learning rate rises, draw the loss, suggest a rate."""
    flags = {k: v for k, v in locals().items() if k not in _NOT_FLAGS}
    from vitmed import commands

    options: dict[str, Any] = {"config": config, "sets": sets or (), "output": output, "offline": offline}
    found = commands.lr_find(data, low=low, high=high, steps=steps, ui=ui(), **options, **flags)
    if as_json:
        print_json(asdict(found))


_NOT_FLAGS = {"data", "config", "sets", "output", "offline", "as_json", "low", "high", "steps"}
