"""Counts, lists and probabilities for messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LISTED = 10  # most names in a list


def counted(n: int, noun: str) -> str:
    """1 image, 1,500 images; 1 class, 3 classes."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}{'es' if noun.endswith('s') else 's'}"


def listed(names: Sequence[str], most: int = LISTED, mark: str = ", ") -> str:
    """The first names, with a mark between them, and how many more there are."""
    more = len(names) - most
    return mark.join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def lines_of(names: Sequence[str], most: int = 5) -> str:
    """The first names, one per line, and how many more there are."""
    return "\n".join(names[:most]) + (f"\n... and {len(names) - most:,} more" if len(names) > most else "")


def by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Invert name -> reason to reason -> names; the most frequent reason first."""
    found: dict[str, list[str]] = {}
    for name, why in reasons.items():
        found.setdefault(why, []).append(name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def format_probability(p: float) -> str:
    """A probability in three digits, or in as many as distinguish it from 1: 0.99999, 1 - 2e-12."""
    text = f"{p:.3g}"
    if p <= 0 or p > 1 or float(text) < 1:
        return text
    if 1 - p < 1e-9:
        return "1" if p == 1 else f"1 - {1 - p:.1g}"
    return next(text for digits in range(4, 12) if float(text := f"{p:.{digits}f}") < 1)


def first_line(error: BaseException | str) -> str:
    """The first line of an error's message, or the name of its class if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]
