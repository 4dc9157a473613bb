"""The checks of the files: from their records to problems of the data set.

What can be wrong, how bad it is and what to do is in problems.yaml: `PROBLEMS`.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import yaml

from vitmed.checks.shortcuts import FAMILIES, Shortcut, find_shortcuts
from vitmed.core.base_models import NO_FINDING, UNKNOWN
from vitmed.core.messages import bar
from vitmed.core.text import counted, grouped
from vitmed.data.duplicates import find_copies
from vitmed.data.folders import SPLITS
from vitmed.data.patient_names import AS_ORIGINALS, group_word
from vitmed.data.samples import Sample, Splits
from vitmed.imaging.file_record import FileRecord, looks_like_a_person

SMALL_CLASS = 10  # images
FEW_PATIENTS = 5  # effective number of patients below which a class depends on few of them
BY_CHANCE = 0.01  # chance that an irrelevant trait of the patients separates the classes
TINY = 16  # px
THIN = 4.0  # longer side / shorter side
TOLD, CERTAIN = 0.65, 0.8  # AUROC from which a shortcut is a note, and a warning
NAMED = 20  # files that a problem names

PROBLEMS: dict[str, tuple[str, str, str]] = {  # code -> severity, what it means, what to do, with the limits above
    code: (severity, row["means"].format_map(globals()), row["fix"])
    for severity, rows in yaml.safe_load(Path(__file__).with_name("problems.yaml").read_text(encoding="utf-8")).items()
    for code, row in rows.items()
}
COPIES = {"two_labels": "under two labels", "copies_across_splits": "in two splits", "copies": "with one label"}
MODES = {"L": "grey", "LA": "grey with alpha", "P": "palette", "1": "black and white", "RGBA": "RGB with alpha"}
Copies = dict[str, list[list[int]]]  # key of COPIES, worst first -> groups of copies, as indices into the images


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        severity: "error", "warning" or "note".
        code: a key of `PROBLEMS`.
        text: what was found, with numbers; without file names and patients, so that a report can show it.
        files: the first files, folders or patients that it is about.
        count: how many there are in all.
        fix: what to do about it.
    """

    severity: str
    code: str
    text: str
    files: tuple[str, ...]
    count: int
    fix: str


def make(code: str, text: str, files: Iterable[str] = (), severity: str | None = None, fix: str = "") -> Problem:
    """A problem; severity and fix are those of the table unless given."""
    usual, _, usual_fix = PROBLEMS[code]
    named = tuple(files)
    return Problem(severity or usual, code, text, named[:NAMED], len(named), fix or usual_fix)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Worst first: by severity, then by the table."""
    severities, codes = ["error", "warning", "note"], list(PROBLEMS)
    return sorted(problems, key=lambda f: (severities.index(f.severity), codes.index(f.code)))


class Place(NamedTuple):
    """The split and the class of a file by its folders; None where they name none."""

    split: str | None
    label: str | None


class Image(NamedTuple):
    """An image: its path relative to the root, the record of its file, and where it belongs (None: unknown)."""

    path: str
    record: FileRecord
    label: str | None  # its class, grade or stratum
    split: str | None
    group: str | None
    kinds: tuple[str, ...] = ()  # what it counts for by class: its label, or the findings that it has, or "no finding"
    values: tuple[float, ...] = ()  # findings, NaN where not known, or the number; () of classes and grades

    @classmethod
    def of(cls, sample: Sample, record: FileRecord, place: Place, group: str | None, read: Splits) -> Self:
        """The image of a sample of the images `read`, with what it is labelled as."""
        kinds: tuple[str, ...] = () if place.label is None else (place.label,)
        values = tuple(sample.targets)
        if read.target.kind == "findings" and kinds:
            kinds = tuple(name for name, value in zip(read.classes, values, strict=True) if value == 1) or (NO_FINDING,)
            values = tuple(math.nan if value == UNKNOWN else value for value in values)
        return cls(sample.path, record, place.label, place.split, group, kinds, values)


@dataclass(frozen=True)
class Found:
    """What is wrong with images: problems, with the copies, "exact" and "near", shortcuts and counts behind them."""

    images: Sequence[Image]
    problems: list[Problem]
    copies: dict[str, Copies]
    shortcuts: list[tuple[str | None, Shortcut]]
    counts: dict[str, int]


def run_checks(
    images: Sequence[Image], source: str | None, splits: Sequence[str] | None = None, read: Splits | None = None
) -> Found:
    """All problems that follow from the files.

    `source`: how the patients are known, in words, or None; `splits`: where to look for shortcuts, None for everywhere;
    `read`: says what the labels are. Of findings, a family of features counts for the one that it predicts best.
    """
    kind = "" if read is None else read.target.kind
    findings = read.classes if read is not None and kind == "findings" else ("",)
    with bar("looking for copies", unit="steps"):
        exact_copies, near_copies = find_copies([image.record for image in images])
    exact_copies = [group for group in exact_copies if not images[group[0]].record.kind]  # those that can be read
    copies = {"exact": _sort_copies(images, exact_copies), "near": _sort_copies(images, near_copies, near=True)}
    shortcuts: list[tuple[str | None, Shortcut]] = []
    with bar("looking for shortcuts", unit="steps"):
        usable = grouped((i.split, i) for i in images if i.record.thumbnail is not None and i.label is not None)
        ways = len(findings) * len(FAMILIES) * sum(splits is None or split in splits for split in usable)
        for split in (None, *SPLITS):
            if splits is None or split in splits:
                part, best = usable.get(split, []), dict[str, Shortcut]()
                for k, finding in enumerate(findings):
                    known = [i for i in part if not finding or not math.isnan(i.values[k])]
                    labels = np.array([str(i.values[k] if finding else i.label) for i in known])
                    groups = [str(i.group) for i in known] if all(i.group is not None for i in known) else None
                    for clue in find_shortcuts([i.record for i in known], labels, groups, finding, ways):
                        other = best.get(clue.family, clue)
                        best[clue.family] = max(other, clue, key=lambda one: (one.clear, np.nan_to_num(one.auroc)))
                shortcuts += [(split, shortcut) for shortcut in best.values()]
    copied = []
    for alike, prefix, how in (("exact", "", "the same file"), ("near", "near_", "the same picture")):
        for code, sets in ((code, sets) for code, sets in copies[alike].items() if sets):
            named = [" = ".join(images[i].path for i in group) for group in sets]
            text = f"{how} {COPIES[code]}: {counted(len(sets), 'pair' if prefix else 'file')}"
            tested = len({i for group in sets for i in group if images[i].split == "test"})
            if tested and code == "copies_across_splits":
                text += f", {tested:,} of {counted(sum(image.split == 'test' for image in images), 'test image')}"
            elif code == "copies" and not prefix:
                text += f", {sum(map(len, sets)) - len(sets):,} too many"
            copied.append(make(prefix + code, text, named))
    problems = [
        *_file_problems(images),
        *copied,
        *(p for p in _patient_problems(images, source) if (kind, p.code) != ("number", "class_is_patient")),
        *_shortcut_problems(shortcuts, kind),
    ]
    repeated = sum(len(group) - 1 for group in exact_copies)
    parts = [Counter(images[i].split for i in group) for group in [*exact_copies, *near_copies]]
    places = {(image.group, image.split) for image in images if image.group is not None}
    counts = {
        "unreadable": sum(bool(image.record.kind) for image in images),
        "duplicates": repeated + len(near_copies),
        "exact_duplicates": repeated,
        "near_duplicates": len(near_copies),
        "duplicates_across_splits": sum(part.total() - max(part.values()) for part in parts if len(part) > 1),
        "patients_across_splits": sum(count > 1 for count in Counter(group for group, _ in places).values()),
    }
    return Found(images, problems, copies, shortcuts, counts)


def _file_problems(images: Sequence[Image]) -> Iterator[Problem]:
    for kind in dict.fromkeys(image.record.kind for image in images if image.record.kind):
        bad = [image for image in images if image.record.kind == kind]
        first = bad[0].record
        text = f": {first.problem}" if len(bad) == 1 else f" (the first: {first.problem})"
        yield make(kind, f"{counted(len(bad), 'file')}{text}", [image.path for image in bad], fix=first.fix)
    # Names and metadata that look like a person; no problem repeats a value of the metadata.
    look = cache(looks_like_a_person)
    found = ((next(filter(None, map(look, image.path.split("/"))), None), image.path) for image in images)
    for what, paths in grouped((what, path) for what, path in found if what).items():
        yield make("person_in_name", f"{counted(len(paths), 'path')} with what looks like {what}", paths)
    fields = grouped((name, image.path) for image in images for name in image.record.personal)
    for name, paths in sorted(fields.items()):
        code = "text_in_picture" if "BurnedIn" in name or "modality" in name else "person_in_file"
        yield make(code, f"{name} in {counted(len(paths), 'file')}", paths)
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
            yield make(code, text, rare)
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


def _sort_copies(images: Sequence[Image], groups: Iterable[Sequence[int]], near: bool = False) -> Copies:
    """Every group of copies under the worst kind that applies to it. Near copies contradict each other if their numbers
    differ by more than a standard deviation, which is below 1 for a finding."""
    sorted_groups: Copies = {code: [] for code in COPIES}
    numbers = np.array([image.values[0] for image in images if image.values], np.float64)
    numbers = numbers[np.isfinite(numbers)]
    apart = float(numbers.std()) if near and len(numbers) else 0.0
    for group in groups:
        copies = [images[i] for i in group]
        if copies[0].values:
            finite = (column[np.isfinite(column)] for column in np.array([image.values for image in copies]).T)
            two = any(len(column) > 1 and np.ptp(column) > apart for column in finite)
        else:
            two = len({image.label for image in copies} - {None}) > 1
        splits = {image.split for image in copies}
        code = "two_labels" if two else "copies_across_splits" if len(splits) > 1 else "copies"
        sorted_groups[code].append(list(group))
    return sorted_groups


def _patient_problems(images: Sequence[Image], source: str | None) -> Iterator[Problem]:
    if source is None:
        if images:
            yield make("patients_unknown", "which images are of one patient is not known")
        return
    unit = group_word(source)
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
        if len(of_class) > 1 and not source.startswith(AS_ORIGINALS):  # of how many patients, nobody knows
            yield from _patients_by_class(f"{split}: " if split else "", of_class, unit, by)
    both = sorted(group for group, where in splits.items() if len(where - {None}) > 1)
    if both:
        severity = "warning" if guessed else None  # the guess may be wrong
        fix = "if the guess is right, train with --groups names --resplit, which ignores these splits" * guessed
        yield make("patients_across_splits", f"{counted(len(both), unit)} in two splits{by}", both, severity, fix)
    if guessed:
        yield make("patients_guessed", f"{counted(len(splits), 'patient')}, {source}")


def _patients_by_class(where: str, of_class: Mapping[str, Counter[str]], unit: str, by: str) -> Iterator[Problem]:
    large = {label: counts for label, counts in sorted(of_class.items()) if counts.total() >= SMALL_CLASS}
    for label, counts in large.items():
        total = counts.total()
        equal = total**2 / sum(count**2 for count in counts.values())  # as many patients of equal shares
        if len(counts) == 1:
            text = f"{where}all {total:,} images of {label!r} come from one {unit}{by}"
            yield make("class_of_one_patient", text, counts)
        elif equal < FEW_PATIENTS:
            text = f"{where}the {total:,} images of {label!r} come from {counted(len(counts), unit)}"
            text += f", {max(counts.values()) / total:.0%} of them from one{by}"
            yield make("class_of_few_patients", text, [name for name, _ in counts.most_common()])
    if len(large) > 1 and not any(a & b for a, b in combinations(map(set, large.values()), 2)):
        few = sorted(map(len, large.values()))[:2]
        chance = 2 / math.comb(sum(few), few[0])
        if chance >= BY_CHANCE:
            fewest = f"{few[0]} and {counted(few[1], unit)}"
            text = f"{where}no {unit} has images of two classes, and there are only {fewest} of a class: a"
            text += f" meaningless trait of {unit}s (stain, slide, light) separates the classes with a probability of"
            severity = "warning" if where in ("val: ", "test: ") else None  # nothing is learned from these
            yield make("class_is_patient", f"{text} {chance:.0%}{by}", severity=severity)


def _shortcut_problems(shortcuts: Iterable[tuple[str | None, Shortcut]], kind: str = "") -> Iterator[Problem]:
    """Families of features that reveal the label; the interval must lie above 0.5."""
    for split, shortcut in shortcuts:
        if shortcut.family == "all" or not shortcut.auroc >= TOLD or not (shortcut.clear and shortcut.low > 0.5):
            continue
        how = "whole patients held out" if shortcut.by_patient else "images held out, not patients"
        what, how = ("number", f"mean over its ranges; {how}") if kind == "number" else ("label", how)
        what = f"finding {shortcut.finding!r}" if shortcut.finding else what
        text = f"{split}: " if split else ""
        text += f"the {what} can be predicted from {FAMILIES[shortcut.family]} alone, AUROC {shortcut.auroc:.3f} "
        text += f"({shortcut.low:.3f} to {shortcut.high:.3f}; {how})"
        yield make(f"shortcut_{shortcut.family}", text, severity=None if shortcut.auroc >= CERTAIN else "note")
