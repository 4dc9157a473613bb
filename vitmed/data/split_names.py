"""The splits, and the folder names that mean them."""

from __future__ import annotations

SPLITS = ("train", "val", "test")
SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}


def split_of(word: str) -> str | None:
    """train, val or test for a usual spelling in a folder name or a table, else None."""
    return next((name for name, spellings in SPLIT_NAMES.items() if word.lower() in spellings), None)
