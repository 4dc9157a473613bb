"""The folder for downloads and decoded images. You can delete its content at any time."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder() -> Path:
    """The folder in VITMED_CACHE, or `vitmed` in the system's cache folder."""
    named = os.environ.get("VITMED_CACHE")
    return Path(named).expanduser() if named else user_cache_path("vitmed", appauthor=False)
