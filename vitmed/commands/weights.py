"""`vitmed weights`: public weights by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitmed.core.ui import Ui
from vitmed.models.catalogue import CATALOGUE, entry_of
from vitmed.models.public_weights import fetch, weight_path


def weights_table() -> list[dict[str, Any]]:
    """One row per entry of the catalogue: its fields, and whether its file is in the cache and where."""
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
    names: Sequence[str], folder: str | Path | None = None, offline: bool = False, ui: Ui | None = None
) -> list[Path]:
    """Download what is not there yet, check all; the paths.

    Args:
        names: of entries of the catalogue; a wrong one ends the call before anything is fetched.
        folder: instead of the cache, for carrying to another machine.
        offline: open no connection.
        ui: where messages and progress go.

    Raises:
        VitmedError: see `public_weights.fetch`.
    """
    for name in names:
        entry_of(name)
    return [fetch(name, ui, offline, folder) for name in names]


def find_weights(name: str) -> Path:
    """The checked path of an entry's file. Raises CheckpointError, which says how to get it, where it is missing."""
    return fetch(name, offline=True)
