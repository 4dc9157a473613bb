"""How many decimals a number has."""

from __future__ import annotations

import pytest

from vitmed.metrics.estimates import Estimate, decimals


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0.9, 0.8, 0.95), 3),
        ((0.99976, 0.99966, 0.99985), 4),  # else 1.000 (1.000 to 1.000)
        ((0.00026, 0.00016, 0.00039), 4),  # else 0.000 (0.000 to 0.000)
        ((0.0101, 0.01001, 0.01049), 4),  # else 0.010 (0.010 to 0.010)
        ((1.0, 0.9996, 1.0), 4),
        ((0.9997, None, None), 4),
        ((0.00002, None, None), 5),
        ((1.0, 0.95, 1.0), 3),
        ((0.0, 0.0, 0.02), 3),
        ((1.0, None, None), 3),
        ((None, None, None), 3),
        ((0.3, 0.3, 0.3), 3),
    ],
)
def test_both_ends_of_an_interval_differ_and_only_1_is_written_as_1(
    numbers: tuple[float | None, float | None, float | None], expected: int
) -> None:
    value, low, high = numbers
    assert decimals(Estimate(value=value, low=low, high=high)) == expected


def test_a_difference_the_other_way_round() -> None:
    found = Estimate(value=0.1, low=-0.05, high=0.25, method="delong").reversed
    assert (found.value, found.low, found.high, found.method) == (-0.1, -0.25, 0.05, "delong")
    none = Estimate(value=None, low=None, high=None).reversed
    assert (none.value, none.low, none.high) == (None, None, None)
