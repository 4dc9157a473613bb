"""`vitmed evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.flags import command, given
from vitmed.cli.options import FIRST, AsJson, Fail, Leakage, OtherData, Report, Split
from vitmed.cli.terminal import evaluated, ui


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="best.pt of a run, or a predictions.csv.")],
    data: OtherData = None,
    split: Split = "test",
    output: Report = None,
    unlike: Annotated[
        Path | None, typer.Option(help="Folder of other images, to see whether the model notices them.", **FIRST)
    ] = None,
    fail_under: Fail = None,
    allow_leakage: Leakage = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Evaluate a checkpoint on its held-out test split, or on another labelled folder, and write the report."""
    from vitmed.commands.evaluate import evaluate as run

    options: dict[str, Any] = {"data": data, "split": split, "output": output, "unlike": unlike, **given(flags)}
    evaluated(
        lambda: run(checkpoint, fail_under=fail_under or (), allow_leakage=allow_leakage, ui=ui(), **options),
        as_json,
        lambda result: {"folder": str(result.folder), **result.metrics.to_dict()},
    )


app = command(evaluate, "data.group_regex", "data.groups", "data.labels", "evaluate", "train.device")
