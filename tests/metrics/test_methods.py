"""The words for methods: every key has some, and every reference is used."""

from __future__ import annotations

import re

from vitmed.metrics.methods import DEFINITIONS, METHODS, REFERENCES, TESTS


def test_every_reference_is_used_and_exists() -> None:
    entries = (*METHODS.values(), *TESTS.values())
    used = {source for entry in entries for source in entry.sources} | {s for d in DEFINITIONS.values() for s in d}
    assert used == set(REFERENCES)
    assert all(entry.sources for entry in entries)


def test_a_reference_has_authors_a_title_and_a_year() -> None:
    for text in REFERENCES.values():
        assert re.search(r"\b(18|19|20)\d\d[:;.]", text) and text.endswith(".") and text.count(". ") >= 2, text


def test_a_text_fits_into_a_sentence() -> None:
    for entry in (*METHODS.values(), *TESTS.values()):
        assert not entry.text.endswith(".") and not entry.text.startswith(("The ", "A ", "It "))
