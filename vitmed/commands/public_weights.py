"""`vitmed weights`, and `--weights NAME`: public weights by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitmed.catalogue import CATALOGUE, entry_of, is_name, is_path, unknown
from vitmed.downloads import fetch, missing, where
from vitmed.errors import UsageError
from vitmed.ui import Ui

if TYPE_CHECKING:
    from vitmed.weights import Weights


def weights_table() -> list[dict[str, Any]]:
    """One row per entry of the catalogue: its fields, and whether its file is in the cache and where."""
    return [
        {
            "name": name,
            **entry._asdict(),
            "non_commercial": entry.non_commercial,
            "here": where(name).is_file(),
            "path": str(where(name)),
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
        VitmedError: see `downloads.fetch`.
    """
    for name in names:
        entry_of(name)
    return [fetch(name, ui, offline, folder) for name in names]


def find_weights(name: str) -> Path:
    """The path of an entry's file. Raises CheckpointError, which says how to get it, where it is not there."""
    path = where(name)
    if not path.is_file():
        raise missing(name, path)
    return path


def open_weights(value: str, ui: Ui, offline: bool = False) -> Weights:
    """What `--weights` names: a file, or else an entry of the catalogue, fetched where it is not there.

    Raises:
        CheckpointError: no such file, or one that cannot be used or had.
        UsageError: neither a file nor a name; lists near names.
    """
    from vitmed.weights import read_weights  # loads torch, which `vitmed weights` does without

    if not value or "://" in value:
        raise UsageError(f"--weights {value!r}: no file and no name", "download it first, or: vitmed weights list")
    if not is_name(value):
        if not is_path(value):
            raise unknown(value)
        return read_weights(value)
    entry, path = entry_of(value), fetch(value, ui, offline)
    ui.say(f"weights {value}: {entry.model}, {entry.kind}, licence {entry.licence}; {path}")
    return read_weights(path, entry)
