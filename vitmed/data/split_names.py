"""The splits, and the folder names that mean them."""

from __future__ import annotations

SPLITS = ("train", "val", "test")
SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
SPLIT_WORDS = {word: name for name, words in SPLIT_NAMES.items() for word in words}


def split_of(word: str) -> str | None:
    """train, val or test for a usual spelling in a folder name or a table, else None."""
    return SPLIT_WORDS.get(word.lower())
