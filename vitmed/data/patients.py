"""The patient of every image: from an expression, a table, DICOM's PatientID, or a confirmed guess by file name.

And what a reader must know about patients and splits before believing a number.
"""

import contextlib
import itertools
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import regex

from vitmed.core.config import GROUP_WORDS, DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import check_regular
from vitmed.core.messages import bar, say, warn
from vitmed.core.text import counted, counted_doing, lines_of, one_spelling, quoted, visible
from vitmed.data.duplicates import find_copies
from vitmed.data.folders import TABLES, list_folder
from vitmed.data.image_cache import ImageCache, scan
from vitmed.data.patient_names import AS_ORIGINALS, Guess, guess_copies, guess_patients, known_by_column
from vitmed.data.samples import Splits
from vitmed.data.tables import PATH_NAMES, Table, read_table
from vitmed.imaging.choose_window import choose_window
from vitmed.imaging.decode import decode
from vitmed.imaging.dicom import QUIET
from vitmed.metrics.predictions_csv import GROUP_NAMES

NAMES, DICOM, COPIES = GROUP_WORDS
SECONDS, SECONDS_A_PATH = 5.0, 1e-4  # for all paths of a data set, whatever the expression
MOST = 100_000  # length of an expression with its repetitions written out
REPETITION = re.compile(r"(\))?\{(\d*),?(\d*)\}")
VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")
FLAG, BY_ID = "--groups names", "by PatientID (--groups dicom)"
DECODED = 100  # files without PatientID, to tell those that cannot be read; of more, decoding takes too long
NO_ID = "name the patients with --groups TABLE, or move these files away"
NO_PATIENTS = "These are not patients: one patient may be in two splits."
UNKNOWN = "One patient may be in two splits, and the intervals take each image as independent."


class KnownPatients(NamedTuple):
    """The patient of every image; how they are known, in words; notes for the user."""

    groups: Sequence[str | None]
    source: str
    notes: Sequence[str] = ()


def find_patients(
    config: DataConfig, root: Path, paths: Sequence[str], folders_are_classes: bool = True
) -> KnownPatients | None:
    """The patients in paths relative to the root, by `config.group_regex` or `config.groups`; None if neither is set.
    Raises DataError: an image without a patient, or a table that cannot be used. UsageError: an invalid regular
    expression, or pydicom is missing."""
    expression, guess = config.group_regex, None
    if expression is None and config.groups == NAMES:
        if (guess := suggest_groups(paths, folders_are_classes)) is None:
            problem = f"{root}: the file names do not identify patients in a form that vitmed knows (--groups names)"
            raise DataError(problem, "--group-regex EXPRESSION, or --groups TABLE")
        expression = guess.expression
    if expression is not None:
        groups = groups_of(expression, paths)
        if missed := [path for path, group in zip(paths, groups, strict=True) if group is None]:
            raise DataError(
                f"{root}: --group-regex {shlex.quote(visible(expression))} finds no patient in {len(missed):,} of "
                f"{len(paths):,} paths:\n{lines_of(missed)}",
                "widen the expression, or move these files away",
            )
        names = [sys.intern(str(group)) for group in groups]
        if guess is None:
            return KnownPatients(names, "from the file paths (--group-regex)")
        if guess.what == "patient":
            return KnownPatients(names, f"by file name{f', {guess.evidence}' * bool(guess.evidence)} ({FLAG})")
        note = f"{guess.evidence}. The copies of one original stay in one split. {NO_PATIENTS}"
        return KnownPatients(names, f"{AS_ORIGINALS}, by file name ({FLAG})", [note])
    if config.groups is None:
        return None
    if config.groups == DICOM:
        ids, missing = patients_of_dicom(root, paths, config.frame)
        if missing:
            raise DataError(f"{root}: {missing[0]}:\n{lines_of(missing[1:])}", NO_ID)
        joined, notes = one_spelling([str(known) for known in ids], "patient", paths)
        return KnownPatients(joined, BY_ID, notes)
    if config.groups == COPIES:
        from scipy.sparse import coo_array  # imported here: predict starts without it
        from scipy.sparse.csgraph import connected_components

        window = choose_window([root / path for path in paths], "auto", config.frame, "images").window  # as in `check`
        records = scan(root, paths, ImageCache(config.frame, window, keep=config.cache))
        pairs = [(group[0], other) for group in itertools.chain(*find_copies(records)) for other in group[1:]]
        one, other = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        copies = coo_array((np.ones(len(pairs)), (one, other)), shape=(len(paths), len(paths)))
        _, begin, where = np.unique(connected_components(copies)[1], return_index=True, return_inverse=True)
        firsts = begin[where].tolist()  # of each image its first copy
        count = sum(i != first for i, first in enumerate(firsts))
        note = f"{counted_doing(count, 'image')} a copy of another; copies stay in one split. {NO_PATIENTS}"
        originals = [paths[i] for i in firsts]
        return KnownPatients(originals, f"{AS_ORIGINALS}, by their pixels (--groups copies)", [note])
    return groups_from_table(config.groups, root, paths, config.card)


def suggest_groups(paths: Sequence[str], folders_are_classes: bool = True) -> Guess | None:
    """The groups that file names suggest: by a usual form of name, else by augmented copies.

    `folders_are_classes`: whether the first folder (after train, val or test) is the class.
    """
    return guess_patients(paths, folders_are_classes) or guess_copies(paths, folders_are_classes)


def compile_group(expression: str) -> regex.Pattern[str]:
    """The expression, in the syntax of `re`. Raises UsageError if it is not a regular expression."""
    try:
        re.compile(expression)  # `regex` allows more, such as recursion
    except (re.error, RecursionError, OverflowError) as error:
        fix = "close every bracket, and write \\ before a bracket that is part of the names"
        raise UsageError(f"--group-regex {expression}: not a regular expression ({error})", fix) from None
    size, repeated = len(expression), 1  # `regex` writes repetitions out, within the memory of the machine
    for bracket, *counts in REPETITION.findall(expression):
        count = max(int(number or 0) for number in counts)
        size, repeated = (size, repeated * max(1, count)) if bracket else (size + count, repeated)
    if size * repeated > MOST or VERBOSE.search(expression):
        problem = f"--group-regex {shlex.quote(visible(expression[:99]))}: too long, or too many repetitions in {{}}"
        fix = f"write it with at most {MOST:,} characters, repetitions written out, and without the flag x"
        raise UsageError(problem, fix)
    return regex.compile(expression)


def show_expression(expression: str | None) -> None:
    """Print an expression before it is used: it may come from somebody else's checkpoint or configuration."""
    if expression is not None:
        say(f"looking for patients in the file paths by --group-regex {shlex.quote(visible(expression))}")


def groups_of(expression: str, paths: Sequence[str]) -> list[str | None]:
    """The patient in each relative path: the first bracket that matched, or the whole match if there is none.

    A patient has the least of its spellings, None where the expression does not match. Names of several shapes need
    alternatives, each with its own bracket.
    Raises UsageError: not a regular expression, or one that takes too long on these paths.
    """
    pattern = compile_group(expression)
    seconds = max(SECONDS, SECONDS_A_PATH * len(paths))
    end, groups = time.monotonic() + seconds, list[str | None]()
    for path in paths:
        try:
            match = pattern.search(path, timeout=max(0.001, end - time.monotonic()))
        except (TimeoutError, MemoryError):
            raise UsageError(
                f"--group-regex {shlex.quote(visible(expression))}: takes more than {seconds:.0f} s for "
                f"{counted(len(paths), 'path')}, stopped at {path!r}: the expression backtracks",
                "write it without a repetition of a repetition, such as (a+)+; or use --groups TABLE",
            ) from None
        texts = (match.groups() if pattern.groups else (match[0],)) if match else ()
        groups.append(next(filter(None, texts), None))
    return [one or None for one in one_spelling([group or "" for group in groups], "patient", paths)[0]]


def patient_column(table: Table, card: str | None = None) -> int | None:
    """The column of patients: by a usual name, else the only one that says so in another way and joins rows."""
    usual = table.find(GROUP_NAMES, card)
    others = [*table.of_patients()] if usual is None else []
    return others[0] if len(others) == 1 else usual


def groups_from_table(file: str | Path, root: Path, paths: Sequence[str], card: str | None = None) -> KnownPatients:
    """The patient of every image from a table of paths and patients.

    `card`: of the set that the table belongs to; it may name the columns. Raises DataError: the table cannot be read,
    lacks a column, a value or an image, or has two patients for an image.
    """
    if not Path(file).suffix and not Path(file).exists():
        fix = "name a table; a column of patients in the table of --labels needs no flag"
        raise DataError(f"--groups {file}: there is no such table", fix)
    table = read_table(file)
    path, group = table.find(PATH_NAMES, card), patient_column(table, card)
    if len(table.header) == 2 and path is None and group is not None:
        path = 1 - group  # the only other column
    elif len(table.header) == 2 and group is None and path is not None:
        group = 1 - path
    path = table.required(path, "path of an image", PATH_NAMES)
    group = table.required(group, "patient", GROUP_NAMES)
    images, strange = table.images(path, root, paths)
    patients: dict[int, str] = {}
    cells, joined = table.patients(group)
    for image, patient, line in zip(images, map(str, cells), table.lines, strict=True):
        if image is not None and patients.setdefault(image, patient) != patient:
            both = f"{paths[image]} has patient {patient!r} here and {patients[image]!r} above"
            raise DataError(f"{file}: line {line}: {both}", "keep one of the rows")
    unmatched = f"{counted_doing(len(strange), 'row', 'matches', 'match')} no image, or several"
    if missing := [path for i, path in enumerate(paths) if i not in patients]:
        rows = f"\n{unmatched}:\n{lines_of(strange)}" if strange else ""
        of = counted_doing(len(paths), "image", "has", "have")
        problem = f"{file}: {len(missing):,} of {of} no row:\n{lines_of([*table.notes, *missing])}{rows}"
        raise DataError(problem, f"use paths relative to {root} or to the table, or add the rows")
    notes = [f"{file}: {unmatched}, the first is {strange[0]}"] if strange else []
    known = known_by_column(table.header[group], "--groups")
    return KnownPatients([patients[i] for i in range(len(paths))], known, [*table.notes, *notes, *joined])


@QUIET
def patient_id(file: Path) -> tuple[str, str]:
    """PatientID (0010,0020) of a DICOM file, of which vitmed keeps nothing else; where that is "", also why. Raises
    ImportError without pydicom."""
    from pydicom import dcmread
    from pydicom.errors import InvalidDicomError

    try:
        check_regular(file)
        head = dcmread(file, stop_before_pixels=True, specific_tags=["PatientID"])
        text = str(head.get("PatientID") or "").strip()
        if "SpecificCharacterSet" not in head:  # pydicom then reads Latin-1, also what a device wrote as UTF-8
            with contextlib.suppress(UnicodeError):
                text = text.encode("latin-1").decode()
        return text, "PatientID is missing or empty"
    except DataError as error:
        return "", error.problem.removeprefix(f"{file}: ")
    except InvalidDicomError:
        return "", "not a DICOM file"
    except Exception as error:  # pydicom raises many errors for damaged headers
        return "", f"the header cannot be read ({type(error).__name__})"


def patients_of_dicom(root: Path, paths: Sequence[str], frame: int | None) -> tuple[list[str | None], list[str]]:
    """`patient_id` of every file; and, where it is missing (None), in how many files, and why in each.

    A file that cannot be read is a patient of its own: it is reported, or left out, when the images are read.
    """
    groups, missing = list[str | None](), list[str]()
    with bar("finding images", unit="files") as advance:
        for done, path in enumerate(paths, 1):
            try:
                group, problem = patient_id(root / path)
            except ImportError:
                raise UsageError("--groups dicom needs one more package", "pip install 'vitmed[dicom]'") from None
            if not group and len(missing) < DECODED:
                try:
                    decode(root / path, frame)
                except DataError:
                    group = path
            if not group:
                missing.append(f"{path}: {problem}")
            groups.append(sys.intern(group) or None)
            advance(done, len(paths))
    return groups, [f"no PatientID in {len(missing):,} of {len(paths):,} files", *missing] if missing else []


def patient_notes(splits: Splits, split: str) -> list[str]:
    """Notes if patients are in this split and another, if groups are not patients, or if patients are unknown."""
    if not splits.grouped:
        return [f"Split by image: likely optimistic. Patients are unknown. {UNKNOWN}"]
    unit, notes = splits.unit, list[str]()
    if unit != "patient":
        why = "one patient may be in two splits, which makes the result optimistic"
        notes.append(f"Split by {unit}: {why}. Where this report says patient, read {unit}.")
    if shared := [group for group, names in splits.shared().items() if split in names]:
        have = counted_doing(len(shared), unit, "of this split has", "of this split have")
        notes.append(f"Leakage: {have} images in another split too; the result is optimistic.")
    return notes


def describe_patients(splits: Splits) -> str:
    """Patients per split, how many are in two splits, and how they are known, in words."""
    if not splits.grouped:
        return "unknown, so the images were split one by one: a patient may be in two splits"
    counts = ", ".join(f"{len(groups):,} in {name}" for name, groups in splits.groups().items())
    shared = f"{len(splits.shared()):,} OF THEM IN TWO SPLITS" if splits.shared() else "none in two splits"
    return f"{counts}, {shared}{f'; identified {splits.patients}' * bool(splits.patients)}"


RISK = "one patient may be in two splits, which makes results look too good"


def report_patients(splits: Splits, risk: str = RISK) -> None:
    """Report the patients of each split or, if they are unknown, the risk and what the file names suggest."""
    for text in splits.notes:
        warn(text)
    if splits.grouped:
        say(f"{splits.unit}s: {describe_patients(splits)}")
        return
    beside = [splits.root / name for name in sorted(list_folder(str(splits.root)).others)]
    tables = [splits.source, *(file for file in beside if file.suffix.lower() in TABLES)]
    for file in filter(Path.is_file, tables):
        with contextlib.suppress(DataError, UsageError):
            table = read_table(file)
            path, group = table.find(PATH_NAMES), patient_column(table)
            if path is not None and group is not None and all(row[group].strip() for row in table.rows):
                named = f"The column {table.header[group]!r} of {file.name} seems to name them"
                warn(f"patients are unknown: {risk}. {named}: --groups {quoted(file)}")
                return
    dicom = any(sample.path.lower().endswith((".dcm", ".dicom", ".ima")) for sample in splits.every)
    others = f"{'--groups dicom, which reads PatientID, ' * dicom}--group-regex or --groups TABLE"
    if (guess := splits.guess) is None:
        warn(f"patients are unknown: {risk} (use {others})")
    else:
        examples = ", ".join(guess.examples) + ", ..." * (guess.patients > len(guess.examples))
        by = f", {guess.evidence}" if guess.evidence else ""
        warn(
            f"patients are unknown: {risk}. The file names look like {counted(guess.patients, guess.what)} ({examples})"
            f"{by}: confirm with {FLAG}, or use {others}"
        )
