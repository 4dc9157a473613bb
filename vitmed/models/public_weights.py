"""`vitmed weights`, and `--weights NAME`: public weights by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vitmed.core.cache_folder import cache_folder
from vitmed.core.downloads import Source, bring, by_hand, is_offline
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.ui import Ui
from vitmed.models.catalogue import Entry, entry_of, is_name, is_path, unknown

if TYPE_CHECKING:
    from vitmed.models.pretrained import Weights


def open_weights(value: str, ui: Ui, offline: bool = False) -> Weights:
    """What `--weights` names: a file, or else an entry of the catalogue, fetched where it is not there.

    Raises:
        CheckpointError: no such file, or one that cannot be used or had.
        UsageError: neither a file nor a name; lists near names.
    """
    from vitmed.models.pretrained import read_weights

    if not value or "://" in value:
        raise UsageError(f"--weights {value!r}: no file and no name", "download it first, or: vitmed weights list")
    if not is_name(value):
        if not is_path(value):
            raise unknown(value)
        return read_weights(value)
    entry, path = entry_of(value), fetch(value, ui, offline)
    ui.say(f"weights {value}: {entry.model}, {entry.kind}, licence {entry.licence}; {path}")
    return read_weights(path, entry)


def where(name: str, folder: str | Path | None = None) -> Path:
    """The path that the file of an entry of the catalogue has, or will have, in `folder` (default the cache).

    Raises:
        UsageError: no such entry.
    """
    return Path(folder or cache_folder()).absolute() / "weights" / name / entry_of(name).file


def fetch(name: str, ui: Ui | None = None, offline: bool = False, folder: str | Path | None = None) -> Path:
    """The checked file of an entry of the catalogue: from the cache, else downloaded.

    Args:
        name: of an entry of the catalogue.
        ui: where messages and progress go.
        offline: open no connection; see also `is_offline`.
        folder: instead of the cache.

    Raises:
        CheckpointError: it cannot be had, or is not what it should be.
        UsageError: no such entry, no room or no right to write, or a package is missing.
    """
    entry, path = entry_of(name), where(name, folder)
    if path.is_file() or not is_offline(offline):
        return bring(_source(name, entry), path, ui, offline, warn=entry.non_commercial)
    raise missing(name, path)


def missing(name: str, path: Path) -> CheckpointError:
    """The error for weights that are not there: where to get them, what they should be, and where to put them."""
    source = _source(name, entry_of(name))
    return CheckpointError(f"the weights {name} are not on this machine: {path} is missing", by_hand(source, path))


def _source(name: str, entry: Entry) -> Source:
    checksum = f"sha256:{entry.sha256}" if entry.sha256 else None
    again = f"vitmed weights fetch {name}"
    return Source(name, entry.url, entry.size, checksum, entry.licence, again, CheckpointError, entry.hub)
