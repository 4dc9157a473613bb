"""Every command: the Python function that it calls, and what it prints; and how it becomes a command of typer, with its
`--help` in panels.

Its options stand in the signature of that function; here only those that Python lacks.
"""

import ast
import builtins
import functools
import inspect
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

import vitmed
import vitmed.cli.terminal as terminal
from vitmed.core import options
from vitmed.core.base_models import PANELS, fields_of, flag_of, spellings
from vitmed.core.config import FLAGS, Config, RunConfig
from vitmed.core.downloads import unconnected
from vitmed.core.errors import UsageError, excluded
from vitmed.core.messages import listening, say, warn
from vitmed.core.options import FIRST, LAST, Argument, AskedWindow, Devices, Fields, Option
from vitmed.core.process import is_rank

FEW = 16  # up to this number of options need no panels
KEYWORD = inspect.Parameter.KEYWORD_ONLY
AsJson = Annotated[bool, Option("Print one JSON object on stdout.", "--json")]
Quiet = Annotated[bool, Option("Print only warnings and errors on stderr.", "--quiet -q")]
Verbose = Annotated[bool, Option("Print all messages: the plan with its reasons, and every warning.", "--verbose -v")]


class Command(TyperCommand):
    """A command whose `--help` groups the options under `PANELS`, then under headings of its own."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown = [(param, row) for param in self.get_params(ctx) if (row := param.get_help_record(ctx)) is not None]
        panels: list[str] = [
            "Arguments" if param.param_type_name == "argument" else getattr(param, "rich_help_panel", None) or LAST
            for param, _ in shown
        ]
        if len(shown) <= FEW:
            panels = ["Options" if panel in PANELS else panel for panel in panels]
        else:  # a panel of one option joins the first
            panels = [FIRST if panel in PANELS and panels.count(panel) == 1 else panel for panel in panels]
        for title in dict.fromkeys(("Arguments", "Options", *PANELS, *panels)):  # those of one command last
            rows = [row for panel, (_, row) in zip(panels, shown, strict=True) if panel == title]
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(f"{flag:30}", text) for flag, text in rows])


def command(run: Callable[..., None], verb: str | None = None) -> typer.Typer:
    """Make a function a typer application of one command; see `with_options`."""
    app = typer.Typer(**terminal.TYPER | {"no_args_is_help": False})
    app.command(cls=Command)(with_options(run, run.__name__ if verb is None else verb))
    return app


def with_options(run: Callable[..., None], verb: str) -> Callable[..., None]:
    """Give a function the options of a verb beside its own; it is called with those that were given, checked.

    Args:
        run: its docstring is the help, its parameters are declared as those of a verb.
        verb: a function of `vitmed`, such as "train", or of a module of `vitmed.commands`, such as
            "data.fetch_dataset"; "": none.
    """
    parameters = [*inspect.signature(run, eval_str=True).parameters.values()]
    if verb and (of_verb := parameters_of(verb)):
        flags = {"quiet": Quiet, "verbose": Verbose}
        added = [inspect.Parameter(name, KEYWORD, default=None, annotation=kind) for name, kind in flags.items()]
        parameters = [*of_verb, *added, *parameters]
    declared, fields, configs = [], [], [Fields(Config, FLAGS)]
    for parameter in parameters:
        metadata = getattr(parameter.annotation, "__metadata__", (None,))[0]
        if isinstance(metadata, Fields):
            configs.append(metadata)
            fields += [_field(name, place, metadata.kind) for name, place in metadata.flags.items()]
        elif metadata is not None:
            declared.append(_declared(parameter, metadata))
        elif parameter.name in FLAGS:
            fields.append(_field(parameter.name, FLAGS[parameter.name], Config))
    kind = configs[-1].kind if "sets" in {parameter.name for parameter in declared} else None

    @functools.wraps(run)
    def call(**given: Any) -> None:
        from vitmed.core.places import check_inputs

        chosen = {name: value for name, value in given.items() if value is not None}
        said = listening(terminal.Terminal(chosen.pop("quiet", False), chosen.pop("verbose", False)))
        with said, unconnected(chosen.get("offline", False)):
            if chosen.keys() >= {"checkpoint", "runs"}:
                raise excluded("runs and checkpoint")
            check_inputs(chosen, kind)
            run(**chosen)

    call.__signature__ = inspect.Signature([*declared, *fields])  # type: ignore[attr-defined]
    return call


def parameters_of(verb: str) -> list[inspect.Parameter]:
    """List the parameters of a verb, read from the text of its file; without annotation where it declares no option."""
    module, _, name = verb.rpartition(".")
    module = module or vitmed._PUBLIC[name].rpartition(".")[2]
    file = Path(vitmed.__file__).parent / "commands" / f"{module}.py"
    text = file.read_text(encoding="utf-8").partition(f"\ndef {name}(")[2].partition('\n    """')[0]
    function = ast.parse(f"def {name}({text} ...").body[0]  # the header alone: to parse all files takes 0.2 s
    assert isinstance(function, ast.FunctionDef)
    header = function.args
    arguments: list[ast.arg] = [*header.args, *header.kwonlyargs]
    defaults = [*[None] * (len(header.args) - len(header.defaults)), *header.defaults, *header.kw_defaults]
    named = [*zip(arguments, defaults, strict=True), (header.vararg, None), (header.kwarg, None)]
    # Any other name, such as a class of a module that is not loaded, is `Any`.
    names, parameters = defaultdict(lambda: Any, vars(builtins) | vars(options) | {"options": options}), []
    for argument, default in named:
        if argument is not None:
            text = "" if argument.annotation is None else ast.unparse(argument.annotation)
            declares = text.startswith(("Annotated[", "options.")) or text in vars(options)
            annotation: Any = eval(text, {}, names) if declares else None
            if argument is header.vararg:  # several values
                annotation = Annotated[Sequence[get_args(annotation)[0]], annotation.__metadata__[0]]  # type: ignore[misc]
            given = inspect.Parameter.empty if default is None else None
            parameters.append(inspect.Parameter(argument.arg, KEYWORD, default=given, annotation=annotation))
    return parameters


def _declared(parameter: inspect.Parameter, how: Argument | Option) -> inspect.Parameter:
    """The parameter for typer: the first type of its union, and None where it is not given."""
    kind, several = get_args(parameter.annotation)[0], False
    while get_args(kind):
        several = several or get_origin(kind) not in (Union, UnionType)
        kind = get_args(kind)[0]  # Path of `Path | str | None`, list[str] of `Sequence[str | Path]`
    kind = list[kind] if several else kind  # type: ignore[valid-type]
    if isinstance(how, Argument):
        info = typer.Argument(help=how.help, metavar=how.metavar)
    else:
        spelled = how.names.split() or [f"--{parameter.name.replace('_', '-')}"]
        limits: dict[str, Any] = {"min": how.min, "max": how.max}
        info = typer.Option(*spelled, help=how.help, metavar=how.metavar, rich_help_panel=how.panel, **limits)
    required = parameter.default is inspect.Parameter.empty
    return parameter.replace(kind=KEYWORD, annotation=Annotated[kind if required else kind | None, info])


def _field(keyword: str, place: str, kind: type[RunConfig]) -> inspect.Parameter:
    """The parameter of a field for typer: type, spelling, help and panel; None where it is not given."""
    section, _, name = place.partition(".")
    field = fields_of(kind, section)[name]
    flag = flag_of(field)
    assert flag is not None
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, UnionType):  # `int | None`; of `str | list[float]` the text
        annotation = get_args(annotation)[0]
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    typed = str if choices or flag.text else annotation
    help_text = (field.description or "").partition(". ")[0].rstrip(".") + "."
    panel = FIRST if flag.first else flag.panel or kind.model_fields[section].annotation.panel  # type: ignore[union-attr]
    how = Option(help_text, " ".join(spellings(keyword, field)), flag.metavar or "|".join(choices) or None, panel)
    return _declared(inspect.Parameter(keyword, KEYWORD, default=None, annotation=Annotated[typed, how]), how)


# --- the commands


class Verb(NamedTuple):
    """A command that calls its function and prints the result, and does nothing else.

    Attributes:
        content: the result as JSON, by default its `to_dict`.
        show: prints it otherwise, where messages do not say it all.
        function: in `vitmed.commands`; default: that of `vitmed` with the name of the command.
        unread: the images that were read, and path and problem of the others, which end the command with an error.
    """

    help: str
    content: Callable[[Any], dict[str, Any]] = lambda result: result.to_dict()
    show: Callable[[Any], None] = lambda result: None
    function: str = ""
    unread: Callable[[Any], tuple[int, Sequence[tuple[str, str]]]] = lambda result: (0, ())


VERBS = {
    "plan": Verb(
        "Show the settings that train would use for a folder, why, and how long it takes; write them as a config to "
        "edit.\n\nplan takes the settings of train.",
        lambda plan: {"file": str(plan.file), "minutes": plan.minutes, "plan": [d._asdict() for d in plan.decisions]},
    ),
    "probe": Verb(
        "Evaluate pretrained weights by a linear model of their features, without training a network.\n\n"
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
        "Find the best model that a time allows: check, rank weights, train folds or one network, test once.",
        lambda result: terminal.in_folder(result, result.content),
    ),
    "cross-validate": Verb(
        "Train and test on every fold in turn, 5 by default; pool what each model says of images it never saw.",
        terminal.train_json,
    ),
    "ensemble": Verb(
        "Join folds or runs into one model, which predict, evaluate, serve and most others take.",
        lambda result: terminal.in_folder(result, {"shares": result.shares, "val": result.val.metrics.to_dict()}),
    ),
    "tune": Verb(
        "Search for better settings on validation; train the winner once more, and test that once.",
        lambda result: terminal.in_folder(result, result.study.to_dict()),
        terminal.print_tune,
    ),
    "runs": Verb(
        "List runs with their data, model, metric, time and state; folds below their cross-validation.",
        show=terminal.print_runs,
    ),
    "diff": Verb(
        "Report what differs between two runs: settings, images, versions, and the first number of each.",
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
        show=lambda size: typer.echo("\n".join(import_module("vitmed.metrics.sample_size").in_words(size))),
    ),
    "stress": Verb(
        "Evaluate a checkpoint on corrupted images: blur, noise, JPEG, brightness, contrast, stain, resolution.",
        lambda result: terminal.in_folder(result, result.content.to_dict()),
    ),
    "export": Verb(
        "Write a model as a folder, or as a file that decides as the checkpoint does, for other programs.",
        lambda result: {"file": str(result.file), "bytes": result.size, "gate": result.gate and result.gate.to_dict()},
    ),
    "explain": Verb(
        "Draw where the network looked, and report what the test of such maps found.",
        lambda result: terminal.in_folder(result, json.loads((result.folder / "explain.json").read_text("utf-8"))),
        unread=lambda result: (len(result.predictions), result.predictions.errors),
    ),
    "merge": Verb(
        "Join the parts of vitmed predict --output to one table, and check that every image is there once.",
        terminal.written_json,
        unread=lambda result: (result.read, result.errors),
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
        result = terminal.answer(getattr(of, name), options, as_json, verb.content, verb.show)
        terminal.refuse_unread(*verb.unread(result))

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

            words = [word for word in sys.argv[2:] if word != "--strict"]  # nor --on and its value
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
        written = terminal.answer(vitmed.predict_shard, options, as_json, terminal.written_json)
        terminal.refuse_unread(written.read, written.errors)
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
    terminal.refuse_unread(len(result), result.errors)


def serve(**options: Any) -> None:
    """Answer images over HTTP until Ctrl-C, on an address for programs and a page."""
    vitmed.serve(**options)


def summary(**options: Any) -> None:
    """Print torchinfo's table of a model: layers, shapes, parameters, multiply-adds."""
    typer.echo(vitmed.summary(**options))


APPS = {run.__name__: command(run) for run in (train, check, serve, summary)}
APPS |= {"predict": command(predict, "predict_shard"), "data": data, "weights": weights}
for name, verb in VERBS.items():
    function = verb.function or name.replace("-", "_")
    APPS[name] = command(calling(function, verb), function)
