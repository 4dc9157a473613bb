"""Recognise a public data set, which has a card, by its file names: the fields `recognise` of the cards."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitmed.core.errors import DataError
from vitmed.core.text import counted
from vitmed.core.ui import Ui
from vitmed.data.augmented_copies import stem, without_marks
from vitmed.data.dataset_cards import Card, Recognise, cards
from vitmed.data.samples import Splits
from vitmed.imaging.decode import read_size

SHARE = 0.95  # of the images must have a name of the set; others may have been added
FEWEST = 10  # images
SAMPLE = 50  # paths to try first
SIZES = 3  # images whose size is read


class KnownSet(NamedTuple):
    """The card of the set that a folder looks like, and how many of its images are there, without copies."""

    card: Card
    images: int

    def __str__(self) -> str:
        many = f"{self.images:,} of {counted(self.card.total, 'image')}"
        return f"{self.card.name} ({self.card.title}; {many}, by the file names)"

    def to_dict(self) -> dict[str, Any]:
        """Plain types: what is known of the set."""
        card = self.card
        names = ("name", "title", "source", "pitfalls", "group_regex", "group_note")
        return {**{name: getattr(card, name) for name in names}, "licence": card.terms, "images": self.images}


def find_known_set(root: Path, paths: Sequence[str], labels: Sequence[str | None]) -> KnownSet | None:
    """The public set that a folder looks like, or none; of several that fit, the smallest.

    Args:
        root: the data folder; the size of a few images is read if a card asks for it.
        paths: of the images, relative to it, with forward slashes.
        labels: the class of each image, as far as it is known.
    """
    if len(paths) < FEWEST:
        return None
    some = [without_marks(stem(path)) for path in paths[:: max(1, len(paths) // SAMPLE)]]
    likely = [card for card in cards().values() if card.recognise and _fitting(card.recognise, some)[0] >= 0.8]
    if not likely:
        return None
    names = [without_marks(stem(path)) for path in paths]
    found = []
    for card in likely:
        assert card.recognise is not None
        share, images = _fitting(card.recognise, names)
        if share >= SHARE and images >= FEWEST and _other_evidence(card.recognise, root, paths, labels):
            found.append(KnownSet(card, images))
    return min(found, key=lambda known: known.card.total, default=None)


def _fitting(recognise: Recognise, names: Sequence[str]) -> tuple[float, int]:
    """The share of the names that fit, and how many different images they name; 0 where they contradict the card."""
    shapes = {shape: re.compile(shape, re.IGNORECASE) for shape in recognise.names}
    found: dict[str, set[str]] = defaultdict(set)
    fit = 0
    for name in names:
        for shape, pattern in shapes.items():
            if match := pattern.fullmatch(name):
                found[shape].add(next(filter(None, match.groups()), name).lower())
                fit += 1
                break
    too_many = any(len(images) > recognise.names[shape] for shape, images in found.items())
    if too_many or len(found) < recognise.shapes:
        return 0.0, 0
    return fit / len(names), sum(map(len, found.values()))


def _other_evidence(recognise: Recognise, root: Path, paths: Sequence[str], labels: Sequence[str | None]) -> bool:
    """Whether the classes or the sizes are those of the set, if its file names alone are not enough."""
    if recognise.classes is None and recognise.size_px is None:
        return True
    if recognise.classes is not None:
        classes = "|".join(sorted({str(label) for label in labels}, key=str.lower))
        if re.fullmatch(recognise.classes, classes, re.IGNORECASE):
            return True
    if recognise.size_px is None:
        return False
    try:
        return all(max(read_size(root / path)) == recognise.size_px for path in paths[:: len(paths) // SIZES][:SIZES])
    except DataError:
        return False


def report_known_set(splits: Splits, ui: Ui) -> None:
    """Report which public set the images of a run look like, if any."""
    samples = [sample for part in splits.samples.values() for sample in part]
    labels = [splits.strata[sample.label] for sample in samples]
    known = find_known_set(splits.root, [sample.path for sample in samples], labels)
    if known is not None:
        say_known_set(known, splits.grouped, ui, f"vitmed check {splits.root}")


def say_known_set(known: KnownSet, grouped: bool, ui: Ui, all_of_them: str | None = None) -> None:
    """Print the name of the set, what its card warns of and, unless patients are known, how to find them.

    Args:
        all_of_them: the command that prints the warnings, in place of them, in a single line; None: print every one.
    """
    card = known.card
    if all_of_them is not None:
        patients = f"; patients: --group-regex '{card.group_regex}'" if card.group_regex and not grouped else ""
        ui.warn(f"this looks like {known}; {all_of_them} shows {counted(len(card.pitfalls), 'pitfall')}{patients}")
        return
    ui.warn(f"this looks like {known}. Its card warns:")
    for pitfall in card.pitfalls:
        ui.say(f"  - {pitfall}")
    if not grouped:
        ui.say(f"  patients: {advice_on_patients(card)}")


def advice_on_patients(card: Card) -> str:
    """The flag that finds the patients of a set, and what the card says about it."""
    return f"--group-regex '{card.group_regex}'. {card.group_note}" if card.group_regex else card.group_note
