"""`vitmed predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.flags import command, given
from vitmed.cli.options import AsJson, Images, NewestRun, Runs
from vitmed.cli.terminal import print_json, print_table, refuse_unread, ui
from vitmed.core.errors import UsageError


def predict(
    images: Images,
    checkpoint: NewestRun = None,
    runs: Runs = Path("runs"),
    top_k: Annotated[int, typer.Option(min=1, help="Classes to show.")] = 3,
    csv: Annotated[Path | None, typer.Option(help="Write all predictions to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG of images with their predictions.")] = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Classify images: the class, its probability and the runners-up."""
    from vitmed.commands import predict as commands
    from vitmed.core.files import check_writable, write_bytes, write_text

    for file in (csv, plot):
        if file is not None:
            check_writable(file)  # now, not after all images
    if plot is not None and plot.suffix.lower() != ".png":
        raise UsageError(f"{plot}: the picture is a PNG", f"--plot {plot.with_suffix('.png')}")
    found = commands.predict(images, checkpoint=checkpoint, runs=runs, ui=ui(), **given(flags))
    if csv is not None:
        write_text(csv, found.to_csv(errors=True))
    if as_json:
        print_json(commands.predictions_json(found, top_k))
    else:
        print_table(found, top_k)
    if plot is not None and len(found):
        how = commands.preprocessing_of(checkpoint, runs, flags["frame"])
        write_bytes(plot, commands.prediction_picture(found, how))
    refuse_unread(found)


app = command(predict, "train.device", "data.frame")
