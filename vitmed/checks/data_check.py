"""What is wrong with a data set: every check on its files, and the same before each training."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitmed.checks.detect import (
    Copies,
    Image,
    crossing,
    of_copies,
    of_files,
    of_patients,
    of_privacy,
    of_shortcuts,
    sort_copies,
)
from vitmed.checks.duplicates import exact_groups, near_pairs
from vitmed.checks.findings import Finding, in_order
from vitmed.checks.shortcuts import Shortcut, find_shortcuts
from vitmed.core.config import Config
from vitmed.core.errors import DataError
from vitmed.core.ui import Ui
from vitmed.data.folders import image_names
from vitmed.data.patient_names import Guess
from vitmed.data.patients import compile_group, group_of
from vitmed.data.samples import Splits
from vitmed.data.split_names import SPLITS
from vitmed.imaging.look import Record

LINES = 8  # findings that training reports
COUNTS = ("found", "unreadable", "exact_duplicates", "near_duplicates", "duplicates_across_splits")


@dataclass(frozen=True)
class Found:
    """Findings and what they rest on."""

    findings: list[Finding]
    exact: Copies
    near: Copies
    shortcuts: list[tuple[str | None, Shortcut]]
    counts: dict[str, int]


def check_before_training(
    splits: Splits, records: Sequence[Record], config: Config, ui: Ui
) -> tuple[list[str], dict[str, int]]:
    """The findings of `check` on the images of a run, reported in a line each.

    Args:
        records: of every image, in the order of the splits.

    Returns:
        notes for the head of the report, and the numbers named in `COUNTS`.

    Raises:
        DataError: the same image under two labels, unless data.allow_leakage.
    """
    samples = [(name, sample) for name, part in splits.samples.items() for sample in part]
    paths = [sample.path for _, sample in samples]
    groups: Sequence[str | None] = [sample.group for _, sample in samples]
    source = splits.patients or None
    if source is None and splits.guess is not None:
        groups, source = guessed_groups(paths, splits.guess), GUESSED
    images = [
        Image(sample.path, record, splits.classes[sample.label], name, group)
        for (name, sample), record, group in zip(samples, records, groups, strict=True)
    ]
    found = diagnose(images, source, ui, splits=("train",))
    told = [f for f in in_order(found.findings) if f.severity != "note"]
    for finding in told[:LINES]:
        named = f": {', '.join(finding.files[:3])}{', ...' * (finding.count > 3)}" if finding.files else ""
        ui.warn(f"{finding.problem} ({finding.code}){named}")
    if len(told) > LINES:
        ui.warn(f"{len(told) - LINES:,} more findings; vitmed check {splits.root} reports them all")
    labels = next((finding for finding in told if finding.code == "two_labels"), None)
    if labels is not None and not config.data.allow_leakage:
        raise DataError(f"{labels.problem}:\n" + "\n".join(labels.files[:10]), labels.fix)
    counts = {name: found.counts[name] for name in COUNTS if name in found.counts}
    with contextlib.suppress(DataError):  # a folder beside the classes that cannot be read
        counts["found"] = len(image_names(splits.root))
    return [f"Data: {finding.problem}." for finding in told if finding.code in IN_REPORT], counts


# Findings that bear on what a result is worth.
IN_REPORT = {
    "class_of_one_patient", "class_is_patient", "class_of_few_patients", "two_labels", "patients_across_splits",
    "copies_across_splits", "near_two_labels", "near_copies_across_splits", "shortcut_geometry", "shortcut_file",
    "shortcut_format", "shortcut_colour", "shortcut_border", "mixed_modes", "mixed_depths",
}  # fmt: skip


_ORDER = ["", *SPLITS]


GUESSED = "guessed from the file names"


def guessed_groups(paths: Sequence[str], guess: Guess) -> list[str | None]:
    """The patients that file names suggest."""
    pattern = compile_group(guess.expression)
    return [group_of(path, pattern) for path in paths]


def diagnose(images: Sequence[Image], source: str | None, ui: Ui, splits: Sequence[str] | None = None) -> Found:
    """The findings that follow from the files; shortcuts in these splits (None: in every split)."""
    with ui.bar("looking for copies", unit="steps"):
        exact = exact_groups([image.record.sha256 if image.record.size > 0 else "" for image in images])
        copies = {i for group in exact for i in group[1:]}
        good = [i for i, image in enumerate(images) if image.record.thumbnail is not None and i not in copies]
        near = near_pairs(*_looks([images[i] for i in good]))
    sorted_exact = sort_copies(images, exact)
    near_groups = [[good[i], good[j]] for i, j in near]
    sorted_near = sort_copies(images, near_groups)
    shortcuts = []
    names: list[str | None] = sorted({image.split for image in images}, key=lambda name: _ORDER.index(name or ""))
    with ui.bar("looking for shortcuts", unit="steps"):
        for split in names:
            if splits is None or split in splits:
                part = [image for image in images if image.split == split]
                shortcuts += [(split, shortcut) for shortcut in _shortcuts(part)]
    findings = [
        *of_files(images),
        *of_copies(images, sorted_exact, sorted_near),
        *of_patients(images, source),
        *of_privacy(images),
        *(finding for split, shortcut in shortcuts for finding in of_shortcuts(split, [shortcut])),
    ]
    groups: dict[str, set[str | None]] = {}
    for image in images:
        if image.group is not None:
            groups.setdefault(image.group, set()).add(image.split)
    counts = {
        "unreadable": sum(bool(image.record.kind) for image in images),
        "duplicates": len(copies) + len(near),
        "exact_duplicates": len(copies),
        "near_duplicates": len(near),
        "duplicates_across_splits": crossing(images, [*exact, *near_groups]),
        "patients_across_splits": sum(len(where) > 1 for where in groups.values()),
    }
    return Found(findings, sorted_exact, sorted_near, shortcuts, counts)


def _looks(images: Sequence[Image]) -> tuple[np.ndarray, np.ndarray]:
    """Thumbnails (N, S, S) uint8 and width / height (N,)."""
    if not images:
        return np.empty((0, 1, 1), np.uint8), np.empty(0)
    sides = [(i.record.facts.width, i.record.facts.height) for i in images if i.record.facts is not None]
    turned = [i.record.facts.orientation >= 5 for i in images if i.record.facts is not None]
    aspects = np.array([h / w if turn else w / h for (w, h), turn in zip(sides, turned, strict=True)])
    return np.stack([i.record.thumbnail for i in images if i.record.thumbnail is not None]), aspects


def usable(images: Sequence[Image]) -> tuple[list[Image], np.ndarray, list[str] | None]:
    """The images that count in a regression, their labels and their patients."""
    good = [image for image in images if image.record.thumbnail is not None and image.label is not None]
    names = sorted({str(image.label) for image in good})
    labels = np.array([names.index(str(image.label)) for image in good], dtype=np.int64)
    groups = [str(i.group) for i in good] if good and all(i.group is not None for i in good) else None
    return good, labels, groups


def _shortcuts(images: Sequence[Image]) -> list[Shortcut]:
    good, labels, groups = usable(images)
    return find_shortcuts([image.record for image in good], labels, groups)
