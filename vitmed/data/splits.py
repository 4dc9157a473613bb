"""Split the images into train, validation and test: by folder, table, patient or seed; and into folds, shares and
samples, in proportion by class, ranges of a number or findings.

No file is copied, moved or changed. All splits share one class order.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import chain, combinations, compress, repeat
from operator import attrgetter
from pathlib import Path

import numpy as np

from vitmed.core.config import DataConfig, PretrainDataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.places import data_folder
from vitmed.core.process import NO_WARNINGS
from vitmed.core.text import counted, counted_doing, lines_of, listed, one_spelling, quoted
from vitmed.core.text_files import BLANKS
from vitmed.data.folders import SPLITS, image_names, split_folders, split_of
from vitmed.data.image_cache import ImageCache, first_copies
from vitmed.data.label_kinds import number_in
from vitmed.data.listing import list_images, with_findings
from vitmed.data.patients import KnownPatients, find_patients
from vitmed.data.samples import ALL, Sample, Splits, by_split, labels_in, targets_in

Samples = tuple[Sample, ...]
LABELS = ("labels", "folds", "resplit", "sites", "hold_out", "split_column", "findings", "target", "uncertain", "unit")
HELD_OUT = "the held-out test"  # the part that no fold contains
TRAIN_ALONE = "the folds test the images of train alone"
NAMED = 10  # most patients that a message names
FEW = 5  # positives in train below which little is learned of a finding
ENOUGH = 0.8  # of the share of validation and test, below which rare findings are left out to reach it
MANY = 500  # patients above which scikit-learn's StratifiedGroupKFold takes seconds to hours
TRIED = 10  # patients up to which every choice of some of them is tried
SPREAD = 6  # patients of a class from which train, val and test can have two each


def make_splits(config: DataConfig, ordinal: Sequence[str] = ()) -> Splits:
    """Find the images of a configuration, and split off what the folder or the table does not define.

    `ordinal`: the grades from the lowest to the highest, if you name them.

    Raises:
        DataError: no folder, no classes, a class that is empty or missing from a split, a table that does not fit, an
            image without a patient, or a patient in two splits.
        UsageError: an invalid `group_regex`, or folds of a folder that has its own test.
    """
    images = _listed(config, ordinal)
    parts, made = _split(images, config)
    splits = checked(images, parts, made, config)
    if config.max_train is not None and config.max_train < len(parts["train"]):
        chosen = stratified_sample(images, parts["train"], config.max_train, config.split_seed)
        text = f"{splits.made['train']}, a stratified sample of {len(chosen):,}"
        splits = replace(splits, samples=splits.samples | {"train": chosen}, made=splits.made | {"train": text})
    if config.divided and (own := [name for name in ("val", "test") if name in images.samples]):
        use = {"val": "validate every fold", "test": "are held out of all folds"}
        which = " and ".join(f"the {len(images.samples[name]):,} of {name} {use[name]}" for name in own)
        splits = replace(splits, notes=(*splits.notes, f"{TRAIN_ALONE}: {which}; --resplit divides all images"))
    if splits.target.kind == "findings":
        return replace(splits, notes=(*splits.notes, *notes_on_rare(splits)))
    if splits.target.kind == "number" and len(np.unique(splits.targets("train"))) < 2:
        same = f"{splits.source}: all numbers of train are {splits.targets('train')[0, 0]:g}"
        raise DataError(same, "a model of a number needs different ones")
    return splits


def pretraining_splits(config: PretrainDataConfig) -> tuple[Splits, int]:
    """The splits `train` and `val` to pretrain on, and the number of test images left out.

    These are the training and validation images of `make_splits`, so a later training keeps its held-out test. With
    `unlabelled`, all images except those in a test folder; validation is the val folder, or `val_fraction` of the
    images, by patient if patients are known. Raises DataError, UsageError: as `make_splits`; `unlabelled` with labels
    or folds.
    """
    if config.unlabelled:
        for name in LABELS:
            if getattr(config, name) != getattr(PretrainDataConfig(), name):
                flag = "finding" if name == "findings" else name.replace("_", "-")
                raise UsageError(f"--{flag} and --unlabelled exclude each other", "omit one of them")
        root = data_folder(config.root)
        folders, paths = split_folders(root), image_names(root)
        split_of = {folders[name].name: name for name in ("val", "test") if name in folders}
        names = [split_of.get(path.partition("/")[0], "train") for path in paths]
        if "train" not in names:
            raise DataError(f"{root}: holds no image to pretrain on", "name a folder of images")
        known = find_patients(config, root, paths, folders_are_classes=False) or KnownPatients([None] * len(paths), "")
        parts = dict.fromkeys(SPLITS, ()) | by_split(map(Sample, paths, repeat(0), known.groups), names)
        images = Splits(root, ("image",), {**parts}, patients=known.source, notes=tuple(known.notes), source=root)
        made = {"train": "all other images", "val": "", "test": ""}
        if "val" in folders:
            made["val"] = f"folder {folders['val'].name}/"
        else:
            images = with_copies(images, False, config)
            share = config.val_fraction
            parts["val"], parts["train"] = split_off(images, parts["train"], share, config.split_seed, "val")
            made["val"] = f"{share:.0%} split off by {images.unit}, seed {config.split_seed}"
        if config.max_train is not None and config.max_train < len(parts["train"]):
            parts["train"] = stratified_sample(images, parts["train"], config.max_train, config.split_seed)
            made["train"] = f"a sample of {len(parts['train']):,} of the others"
        splits = checked(images, parts, made, config)
    else:
        try:
            splits = make_splits(config)
        except DataError as error:
            raise DataError(error.problem, f"{error.fix}; or --unlabelled if the folders are not classes") from None
    kept = ("train", "val")
    samples, made = {name: splits.samples[name] for name in kept}, {name: splits.made[name] for name in kept}
    return replace(splits, samples=samples, made=made), len(splits.samples["test"])


def held_out(config: DataConfig, ordinal: Sequence[str] = ()) -> tuple[Sample, ...]:
    """The images that no fold contains. Arguments and errors are those of `make_splits`."""
    return _split(_listed(config, ordinal), config)[0].get(HELD_OUT, ())


def site_names(config: DataConfig, ordinal: Sequence[str] = ()) -> list[str]:
    """The values of `data.sites` where folds divide, sorted: a fold each. Arguments and errors: as `make_splits`."""
    images = _listed(config, ordinal)
    samples = images.samples["train" if "train" in images.samples else ALL]
    if config.hold_out is not None:  # it may take a whole site
        samples = split_off(images, samples, config.hold_out, config.split_seed, "test")[1]
    return sorted(set(_site_cells(images, samples, config)))


def _listed(config: DataConfig, ordinal: Sequence[str]) -> Splits:
    images = list_images(config, ordinal)
    if config.resplit:  # as if nothing divided it
        images = replace(images, samples={ALL: tuple(sorted(images.every, key=attrgetter("label", "path")))}, made={})
    if "train" not in images.samples and ALL not in images.samples:
        raise DataError(f"{images.source}: has {', '.join(images.samples)} but no train", "add rows of train")
    for part, samples in images.samples.items():
        for label in _missing(images, samples):
            noun = "grade" if images.target.kind == "grades" else "class"
            where = "" if part == ALL else f" in the {part} split"
            problem = f"{_place(images, part, label)}: {noun} {images.classes[label]!r} has no image{where}"
            raise DataError(problem, f"add images of a type that vitmed reads, or remove the {noun} everywhere")
    images = with_copies(images, {"test", "val"} <= set(images.samples) and not config.divided, config)
    if images.target.kind == "findings":
        images = without_rarest(without_unlearnable(images, config), config)
    return images


def checked(images: Splits, parts: dict[str, Samples], made: dict[str, str], config: DataConfig) -> Splits:
    """The images in these splits. Raises DataError for patients in two of them, unless leakage is allowed."""
    origins = {name: made[name] for name in SPLITS}
    splits = replace(images, samples={name: parts[name] for name in SPLITS}, made=origins, copies={})
    if not (shared := replace(images, samples=parts).shared()):  # also with what no fold contains
        return splits
    count = f"{counted_doing(len(shared), splits.unit)} in two splits"
    if config.allow_leakage:
        return replace(splits, notes=(*splits.notes, f"{count} (--allow-leakage): the result is optimistic"))
    better, every = list[str](), images.every
    for k, name in enumerate(images.columns):  # does it name splits of which no two share a patient?
        pairs = {(sample.group, split_of(sample.columns[k])) for sample in every}
        groups, named = map(set, zip(*pairs, strict=True))
        if {"train"} < named <= set(SPLITS) and len(pairs) == len(groups):
            better.append(name)
    ways = [f"--split-column {quoted(better[0])}, whose splits share no {splits.unit}"] if better else []
    if config.sites is not None:
        ways.append(f"give all images of a {splits.unit} one value of {config.sites}, since each value is a fold")
    if ALL not in images.samples:
        of = "folder" if images.source == images.root else "table"
        ways.append(f"--resplit ignores the splits of the {of} and splits by {splits.unit}")
        ways.append(f"move all images of a {splits.unit} to one split")
    ways.append("--allow-leakage: the result is then optimistic, and says so")
    names = [f"{group!r} in {' and '.join(of_group)}" for group, of_group in shared.items()]
    raise DataError(f"{images.source}: {count}:\n{lines_of(names, NAMED)}", "; or ".join(ways))


def with_copies(images: Splits, ready: bool, config: DataConfig) -> Splits:
    """Add copies if they matter: patients are unknown, and a split is still missing. Errors: as `_site_cells`."""
    if ready or images.patients:
        return images
    paths = [sample.path for sample in images.every]
    first = first_copies(images.root, paths, ImageCache(keep=config.cache, warns=False)).tolist()
    if not (copies := sum(i != k for k, i in enumerate(first))):
        return images
    are = counted_doing(copies, "image", "is a byte for byte copy", "are byte for byte copies") + " of another; copies"
    where = " in train" * (ALL not in images.samples)  # the others stay where the folders or the table put them
    first_of = {path: paths[i] for path, i in zip(paths, first, strict=True)}
    note = f"{are}{where} are kept in one split"
    if config.sites is not None:
        part = images.samples.get("train") or images.samples[ALL]
        places = set(zip((first_of[sample.path] for sample in part), _site_cells(images, part, config), strict=True))
        if len(places) > len(dict(places)):  # copies in two of them
            note += f", but not those with different values of {config.sites}, since each value is a fold"
    return replace(images, copies=first_of, notes=(*images.notes, note))


def _split(images: Splits, config: DataConfig) -> tuple[dict[str, Samples], dict[str, str]]:
    """Split name -> samples, and split name -> origin in words."""
    base, seed = "train" if "train" in images.samples else ALL, config.split_seed
    parts, made = {"train": images.samples[base], **images.samples}, {"train": "the rest", **images.made}
    parts.pop(ALL, None)
    needed = ["train", *(name for name in SPLITS if name not in parts)]
    counts = images.counts(base)
    few = [label for label, count in enumerate(counts) if count < len(needed)]
    if few and not (config.divided or images.bins):
        has = listed([f"{images.classes[label]!r} has {counted(counts[label], 'image')}" for label in few])
        raise DataError(
            f"{_place(images, 'train', few[0]) if len(few) == 1 else images.source}: class {has}, too few for "
            f"{', '.join(needed[:-1])} and {needed[-1]}, which need one each",
            f"add images until every class has {len(needed)}, remove the class, or make the splits yourself"
            + "; or --target number" * (images.source.is_file() and None not in map(number_in, images.classes)),
        )
    if config.divided:
        if "test" in parts and config.hold_out is not None:
            problem = f"{images.source}: has its own test ({made['test']}), which is held out already"
            raise UsageError(problem, "omit --hold-out, or --resplit to ignore the test")
        if "test" in parts:
            parts[HELD_OUT] = parts.pop("test")
        elif config.hold_out is not None:
            parts[HELD_OUT], parts["train"] = split_off(images, parts["train"], config.hold_out, seed, "test")
        if config.sites is not None:
            parts["test"], parts["train"], made["test"] = _take_site(images, parts["train"], config)
        else:
            assert config.folds is not None
            of_folds, fold = seed + config.repeat - 1, config.fold or 1
            parts["test"], parts["train"] = take_fold(images, parts["train"], config.folds, fold, of_folds)
            again = "" if config.repeats == 1 else f", repeat {config.repeat} of {config.repeats}"
            made["test"] = f"fold {fold} of {config.folds} by {images.unit}, seed {of_folds}{again}"
    for name, fraction in (("test", config.test_fraction), ("val", config.val_fraction)):
        if name in parts:
            continue
        count = len(parts["train"])
        rest = base == "train" or config.sites is not None  # a site may have most of the images
        whole = count if rest else sum(len(part) for key, part in parts.items() if key != HELD_OUT)
        parts[name], parts["train"] = split_off(images, parts["train"], fraction * whole / count, seed, name)
        made[name] = f"{len(parts[name]) / whole:.0%} split off by {images.unit}, seed {seed}"
    return parts, made


def _site_cells(images: Splits, samples: Samples, config: DataConfig) -> list[str]:
    """The site of each sample. Raises UsageError: no such column; DataError: no site, or a site in two spellings."""
    if config.sites not in images.columns:
        have = f"; the others are {', '.join(images.columns)}" if images.columns else ""
        beside = "beside path, label, patient and split " * images.source.is_file()
        which = f"{beside}there is no column {config.sites!r} (--sites){have}"
        raise UsageError(f"{images.source}: {which}", "name a column of the table of labels (--labels TABLE)")
    column = images.columns.index(config.sites)
    if empty := [sample for sample in images.every if sample.columns[column].lower() in BLANKS]:
        problem = f"{images.source}: {empty[0].path} has no {config.sites} ({empty[0].columns[column]!r})"
        raise DataError(problem, "fill the column for every image, remove the row, or write the name out")
    cells = [" ".join(sample.columns[column].split()) for sample in samples]  # one line, in messages and tables
    for site, cell in zip(one_spelling(cells, "site", cells)[0], cells, strict=True):
        if site != cell:
            raise DataError(f"{images.source}: {config.sites} {site!r} is also written {cell!r}", "write it in one way")
    return cells


def _take_site(images: Splits, samples: Samples, config: DataConfig) -> tuple[Samples, Samples, str]:
    """The images of one site, the rest, and what the fold is called."""
    cells = _site_cells(images, samples, config)
    names, fold = sorted(set(cells)), config.fold or 1
    if len(names) < 2:
        raise DataError(f"{images.source}: the images of the folds are all of {config.sites} {names[0]}", "--folds 5")
    if fold > len(names):
        raise UsageError(f"data.fold {fold}: the column {config.sites} has {len(names)} values", "a smaller --fold")
    taken, rest = _divide(samples, np.array([cell == names[fold - 1] for cell in cells]))
    for label in _missing(images, rest):
        name = images.classes[label]
        problem = f"{images.source}: without {config.sites} {names[fold - 1]!r} no image of class {name!r} is left"
        raise DataError(problem, "--folds 5, or add images of the class from another site")
    return taken, rest, f"{config.sites} {names[fold - 1]}, fold {fold} of {len(names)}"


def _divide(samples: Samples, taken: np.ndarray) -> tuple[Samples, Samples]:
    return tuple(compress(samples, taken.tolist())), tuple(compress(samples, (~taken).tolist()))


def _missing(images: Splits, samples: Samples) -> list[int]:
    """The classes without one of these images, in their order; of findings and numbers none, as their strata may be."""
    return [] if images.bins else sorted(set(range(len(images.classes))) - {sample.label for sample in samples})


def _place(images: Splits, part: str, label: int) -> Path:
    """The folder or table that holds, or should hold, the images of a class; for a message."""
    if images.source.is_file():
        return images.source
    return images.source / images.made.get(part, "").removeprefix("folder ").rstrip("/") / images.classes[label]


def without_unlearnable(images: Splits, config: DataConfig) -> Splits:
    """Leave out findings of which nothing can be learned. Raises DataError if none is left."""
    given = images.classes
    while True:
        train = images.samples["train" if "train" in images.samples else ALL]
        if config.hold_out is not None:
            train = split_off(images, train, config.hold_out, config.split_seed, "test")[1]
        targets = targets_in(train)
        trained_on = [np.ones(len(train), dtype=bool)]
        if config.folds is not None:
            codes, pairs = units_of(images, train), kinds_of(labels_in(train), targets)
            for seed in range(config.split_seed, config.split_seed + config.repeats):
                number = balanced_parts(codes, pairs, np.full(config.folds, 1 / config.folds), seed)[codes]
                trained_on += [number != fold for fold in np.unique(number)]
        if config.sites is not None:
            sites = np.array(_site_cells(images, train, config))
            trained_on += [sites != site for site in np.unique(sites)]
        lacks = [~(targets[rows] == value).any(axis=0) for rows in trained_on for value in (1, 0)]
        useless = np.any(lacks, axis=0)  # (F,)
        if not useless.any():
            break
        if useless.all():
            problem = f"{images.source}: no finding has images with and without it to train on: {listed(given)}"
            raise DataError(problem, "add images, or name other columns: --finding COLUMN")
        images = with_findings(images, ~useless)
    if not (gone := [name for name in given if name not in images.classes]):
        return images
    of = "every fold" if config.divided else "the training images"
    names = f"{listed(gone)} {'is' if len(gone) == 1 else 'are'}"
    return replace(images, notes=(*images.notes, f"{names} left out: {of} must have images with and without a finding"))


def without_rarest(images: Splits, config: DataConfig) -> Splits:
    """Leave out the rarest findings if training on them needs so many patients that too few are left for validation and
    test: first the findings of one patient, then of fewer than 3, and so on up to `FEW`."""
    if ALL not in images.samples or config.divided:
        return images
    every = images.samples[ALL]
    codes = units_of(images, every)
    held = np.array([len(np.unique(codes[column == 1])) for column in targets_in(every).T])
    kept, unit = images, images.unit
    for fewest in range(2, FEW + 1):
        rare = held < fewest
        with suppress(DataError):  # too few for a split
            parts = _split(kept, config)[0]
            whole, shares = len(kept.every), (("test", config.test_fraction), ("val", config.val_fraction))
            if all(len(parts[name]) >= ENOUGH * fraction * whole for name, fraction in shares):
                break
        if not rare.any() or rare.all():
            continue
        names = list(compress(images.classes, rare))
        of = f"one {unit}" if fewest == 2 else f"fewer than {fewest} {unit}s"
        gone = f"{counted(len(names), 'finding')} of {of} {'is' if len(names) == 1 else 'each are'} left out"
        need = f"training would need nearly every {unit}, and too few would be left to validate and test"
        kept = replace(with_findings(images, ~rare), notes=(*images.notes, f"{gone}: {need}: {listed(names)}"))
    return kept


def notes_on_rare(splits: Splits) -> list[str]:
    notes, train = [], (splits.targets("train") == 1).sum(axis=0).tolist()
    for name in ("val", "test"):
        cannot = "nothing can be chosen for" if name == "val" else "nothing can be said of"
        present, absent = ((splits.targets(name) == value).any(axis=0) for value in (1, 0))
        for what, of in (("no image", ~present), ("every image with a label", present & ~absent)):
            if lacking := list(compress(splits.classes, of)):
                which = "it" if len(lacking) == 1 else "them"
                notes.append(f"{what} of {name} has {listed(lacking)}, so {cannot} {which}")
    if few := [f"{name} ({count})" for name, count in zip(splits.classes, train, strict=True) if count < FEW]:
        what = counted_doing(len(few), "finding", "has", "have")
        notes.append(f"{what} fewer than {FEW} positives in train, too few to learn: {listed(few)}")
    return notes


# --- folds, shares and samples, by patient
#
# scikit-learn stratifies one label of an image by group (`grouped_folds`). The libraries for several labels, both after
# Sechidis et al. 2011 (ECML PKDD, LNCS 6913:145), know no patients (docs/libraries.md).


def take_fold(images: Splits, samples: Samples, folds: int, fold: int, seed: int) -> tuple[Samples, Samples]:
    """Fold 1 to K of K stratified folds, and the rest: by patient if patients are known, every class with an image in
    both. Raises DataError: too few patients or images, of a class or at all."""
    labels, codes = labels_in(samples), units_of(images, samples)
    if images.patients and (patients := int(codes.max()) + 1) < folds:
        few = counted_doing(patients, images.unit)
        raise DataError(f"{images.root}: {few} too few for {folds} folds", "fewer --folds")
    if images.bins:
        pairs = kinds_of(labels, targets_in(samples) if images.target.kind == "findings" else None)
        number = balanced_parts(codes, pairs, np.full(folds, 1 / folds), seed)[codes]
    elif images.patients and np.bincount(labels).max() >= folds:
        number = grouped_folds(labels, codes, folds, seed)
    elif images.patients:  # so some fold lacks each class
        number = codes % folds
    else:
        rng = np.random.default_rng([seed, SPLITS.index("test")])
        order = [rng.permutation(np.flatnonzero(labels == k)) for k in range(len(images.classes))]
        number = np.empty(len(samples), dtype=np.int64)
        number[np.concatenate(order)] = np.arange(len(samples)) % folds  # each class begins where the last one ended
        number = number[np.unique(codes, return_index=True)[1][codes]]  # a copy goes where the first of them goes
    parts = [_divide(samples, number == k) for k in range(folds)]
    for k, (taken, rest) in enumerate(parts, 1):  # all, so that the first does not train in vain
        if not taken or not rest:
            few = counted(len(samples), "image")
            raise DataError(f"{images.source}: {few} are too few for {folds} folds", "fewer --folds")
        if lacking := _missing(images, taken) + _missing(images, rest):
            label = min(lacking)
            few = f"class {images.classes[label]!r} has too few {images.unit}s for fold {k} of {folds}"
            raise DataError(f"{_place(images, ALL, label)}: {few}", "fewer --folds, or add images")
    return parts[fold - 1]


def split_off(images: Splits, samples: Samples, fraction: float, seed: int, name: str) -> tuple[Samples, Samples]:
    """A stratified share of the images, and the rest: by patient if patients are known, every class with an image in
    both. Raises DataError: a class has too few images or patients."""
    labels, codes = labels_in(samples), units_of(images, samples)
    taken = np.zeros(len(samples), dtype=bool)
    if images.patients and len(codes) and codes.max() == 0:
        groups = sorted({repr(sample.group) for sample in images.every})
        problem = f"{images.root}: {counted(len(groups), images.unit)} identified {images.patients}: {listed(groups)}; "
        problem += f"{samples[0].group!r} alone cannot be split into train and {name}"
        raise DataError(problem, f"add {images.unit}s, or correct how they are identified")
    if images.bins:
        findings = targets_in(samples) if images.target.kind == "findings" else None
        taken = share_by_kind(labels, findings, codes, fraction, seed)
        if not taken.any() or taken.all():
            raise DataError(f"{images.source}: {len(samples):,} images are too few to split off {name}", "add images")
    elif images.patients:
        taken = patient_share(labels, codes, fraction, seed)
    else:
        rng = np.random.default_rng([seed, SPLITS.index(name)])
        for k in range(len(images.classes)):
            of_class = np.flatnonzero(labels == k)
            taken[rng.permutation(of_class)[: max(1, round(len(of_class) * fraction))]] = True
        taken = taken[np.unique(codes, return_index=True)[1][codes]]  # a copy goes where the first of them goes
    share, rest = _divide(samples, taken)
    if lacking := _missing(images, share) + _missing(images, rest):
        label = min(lacking, key=lambda k: (len(np.unique(codes[labels == k])), k))  # not the class that it displaced
        few, more = " that are often copies of each other" * bool(images.copies), "images, remove the class"
        if images.patients and not images.copies:
            few = f" of {counted(len(np.unique(codes[labels == label])), images.unit)}"
            more = f"{images.unit}s of this class, --resplit to divide all images anew, omit --group-regex and --groups"
            more += f" (then one {images.unit} is in two splits)"
        has = f"class {images.classes[label]!r} has {counted(int((labels == label).sum()), 'image')}{few}"
        problem = f"{_place(images, 'train', label)}: {has}, too few to split off {name}"
        raise DataError(problem, f"add {more}, or make the splits yourself")
    return share, rest


def stratified_sample(images: Splits, samples: Samples, size: int, seed: int) -> Samples:
    """`size` of the images, every class in proportion (largest remainders), in their order.

    Every class has one image at least, even if that makes more than `size`. With findings the strata are in proportion,
    and an image with and one without each finding is added if the sample has none.
    """
    rng = np.random.default_rng([seed, len(SPLITS)])
    there, labels = np.unique(labels_in(samples), return_inverse=True)
    classes = len(there)
    share = size * np.bincount(labels, minlength=classes) / len(labels)
    counts = np.maximum(1, np.floor(share)).astype(int)
    while counts.sum() < min(size, len(labels)):
        counts[np.argmax(share - counts)] += 1
    while counts.sum() > max(size, classes):
        counts[np.argmax(np.where(counts > 1, counts - share, -np.inf))] -= 1
    keep = [rng.permutation(np.flatnonzero(labels == k))[: counts[k]] for k in range(classes)]
    chosen = np.isin(np.arange(len(labels)), np.concatenate(keep))
    for column in targets_in(samples).T if images.target.kind == "findings" else ():
        for value in (1, 0):
            has = np.flatnonzero(column == value)
            if len(has) and not chosen[has].any():
                chosen[rng.choice(has)] = True
    return tuple(compress(samples, chosen.tolist()))


def units_of(images: Splits, samples: Samples) -> np.ndarray:
    """(N,) int64: what no split divides, as numbers from 0: patients by name, else copies, else single images."""
    if images.patients:
        return np.unique([str(sample.group) for sample in samples], return_inverse=True)[1]
    if images.copies:
        number = {first: i for i, first in enumerate(dict.fromkeys(images.copies.values()))}
        return np.unique([number[images.copies[sample.path]] for sample in samples], return_inverse=True)[1]
    return np.arange(len(samples))


def patient_share(labels: np.ndarray, codes: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """(S,) bool: about `fraction` of the images, by patient; none if no such share has every class.

    This is a fold of a stratified k-fold over patients, or several where `fraction` is not near 1 / k, with every class
    in it and in the rest: the first one with at least half the share of every class's patients, and with two of them
    where there are `SPREAD`. In proportion by images alone, one patient with many images can be all of a class. If no
    fold has that many, the closest one counts. If no fold has every class, as with few patients who have one class
    each, it tries fewer and larger folds, and with at most `TRIED` patients every choice, for a share close to
    `fraction`.
    """
    table = np.zeros((int(codes.max(initial=0)) + 1, int(labels.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(table, (codes, labels), 1)  # images of each patient in each class
    table, found = table[:, table.any(axis=0)], list[np.ndarray]()  # of choices of patients, (P,) bool

    def whole(choices: Iterable[np.ndarray]) -> list[np.ndarray]:
        return [some for some in choices if table[some].any(axis=0).all() and table[~some].any(axis=0).all()]

    def off(some: np.ndarray) -> float:
        return abs(float(table[some].sum() / len(labels)) - fraction)

    most = round(1 / fraction)
    if most == 1 or abs(most * fraction - 1) > 0.1:
        share = Fraction(min(fraction, 0.99))
        most = share.limit_denominator(max(10, most, round(1 / (1 - share)))).denominator
    for folds in range(min(max(2, most), len(table), int(table.sum(axis=0).max(initial=0))), 1, -1):
        number = np.zeros(len(table), dtype=np.int64)
        number[codes] = grouped_folds(labels, codes, folds, seed)
        taken = min(max(1, round(fraction * folds)), folds - 1)
        found += whole((number - fold) % folds < taken for fold in range(folds))
        near = [some for some in found if off(some) <= fraction / 2]
        if near or (found and len(table) > TRIED):
            return np.asarray(max(near + found, key=lambda some: _enough_patients(table, some, fraction))[codes])
    if len(table) <= TRIED:
        order = np.random.default_rng(seed).permutation(len(table))
        choices = chain.from_iterable(combinations(order, count) for count in range(1, len(table)))
        found += whole(np.isin(np.arange(len(table)), choice) for choice in choices)
    best = max(found, key=lambda some: _enough_patients(table, some, fraction) - off(some), default=None)
    return np.zeros(len(labels), dtype=bool) if best is None else best[codes]


def _enough_patients(table: np.ndarray, some: np.ndarray, fraction: float) -> float:
    """The smallest of all classes' ratios of patients in a choice to patients that it needs there; at most 1. `table`
    has the images of each patient in each class, (P, K)."""
    every = np.count_nonzero(table, axis=0)
    needed = np.maximum(np.where(every < SPREAD, 1, 2), np.ceil(every * fraction / 2))
    return float(np.min((np.count_nonzero(table[some], axis=0) / needed)[every > 0], initial=1.0))


def grouped_folds(labels: np.ndarray, codes: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """(S,) int64: the fold of every image, 0 to folds - 1, by patient, with classes in proportion."""
    if int(codes.max()) + 1 > MANY:
        pairs, shares = (np.arange(len(labels)), labels), np.full(folds, 1 / folds)
        return balanced_parts(codes, pairs, shares, seed, by_size=True)[codes]
    from sklearn.model_selection import StratifiedGroupKFold

    number = np.empty(len(labels), dtype=np.int64)
    kfold = StratifiedGroupKFold(folds, shuffle=True, random_state=seed % 2**32)  # it takes no larger one
    with NO_WARNINGS:  # a class with fewer images than folds; the caller checks
        for fold, (_, part) in enumerate(kfold.split(labels, labels, codes)):
            number[part] = fold
    return number


def balanced_parts(
    codes: np.ndarray,  # (S,) the patient of every image, 0 to P - 1
    pairs: tuple[np.ndarray, np.ndarray],  # (M,) images, and (M,) a kind that each is of; it may be of several kinds
    shares: np.ndarray,  # (J,) of the parts; their sum is 1
    seed: int,
    by_size: bool = False,  # go from the patient with most images down instead
    kept: np.ndarray | None = None,  # (P,) bool, patients who go to the last part, before all others
) -> np.ndarray:
    """Distribute patients so that each part gets its share of the images, and as far as possible of every kind.

    From the patient with most of what is rare (times a random 1 to 2, so that seeds divide differently) down, each goes
    to a part that has room for at least half of their images, and of these to the one where the imbalance grows least.
    The imbalance is the sum, over parts and kinds, of the squared share of a kind in a part, divided by the share that
    the part should get. A patient with c_k images of kind k adds sum_k (2 n_k + c_k) c_k / N_k^2 / share to it in a
    part that has n_k of N_k. So a patient with one of few images of a kind goes where that kind is missing most, as in
    iterative stratification. Returns (P,) int64, the part of every patient.
    """
    images, kinds = pairs
    types, parts = int(kinds.max()) + 1, len(shares)
    pair, count = np.unique(codes[images] * types + kinds, return_counts=True)
    of_patient, of_kind = np.divmod(pair, types)
    weight = (count / np.bincount(kinds, minlength=types)[of_kind] ** 2).tolist()
    begin = np.searchsorted(of_patient, np.arange(int(codes.max()) + 2)).tolist()
    kind_of, count_of = of_kind.tolist(), count.tolist()
    share = count / np.bincount(kinds, minlength=types)[of_kind]
    count_of_patient = np.bincount(codes)
    size = count_of_patient if by_size else np.bincount(of_patient, share, minlength=len(count_of_patient))
    order = np.argsort(-size * np.random.default_rng([seed, parts]).uniform(1, 2, len(size)))
    if kept is not None:
        order = np.concatenate([order[kept[order]], order[~kept[order]]])
    held = [[0] * parts for _ in range(types)]
    equal, per_share = bool(np.all(shares == shares[0])), (1 / shares).tolist()
    room, number = (shares * len(codes)).tolist(), np.empty(len(size), dtype=np.int64)
    for patient in order.tolist():
        cells = range(begin[patient], begin[patient + 1])
        added = [0.0] * parts
        for i in cells:  # plain lists are faster than arrays of a few numbers
            added = [sum_ + weight[i] * n for sum_, n in zip(added, held[kind_of[i]], strict=True)]
        if not equal:
            half = sum(weight[i] * count_of[i] for i in cells) / 2
            added = [(sum_ + half) * by for sum_, by in zip(added, per_share, strict=True)]
        own_images = int(count_of_patient[patient])
        fits = [part for part in range(parts) if room[part] >= own_images / 2] or [room.index(max(room))]
        best = parts - 1 if kept is not None and kept[patient] else min(fits, key=added.__getitem__)
        room[best] -= own_images
        for i in cells:
            held[kind_of[i]][best] += count_of[i]
        number[patient] = best
    return number


def kinds_of(labels: np.ndarray, targets: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Images and kinds for `balanced_parts`: the findings of an image, else its stratum; and one kind for all images.

    `labels` (S,) are strata; `targets` of findings (S, F), else None.
    """
    rows, kinds = (every := np.arange(len(labels))), labels
    if targets is not None:
        present = targets == 1
        rows, kinds = np.nonzero(np.column_stack([present, ~present.any(axis=1)]))
    return np.append(rows, every), np.append(kinds, np.full(len(every), kinds.max() + 1))


def share_by_kind(
    labels: np.ndarray, targets: np.ndarray | None, codes: np.ndarray, fraction: float, seed: int
) -> np.ndarray:
    """(S,) bool: about `fraction` of the images, by patient, with findings, or the ranges of a number, in proportion.

    The rest keeps an image with and one without every finding, where there are such.
    """
    size, findings = np.bincount(codes), () if targets is None else targets.T
    holders = [np.unique(codes[column == value]) for column in findings for value in (1, 0)]
    kept = np.isin(np.arange(len(size)), [patients[0] for patients in holders if len(patients) == 1])
    part = balanced_parts(codes, kinds_of(labels, targets), np.array([fraction, 1 - fraction]), seed, kept=kept)
    for patients in holders:
        if len(patients) and not part[patients].any():
            part[patients[size[patients].argmin()]] = 1
    return part[codes] == 0
