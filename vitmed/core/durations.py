"""Durations as people write them: 90s, 20m, 2h, 1h30m."""

from __future__ import annotations

import re

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}  # s
PATTERN = re.compile("".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit})?" for unit in UNITS))
NAMED = (0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480)  # min


def read_duration(value: object) -> object:
    """The seconds of a text such as 1h30m; a number, which is in seconds already, or None as it is.

    Raises ValueError for any other text, also for a number without a unit.
    """
    if not isinstance(value, str):
        return float(value) if type(value) is int else value
    found = PATTERN.fullmatch(value.strip())
    if not found or not found[0]:
        raise ValueError(f"{value!r} is not a duration: expected a number and its unit, such as 90s, 20m, 2h or 1h30m")
    return float(sum(float(number) * UNITS[unit] for unit, number in found.groupdict("0").items()))


def duration_text(seconds: float) -> str:
    """45s, 1m30s, 20m, 1h30m: exact to the second below an hour, and to the minute above."""
    rest = round(seconds) if seconds < 3600 else 60 * round(seconds / 60)
    parts = []
    for unit, size in UNITS.items():
        count, rest = divmod(rest, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def about(seconds: float) -> str:
    """`40 s`, `2.5 min`, `20 min`, `2.5 h`: a duration that is an estimate."""
    if seconds < 99.5:
        return f"{max(1, round(seconds, -1 if seconds > 20 else 0)):.0f} s"
    return f"{seconds / 60:.2g} min" if seconds < 5940 else f"{seconds / 3600:.2g} h"


def round_up(seconds: float) -> float:
    """The next duration that a person would name."""
    return next((60.0 * minutes for minutes in NAMED if 60 * minutes >= seconds), 3600.0 * -(-seconds // 3600))
