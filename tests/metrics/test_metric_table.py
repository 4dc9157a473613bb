"""The words for methods: every reference is used."""

from __future__ import annotations

from vitmed.metrics.metric_table import methods


def test_every_reference_is_used_and_exists() -> None:
    found = methods()
    entries = (*found.intervals.values(), *found.tests.values())
    used = {source for entry in entries for source in entry.sources} | {
        s for d in found.definitions.values() for s in d
    }
    assert used == set(found.references)
    assert all(entry.sources for entry in entries)
