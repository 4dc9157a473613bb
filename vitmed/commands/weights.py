"""`vitmed weights`: public weights by name. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from vitmed.core.downloads import unconnected
from vitmed.core.options import Argument, Offline, Option
from vitmed.data.folders import new_outside_data
from vitmed.models.weights.catalogue import entry_of, fetch, forbids_commerce, public_weights, weight_path


def weights_table() -> list[dict[str, Any]]:
    """List a row per catalogue entry: its fields, whether its file is in the cache, and the path."""
    rows = []
    for name, entry in public_weights().items():
        path = weight_path(name)
        here = {"non_commercial": forbids_commerce(entry.licence), "here": path.is_file(), "path": str(path)}
        rows.append({"name": name, **entry._asdict(), **here})
    return rows


def fetch_weights(
    names: Annotated[Sequence[str], Argument("Names of `vitmed weights list`.", "NAME...")],
    folder: Annotated[Path | str | None, Option("Folder to use instead of the cache.", "--to")] = None,
    offline: Offline = False,
) -> list[tuple[str, Path]]:
    """Download missing files, check all of them, and return names and paths. An unknown name raises before that.

    Raises:
        VitmedError: see `catalogue.fetch`.
    """
    for name in names:
        entry_of(name)
    if folder is not None:
        new_outside_data(folder, filled=True)
    with unconnected(offline):
        return [(name, fetch(name, folder)) for name in names]
