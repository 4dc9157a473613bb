"""What earlier versions had: an old name is refused by one sentence that says what to use; old files are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Answer

from vitmed.core.upgrade import results_without_gone
from vitmed.metrics.fixed_rates import FixedRates


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


def test_results_of_0_2_0_are_read_without_the_specificity_at_a_fixed_sensitivity() -> None:
    at = {"fixed": 0.9, "reached": {"value": 0.8, "low": None, "high": None}, "too_few": True}
    rates = {"positive": "ill", "sensitivity": [at], "specificity": [at], "band": []}
    found = results_without_gone({"n": 3, "fixed_rates": rates})
    assert found == {"n": 3, "fixed_rates": {"positive": "ill", "sensitivity": [at], "band": []}}
    FixedRates.model_validate(found["fixed_rates"])
    with pytest.raises(ValueError, match="specificity"):
        FixedRates.model_validate(rates)
    assert results_without_gone({"n": 3}) == {"n": 3}
