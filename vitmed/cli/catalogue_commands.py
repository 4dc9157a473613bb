"""The commands of public data sets and public weights: `vitmed data ...` and `vitmed weights ...`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.options import AsJson, with_options
from vitmed.cli.terminal import TYPER, answer, print_datasets, print_weights

data = typer.Typer(help="Public data sets: list, fetch, and write as folders of images.", **TYPER)


@data.command("list")
@functools.partial(with_options, verb="")
def data_list(as_json: AsJson = False) -> None:
    """List public data sets: licence, size, and how to get them."""
    from vitmed.commands.data import datasets_table

    answer(datasets_table, {}, as_json, lambda rows: {"datasets": rows}, print_datasets)


@data.command("get")
@functools.partial(with_options, verb="data.fetch_dataset")
def data_get(as_json: AsJson = False, **options: Any) -> None:
    """Download a set, check it, and lay it out for `vitmed train`.

    An interrupted download continues where it stopped.
    """
    from vitmed.commands.data import fetch_dataset

    answer(fetch_dataset, options, as_json, lambda path: {"folder": str(path)})


@data.command("import")
@functools.partial(with_options, verb="data.import_dataset")
def data_import(as_json: AsJson = False, **options: Any) -> None:
    """Write the files of a public set as folders of images."""
    from vitmed.commands.data import import_dataset

    answer(import_dataset, options, as_json, lambda path: {"folder": str(path)})


weights = typer.Typer(help="Public weights by name: list, fetch and find.", **TYPER)


@weights.command("list")
@functools.partial(with_options, verb="")
def weights_list(as_json: AsJson = False) -> None:
    """List public weights: size, licence, and which are on this machine."""
    from vitmed.commands.data import weights_table

    answer(weights_table, {}, as_json, lambda rows: {"weights": rows}, print_weights)


@weights.command("fetch")
@functools.partial(with_options, verb="weights.fetch_weights")
def weights_fetch(as_json: AsJson = False, **options: Any) -> None:
    """Download and check weight files.

    An interrupted download continues where it stopped.
    """
    from vitmed.commands.data import fetch_weights

    def content(paths: list[Path]) -> dict[str, Any]:
        return {"paths": dict(zip(options["names"], map(str, paths), strict=True))}

    answer(fetch_weights, options, as_json, content, lambda paths: typer.echo("\n".join(map(str, paths))))


@weights.command("where")
def weights_where(name: Annotated[str, typer.Argument(help="A name of `vitmed weights list`.")]) -> None:
    """Print the path of a fetched file; exit code 4 if there is none."""
    from vitmed.commands.data import fetch_weights

    typer.echo(fetch_weights([name], offline=True)[0])
