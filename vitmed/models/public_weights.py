"""Fetch and open public weights by name, for `--weights NAME` and `vitmed weights`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vitmed.core.cache_folder import cache_folder
from vitmed.core.downloads import Source, fetch_file
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.ui import Ui
from vitmed.models.weights_catalogue import entry_of, is_name, is_path, unknown_name

if TYPE_CHECKING:
    from vitmed.models.pretrained import Weights


def open_weights(value: str, ui: Ui, offline: bool = False) -> Weights:
    """The weights that `--weights` names: a file, or an entry of the catalogue, which vitmed downloads if necessary.

    Raises:
        CheckpointError: no such file, or it cannot be used or fetched.
        UsageError: neither a file nor a name; lists similar names.
    """
    from vitmed.models.pretrained import read_weights

    if not value or "://" in value:
        fix = "download it first, or: vitmed weights list"
        raise UsageError(f"--weights {value!r}: neither a file nor a name", fix)
    if not is_name(value):
        if not is_path(value):
            raise unknown_name(value)
        return read_weights(value)
    entry, path = entry_of(value), fetch(value, ui, offline)
    ui.say(f"weights {value}: {entry.model}, {entry.kind}, licence {entry.licence}; {path}")
    return read_weights(path, entry)


def weight_path(name: str, folder: str | Path | None = None) -> Path:
    """The path of an entry's file, present or not, in `folder` (default the cache). UsageError: no such entry."""
    return Path(folder or cache_folder()).absolute() / "weights" / name / entry_of(name).file


def fetch(name: str, ui: Ui | None = None, offline: bool = False, folder: str | Path | None = None) -> Path:
    """The checked file of an entry of the catalogue, downloaded if necessary.

    Args:
        offline: open no connection; see also `downloads.is_offline`.
        folder: default the cache.

    Raises:
        CheckpointError: it cannot be fetched, or its size or hash is wrong.
        UsageError: no such entry, no disk space, no permission to write, or a package is missing.
    """
    entry = entry_of(name)
    checksum = f"sha256:{entry.sha256}" if entry.sha256 else None
    again = f"vitmed weights fetch {name}"
    source = Source(name, entry.url, entry.size, checksum, entry.licence, again, CheckpointError, entry.hub)
    return fetch_file(source, weight_path(name, folder), ui, offline, warn=entry.non_commercial)
