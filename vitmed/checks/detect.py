"""From the records of the files to findings about the data set: pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import comb
from typing import NamedTuple

from vitmed.checks.findings import BY_CHANCE, CERTAIN, FEW_PATIENTS, SMALL_CLASS, THIN, TOLD, Finding, make
from vitmed.checks.folder_contents import Survey, same_name
from vitmed.checks.shortcuts import FAMILIES, Shortcut
from vitmed.core.text import counted
from vitmed.data.split_names import SPLITS
from vitmed.imaging.look import Record
from vitmed.imaging.personal_data import looks_like_a_person


class Image(NamedTuple):
    """An image: its path relative to the root, what is known of the file, and where it belongs (None: unknown)."""

    path: str
    record: Record
    label: str | None
    split: str | None
    group: str | None


def of_folder(survey: Survey) -> list[Finding]:
    """Findings from folder names alone, before any file is opened."""
    found = []
    names = [name for of_split in survey.folders.values() for name in of_split]
    labels = {place.label for place in survey.places if place.label is not None}
    if survey.base:
        found.append(make("nested_root", f"the images begin at {survey.base}, a folder within the folder",
                          [survey.base], "warning", f"point at {survey.base}"))  # fmt: skip
    for copy, count in survey.copies.items():
        text = f"{copy}/ is a class by its place, but holds the classes once more ({counted(count, 'image')})"
        found.append(make("nested_root", text, [copy]))
    for folder, reason in survey.unreadable.items():
        found.append(make("unreadable", f"folder {folder or '.'} cannot be read ({reason})", [folder or "."],
                          fix="check its permissions"))  # fmt: skip
    for split, folders in survey.splits.items():
        if len(folders) > 1:
            found.append(make("two_split_folders", f"{' and '.join(folders)} are both {split}", folders))
    if not labels:
        found.append(make("no_classes", f"{counted(len(survey.files), 'image')} in no class folder"))
    elif len(labels) == 1 and not survey.unreadable:
        found.append(make("one_class", f"one class only: {next(iter(labels))!r}"))
    alike: dict[str, set[str]] = defaultdict(set)
    for name in names:
        alike[same_name(name)].add(name)
    for same in alike.values():
        if len(same) > 1:
            told = " and ".join(map(repr, sorted(same)))
            found.append(make("class_names_alike", f"class folders {told} are hard to tell apart by eye", sorted(same)))
    loose = [path for path, p in zip(survey.files, survey.places, strict=True) if p.label is None]
    if loose and labels:
        found.append(make("loose_images", f"{counted(len(loose), 'image')} in no class folder", loose))
    if survey.outside:
        text = f"{counted(len(survey.outside), 'image')} beside the split folders, which training passes over"
        found.append(make("outside_splits", text, survey.outside))
    found += _of_counts(survey, sorted(set(names) | labels))
    if survey.rubbish:
        text = f"{counted(len(survey.rubbish), 'file')} left behind by the operating system; vitmed ignores them"
        found.append(make("rubbish", text, survey.rubbish))
    if survey.others:
        told = ", ".join(f"{count:,} {suffix}" for suffix, count in list(survey.others.items())[:8])
        found.append(make("other_files", f"files of a type that vitmed does not read: {told}"))
    return found


def _of_counts(survey: Survey, classes: Sequence[str]) -> list[Finding]:
    """Empty and small classes, and classes that a split lacks."""
    found = []
    counts = Counter((place.split, place.label) for place in survey.places)
    for split, folders in survey.folders.items():
        where = f"{split}: " if split else ""
        empty = [name for name in folders if not counts[split, name] and not _hidden(survey, split, name)]
        if empty and classes:
            found.append(make("empty_class", f"{where}no image of {', '.join(map(repr, empty))}", empty))
        small = [name for name in folders if 0 < counts[split, name] < SMALL_CLASS]
        if small:
            told = ", ".join(f"{counts[split, name]} of {name!r}" for name in small)
            found.append(make("small_class", f"{where}very few images: {told}", small))
        missing = [name for name in classes if name not in folders]
        if split and missing and folders:
            text = f"{where}no folder for class {', '.join(map(repr, missing))}, which other splits have"
            found.append(make("missing_class", text, missing))
    return found


def _hidden(survey: Survey, split: str | None, name: str) -> bool:
    """Whether a class folder, or one within, cannot be read: nobody knows whether it is empty."""
    starts = survey.splits.get(split, ()) if split is not None else (survey.base.rstrip("/"),)
    folders = [f"{start}/{name}".lstrip("/") for start in starts]
    return any(f"{path}/".startswith(f"{folder}/") for path in survey.unreadable for folder in folders)


def of_files(images: Sequence[Image]) -> list[Finding]:
    """Files that cannot be read, and mixtures among those that can."""
    found = []
    by_kind: dict[str, list[Image]] = defaultdict(list)
    for image in images:
        if image.record.kind:
            by_kind[image.record.kind].append(image)
    for kind, bad in by_kind.items():
        reason, more = bad[0].record.problem, f" (the first: {bad[0].record.problem})"
        text = f"{counted(len(bad), 'file')}: {reason}" if len(bad) == 1 else f"{counted(len(bad), 'file')}{more}"
        found.append(make(kind, text, [image.path for image in bad], fix=bad[0].record.fix))
    good = [image for image in images if not image.record.kind and image.record.facts is not None]
    if not good:
        return found
    facts = [image.record.facts for image in good if image.record.facts is not None]
    for code, values in (
        ("mixed_modes", [f.mode for f in facts]),
        ("mixed_depths", [f"{f.bits} bits" for f in facts]),
        ("mixed_formats", [f.format for f in facts]),
    ):
        counts = Counter(values)
        if len(counts) > 1:
            told = ", ".join(f"{count:,} {name}" for name, count in counts.most_common(6))
            rare = [image.path for image, v in zip(good, values, strict=True) if v != counts.most_common(1)[0][0]]
            found.append(make(code, f"{told}{_by_class(good, values)}", rare))
    sides = [(f.width, f.height) for f in facts]
    smallest, largest = min(map(min, sides)), max(map(max, sides))
    if largest >= THIN * smallest:
        found.append(make("mixed_sizes", f"sides from {smallest:,} to {largest:,} px"))
    thin = [image.path for image, side in zip(good, sides, strict=True) if max(side) >= THIN * min(side)]
    if thin:
        found.append(
            make("thin", f"{counted(len(thin), 'image')} with one side {THIN:g} or more times the other", thin)
        )
    turned = [image.path for image, f in zip(good, facts, strict=True) if f.orientation != 1]
    if turned:
        found.append(make("rotated", f"{counted(len(turned), 'image')} that EXIF says to turn or mirror", turned))
    constant = [i.path for i in good if i.record.numbers is not None and i.record.numbers[6] == i.record.numbers[7]]
    if constant:
        found.append(make("constant", f"{counted(len(constant), 'image')} of one colour all over", constant))
    return found


def _by_class(images: Sequence[Image], values: Sequence[str]) -> str:
    """ "; infected are all RGB": where a class has one value only, and another class another."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for image, value in zip(images, values, strict=True):
        if image.label is not None:
            kinds[image.label].add(value)
    pure = {label: next(iter(kind)) for label, kind in kinds.items() if len(kind) == 1}
    if len(kinds) < 2 or not pure or len(set().union(*kinds.values())) < 2 or len(pure) < len(kinds):
        return ""
    return "; it goes with the class: " + ", ".join(f"{label} is {kind}" for label, kind in sorted(pure.items())[:6])


class Copies(NamedTuple):
    """Files that are the same, sorted by how bad it is; each entry holds indices into the images."""

    two_labels: list[list[int]]
    across_splits: list[list[int]]
    within: list[list[int]]


def sort_copies(images: Sequence[Image], groups: Iterable[Sequence[int]]) -> Copies:
    """Every group under the worst kind that applies to it."""
    sorted_ = Copies([], [], [])
    for group in groups:
        labels = {images[i].label for i in group} - {None}
        splits = {images[i].split for i in group}
        kind = sorted_.two_labels if len(labels) > 1 else sorted_.across_splits if len(splits) > 1 else sorted_.within
        kind.append(list(group))
    return sorted_


def crossing(images: Sequence[Image], groups: Iterable[Sequence[int]]) -> int:
    """Images of one split that have a copy in another: those of a group beyond its largest part."""
    counts = [Counter(images[i].split for i in group) for group in groups]
    return sum(sum(count.values()) - max(count.values()) for count in counts if len(count) > 1)


def of_copies(images: Sequence[Image], exact: Copies, near: Copies) -> list[Finding]:
    """The same image twice."""
    found = []
    for copies, prefix, how in ((exact, "", "byte for byte"), (near, "near_", "to the eye")):
        for code, groups, what in (
            ("two_labels", copies.two_labels, "under two labels"),
            ("copies_across_splits", copies.across_splits, "in two splits"),
            ("copies", copies.within, "more than once in one class"),
        ):
            if groups:
                named = [" = ".join(images[i].path for i in group) for group in groups]
                found.append(make(prefix + code, f"{counted(len(groups), 'image')} {how} the same {what}", named))
    return found


def of_patients(images: Sequence[Image], source: str | None) -> list[Finding]:
    """Whether the classes can be told from the patients.

    Args:
        source: how the patients are known, in words; None where they are not.
    """
    if source is None:
        return [make("patients_unknown", "which images are of one patient is not known")] if images else []
    found = []
    guessed = source.startswith("guess")
    known = [image for image in images if image.group is not None and image.label is not None]
    said = f" ({source})" if guessed else ""
    for split in [name for name in ("", *SPLITS) if any((image.split or "") == name for image in known)]:
        of_class: dict[str, Counter[str]] = defaultdict(Counter)
        for image in known:
            if (image.split or "") == split:
                of_class[str(image.label)][str(image.group)] += 1
        if len(of_class) > 1:
            found += _of_split(split, of_class, said)
    splits: dict[str, set[str]] = defaultdict(set)
    for image in images:
        if image.group is not None and image.split is not None:
            splits[image.group].add(image.split)
    both = sorted(group for group, where in splits.items() if len(where) > 1)
    if both:
        text = f"{counted(len(both), 'patient')} in two splits{said}"
        severity = "warning" if guessed else None  # the guess may be wrong
        found.append(make("patients_across_splits", text, both, severity))
    if guessed:
        count = len({image.group for image in images if image.group is not None})
        found.append(make("patients_guessed", f"{counted(count, 'patient')}, {source}"))
    return found


def _of_split(split: str, of_class: Mapping[str, Counter[str]], said: str) -> list[Finding]:
    where = f"{split}: " if split else ""
    found = []
    for label, counts in sorted(of_class.items()):
        total = sum(counts.values())
        if total < SMALL_CLASS:
            continue
        equal = total**2 / sum(count**2 for count in counts.values())  # as many patients of equal shares
        if len(counts) == 1:
            text = f"{where}all {total:,} images of {label!r} come from one patient{said}"
            found.append(make("class_of_one_patient", text, counts))
        elif equal < FEW_PATIENTS:
            share = max(counts.values()) / total
            text = f"{where}the {total:,} images of {label!r} come from {len(counts)} patients"
            text += f", {share:.0%} of them from one{said}"
            found.append(make("class_of_few_patients", text, [name for name, _ in counts.most_common()]))
    patients = [set(counts) for counts in of_class.values() if sum(counts.values()) >= SMALL_CLASS]
    disjoint = all(not a & b for i, a in enumerate(patients) for b in patients[i + 1 :])
    if disjoint and len(patients) > 1:
        few = sorted(map(len, patients))[:2]
        chance = 2 / comb(sum(few), few[0])
        if chance >= BY_CHANCE:
            text = f"{where}no patient has images of two classes, and there are only {few[0]} and {few[1]} patients"
            text += " of a class: a trait of patients that means nothing (stain, slide, light) sorts them into"
            found.append(make("class_is_patient", f"{text} the classes with a chance of {chance:.0%}{said}"))
    return found


def of_privacy(images: Sequence[Image], others: Iterable[str] = ()) -> list[Finding]:
    """Names and metadata that look like a person. No finding repeats a value of the metadata."""
    found = []
    verdicts: dict[str, str | None] = {}
    named: dict[str, list[str]] = defaultdict(list)
    for path in [*(image.path for image in images), *others]:
        for part in path.split("/"):
            if part not in verdicts:
                verdicts[part] = looks_like_a_person(part)
            if (what := verdicts[part]) is not None:
                named[what].append(path)
                break
    for what, paths in named.items():
        found.append(make("person_in_name", f"{counted(len(paths), 'path')} with what looks like {what}", paths))
    fields: dict[str, list[str]] = defaultdict(list)
    for image in images:
        for name in image.record.personal:
            fields[name].append(image.path)
    for name, paths in sorted(fields.items()):
        code = "text_in_picture" if "BurnedIn" in name or "modality" in name else "person_in_file"
        found.append(make(code, f"{name} in {counted(len(paths), 'file')}", paths))
    return found


def of_class_names(pair: tuple[str, str] | None) -> list[Finding]:
    """Classes that a mirror image would swap."""
    text = f"{pair[0]!r} and {pair[1]!r} differ only by left and right" if pair else ""
    return [make("left_right", text, pair)] if pair else []


def of_shortcuts(split: str | None, shortcuts: Sequence[Shortcut]) -> list[Finding]:
    """Families that tell the label; the interval must leave 0.5 behind."""
    found = []
    for shortcut in shortcuts:
        if shortcut.family == "all" or not shortcut.auroc >= TOLD or not shortcut.low > 0.5:
            continue
        how = "whole patients held out" if shortcut.by_patient else "images held out, not patients"
        text = f"{split}: " if split else ""
        text += f"the label can be told from {FAMILIES[shortcut.family]} alone, AUROC {shortcut.auroc:.3f} "
        text += f"({shortcut.low:.3f} to {shortcut.high:.3f}; {how})"
        found.append(make(f"shortcut_{shortcut.family}", text, severity=None if shortcut.auroc >= CERTAIN else "note"))
    return found
