"""The words for methods: every reference is used."""

from __future__ import annotations

from vitmed.metrics.metric_table import DEFINITIONS, METHODS, REFERENCES, TESTS


def test_every_reference_is_used_and_exists() -> None:
    entries = (*METHODS.values(), *TESTS.values())
    used = {source for entry in entries for source in entry.sources} | {s for d in DEFINITIONS.values() for s in d}
    assert used == set(REFERENCES)
    assert all(entry.sources for entry in entries)
