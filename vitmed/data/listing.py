"""List the images and their labels, from folders or from a table of labels: class, findings, grade or number of each
image, with its patient, split and further columns. The result is a `Splits` that is not split yet."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np

from vitmed.core.base_models import NO_FINDING, UNKNOWN, Target
from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.places import data_folder
from vitmed.core.text import counted_doing, lines_of, listed, one_spelling, quoted
from vitmed.core.text_files import BLANKS
from vitmed.data import label_kinds
from vitmed.data.folders import NAMED, class_names, image_names, import_fix, split_folders, split_of, subfolders
from vitmed.data.label_kinds import BAR, MANY_VALUES, LabelRequest, number_in
from vitmed.data.patient_names import known_by_column
from vitmed.data.patients import find_patients, suggest_groups
from vitmed.data.samples import ALL, Sample, Splits, by_split, targets_in
from vitmed.data.tables import FIRST, LABEL_NAMES, PATH_NAMES, Table, read_table
from vitmed.metrics.predictions_csv import FIXED_COLUMNS, GROUP_NAMES, LABEL, LOGIT, OF_NUMBERS, PROB, WRITTEN

SPLIT_COLUMN_NAMES = ("split", "subset", "partition")
# Column names of predictions.csv and splits.csv.
TAKEN = (*FIXED_COLUMNS, *WRITTEN, "error", "sha256", "class", "split")


def labels_from_table(file: str | Path, root: Path | None, paths: Sequence[str], request: LabelRequest) -> Splits:
    """The images that a table names in the order of `paths`, in its splits or `ALL`, with labels and further columns.

    Images of which nothing is known are left out, with a note. `root` is None for the paths of a predictions.csv; then
    rows of other images are ignored, with a note.

    Raises DataError for a table that cannot be read, lacks a column or a value, names a missing file or an image twice,
    or has a label that is none, or a further column with a name that vitmed uses; UsageError as `read_targets`, or for
    a finding that is the column of paths, patients or splits.
    """
    table = read_table(file)
    card, split_name = request.data.card, request.data.split_column
    own_groups = request.data.group_regex is None and request.data.groups is None  # else they are a further column
    path = table.required(table.find(PATH_NAMES, card), "path of an image", PATH_NAMES)
    label, usual = table.find(LABEL_NAMES, card), table.find(SPLIT_COLUMN_NAMES)
    if root is None:
        table = _rows_of(table, path, paths, label if request.kind == "classes" else None)
    split = usual if split_name is None else table.column(split_name, "--split-column")
    group = table.find(GROUP_NAMES, card) if own_groups else None
    for column, what in ((path, "path"), (group, "patient"), (split, "split")):
        if column is not None and table.header[column] in request.data.findings:
            name = table.header[column]
            problem = f"{table.file}: the column {name!r} holds the {what} of each image, so it cannot be a finding"
            raise UsageError(problem, "omit it from --finding, or rename the column")
    others = [i for i, name in enumerate(table.header) if name and i not in (path, label, group, split, usual)]
    read = label_kinds.read_targets(table, label, others, request)
    further = [i for i in others if i not in read.used and (own_groups or table.header[i] != "group")]  # overridden
    columns = tuple(table.header[i] for i in further)
    written = OF_NUMBERS if read.target.kind == "number" else [LABEL + name for name in read.outputs]
    if taken := [name for name in columns if name in (*TAKEN, *written) or name.startswith((PROB, LOGIT))]:
        of_label = "" if label is None else f" (the label comes from {table.header[label]!r})"
        problem = f"{table.file}: the column {', '.join(taken)} has a name that predictions.csv uses itself"
        raise DataError(problem, f"rename or remove it{of_label}")
    row_of, notes = _rows_by_image(table, path, root, paths, read.used), [*table.notes, *read.notes]
    rivals = [name for name in columns if name.lower().replace(" ", "_") in LABEL_NAMES]
    if rivals and (name := table.header[read.used[0]]).lower() in LABEL_NAMES:  # else a card names it
        notes.append(f"{file}: the labels are of {name!r}, not {listed(rivals)}; to take another, rename {name!r}")
    rows = {image: row for image, row in row_of.items() if read.strata[row] >= 0}
    if left := len(paths) - len(row_of):
        lack = "are not in" if root else "have no label in"
        notes.append(f"{left:,} of {len(paths):,} images {lack} {table.file} and are left out")
    if blank := [table.lines[row] for image, row in row_of.items() if image not in rows]:
        are = counted_doing(len(blank), "image", "has no label and is", "have no label and are")
        lines = ", ".join(map(str, blank[:FIRST]))
        notes.append(f"{table.file}: {are} left out: line {lines}{', ...' * (len(blank) > FIRST)}")
    groups, more = ([None] * len(table.rows), []) if group is None else table.patients(group)
    words = [ALL] * len(rows) if split is None or request.data.resplit else _split_words(table, split, [*rows.values()])
    samples = []
    for image, row in rows.items():
        cells = tuple(sys.intern(table.rows[row][i].strip()) for i in further)
        label, targets = int(read.strata[row]), tuple(read.values[row].tolist())
        samples.append(Sample(paths[image], label, groups[row], cells, targets))
    made = {} if split is None else dict.fromkeys(words, f"table {Path(file).name}")
    known = "" if group is None else known_by_column(table.header[group], "--labels")
    classes, bins = (read.outputs, read.classes) if read.outputs else (read.classes, ())
    images = Splits(root or Path(), classes, by_split(samples, words), made, columns, known, (*notes, *more))
    return replace(images, target=read.target, bins=bins, recognised=read.source, source=Path(file))


def _split_words(table: Table, column: int, rows: Sequence[int]) -> list[str]:
    """The split of each row. Raises DataError for a word that is none."""
    words = table.cells(column, "split")
    if strange := sorted({words[row] for row in rows if split_of(words[row]) is None}):
        what = f"{', '.join(map(repr, strange[:FIRST]))} in column {table.header[column]!r} is not a split"
        raise DataError(f"{table.file}: {what}", "use train, val or test; or rename the column")
    return [str(split_of(words[row])) for row in rows]


def _rows_of(table: Table, path: int, paths: Sequence[str], label: int | None) -> Table:
    """The rows of these images, without those whose `label` is empty; and a note on rows of other images. Raises
    DataError if none is left."""
    images, other = table.images(path, None, paths)
    blank = [label is not None and not row[label].strip() for row in table.rows]
    these = [i for i, image in enumerate(images) if image is not None and not blank[i]]
    if not these:
        problem = f"{table.file}: no row has a label of one of the {len(paths):,} images, such as {paths[0]}"
        raise DataError(problem, "use the paths in predictions.csv")
    note = f"{table.file}: {counted_doing(len(other), 'row', 'is', 'are')} of other images, and ignored"
    lines, rows = [table.lines[i] for i in these], [table.rows[i] for i in these]
    return replace(table, lines=lines, rows=rows, notes=(*table.notes, *([note] if other else [])))


def further_columns(
    file: Path,
    root: Path | None,
    paths: Sequence[str],
    kind: str,
    labels: Mapping[str, Sequence[str | float]],
    card: str | None = None,
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...] | None, list[str]]:
    """The further columns of a table for images whose labels are known, a cell for each, empty for an image without a
    row; the patients, if it names any; and notes. DataError where it names none of the images, or one twice, or
    contradicts a label.

    `labels` are the classes or grades under "", or the numbers or findings by their names; a `card` names columns.
    """
    table = read_table(file)
    path = table.required(table.find(PATH_NAMES, card), "path of an image", PATH_NAMES)
    label = table.find(LABEL_NAMES, card)
    rows = _rows_by_image(table, path, root, paths)
    words = {part.strip() for row in table.rows for part in ("" if label is None else row[label]).split(BAR)}
    # Of few values the column holds classes beside the number of the run, which they do not contradict.
    measured = kind == "number" and len({number_in(word) for word in words} - {None}) > MANY_VALUES
    for name, truths in labels.items():
        column = table.header.index(name) if name and name in table.header else label
        if name and name not in table.header and not measured and not words & labels.keys():  # of something else
            continue
        for image, row in rows.items() if column is not None else ():
            cell, truth = table.rows[row][column or 0].strip(), truths[image]
            if label_kinds.contradicts(cell, kind, name, truth):
                one = f"line {table.lines[row]}: {f'{name} of ' * bool(name)}{paths[image]}"
                said = repr(truth) if isinstance(truth, str) else f"{truth:g}"
                problem = f"{file}: {one} is {cell!r} here and {said} in the run"
                raise DataError(problem, "correct the cell, or leave the column of labels out: those of the run count")
    if not rows:
        raise DataError(f"{file}: no row names one of the {len(paths):,} images", "use the paths in predictions.csv")
    left = len(paths) - len(rows)
    notes = [f"{left:,} of {len(paths):,} images are not in {file.name}: their cells are empty."] if left else []
    used = {path, label, table.find(SPLIT_COLUMN_NAMES), group := table.find(GROUP_NAMES, card)}
    taken = {"", *TAKEN, *labels}
    names = [(i, name) for i, name in enumerate(table.header) if i not in used and name not in taken]
    further = [i for i, name in names if not name.startswith((PROB, LOGIT))]
    cells = [table.rows[rows[i]] if i in rows else [""] * len(table.header) for i in range(len(paths))]
    columns = {table.header[i]: tuple(line[i].strip() for line in cells) for i in further}
    people = [] if group is None else [line[group].strip() for line in cells]
    patients, joined = one_spelling(["" if cell.lower() in BLANKS else cell for cell in people], "patient", paths)
    return columns, patients if any(patients) else None, [*table.notes, *notes, *joined]


def _rows_by_image(
    table: Table, column: int, root: Path | None, paths: Sequence[str], labels: Sequence[int] | None = None
) -> dict[int, int]:
    """Index of an image -> its row, ascending. Raises DataError for an image with two rows and, where the columns of
    `labels` are given, for a row without an image."""
    images, missing = table.images(column, root, paths)
    rows: dict[int, int] = {}
    for row, image in enumerate(images):
        if image is not None and rows.setdefault(image, row) != row:
            lines = f"in line {table.lines[rows[image]]} and in line {table.lines[row]}"
            both = [(table.rows[rows[image]][i].strip(), table.rows[row][i].strip(), i) for i in labels or ()]
            if wrong := next((pair for pair in both if pair[0] != pair[1]), None):
                lines += f", which disagree: {table.header[wrong[2]]!r} is {wrong[0]!r} and {wrong[1]!r}"
            raise DataError(f"{table.file}: {paths[image]} is named {lines}", "keep one of the rows")
    if missing and labels is not None:
        match, lines = counted_doing(len(missing), "row", "matches", "match"), lines_of([*table.notes, *missing])
        problem = f"{table.file}: {match} no image below {root}, or several:\n{lines}"
        raise DataError(problem, f"use paths relative to {root}, with the table there, or remove the rows")
    return dict(sorted(rows.items()))


def list_images(config: DataConfig, ordinal: Sequence[str] = ()) -> Splits:
    """The images, labels, patients and ready-made splits of a configuration. Raises as `make_splits`.

    Layouts: `root/<class>/`, `root/{train,val,test}/<class>/`, train + test or train + val only; any with a table.
    """
    root, request = data_folder(config.root), LabelRequest.of(config, ordinal)
    if config.labels is not None:
        images = list_by_table(root, Path(config.labels), request)
        if not images.bins and len(images.classes) < 2:
            problem = f"{config.labels}: all rows have the class {images.classes[0]!r}; a classifier needs two classes"
            raise DataError(problem, "add rows of another class")
        for k, name in enumerate(() if config.resplit else images.columns):
            splits = {split_of(sample.columns[k]) for sample in images.samples.get(ALL, ())}
            if None not in splits and {"train"} < splits:
                note = f"{config.labels}: the splits in {name!r} are not used; --split-column {quoted(name)} takes them"
                images = replace(images, notes=(*images.notes, note))
        return with_patients(images, config)
    request.check_folders()
    folders = split_folders(root)
    if folders and "train" not in folders:
        names = ", ".join(folder.name for folder in folders.values())
        raise DataError(f"{root}: has {names} but no train folder", "add train/, or name a folder of classes")
    first = folders.get("train", root)
    classes = class_names(first)
    if len(classes) < 2:
        only = first / classes[0]
        while len(inner := subfolders(only)) == 1:
            only = inner[0]
        fix = f"name {only}" if inner else f"{NAMED}; or add a folder for each other class"
        raise DataError(f"{first}: holds one class folder, {classes[0]!r}; a classifier needs two", fix)
    images = list_by_folder(root, folders or {ALL: root}, classes)
    if request.kind == "grades":
        images = ordered(images, label_kinds.grade_order(classes, request.order, str(root)))
        images = replace(images, recognised=f"{len(classes)} grades, from folders", target=Target(kind="grades"))
    return with_patients(images, config)


def ordered(splits: Splits, classes: Sequence[str]) -> Splits:
    """The same with the classes in this order."""
    labels = [classes.index(name) for name in splits.classes]
    return splits.changed(lambda sample: sample._replace(label=labels[sample.label]), classes=tuple(classes))


def with_findings(images: Splits, kept: np.ndarray) -> Splits:
    """Keep some findings, (F,) bool, and the images for which one of them is known."""
    every, names = images.every, tuple(compress(images.classes, kept))
    targets = targets_in(every)[:, kept]
    rows = zip(every, label_kinds.finding_strata(targets).tolist(), targets.tolist(), strict=True)
    known = compress(rows, (targets != UNKNOWN).any(axis=1).tolist())
    new = {s.path: s._replace(label=label, targets=tuple(row)) for s, label, row in known}
    left = sorted(filter(new.__contains__, images.copies), key=lambda path: new[path].label)
    copies = {path: images.copies[path] for path in left}
    return images.changed(lambda s: new.get(s.path), classes=names, bins=(*names, NO_FINDING), copies=copies)


def with_patients(splits: Splits, config: DataConfig) -> Splits:
    """Add the patients that the configuration names; if it and the table name none, a guess from file names."""
    paths, by_folder = [sample.path for sample in splits.every], not splits.source.is_file()
    if (named := find_patients(config, splits.root, paths, by_folder)) is None:
        return splits if splits.patients else replace(splits, guess=suggest_groups(paths, by_folder))
    groups, notes = dict(zip(paths, named.groups, strict=True)), (*splits.notes, *named.notes)
    return splits.changed(lambda s: s._replace(group=groups[s.path]), patients=named.source, notes=notes)


def list_by_folder(root: Path, folders: Mapping[str, Path], classes: Sequence[str]) -> Splits:
    """Every image below `<folder>/<class>/` of each split's folder. Raises DataError for a folder not in `classes`."""
    samples = {}
    for name, folder in folders.items():
        there = class_names(folder)
        if extra := sorted(set(there) - set(classes)):
            raise DataError(
                f"{folder}: class folder {listed([*map(repr, extra)])} is not one of the classes {listed(classes)}",
                "rename or remove it; classes are matched by name",
            )
        above = "" if folder == root else f"{folder.relative_to(root).as_posix()}/"
        samples[name] = tuple(
            Sample(path, label, None)
            for label, of_class in enumerate(classes)
            if of_class in there
            for path in image_names(folder / of_class, f"{above}{of_class}/")
        )
    made = {name: f"folder {folder.name}/" for name, folder in folders.items() if name != ALL}
    return Splits(root, tuple(classes), samples, made, source=root)


def list_by_table(
    root: Path, file: Path, request: LabelRequest, classes: Sequence[str] | None = None, every: Sequence[str] = ()
) -> Splits:
    """The images that a table names, in any folders below the root, split by its column or by the folders; labels are
    in the order of `classes`, by default the names in the table, sorted; `every`: all images there, if they are known.
    Raises DataError: as `labels_from_table`; a class that is not in `classes`."""
    every = every or image_names(root)
    if not every:
        fix = import_fix(root) or "name the folder that the table's paths start from"
        raise DataError(f"{root}: holds no image", fix)
    table = labels_from_table(file, root, every, request)
    if extra := sorted(set(table.classes) - set(classes or table.classes)):
        problem = f"{file}: class {listed([*map(repr, extra)])} is not one of the classes {listed(classes or ())}"
        raise DataError(problem, "rename them, or remove their rows")
    names = set[str]() if table.bins else {*table.classes}  # that folders may have as well
    of_folder = [(s, of) for s in table.every if (of := names & {*s.path.split("/")})]
    odd = [s.path for s, of in of_folder if table.classes[s.label] not in of]
    if odd and len(of_folder) == len(table.every):  # else the folders are no classes
        note = f"{file}: images in the folder of another class: {len(odd):,}, such as {min(odd)}; the table counts"
        table = replace(table, notes=(*table.notes, note))
    images = () if request.data.resplit else table.samples.get(ALL, ())
    splits = [split_of(sample.path.partition("/")[0]) for sample in images]
    if images and None not in splits and set(splits) != {"train"}:
        of_folders = by_split(images, [str(split) for split in splits])
        table = replace(table, samples=of_folders, made=dict.fromkeys(of_folders, "folders"))
    elif len(mixed := {*filter(None, map(split_of, {n for s in images for n in s.path.split("/")[:-1]}))}) > 1:
        note = f"{file} has no column split: images of folders of {listed(sorted(mixed))} are mixed and divided anew"
        table = replace(table, notes=(*table.notes, note))
    return ordered(table, classes) if classes else table.changed(lambda sample: sample)
