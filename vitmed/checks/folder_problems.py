"""What the names of folders and a table of labels show before any file is opened: from `FolderContents` to problems."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from vitmed.checks.folder_contents import FolderContents, same_name
from vitmed.checks.problems import SMALL_CLASS, Problem, make
from vitmed.core.text import counted, listed


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
            what, fix = (
                ("class folders", "") if contents.read is None else ("labels", "write one of the names in the table")
            )
            text = f"{what} {' and '.join(map(repr, same))} are hard to tell apart by eye"
            yield make("class_names_alike", text, same, fix=fix)
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
