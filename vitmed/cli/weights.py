"""`vitmed weights list`, `fetch` and `where`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.app import SETTINGS
from vitmed.cli.options import AsJson, Offline
from vitmed.cli.terminal import print_json, print_rich, ui

app = typer.Typer(help="Public weights by name: list, fetch and find.", **SETTINGS)


@app.command("list")
def list_weights(as_json: AsJson = False) -> None:
    """List public weights: size, licence, and which are on this machine."""
    from vitmed.commands.weights import weights_table

    rows = weights_table()
    if as_json:
        print_json({"weights": rows})
    else:
        _print_weights(rows)


@app.command("fetch")
def fetch_weights(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of `vitmed weights list`.")],
    to: Annotated[Path | None, typer.Option(help="Folder to use instead of the cache.")] = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Download and check weight files.

    An interrupted download continues where it stopped.
    """
    from vitmed.commands.weights import fetch_weights as command

    paths = command(names, to, offline, ui())
    if as_json:
        print_json({"paths": dict(zip(names, map(str, paths), strict=True))})
    else:
        typer.echo("\n".join(map(str, paths)))


@app.command("where")
def find_weights(name: Annotated[str, typer.Argument(help="A name of `vitmed weights list`.")]) -> None:
    """Print the path of a fetched file; exit code 4 if there is none."""
    from vitmed.commands.weights import find_weights as command

    typer.echo(command(name))


def _print_weights(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(caption="MB: of the file. vitmed weights fetch NAME; docs/weights.md")
    for title in ("name", "model", "trained", "MB", "px", "licence", "here"):
        table.add_column(title, justify="right" if title in ("MB", "px") else "left", overflow="fold")
    for row in rows:
        licence = row["licence"] + (" (token)" if row["gated"] else "")
        size, here = f"{row['size'] / 1e6:,.0f}", "yes" if row["here"] else "no"
        table.add_row(row["name"], row["model"], row["kind"], size, str(row["image_size"]), licence, here)
    print_rich(table, width=200)
