"""Counts, lists, probabilities, durations and dates for messages; the names of scripts in a page."""

import base64
import datetime
import hashlib
import os
import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
LISTED = 10  # most names in a list
MEMBERS = 20  # most names of a prediction set that a reader is shown
# Control characters but for line feed and tab, those that change the direction of text, and halves of characters, which
# stand for the bytes of a file name that is not UTF-8.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
NOTICE = "Research use only; not a medical device."
HASH = 12  # characters of a hash that a reader sees


def now() -> str:
    """The date and time, UTC, as `2026-11-22T09:41:00+00:00`; of SOURCE_DATE_EPOCH where that is a number of seconds.

    SOURCE_DATE_EPOCH makes output reproducible: https://reproducible-builds.org/specs/source-date-epoch/
    """
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = datetime.datetime.now(datetime.UTC)
    if given.isdecimal() and len(given) <= 11:  # until the year 5138
        moment = datetime.datetime.fromtimestamp(int(given), datetime.UTC)
    return moment.isoformat(timespec="seconds")


def identity(run: str, created: str | None, weights_hash: str | None, rebuilt: str | None = None) -> str:
    """`run cells, 2026-11-22 09:41 UTC, weights 0123456789ab`: what tells two reports apart, as far as known.

    `created` is when the images were evaluated, `rebuilt` when the report was made again from its table.
    """
    parts = [f"run {run}"] if run else []
    for what, when in (("", created), ("rebuilt ", rebuilt)):
        parts += [f"{what}{when[:16].replace('T', ' ')} UTC"] if when else []
    return ", ".join([*parts, *([f"weights {weights_hash[:HASH]}"] if weights_hash else [])])


def counted(n: int, noun: str) -> str:
    """1 image, 1,500 images; 1 class, 3 classes."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}{'es' if noun.endswith('s') else 's'}"


def counted_doing(n: int, noun: str, one: str = "is", many: str = "are") -> str:
    """1 image is, 2 images are; 1 row matches, 2 rows match."""
    return f"{counted(n, noun)} {one if n == 1 else many}"


def listed(names: Sequence[str], most: int = LISTED, mark: str = ", ") -> str:
    """The first names, with a mark between them, and how many more there are."""
    more = len(names) - most
    return mark.join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def one_spelling(names: Sequence[str], unit: str, places: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Each patient in the least of its spellings ("P01" and "p01 "; "007", "7" and "7.0"), whatever their order, and a
    note with the place of the first change, if there is one. `places` has one for each name; "" is no patient."""
    first, plain = dict[str, str](), dict[str, str]()
    for name in sorted({*names}, key=lambda name: (name[:1].isspace(), name)):
        key = " ".join(re.sub("[\u200b-\u200d\ufeff]", "", unicodedata.normalize("NFKC", name)).casefold().split())
        number = re.fullmatch(r"0*(\d+)(?:\.0*)?", key) if key[:1].isdigit() else None
        plain[name] = first.setdefault(number[1] if number else key, name) if key else ""
    joined, written = tuple(map(plain.__getitem__, names)), sum(map(bool, plain.values()))
    if written == len(first):
        return joined, []
    changed = next(place for name, one, place in zip(names, joined, places, strict=True) if one and name != one)
    ways, count = "capitals, spaces, leading zeros or a fraction of zero", f"{len(first):,} instead of {written:,}"
    note = f"Of {counted(written, 'name')} of {unit}s some differ only in {ways}, the first in {changed}. "
    return joined, [f"{note}They count as one {unit}: {count} {unit}s."]


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, both in the order in which they come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def lines_of(names: Sequence[str], most: int = 5) -> str:
    """The first names, one per line, and how many more there are."""
    return "\n".join(names[:most]) + (f"\n... and {len(names) - most:,} more" if len(names) > most else "")


def format_probability(p: float) -> str:
    """A probability in three digits, or in as many as distinguish it from 1: 0.99999, 1 - 2e-12."""
    text = f"{p:.3g}"
    if not 0 < p <= 1 or float(text) < 1:
        return text
    if 1 - p < 1e-9:
        return "1" if p == 1 else f"1 - {1 - p:.1g}"
    return next(text for digits in range(4, 12) if float(text := f"{p:.{digits}f}") < 1)


def format_number(x: float) -> str:
    """A number in four digits, or with all that stand before its point: 63.25, 152345."""
    return f"{x:.0f}" if 9999.5 <= abs(x) < 1e15 else f"{x:.4g}"


def visible(text: str) -> str:
    """Text that is safe to print and to draw: characters of `HIDDEN` become \\x1b, \\u202e, \\udce9."""
    return HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def quoted(name: object) -> str:
    """A path or name as a shell takes it: in quotes where it has spaces or signs."""
    return shlex.quote(str(name))


def first_line(error: BaseException | str) -> str:
    """The first line of an error's message, or the name of its class if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def file_name(text: str) -> str:
    """A text as part of a file name: letters, digits, dots and hyphens, at most 60."""
    return "".join(c if c.isalnum() or c in "-." else "-" for c in text)[:60]


def csp_hash(text: str) -> str:
    """The name of an inline style or script in a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# --- durations as people write them: 90s, 20m, 2h, 1h30m

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}  # s
DURATION = re.compile("".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit})?" for unit in UNITS))
NAMED = (0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480)  # min


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
    if seconds < 5940:
        return f"{seconds / 60:.2g} min"
    return f"{seconds / 3600:{'.2g' if seconds < 99.5 * 3600 else ',.0f'}} h"


def round_up(seconds: float) -> float:
    """The next duration that a person would name."""
    return next((60.0 * minutes for minutes in NAMED if 60 * minutes >= seconds), 3600.0 * -(-seconds // 3600))
