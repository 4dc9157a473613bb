"""The typer application, and the options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

RESEARCH = "Research use only; not a medical device."

app = typer.Typer(
    help=f"Fine-tune Vision Transformers on folders of medical images. {RESEARCH}",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from vitmed import __version__

        typer.echo(f"vitmed {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    pass
