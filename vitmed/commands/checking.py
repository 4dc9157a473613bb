"""`vitmed check`: what is wrong with a data folder; and the same before every training."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.augment import mirrored_pair
from vitmed.config import Config, build_config
from vitmed.data_report import NUMBERS, PAGE, sizes, table, write_data_report
from vitmed.diagnosis import (
    Copies,
    Image,
    crossing,
    of_class_names,
    of_copies,
    of_files,
    of_folder,
    of_patients,
    of_privacy,
    of_shortcuts,
    sort_copies,
)
from vitmed.duplicates import exact_groups, near_pairs
from vitmed.errors import DataError
from vitmed.findings import Finding, in_order
from vitmed.flow import COUNTS
from vitmed.index import Index
from vitmed.inspection import file_of, inspect_files
from vitmed.run import RunFolder, free_name, make_folder, refuse_inside
from vitmed.shortcuts import BASELINES, FAMILIES, Gap, Shortcut, find_shortcuts, leakage_gap
from vitmed.splits import (
    SPLITS,
    Guess,
    Splits,
    compile_group,
    data_folder,
    group_of,
    guess_patients,
    image_names,
    know_patients,
    labels_from_table,
)
from vitmed.survey import Place, Survey, survey
from vitmed.ui import Ui

LINES = 8  # findings that training says


@dataclass(frozen=True)
class DataCheck:
    """What `check` found.

    Attributes:
        folder: of data_report.json and data_report.html.
        findings: worst first.
        content: of data_report.json: counts, the table by split and class, sizes, shortcuts, findings.
    """

    folder: Path
    findings: tuple[Finding, ...]
    content: dict[str, Any]

    @property
    def clean(self) -> bool:
        """Whether there is neither error nor warning."""
        return all(finding.severity == "note" for finding in self.findings)


@dataclass(frozen=True)
class _Found:
    """Findings and what they rest on."""

    findings: list[Finding]
    exact: Copies
    near: Copies
    shortcuts: list[tuple[str | None, Shortcut]]
    counts: dict[str, int]


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
    """Decode every file once and say what is wrong with the data: files, copies, patients, shortcuts, names.

    Goes on where training would refuse. Nothing in the folder is changed.

    Args:
        data: any folder of images, with or without classes and splits.
        group_regex: finds the patient in a path relative to `data`; without it the patients are guessed from the names,
            for these findings alone.
        groups: a table of patients (path, patient), or "dicom" for the PatientID of DICOM files.
        labels: a CSV table that says the class, and maybe patient and split, of the images to check, as of `train`;
            then no folder says a class, and images in no row are passed over.
        output: folder of the report; never overwritten, the next is data-check-2.
        strict: raise where there is an error or a warning, after the report is written.
        leakage_gap: also fit cheap baselines by image and by patient, and tell the gap.
        frame: which of several frames, from 0; None tells files that have several.
        index: remember what was found of every file in the cache folder, so that the next time is quick.
        ui: where messages and progress go.

    Raises:
        DataError: no such folder, no image in it; with `strict`, findings (the report is written then).
        UsageError: an output folder inside the data, or a `group_regex` that is not one.
    """
    ui = ui or Ui()
    root = data_folder(data)
    given = {"root": str(root), "group_regex": group_regex, "groups": None if groups is None else str(groups)}
    config = build_config({"data": given}).data
    pattern = compile_group(group_regex)
    refuse_inside(root, output)
    RunFolder.probe(Path(output).parent)
    seen = survey(root)
    if not seen.files:
        raise DataError(f"{root}: holds no image of a type that vitmed reads", "name a folder of images")
    own_groups: list[str] | None = None
    if labels is not None:
        seen, own_groups = _by_table(seen, Path(labels), group_regex is None and groups is None, ui)
    records = inspect_files(root, seen.files, _index(ui, frame) if index else Index(None, frame), ui)
    paths = [file.path for file in seen.files]
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
        of_images, source = _guessed(paths, guess), GUESSED
    images = [
        Image(path, record, place.label, place.split, group)
        for path, record, place, group in zip(paths, records, seen.places, of_images, strict=True)
    ]
    found = _diagnose(images, source, ui)
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
    """The images that a table names, in the place that it says (a split that it does not say is the folder's).

    Returns:
        the survey of them, and their patients where the table has those and they count.
    """
    table = labels_from_table(file, seen.root, [image.path for image in seen.files], own_groups)
    for told in table.told:
        ui.warn(told)
    files = tuple(seen.files[i] for i in table.images)
    if len(files) < len(seen.files):
        ui.say(f"{len(seen.files) - len(files):,} of {len(seen.files):,} images are in no row of {file.name}")
    splits: Sequence[str | None] = table.splits or [seen.places[i].split for i in table.images]
    places = tuple(map(Place, splits, table.labels))
    folders = {split: tuple(sorted({p.label or "" for p in places if p.split == split})) for split in set(splits)}
    return Survey(seen.root, "", files, places, folders, {}, seen.rubbish, seen.others), table.groups


class CheckFailed(DataError):
    """`strict`, and there are findings; `result` is what the command would have returned."""

    def __init__(self, result: DataCheck):
        bad = [finding for finding in result.findings if finding.severity != "note"]
        errors = sum(finding.severity == "error" for finding in bad)
        super().__init__(
            f"--strict: errors {errors:,}, warnings {len(bad) - errors:,}; the first: {bad[0].problem}", bad[0].fix
        )
        self.result = result


def check_before_training(splits: Splits, config: Config, ui: Ui) -> tuple[list[str], dict[str, int]]:
    """The findings of `check` on the images of a run, said in a line each.

    Returns:
        notes for the head of the report, and the numbers of `flow.COUNTS`.

    Raises:
        DataError: the same image under two labels, unless data.allow_leakage.
    """
    samples = [(name, sample) for name, part in splits.samples.items() for sample in part]
    paths = [sample.path for _, sample in samples]
    records = inspect_files(
        splits.root, [file_of(splits.root, path) for path in paths], _index(ui, config.data.frame), ui
    )
    groups: Sequence[str | None] = [sample.group for _, sample in samples]
    source = splits.patients or None
    if source is None and splits.guess is not None:
        groups, source = _guessed(paths, splits.guess), GUESSED
    images = [
        Image(sample.path, record, splits.classes[sample.label], name, group)
        for (name, sample), record, group in zip(samples, records, groups, strict=True)
    ]
    found = _diagnose(images, source, ui, splits=("train",))
    told = [f for f in in_order(found.findings) if f.severity != "note"]
    for finding in told[:LINES]:
        named = f": {', '.join(finding.files[:3])}{', ...' * (finding.count > 3)}" if finding.files else ""
        ui.warn(f"{finding.problem} ({finding.code}){named}")
    if len(told) > LINES:
        ui.warn(f"{len(told) - LINES:,} more findings; vitmed check {splits.root} tells them all")
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


def _guessed(paths: Sequence[str], guess: Guess) -> list[str | None]:
    """The patients that file names look like."""
    pattern = compile_group(guess.expression)
    return [group_of(path, pattern) for path in paths]


def _index(ui: Ui, frame: int | None) -> Index:
    index, problem = Index.open(frame)
    if problem is not None:
        ui.warn(problem)
    return index


def _diagnose(images: Sequence[Image], source: str | None, ui: Ui, splits: Sequence[str] | None = None) -> _Found:
    """All that rests on the files themselves; shortcuts in these splits (None: in every one)."""
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
    return _Found(findings, sorted_exact, sorted_near, shortcuts, counts)


def _looks(images: Sequence[Image]) -> tuple[np.ndarray, np.ndarray]:
    """Thumbnails (N, S, S) uint8 and width / height (N,)."""
    if not images:
        return np.empty((0, 1, 1), np.uint8), np.empty(0)
    sides = [(i.record.facts.width, i.record.facts.height) for i in images if i.record.facts is not None]
    turned = [i.record.facts.orientation >= 5 for i in images if i.record.facts is not None]
    aspects = np.array([h / w if turn else w / h for (w, h), turn in zip(sides, turned, strict=True)])
    return np.stack([i.record.thumbnail for i in images if i.record.thumbnail is not None]), aspects


def _usable(images: Sequence[Image]) -> tuple[list[Image], np.ndarray, list[str] | None]:
    """The images that count in a regression, their labels and their patients."""
    good = [image for image in images if image.record.thumbnail is not None and image.label is not None]
    names = sorted({str(image.label) for image in good})
    labels = np.array([names.index(str(image.label)) for image in good], dtype=np.int64)
    groups = [str(i.group) for i in good] if good and all(i.group is not None for i in good) else None
    return good, labels, groups


def _shortcuts(images: Sequence[Image]) -> list[Shortcut]:
    good, labels, groups = _usable(images)
    return find_shortcuts([image.record for image in good], labels, groups)


def _gaps(images: Sequence[Image], ui: Ui) -> list[Gap]:
    """The leakage gap of all images together, said in a line each."""
    good, labels, groups = _usable(images)
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
