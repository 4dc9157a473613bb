"""`vitmed plan` and `vitmed lr-find`: before training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.app import app
from vitmed.cli.options import (
    AllowLeakage,
    AsJson,
    BatchSize,
    Cache,
    CacheSize,
    Channels,
    ConfigFile,
    Data,
    Epochs,
    Fold,
    Folds,
    Frame,
    FreezeBlocks,
    GroupRegex,
    Groups,
    ImageSize,
    Labels,
    LayerDecay,
    Lora,
    MaxTrain,
    Model,
    Normalize,
    Offline,
    OwnDevice,
    PatchSize,
    Policy,
    Rate,
    Sets,
    WeightsOf,
    Window,
)
from vitmed.cli.terminal import print_json, ui


@app.command()
def plan(
    data: Data = None,
    weights: WeightsOf = None,
    config: ConfigFile = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File that is written.")] = Path("plan.yaml"),
    model: Model = None,
    image_size: ImageSize = None,
    patch_size: PatchSize = None,
    channels: Channels = None,
    normalize: Normalize = None,
    freeze_blocks: FreezeBlocks = None,
    lora: Lora = None,
    layer_decay: LayerDecay = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: Rate = None,
    policy: Policy = None,
    window: Window = None,
    frame: Frame = None,
    max_train: MaxTrain = None,
    labels: Labels = None,
    groups: Groups = None,
    group_regex: GroupRegex = None,
    folds: Folds = None,
    fold: Fold = None,
    allow_leakage: AllowLeakage = None,
    device: OwnDevice = None,
    sets: Sets = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Show what training would take for a folder, why and how long, and write it as a config to edit."""
    flags = {k: v for k, v in locals().items() if k not in _NOT_FLAGS}
    from vitmed.commands.plan import plan as command

    found = command(data, config=config, sets=sets or (), output=output, offline=offline, ui=ui(), **flags)
    if as_json:
        decided = [decision._asdict() for decision in found.decisions]
        print_json({"file": str(found.file), "minutes": found.minutes, "plan": decided})


@app.command("lr-find")
def lr_find(
    data: Data = None,
    weights: WeightsOf = None,
    config: ConfigFile = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture that is written.")] = Path("lr_find.png"),
    low: Annotated[float, typer.Option(help="First learning rate.")] = 1e-7,
    high: Annotated[float, typer.Option(help="Last learning rate.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 100,
    model: Model = None,
    image_size: ImageSize = None,
    patch_size: PatchSize = None,
    channels: Channels = None,
    normalize: Normalize = None,
    freeze_blocks: FreezeBlocks = None,
    lora: Lora = None,
    layer_decay: LayerDecay = None,
    batch_size: BatchSize = None,
    policy: Policy = None,
    window: Window = None,
    frame: Frame = None,
    max_train: MaxTrain = None,
    cache: Cache = None,
    cache_size: CacheSize = None,
    labels: Labels = None,
    groups: Groups = None,
    group_regex: GroupRegex = None,
    folds: Folds = None,
    fold: Fold = None,
    allow_leakage: AllowLeakage = None,
    device: OwnDevice = None,
    sets: Sets = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Train a hundred steps while the learning rate rises, draw the loss, suggest a rate."""
    flags = {k: v for k, v in locals().items() if k not in _NOT_FLAGS}
    from vitmed.commands.lr_find import lr_find as command

    options: dict[str, Any] = {"config": config, "sets": sets or (), "output": output, "offline": offline}
    found = command(data, low=low, high=high, steps=steps, ui=ui(), **options, **flags)
    if as_json:
        print_json(asdict(found))


_NOT_FLAGS = {"data", "config", "sets", "output", "offline", "as_json", "low", "high", "steps"}
