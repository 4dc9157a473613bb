"""What is gone is refused by a sentence that names what to use instead and the version that has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Answer


@pytest.mark.parametrize(
    ("words", "instead"), [(("tune", "data", "--devices", "2"), "Fix: vitmed train takes it; vitmed tune --parallel N")]
)
def test_what_several_processes_did(vitmed: Callable[..., Answer], words: tuple[str, ...], instead: str) -> None:
    found = vitmed(*words)
    assert found.code == 2 and "is no longer there; vitmed 0.2.0 has it" in found.err and instead in found.err
