"""All data checks: from the records of the files to problems of the data set."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from vitmed.checks.duplicates import exact_groups, near_pairs
from vitmed.checks.folder_contents import FolderContents, same_name
from vitmed.checks.problems import (
    BY_CHANCE,
    CERTAIN,
    FEW_IMAGES,
    FEW_PATIENTS,
    SMALL_CLASS,
    THIN,
    TINY,
    TOLD,
    Problem,
    make,
)
from vitmed.checks.shortcuts import FAMILIES, Shortcut, find_shortcuts
from vitmed.core.targets import NO_FINDING, UNKNOWN, Target
from vitmed.core.text import counted, listed
from vitmed.core.ui import Ui
from vitmed.data.patients import AS_ORIGINALS
from vitmed.data.split_names import SPLITS
from vitmed.imaging.file_record import FileRecord
from vitmed.imaging.personal_data import looks_like_a_person
from vitmed.metrics.intervals import wilson

COPIES = {"two_labels": "under two labels", "copies_across_splits": "in two splits", "copies": "with one label"}
MODES = {"L": "grey", "LA": "grey with alpha", "P": "palette", "1": "black and white", "RGBA": "RGB with alpha"}
Copies = dict[str, list[list[int]]]  # key of COPIES, worst first -> groups of copies, as indices into the images


class Image(NamedTuple):
    """An image: its path relative to the root, the record of its file, and where it belongs (None: unknown).

    Attributes:
        label: its class, grade or stratum.
        kinds: what it counts for in checks by class: its label, or of findings those that it has, or "no finding".
        values: findings, NaN where not known, or the number; () of classes and grades.
    """

    path: str
    record: FileRecord
    label: str | None
    split: str | None
    group: str | None
    kinds: tuple[str, ...] = ()
    values: tuple[float, ...] = ()

    def with_labels(self, target: Target, outputs: Sequence[str], targets: Sequence[float]) -> Image:
        """The same with what it is labelled as; arguments as of `Splits` and `Sample`."""
        if target.kind != "findings" or self.label is None:
            return self._replace(kinds=() if self.label is None else (self.label,), values=tuple(targets))
        kinds = tuple(name for name, value in zip(outputs, targets, strict=True) if value == 1)
        values = tuple(math.nan if value == UNKNOWN else value for value in targets)
        return self._replace(kinds=kinds or (NO_FINDING,), values=values)


@dataclass(frozen=True)
class Found:
    """Problems, with the copies, shortcuts and counts that they come from."""

    problems: list[Problem]
    exact: Copies
    near: Copies
    shortcuts: list[tuple[str | None, Shortcut]]
    counts: dict[str, int]


def run_checks(images: Sequence[Image], source: str | None, ui: Ui, splits: Sequence[str] | None = None) -> Found:
    """All problems that follow from the files.

    Args:
        source: how the patients are known, in words; None where they are not.
        splits: where to look for shortcuts; None: everywhere.
    """
    with ui.bar("looking for copies", unit="steps"):
        exact_copies = exact_groups([image.record.sha256 if image.record.size > 0 else "" for image in images])
        repeated = {i for group in exact_copies for i in group[1:]}
        good = [i for i, image in enumerate(images) if image.record.thumbnail is not None and i not in repeated]
        near_copies = [[good[i], good[j]] for i, j in near_pairs(*_pictures([images[i].record for i in good]))]
    exact, near = _sort_copies(images, exact_copies), _sort_copies(images, near_copies, near=True)
    shortcuts: list[tuple[str | None, Shortcut]] = []
    with ui.bar("looking for shortcuts", unit="steps"):
        for split in (None, *SPLITS):
            if splits is None or split in splits:
                part, labels, groups = decoded_with_labels([image for image in images if image.split == split])
                found = find_shortcuts([image.record for image in part], labels, groups)
                shortcuts += [(split, shortcut) for shortcut in found]
    problems = [
        *_file_problems(images),
        *_copy_problems(images, exact, near),
        *_patient_problems(images, source),
        *_few_to_train(images, source is not None),
        *_personal_data_problems(images),
        *_shortcut_problems(shortcuts),
    ]
    places = {(image.group, image.split) for image in images if image.group is not None}
    counts = {
        "unreadable": sum(bool(image.record.kind) for image in images),
        "duplicates": len(repeated) + len(near_copies),
        "exact_duplicates": len(repeated),
        "near_duplicates": len(near_copies),
        "duplicates_across_splits": _crossing(images, [*exact_copies, *near_copies]),
        "patients_across_splits": sum(count > 1 for count in Counter(group for group, _ in places).values()),
    }
    return Found(problems, exact, near, shortcuts, counts)


def _pictures(records: Sequence[FileRecord]) -> tuple[np.ndarray, np.ndarray]:
    """Thumbnails (N, S, S) uint8 and width / height (N,) of files that could be decoded."""
    if not records:
        return np.empty((0, 1, 1), np.uint8), np.empty(0)
    headers = [record.header for record in records if record.header is not None]
    aspects = [h.height / h.width if h.orientation >= 5 else h.width / h.height for h in headers]
    return np.stack([record.thumbnail for record in records if record.thumbnail is not None]), np.array(aspects)


def decoded_with_labels(images: Sequence[Image]) -> tuple[list[Image], np.ndarray, list[str] | None]:
    """The images that a regression can use, their labels, and their patients where all are known."""
    good = [image for image in images if image.record.thumbnail is not None and image.label is not None]
    labels = np.unique([str(image.label) for image in good], return_inverse=True)[1].astype(np.int64)
    groups = [str(i.group) for i in good] if good and all(i.group is not None for i in good) else None
    return good, labels, groups


def folder_problems(contents: FolderContents) -> Iterator[Problem]:
    """Problems that folder names show alone, before any file is opened."""
    names = {name for of_split in contents.folders.values() for name in of_split}
    labels = {place.label for place in contents.places if place.label is not None}
    several = contents.read is not None and bool(contents.read.outputs)  # findings, or a number
    if contents.base:
        text = f"the images begin at {contents.base}, a folder within the folder"
        yield make("nested_root", text, [contents.base], "warning", f"point at {contents.base}")
    for copy, count in contents.copies.items():
        text = f"{copy}/ lies beside the classes, but contains the classes again ({counted(count, 'image')})"
        yield make("nested_root", text, [copy])
    for folder, reason in contents.unreadable.items():
        text = f"folder {folder or '.'} cannot be read ({reason})"
        yield make("unreadable", text, [folder or "."], fix="check its permissions")
    for split, folders in contents.splits.items():
        if len(folders) > 1:
            yield make("two_split_folders", f"{' and '.join(folders)} are both {split}", folders)
    if not labels:
        yield make("no_classes", f"{counted(len(contents.files), 'image')} in no class folder")
    elif len(labels) == 1 and not contents.unreadable and not several:
        yield make("one_class", f"one class only: {next(iter(labels))!r}")
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        alike[same_name(name)].append(name)
    for same in alike.values():
        if len(same) > 1:
            text = f"class folders {' and '.join(map(repr, same))} are hard to tell apart by eye"
            yield make("class_names_alike", text, same)
    loose = [path for path, place in zip(contents.files, contents.places, strict=True) if place.label is None]
    if loose and labels:
        yield make("loose_images", f"{counted(len(loose), 'image')} in no class folder", loose)
    if contents.outside:
        text = f"{counted(len(contents.outside), 'image')} beside the split folders, which training ignores"
        yield make("outside_splits", text, contents.outside)
    counts = _finding_counts(contents) if several else _class_counts(contents, sorted(names | labels))
    yield from counts
    if contents.rubbish:
        text = f"{counted(len(contents.rubbish), 'file')} left behind by the operating system; vitmed ignores them"
        yield make("rubbish", text, contents.rubbish)
    if contents.others:
        types = ", ".join(f"{count:,} {suffix}" for suffix, count in list(contents.others.items())[:8])
        yield make("other_files", f"files of a type that vitmed does not read: {types}")


def _class_counts(contents: FolderContents, classes: Sequence[str]) -> Iterator[Problem]:
    """Empty and small classes, and classes that a split lacks."""
    counts = Counter((place.split, place.label) for place in contents.places)
    for split, folders in contents.folders.items():
        where = f"{split}: " if split else ""
        empty = [name for name in folders if not counts[split, name] and not _has_unreadable(contents, split, name)]
        if empty and classes:
            yield make("empty_class", f"{where}no image of {listed([*map(repr, empty)])}", empty)
        needed = 1
        if set(contents.folders) == {None} or (split == "train" and split in contents.splits):
            needed += sum(name not in contents.folders for name in ("val", "test"))  # which are split off
        few = [name for name in folders if 0 < counts[split, name] < needed]
        if few:
            text = listed([f"{name!r} has {counted(counts[split, name], 'image')}" for name in few])
            yield make("too_small_class", f"{where}class {text}, and training needs {needed} to split them", few)
        small = [name for name in folders if needed <= counts[split, name] < SMALL_CLASS]
        if small:
            text = listed([f"{counts[split, name]} of {name!r}" for name in small])
            yield make("small_class", f"{where}very few images: {text}", small)
        missing = [name for name in classes if name not in folders]
        if split and missing and folders:
            text = f"{where}no folder for class {listed([*map(repr, missing)])}, which other splits have"
            yield make("missing_class", text, missing)


def _finding_counts(contents: FolderContents) -> Iterator[Problem]:
    """Findings that are rare, and those that a split lacks; nothing of a number."""
    assert contents.read is not None
    if contents.read.target.kind != "findings":
        return
    assert contents.read.values is not None
    splits = [place.split for place in contents.places]
    for split in dict.fromkeys(splits):
        where = f"{split}: " if split else ""
        rows = [row for row, of_row in enumerate(splits) if of_row == split]
        values = contents.read.values[rows]
        positives = (values == 1).sum(axis=0).tolist()
        counts = dict(zip(contents.read.outputs, positives, strict=True))
        missing = [name for name, count in counts.items() if not count]
        if missing:
            text = f"{where}no image has {listed([*map(repr, missing)])}"
            yield make("missing_class", text, missing, "warning", "nothing can be learned or said of it there")
        always = [name for name, of in zip(counts, values.T, strict=True) if counts[name] and not (of == 0).any()]
        if always:
            text = f"{where}every image with a label has {listed([*map(repr, always)])}"
            yield make("missing_class", text, always, "warning", "nothing can be learned or said of its absence there")
        small = [name for name, count in counts.items() if 0 < count < SMALL_CLASS]
        if small:
            text = listed([f"{counts[name]} with {name!r}" for name in small])
            yield make("small_class", f"{where}very few images: {text}", small)


def _has_unreadable(contents: FolderContents, split: str | None, name: str) -> bool:
    """Whether a class folder, or a folder in it, cannot be read: it may hold images."""
    starts = contents.splits.get(split, ()) if split is not None else (contents.base.rstrip("/"),)
    folders = tuple(f"{start}/{name}/".lstrip("/") for start in starts)
    return any(f"{path}/".startswith(folders) for path in contents.unreadable)


def _file_problems(images: Sequence[Image]) -> Iterator[Problem]:
    """Files that cannot be read, and differences in format between the files that can."""
    by_kind: dict[str, list[Image]] = defaultdict(list)
    for image in images:
        if image.record.kind:
            by_kind[image.record.kind].append(image)
    for kind, bad in by_kind.items():
        first = bad[0].record
        text = f": {first.problem}" if len(bad) == 1 else f" (the first: {first.problem})"
        yield make(kind, f"{counted(len(bad), 'file')}{text}", [image.path for image in bad], fix=first.fix)
    good = [image for image in images if not image.record.kind]
    headers = [image.record.header for image in good if image.record.header is not None]
    if not headers:
        return
    for code, values in (
        ("mixed_modes", [MODES.get(header.mode, header.mode) for header in headers]),
        ("mixed_depths", [counted(header.bits, "bit") for header in headers]),
        ("mixed_formats", [header.format for header in headers]),
    ):
        counts = Counter(values).most_common(6)
        if len(counts) > 1:
            text = ", ".join(f"{name}: {counted(count, 'image')}" for name, count in counts)
            rare = [image.path for image, value in zip(good, values, strict=True) if value != counts[0][0]]
            yield make(code, text + _by_class([image.label for image in good], values), rare)
    shorter, longer = np.sort([(header.width, header.height) for header in headers]).T
    if longer.max() >= THIN * shorter.min():
        yield make("mixed_sizes", f"sides from {shorter.min():,} to {longer.max():,} px")
    numbers = np.stack([image.record.numbers for image in good if image.record.numbers is not None])
    for code, which, text in (
        ("thin", longer >= THIN * shorter, f"with one side {THIN:g} or more times the other"),
        ("rotated", [header.orientation != 1 for header in headers], "rotated or mirrored by EXIF orientation"),
        ("tiny", longer < TINY, f"with a longer side below {TINY} px"),
        ("constant", numbers[:, 6] == numbers[:, 7], "of a single colour"),
    ):
        if paths := [image.path for image, applies in zip(good, which, strict=True) if applies]:
            yield make(code, f"{counted(len(paths), 'image')} {text}", paths)


def _by_class(labels: Sequence[str | None], values: Sequence[str]) -> str:
    """ "; infected are all RGB": where each class has one value only, and not all the same."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for label, value in zip(labels, values, strict=True):
        if label is not None:
            kinds[label].add(value)
    if len(set().union(*kinds.values())) < 2 or any(len(kind) > 1 for kind in kinds.values()):
        return ""
    pairs = ", ".join(f"{label} is {next(iter(kind))}" for label, kind in sorted(kinds.items())[:6])
    return f"; it depends on the class: {pairs}"


def _sort_copies(images: Sequence[Image], groups: Iterable[Sequence[int]], near: bool = False) -> Copies:
    """Every group of copies under the worst kind that applies to it."""
    found: Copies = {code: [] for code in COPIES}
    apart = _spread(images) if near else 0.0
    for group in groups:
        splits = {images[i].split for i in group}
        two = _contradict([images[i] for i in group], apart)
        code = "two_labels" if two else "copies_across_splits" if len(splits) > 1 else "copies"
        found[code].append(list(group))
    return found


def _spread(images: Sequence[Image]) -> float:
    """The standard deviation of a number, by which two measurements may differ; of a finding below 1."""
    values = np.array([image.values[0] for image in images if image.values], np.float64)
    values = values[np.isfinite(values)]
    return float(values.std()) if len(values) else 0.0


def _contradict(copies: Sequence[Image], apart: float) -> bool:
    """Whether copies of one image have two labels, or numbers that are farther apart."""
    if not copies[0].values:
        return len({image.label for image in copies} - {None}) > 1
    values = np.array([image.values for image in copies])
    known = (column[np.isfinite(column)] for column in values.T)
    return any(len(column) > 1 and np.ptp(column) > apart for column in known)


def _crossing(images: Sequence[Image], groups: Iterable[Sequence[int]]) -> int:
    """Images of one split that have a copy in another: those of a group beyond its largest part."""
    counts = [Counter(images[i].split for i in group) for group in groups]
    return sum(sum(count.values()) - max(count.values()) for count in counts if len(count) > 1)


def _copy_problems(images: Sequence[Image], exact: Copies, near: Copies) -> Iterator[Problem]:
    """The same image twice."""
    for copies, prefix, how in ((exact, "", "the same file"), (near, "near_", "the same picture")):
        for code, groups in copies.items():
            if groups:
                named = [" = ".join(images[i].path for i in group) for group in groups]
                text = f"{how} {COPIES[code]}: {counted(len(groups), 'picture' if prefix else 'file')}"
                yield make(prefix + code, text, named)


def _patient_problems(images: Sequence[Image], source: str | None) -> Iterator[Problem]:
    """Whether patients reveal the classes or are in two splits."""
    if source is None:
        if images:
            yield make("patients_unknown", "which images are of one patient is not known")
        return
    originals = source.startswith(AS_ORIGINALS)  # of copies: nobody knows how many patients they are of
    guessed = source.startswith("guess")
    by = f" ({source})" if guessed else ""
    classes: dict[str, dict[str, Counter[str]]] = {name: defaultdict(Counter) for name in ("", *SPLITS)}
    splits: dict[str, set[str | None]] = defaultdict(set)
    for image in images:
        if image.group is None:
            continue
        splits[image.group].add(image.split)
        for kind in image.kinds:
            classes[image.split or ""][kind][image.group] += 1
    for split, of_class in classes.items():
        if len(of_class) > 1 and not originals:
            yield from _patients_by_class(f"{split}: " if split else "", of_class, by)
    both = sorted(group for group, where in splits.items() if len(where - {None}) > 1)
    if both:
        severity = "warning" if guessed else None  # the guess may be wrong
        what = counted(len(both), "original" if originals else "patient")
        fix = (
            "if the guess is right, train with --groups names --resplit, which ignores these splits" if guessed else ""
        )
        yield make("patients_across_splits", f"{what} in two splits{by}", both, severity, fix)
    if guessed:
        yield make("patients_guessed", f"{counted(len(splits), 'patient')}, {source}")


def _patients_by_class(where: str, of_class: Mapping[str, Counter[str]], by: str) -> Iterator[Problem]:
    large = {label: counts for label, counts in sorted(of_class.items()) if counts.total() >= SMALL_CLASS}
    for label, counts in large.items():
        total = counts.total()
        equal = total**2 / sum(count**2 for count in counts.values())  # as many patients of equal shares
        if len(counts) == 1:
            text = f"{where}all {total:,} images of {label!r} come from one patient{by}"
            yield make("class_of_one_patient", text, counts)
        elif equal < FEW_PATIENTS:
            text = f"{where}the {total:,} images of {label!r} come from {counted(len(counts), 'patient')}"
            text += f", {max(counts.values()) / total:.0%} of them from one{by}"
            yield make("class_of_few_patients", text, [name for name, _ in counts.most_common()])
    if len(large) > 1 and not any(a & b for a, b in combinations(map(set, large.values()), 2)):
        few = sorted(map(len, large.values()))[:2]
        chance = 2 / comb(sum(few), few[0])
        if chance >= BY_CHANCE:
            fewest = f"{few[0]} and {counted(few[1], 'patient')}"
            text = f"{where}no patient has images of two classes, and there are only {fewest} of a class: a trait of"
            text += " patients that means nothing (stain, slide, light) sorts them into the classes with a chance of"
            yield make("class_is_patient", f"{text} {chance:.0%}{by}")


def _few_to_train(images: Sequence[Image], grouped: bool) -> Iterator[Problem]:
    """Classes of which there is little to learn from, and how wide the interval of a sensitivity of 0.8 will be."""
    if any(value not in (0, 1) for image in images for value in image.values if not math.isnan(value)):
        return  # a number
    every: dict[str, list[Image]] = defaultdict(list)
    for image in images:
        for kind in image.kinds:
            every[kind].append(image)

    def units(of_class: Iterable[Image]) -> int:
        return len({image.group if grouped else image.path for image in of_class})

    few, widths = [], list[tuple[int, int, str]]()
    for kind, of_class in sorted(every.items()):
        train = [image for image in of_class if image.split in (None, "train")]
        if len(train) < FEW_IMAGES or (grouped and units(train) < FEW_PATIENTS):
            few.append(f"{kind!r} has {counted(len(train), 'image')}" + f" of {units(train)} patients" * grouped)
            tested = units(image for image in of_class if image.split == "test")
            widths.append((tested or max(1, round(0.15 * units(of_class))), units(of_class), kind))
    if few:
        tested, whole, kind = min(widths)
        one, all_of_them = (np.ptp(wilson(0.8, n, 1.96)) / 2 for n in (tested, whole))
        what = "patient" if grouped else "image"
        yield make(
            "few_to_train",
            f"very few to train on: {listed(few)}. A sensitivity of 0.8 for {kind!r} on "
            f"{counted(tested, f'test {what}')} is known to about ±{one:.2f}, on all {whole:,} (--folds 5) to "
            f"±{all_of_them:.2f}",
        )


def _personal_data_problems(images: Sequence[Image]) -> Iterator[Problem]:
    """Names and metadata that look like a person. No problem repeats a value of the metadata."""
    look = cache(looks_like_a_person)
    named: dict[str, list[str]] = defaultdict(list)
    fields: dict[str, list[str]] = defaultdict(list)
    for image in images:
        if what := next(filter(None, map(look, image.path.split("/"))), None):
            named[what].append(image.path)
        for name in image.record.personal:
            fields[name].append(image.path)
    for what, paths in named.items():
        yield make("person_in_name", f"{counted(len(paths), 'path')} with what looks like {what}", paths)
    for name, paths in sorted(fields.items()):
        code = "text_in_picture" if "BurnedIn" in name or "modality" in name else "person_in_file"
        yield make(code, f"{name} in {counted(len(paths), 'file')}", paths)


def _shortcut_problems(shortcuts: Iterable[tuple[str | None, Shortcut]]) -> Iterator[Problem]:
    """Families of features that reveal the label; the interval must lie above 0.5."""
    for split, shortcut in shortcuts:
        if shortcut.family == "all" or not shortcut.auroc >= TOLD or not shortcut.low > 0.5:
            continue
        how = "whole patients held out" if shortcut.by_patient else "images held out, not patients"
        text = f"{split}: " if split else ""
        text += f"the label can be predicted from {FAMILIES[shortcut.family]} alone, AUROC {shortcut.auroc:.3f} "
        text += f"({shortcut.low:.3f} to {shortcut.high:.3f}; {how})"
        yield make(f"shortcut_{shortcut.family}", text, severity=None if shortcut.auroc >= CERTAIN else "note")
