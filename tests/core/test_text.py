"""Counts and lists in sentences."""

from __future__ import annotations

import re
from pathlib import Path

from vitmed.core.text import counted, counted_doing

ROOT = Path(__file__).parents[2]


def test_a_noun_agrees_with_its_number() -> None:
    assert [counted(n, "row") for n in (0, 1, 1500)] == ["0 rows", "1 row", "1,500 rows"]
    assert [counted(n, "class") for n in (1, 2)] == ["1 class", "2 classes"]
    assert [counted_doing(n, "row", "matches", "match") for n in (1, 2)] == ["1 row matches", "2 rows match"]


def test_lines_of_a_command_count_with_the_function() -> None:
    """No `ui.say` or `ui.warn` writes a number before a plural that would be wrong for one."""
    plain = re.compile(
        r"ui\.(?:say|warn)\(\s*f\"[^\n]*(?<!of )\{[^{}]*(?:len\(|:,)[^{}]*\} (?:image|row|file|patient)s\b"
    )
    for file in ROOT.glob("vitmed/**/*.py"):
        assert not plain.findall(file.read_text(encoding="utf-8")), file
