"""Where vitmed keeps what it would else have to fetch or compute again. Everything there can be deleted at any time."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The folder: VITMED_CACHE, else `vitmed` in the cache folder of the system."""
    if named := os.environ.get("VITMED_CACHE"):
        return Path(named).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local", "vitmed", "cache")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "vitmed"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "vitmed")
