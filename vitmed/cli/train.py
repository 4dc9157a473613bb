"""`vitmed train`, `vitmed probe` and `vitmed demo`."""

from __future__ import annotations

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
    Calibration,
    Channels,
    ConfigFile,
    Cost,
    Coverage,
    Data,
    Device,
    Epochs,
    Fail,
    Fold,
    Folds,
    Format,
    Frame,
    FreezeBlocks,
    GroupRegex,
    Groups,
    ImageSize,
    Labels,
    LayerDecay,
    Lora,
    MapImages,
    MaxRisk,
    MaxTrain,
    Model,
    Name,
    Normalize,
    Offline,
    Ordinal,
    Output,
    OwnDevice,
    PatchSize,
    Policy,
    Positive,
    Prevalence,
    Rate,
    Rater,
    Resamples,
    Resize,
    Sets,
    ShowNames,
    Subgroup,
    TargetSensitivity,
    TargetSpecificity,
    WeightsOf,
    Window,
    Youden,
)
from vitmed.cli.terminal import judged, ui


@app.command()
def train(
    data: Data = None,
    config: ConfigFile = None,
    output: Output = Path("runs"),
    name: Name = None,
    resume: Annotated[Path | None, typer.Option(help="Run folder to go on with, to the same weights.")] = None,
    model: Model = None,
    weights: WeightsOf = None,
    image_size: ImageSize = None,
    patch_size: PatchSize = None,
    channels: Channels = None,
    stem: Annotated[str | None, typer.Option(help="auto, patch or conv.")] = None,
    pool: Annotated[str | None, typer.Option(help="auto, cls or mean.")] = None,
    positions: Annotated[str | None, typer.Option(help="learned, sincos_1d or sincos_2d.")] = None,
    drop_path: Annotated[float | None, typer.Option(help="Stochastic depth.")] = None,
    resize: Resize = None,
    normalize: Normalize = None,
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
    positive: Positive = None,
    policy: Policy = None,
    mixup: Annotated[float | None, typer.Option(help="Alpha of mixup; 0 is off.")] = None,
    cutmix: Annotated[float | None, typer.Option(help="Alpha of cutmix; 0 is off.")] = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    accumulate: Annotated[int | None, typer.Option(help="Batches per optimiser step.")] = None,
    lr: Rate = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of AdamW.")] = None,
    layer_decay: LayerDecay = None,
    warmup_epochs: Annotated[float | None, typer.Option(help="Linear warm-up.")] = None,
    smoothing: Annotated[float | None, typer.Option(help="Label smoothing.")] = None,
    balance: Annotated[str | None, typer.Option(help="none, loss or sampler; ruins calibration.")] = None,
    freeze: Annotated[bool | None, typer.Option("--freeze", help="Keep the weights; fit the head alone.")] = None,
    probe_first: Annotated[
        bool | None, typer.Option("--probe-first/--no-probe-first", help="Fit the head, then train everything.")
    ] = None,
    freeze_blocks: FreezeBlocks = None,
    lora: Lora = None,
    baseline: Annotated[
        bool | None, typer.Option("--baseline/--no-baseline", help="Also fit what needs no training, to compare.")
    ] = None,
    ema: Annotated[bool | None, typer.Option("--ema/--no-ema", help="Average the weights.")] = None,
    monitor: Annotated[str | None, typer.Option(help="Validation metric that picks the best epoch.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many epochs without a better one.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Also keep a checkpoint every N epochs.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order, augmentation and dropout.")] = None,
    device: OwnDevice = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32, bf16 or fp16.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-j", help="Processes that load images.")] = None,
    resamples: Resamples = None,
    subgroup: Subgroup = None,
    rater: Rater = None,
    ordinal: Ordinal = None,
    calibration: Calibration = None,
    youden: Youden = None,
    target_sensitivity: TargetSensitivity = None,
    target_specificity: TargetSpecificity = None,
    cost: Cost = None,
    prevalence: Prevalence = None,
    coverage: Coverage = None,
    max_risk: MaxRisk = None,
    map_images: MapImages = None,
    format: Format = None,
    show_names: ShowNames = None,
    sets: Sets = None,
    fail_under: Fail = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Train on a folder of labelled images, then evaluate the best checkpoint on the test split."""
    flags = {k: v for k, v in locals().items() if k not in _NOT_FLAGS}
    from vitmed.commands.train import train as command

    options: dict[str, Any] = {"config": config, "sets": sets or (), "output": output, "name": name, "resume": resume}
    options |= {"offline": offline, "fail_under": fail_under or ()}
    judged(lambda: command(data, ui=ui(), **options, **flags), as_json, train_json)


_NOT_FLAGS = {"data", "config", "sets", "output", "name", "resume", "fail_under", "offline", "as_json"}


@app.command()
def probe(
    data: Data = None,
    weights: WeightsOf = None,
    config: ConfigFile = None,
    output: Output = Path("runs"),
    name: Name = None,
    image_size: ImageSize = None,
    resize: Resize = None,
    normalize: Normalize = None,
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
    positive: Positive = None,
    device: OwnDevice = None,
    sets: Sets = None,
    fail_under: Fail = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Judge without training a network: frozen features, or without --weights colours and size alone."""
    flags = {k: v for k, v in locals().items() if k not in _NOT_FLAGS}
    from vitmed.commands.probe import probe as command

    options: dict[str, Any] = {"config": config, "sets": sets or (), "output": output, "name": name}
    options |= {"offline": offline, "fail_under": fail_under or ()}
    judged(lambda: command(data, ui=ui(), **options, **flags), as_json, train_json)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for images and runs.")] = Path("vitmed-demo"),
    seed: Annotated[int, typer.Option(help="Of the drawing and of the training.")] = 0,
    cells: Annotated[int, typer.Option(min=200, max=100_000, help="About how many cells to draw.")] = 1000,
    device: Device = "auto",
    fail_under: Fail = None,
    as_json: AsJson = False,
) -> None:
    """Draw blood-smear cells, train a small ViT, evaluate it on patients that it never saw (minutes on a CPU)."""
    from vitmed.commands.demo import demo as command

    options = {"seed": seed, "cells": cells, "device": device, "fail_under": tuple(fail_under or ())}
    judged(lambda: command(output, ui=ui(), **options), as_json, train_json)  # type: ignore[arg-type]


def train_json(result: Any) -> dict[str, Any]:
    val = result.val and result.val.metrics.to_dict()
    return {"run": str(result.folder), "val": val, "test": result.test.metrics.to_dict()}
