"""Split the images into train, validation and test: by folder, table, patient or seed.

No file is copied, moved or changed. All splits share one class order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vitmed.core.data_config import DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.inputs import data_folder
from vitmed.core.pretrain_config import PretrainDataConfig
from vitmed.core.text import counted, counted_doing, lines_of, listed
from vitmed.data.folders import image_names, split_folders
from vitmed.data.listing import ALL, Listing, list_images
from vitmed.data.patients import AS_ORIGINALS, find_patients
from vitmed.data.samples import Splits
from vitmed.data.scan_cache import ScanCache, first_copies
from vitmed.data.split_names import SPLITS
from vitmed.data.stratify import (
    folds_by_kind,
    grouped_folds,
    patient_codes,
    patient_share,
    share_by_kind,
    unlearnable,
    with_first_copy,
)
from vitmed.data.thread_batches import Progress

FEW = 5  # positives in train below which little is learned of a finding
ENOUGH = 0.8  # of the share of validation and test, below which rare findings are left out to reach it
NAMED = 10  # most patients that a message names


def make_splits(config: DataConfig, progress: Progress | None = None, ordinal: Sequence[str] = ()) -> Splits:
    """Find the images of a configuration, and split off what the folder or the table does not define.

    Args:
        progress: called with (done, total) while the headers of DICOM files are read.
        ordinal: the grades from the lowest to the highest, if you name them.

    Raises:
        DataError: no folder, no classes, a class that is empty or missing from a split, a table that does not fit, an
            image without a patient, or a patient in two splits.
        UsageError: an invalid `group_regex`, or folds of a folder that has its own test.
    """
    listing = list_images(config, progress, ordinal)
    if config.resplit:
        listing = _without_splits(listing)
    if "train" not in listing.parts and ALL not in listing.parts:
        raise DataError(f"{listing.source}: has {', '.join(listing.parts)} but no train", "add rows of train")
    for name, indices in listing.parts.items():
        _check_classes(listing, name, indices)
    listing = _with_copies(listing, {"test", "val"} <= set(listing.parts), config.cache)
    if listing.target.kind == "findings":
        listing = _judgeable(_learnable(listing, config), config)
    parts, made = _split(listing, config)
    for name in SPLITS:
        _check_classes(listing, name, parts[name])
    splits = _with_samples(listing, parts, made, config.allow_leakage)
    if config.max_train is not None and config.max_train < len(parts["train"]):
        chosen = stratified_sample(listing, parts["train"], config.max_train, config.split_seed)
        text = f"{splits.made['train']}, a stratified sample of {len(chosen):,}"
        train = listing.samples(chosen)
        splits = replace(splits, samples=splits.samples | {"train": train}, made=splits.made | {"train": text})
    if listing.target.kind == "findings":
        return replace(splits, notes=(*splits.notes, *_few_positives(splits)))
    if listing.target.kind == "number" and len(np.unique(splits.targets("train"))) < 2:
        same = f"{listing.source}: all numbers of train are {splits.targets('train')[0, 0]:g}"
        raise DataError(same, "a model of a number needs different ones")
    return splits


def _without_splits(listing: Listing) -> Listing:
    """The listing as if neither folder nor table divided it, ordered by class, then by path."""
    order = np.lexsort((np.array(listing.paths), listing.labels))
    return replace(listing.take(order), parts={ALL: np.arange(len(order))}, where={})


def _learnable(listing: Listing, config: DataConfig) -> Listing:
    """The listing without findings of which nothing can be learned. Raises DataError if none is left."""
    train = listing.parts["train"] if "train" in listing.parts else listing.parts[ALL]
    gone, given = list[str](), listing.outputs
    while True:
        assert listing.targets is not None
        folds = None
        if config.folds is not None:
            codes = _units(listing, train)
            folds = folds_by_kind(listing.labels[train], listing.targets[train], codes, config.folds, config.split_seed)
        useless = unlearnable(listing.targets[train], folds)
        if not useless.any():
            break
        gone += [name for name, drop in zip(listing.outputs, useless.tolist(), strict=True) if drop]
        if useless.all():
            raise DataError(
                f"{listing.source}: no finding has images with and without it to train on: {listed(given)}",
                "add images, or name other columns: --finding COLUMN",
            )
        listing = listing.with_findings(~useless)
        train = listing.parts["train"] if "train" in listing.parts else listing.parts[ALL]
    if not gone:
        return listing
    where = "every fold" if config.folds is not None else "the training images"
    names = f"{listed(sorted(gone, key=given.index))} {'is' if len(gone) == 1 else 'are'}"
    note = f"{names} left out: {where} must have images with and without a finding"
    return replace(listing, notes=(*listing.notes, note))


def _judgeable(listing: Listing, config: DataConfig) -> Listing:
    """The listing without the rarest findings, where so many patients are needed to train on these that too few are
    left for validation and test: without those of one patient, then of fewer than 3, and so on up to `FEW`."""
    if ALL not in listing.parts or config.folds is not None or config.val_fraction + config.test_fraction >= 1:
        return listing
    assert listing.targets is not None
    rows = listing.parts[ALL]
    codes = _units(listing, rows)
    held = np.array([len(np.unique(codes[column == 1])) for column in listing.targets[rows].T])
    found, unit = listing, "image" if listing.groups is None else "patient"
    for fewest in range(2, FEW + 1):
        if _has_shares(found, config):
            break
        rare = held < fewest
        if not rare.any() or rare.all():
            continue
        names = [name for name, drop in zip(listing.outputs, rare.tolist(), strict=True) if drop]
        of = f"one {unit}" if fewest == 2 else f"fewer than {fewest} {unit}s"
        gone = f"{counted(len(names), 'finding')} of {of} {'is' if len(names) == 1 else 'each are'} left out"
        need = f"training would need nearly every {unit}, and too few would be left to validate and test"
        note = f"{gone}: {need}: {listed(names)}"
        found = replace(listing.with_findings(~rare), notes=(*listing.notes, note))
    return found


def _has_shares(listing: Listing, config: DataConfig) -> bool:
    """Whether test and validation get at least `ENOUGH` of their shares."""
    rest = listing.parts[ALL]
    whole = len(rest)
    for name, fraction in (("test", config.test_fraction), ("val", config.val_fraction)):
        try:
            part, rest = split_off(listing, rest, fraction * whole / len(rest), config.split_seed, name)
        except DataError:
            return False
        if len(part) < ENOUGH * fraction * whole:
            return False
    return True


def _few_positives(splits: Splits) -> list[str]:
    """Notes on findings that are too rare to learn or to judge."""
    notes, train = [], _positives(splits, "train")
    for name in ("val", "test"):
        cannot = "nothing can be chosen for" if name == "val" else "nothing can be said of"
        present, absent = ((splits.targets(name) == value).any(axis=0) for value in (1, 0))
        for what, of in (("no image", ~present), ("every image with a label", present & ~absent)):
            lacking = [finding for finding, lacks in zip(splits.classes, of.tolist(), strict=True) if lacks]
            if lacking:
                which = "it" if len(lacking) == 1 else "them"
                notes.append(f"{what} of {name} has {listed(lacking)}, so {cannot} {which}")
    few = [f"{name} ({count})" for name, count in zip(splits.classes, train, strict=True) if count < FEW]
    if few:
        what = counted_doing(len(few), "finding", "has", "have")
        notes.append(f"{what} fewer than {FEW} positives in train, too few to learn: {listed(few)}")
    return notes


def _positives(splits: Splits, split: str) -> list[int]:
    """How many images of a split have each finding."""
    return (splits.targets(split) == 1).sum(axis=0).tolist()


def _with_samples(listing: Listing, parts: dict[str, np.ndarray], made: dict[str, str], allow_leakage: bool) -> Splits:
    """The splits, checked. Raises DataError for patients in two of them, unless leakage is allowed."""
    splits = Splits(
        root=listing.root,
        classes=listing.outputs or tuple(listing.classes),
        samples={name: listing.samples(parts[name]) for name in SPLITS},
        made={name: made[name] for name in SPLITS},
        columns=listing.columns,
        patients=listing.patients,
        notes=listing.notes,
        guess=listing.guess,
        target=listing.target,
        bins=tuple(listing.classes) if listing.outputs else (),
        recognised=listing.recognised,
    )
    shared = splits.shared()
    if not shared:
        return splits
    count = f"{len(shared):,} patient{'s are' if len(shared) > 1 else ' is'} in two splits"
    if allow_leakage:
        return replace(splits, notes=(*splits.notes, f"{count} (--allow-leakage): the result is optimistic"))
    names = [f"{group!r} in {' and '.join(of_group)}" for group, of_group in shared.items()]
    raise DataError(
        f"{listing.source}: {count}:\n{lines_of(names, NAMED)}",
        f"--resplit ignores the splits of the {'folder' if listing.source == listing.root else 'table'} and splits by "
        "patient; or move all images of a patient to one split; or --allow-leakage: the result is then optimistic, and "
        "says so",
    )


def _with_copies(listing: Listing, ready: bool, cache: bool) -> Listing:
    """Add copies to the listing if they matter: patients are unknown, and a split is still missing."""
    if ready or listing.patients:
        return listing
    first = first_copies(listing.root, listing.paths, ScanCache.open() if cache else None)
    copies = int(np.sum(first != np.arange(len(first))))
    if not copies:
        return listing
    are = counted_doing(copies, "image", "is a byte for byte copy", "are byte for byte copies")
    notes = f"{are} of another; copies are kept in one split"
    return replace(listing, first_copy=first, notes=(*listing.notes, notes))


def _way(listing: Listing) -> str:
    if listing.patients.startswith(AS_ORIGINALS):
        return "by original"
    return "by patient" if listing.patients else "by image"


def _split(listing: Listing, config: DataConfig) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Split name -> indices, and split name -> origin in words."""
    parts, made = dict(listing.parts), dict(listing.where)
    rest = "train" if "train" in parts else ALL
    how = f"{_way(listing)}, seed {config.split_seed}"
    if config.folds is None:
        _check_enough(listing, rest, [name for name in SPLITS if name == "train" or name not in parts])
    if config.folds is not None:
        if "test" in parts:
            raise UsageError(
                f"{listing.source}: has its own test ({made['test']}), so it cannot be divided into folds",
                "omit --folds, or --resplit to ignore it",
            )
        parts["test"], parts[rest] = take_fold(listing, parts[rest], config.folds, config.fold or 1, config.split_seed)
        made["test"] = f"fold {config.fold or 1} of {config.folds} {how}"
    for name, fraction in (("test", config.test_fraction), ("val", config.val_fraction)):
        if name in parts:
            continue
        base = len(parts[rest])
        whole = base if rest == "train" else sum(map(len, parts.values()))
        share = fraction * whole / base
        parts[name], parts[rest] = split_off(listing, parts[rest], share, config.split_seed, name)
        made[name] = f"{len(parts[name]) / whole:.0%} split off {how}"
    if rest == ALL:
        parts["train"] = parts.pop(ALL)
        made["train"] = "the rest"
    return parts, made


def _check_enough(listing: Listing, rest: str, splits: Sequence[str]) -> None:
    """Raises DataError for classes with fewer images than the splits that `rest` is divided into."""
    if listing.outputs:
        return
    counts = np.bincount(listing.labels[listing.parts[rest]], minlength=len(listing.classes)).tolist()
    few = [label for label, count in enumerate(counts) if count < len(splits)]
    if few:
        has = listed([f"{listing.classes[label]!r} has {counted(counts[label], 'image')}" for label in few])
        raise DataError(
            f"{listing.location(rest, few[0]) if len(few) == 1 else listing.source}: class {has}, too few for "
            f"{', '.join(splits[:-1])} and {splits[-1]}, which need one each",
            f"add images until every class has {len(splits)}, remove the class, or make the splits yourself",
        )


def pretraining_splits(config: PretrainDataConfig, progress: Progress | None = None) -> tuple[Splits, int]:
    """The images to pretrain on, without the test images.

    These are the training and validation images of `make_splits`, so a later training keeps its held-out test. With
    `unlabelled`, all images except those in a test folder; validation is the val folder, or `val_fraction` of the
    images, by patient if patients are known.

    Returns:
        splits `train` and `val`, and the number of test images left out.

    Raises:
        DataError, UsageError: as `make_splits`; `unlabelled` with labels or folds.
    """
    if config.unlabelled:
        splits = _unlabelled_splits(config, progress)
    else:
        try:
            splits = make_splits(config, progress)
        except DataError as error:
            raise DataError(error.problem, f"{error.fix}; or --unlabelled if the folders are not classes") from None
    kept = ("train", "val")
    samples, made = {name: splits.samples[name] for name in kept}, {name: splits.made[name] for name in kept}
    return replace(splits, samples=samples, made=made), len(splits.samples["test"])


def _unlabelled_splits(config: PretrainDataConfig, progress: Progress | None) -> Splits:
    """All images, as one class."""
    for flag, given in (("labels", config.labels), ("folds", config.folds), ("resplit", config.resplit or None)):
        if given is not None:
            raise UsageError(f"--{flag} and --unlabelled exclude each other", "omit one of them")
    root = data_folder(config.root)
    folders, paths = split_folders(root), image_names(root)
    split_of = {folders[name].name: name for name in ("val", "test") if name in folders}
    names = np.array([split_of.get(path.partition("/")[0], "train") for path in paths], dtype="U5")
    parts = {name: np.flatnonzero(names == name) for name in SPLITS}
    if not len(parts["train"]):
        raise DataError(f"{root}: holds no image to pretrain on", "name a folder of images")
    known = find_patients(config, root, paths, progress, folders_are_classes=False)
    listing = Listing(root, root, ["image"], paths, np.zeros(len(paths), np.int64), parts)
    if known is not None:
        listing = replace(listing, groups=known.groups, patients=known.source, notes=tuple(known.notes))
    made = {
        "train": "all other images",
        "val": f"folder {folders['val'].name}/" if "val" in folders else "",
        "test": "",
    }
    if "val" not in folders:
        listing = _with_copies(listing, False, config.cache)
        share = config.val_fraction
        parts["val"], parts["train"] = split_off(listing, parts["train"], share, config.split_seed, "val")
        made["val"] = f"{share:.0%} split off {_way(listing)}, seed {config.split_seed}"
    if config.max_train is not None and config.max_train < len(parts["train"]):
        parts["train"] = stratified_sample(listing, parts["train"], config.max_train, config.split_seed)
        made["train"] = f"a sample of {len(parts['train']):,} of the others"
    return _with_samples(listing, parts, made, config.allow_leakage)


def take_fold(listing: Listing, indices: np.ndarray, folds: int, fold: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """One of K stratified folds, by patient if patients are known; every image is in exactly one of the K.

    Args:
        fold: 1 to `folds`.

    Returns:
        the fold and the rest, as indices; every class has an image in both.

    Raises:
        DataError: fewer patients than folds, or a class is missing from the fold or the rest.
    """
    labels = listing.labels[indices]
    if listing.groups is not None:
        codes = patient_codes(listing.groups, indices)
        patients = int(codes.max()) + 1
        if patients < folds:
            few = counted_doing(patients, "patient")
            raise DataError(f"{listing.root}: {few} too few for {folds} folds", "fewer --folds")
    if listing.outputs:
        number = folds_by_kind(labels, _findings_of(listing, indices), _units(listing, indices), folds, seed)
    elif listing.groups is not None:
        number = grouped_folds(labels, codes, folds, seed)
    else:
        number, begin = np.empty(len(indices), dtype=np.int64), 0
        rng = np.random.default_rng([seed, SPLITS.index("test")])
        for k in range(len(listing.classes)):  # each class begins where the last one ended, for folds of equal size
            of_class = rng.permutation(np.flatnonzero(labels == k))
            number[of_class] = (begin + np.arange(len(of_class))) % folds
            begin += len(of_class)
        if listing.first_copy is not None:
            number = with_first_copy(listing.first_copy, indices, number)
    taken = number == fold - 1
    if not taken.any() or taken.all():
        few = counted(len(indices), "image")
        raise DataError(f"{listing.source}: {few} are too few for {folds} folds", "fewer --folds")
    for label, name in enumerate(() if listing.outputs else listing.classes):
        if not (labels[taken] == label).any() or not (labels[~taken] == label).any():
            what = "patients" if listing.patients else "images"
            raise DataError(
                f"{listing.location(ALL, label)}: class {name!r} has too few {what} for fold {fold} of {folds}",
                "fewer --folds, or add images",
            )
    return indices[taken], indices[~taken]


def split_off(
    listing: Listing, indices: np.ndarray, fraction: float, seed: int, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Take a stratified share of the images, by patient if patients are known.

    Returns:
        the share and the rest, as indices; every class has an image in both.

    Raises:
        DataError: a class has too few images or patients.
    """
    labels = listing.labels[indices]
    taken = np.zeros(len(indices), dtype=bool)
    classes = range(len(listing.classes))
    if listing.groups is not None:
        codes = patient_codes(listing.groups, indices)
        if len(codes) and codes.max() == 0:
            raise DataError(f"{listing.root}: one patient cannot be split into train and {name}", "add patients")
    if listing.outputs:
        taken = share_by_kind(labels, _findings_of(listing, indices), _units(listing, indices), fraction, seed)
        if not taken.any() or taken.all():
            has = counted(len(indices), "image")
            raise DataError(f"{listing.source}: {has} are too few to split off {name}", "add images")
        return indices[taken], indices[~taken]
    if listing.groups is not None:
        taken[patient_share(labels, codes, fraction, seed)] = True
    else:
        rng = np.random.default_rng([seed, SPLITS.index(name)])
        for k in classes:
            of_class = np.flatnonzero(labels == k)
            count = max(1, round(len(of_class) * fraction))
            taken[rng.permutation(of_class)[:count]] = True
        if listing.first_copy is not None:
            taken = with_first_copy(listing.first_copy, indices, taken)
    for k in classes:
        of_class = labels == k
        if not (of_class & taken).any() or not (of_class & ~taken).any():
            has = counted(int(of_class.sum()), "image")
            few = " of too few patients" if listing.patients else ""
            few = " that are often copies of each other" if listing.first_copy is not None else few
            place = listing.location("train" if "train" in listing.parts else ALL, k)
            raise DataError(
                f"{place}: class {listing.classes[k]!r} has {has}{few}, too few to split off {name}",
                "add images, remove the class, or make the splits yourself",
            )
    return indices[taken], indices[~taken]


def _findings_of(listing: Listing, indices: np.ndarray) -> np.ndarray | None:
    """(N, F) findings of these images; None for a number."""
    return None if listing.targets is None or listing.target.kind == "number" else listing.targets[indices]


def _units(listing: Listing, indices: np.ndarray) -> np.ndarray:
    """(N,) int64: what no split divides, as numbers from 0: patients, else copies, else single images."""
    if listing.groups is not None:
        return patient_codes(listing.groups, indices)
    if listing.first_copy is not None:
        return np.unique(listing.first_copy[indices], return_inverse=True)[1]
    return np.arange(len(indices))


def stratified_sample(listing: Listing, indices: np.ndarray, size: int, seed: int) -> np.ndarray:
    """`size` of the images, every class in proportion (largest remainders) and at least once, in their order.

    Fewer than one for each class cannot be: then one for each. Of findings the strata are in proportion, and an image
    with and one without each finding comes on top where there is none in the sample.
    """
    rng = np.random.default_rng([seed, len(SPLITS)])
    there, labels = np.unique(listing.labels[indices], return_inverse=True)
    classes = len(there)
    share = size * np.bincount(labels, minlength=classes) / len(labels)
    counts = np.maximum(1, np.floor(share)).astype(int)
    while counts.sum() < min(size, len(labels)):
        counts[np.argmax(share - counts)] += 1
    while counts.sum() > max(size, classes):
        counts[np.argmax(np.where(counts > 1, counts - share, -np.inf))] -= 1
    keep = [rng.permutation(np.flatnonzero(labels == k))[: counts[k]] for k in range(classes)]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[np.concatenate(keep)] = True
    findings = _findings_of(listing, indices)
    for column in () if findings is None else findings.T:
        for value in (1, 0):
            has = np.flatnonzero(column == value)
            if len(has) and not chosen[has].any():
                chosen[rng.choice(has)] = True
    return indices[chosen]


def _check_classes(listing: Listing, part: str, indices: np.ndarray) -> None:
    if listing.outputs:
        return
    have = set(np.unique(listing.labels[indices]).tolist())
    noun = "grade" if listing.target.kind == "grades" else "class"
    for label, name in enumerate(listing.classes):
        if label not in have:
            where = "" if part == ALL else f" in the {part} split"
            raise DataError(
                f"{listing.location(part, label)}: {noun} {name!r} has no image{where}",
                f"add images, or remove the {noun} everywhere",
            )
