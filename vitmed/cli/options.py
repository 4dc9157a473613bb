"""Arguments and options of several commands that are not fields of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FIRST, MODEL, TRAINING = (
    {"rich_help_panel": name} for name in ("Most used", "Model", "Training")
)  # without it: "Output"

Data = Annotated[Path | None, typer.Argument(help="Folder: <class>/ or {train,val,test}/<class>/; or FILE.npz.")]
Images = Annotated[list[str], typer.Argument(help="Image files, folders or patterns.")]
NewestRun = Annotated[Path | None, typer.Option(help="Default: best.pt of the newest run in --runs.")]
Runs = Annotated[Path, typer.Option(help="Folder of the runs.")]
OtherData = Annotated[Path | None, typer.Option(help="Another labelled folder; classes are matched by name.", **FIRST)]
Split = Annotated[str, typer.Option(metavar="test|val|train", help="Split to evaluate.", **FIRST)]
Report = Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the report.", **FIRST)]
Leakage = Annotated[
    bool,
    typer.Option(
        "--allow-leakage/--no-allow-leakage", help="Also evaluate images that the model was trained on.", **FIRST
    ),
]
ConfigFile = Annotated[
    str | None, typer.Option("--config", "-c", metavar="FILE|NAME", help="YAML file, or name of a recipe.", **FIRST)
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder in which to make the run folder.", **FIRST)]
Name = Annotated[str | None, typer.Option(help="Name of the run folder; default date, data and model.")]
Resume = Annotated[Path | None, typer.Option(help="Run folder of an interrupted run to continue.", **TRAINING)]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Any field of docs/configuration.md.", **TRAINING),
]
Offline = Annotated[bool, typer.Option("--offline", help="Open no connection.", **MODEL)]
Fail = Annotated[
    list[str] | None, typer.Option("--fail-under", metavar="METRIC=VALUE", help="Exit code 6 if the result is worse.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
