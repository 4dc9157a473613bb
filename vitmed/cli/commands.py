"""Every command: the Python function that it calls, and what it prints.

Its options stand in the signature of that function; here only those that Python lacks.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

import vitmed
import vitmed.cli.terminal as terminal
from vitmed.cli.options import AsJson, command, with_options
from vitmed.core.errors import UsageError, excluded
from vitmed.core.messages import say, warn
from vitmed.core.options import AskedWindow, Devices, Option
from vitmed.core.process import is_rank


class Verb(NamedTuple):
    """A command that calls its function and prints the result, and does nothing else.

    Attributes:
        content: the result as JSON, by default its `to_dict`.
        show: prints it otherwise, where messages do not say it all.
        function: in `vitmed.commands`; default: that of `vitmed` with the name of the command.
    """

    help: str
    content: Callable[[Any], dict[str, Any]] = lambda result: result.to_dict()
    show: Callable[[Any], None] = lambda result: None
    function: str = ""


def show_sample_size(result: Any) -> None:
    from vitmed.metrics.sample_size import in_words

    typer.echo("\n".join(in_words(result)))


VERBS = {
    "plan": Verb(
        "Show the settings that train would use for a folder, why, and how long it takes; write them as a config to "
        "edit.\n\nplan takes the flags of train.",
        lambda plan: {"file": str(plan.file), "minutes": plan.minutes, "plan": [d._asdict() for d in plan.decisions]},
    ),
    "probe": Verb(
        "Evaluate a baseline that trains no network: with --weights frozen features, else colours and size alone.\n\n"
        "--weights A,B,C or all-local ranks several weights on validation, without the test.",
        lambda found: (
            {**terminal.in_folder(found, found.content), "train": found.command}
            if hasattr(found, "rows")  # a ranking
            else terminal.train_json(found)
        ),
        lambda found: terminal.print_rows("|".join(found.rows[0]), found.rows[1:]) if hasattr(found, "rows") else None,
    ),
    "pretrain": Verb(
        "Pretrain on images without labels (masked autoencoder); `vitmed train --weights` takes the result.",
        lambda result: {"run": str(result.folder), "encoder": str(result.encoder), "last": result.records[-1]},
    ),
    "demo": Verb("Draw blood cells; train a small ViT, evaluate it on other patients (a minute).", terminal.train_json),
    "auto": Verb(
        "Find the best model that a time allows: check, rank weights, cross-validate, join, test once.",
        lambda result: terminal.in_folder(result, result.content),
    ),
    "cross-validate": Verb(
        "Train and test on every fold in turn, 5 by default; pool what each model says of images it never saw.",
        terminal.train_json,
    ),
    "ensemble": Verb(
        "Join folds or runs into one model, which every other command takes.",
        lambda result: terminal.in_folder(result, {"shares": result.shares, "val": result.val.metrics.to_dict()}),
    ),
    "tune": Verb(
        "Search for better settings on validation; train the winner once more, and test that once.",
        lambda result: terminal.in_folder(result, result.to_dict()),
        terminal.print_tune,
    ),
    "runs": Verb(
        "List runs with their data, model, metric, time and state; folds below their cross-validation.",
        show=terminal.print_runs,
    ),
    "diff": Verb(
        "Report what differs between two runs: settings, images, versions, and the result on the same test images.",
        show=terminal.print_diff,
    ),
    "evaluate": Verb(
        "Evaluate a checkpoint on its held-out test split, or on another labelled folder, and write the report.",
        lambda result: terminal.in_folder(result, result.metrics.to_dict()),
    ),
    "compare": Verb(
        "Compare models on the same images: differences with intervals, tests, and a verdict in words.",
        show=terminal.print_comparison,
    ),
    "sample-size": Verb(
        "Report how many images and patients an interval of a given width needs, or a lower bound.",
        show=show_sample_size,
    ),
    "stress": Verb(
        "Evaluate a checkpoint on corrupted images: blur, noise, JPEG, brightness, contrast, stain, resolution.",
        lambda result: terminal.in_folder(result, result.content.to_dict()),
    ),
    "export": Verb(
        "Write a model as a file or folder that other programs run, if it decides as the checkpoint does.",
        lambda result: {"file": str(result.file), "bytes": result.size, "gate": result.gate.to_dict()},
    ),
    "bundle": Verb(
        "Write a model, its programs and their licences as one archive, for a machine without a network.",
        lambda tar: {"file": str(tar.file), "bytes": tar.size, "sha256": tar.sha256, "packages": tar.packages},
    ),
    "monitor": Verb(
        "Watch a model at work: exit code 6 where its scores, its answers or its errors are no longer what they were.",
        lambda result: terminal.in_folder(result, result.content.to_dict()),
    ),
}


DATA = {
    "list": Verb(
        "List public data sets: licence, size, and how to get them.",
        lambda rows: {"datasets": rows},
        terminal.print_datasets,
        "data.datasets_table",
    ),
    "get": Verb(
        "Download a set, check it, and lay it out for `vitmed train`.\n\n"
        "An interrupted download continues where it stopped.",
        lambda path: {"folder": str(path)},
        function="data.fetch_dataset",
    ),
    "import": Verb(
        "Write the files of a public set as folders of images.",
        lambda path: {"folder": str(path)},
        function="data.import_dataset",
    ),
}
WEIGHTS = {
    "list": Verb(
        "List public weights: size, licence, and which are on this machine.",
        lambda rows: {"weights": rows},
        terminal.print_weights,
        "weights.weights_table",
    ),
    "fetch": Verb(
        "Download and check weight files.\n\nAn interrupted download continues where it stopped.",
        lambda files: {"paths": {name: str(path) for name, path in files}},
        lambda files: typer.echo("\n".join(str(path) for _, path in files)),
        "weights.fetch_weights",
    ),
}


def calling(function: str, verb: Verb) -> Callable[..., None]:
    """Return what the command of a row does."""

    def run(as_json: AsJson = False, **options: Any) -> None:
        module, _, name = function.rpartition(".")
        of = import_module(f"vitmed.commands.{module}") if module else vitmed
        terminal.answer(getattr(of, name), options, as_json, verb.content, verb.show)

    run.__doc__ = verb.help
    return run


def group(about: str, verbs: Mapping[str, Verb]) -> typer.Typer:
    """Make a command of commands."""
    app = typer.Typer(help=about, **terminal.TYPER)
    for name, verb in verbs.items():
        app.command(name)(with_options(calling(verb.function, verb), verb.function))
    return app


data = group("Public data sets: list, fetch, and write as folders of images.", DATA)
weights = group("Public weights by name: list, fetch and find.", WEIGHTS)


@weights.command("where")
def weights_where(name: Annotated[str, typer.Argument(help="A name of `vitmed weights list`.")]) -> None:
    """Print the path of a fetched file; exit code 4 if there is none."""
    from vitmed.commands.weights import fetch_weights

    typer.echo(fetch_weights([name], offline=True)[0][1])


def train(as_json: AsJson = False, devices: Devices = None, **options: Any) -> None:
    """Train on a folder of labelled images, then evaluate the best checkpoint on validation and on the test split."""
    if devices is not None and devices > 1 and not is_rank():  # so many processes run this command line
        on = options.get("on") or os.environ.get("VITMED_ON", "local")
        if on != "local" and (options.get("folds") is None or options.get("fold") is not None):
            if as_json:
                raise UsageError("--json: not with --devices and --on", "vitmed runs --json, when it has ended")
            from vitmed.studies.study import train_on_nodes

            words = sys.argv[2:]  # but for --on and its value
            at = [i for i, word in enumerate(words) if word == "--on"]
            words = [w for i, w in enumerate(words) if i not in at and i - 1 not in at and not w.startswith("--on=")]
            raise SystemExit(train_on_nodes(on, devices, options, words))
        from vitmed.training.processes import launch

        raise SystemExit(launch(devices, options.get("device", "auto"), sys.argv[1:]))
    terminal.answer(vitmed.train, options, as_json and os.environ.get("RANK", "0") == "0", terminal.train_json)


def check(
    no_index: Annotated[bool, Option("Decode every file, and remember nothing.")] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Report what is wrong with a folder of images: files, copies, patients, shortcuts, names of persons.

    Exit code 3 if a problem is an error.
    """
    options["index"] = not no_index
    result = terminal.answer(
        vitmed.check, options, as_json, lambda result: terminal.in_folder(result, result.content), terminal.print_check
    )
    if result.count("error"):
        from vitmed.commands.check import CheckFailed

        raise CheckFailed(result)


def predict(
    top_k: Annotated[int | None, Option("Classes or findings to show; default 3.", min=1)] = None,
    csv: Annotated[Path | None, Option("Write all predictions to this file.")] = None,
    plot: Annotated[Path | None, Option("Write a PNG of images with their predictions.")] = None,
    force: Annotated[bool, Option("Replace an existing file.")] = False,
    window: AskedWindow = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Predict the labels of images: classes with probabilities, findings, or a number with its interval."""
    if options.keys() & {"shard", "features", "output", "on", "strict"}:
        if csv is not None or plot is not None or window is not None:
            raise excluded("table or parts")
        if top_k is not None or force:
            raise excluded("classes of parts")
        _write_predictions(vitmed.predict_shard, as_json, options)
        return
    if force and csv is None and plot is None:
        raise excluded("force")
    from vitmed.commands.predict import find_checkpoint_and_check
    from vitmed.core.files import write_bytes, write_text
    from vitmed.inference.load import TOP, predictions_json
    from vitmed.inference.open_model import preprocessing_of

    place = (options.pop("checkpoint", None), options.pop("runs", "runs"))
    saved = find_checkpoint_and_check(csv, plot, options["images"], *place, force)
    result = vitmed.predict(**options, checkpoint=saved, window=window)
    if top_k is not None and result.kind == "number":
        warn("--top-k changes nothing: the model predicts one number")
    if csv is not None:
        write_text(csv, result.to_csv(errors=True))
        say(f"all predictions: {csv}")
    if as_json:
        terminal.print_json(predictions_json(result, top_k))
    else:
        terminal.print_predictions(result, top_k or TOP, csv, saved.policy)
    if plot is not None and len(result):
        from vitmed.report.plots.pictures import prediction_picture

        write_bytes(plot, prediction_picture(result, preprocessing_of(saved, options.get("frame"), window)))
        say(f"picture: {plot}")
    terminal.refuse_unread(len(result), len(result.errors), result.errors)


def _write_predictions(run: Callable[..., Any], as_json: bool, options: dict[str, Any]) -> None:
    result = run(**options)
    if as_json:
        terminal.print_json({"file": str(result.file), "images": result.read, "unreadable": len(result.errors)})
    terminal.refuse_unread(result.read, len(result.errors), result.errors)


def merge(as_json: AsJson = False, **options: Any) -> None:
    """Join the parts of vitmed predict --output to one table, and check that every image is there once."""
    _write_predictions(vitmed.merge, as_json, options)


def explain(as_json: AsJson = False, **options: Any) -> None:
    """Draw where the network looked, and report what the test of such maps found."""
    from vitmed.commands.explain import NUMBERS

    result = vitmed.explain(**options)
    if as_json:
        terminal.print_json(terminal.in_folder(result, json.loads((result.folder / NUMBERS).read_text("utf-8"))))
    terminal.refuse_unread(len(result.predictions), len(result.predictions.errors), result.predictions.errors)


def serve(**options: Any) -> None:
    """Answer images over HTTP until Ctrl-C, on an address for programs and a page."""
    vitmed.serve(**options)


def summary(**options: Any) -> None:
    """Print torchinfo's table of a model: layers, shapes, parameters, multiply-adds."""
    typer.echo(vitmed.summary(**options))


APPS = {run.__name__: command(run) for run in (train, check, explain, serve, summary)}
APPS |= {"merge": command(merge), "predict": command(predict, "predict_shard"), "data": data, "weights": weights}
for name, verb in VERBS.items():
    function = verb.function or name.replace("-", "_")
    APPS[name] = command(calling(function, verb), function)
