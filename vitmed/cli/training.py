"""`vitmed train` and `vitmed demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.app import AsJson, Device, Fail, Offline, Sets, app
from vitmed.cli.terminal import judged, ui


@app.command()
def train(
    data: Annotated[Path | None, typer.Argument(help="Folder: <class>/ or {train,val,test}/<class>/.")] = None,
    config: Annotated[str | None, typer.Option("--config", "-c", help="YAML file or the name of a recipe.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder that run folders are made in.")] = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the run folder.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Run folder to go on with, to the same weights.")] = None,
    model: Annotated[str | None, typer.Option(help="vit_tiny, vit_small, vit_base, vit_large.")] = None,
    weights: Annotated[str | None, typer.Option(help="File or public name to start from; decides the network.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the input, px.")] = None,
    patch_size: Annotated[int | None, typer.Option(help="Side of a patch, px.")] = None,
    channels: Annotated[int | None, typer.Option(help="1 grey, 2 grey + alpha, 3 RGB, 4 RGB + alpha.")] = None,
    stem: Annotated[str | None, typer.Option(help="auto, patch or conv.")] = None,
    pool: Annotated[str | None, typer.Option(help="auto, cls or mean.")] = None,
    positions: Annotated[str | None, typer.Option(help="learned, sincos_1d or sincos_2d.")] = None,
    drop_path: Annotated[float | None, typer.Option(help="Stochastic depth.")] = None,
    resize: Annotated[str | None, typer.Option(help="pad, squash or crop.")] = None,
    normalize: Annotated[str | None, typer.Option(help="imagenet, half, or image (against stain and light).")] = None,
    max_train: Annotated[int | None, typer.Option(help="Train on a stratified sample of so many.")] = None,
    group_regex: Annotated[str | None, typer.Option(help="Finds the patient in a file's path.")] = None,
    positive: Annotated[str | None, typer.Option(help="Of two classes the finding.")] = None,
    policy: Annotated[str | None, typer.Option("--policy", "--augment", help="Augmentation for the modality.")] = None,
    mixup: Annotated[float | None, typer.Option(help="Alpha of mixup; 0 is off.")] = None,
    cutmix: Annotated[float | None, typer.Option(help="Alpha of cutmix; 0 is off.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", "-b", help="Images per forward pass.")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Batches per optimiser step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of AdamW.")] = None,
    layer_decay: Annotated[float | None, typer.Option(help="Learning rate factor per block.")] = None,
    warmup_epochs: Annotated[float | None, typer.Option(help="Linear warm-up.")] = None,
    smoothing: Annotated[float | None, typer.Option(help="Label smoothing.")] = None,
    balance: Annotated[str | None, typer.Option(help="none, loss or sampler; ruins calibration.")] = None,
    freeze: Annotated[bool | None, typer.Option("--freeze", help="Keep the weights; fit the head alone.")] = None,
    probe_first: Annotated[
        bool | None, typer.Option("--probe-first/--no-probe-first", help="Fit the head, then train everything.")
    ] = None,
    freeze_blocks: Annotated[int | None, typer.Option(help="Keep the embedding and the first N blocks.")] = None,
    lora: Annotated[int | None, typer.Option(metavar="RANK", help="Train additions of this rank (LoRA).")] = None,
    baseline: Annotated[
        bool | None, typer.Option("--baseline/--no-baseline", help="Also fit what needs no training, to compare.")
    ] = None,
    ema: Annotated[bool | None, typer.Option("--ema/--no-ema", help="Average the weights.")] = None,
    monitor: Annotated[str | None, typer.Option(help="Validation metric that picks the best epoch.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many epochs without a better one.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Also keep a checkpoint every N epochs.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order, augmentation and dropout.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32, bf16 or fp16.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-j", help="Processes that load images.")] = None,
    sets: Sets = None,
    fail_under: Fail = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Train on a folder of labelled images, then evaluate the best checkpoint on the test split."""
    flags = {k: v for k, v in locals().items() if k not in _NOT_FLAGS}
    from vitmed import commands

    options: dict[str, Any] = {"config": config, "sets": sets or (), "output": output, "name": name, "resume": resume}
    options |= {"offline": offline, "fail_under": fail_under or ()}
    judged(lambda: commands.train(data, ui=ui(), **options, **flags), as_json, train_json)


_NOT_FLAGS = {"data", "config", "sets", "output", "name", "resume", "fail_under", "offline", "as_json"}


@app.command()
def probe(
    data: Annotated[Path | None, typer.Argument(help="Folder: <class>/ or {train,val,test}/<class>/.")] = None,
    weights: Annotated[str | None, typer.Option(help="Weight file whose features are judged.")] = None,
    config: Annotated[str | None, typer.Option("--config", "-c", help="YAML file or the name of a recipe.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder that run folders are made in.")] = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the run folder.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the input, px.")] = None,
    resize: Annotated[str | None, typer.Option(help="pad, squash or crop.")] = None,
    normalize: Annotated[str | None, typer.Option(help="imagenet, half, or image (against stain and light).")] = None,
    max_train: Annotated[int | None, typer.Option(help="Use a stratified sample of so many to train on.")] = None,
    group_regex: Annotated[str | None, typer.Option(help="Finds the patient in a file's path.")] = None,
    positive: Annotated[str | None, typer.Option(help="Of two classes the finding.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    sets: Sets = None,
    fail_under: Fail = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Judge without training a network: frozen features, or without --weights colours and size alone."""
    flags = {k: v for k, v in locals().items() if k not in _NOT_FLAGS}
    from vitmed import commands

    options: dict[str, Any] = {"config": config, "sets": sets or (), "output": output, "name": name}
    options |= {"offline": offline, "fail_under": fail_under or ()}
    judged(lambda: commands.probe(data, ui=ui(), **options, **flags), as_json, train_json)


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
    from vitmed import commands

    options = {"seed": seed, "cells": cells, "device": device, "fail_under": tuple(fail_under or ())}
    judged(lambda: commands.demo(output, ui=ui(), **options), as_json, train_json)  # type: ignore[arg-type]


def train_json(result: Any) -> dict[str, Any]:
    return {"run": str(result.folder), "val": result.val.metrics, "test": result.test.metrics}
