"""The data check before each training: one line for each problem."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitmed.checks.detect import Image, run_checks
from vitmed.checks.folder_contents import named_in_table, read_contents
from vitmed.checks.folder_problems import folder_problems
from vitmed.checks.problems import Problem, in_order
from vitmed.core.config import Config
from vitmed.core.data_config import DataConfig
from vitmed.core.errors import DataError
from vitmed.core.inputs import data_folder
from vitmed.core.messages import warn
from vitmed.core.text import counted_doing
from vitmed.data.folders import image_names
from vitmed.data.label_kinds import Asked
from vitmed.data.label_tables import labels_from_table
from vitmed.data.patient_names import Guess
from vitmed.data.patients import groups_of
from vitmed.data.samples import Splits
from vitmed.imaging.file_record import FileRecord

LINES = 8  # problems that training reports
COUNTS = ("found", "unreadable", "exact_duplicates", "near_duplicates", "duplicates_across_splits")
GUESSED = "guessed from the file names"
# Problems that affect what a result is worth.
IN_REPORT = {
    "class_of_one_patient", "class_is_patient", "class_of_few_patients", "two_labels", "patients_across_splits",
    "copies_across_splits", "near_two_labels", "near_copies_across_splits", "shortcut_geometry", "shortcut_file",
    "shortcut_format", "shortcut_colour", "shortcut_border", "mixed_modes", "mixed_depths",
}  # fmt: skip


def check_before_training(
    splits: Splits, records: Sequence[FileRecord], skipped: int, config: Config
) -> tuple[list[str], dict[str, int]]:
    """Check the images of a run and report each problem in one line.

    Args:
        records: of every image, in the order of the splits.
        skipped: how many files are in no split because they cannot be read (--on-bad-file skip).

    Returns:
        notes for the head of the report, and the numbers named in `COUNTS`.

    Raises:
        DataError: the same image has two labels, unless data.allow_leakage.
    """
    samples = [(name, sample) for name, part in splits.samples.items() for sample in part]
    groups: Sequence[str | None] = [sample.group for _, sample in samples]
    source = splits.patients or None
    if source is None and splits.guess is not None and splits.guess.what == "patient":
        groups, source = guessed_groups([sample.path for _, sample in samples], splits.guess), GUESSED
    images = [
        Image(sample.path, record, splits.strata[sample.label], name, group).with_labels(
            splits.target, splits.classes, sample.targets
        )
        for (name, sample), record, group in zip(samples, records, groups, strict=True)
    ]
    found = run_checks(images, source, splits=("train",))
    serious = _report(found.problems, splits.root)
    leaks = [problem.code for problem in serious if problem.code in ("patients_across_splits", "copies_across_splits")]
    if leaks and splits.ready_made:
        how = "keeps copies in one split" if source is None else "splits by patient"
        names = "--groups names " * (source == GUESSED)
        warn(f"the data's own splits leak: {names}--resplit ignores them and {how}")
    labels = next((problem for problem in serious if problem.code == "two_labels"), None)
    if labels is not None and not config.data.allow_leakage:
        raise DataError(f"{labels.text}:\n" + "\n".join(labels.files[:10]), labels.fix)
    with contextlib.suppress(DataError):  # a folder beside the classes that cannot be read
        found.counts["found"] = len(image_names(splits.root))
    counts = {name: found.counts[name] for name in COUNTS if name in found.counts} | {"unreadable": skipped}
    notes = [f"Data: {problem.text}." for problem in serious if problem.code in IN_REPORT]
    if skipped:
        lost = counted_doing(skipped, "file", "cannot be read and is", "cannot be read and are")
        notes.append(f"Data: {lost} in no split (--on-bad-file skip).")
    return notes, counts


def check_folder(data: DataConfig, ordinal: Sequence[str] = ()) -> None:
    """Report what `vitmed check` finds in the names and the layout of the folder, before any file is opened.

    Findings that a split lacks are left to `make_splits`, which knows every split.

    Args:
        ordinal: as of `make_splits`.

    Raises:
        DataError: a problem that is an error.
    """
    root = data_folder(data.root)
    contents, asked = read_contents(root), Asked.of(data, ordinal)
    if data.labels is not None:
        contents = named_in_table(contents, labels_from_table(data.labels, root, contents.files, asked=asked))
    if data.resplit:
        contents = contents.without_splits()
    found = in_order(folder_problems(contents))
    error = next((problem for problem in found if problem.severity == "error"), None)
    others = [problem for problem in found if problem is not error]
    _report([one for one in others if (one.code, one.severity) != ("missing_class", "warning")], root)
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
        warn(f"{problem.text} ({problem.code}){named}{advice}")
    if len(serious) > LINES:
        warn(f"{len(serious) - LINES:,} more problems; vitmed check {root} reports them all")
    return serious


def guessed_groups(paths: Sequence[str], guess: Guess) -> list[str | None]:
    """The patients that file names suggest."""
    return groups_of(guess.expression, paths)
