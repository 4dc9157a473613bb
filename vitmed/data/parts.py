"""A part of the images of a listing: a fold, a share, a sample; stratified, and by patient if patients are known."""

from __future__ import annotations

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.text import counted, counted_doing
from vitmed.data.folders import SPLITS
from vitmed.data.listing import ALL, Listing
from vitmed.data.stratify import (
    folds_by_kind,
    grouped_folds,
    patient_codes,
    patient_share,
    share_by_kind,
    with_first_copy,
)


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
            few = counted_doing(patients, listing.unit)
            raise DataError(f"{listing.root}: {few} too few for {folds} folds", "fewer --folds")
    if listing.outputs:
        number = folds_by_kind(labels, _findings_of(listing, indices), units_of(listing, indices), folds, seed)
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
            raise DataError(
                f"{listing.location(ALL, label)}: class {name!r} has too few {listing.unit}s for "
                f"fold {fold} of {folds}",
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
            raise DataError(
                f"{listing.root}: one {listing.unit} cannot be split into train and {name}", f"add {listing.unit}s"
            )
    if listing.outputs:
        taken = share_by_kind(labels, _findings_of(listing, indices), units_of(listing, indices), fraction, seed)
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
            few = f" of too few {listing.unit}s" if listing.patients else ""
            few = " that are often copies of each other" if listing.first_copy is not None else few
            place = listing.location("train" if "train" in listing.parts else ALL, k)
            raise DataError(
                f"{place}: class {listing.classes[k]!r} has {has}{few}, too few to split off {name}",
                "add images, remove the class, or make the splits yourself",
            )
    return indices[taken], indices[~taken]


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


def units_of(listing: Listing, indices: np.ndarray) -> np.ndarray:
    """(N,) int64: what no split divides, as numbers from 0: patients, else copies, else single images."""
    if listing.groups is not None:
        return patient_codes(listing.groups, indices)
    if listing.first_copy is not None:
        return np.unique(listing.first_copy[indices], return_inverse=True)[1]
    return np.arange(len(indices))


def _findings_of(listing: Listing, indices: np.ndarray) -> np.ndarray | None:
    """(N, F) findings of these images; None for a number."""
    return None if listing.targets is None or listing.target.kind == "number" else listing.targets[indices]
