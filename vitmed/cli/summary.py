"""`vitmed summary`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vitmed.cli.flags import command, given


def summary(
    model: Annotated[str, typer.Argument(help="A size (vit_tiny), a recipe (mnist), or a checkpoint.")] = "vit_tiny",
    num_classes: Annotated[int | None, typer.Option(help="Default 1000, or the checkpoint's.")] = None,
    **flags: Any,
) -> None:
    """Print torchinfo's table of a model: layers, shapes, parameters, multiply-adds."""
    from vitmed.commands.summary import summary as run

    typer.echo(run(model, num_classes, **given(flags)))


app = command(summary, "model.image_size", "model.patch_size", "model.channels")
