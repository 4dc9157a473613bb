"""What must be said about patients and splits before a number is believed."""

from __future__ import annotations

from collections.abc import Sequence

from vitmed.core.text import counted
from vitmed.core.ui import Ui
from vitmed.data.samples import Splits
from vitmed.imaging import npz

UNKNOWN = "One patient may be in two splits, and the intervals take each image as independent."


def patient_notes(splits: Splits, split: str) -> list[str]:
    """Notes on who is in this split and in another one too, or that nobody knows."""
    if not splits.grouped:
        return [f"Split by image: likely optimistic. Patients are unknown. {UNKNOWN}"]
    shared = [group for group, names in splits.shared().items() if split in names]
    if not shared:
        return []
    return [
        f"Leakage: {counted(len(shared), 'patient')} of this split {'has' if len(shared) == 1 else 'have'} images in "
        "another split too; the result is flattered."
    ]


def patients_fact(splits: Splits) -> str:
    """How many patients there are in each split, whether one is in two, and how they are known, in words."""
    if not splits.grouped:
        return "unknown, so the images were split one by one: a patient may be in two splits"
    counts = ", ".join(f"{len(groups):,} in {name}" for name, groups in splits.groups().items())
    shared = len(splits.shared())
    known = f"; known {splits.patients}" if splits.patients else ""
    return f"{counts}, {f'{shared:,} OF THEM IN TWO' if shared else 'none in two'}{known}"


def tell_patients(splits: Splits, risk: str, ui: Ui) -> None:
    """Say who is where; where patients are unknown, what that risks and what the file names look like."""
    for text in splits.messages:
        ui.warn(text)
    if splits.grouped:
        ui.say(f"patients: {patients_fact(splits)}")
        return
    guess = splits.guess
    if guess is None:
        way = "--groups TABLE" if npz.is_npz(splits.root) else "--group-regex or --groups"
        ui.warn(f"patients are unknown: {risk} ({way} tells them)")
        return
    examples = ", ".join(guess.examples) + (", ..." if guess.patients > len(guess.examples) else "")
    ui.warn(
        f"patients are unknown: {risk}. The file names look like {guess.patients:,} patients ({examples}): confirm "
        "with --groups names, or say otherwise with --group-regex or --groups TABLE"
    )


def seen_before(seen: Sequence[str], hashes: Sequence[str]) -> int:
    """How many of the images (by sha256) the starting weights had been made with."""
    known = set(seen)
    return sum(digest in known for digest in hashes)
