"""What earlier versions had: its old name is refused by one sentence that says what to use instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Answer


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lr-find", "."], "vitmed lr-find is no longer there; vitmed 0.2.0 has it\nFix: the plan sets the rate"),
    ],
)
def test_what_left_the_machine_or_drew_a_page_says_what_replaces_it(
    vitmed: Callable[..., Answer], words: list[str], expected: str
) -> None:
    answer = vitmed(*words)
    assert answer.code == 2 and expected in answer.err, answer.err
