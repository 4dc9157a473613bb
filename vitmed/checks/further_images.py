"""Images without labels beside a labelled set: which of them pretraining may use without knowing a held-out image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from vitmed.checks.duplicates import fingerprints, near_any
from vitmed.core.data_config import GROUP_WORDS, DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.inputs import data_folder
from vitmed.core.stored_paths import path_between
from vitmed.core.text import counted
from vitmed.core.ui import Ui
from vitmed.data.folders import image_names
from vitmed.data.patients import find_patients, groups_of
from vitmed.data.samples import Sample, Splits
from vitmed.data.scan import scan
from vitmed.data.scan_cache import ScanCache, hash_files

LEFT_OUT = {  # why an image is left out, in the order in which it is looked for
    "held out": "copies of validation or test images",
    "patient": "of patients in validation or test",
    "near": "look like copies of validation or test images",
    "known": "training images, or copies of one another",
}


def further_prefix(folder: str | Path, root: Path) -> str:
    """How the samples of a data folder name another folder: "../unlabelled/", or its absolute path if it is far away.

    Raises:
        DataError: no such folder.
        UsageError: the data are in an archive.
    """
    further = data_folder(folder)
    if not (root.is_dir() and further.is_dir()):
        file = root if further.is_dir() else further
        raise UsageError(f"--pretrain-also: {file} is a file, expected a folder of images", "unpack it first")
    return f"{path_between(further, root.resolve()) or further.absolute().as_posix()}/"


def further_images(
    folder: str | Path,
    splits: Splits,
    hashes: dict[str, list[str]],
    held_out: Sequence[str],
    config: DataConfig,
    ui: Ui,
) -> tuple[Sample, ...]:
    """The images of a folder that are in no split, look like none of validation and test, and are of none of their
    patients; reports how many are left out, and why.

    Args:
        folder: its images, at any depth, have no labels.
        splits, hashes: of the labelled set; sha256 by split.
        held_out: fingerprints of the images of validation and test, of `duplicates.fingerprints`.
        config: how patients are found.

    Returns:
        samples relative to the root of the splits, with label 0.

    Raises:
        DataError, UsageError: as `further_prefix`; the folder holds no image.
    """
    prefix, root = further_prefix(folder, splits.root), data_folder(folder)
    names = image_names(root)
    if not names:
        raise DataError(f"{root}: holds no image to pretrain on", "name another --pretrain-also, or leave it out")
    cache = ScanCache.open(config.frame, keep=config.cache)
    digests, patients = (
        hash_files([str((root / name).absolute()) for name in names], cache),
        _patients(config, root, names),
    )
    groups = splits.groups()
    held, of_held = {*hashes["val"], *hashes["test"]}, groups["val"] | groups["test"]
    near = near_any(fingerprints(scan(root, names, cache, ui)), held_out)
    seen, samples, left = set(hashes["train"]), list[Sample](), Counter[str]()
    for name, digest, patient, alike in zip(names, digests, patients, near, strict=True):
        facts = {
            "held out": digest in held,
            "patient": patient in of_held,
            "near": bool(alike),
            "known": digest in seen,
        }
        why = next((reason for reason in LEFT_OUT if facts[reason]), None)
        if why is not None:
            left[why] += 1
            continue
        seen.add(digest)
        samples.append(Sample(prefix + name, 0, patient))
    ui.say(f"without labels: {counted(len(samples), 'image')} of {root} for pretraining")
    for reason, text in LEFT_OUT.items():
        if left[reason]:
            ui.say(f"  left out: {left[reason]:,} {text}")
    unknown = sum(sample.group is None for sample in samples)
    if unknown and splits.grouped:
        ui.warn(
            f"the patients of {counted(unknown, 'image')} without labels are unknown: a test patient may be among them"
        )
    return tuple(samples)


def _patients(config: DataConfig, root: Path, names: Sequence[str]) -> Sequence[str | None]:
    """The patient of every image, in the way of the labelled set; None where it finds none."""
    if config.group_regex is not None:
        return groups_of(config.group_regex, names)
    if config.groups in GROUP_WORDS:
        try:
            known = find_patients(config, root, names, folders_are_classes=False)
            return known.groups if known is not None else [None] * len(names)
        except DataError:
            pass
    return [None] * len(names)
