"""The data check: all that is wrong with a folder, and before each training one line for each problem."""

from __future__ import annotations

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.checks.detect import Copies, Image, Problem, in_order, make, run_checks
from vitmed.checks.folder_contents import FolderContents, folder_problems, named_in_table, read_contents
from vitmed.checks.shortcuts import FAMILIES
from vitmed.core.base_models import CLASSES
from vitmed.core.config import Config
from vitmed.core.dataset_cards import find_card
from vitmed.core.errors import DataError
from vitmed.core.messages import say, warn
from vitmed.core.places import data_folder
from vitmed.core.sections import DataConfig
from vitmed.core.text import counted, counted_doing
from vitmed.data.folders import SPLITS, image_names, import_fix
from vitmed.data.image_cache import ImageCache
from vitmed.data.label_kinds import Asked, Labels
from vitmed.data.listing import labels_from_table
from vitmed.data.patient_names import Guess, group_word
from vitmed.data.patients import find_patients, groups_of, suggest_groups
from vitmed.data.samples import Splits
from vitmed.data.scan import scan
from vitmed.imaging.choose_window import choose_window
from vitmed.imaging.exact_views import mirrored_pair
from vitmed.imaging.file_record import FileRecord

OF_CARD = {"name", "title", "source", "licence", "pitfalls", "group_regex", "group_note"}  # that the report shows

LINES = 8  # problems that training reports
COUNTS = ("found", "unreadable", "exact_duplicates", "near_duplicates", "duplicates_across_splits")
GUESSED = "guessed from the file names"
# Problems that affect what a result is worth.
IN_REPORT = {"class_of_one_patient", "class_is_patient", "class_of_few_patients", "mixed_modes", "mixed_depths"}
IN_REPORT |= {"two_labels", "near_two_labels", "copies_across_splits", "near_copies_across_splits"}
IN_REPORT |= {"patients_across_splits", *(f"shortcut_{family}" for family in FAMILIES if family != "all")}


def check_before_training(
    splits: Splits, records: Sequence[FileRecord], skipped: int, config: Config
) -> tuple[list[str], dict[str, int]]:
    """Check the images of a run, whose `records` are in the order of the splits, and report each problem in one line;
    `skipped` files cannot be read (--on-bad-file skip). Returns notes for the head of the report, and the numbers in
    `COUNTS`. Raises DataError where the same image has two labels, unless data.allow_leakage."""
    samples = [(name, sample) for name, part in splits.samples.items() for sample in part]
    groups: Sequence[str | None] = [sample.group for _, sample in samples]
    source = splits.patients or None
    if source is None and splits.guess is not None and splits.guess.what == "patient":
        groups, source = groups_of(splits.guess.expression, [sample.path for _, sample in samples]), GUESSED
    images = [
        Image(sample.path, record, splits.strata[sample.label], name, group).with_labels(
            splits.target, splits.classes, sample.targets
        )
        for (name, sample), record, group in zip(samples, records, groups, strict=True)
    ]
    checked = run_checks(images, source, splits=("train",))
    serious = _report(checked.problems, splits.root)
    leaks = [problem.code for problem in serious if problem.code in ("patients_across_splits", "copies_across_splits")]
    if leaks and splits.ready_made:
        how = "keeps copies in one split" if source is None else "splits by patient"
        names = "--groups names " * (source == GUESSED)
        warn(f"the data's own splits leak: {names}--resplit ignores them and {how}")
    labels = next((problem for problem in serious if problem.code == "two_labels"), None)
    if labels is not None and not config.data.allow_leakage:
        raise DataError(f"{labels.text}:\n" + "\n".join(labels.files[:10]), labels.fix)
    with contextlib.suppress(DataError):  # a folder beside the classes that cannot be read
        checked.counts["found"] = len(image_names(splits.root))
    counts = {name: checked.counts[name] for name in COUNTS if name in checked.counts} | {"unreadable": skipped}
    notes = [f"Data: {problem.text}." for problem in serious if problem.code in IN_REPORT]
    if skipped:
        lost = counted_doing(skipped, "file", "cannot be read and is", "cannot be read and are")
        notes.append(f"Data: {lost} in no split (--on-bad-file skip).")
    return notes, counts


def check_folder(data: DataConfig, ordinal: Sequence[str] = ()) -> None:
    """Report what `vitmed check` finds in the names and the layout of the folder, before any file is opened.

    Findings that a split lacks are left to `make_splits`, which knows every split. Raises DataError for an error.
    """
    root = data_folder(data.root)
    contents, asked = read_contents(root), Asked.of(data, ordinal)
    if data.labels is not None:
        contents = named_in_table(contents, labels_from_table(data.labels, root, contents.files, asked=asked))
    if data.resplit:
        names = tuple(sorted({name for of_split in contents.folders.values() for name in of_split}))
        places = tuple(place._replace(split=None) for place in contents.places)
        contents = replace(contents, places=places, folders={None: names}, splits={})
    problems = in_order(folder_problems(contents))
    error = next((problem for problem in problems if problem.severity == "error"), None)
    left = [p for p in problems if p is not error and (p.code, p.severity) != ("missing_class", "warning")]
    _report(left, root)
    if error is not None:
        files = "".join(f"\n{file}" for file in error.files)
        raise DataError(f"{root}: {error.text} ({error.code}){files}", error.fix)


def _report(problems: Iterable[Problem], root: Path) -> list[Problem]:
    """Print errors and warnings in a line each, at most `LINES`; returns all of them, worst first."""
    serious = [p for p in in_order(problems) if p.severity != "note" or p.code == "few_to_train"]
    advised = {"class_of_few_patients", "class_of_one_patient", "few_to_train"}  # once each
    for problem in serious[:LINES]:
        named = f": {', '.join(problem.files[:3])}{', ...' * (problem.count > 3)}" if problem.files else ""
        advice = f". {problem.fix[0].upper()}{problem.fix[1:]}" * (problem.code in advised)
        advised -= {problem.code}
        together = "; --groups copies keeps copies in one split" * (problem.code == "near_copies_across_splits")
        warn(f"{problem.text} ({problem.code}{together}){named}{advice}")
        if problem.count > 3:
            say(f"  {problem.code}: {', '.join(problem.files)}")
    if len(serious) > LINES:
        warn(f"{len(serious) - LINES:,} more problems; vitmed check {root} reports them all")
    return serious


def _patients_of_splits(images: Sequence[Image], unit: str) -> str:
    """How many patients each split has, and whether one is in two, in a line; "" without splits."""
    groups = {split: {i.group for i in images if i.split == split} - {None} for split in SPLITS}
    each = [f"{len(patients):,} in {split}" for split, patients in groups.items() if patients]
    two = sum(count > 1 for count in Counter(group for patients in groups.values() for group in patients).values())
    return f"{unit}s: {', '.join(each)}; {f'{two:,}' if two else 'none'} in two splits" if len(each) > 1 else ""


def table(images: Sequence[Image]) -> list[dict[str, Any]]:
    """One row per split and class, or finding: images, patients (None: unknown), unreadable files."""
    rows: dict[tuple[str, str], list[Image]] = {}
    for image in images:
        for kind in image.kinds or ("",):
            rows.setdefault((image.split or "", kind), []).append(image)
    return [
        {
            "split": split or None,
            "class": label or None,
            "images": len(part),
            "patients": len({i.group for i in part}) if all(i.group is not None for i in part) else None,
            "unreadable": sum(bool(i.record.kind) for i in part),
        }
        for (split, label), part in sorted(rows.items(), key=lambda row: (["", *SPLITS].index(row[0][0]), row[0][1]))
    ]


def sizes(images: Sequence[Image]) -> dict[str, Any]:
    """Counts by format, mode and bit depth, and quartiles of width and height, over the files with a readable head."""
    headers = [image.record.header for image in images if image.record.header is not None]
    content: dict[str, Any] = {}
    for key, name in (("formats", "format"), ("modes", "mode"), ("bits", "bits")):
        content[key] = dict(Counter(str(getattr(header, name)) for header in headers).most_common())
    for key in ("width", "height"):
        sides = [getattr(header, key) for header in headers]
        content[key] = [round(float(q)) for q in np.quantile(sides, [0, 0.25, 0.5, 0.75, 1])] if sides else None
    return content


def _name_problems(classes: Sequence[str], guess: Guess | None, contents: FolderContents) -> Iterator[Problem]:
    if pair := mirrored_pair(classes):
        yield make("left_right", f"{pair[0]!r} and {pair[1]!r} differ only by left and right", pair)
    if guess is not None and guess.what == "original":
        splits: dict[str | None, set[str | None]] = defaultdict(set)
        for original, place in zip(groups_of(guess.expression, contents.files), contents.places, strict=True):
            splits[original].add(place.split)
        both = [str(original) for original, names in splits.items() if len(names - {None}) > 1]
        text = f"{guess.evidence}: {counted(guess.patients, 'original')}, {len(both):,} of them in two splits"
        yield make("augmented_copies", text, both)


def _patients(
    config: DataConfig, root: Path, paths: Sequence[str], guess: Guess | None
) -> tuple[Sequence[str | None], str | None]:
    """The patient of each image, None where unknown, and how patients are known, in words."""
    if config.group_regex is not None:
        groups = groups_of(config.group_regex, paths)
        if missed := groups.count(None):
            warn(f"--group-regex finds no patient in {missed:,} of {len(paths):,} paths")
        return groups, f"--group-regex {config.group_regex}"
    if (known := find_patients(config, root, paths)) is not None:
        return known.groups, known.source
    if guess is None or guess.what != "patient":
        return [None] * len(paths), None
    return groups_of(guess.expression, paths), GUESSED


def _by_table(
    root: Path, contents: FolderContents, file: Path, own_groups: bool, asked: Asked
) -> tuple[FolderContents, tuple[list[str], str] | None]:
    table = labels_from_table(file, root, contents.files, own_groups, asked)
    if table.source:
        say(table.source)
    for warning in table.notes:
        warn(warning)
    kept = named_in_table(contents, table)
    if file.resolve().is_relative_to(root.resolve()):  # the table is read
        kept = replace(
            kept, others={k: left for k, n in kept.others.items() if (left := n - (k == file.suffix.lower()))}
        )
    if len(kept.files) < len(contents.files):
        total = len(contents.files)
        say(f"{total - len(kept.files):,} of {total:,} images are in no row of {file.name}")
    return kept, None if table.groups is None else (table.groups, table.known)


@dataclass(frozen=True)
class FolderCheck:
    """What is wrong with a folder: every image; problems, worst first; exact and near copies; data_report.json."""

    images: list[Image]
    problems: list[Problem]
    copies: dict[str, Copies]
    content: dict[str, Any]


def check_data(root: Path, config: Config, labels: str | Path | None, index: bool) -> FolderCheck:
    """Decode every file of a folder once, and collect what is wrong with the data, with the labels of a CSV table or,
    without, of the folders; `index` keeps the results in the cache folder. Raises DataError for no image."""
    data = config.data
    contents, named, asked = read_contents(root), None, Asked.of(data, config.evaluate.ordinal)
    if not contents.files and contents.unreadable:
        closed, reason = next(iter(contents.unreadable.items()))
        raise DataError(f"{root / closed}: cannot be read ({reason})", "check its permissions")
    if not contents.files:
        fix = import_fix(root) or "name a folder of images"
        raise DataError(f"{root}: contains no image of a type that vitmed reads", fix)
    if labels is not None:
        own_groups = data.group_regex is None and data.groups is None
        contents, named = _by_table(root, contents, Path(labels), own_groups, asked)
    else:
        asked.check_folders()
    places = zip(contents.files, contents.places, strict=True)
    train = [root / path for path, place in places if place.split in (None, "train")]
    chosen = choose_window(train, "auto", data.frame)  # the check sees what the network would see
    for line in chosen.notes:
        say(line)
    records = scan(root, contents.files, ImageCache(data.frame, chosen.window, keep=index))
    guess = suggest_groups(contents.files, labels is None)
    patients, source = named if named is not None else _patients(data, root, contents.files, guess)
    labels_of = contents.read or Labels(CLASSES, [], ())
    values = labels_of.values if labels_of.values is not None else np.empty((len(contents.files), 0))
    parts = zip(contents.files, records, contents.places, patients, values.tolist(), strict=True)
    images = [
        Image(path, record, place.label, place.split, group).with_labels(labels_of.target, labels_of.outputs, targets)
        for path, record, place, group, targets in parts
    ]
    checked = run_checks(images, source)
    classes = sorted({kind for image in images for kind in image.kinds})
    by_name = _name_problems(classes, guess if source is None else None, contents)
    problems = in_order([*checked.problems, *by_name, *folder_problems(contents)])
    rows = [{"split": split, "text": FAMILIES[clue.family], **asdict(clue)} for split, clue in checked.shortcuts]
    numbers = {
        "data": root.resolve().name,
        "images": len(images),
        "classes": len(labels_of.outputs) or len(classes),
        "patients": len({image.group for image in images} - {None}) if source is not None else None,
        "patients_from": source,
        "splits": "" if source is None else _patients_of_splits(images, group_word(source)),
        **checked.counts,
        "table": table(images),
        "sizes": sizes(images),
        "shortcuts": [
            {key: None if isinstance(v, float) and math.isnan(v) else v for key, v in row.items()} for row in rows
        ],
        "card": None if data.card is None else find_card(data.card).model_dump(include=OF_CARD),
        "problems": [{**asdict(problem), "files": list(problem.files)} for problem in problems],
    }
    return FolderCheck(images, problems, {"exact": checked.exact, "near": checked.near}, numbers)
