"""Writes docs/methods.md from the code: how the intervals of a report are computed, with references.

python docs/methods.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

FILE = Path(__file__).with_name("methods.md")

INTRODUCTION = """\
# Statistical methods

Written by `python docs/methods.py` from the code; do not edit it by hand.

Every report says how its own numbers were computed: in the chapter *Statistical methods* of `report.html`, and in
`methods.md` beside it. The text is a paragraph that you can paste into the methods section of a paper, a table of
numbers and methods, and the references. It names only what the report uses. `vitmed evaluate` prints where the file is.

In `metrics.json`, each number has the `method` of its interval and, for a bootstrap, the number of `resamples` that it
used: `--resamples`, at most 500. Intervals of AUROC and
average precision are computed on the logit scale, those of differences on the original scale.
Where patients are unknown, the text says image instead of patient.
[reading-the-report.md](reading-the-report.md#the-intervals) explains what the intervals mean.
"""


def text() -> str:
    """The whole page."""
    from vitmed.metrics.metric_table import methods
    from vitmed.report.templates import name_of

    found = methods()
    numbers = {key: i for i, key in enumerate(found.references, 1)}

    def cites(sources: Sequence[str]) -> str:
        return ", ".join(str(numbers[key]) for key in sources)

    parts = [INTRODUCTION]
    for title, table, how in (
        ("Intervals", found.intervals, "intervals are computed with"),
        ("Tests", found.tests, "differences are tested with"),
    ):
        rows = [
            f"| `{key}` | {m.title} | {m.text.format(unit='patient')} | {cites(m.sources)} |\n"
            for key, m in table.items()
        ]
        head = f"## {title}\n\n| `method` | in short | {how} | references |\n|---|---|---|---|\n"
        parts.append(head + "".join(rows))
    defined = [f"| {name_of(field)} | {cites(sources)} |\n" for field, sources in found.definitions.items()]
    parts.append("## Definitions of numbers\n\n| number | references |\n|---|---|\n" + "".join(defined))
    parts.append("## References\n\n" + "".join(f"{numbers[key]}. {text}\n" for key, text in found.references.items()))
    return "\n".join(parts)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
