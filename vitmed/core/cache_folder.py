"""Where vitmed keeps what it would otherwise fetch or compute again. You can delete everything in it at any time."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder() -> Path:
    """The folder that VITMED_CACHE names, or `vitmed` in the cache folder of the system."""
    named = os.environ.get("VITMED_CACHE")
    return Path(named).expanduser() if named else user_cache_path("vitmed", appauthor=False)
