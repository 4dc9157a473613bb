"""`vitmed pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitmed.cli.app import app
from vitmed.cli.options import AllowLeakage, AsJson, Cache, CacheSize, Fold, Folds, Frame, Groups, Labels, Sets, Window
from vitmed.cli.terminal import print_json, ui


@app.command()
def pretrain(
    data: Annotated[Path | None, typer.Argument(help="Folder of images, with or without class folders.")] = None,
    config: Annotated[str | None, typer.Option("--config", "-c", help="YAML file.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder that run folders are made in.")] = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the run folder.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Run folder to go on with, to the same weights.")] = None,
    unlabelled: Annotated[
        bool | None, typer.Option("--unlabelled", help="Folders are no classes: take all images but a test folder's.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="vit_tiny, vit_small, vit_base, vit_large.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the input, px.")] = None,
    patch_size: Annotated[int | None, typer.Option(help="Side of a patch, px.")] = None,
    channels: Annotated[int | None, typer.Option(help="1 grey, 2 grey + alpha, 3 RGB, 4 RGB + alpha.")] = None,
    resize: Annotated[str | None, typer.Option(help="pad, squash or crop.")] = None,
    normalize: Annotated[str | None, typer.Option(help="imagenet, half, or image (against stain and light).")] = None,
    window: Window = None,
    frame: Frame = None,
    max_train: Annotated[int | None, typer.Option(help="Learn from a sample of so many.")] = None,
    cache: Cache = None,
    cache_size: CacheSize = None,
    labels: Labels = None,
    groups: Groups = None,
    group_regex: Annotated[str | None, typer.Option(help="Finds the patient in a file's path.")] = None,
    folds: Folds = None,
    fold: Fold = None,
    allow_leakage: AllowLeakage = None,
    policy: Annotated[str | None, typer.Option("--policy", "--augment", help="Augmentation; default mae.")] = None,
    mask_ratio: Annotated[float | None, typer.Option(help="Share of patches that is hidden.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", "-b", help="Images per forward pass.")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Batches per optimiser step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of AdamW.")] = None,
    warmup_epochs: Annotated[float | None, typer.Option(help="Linear warm-up.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order, augmentation and masks.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32, bf16 or fp16.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-j", help="Processes that load images.")] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Pretrain on images without labels (masked autoencoder); `vitmed train --weights` takes the result."""
    flags = {k: v for k, v in locals().items() if k not in _NOT_FLAGS}
    from vitmed.commands.pretrain import pretrain as command

    result = command(data, config=config, sets=sets or (), output=output, name=name, resume=resume, ui=ui(), **flags)
    if as_json:
        print_json({"run": str(result.folder), "encoder": str(result.encoder), "last": result.records[-1]})


_NOT_FLAGS = {"data", "config", "sets", "output", "name", "resume", "as_json"}
