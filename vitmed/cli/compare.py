"""`vitmed compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitmed.cli.flags import command
from vitmed.cli.options import AsJson
from vitmed.cli.terminal import print_comparison, print_json, ui


def compare(
    results: Annotated[list[Path], typer.Argument(help="predictions.csv, folder of a report, or run folder.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for compare.json and a picture.")
    ] = None,
    resamples: Annotated[int, typer.Option(min=0, help="Bootstrap resamples behind the intervals.")] = 2000,
    as_json: AsJson = False,
) -> None:
    """Compare models on the same images: differences with intervals, tests, and a verdict in words."""
    from vitmed.commands.compare import compare as run

    found = run(*results, output=output, resamples=resamples, ui=ui())
    if as_json:
        print_json(found.content.to_dict())
    else:
        print_comparison(found)


app = command(compare, fields={})
