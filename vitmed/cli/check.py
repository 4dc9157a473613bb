"""`vitmed check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitmed.cli.app import app
from vitmed.cli.options import AsJson, Frame, GroupRegex, Groups, Labels
from vitmed.cli.terminal import print_check, print_json, ui


@app.command()
def check(
    data: Annotated[Path, typer.Argument(help="Any folder of images, with or without classes and splits.")],
    group_regex: GroupRegex = None,
    groups: Groups = None,
    labels: Labels = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the report; never overwritten.")] = Path(
        "data-check"
    ),
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 3 where there is an error or a warning.")] = False,
    leakage_gap: Annotated[
        bool, typer.Option("--leakage-gap", help="Fit cheap baselines by image and by patient; tell the gap.")
    ] = False,
    frame: Frame = None,
    no_index: Annotated[bool, typer.Option("--no-index", help="Decode every file, and remember nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a folder of images: files, copies, patients, shortcuts, names of persons."""
    from vitmed.commands.check import check as command

    options = {
        "group_regex": group_regex,
        "groups": groups,
        "labels": labels,
        "output": output,
        "leakage_gap": leakage_gap,
        "frame": frame,
        "index": not no_index,
    }
    found = command(data, ui=ui(), **options)  # type: ignore[arg-type]
    if as_json:
        print_json({"folder": str(found.folder), **found.content})
    else:
        print_check(found)
    if strict and not found.clean:
        from vitmed.commands.check import CheckFailed

        raise CheckFailed(found)
