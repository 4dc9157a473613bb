"""The images to pretrain on: the splits of a supervised training, or all images of a folder without labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vitmed.core.data_config import PretrainDataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.places import data_folder
from vitmed.data.folders import SPLITS, image_names, split_folders
from vitmed.data.listing import Listing
from vitmed.data.patients import find_patients
from vitmed.data.samples import Splits
from vitmed.data.splits import make_splits, with_copies, with_samples
from vitmed.data.stratify import split_off, stratified_sample
from vitmed.data.thread_batches import Progress


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
        listing = with_copies(listing, False, config.cache)
        share = config.val_fraction
        parts["val"], parts["train"] = split_off(listing, parts["train"], share, config.split_seed, "val")
        made["val"] = f"{share:.0%} split off by {listing.unit}, seed {config.split_seed}"
    if config.max_train is not None and config.max_train < len(parts["train"]):
        parts["train"] = stratified_sample(listing, parts["train"], config.max_train, config.split_seed)
        made["train"] = f"a sample of {len(parts['train']):,} of the others"
    return with_samples(listing, parts, made, config.allow_leakage)
