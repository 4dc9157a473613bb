"""`vitmed data list`, `get` and `import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.app import SETTINGS
from vitmed.cli.options import AsJson, Offline
from vitmed.cli.terminal import plain, print_json, print_rich, ui

app = typer.Typer(help="Public data sets: list, fetch, and write as folders of images.", **SETTINGS)

NewFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]


@app.command("list")
def list_datasets(as_json: AsJson = False) -> None:
    """List public data sets: licence, size, and how to get them."""
    from vitmed.commands.data import datasets_table

    rows = datasets_table()
    if as_json:
        print_json({"datasets": rows})
    else:
        _print_datasets(rows)


@app.command("get")
def get_dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `vitmed data list`.")],
    folder: NewFolder,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Download a set, check it, and lay it out for `vitmed train`.

    An interrupted download continues where it stopped.
    """
    from vitmed.commands.data import fetch_dataset as command

    path = command(name, folder, offline, ui())
    if as_json:
        print_json({"folder": str(path)})


@app.command("import")
def import_files(
    source: Annotated[Path, typer.Argument(metavar="FILE_OR_FOLDER", help="MedMNIST .npz, CIFAR, MNIST, archives.")],
    folder: NewFolder,
    as_json: AsJson = False,
) -> None:
    """Write the files of a public set as folders of PNG images."""
    from vitmed.commands.data import import_dataset as command

    path = command(source, folder, ui())
    if as_json:
        print_json({"folder": str(path)})


def _print_datasets(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(caption="vitmed data get NAME DIR; docs/datasets.md")
    for title in ("name", "title", "images", "classes", "licence", "patients", "fetched"):
        table.add_column(title, justify="right" if title in ("images", "classes") else "left", overflow="fold")
    for row in rows:
        classes = "" if row["classes"] is None else str(row["classes"])
        fetched = "set by set" if len(row["sets"]) > 1 else "yes" if row["fetched"] else "by hand"
        images = f"{row['images']:,}"
        table.add_row(
            row["name"], plain(row["title"]), images, classes, plain(row["licence"]), row["patients"], fetched
        )
    by_set = [f"{row['name']}, set by set: {', '.join(sorted(row['sets']))}" for row in rows if len(row["sets"]) > 1]
    print_rich(table, *by_set, width=200)
