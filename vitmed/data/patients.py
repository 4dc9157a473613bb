"""The patient of every image: from an expression, a table, DICOM's PatientID, or a confirmed guess by file name."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from vitmed.core.config import GROUP_WORDS, DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.data.patient_names import guess_patients
from vitmed.data.tables import first_of, groups_from_table
from vitmed.imaging.dicom import QUIET

Progress = Callable[[int, int], None]
NAMES, DICOM = GROUP_WORDS


class KnownPatients(NamedTuple):
    """The patient of every image, in the order of the paths; how they are known, in words; notes for the user."""

    groups: list[str]
    source: str
    notes: list[str]


def find_patients(
    config: DataConfig,
    root: Path,
    paths: Sequence[str],
    progress: Progress | None = None,
    folders_are_classes: bool = True,
) -> KnownPatients | None:
    """The patients by `config.group_regex` or `config.groups`; None if neither is set.

    Args:
        root: the data folder.
        paths: of the images, relative to it, with forward slashes.
        progress: called while the headers of DICOM files are read.

    Raises:
        DataError: an image without a patient, or a table that cannot be used.
        UsageError: an invalid regular expression, or pydicom is missing.
    """
    if config.group_regex is not None:
        return KnownPatients(_by_expression(config.group_regex, root, paths), "from the file paths (--group-regex)", [])
    if config.groups is None:
        return None
    if config.groups == DICOM:
        return KnownPatients(_by_dicom(root, paths, progress), "by PatientID (--groups dicom)", [])
    if config.groups == NAMES:
        guess = guess_patients(paths, folders_are_classes)
        if guess.expression is None:
            raise DataError(
                f"{root}: the file names do not identify patients in a form that vitmed knows (--groups names)",
                "--group-regex EXPRESSION, or --groups TABLE",
            )
        return KnownPatients(_by_expression(guess.expression, root, paths), "by file name (--groups names)", [])
    groups, notes = groups_from_table(config.groups, root, paths)
    return KnownPatients(groups, "by table (--groups)", notes)


def compile_group(expression: str | None) -> re.Pattern[str] | None:
    """The compiled expression. Raises UsageError if it is not a regular expression."""
    if expression is None:
        return None
    try:
        return re.compile(expression)
    except re.error as error:
        raise UsageError(
            f"--group-regex {expression}: not a regular expression ({error})",
            "close every bracket, and write \\ before a bracket that is part of the names",
        ) from None


def group_of(path: str, pattern: re.Pattern[str] | None) -> str | None:
    """The patient in a relative path, or None if there is no expression or no match."""
    match = pattern.search(path) if pattern is not None else None
    if pattern is None or match is None:
        return None
    return (match.group(1) if pattern.groups else match.group()) or None


def _by_expression(expression: str, root: Path, paths: Sequence[str]) -> list[str]:
    pattern = compile_group(expression)
    found = [group_of(path, pattern) for path in paths]
    missed = [path for path, group in zip(paths, found, strict=True) if group is None]
    if missed:
        raise DataError(
            f"{root}: --group-regex {expression!r} finds no patient in {len(missed):,} of {len(paths):,} paths:\n"
            + first_of(missed, len(missed)),
            "widen the expression, or move these files away",
        )
    return [sys.intern(str(group)) for group in found]


@QUIET
def _by_dicom(root: Path, paths: Sequence[str], progress: Progress | None) -> list[str]:
    """PatientID (0010,0020) of every file; vitmed keeps nothing else and reads no pixel."""
    try:
        from pydicom import dcmread
        from pydicom.errors import InvalidDicomError
    except ImportError:
        raise UsageError("--groups dicom needs one more package", "pip install 'vitmed[dicom]'") from None
    found, missing = [], []
    for done, path in enumerate(paths, 1):
        try:
            head = dcmread(root / path, stop_before_pixels=True, specific_tags=["PatientID"])
            group = str(head.get("PatientID") or "").strip()
            problem = "PatientID is missing or empty"
        except InvalidDicomError:
            group, problem = "", "not a DICOM file"
        except Exception as error:  # pydicom raises many errors for damaged headers
            group, problem = "", f"the header cannot be read ({type(error).__name__})"
        if not group:
            missing.append(f"{path}: {problem}")
        found.append(sys.intern(group))
        if progress is not None:
            progress(done, len(paths))
    if missing:
        raise DataError(
            f"{root}: no PatientID in {len(missing):,} of {len(paths):,} files:\n" + first_of(missing, len(missing)),
            "name the patients with --groups TABLE, or move these files away",
        )
    return found
