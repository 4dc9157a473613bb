"""Arguments and options: those of configuration fields, those that several commands share, and `--help` in panels."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

from vitmed.cli.terminal import TYPER, Terminal
from vitmed.core.config import Config, RunConfig
from vitmed.core.flags import fields_of, flag_of, flags_of, spellings
from vitmed.core.messages import listening
from vitmed.core.settings import PANELS

FIRST, *_, LAST = PANELS
Options = dict[str, Any]  # keyword of a Python function -> typer's annotation
FEW = 16  # up to this number of options need no panels


class Command(TyperCommand):
    """A command whose `--help` groups the options under `PANELS`, then under headings of its own."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown = [(param, row) for param in self.get_params(ctx) if (row := param.get_help_record(ctx)) is not None]
        panels = [_panel(param) for param, _ in shown]
        if len(shown) <= FEW:
            panels = ["Options" if panel in PANELS else panel for panel in panels]
        else:  # a panel of one option joins the first
            panels = [FIRST if panel in PANELS and panels.count(panel) == 1 else panel for panel in panels]
        for title in dict.fromkeys(("Arguments", "Options", *PANELS, *panels)):  # those of one command last
            rows = [row for panel, (_, row) in zip(panels, shown, strict=True) if panel == title]
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(f"{flag:30}", text) for flag, text in rows])


def _panel(param: Any) -> str:
    if param.param_type_name == "argument":
        return "Arguments"
    return getattr(param, "rich_help_panel", None) or LAST


def command(
    options: Options, *places: str, fields: dict[str, str] | None = None, kind: type[RunConfig] = Config
) -> Callable[[Callable[..., None]], typer.Typer]:
    """Make a function a typer application of one command; the function gets the options that were given, checked.

    Args:
        options: keyword -> typer's annotation, of options beside the parameters of the function.
        places: sections ("data") and fields ("train.device") of the configuration to offer as flags; default all.
        fields: keyword -> field, instead of `places`.
        kind: the configuration of these fields.
    """
    fields = flags_of(kind, *places) if fields is None else fields
    flags = {name: option(name, place, kind) for name, place in fields.items()}

    def make(run: Callable[..., None]) -> typer.Typer:
        @functools.wraps(run)
        def call(**given: Any) -> None:
            from vitmed.core.inputs import check_inputs

            chosen = {name: value for name, value in given.items() if value is not None}
            with listening(Terminal(chosen.pop("quiet", False))):
                check_inputs(chosen, kind if "sets" in options else None)
                run(**chosen)

        own = [p for p in inspect.signature(run, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        shared = options | QUIET
        parameters = [*map(_keyword, shared, shared.values()), *own, *map(_keyword, flags, flags.values())]
        call.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in parameters])  # type: ignore[attr-defined]
        app = typer.Typer(**TYPER | {"no_args_is_help": False})
        app.command(cls=Command)(call)
        return app

    return make


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    """A parameter that is None where it is not given; required if it cannot be None."""
    required = NoneType not in get_args(get_args(annotation)[0])
    default = inspect.Parameter.empty if required else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def option(keyword: str, place: str, kind: type[RunConfig]) -> Any:
    """A typer annotation for a field: type, spelling, help and panel."""
    section, _, name = place.partition(".")
    field = fields_of(kind, section)[name]
    flag = flag_of(field)
    assert flag is not None
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, UnionType):  # `int | None`; of `str | list[float]` the text
        annotation = get_args(annotation)[0]
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    typed = str if choices or flag.text else annotation
    panel = FIRST if flag.first else flag.panel or kind.model_fields[section].annotation.panel  # type: ignore[union-attr]
    return Annotated[
        typed | None,
        typer.Option(
            *spellings(keyword, field),
            help=(field.description or "").partition(". ")[0].rstrip(".") + ".",
            metavar=flag.metavar or "|".join(choices) or None,
            rich_help_panel=panel,
        ),
    ]


def flag(kind: Any, *spelled: str, panel: str = LAST, **how: Any) -> Any:
    """A flag; where it is not given, the default of the Python function counts.

    Args:
        kind: the type of its value.
        spelled: such as "--output", "-o"; default: the keyword.
        panel: its heading in --help.
        how: further arguments of `typer.Option`, such as help.
    """
    return Annotated[kind | None, typer.Option(*spelled, rich_help_panel=panel, **how)]


def argument(kind: Any, text: str, metavar: str | None = None) -> Any:
    """A positional argument with its help; `Path | None` need not be given."""
    return Annotated[kind, typer.Argument(help=text, metavar=metavar)]


def output(text: str, panel: str = LAST) -> Options:
    """--output with its help."""
    return {"output": flag(Path, "--output", "-o", help=text, panel=panel)}


ONLY = "Print only warnings and errors on stderr."
Devices = Annotated[
    int | None,
    typer.Option(
        "--devices", min=1, metavar="N", rich_help_panel="Training",
        help="Train on this many GPUs of this machine, or with as many processes on its CPU; docs/scale.md.",
    ),
]  # fmt: skip
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help=ONLY)]
NewFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]
Offline = Annotated[bool, typer.Option("--offline", help="Open no connection.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
FORCE: Options = {"force": flag(bool, "--force", help="Replace an existing file.", panel=FIRST)}
QUIET: Options = {"quiet": flag(bool, "--quiet", "-q", help=ONLY)}
OFFLINE: Options = {"offline": flag(bool, "--offline", help="Open no connection.", panel="Model")}
GATES: Options = {
    "fail_under": flag(list[str], "--fail-under", metavar="METRIC=VALUE", help="Exit code 6 if the result is worse.")
}
SETTINGS: Options = {  # of a command that reads a configuration
    "data": argument(Path | None, "Folder: <class>/ or {train,val,test}/<class>/."),
    "config": flag(str, "--config", "-c", metavar="FILE|NAME", help="YAML file, or name of a recipe.", panel=FIRST),
    "sets": flag(
        list[str], "--set", metavar="SECTION.FIELD=VALUE", help="Any field of docs/configuration.md.", panel="Training"
    ),
}
RUN: Options = {  # of a command that makes a run folder
    **output("Folder in which to make the run folder; default runs.", FIRST),
    "name": flag(str, help="Name of the run folder; default date, data and model."),
}
RESUME: Options = {"resume": flag(Path, help="Run folder of an interrupted run to continue.", panel="Training")}
PARALLEL: Options = {  # of a command that makes several runs
    "parallel": flag(
        int, min=1, metavar="N", help="Processes that train several runs at the same time; default 1.", panel="Patients"
    )
}
EVALUATED: Options = {  # which images to evaluate
    "data": flag(Path, help="Another labelled folder; classes are matched by name.", panel=FIRST),
    "split": flag(str, metavar="test|val|train", help="Split to evaluate; default test.", panel=FIRST),
    "allow_leakage": flag(
        bool, "--allow-leakage/--no-allow-leakage", panel=FIRST,
        help="Also evaluate images that the model was trained on.",
    ),
}  # fmt: skip


def precision(default: str) -> Options:
    """--precision with its help."""
    text = f"auto takes bf16 where it is faster and changed no decision on validation; default {default}."
    return {"precision": flag(str, metavar="auto|fp32|bf16", help=text)}


PREDICTED: Options = {  # images to predict, and the checkpoint
    "images": argument(list[str], "Image files, folders or patterns."),
    "checkpoint": flag(Path, help="Default: best.pt of the newest run in --runs."),
    "runs": flag(Path, help="Folder of the runs; default runs."),
}
