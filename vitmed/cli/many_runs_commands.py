"""The commands about many runs: training them, joining them, and looking at them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

import vitmed
from vitmed.cli.options import FIRST, GATES, OFFLINE, PARALLEL, RESUME, RUN, SETTINGS, AsJson, Options, command, flag
from vitmed.cli.terminal import answer, train_json

JOIN: Options = {
    "join": flag(Path, metavar="DIR", help="Help another process with the runs in this folder.", panel=FIRST),
}


@command({**SETTINGS, **RUN, **RESUME, **PARALLEL, **JOIN, **GATES, **OFFLINE})
def cross_validate(as_json: AsJson = False, **options: Any) -> None:
    """Train and test on every fold in turn, 5 by default; pool what each model says of images it never saw."""
    answer(vitmed.cross_validate, options, as_json, train_json)


MANY_RUNS: dict[str, typer.Typer] = {"cross-validate": cross_validate}
