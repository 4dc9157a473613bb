"""The data check: all that is wrong with a folder, and before each training one line for each problem.

First the contents of a folder in any state, which unlike training this never refuses, and what its names show.
"""

import contextlib
import itertools
import math
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.checks.detect import SMALL_CLASS, Found, Image, Place, Problem, in_order, make, run_checks
from vitmed.checks.shortcuts import FAMILIES
from vitmed.core.config import Config, DataConfig
from vitmed.core.dataset_cards import find_card
from vitmed.core.errors import DataError
from vitmed.core.messages import say, warn
from vitmed.core.places import data_folder
from vitmed.core.text import counted, counted_doing, grouped, listed, one_spelling
from vitmed.data.folders import CLOSED, SPLITS, image_names, import_fix, split_of, walk
from vitmed.data.image_cache import ImageCache, scan
from vitmed.data.label_kinds import LabelRequest, grade_order, number_in, plain_grade
from vitmed.data.listing import list_by_table
from vitmed.data.patient_names import Guess, group_word
from vitmed.data.patients import BY_ID, DICOM, NO_ID, find_patients, groups_of, patients_of_dicom, suggest_groups
from vitmed.data.samples import ALL, Sample, Splits
from vitmed.decisions.targets import refuse_idle
from vitmed.imaging.augmentation import mirrored_pair
from vitmed.imaging.choose_window import choose_window
from vitmed.imaging.file_record import FileRecord

NO_CLASS = re.compile(  # names of folders that divide a data set otherwise: fold1 and fold2, or images/ and masks/
    r"(?i)(?:.*[ _-])?(?:fold|part|batch|split|subset)[ _-]?\d+|(?:image|img|mask|label|annotation|segmentation)s?|gt"
)
MASK = re.compile(r"(?i)[ _-](?:mask|seg|segmentation|gt|ground[ _-]?truth|annotation)s?(?:[ _-]?\d+)?$")
LONG_WORD = 5  # letters; shorter names, such as a and b, differ by one letter on purpose


@dataclass
class FolderContents:
    """The layout of a folder. All paths are relative to its root, with forward slashes, and sorted."""

    base: str = ""  # where the classes or splits begin: "" or "malaria/"
    every: list[str] = field(default_factory=list)  # all image files
    places: dict[str, Place] = field(default_factory=dict)  # split and class of each that training would see
    folders: dict[str | None, list[str]] = field(default_factory=dict)  # class folders of each split (None: no splits)
    splits: dict[str, list[str]] = field(default_factory=dict)  # split name -> its folders
    rubbish: list[str] = field(default_factory=list)  # of the operating system (Thumbs.db, .DS_Store, ._x.png)
    others: dict[str, int] = field(default_factory=dict)  # suffix -> number of files that vitmed does not read
    outside: list[str] = field(default_factory=list)  # image files beside the split folders, which training ignores
    copies: dict[str, int] = field(default_factory=dict)  # folder with the classes again -> its images, not in `places`
    unreadable: dict[str, str] = field(default_factory=dict)  # folder -> reason
    read: Splits | None = None  # `ALL` files with their labels, where they do not come from folders


def read_contents(root: Path) -> FolderContents:
    """Walk the folder once. Links are followed, but never in a circle."""
    found, others = FolderContents(), Counter[str]()
    below: dict[str, list[str]] = {}  # folder with a final slash -> names of the folders in it
    for prefix, inside in walk(root):
        below[prefix] = []
        if isinstance(inside, OSError):
            found.unreadable[prefix.rstrip("/")] = inside.strerror or str(inside)
            continue
        below[prefix] = sorted(inside.folders)
        found.every += [prefix + name for name in inside.images]
        found.rubbish += [prefix + name for name in inside.rubbish]
        others.update(os.path.splitext(name.lower())[1] or "no suffix" for name in inside.others)  # noqa: PTH122
    found.every.sort()
    found.rubbish.sort()
    found.others = dict(others.most_common())
    loose, base, down = {path.rpartition("/")[0] for path in found.every}, "", ""
    while len(below.get(down, [])) == 1 and down.rstrip("/") not in loose:  # a folder of one folder, down to several
        if split_of(below[down][0]):
            break
        down += f"{below[down][0]}/"
        base = down if len(below.get(down, [])) > 1 else base
    top = below.get(base, [])
    splits = {split: names for split in SPLITS if (names := [base + name for name in top if split_of(name) == split])}
    starts: dict[str, str | None] = {f"{f}/": split for split, names in splits.items() for f in names} or {base: None}
    found.base, found.splits = base, splits
    for begin in starts:  # copies: class folders that hold two or more folders named as their siblings, or as splits
        for name in below.get(begin, []):
            inner = below.get(f"{begin}{name}/", [])
            again = set(inner) & set(below[begin]) - {name}
            if len(again) >= 2 or sum(split_of(other) is not None for other in inner) >= 2:
                found.copies[begin + name] = 0
    for path in found.every:
        start = next((s for s in starts if path.startswith(s)), None)
        copy = next((c for c in found.copies if path.startswith(f"{c}/")), None)
        if start is None:
            found.outside.append(path)
        elif copy is not None:
            found.copies[copy] += 1
        else:
            label, slash, _ = path[len(start) :].partition("/")
            found.places[path] = Place(starts[start], label if slash else None)
    for begin, of_split in starts.items():  # also empty ones
        own = [name for name in below.get(begin, []) if begin + name not in found.copies]
        found.folders.setdefault(of_split, []).extend(own)
    return found


def named_in_table(contents: FolderContents, table: Splits) -> FolderContents:
    """The images that a table names, wherever they lie, with its classes and splits instead of those of the folders."""
    rows = sorted(((split, s) for split, part in table.samples.items() for s in part), key=lambda row: row[1].path)
    places = {s.path: Place(None if split == ALL else split, table.strata[s.label]) for split, s in rows}
    folders = {split: sorted({name or "" for name in labels}) for split, labels in grouped(places.values()).items()}
    read = replace(table, samples={ALL: tuple(s for _, s in rows)})
    named = replace(contents, base="", places=places, folders=folders, read=read)
    return replace(named, splits={}, outside=[], copies={})


def folder_problems(contents: FolderContents) -> Iterator[Problem]:
    """Problems that folder names show alone, before any file is opened."""
    names = {name for of_split in contents.folders.values() for name in of_split}
    labels = {place.label for place in contents.places.values() if place.label is not None}
    several = contents.read is not None and bool(contents.read.bins)  # findings, or a number
    loose = [path for path, place in contents.places.items() if place.label is None]
    types = ", ".join(f"{count:,} {suffix}" for suffix, count in list(contents.others.items())[:8])
    if contents.base:
        text = f"the images begin at {contents.base}, a folder within the folder"
        yield make("nested_root", text, [contents.base], "warning", f"point at {contents.base}")
    for copy, count in contents.copies.items() if contents.places else ():
        text = f"{copy}/ lies beside the classes, but contains the classes again ({counted(count, 'image')})"
        yield make("nested_root", text, [copy])
    for folder, reason in contents.unreadable.items():
        text = f"folder {folder or '.'} cannot be read ({reason})"
        yield make("unreadable", text, [folder or "."], fix=CLOSED)
    for split, folders in contents.splits.items():
        if len(folders) > 1:
            yield make("two_split_folders", f"{' and '.join(folders)} are both {split}", folders)
    if contents.copies and not contents.places:
        text = f"{listed([f'{name}/' for name in contents.copies])} each hold folders of splits, or of classes again"
        yield make("no_classes", text, fix="sort the images into train/<class>/ and test/<class>/; or --labels TABLE")
    elif not labels:
        unread = "no image of a type that vitmed reads" + f"; the files are {types}" * bool(types)
        yield make("no_classes", f"{counted(len(loose), 'image')} in no class folder" if loose else unread)
    elif contents.read is None and len(names) > 1 and all(map(NO_CLASS.fullmatch, names)):
        text = f"the folders {listed([*map(repr, sorted(names))])} are named as parts of a data set, not as classes"
        yield make("no_classes", text, fix="rename them, or --labels TABLE")
    elif len(labels) == 1 and not contents.unreadable and not several:
        yield make("one_class", f"one class only: {next(iter(labels))!r}")
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):  # alike but for what is easily missed: case, separators and Unicode form, or 1 and 1.0
        plain = re.sub(r"[\s_\u200b-\u200d\ufeff-]+", " ", unicodedata.normalize("NFKC", plain_grade(name)))
        alike[plain.strip().casefold()].append(name)
    for same in alike.values():
        if len(same) > 1:
            what, fix = ("labels", "rename one of them in the table") if contents.read else ("class folders", "")
            text = f"{what} {' and '.join(map(repr, same))} are hard to tell apart by eye"
            yield make("class_names_alike", text, same, fix=fix)
    for first, second in itertools.combinations(alike, 2):
        if _one_letter_apart(first, second):
            same = [alike[first][0], alike[second][0]]
            what, fix = ("labels", "the table") if contents.read else ("class folders", "the folders")
            text = f"{what} {' and '.join(map(repr, same))} differ by one letter"
            yield make("class_names_alike", text, same, "warning", f"if they are one class, give it one name in {fix}")
    stems = {path.rpartition(".")[0].lower(): path for path in contents.places}
    originals = {stem: re.sub("(^|/)masks/", r"\1images/", MASK.sub("", stem)) for stem in stems}
    if masks := [stems[stem] for stem, of in originals.items() if of != stem and of in stems]:
        yield make("masks", f"{counted_doing(len(masks), 'image')} named as the mask of another", masks)
    if loose and labels:
        yield make("loose_images", f"{counted(len(loose), 'image')} in no class folder", loose)
    if contents.outside:
        text = f"{counted(len(contents.outside), 'image')} beside the split folders, which training ignores"
        yield make("outside_splits", text, contents.outside)
    yield from _finding_counts(contents) if several else _class_counts(contents, sorted(names | labels))
    if contents.rubbish:
        text = f"{counted(len(contents.rubbish), 'file')} left behind by the operating system; vitmed ignores them"
        yield make("rubbish", text, contents.rubbish)
    if types:
        yield make("other_files", f"files that vitmed does not read as images: {types}")


def _one_letter_apart(first: str, second: str) -> bool:
    """Whether two names differ by a slip in one word of five letters or more: a letter too many, a wrong letter, or two
    exchanged. Not at its beginning (typical, atypical), and no other letter at its end (graded, grades).
    """
    apart = [(a, b) for a, b in itertools.zip_longest(first.split(), second.split(), fillvalue="") if a != b]
    if len(apart) != 1 or not all(word.isalpha() and len(word) >= LONG_WORD for word in apart[0]):
        return False
    short, long = sorted(apart[0], key=len)
    k = next((k for k, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(short) < len(long):
        return k > 0 and short[k:] == long[k + 1 :]
    exchanged = short[k] == long[k + 1 : k + 2] and short[k + 1 : k + 2] == long[k] and short[k + 2 :] == long[k + 2 :]
    return 0 < k < len(short) - 1 and (short[k + 1 :] == long[k + 1 :] or exchanged)


def _class_counts(contents: FolderContents, classes: Sequence[str]) -> Iterator[Problem]:
    counts = Counter[tuple[str | None, str | None]](contents.places.values())
    for split, folders in contents.folders.items():
        where = f"{split}: " if split else ""
        starts = contents.splits.get(split, ()) if split is not None else (contents.base.rstrip("/"),)
        empty = []  # a folder that cannot be read, or holds one, may hold images
        for name in folders:
            places = tuple(f"{start}/{name}/".lstrip("/") for start in starts)
            if not counts[split, name] and not any(f"{path}/".startswith(places) for path in contents.unreadable):
                empty.append(name)
        if empty and classes:
            yield make("empty_class", f"{where}no image of {listed([*map(repr, empty)])}", empty)
        needed = 1
        if set(contents.folders) == {None} or (split == "train" and split in contents.splits):
            needed += sum(name not in contents.folders for name in ("val", "test"))  # which are split off
        if few := [name for name in folders if 0 < counts[split, name] < needed]:
            text = listed([f"{name!r} has {counted(counts[split, name], 'image')}" for name in few])
            number = contents.read and 2 * sum(number_in(name) is not None for name in folders) > len(folders)
            fix = "--target number if the labels are a number; else add images, or remove the rows" * bool(number)
            yield make("too_small_class", f"{where}class {text}, and training needs {needed} to split", few, fix=fix)
        if small := [name for name in folders if needed <= counts[split, name] < SMALL_CLASS]:
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
    splits, targets = np.array([place.split or "" for place in contents.places.values()]), contents.read.targets(ALL)
    for split in dict.fromkeys(splits.tolist()):
        where, values = f"{split}: " if split else "", targets[splits == split]
        counts = dict(zip(contents.read.classes, (values == 1).sum(axis=0).tolist(), strict=True))
        if missing := [name for name, count in counts.items() if not count]:
            text = f"{where}no image has {listed([*map(repr, missing)])}"
            yield make("missing_class", text, missing, "warning", "nothing can be learned or said of it there")
        if always := [n for n, of in zip(counts, values.T, strict=True) if counts[n] and not (of == 0).any()]:
            text = f"{where}every image with a label has {listed([*map(repr, always)])}"
            yield make("missing_class", text, always, "warning", "nothing can be learned or said of its absence there")
        if small := [name for name, count in counts.items() if 0 < count < SMALL_CLASS]:
            text = listed([f"{counts[name]} with {name!r}" for name in small])
            yield make("small_class", f"{where}very few images: {text}", small)


OF_CARD = {"name", "title", "source", "licence", "pitfalls", "group_regex", "group_note"}  # that the report shows

COUNTS = ("found", "unreadable", "exact_duplicates", "near_duplicates", "duplicates_across_splits")
GUESSED = "guessed from the file names"
# Problems that affect what a result is worth.
IN_REPORT = {"class_of_one_patient", "class_is_patient", "class_of_few_patients", "mixed_modes", "mixed_depths"}
IN_REPORT |= {"two_labels", "near_two_labels", "copies_across_splits", "near_copies_across_splits"}
IN_REPORT |= {"patients_across_splits", *(f"shortcut_{family}" for family in FAMILIES if family != "all")}


def check_before_training(
    splits: Splits, records: Sequence[FileRecord], skipped: int, config: Config
) -> tuple[list[str], dict[str, int]]:
    """Check the images of a run, whose `records` are in the order of the splits, and report each problem in one line;
    `skipped` files cannot be read (--on-bad-file skip). Returns notes for the head of the report, and the numbers in
    `COUNTS`. Raises DataError where the same image has two labels, unless data.allow_leakage."""
    samples = [(name, sample) for name, part in splits.samples.items() for sample in part]
    groups: Sequence[str | None] = [sample.group for _, sample in samples]
    source = splits.patients or None
    if source is None and splits.guess is not None and splits.guess.what == "patient":
        groups, source = groups_of(splits.guess.expression, [sample.path for _, sample in samples]), GUESSED
    images = [
        Image.of(sample, record, Place(name, splits.strata[sample.label]), group, splits)
        for (name, sample), record, group in zip(samples, records, groups, strict=True)
    ]
    checked = run_checks(images, source, splits=("train",), read=splits)
    serious = _report(checked.problems, config.data.divided)
    leaks = [problem.code for problem in serious if problem.code in ("patients_across_splits", "copies_across_splits")]
    if leaks and any(how.startswith(("folder", "table")) for how in splits.made.values()):
        how = "keeps copies in one split" if source is None else "splits by patient"
        names = "--groups names " * (source == GUESSED)
        warn(f"the data's own splits leak: {names}--resplit ignores them and {how}")
    labels = next((problem for problem in serious if problem.code == "two_labels"), None)
    if labels is not None and not config.data.allow_leakage:
        raise DataError(f"{labels.text}:\n" + "\n".join(labels.files[:10]), labels.fix)
    with contextlib.suppress(DataError):  # a folder beside the classes that cannot be read
        checked.counts["found"] = len(image_names(splits.root))
    counts = {name: checked.counts[name] for name in COUNTS if name in checked.counts} | {"unreadable": skipped}
    notes = [f"Data: {problem.text}." for problem in serious if problem.code in IN_REPORT]
    if skipped:
        lost = counted_doing(skipped, "file", "cannot be read and is", "cannot be read and are")
        notes.append(f"Data: {lost} in no split (--on-bad-file skip).")
    return notes, counts


def check_folder(data: DataConfig, ordinal: Sequence[str] = ()) -> None:
    """Report what `vitmed check` finds in the names and the layout of the folder, before any file is opened.

    Findings that a split lacks are left to `make_splits`, which knows every split. Raises DataError for an error.
    """
    root = data_folder(data.root)
    contents, request = read_contents(root), LabelRequest.of(data, ordinal)
    if data.labels is not None:
        contents = named_in_table(contents, list_by_table(root, Path(data.labels), request, every=contents.every))
    if data.resplit:
        names = sorted({name for of_split in contents.folders.values() for name in of_split})
        places = {path: place._replace(split=None) for path, place in contents.places.items()}
        contents = replace(contents, places=places, folders={None: names}, splits={})
    problems = in_order(folder_problems(contents))
    error = next((problem for problem in problems if problem.severity == "error"), None)
    said = [p for p in problems if p is not error and (p.code, p.severity) != ("missing_class", "warning")]
    _report(said, data.divided)
    if error is not None:
        files = "".join(f"\n{file}" for file in error.files)
        raise DataError(f"{root}: {error.text} ({error.code}){files}", error.fix)


def _report(problems: Iterable[Problem], divided: bool) -> list[Problem]:
    """Print errors and warnings in a line each, and return them, worst first; where `divided`, advise no folds."""
    serious = [p for p in in_order(problems) if p.severity != "note"]
    advised = {"class_of_few_patients", "class_of_one_patient"}  # once each
    for problem in serious:
        named = f": {', '.join(problem.files[:3])}{', ...' * (problem.count > 3)}" if problem.files else ""
        fix = re.split("; or| and train with", problem.fix)[0] if divided else problem.fix
        advice = f". {fix[0].upper()}{fix[1:]}" * (problem.code in advised)
        advised -= {problem.code}
        near = problem.code == "near_copies_across_splits"
        together = "; without patients, --groups copies keeps them in one split" * near
        warn(f"{problem.text} ({problem.code}{together}){named}{advice}")
        if problem.count > 3:
            say(f"  {problem.code}: {', '.join(problem.files)}")
    return serious


def _content(root: Path, checked: Found, read: Splits, source: str | None, card: str | None) -> dict[str, Any]:
    """The content of data_report.json; `source`: how patients are known, in words."""
    images = checked.images
    groups = {split: {i.group for i in images if i.split == split} - {None} for split in SPLITS}
    each = [f"{len(patients):,} in {split}" for split, patients in groups.items() if patients]
    two = sum(count > 1 for count in Counter(group for patients in groups.values() for group in patients).values())
    splits = ""
    if source is not None and len(each) > 1:
        splits = f"{group_word(source)}s: {', '.join(each)}; {f'{two:,}' if two else 'none'} in two splits"
    order = ["", *SPLITS, *read.strata]
    parts = grouped(((image.split or "", kind), image) for image in images for kind in image.kinds or ("",))
    table = [  # a row for each split and stratum, or finding, in their order; patients None where unknown
        {
            "split": split or None,
            "class": label or None,
            "images": len(part),
            "patients": len({i.group for i in part}) if all(i.group is not None for i in part) else None,
            "unreadable": sum(bool(i.record.kind) for i in part),
        }
        for (split, label), part in sorted(parts.items(), key=lambda row: [*map(order.index, row[0])])
    ]
    headers = [image.record.header for image in images if image.record.header is not None]
    sizes: dict[str, Any] = {}
    for key, name in (("formats", "format"), ("modes", "mode"), ("bits", "bits")):
        sizes[key] = dict(Counter(str(getattr(header, name)) for header in headers).most_common())
    for key in ("width", "height"):
        sides = [getattr(header, key) for header in headers]
        sizes[key] = [round(float(q)) for q in np.quantile(sides, [0, 0.25, 0.5, 0.75, 1])] if sides else None
    rows = [
        {"split": split, "text": FAMILIES[clue.family] + f", {clue.finding}" * bool(clue.finding), **asdict(clue)}
        for split, clue in checked.shortcuts
    ]
    return {
        "data": root.resolve().name,
        "images": len(images),
        "classes": len(read.classes) if read.bins else len({kind for image in images for kind in image.kinds}),
        "patients": len({image.group for image in images} - {None}) if source is not None else None,
        "patients_from": source,
        "splits": splits,
        **checked.counts,
        "table": table,
        "sizes": sizes,
        "shortcuts": [
            {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()} for row in rows
        ],
        "card": None if card is None else find_card(card).model_dump(include=OF_CARD),
        "problems": [{**asdict(problem), "files": list(problem.files)} for problem in checked.problems],
    }


def _patients(
    config: DataConfig, root: Path, paths: Sequence[str], guess: Guess | None
) -> tuple[Sequence[str | None], str | None]:
    """The patient of each image, None where unknown, and how patients are known, in words."""
    if config.group_regex is not None:
        groups = groups_of(config.group_regex, paths)
        if missed := groups.count(None):
            warn(f"--group-regex finds no patient in {missed:,} of {len(paths):,} paths")
        return groups, None if missed == len(paths) else f"--group-regex {config.group_regex}"
    if config.groups == DICOM:
        ids, _ = patients_of_dicom(root, paths, config.frame)
        groups = [one or None for one in one_spelling([known or "" for known in ids], "patient", paths)[0]]
        return groups, BY_ID if any(groups) else None
    if (known := find_patients(config, root, paths)) is not None:
        for note in known.notes:
            warn(note)
        return known.groups, known.source
    if guess is None or guess.what != "patient":
        return [None] * len(paths), None
    return groups_of(guess.expression, paths), GUESSED


def check_data(root: Path, config: Config, labels: str | Path | None, index: bool) -> tuple[Found, dict[str, Any]]:
    """Decode every file of a folder once, and collect what is wrong with the data, worst first, and the content of
    data_report.json. Labels are those of a CSV table or, without, of the folders; `index` keeps the results in the
    cache folder. Raises DataError for no image."""
    data = config.data
    contents, request = read_contents(root), LabelRequest.of(data, config.evaluate.ordinal)
    if not contents.places and contents.unreadable:
        closed, reason = next(iter(contents.unreadable.items()))
        raise DataError(f"{root / closed}: cannot be read ({reason})", CLOSED)
    if not contents.every:
        raise DataError(f"{root}: no image of a type that vitmed reads", import_fix(root) or "name a folder of images")
    names: Sequence[str] = sorted({place.label for place in contents.places.values() if place.label})
    if labels is not None:
        file = Path(labels)
        table = list_by_table(root, file, request, every=contents.every)
        refuse_idle(config, table.target.kind)
        if table.recognised:
            say(table.recognised)
        for warning in table.notes:
            warn(warning)
        contents = named_in_table(contents, table)
        of_table = Counter([file.suffix.lower()] * file.resolve().is_relative_to(root.resolve()))  # if it lies there
        contents = replace(contents, others={**(Counter(contents.others) - of_table)})
    elif not contents.places:
        first = in_order(folder_problems(contents))[0]
        raise DataError(f"{root}: {first.text}", first.fix)
    else:
        request.check_folders()
        refuse_idle(config, "grades" if request.kind == "grades" else "classes")
        if request.kind == "grades":
            names = grade_order(names, request.order, str(root))
    files = list(contents.places)
    train = [root / path for path, place in contents.places.items() if place.split in (None, "train")]
    chosen = choose_window(train, "auto", data.frame, "images" if len(train) == len(files) else "training images")
    for line in chosen.notes:  # the check sees what the network would see
        say(line)
    records = scan(root, files, ImageCache(data.frame, chosen.window, keep=index))
    guess = suggest_groups(files, labels is None)
    read = contents.read or Splits(root, tuple(names), {ALL: tuple(Sample(path, 0, None) for path in files)})
    known = [sample.group for sample in read.samples[ALL]], read.patients
    patients, source = known if read.patients else _patients(data, root, files, guess)
    parts = zip(read.samples[ALL], records, contents.places.values(), patients, strict=True)
    images = [Image.of(*part, read) for part in parts]
    checked = run_checks(images, source, read=read)
    by_name = list[Problem]()
    if pair := mirrored_pair(sorted({kind for image in images for kind in image.kinds})):
        by_name.append(make("left_right", f"{pair[0]!r} and {pair[1]!r} differ only by left and right", pair))
    if guess is not None and guess.what == "original" and source is None:
        originals = groups_of(guess.expression, files)
        splits = grouped(zip(originals, (place.split for place in contents.places.values()), strict=True))
        both = [str(original) for original, of in splits.items() if len({*of} - {None}) > 1]
        text = f"{guess.evidence}: {counted(guess.patients, 'original')}, {len(both):,} of them in two splits"
        by_name.append(make("augmented_copies", text, both))
    nobody = [path for path, patient in zip(files, patients, strict=True) if patient is None]
    text, dicom = f"no PatientID in {len(nobody):,} of {len(patients):,} files", data.groups == DICOM
    unknown = [make("patients_unknown", text, nobody, "error", NO_ID)] * bool(nobody and dicom)
    others = [problem for problem in checked.problems if not unknown or problem.code != "patients_unknown"]
    checked = replace(checked, problems=in_order([*others, *by_name, *unknown, *folder_problems(contents)]))
    how = {"window": chosen.window, "frame": data.frame}  # in which the images were seen
    return checked, _content(root, checked, read, source, data.card) | how
