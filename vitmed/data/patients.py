"""The patient of every image: by an expression, a table, DICOM's PatientID, or a confirmed guess from file names."""

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


class Known(NamedTuple):
    """The patient of every image, in the order of the paths; how they are known, in words; messages for the user."""

    groups: list[str]
    how: str
    messages: list[str]


def know_patients(
    config: DataConfig,
    root: Path,
    paths: Sequence[str],
    progress: Progress | None = None,
    folders_are_classes: bool = True,
) -> Known | None:
    """The patients, as `config.group_regex` or `config.groups` ask; None where neither does.

    Args:
        root: the data folder.
        paths: of the images, relative to it, with forward slashes.
        progress: called while the heads of DICOM files are read.

    Raises:
        DataError: an image without a patient, or a table that cannot be used.
        UsageError: no regular expression, or pydicom is missing.
    """
    if config.group_regex is not None:
        return Known(_by_expression(config.group_regex, root, paths), "by expression (--group-regex)", [])
    if config.groups is None:
        return None
    if config.groups == DICOM:
        return Known(_by_dicom(root, paths, progress), "by PatientID (--groups dicom)", [])
    if config.groups == NAMES:
        guess = guess_patients(paths, folders_are_classes)
        if guess.expression is None:
            raise DataError(
                f"{root}: the file names do not tell patients in a way that vitmed knows (--groups names)",
                "--group-regex EXPRESSION, or --groups TABLE",
            )
        how = "by file name (--groups names)"
        return Known(_by_expression(guess.expression, root, paths), how, [])
    groups, messages = groups_from_table(config.groups, root, paths)
    return Known(groups, "by table (--groups)", messages)


def compile_group(expression: str | None) -> re.Pattern[str] | None:
    """The group expression, compiled. Raises UsageError where it is not a regular expression."""
    if expression is None:
        return None
    try:
        return re.compile(expression)
    except re.error as error:
        raise UsageError(
            f"--group-regex {expression}: not a regular expression ({error})",
            "close every bracket; one that stands in the names themselves is written with \\ before it",
        ) from None


def group_of(path: str, pattern: re.Pattern[str] | None) -> str | None:
    """The patient in a relative path, or None where there is no expression or it finds none."""
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
    """PatientID (0010,0020) of every file; nothing else of its head is kept, and no pixel is read."""
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
        except Exception as error:  # pydicom answers a damaged head with errors of many kinds
            group, problem = "", f"the head cannot be read ({type(error).__name__})"
        if not group:
            missing.append(f"{path}: {problem}")
        found.append(sys.intern(group))
        if progress is not None:
            progress(done, len(paths))
    if missing:
        raise DataError(
            f"{root}: no PatientID in {len(missing):,} of {len(paths):,} files:\n" + first_of(missing, len(missing)),
            "name the patients by --groups TABLE, or move these files away",
        )
    return found
