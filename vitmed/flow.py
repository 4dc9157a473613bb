"""Where the images of a run come from and where they go: what was found, left out and dealt to which split.

The numbers of a flow diagram as STARD (item 24 of STARD-AI), CLAIM 2024 (35) and TRIPOD+AI (20a) ask for one, and the
proof that no patient and no file is in two splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from vitmed.splits import Splits

COUNTS = ("found", "unreadable", "exact_duplicates", "near_duplicates", "duplicates_across_splits")


def flow_of(
    splits: Splits,
    hashes: Mapping[str, Sequence[str]],
    counts: Mapping[str, Any] | None = None,
    why_left_out: str = "",
) -> dict[str, Any]:
    """The flow of a run.

    Args:
        splits: who is in which split.
        hashes: split name -> sha256 of its files.
        counts: what the check before the training counted, by the names in `COUNTS`; None or without a name where
            nobody counted.
        why_left_out: why files that were found are in no split, in words.

    Returns:
        plain types, without a path or the name of a patient: the `COUNTS` (None: not counted), `used` images,
        `left_out` (None: not counted) and `why_left_out`; `level` at which the splits are disjoint ("patient", "image",
        or "none": a patient is in two), `how` patients are known ("": they are not), `patients`, `patients_in_two`
        (None: unknown), `copies_in_two` files; `splits` {name: {images, patients, made, classes}}, and `classes`
        {name: {images, patients}}.
    """
    known = {name: (counts or {}).get(name) for name in COUNTS}
    found: dict[str, Any] = {name: value if isinstance(value, int) else None for name, value in known.items()}
    used = sum(map(len, splits.samples.values()))
    grouped, shared = splits.grouped, len(splits.shared())
    where: dict[str, set[str]] = {}
    for name, digests in hashes.items():
        for digest in digests:
            where.setdefault(digest, set()).add(name)
    everyone: set[str] = set().union(*splits.groups().values())
    return {
        **found,
        "used": used,
        "left_out": None if found["found"] is None else max(0, found["found"] - used),
        "why_left_out": why_left_out,
        "level": "image" if not grouped else "none" if shared else "patient",
        "how": splits.patients if grouped else "",
        "patients": len(everyone) if grouped else None,
        "patients_in_two": shared if grouped else None,
        "copies_in_two": sum(len(names) > 1 for names in where.values()),
        "splits": {name: _split(splits, name, grouped) for name in splits.samples},
    }


def _split(splits: Splits, name: str, grouped: bool) -> dict[str, Any]:
    samples = splits.samples[name]
    images = Counter(sample.label for sample in samples)
    people = Counter(label for label, _ in {(sample.label, sample.group) for sample in samples})
    return {
        "images": len(samples),
        "patients": len({sample.group for sample in samples}) if grouped else None,
        "made": splits.made.get(name, ""),
        "classes": {
            c: {"images": images[k], "patients": people[k] if grouped else None} for k, c in enumerate(splits.classes)
        },
    }
