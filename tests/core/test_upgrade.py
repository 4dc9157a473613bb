"""What earlier versions had: an old name is refused by one sentence that says what to use."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Answer


@pytest.mark.parametrize(
    ("words", "name", "fix"),
    [
        (["sweep", "DIR", "--grid", "model.heads=2,4"], "vitmed sweep", "vitmed tune DIR --grid"),
        (["tune", "--join", "runs/t"], "--join", "vitmed train --folds N --fold K"),
        (["cross-validate", "--join", "runs/t"], "--join", "--parallel N"),
    ],
)
def test_what_trained_many_runs_says_what_replaces_it(
    words: list[str], name: str, fix: str, vitmed: Callable[..., Answer]
) -> None:
    answer = vitmed(*words)
    assert answer.code == 2 and f"{name} is no longer there; vitmed 0.2.0 has it" in answer.err and fix in answer.err
