"""Notes on patients and splits that a reader needs before believing a number."""

from __future__ import annotations

from collections.abc import Sequence

from vitmed.core.text import counted
from vitmed.core.ui import Ui
from vitmed.data.samples import Splits
from vitmed.imaging import npz

UNKNOWN = "One patient may be in two splits, and the intervals take each image as independent."


def patient_notes(splits: Splits, split: str) -> list[str]:
    """A note if patients are in this split and another, or if patients are unknown."""
    if not splits.grouped:
        return [f"Split by image: likely optimistic. Patients are unknown. {UNKNOWN}"]
    shared = [group for group, names in splits.shared().items() if split in names]
    if not shared:
        return []
    return [
        f"Leakage: {counted(len(shared), 'patient')} of this split {'has' if len(shared) == 1 else 'have'} images in "
        "another split too; the result is optimistic."
    ]


def describe_patients(splits: Splits) -> str:
    """Patients per split, how many are in two splits, and how they are known, in words."""
    if not splits.grouped:
        return "unknown, so the images were split one by one: a patient may be in two splits"
    counts = ", ".join(f"{len(groups):,} in {name}" for name, groups in splits.groups().items())
    shared = len(splits.shared())
    known = f"; identified {splits.patients}" if splits.patients else ""
    return f"{counts}, {f'{shared:,} OF THEM IN TWO SPLITS' if shared else 'none in two splits'}{known}"


def report_patients(splits: Splits, risk: str, ui: Ui) -> None:
    """Report the patients of each split or, if they are unknown, the risk and what the file names suggest."""
    for text in splits.notes:
        ui.warn(text)
    if splits.grouped:
        ui.say(f"patients: {describe_patients(splits)}")
        return
    guess = splits.guess
    if guess is None:
        way = "--groups TABLE" if npz.is_npz(splits.root) else "--group-regex or --groups"
        ui.warn(f"patients are unknown: {risk} (use {way})")
        return
    examples = ", ".join(guess.examples) + (", ..." if guess.patients > len(guess.examples) else "")
    ui.warn(
        f"patients are unknown: {risk}. The file names look like {guess.patients:,} patients ({examples}): confirm "
        "with --groups names, or use --group-regex or --groups TABLE"
    )


def seen_before(seen: Sequence[str], hashes: Sequence[str]) -> int:
    """How many of these images (by sha256) were used to make the starting weights."""
    return sum(map(set(seen).__contains__, hashes))
