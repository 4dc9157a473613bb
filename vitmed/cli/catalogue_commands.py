"""The commands of public data sets and public weights: `vitmed data ...` and `vitmed weights ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitmed.cli.options import AsJson, NewFolder, Offline, Quiet
from vitmed.cli.terminal import TYPER, Terminal, answer, print_datasets, print_json, print_weights
from vitmed.core.messages import listening

data = typer.Typer(help="Public data sets: list, fetch, and write as folders of images.", **TYPER)


@data.command("list")
def data_list(as_json: AsJson = False) -> None:
    """List public data sets: licence, size, and how to get them."""
    from vitmed.commands.data import datasets_table

    if as_json:
        print_json({"datasets": datasets_table()})
    else:
        print_datasets(datasets_table())


@data.command("get")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `vitmed data list`.")],
    folder: NewFolder,
    offline: Offline = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Download a set, check it, and lay it out for `vitmed train`.

    An interrupted download continues where it stopped.
    """
    from vitmed.commands.data import fetch_dataset

    options = {"name": name, "folder": folder, "offline": offline}
    with listening(Terminal(quiet)):
        answer(fetch_dataset, options, as_json, lambda path: {"folder": str(path)})


@data.command("import")
def data_import(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="FILE_OR_FOLDER...", help="MedMNIST .npz, WebDataset tars, CIFAR, MNIST, archives."),
    ],
    folder: NewFolder,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write the files of a public set as folders of images."""
    from vitmed.commands.data import import_dataset

    options = {"source": sources, "folder": folder}
    with listening(Terminal(quiet)):
        answer(import_dataset, options, as_json, lambda path: {"folder": str(path)})


weights = typer.Typer(help="Public weights by name: list, fetch and find.", **TYPER)


@weights.command("list")
def weights_list(as_json: AsJson = False) -> None:
    """List public weights: size, licence, and which are on this machine."""
    from vitmed.commands.weights import weights_table

    if as_json:
        print_json({"weights": weights_table()})
    else:
        print_weights(weights_table())


@weights.command("fetch")
def weights_fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of `vitmed weights list`.")],
    to: Annotated[Path | None, typer.Option(help="Folder to use instead of the cache.")] = None,
    offline: Offline = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Download and check weight files.

    An interrupted download continues where it stopped.
    """
    from vitmed.commands.weights import fetch_weights

    with listening(Terminal(quiet)):
        paths = fetch_weights(names, to, offline)
    if as_json:
        print_json({"paths": dict(zip(names, map(str, paths), strict=True))})
    else:
        typer.echo("\n".join(map(str, paths)))


@weights.command("where")
def weights_where(name: Annotated[str, typer.Argument(help="A name of `vitmed weights list`.")]) -> None:
    """Print the path of a fetched file; exit code 4 if there is none."""
    from vitmed.commands.weights import fetch_weights

    typer.echo(fetch_weights([name], offline=True)[0])
