"""Every command: its options, the Python function of its name that it calls, and what it prints.

A command's options stand above it where it passes them on, in its signature where it uses them itself.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import vitmed
from vitmed.cli.catalogue_commands import data, weights
from vitmed.cli.deployment_commands import TAKEN_OUT
from vitmed.cli.many_runs_commands import MANY_RUNS
from vitmed.cli.options import (
    EVALUATED,
    FIRST,
    FORCE,
    GATES,
    OFFLINE,
    PARALLEL,
    PREDICTED,
    RESUME,
    RUN,
    SETTINGS,
    AsJson,
    Devices,
    Force,
    argument,
    command,
    flag,
    output,
    precision,
)
from vitmed.cli.terminal import (
    answer,
    in_folder,
    print_check,
    print_comparison,
    print_json,
    print_predictions,
    print_rows,
    refuse_unread,
    train_json,
)
from vitmed.core.errors import UsageError
from vitmed.core.messages import say, warn
from vitmed.core.pretrain_config import PRETRAIN_FLAGS, PretrainConfig

TOP = 3  # classes or findings that predict shows
PATIENTS = ("data.group_regex", "data.groups", "data.labels")


@command({**SETTINGS, **RUN, **RESUME, **PARALLEL, **GATES, **OFFLINE})
def train(as_json: AsJson = False, devices: Devices = None, **options: Any) -> None:
    """Train on a folder of labelled images, then evaluate the best checkpoint on validation and on the test split."""
    answer(vitmed.train, options, as_json and os.environ.get("RANK", "0") == "0", train_json, devices=devices)


@command(
    {
        "data": argument(Path, "Any folder of images, with or without classes and splits."),
        **output("Folder of the report, never overwritten; default data-check."),
        "strict": flag(bool, "--strict", help="Exit code 3 if there is a warning, as for an error."),
        "leakage_gap": flag(bool, "--leakage-gap", help="Fit cheap baselines by image and by patient; report the gap."),
    },
    "data.card",
    *PATIENTS,
    "data.target",
    "data.findings",
    "data.uncertain",
    "data.unit",
    "evaluate.ordinal",
    "data.frame",
)
def check(
    no_index: Annotated[bool, typer.Option("--no-index", help="Decode every file, and remember nothing.")] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Report what is wrong with a folder of images: files, copies, patients, shortcuts, names of persons.

    Exit code 3 if a problem is an error.
    """
    options["index"] = not no_index
    found = answer(vitmed.check, options, as_json, lambda found: in_folder(found, found.content), print_check)
    if found.count("error"):
        from vitmed.commands.check import CheckFailed

        raise CheckFailed(found)


@command({**SETTINGS, **output("File to write; default plan.yaml.", FIRST), **FORCE, **OFFLINE})
def plan(as_json: AsJson = False, **options: Any) -> None:
    """Show the settings that train would use for a folder, why, and how long it takes; write them as a config to edit.

    plan takes the flags of train.
    """

    def content(found: Any) -> dict[str, Any]:
        settings = [setting._asdict() for setting in found.decisions]
        return {"file": str(found.file), "minutes": found.minutes, "plan": settings}

    answer(vitmed.plan, options, as_json, content)


PLACES = ("data", "model.weights", "model.image_size", "train.seed", "train.device", "train.workers", "evaluate")


@command({**SETTINGS, **RUN, **GATES, **OFFLINE}, *PLACES)
def probe(as_json: AsJson = False, **options: Any) -> None:
    """Evaluate a baseline that trains no network: with --weights frozen features, else colours and size alone.

    --weights A,B,C or all-local ranks several weights on validation, without the test.
    """

    def content(found: Any) -> dict[str, Any]:
        if isinstance(found, TrainResult):
            return train_json(found)
        return {**in_folder(found, found.content), "train": found.command}

    def show(found: Any) -> None:
        if not isinstance(found, TrainResult):
            print_rows("|".join(found.rows[0]), found.rows[1:])

    from vitmed.commands.train import TrainResult

    answer(vitmed.probe, options, as_json, content, show)


UNLABELLED = {"data": argument(Path | None, "Folder of images, with or without class folders.")}


@command({**SETTINGS, **UNLABELLED, **RUN, **RESUME}, fields=PRETRAIN_FLAGS, kind=PretrainConfig)
def pretrain(as_json: AsJson = False, **options: Any) -> None:
    """Pretrain on images without labels (masked autoencoder); `vitmed train --weights` takes the result."""

    def content(result: Any) -> dict[str, Any]:
        return {"run": str(result.folder), "encoder": str(result.encoder), "last": result.records[-1]}

    answer(vitmed.pretrain, options, as_json, content)


@command(
    {
        **output("Folder for images and runs; default vitmed-demo."),
        "seed": flag(int, help="Seed of the drawing and of the training; default 0."),
        "cells": flag(int, min=200, max=100_000, help="About how many images to draw; default 1000."),
        "target": flag(
            str, help="What to learn: classes (of cells), findings or a number (of chests); default classes."
        ),
        **GATES,
    },
    "train.device",
)
def demo(as_json: AsJson = False, **options: Any) -> None:
    """Draw blood cells or chests; train a small ViT, evaluate it on other patients (minutes)."""
    answer(vitmed.demo, options, as_json, train_json)


@command(
    {
        **PREDICTED,
        "shard": flag(str, metavar="I/N|auto", help="Only this share of the images, from 1/N to N/N; with --output."),
        **precision("auto"),
        "features": flag(bool, "--features", help="Also write the features of each image; with --output."),
        **output("Folder of Parquet parts, one a shard, for many images; vitmed merge joins them."),
    },
    "train.device",
    "data.frame",
)
def predict(
    top_k: Annotated[int | None, typer.Option(min=1, help="Classes or findings to show; default 3.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write all predictions to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG of images with their predictions.")] = None,
    force: Force = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Predict the labels of images: classes with probabilities, findings, or a number with its interval."""
    if options.keys() & {"shard", "features", "output"}:
        if csv is not None or plot is not None:
            raise UsageError("--csv and --plot do not go with --output, --shard and --features", "vitmed merge FOLDER")
        if top_k is not None or force:
            problem = "--top-k and --force do not go with --output, --shard and --features"
            raise UsageError(problem, "leave them out: a finished part is kept, and the parts hold every class")
        _write_predictions(vitmed.predict_shard, as_json, options)
        return
    from vitmed.commands.predict import find_checkpoint_and_check
    from vitmed.core.files import write_bytes, write_text
    from vitmed.inference.answers import predictions_json
    from vitmed.inference.predict_files import preprocessing_of

    place = (options.pop("checkpoint", None), options.pop("runs", "runs"))
    saved = find_checkpoint_and_check(csv, plot, options["images"], *place, force)
    found = vitmed.predict(**options, checkpoint=saved)
    if top_k is not None and found.kind == "number":
        warn("--top-k changes nothing: the model predicts one number")
    if csv is not None:
        write_text(csv, found.to_csv(errors=True))
        say(f"all predictions: {csv}")
    if as_json:
        print_json(predictions_json(found, top_k or TOP))
    else:
        print_predictions(found, top_k or TOP)
    if plot is not None and len(found):
        from vitmed.report.plots.pictures import prediction_picture

        write_bytes(plot, prediction_picture(found, preprocessing_of(saved, options.get("frame"))))
        say(f"picture: {plot}")
    refuse_unread(len(found), len(found.errors), found.errors)


def _write_predictions(run: Callable[..., Any], as_json: bool, options: dict[str, Any]) -> None:
    found = run(**options)
    if as_json:
        print_json({"file": str(found.file), "images": found.read, "unreadable": len(found.errors)})
    refuse_unread(found.read, len(found.errors), found.errors)


@command(
    {
        "folder": argument(Path, "The --output of vitmed predict."),
        **output("CSV file to write; default predictions.csv in the folder."),
        **FORCE,
    },
    fields={},
)
def merge(as_json: AsJson = False, **options: Any) -> None:
    """Join the parts of vitmed predict --output to one table, and check that every image is there once."""
    _write_predictions(vitmed.merge, as_json, options)


@command(
    {
        "checkpoint": argument(Path, "best.pt of a run, or a predictions.csv."),
        **EVALUATED,
        **output("Folder of the report.", FIRST),
        "unlike": flag(Path, help="Folder of other images, to see whether the model notices them.", panel=FIRST),
        **precision("fp32"),
        **GATES,
    },
    *PATIENTS,
    "evaluate",
    "train.device",
)
def evaluate(as_json: AsJson = False, **options: Any) -> None:
    """Evaluate a checkpoint on its held-out test split, or on another labelled folder, and write the report."""
    answer(vitmed.evaluate, options, as_json, lambda found: in_folder(found, found.metrics.to_dict()))


@command(
    {
        **output("Folder for compare.json and a picture."),
        "accept": flag(Path, help="Pre-stated criteria (YAML) for the first model; exit code 6 unless all are met."),
        "resamples": flag(int, min=0, help="Bootstrap resamples behind the intervals; default 2000."),
    },
    fields={},
)
def compare(
    results: Annotated[list[Path], typer.Argument(help="predictions.csv, folder of a report, or run folder.")],
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Compare models on the same images: differences with intervals, tests, and a verdict in words."""
    run = functools.partial(vitmed.compare, *results)
    answer(run, options, as_json, lambda found: found.to_dict(), print_comparison)


@command(
    {
        "number": argument(str, "sensitivity, specificity or auroc.", "NUMBER"),
        "expected": argument(float, "The value that you expect, such as 0.9.", "VALUE"),
        "half_width": flag(float, help="Half the width of the 95 % interval, such as 0.05."),
        "lower_bound": flag(float, help="Instead: what the lower end of the interval is to exceed."),
        "power": flag(float, help="The chance that the lower end exceeds --lower-bound; default 0.8."),
        "prevalence": flag(float, help="Share of positive images; an AUROC needs it."),
        "images_per_patient": flag(float, help="Images of a patient, all of one class; default 1."),
        "icc": flag(float, help="How alike images of a patient are in being right, 0 to 1; default 0."),
    },
    fields={},
)
def sample_size(as_json: AsJson = False, **options: Any) -> None:
    """Report how many images and patients an interval of a given width needs, or a lower bound."""

    def show(found: Any) -> None:
        from vitmed.metrics.sample_size import in_words

        typer.echo("\n".join(in_words(found)))

    answer(vitmed.sample_size, options, as_json, lambda found: found.to_dict(), show)


@command(
    {
        **PREDICTED,
        "methods": flag(
            list[str], "--method", help="rollout, gradient_rollout or grad_cam; can be repeated; default all."
        ),
        "target": flag(str, help="Class or finding to explain, or higher or lower; default what is predicted."),
        **output("Folder of the pictures; default explain."),
    },
    "train.device",
    "data.frame",
)
def explain(as_json: AsJson = False, **options: Any) -> None:
    """Draw where the network looked, and report what the test of such maps found."""
    from vitmed.explanation.explain import explanation_json

    found = vitmed.explain(**options)
    if as_json:
        checkpoint = options["checkpoint"].name if "checkpoint" in options else "best.pt"
        print_json(in_folder(found, explanation_json(found, checkpoint)))
    refuse_unread(len(found.predictions), len(found.predictions.errors), found.predictions.errors)


@command(
    {
        "checkpoint": argument(Path, "best.pt of a run, or its folder."),
        **EVALUATED,
        **output("Folder; default stress beside the checkpoint."),
        "images": flag(int, min=1, help="Take a stratified sample of at most this many; default 1000."),
        "corruptions": flag(list[str], "--corruption", help="Only this one, such as jpeg; can be repeated."),
        "resamples": flag(int, min=0, help="Bootstrap resamples behind the intervals; default 500."),
        "seed": flag(int, min=0, help="Seed of the sample and of the corruptions; default 0."),
    },
    *PATIENTS,
    "train.device",
)
def stress(as_json: AsJson = False, **options: Any) -> None:
    """Evaluate a checkpoint on corrupted images: blur, noise, JPEG, brightness, contrast, stain, resolution."""
    answer(vitmed.stress, options, as_json, lambda found: in_folder(found, found.content.to_dict()))


@command(
    {
        "model": argument(str | None, "A size (vit_tiny), a recipe (mnist), or a checkpoint; default vit_tiny."),
        "num_classes": flag(int, help="Default 1000, or the checkpoint's."),
    },
    "model.image_size",
    "model.patch_size",
    "model.channels",
)
def summary(**options: Any) -> None:
    """Print torchinfo's table of a model: layers, shapes, parameters, multiply-adds."""
    typer.echo(vitmed.summary(**options))


APPS = {
    "train": train, "check": check, "plan": plan, "probe": probe, "pretrain": pretrain,
    "demo": demo, "predict": predict, "merge": merge, "evaluate": evaluate, "compare": compare, "explain": explain,
    "stress": stress, "sample-size": sample_size, **MANY_RUNS, **TAKEN_OUT,
    "data": data, "weights": weights, "summary": summary,
}  # fmt: skip
