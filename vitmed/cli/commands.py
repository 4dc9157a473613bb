"""Every command: the Python function that it calls, and what it prints.

Its options stand in the signature of that function; here only those that Python lacks.
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
from vitmed.cli.options import AsJson, command
from vitmed.cli.terminal import (
    answer,
    in_folder,
    print_check,
    print_comparison,
    print_diff,
    print_json,
    print_predictions,
    print_rows,
    print_runs,
    refuse_unread,
    train_json,
)
from vitmed.core.exclusions import excluded
from vitmed.core.messages import say, warn
from vitmed.core.options import Devices, Option

TOP = 3  # classes or findings that predict shows


def train(as_json: AsJson = False, devices: Devices = None, **options: Any) -> None:
    """Train on a folder of labelled images, then evaluate the best checkpoint on validation and on the test split."""
    answer(vitmed.train, options, as_json and os.environ.get("RANK", "0") == "0", train_json, devices=devices)


def check(
    no_index: Annotated[bool, Option("Decode every file, and remember nothing.")] = False,
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


def plan(as_json: AsJson = False, **options: Any) -> None:
    """Show the settings that train would use for a folder, why, and how long it takes; write them as a config to edit.

    plan takes the flags of train.
    """

    def content(found: Any) -> dict[str, Any]:
        settings = [setting._asdict() for setting in found.decisions]
        return {"file": str(found.file), "minutes": found.minutes, "plan": settings}

    answer(vitmed.plan, options, as_json, content)


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


def pretrain(as_json: AsJson = False, **options: Any) -> None:
    """Pretrain on images without labels (masked autoencoder); `vitmed train --weights` takes the result."""

    def content(result: Any) -> dict[str, Any]:
        return {"run": str(result.folder), "encoder": str(result.encoder), "last": result.records[-1]}

    answer(vitmed.pretrain, options, as_json, content)


def demo(as_json: AsJson = False, **options: Any) -> None:
    """Draw blood cells or chests; train a small ViT, evaluate it on other patients (minutes)."""
    answer(vitmed.demo, options, as_json, train_json)


def auto(as_json: AsJson = False, **options: Any) -> None:
    """Find the best model that a time allows: check, compare ways to train, cross-validate, join, test once."""
    answer(vitmed.auto, options, as_json, lambda found: in_folder(found, found.content))


def cross_validate(as_json: AsJson = False, **options: Any) -> None:
    """Train and test on every fold in turn, 5 by default; pool what each model says of images it never saw."""
    answer(vitmed.cross_validate, options, as_json, train_json)


def ensemble(as_json: AsJson = False, **options: Any) -> None:
    """Join folds or runs into one model, which every other command takes."""

    def content(found: Any) -> dict[str, Any]:
        return in_folder(found, {"shares": found.shares, "val": found.val.metrics.to_dict()})

    answer(vitmed.ensemble, options, as_json, content)


def tune(as_json: AsJson = False, **options: Any) -> None:
    """Search for better settings on validation; train the winner once more, and test that once."""
    answer(vitmed.tune, options, as_json, lambda found: in_folder(found, found.to_dict()), print_tune)


def print_tune(found: Any) -> None:
    """The table of the best combinations on stdout."""
    from vitmed.metrics.estimates import value_text

    study, rows = found.study, []
    settings = list(study.of(study.best).values)
    for one in study.ranked[:10]:
        value = "" if one.value is None else f"{one.value:.3f}"
        if one.estimate is not None:
            value = value_text(one.estimate)
        name = f"{one.number} (plan)" if one.number == study.plan else f"{one.number}"
        shown = [str(one.values.get(place, "")) for place in settings]
        value += "" if one.sd is None else f" ± {one.sd:.3f}"
        rows.append([name, *shown, value, f"{one.epochs}", f"{one.seconds:,.0f}", one.reason or one.state])
    titles = "|".join(f">{place.partition('.')[2]}" for place in settings)
    spread = "; ±: standard deviation over seeds" if study.seeds else ""
    best = f"the best {len(rows)} of {len(study.combinations)}"
    caption = f"on validation{spread}; {best}. Table and picture: {found.folder}"
    print_rows(f">trial|{titles}|{study.title} (95 %)|>epochs|>seconds|state", rows, caption)


def runs(as_json: AsJson = False, **options: Any) -> None:
    """List runs with their data, model, metric, time and state; folds below their cross-validation."""
    answer(vitmed.runs, options, as_json, lambda found: found.to_dict(), print_runs)


def diff(as_json: AsJson = False, **options: Any) -> None:
    """Report what differs between two runs: settings, images, versions, and the result on the same test images."""
    answer(vitmed.diff, options, as_json, lambda found: found.to_dict(), print_diff)


def predict(
    top_k: Annotated[int | None, Option("Classes or findings to show; default 3.", min=1)] = None,
    csv: Annotated[Path | None, Option("Write all predictions to this file.")] = None,
    plot: Annotated[Path | None, Option("Write a PNG of images with their predictions.")] = None,
    force: Annotated[bool, Option("Replace an existing file.")] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Predict the labels of images: classes with probabilities, findings, or a number with its interval."""
    if options.keys() & {"shard", "features", "output"}:
        if csv is not None or plot is not None:
            raise excluded("table or parts")
        if top_k is not None or force:
            raise excluded("classes of parts")
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


def merge(as_json: AsJson = False, **options: Any) -> None:
    """Join the parts of vitmed predict --output to one table, and check that every image is there once."""
    _write_predictions(vitmed.merge, as_json, options)


def evaluate(as_json: AsJson = False, **options: Any) -> None:
    """Evaluate a checkpoint on its held-out test split, or on another labelled folder, and write the report."""
    answer(vitmed.evaluate, options, as_json, lambda found: in_folder(found, found.metrics.to_dict()))


def compare(as_json: AsJson = False, **options: Any) -> None:
    """Compare models on the same images: differences with intervals, tests, and a verdict in words."""
    run = functools.partial(vitmed.compare, *options.pop("results"))
    answer(run, options, as_json, lambda found: found.to_dict(), print_comparison)


def sample_size(as_json: AsJson = False, **options: Any) -> None:
    """Report how many images and patients an interval of a given width needs, or a lower bound."""

    def show(found: Any) -> None:
        from vitmed.metrics.sample_size import in_words

        typer.echo("\n".join(in_words(found)))

    answer(vitmed.sample_size, options, as_json, lambda found: found.to_dict(), show)


def explain(as_json: AsJson = False, **options: Any) -> None:
    """Draw where the network looked, and report what the test of such maps found."""
    from vitmed.explanation.explain import explanation_json

    found = vitmed.explain(**options)
    if as_json:
        checkpoint = options["checkpoint"].name if "checkpoint" in options else "best.pt"
        print_json(in_folder(found, explanation_json(found, checkpoint)))
    refuse_unread(len(found.predictions), len(found.predictions.errors), found.predictions.errors)


def stress(as_json: AsJson = False, **options: Any) -> None:
    """Evaluate a checkpoint on corrupted images: blur, noise, JPEG, brightness, contrast, stain, resolution."""
    answer(vitmed.stress, options, as_json, lambda found: in_folder(found, found.content.to_dict()))


def export(as_json: AsJson = False, **options: Any) -> None:
    """Write a model as a file or folder that other programs run, if it decides as the checkpoint does."""

    def content(found: Any) -> dict[str, Any]:
        return {"file": str(found.file), "bytes": found.size, "gate": found.gate.to_dict()}

    answer(vitmed.export, options, as_json, content)


def push(as_json: AsJson = False, **options: Any) -> None:
    """Upload weights, preprocessing and card of a model to the Hugging Face hub, for timm or transformers."""

    def content(found: Any) -> dict[str, Any]:
        return {"url": found.url, "files": found.files, "private": found.private, "gate": found.gate.to_dict()}

    answer(vitmed.push, options, as_json, content)


def serve(**options: Any) -> None:
    """Answer images over HTTP until Ctrl-C, on an address for programs and a page."""
    vitmed.serve(**options)


def monitor(as_json: AsJson = False, **options: Any) -> None:
    """Watch a model at work: exit code 6 where its scores, its answers or its errors are no longer what they were."""
    answer(vitmed.monitor, options, as_json, lambda found: in_folder(found, found.content.to_dict()))


def bundle(as_json: AsJson = False, **options: Any) -> None:
    """Write a model, its programs and their licences as one archive, for a machine without a network."""
    options["extras"] = [name.strip() for name in options.get("extras", "").split(",") if name.strip()]

    def content(found: Any) -> dict[str, Any]:
        return {"file": str(found.file), "bytes": found.size, "sha256": found.sha256, "packages": found.packages}

    answer(vitmed.bundle, options, as_json, content)


def summary(**options: Any) -> None:
    """Print torchinfo's table of a model: layers, shapes, parameters, multiply-adds."""
    typer.echo(vitmed.summary(**options))


VERBS: list[Callable[..., None]] = [train, check, plan, probe, pretrain, demo, auto, cross_validate, ensemble, tune]
VERBS += [runs, diff, merge, evaluate, compare, sample_size, explain, stress, export, push, bundle, serve, monitor]
HOMES = {"cross_validate": "train.cross_validate", "diff": "compare.diff", "merge": "predict_shard.merge"}
APPS = {
    run.__name__.replace("_", "-"): command(run, HOMES.get(run.__name__, run.__name__)) for run in [*VERBS, summary]
}
APPS |= {"predict": command(predict, "predict_shard"), "data": data, "weights": weights}
