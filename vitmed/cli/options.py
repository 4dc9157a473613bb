"""Arguments and options that are not fields of the configuration: keyword of the Python function -> annotation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.flags import FIRST, LAST

Options = dict[str, Any]


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


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
NewFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]
OFFLINE: Options = {"offline": flag(bool, "--offline", help="Open no connection.", panel="Model")}
GATES: Options = {
    "fail_under": flag(list[str], "--fail-under", metavar="METRIC=VALUE", help="Exit code 6 if the result is worse.")
}
SETTINGS: Options = {  # of a command that reads a configuration
    "data": argument(Path | None, "Folder: <class>/ or {train,val,test}/<class>/; or FILE.npz."),
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
EVALUATED: Options = {  # which images to evaluate
    "data": flag(Path, help="Another labelled folder; classes are matched by name.", panel=FIRST),
    "split": flag(str, metavar="test|val|train", help="Split to evaluate; default test.", panel=FIRST),
    "allow_leakage": flag(
        bool, "--allow-leakage/--no-allow-leakage", panel=FIRST,
        help="Also evaluate images that the model was trained on.",
    ),
}  # fmt: skip
PREDICTED: Options = {  # images to classify, and the checkpoint
    "images": argument(list[str], "Image files, folders or patterns."),
    "checkpoint": flag(Path, help="Default: best.pt of the newest run in --runs."),
    "runs": flag(Path, help="Folder of the runs; default runs."),
}
