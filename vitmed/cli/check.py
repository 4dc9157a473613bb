"""`vitmed check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.flags import command, given
from vitmed.cli.options import AsJson
from vitmed.cli.terminal import print_check, print_json, ui


def check(
    data: Annotated[Path, typer.Argument(help="Any folder of images, with or without classes and splits.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the report; never overwritten.")] = Path(
        "data-check"
    ),
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 3 if there is an error or a warning.")] = False,
    leakage_gap: Annotated[
        bool, typer.Option("--leakage-gap", help="Fit cheap baselines by image and by patient; report the gap.")
    ] = False,
    no_index: Annotated[bool, typer.Option("--no-index", help="Decode every file, and remember nothing.")] = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Report what is wrong with a folder of images: files, copies, patients, shortcuts, names of persons."""
    from vitmed.commands.check import CheckFailed
    from vitmed.commands.check import check as run

    found = run(data, output=output, leakage_gap=leakage_gap, index=not no_index, ui=ui(), **given(flags))
    if as_json:
        print_json({"folder": str(found.folder), **found.content})
    else:
        print_check(found)
    if strict and not found.clean:
        raise CheckFailed(found)


app = command(check, "data.group_regex", "data.groups", "data.labels", "data.frame")
