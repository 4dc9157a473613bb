"""`vitmed check`: report what is wrong with a data folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitmed.checks.data_check import GUESSED, diagnose, guessed_groups, usable
from vitmed.checks.detect import Image, of_class_names, of_folder
from vitmed.checks.findings import Finding, in_order
from vitmed.checks.folder_contents import Place, Survey, survey
from vitmed.checks.shortcuts import BASELINES, FAMILIES, Gap, Shortcut, leakage_gap
from vitmed.core.errors import DataError
from vitmed.core.files import free_name, make_folder
from vitmed.core.load_config import build_config
from vitmed.core.run_folder import RunFolder, refuse_inside
from vitmed.core.ui import Ui
from vitmed.data.folders import data_folder
from vitmed.data.patient_names import guess_patients
from vitmed.data.patients import compile_group, group_of, know_patients
from vitmed.data.scan import scan
from vitmed.data.scan_cache import Index
from vitmed.data.tables import labels_from_table
from vitmed.imaging.augmentation import mirrored_pair
from vitmed.report.data_check_page import NUMBERS, PAGE, sizes, table, write_data_report


@dataclass(frozen=True)
class DataCheck:
    """The result of `check`.

    Attributes:
        folder: holds data_report.json and data_report.html.
        findings: worst first.
        content: content of data_report.json: counts, the table by split and class, sizes, shortcuts, findings.
    """

    folder: Path
    findings: tuple[Finding, ...]
    content: dict[str, Any]

    @property
    def clean(self) -> bool:
        """Whether there are no errors and no warnings."""
        return all(finding.severity == "note" for finding in self.findings)


def check(
    data: str | Path,
    *,
    group_regex: str | None = None,
    groups: str | Path | None = None,
    labels: str | Path | None = None,
    output: str | Path = "data-check",
    strict: bool = False,
    leakage_gap: bool = False,
    frame: int | None = None,
    index: bool = True,
    ui: Ui | None = None,
) -> DataCheck:
    """Decode every file once and report what is wrong with the data: files, copies, patients, shortcuts, names.

    Continues where training would refuse. Nothing in the folder is changed.

    Args:
        data: any folder of images, with or without classes and splits.
        group_regex: finds the patient in a path relative to `data`; without it, check guesses the patients from the
            file names, only for its findings.
        groups: a table of patients (path, patient), or "dicom" for the PatientID of DICOM files.
        labels: a CSV table with the class, and optionally patient and split, of the images to check, as for `train`;
            folder names then mean no class, and images without a row are ignored.
        output: folder of the report; never overwritten, the next is data-check-2.
        strict: raise if there is an error or a warning, after writing the report.
        leakage_gap: also fit cheap baselines by image and by patient, and report the gap.
        frame: which of several frames, from 0; None reports files that have several.
        index: keep what was found in the cache folder, so that the next check is quick.
        ui: where messages and progress go.

    Raises:
        DataError: a missing folder or one without images; with `strict`, findings (after writing the report).
        UsageError: an output folder inside the data, or an invalid `group_regex`.
    """
    ui = ui or Ui()
    root = data_folder(data)
    given = {"root": str(root), "group_regex": group_regex, "groups": None if groups is None else str(groups)}
    config = build_config({"data": given}).data
    pattern = compile_group(group_regex)
    refuse_inside(root, output)
    RunFolder.probe(Path(output).parent)
    seen = survey(root)
    if not seen.files and seen.unreadable:
        closed, reason = next(iter(seen.unreadable.items()))
        raise DataError(f"{root / closed}: cannot be read ({reason})", "check its permissions")
    if not seen.files:
        raise DataError(f"{root}: holds no image of a type that vitmed reads", "name a folder of images")
    own_groups: list[str] | None = None
    if labels is not None:
        seen, own_groups = _by_table(seen, Path(labels), group_regex is None and groups is None, ui)
    paths = seen.files
    records = scan(root, paths, Index.open(frame, ui=ui) if index else Index(None, frame), ui)
    of_images: Sequence[str | None] = [group_of(path, pattern) for path in paths]
    source = f"--group-regex {group_regex}" if pattern is not None else None
    if pattern is not None and (missed := sum(group is None for group in of_images)):
        ui.warn(f"--group-regex finds no patient in {missed:,} of {len(paths):,} paths")
    if groups is not None:
        known = know_patients(config, root, paths)
        assert known is not None
        of_images, source = known.groups, known.how
    if own_groups is not None:
        of_images, source = own_groups, "by table (--labels)"
    if source is None and (guess := guess_patients(paths)).expression is not None:
        of_images, source = guessed_groups(paths, guess), GUESSED
    images = [
        Image(path, record, place.label, place.split, group)
        for path, record, place, group in zip(paths, records, seen.places, of_images, strict=True)
    ]
    found = diagnose(images, source, ui)
    pair = mirrored_pair(sorted({image.label for image in images if image.label is not None}))
    findings = in_order([*found.findings, *of_folder(seen), *of_class_names(pair)])
    gaps = _gaps(images, ui) if leakage_gap else []
    content = {
        "data": root.resolve().name,
        "images": len(images),
        "classes": len({image.label for image in images} - {None}),
        "patients": len({image.group for image in images} - {None}) if source is not None else None,
        "patients_from": source,
        **found.counts,
        "table": table(images),
        "sizes": sizes(images),
        "shortcuts": [_shortcut_row(split, shortcut) for split, shortcut in found.shortcuts],
        "leakage_gap": [{**asdict(gap), "text": BASELINES[gap.baseline][0]} for gap in gaps],
        "findings": [finding.to_dict() for finding in findings],
    }
    folder = free_name(Path(output))
    make_folder(folder)
    with ui.bar("writing the report", unit="steps"):
        title = f"Data check of {root.resolve().name}"
        copies = {"exact": found.exact, "near": found.near}
        write_data_report(folder, root, title, content, images, findings, copies)
    ui.say(f"report: {folder / PAGE}, {folder / NUMBERS}")
    result = DataCheck(folder, tuple(findings), content)
    if strict and not result.clean:
        raise CheckFailed(result)
    return result


def _by_table(seen: Survey, file: Path, own_groups: bool, ui: Ui) -> tuple[Survey, list[str] | None]:
    """The images of a table with its classes, and with its splits or, if it has none, those of the folders.

    Returns:
        the survey of these images, and their patients if the table has them and `own_groups` is set.
    """
    table = labels_from_table(file, seen.root, seen.files, own_groups)
    for told in table.told:
        ui.warn(told)
    files = tuple(seen.files[i] for i in table.images)
    if len(files) < len(seen.files):
        ui.say(f"{len(seen.files) - len(files):,} of {len(seen.files):,} images are in no row of {file.name}")
    splits: Sequence[str | None] = table.splits or [seen.places[i].split for i in table.images]
    places = tuple(map(Place, splits, table.labels))
    folders = {split: tuple(sorted({p.label or "" for p in places if p.split == split})) for split in set(splits)}
    return (
        Survey(seen.root, "", files, places, folders, {}, seen.rubbish, seen.others, unreadable=seen.unreadable),
        table.groups,
    )


class CheckFailed(DataError):
    """Findings with `strict`; `result` holds what the command would have returned."""

    def __init__(self, result: DataCheck):
        bad = [finding for finding in result.findings if finding.severity != "note"]
        errors = sum(finding.severity == "error" for finding in bad)
        super().__init__(
            f"--strict: errors {errors:,}, warnings {len(bad) - errors:,}; the first: {bad[0].problem}", bad[0].fix
        )
        self.result = result


def _gaps(images: Sequence[Image], ui: Ui) -> list[Gap]:
    """The leakage gap of each baseline over all images, reported in a line each."""
    good, labels, groups = usable(images)
    if groups is None or len(set(labels.tolist())) < 2:
        ui.warn("--leakage-gap needs two classes and known patients (--group-regex)")
        return []
    with ui.bar("leakage gap", unit="steps"):
        gaps = leakage_gap([image.record for image in good], labels, groups)
    if not gaps:
        ui.warn("--leakage-gap: a class has one patient only, so no patient can be held out")
    for gap in gaps:
        ui.say(
            f"leakage gap, {BASELINES[gap.baseline][0]}: AUROC {gap.by_image:.3f} with images held out, "
            f"{gap.by_patient:.3f} with patients held out; gap {gap.gap:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})"
        )
    return gaps


def _shortcut_row(split: str | None, shortcut: Shortcut) -> dict[str, Any]:
    row = {"split": split, "text": FAMILIES[shortcut.family], **asdict(shortcut)}
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in row.items()}
