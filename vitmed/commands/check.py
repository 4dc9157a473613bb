"""`vitmed check`: what is wrong with a data folder."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.checks.data_check import GUESSED, guessed_groups
from vitmed.checks.detect import Image, decoded_with_labels, run_checks
from vitmed.checks.folder_contents import FolderContents, named_in_table, read_contents
from vitmed.checks.folder_problems import folder_problems
from vitmed.checks.problems import Problem, in_order, make
from vitmed.checks.shortcuts import BASELINES, FAMILIES, leakage_gap
from vitmed.core.data_config import DataConfig
from vitmed.core.dataset_cards import find_card, report_card
from vitmed.core.errors import DataError
from vitmed.core.files import free_name, whole_folder
from vitmed.core.inputs import data_folder
from vitmed.core.load_config import load_config
from vitmed.core.messages import bar, say, warn
from vitmed.core.outputs import refuse_file, refuse_inside
from vitmed.core.run_folder import RunFolder
from vitmed.core.targets import CLASSES
from vitmed.core.text import counted
from vitmed.data.folders import import_fix
from vitmed.data.label_kinds import Asked, Read
from vitmed.data.label_tables import labels_from_table
from vitmed.data.patient_names import Guess
from vitmed.data.patients import compile_group, find_patients, groups_of, suggest_groups
from vitmed.data.scan import scan
from vitmed.data.scan_cache import ScanCache
from vitmed.imaging.augmentation import mirrored_pair
from vitmed.imaging.choose_window import choose_window
from vitmed.imaging.file_record import FileRecord
from vitmed.imaging.window import Window
from vitmed.report.data_check_page import NUMBERS, PAGE, sizes, table, write_data_report

OF_CARD = {"name", "title", "source", "licence", "pitfalls", "group_regex", "group_note"}  # that the report shows


@dataclass(frozen=True)
class DataCheck:
    """What `check` found.

    Attributes:
        folder: of data_report.json and data_report.html.
        problems: worst first.
        content: of data_report.json: counts, the table by split and class, sizes, shortcuts, problems.
    """

    folder: Path
    problems: tuple[Problem, ...]
    content: dict[str, Any]

    @property
    def clean(self) -> bool:
        """Whether there is neither error nor warning."""
        return not self.count("error") + self.count("warning")

    def count(self, severity: str) -> int:
        """How many problems are an "error", a "warning" or a "note"."""
        return sum(problem.severity == severity for problem in self.problems)


def check(
    data: str | Path,
    *,
    card: str | None = None,
    group_regex: str | None = None,
    groups: str | Path | None = None,
    labels: str | Path | None = None,
    target: str = "auto",
    finding: str | Sequence[str] = (),
    uncertain: str = "ignore",
    ordinal: str | Sequence[str] = (),
    unit: str | None = None,
    output: str | Path = "data-check",
    strict: bool = False,
    leakage_gap: bool = False,
    frame: int | None = None,
    index: bool = True,
) -> DataCheck:
    """Decode every file once and report what is wrong with the data: files, copies, patients, shortcuts, names.

    Continues where training would refuse, and changes nothing in the folder.

    Args:
        data: any folder of images, with or without classes and splits.
        card: the public set that the images are; its card warns, and says how to find the patients, as for `train`.
        group_regex: finds the patient in a path relative to `data`; without it the patients are guessed from the file
            names, for these problems only.
        groups: a table of patients (path, patient), or "dicom" for the PatientID of DICOM files.
        labels: a CSV table with the class, and optionally patient and split, of the images to check, as for `train`;
            folder names are then no classes, and images without a row are ignored.
        target, finding, uncertain, ordinal, unit: what the labels of the table are, as for `train`.
        output: folder of the report; never overwritten, the next is data-check-2.
        strict: raise after the report is written if there is an error or a warning.
        leakage_gap: also fit cheap baselines by image and by patient, and report the gap.
        frame: which frame of a file with several, from 0; None reports such files.
        index: keep the results in the cache folder, so that the next check is quick.

    Raises:
        DataError: no such folder, or no image in it; with `strict`, errors or warnings.
        UsageError: an output folder inside the data, or a `group_regex` that is not one.
    """
    root = data_folder(data)
    table_of = None if groups is None else str(groups)
    given = {"root": str(root), "card": card, "group_regex": group_regex, "groups": table_of, "on_bad_file": "skip"}
    kind = {"target": target, "findings": finding, "uncertain": uncertain, "unit": unit}
    flags: dict[str, Any] = {f"data.{name}": value for name, value in {**given, **kind}.items()}
    whole = load_config(overrides={**flags, "evaluate.ordinal": ordinal})
    config, order = whole.data, whole.evaluate.ordinal
    report_card(config.card)
    compile_group(config.group_regex)  # raises now, not after the scan
    refuse_inside(root, output)
    refuse_file(output)
    RunFolder.probe(Path(output).parent)
    contents, named, asked = _contents(root), None, Asked.of(config, order)
    if labels is not None:
        own_groups = config.group_regex is None and config.groups is None
        contents, named = _by_table(root, contents, Path(labels), own_groups, asked)
    else:
        asked.check_folders()
    window = _window(root, contents, frame)
    records = scan(root, contents.files, ScanCache.open(frame, window=window, keep=index))
    guess = suggest_groups(contents.files, labels is None)
    patients, source = named if named is not None else _patients(config, root, contents.files, guess)
    labels_of = contents.read or Read(CLASSES, [], ())
    images = _images(contents, labels_of, records, patients)
    found = run_checks(images, source)
    classes = sorted({kind for image in images for kind in image.kinds})
    by_name = _name_problems(classes, guess if source is None else None, contents)
    problems = in_order([*found.problems, *by_name, *folder_problems(contents)])
    rows = [{"split": split, "text": FAMILIES[one.family], **asdict(one)} for split, one in found.shortcuts]
    numbers = {
        "data": root.resolve().name,
        "images": len(images),
        "classes": len(labels_of.outputs) or len(classes),
        "patients": len({image.group for image in images} - {None}) if source is not None else None,
        "patients_from": source,
        **found.counts,
        "table": table(images),
        "sizes": sizes(images),
        "shortcuts": [
            {key: None if isinstance(v, float) and math.isnan(v) else v for key, v in row.items()} for row in rows
        ],
        "card": None if card is None else find_card(card).model_dump(include=OF_CARD),
        "leakage_gap": _gaps(images) if leakage_gap else [],
        "problems": [problem.to_dict() for problem in problems],
    }
    folder = free_name(Path(output))
    with whole_folder(folder) as part, bar("writing the report", unit="steps"):
        copies = {"exact": found.exact, "near": found.near}
        write_data_report(part, root, f"Data check of {numbers['data']}", numbers, images, problems, copies)
    say(f"report: {folder / PAGE}, {folder / NUMBERS}")
    result = DataCheck(folder, tuple(problems), numbers)
    if strict and not result.clean:
        raise CheckFailed(result)
    return result


def _contents(root: Path) -> FolderContents:
    """What the folder holds. Raises DataError if that is no image."""
    contents = read_contents(root)
    if not contents.files and contents.unreadable:
        closed, reason = next(iter(contents.unreadable.items()))
        raise DataError(f"{root / closed}: cannot be read ({reason})", "check its permissions")
    if not contents.files:
        fix = import_fix(root) or "name a folder of images"
        raise DataError(f"{root}: contains no image of a type that vitmed reads", fix)
    return contents


def _window(root: Path, contents: FolderContents, frame: int | None) -> Window:
    """The window that training would choose for deep images, so that the check sees what the network would see."""
    places = zip(contents.files, contents.places, strict=True)
    paths = [root / path for path, place in places if place.split in (None, "train")]
    with bar("looking at training images") as advance:
        found = choose_window(paths, "auto", frame, advance)
    for line in found.notes:
        say(line)
    return found.window


def _images(
    contents: FolderContents, labels: Read, records: Sequence[FileRecord], patients: Sequence[str | None]
) -> list[Image]:
    """Every image with its record, its patient, and what it is labelled as."""
    values = labels.values if labels.values is not None else np.empty((len(contents.files), 0))
    places = zip(contents.files, records, contents.places, patients, values.tolist(), strict=True)
    return [
        Image(path, record, place.label, place.split, group).with_labels(labels.target, labels.outputs, targets)
        for path, record, place, group, targets in places
    ]


def _name_problems(classes: Sequence[str], guess: Guess | None, contents: FolderContents) -> Iterator[Problem]:
    """What the names of classes and files reveal: mirrored classes, augmented copies."""
    if pair := mirrored_pair(classes):
        yield make("left_right", f"{pair[0]!r} and {pair[1]!r} differ only by left and right", pair)
    if guess is not None and guess.what == "original":
        yield _copies_by_name(guess, contents)


def _copies_by_name(guess: Guess, contents: FolderContents) -> Problem:
    """Augmented copies, and how many of their originals are in two splits."""
    splits: dict[str | None, set[str | None]] = defaultdict(set)
    for original, place in zip(guessed_groups(contents.files, guess), contents.places, strict=True):
        splits[original].add(place.split)
    both = [str(original) for original, names in splits.items() if len(names - {None}) > 1]
    text = f"{guess.evidence}: {counted(guess.patients, 'original')}, {len(both):,} of them in two splits"
    return make("augmented_copies", text, both)


def _patients(
    config: DataConfig, root: Path, paths: Sequence[str], guess: Guess | None
) -> tuple[Sequence[str | None], str | None]:
    """The patient of each image where it is known, and how it is known, in words."""
    if config.group_regex is not None:
        found = groups_of(config.group_regex, paths)
        if missed := found.count(None):
            warn(f"--group-regex finds no patient in {missed:,} of {len(paths):,} paths")
        return found, f"--group-regex {config.group_regex}"
    if (known := find_patients(config, root, paths)) is not None:
        return known.groups, known.source
    if guess is None or guess.what != "patient":
        return [None] * len(paths), None
    return guessed_groups(paths, guess), GUESSED


def _by_table(
    root: Path, contents: FolderContents, file: Path, own_groups: bool, asked: Asked
) -> tuple[FolderContents, tuple[list[str], str] | None]:
    """The images that a table names, and their patients and how they are known, where a column of patients counts."""
    table = labels_from_table(file, root, contents.files, own_groups, asked)
    if table.read.source:
        say(table.read.source)
    for warning in table.notes:
        warn(warning)
    kept = named_in_table(contents, table)
    if len(kept.files) < len(contents.files):
        total = len(contents.files)
        say(f"{total - len(kept.files):,} of {total:,} images are in no row of {file.name}")
    return kept, None if table.groups is None else (table.groups, table.known)


class CheckFailed(DataError):
    """There are errors, or with `strict` warnings; `result` is what `check` returns."""

    def __init__(self, result: DataCheck):
        counts = f"{counted(result.count('error'), 'error')} and {counted(result.count('warning'), 'warning')}"
        first = result.problems[0]
        super().__init__(f"{counts}; the first: {first.text}", first.fix)
        self.result = result


def _gaps(images: Sequence[Image]) -> list[dict[str, Any]]:
    """The leakage gap of each baseline over all images, also reported in one line each."""
    good, labels, groups = decoded_with_labels(images)
    if groups is None or len(set(labels.tolist())) < 2:
        warn("--leakage-gap needs two classes and known patients (--group-regex)")
        return []
    with bar("leakage gap", unit="steps"):
        gaps = leakage_gap([image.record for image in good], labels, groups)
    if not gaps:
        warn("--leakage-gap: a class has one patient only, so no patient can be held out")
    for gap in gaps:
        say(
            f"leakage gap, {BASELINES[gap.baseline][0]}: AUROC {gap.by_image:.3f} with images held out, "
            f"{gap.by_patient:.3f} with patients held out; gap {gap.gap:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})"
        )
    return [{**asdict(gap), "text": BASELINES[gap.baseline][0]} for gap in gaps]
