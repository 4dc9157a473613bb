"""Every check of a data set, and the same checks before each training."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitmed.checks.detect import (
    Copies,
    Image,
    copy_findings,
    crossing,
    file_findings,
    patient_findings,
    personal_data_findings,
    shortcut_findings,
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
from vitmed.imaging.file_record import FileRecord

LINES = 8  # findings that training reports
COUNTS = ("found", "unreadable", "exact_duplicates", "near_duplicates", "duplicates_across_splits")
GUESSED = "guessed from the file names"
# Findings that affect what a result is worth.
IN_REPORT = {
    "class_of_one_patient", "class_is_patient", "class_of_few_patients", "two_labels", "patients_across_splits",
    "copies_across_splits", "near_two_labels", "near_copies_across_splits", "shortcut_geometry", "shortcut_file",
    "shortcut_format", "shortcut_colour", "shortcut_border", "mixed_modes", "mixed_depths",
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Findings, with the copies, shortcuts and counts that they come from."""

    findings: list[Finding]
    exact: Copies
    near: Copies
    shortcuts: list[tuple[str | None, Shortcut]]
    counts: dict[str, int]


def check_before_training(
    splits: Splits, records: Sequence[FileRecord], config: Config, ui: Ui
) -> tuple[list[str], dict[str, int]]:
    """Check the images of a run and report each finding in one line.

    Args:
        records: of every image, in the order of the splits.

    Returns:
        notes for the head of the report, and the numbers named in `COUNTS`.

    Raises:
        DataError: the same image has two labels, unless data.allow_leakage.
    """
    samples = [(name, sample) for name, part in splits.samples.items() for sample in part]
    groups: Sequence[str | None] = [sample.group for _, sample in samples]
    source = splits.patients or None
    if source is None and splits.guess is not None:
        groups, source = guessed_groups([sample.path for _, sample in samples], splits.guess), GUESSED
    images = [
        Image(sample.path, record, splits.classes[sample.label], name, group)
        for (name, sample), record, group in zip(samples, records, groups, strict=True)
    ]
    found = run_checks(images, source, ui, splits=("train",))
    serious = [finding for finding in in_order(found.findings) if finding.severity != "note"]
    for finding in serious[:LINES]:
        named = f": {', '.join(finding.files[:3])}{', ...' * (finding.count > 3)}" if finding.files else ""
        ui.warn(f"{finding.problem} ({finding.code}){named}")
    if len(serious) > LINES:
        ui.warn(f"{len(serious) - LINES:,} more findings; vitmed check {splits.root} reports them all")
    labels = next((finding for finding in serious if finding.code == "two_labels"), None)
    if labels is not None and not config.data.allow_leakage:
        raise DataError(f"{labels.problem}:\n" + "\n".join(labels.files[:10]), labels.fix)
    with contextlib.suppress(DataError):  # a folder beside the classes that cannot be read
        found.counts["found"] = len(image_names(splits.root))
    counts = {name: found.counts[name] for name in COUNTS if name in found.counts}
    return [f"Data: {finding.problem}." for finding in serious if finding.code in IN_REPORT], counts


def guessed_groups(paths: Sequence[str], guess: Guess) -> list[str | None]:
    """The patients that file names suggest."""
    pattern = compile_group(guess.expression)
    return [group_of(path, pattern) for path in paths]


def run_checks(images: Sequence[Image], source: str | None, ui: Ui, splits: Sequence[str] | None = None) -> Found:
    """All findings that follow from the files.

    Args:
        source: how the patients are known, in words; None where they are not.
        splits: where to look for shortcuts; None: everywhere.
    """
    with ui.bar("looking for copies", unit="steps"):
        exact_copies = exact_groups([image.record.sha256 if image.record.size > 0 else "" for image in images])
        repeated = {i for group in exact_copies for i in group[1:]}
        good = [i for i, image in enumerate(images) if image.record.thumbnail is not None and i not in repeated]
        near_copies = [[good[i], good[j]] for i, j in near_pairs(*_pictures([images[i].record for i in good]))]
    exact, near = sort_copies(images, exact_copies), sort_copies(images, near_copies)
    shortcuts: list[tuple[str | None, Shortcut]] = []
    with ui.bar("looking for shortcuts", unit="steps"):
        for split in (None, *SPLITS):
            if splits is None or split in splits:
                part, labels, groups = decoded_with_labels([image for image in images if image.split == split])
                found = find_shortcuts([image.record for image in part], labels, groups)
                shortcuts += [(split, shortcut) for shortcut in found]
    findings = [
        *file_findings(images),
        *copy_findings(images, exact, near),
        *patient_findings(images, source),
        *personal_data_findings(images),
        *shortcut_findings(shortcuts),
    ]
    places = {(image.group, image.split) for image in images if image.group is not None}
    counts = {
        "unreadable": sum(bool(image.record.kind) for image in images),
        "duplicates": len(repeated) + len(near_copies),
        "exact_duplicates": len(repeated),
        "near_duplicates": len(near_copies),
        "duplicates_across_splits": crossing(images, [*exact_copies, *near_copies]),
        "patients_across_splits": sum(count > 1 for count in Counter(group for group, _ in places).values()),
    }
    return Found(findings, exact, near, shortcuts, counts)


def _pictures(records: Sequence[FileRecord]) -> tuple[np.ndarray, np.ndarray]:
    """Thumbnails (N, S, S) uint8 and width / height (N,) of files that could be decoded."""
    if not records:
        return np.empty((0, 1, 1), np.uint8), np.empty(0)
    facts = [record.header for record in records if record.header is not None]
    aspects = [f.height / f.width if f.orientation >= 5 else f.width / f.height for f in facts]
    return np.stack([record.thumbnail for record in records if record.thumbnail is not None]), np.array(aspects)


def decoded_with_labels(images: Sequence[Image]) -> tuple[list[Image], np.ndarray, list[str] | None]:
    """The images that a regression can use, their labels, and their patients where all are known."""
    good = [image for image in images if image.record.thumbnail is not None and image.label is not None]
    names = sorted({str(image.label) for image in good})
    labels = np.array([names.index(str(image.label)) for image in good], dtype=np.int64)
    groups = [str(i.group) for i in good] if good and all(i.group is not None for i in good) else None
    return good, labels, groups
