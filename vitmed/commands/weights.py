"""`vitmed weights`: public weights by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from vitmed.core.options import Argument, Offline, Option
from vitmed.core.places import refuse_file
from vitmed.data.folders import refuse_among_classes
from vitmed.models.weights.catalogue import CATALOGUE, entry_of, fetch, weight_path


def weights_table() -> list[dict[str, Any]]:
    """One row per catalogue entry: its fields, whether its file is in the cache, and the path."""
    return [
        {
            "name": name,
            **entry._asdict(),
            "non_commercial": entry.non_commercial,
            "here": weight_path(name).is_file(),
            "path": str(weight_path(name)),
        }
        for name, entry in CATALOGUE.items()
    ]


def fetch_weights(
    names: Annotated[Sequence[str], Argument("Names of `vitmed weights list`.", "NAME...")],
    folder: Annotated[Path | str | None, Option("Folder to use instead of the cache.", "--to")] = None,
    offline: Offline = False,
) -> list[Path]:
    """Download missing files, check all of them, and return their paths.

    Args:
        names: catalogue entries; an unknown name raises before any download.
        folder: replaces the cache, for example to carry the files to another machine.
        offline: open no connection: the files must be there already.

    Raises:
        VitmedError: see `catalogue.fetch`.
    """
    for name in names:
        entry_of(name)
    if folder is not None:
        refuse_file(folder)
        refuse_among_classes(folder)
    return [fetch(name, offline, folder) for name in names]
