"""`vitmed data list`: which public data sets there are. Loads no torch."""

from __future__ import annotations

from typing import Any

from vitmed.data.cards import cards


def datasets_table() -> list[dict[str, Any]]:
    """One row per card: what the set is, how its patients are known, and what `vitmed data get` can fetch of it."""
    return [
        {
            "name": name,
            "title": card.title,
            "images": card.total,
            "classes": len(card.classes) if isinstance(card.classes, list) else None,
            "licence": card.terms,
            "patients": "in the file names" if card.group_regex else "not in the file names",
            "group_regex": card.group_regex,
            "fetched": bool(card.sets),
            "sets": list(card.sets),
            "source": card.source,
            "by_hand": card.by_hand,
        }
        for name, card in cards().items()
    ]
