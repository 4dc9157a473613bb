"""Counts and lists in sentences, and what tells two reports apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vitmed.core.text import counted, counted_doing, identity, now

ROOT = Path(__file__).parents[2]


def test_a_noun_agrees_with_its_number() -> None:
    assert [counted(n, "row") for n in (0, 1, 1500)] == ["0 rows", "1 row", "1,500 rows"]
    assert [counted(n, "class") for n in (1, 2)] == ["1 class", "2 classes"]
    assert [counted_doing(n, "row", "matches", "match") for n in (1, 2)] == ["1 row matches", "2 rows match"]


def test_lines_of_a_command_count_with_the_function() -> None:
    """No `ui.say` or `ui.warn` writes a number before a plural that would be wrong for one."""
    plain = re.compile(
        r"ui\.(?:say|warn)\(\s*f\"[^\n]*(?<!of )\{[^{}]*(?:len\(|:,)[^{}]*\} (?:image|row|file|patient)s\b(?!/s)"
    )
    assert plain.search('ui.say(f"{len(paths):,} images are read")')
    files = list(ROOT.glob("vitmed/**/*.py"))
    assert len(files) > 100
    for file in files:
        assert not plain.findall(file.read_text(encoding="utf-8")), file


def test_the_date_is_that_of_source_date_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert now() == "2023-11-14T22:13:20+00:00"
    for wrong in ("", "yesterday", "-1", "9" * 40):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        assert now() > "2026" and now().endswith("+00:00")


def test_the_identity_of_a_report_has_what_is_known() -> None:
    date = "2026-11-22T09:41:07+00:00"
    assert identity("cells", date, "0123456789abcdef") == "run cells, 2026-11-22 09:41 UTC, weights 0123456789ab"
    assert identity("cells", None, None, date) == "run cells, rebuilt 2026-11-22 09:41 UTC"
    assert identity("", None, None) == ""
