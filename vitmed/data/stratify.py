"""Folds, shares and samples of the listed images, in proportion by class, ranges of a number or findings; by patient.

scikit-learn stratifies one label of an image by group, and is used where it is fast (`grouped_folds`). For several
labels there are iterative-stratification 0.1.9 (BSD, 2024) and scikit-multilearn 0.2.0 (BSD, 2018, unmaintained), both
after Sechidis et al. 2011 (ECML PKDD, LNCS 6913:145). Neither knows patients, and the former has declined them
(github.com/trent-b/iterative-stratification/issues/10). `balanced_parts` is greedy in the same way, for patients.
"""

from __future__ import annotations

import warnings

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.text import counted, counted_doing
from vitmed.data.folders import SPLITS
from vitmed.data.listing import ALL, Listing

MANY = 500  # patients above which scikit-learn's StratifiedGroupKFold takes seconds to hours
SPREAD = 6  # patients of a class from which train, val and test can have two each


def take_fold(listing: Listing, indices: np.ndarray, folds: int, fold: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Fold 1 to K of K stratified folds, and the rest, as indices: by patient if patients are known, every image in
    exactly one of the K, every class with an image in both. Raises DataError: fewer patients than folds, or a class is
    missing from the fold or the rest."""
    labels, codes = listing.labels[indices], units_of(listing, indices)
    if listing.groups is not None and (patients := int(codes.max()) + 1) < folds:
        few = counted_doing(patients, listing.unit)
        raise DataError(f"{listing.root}: {few} too few for {folds} folds", "fewer --folds")
    if listing.outputs:
        number = folds_by_kind(labels, _findings_of(listing, indices), codes, folds, seed)
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
    if (label := _one_sided(listing, labels, taken)) is not None:
        few = f"class {listing.classes[label]!r} has too few {listing.unit}s for fold {fold} of {folds}"
        raise DataError(f"{listing.location(ALL, label)}: {few}", "fewer --folds, or add images")
    return indices[taken], indices[~taken]


def split_off(
    listing: Listing, indices: np.ndarray, fraction: float, seed: int, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """A stratified share of the images, and the rest, as indices: by patient if patients are known, every class with an
    image in both. Raises DataError: a class has too few images or patients."""
    labels, codes = listing.labels[indices], units_of(listing, indices)
    taken = np.zeros(len(indices), dtype=bool)
    if listing.groups is not None and len(codes) and codes.max() == 0:
        problem = f"{listing.root}: one {listing.unit} cannot be split into train and {name}"
        raise DataError(problem, f"add {listing.unit}s")
    if listing.outputs:
        taken = share_by_kind(labels, _findings_of(listing, indices), codes, fraction, seed)
        if not taken.any() or taken.all():
            has = counted(len(indices), "image")
            raise DataError(f"{listing.source}: {has} are too few to split off {name}", "add images")
    elif listing.groups is not None:
        taken[patient_share(labels, codes, fraction, seed)] = True
    else:
        rng = np.random.default_rng([seed, SPLITS.index(name)])
        for k in range(len(listing.classes)):
            of_class = np.flatnonzero(labels == k)
            taken[rng.permutation(of_class)[: max(1, round(len(of_class) * fraction))]] = True
        if listing.first_copy is not None:
            taken = with_first_copy(listing.first_copy, indices, taken)
    if (label := _one_sided(listing, labels, taken)) is not None:
        few = f" of too few {listing.unit}s" if listing.patients else ""
        few = " that are often copies of each other" if listing.first_copy is not None else few
        place = listing.location("train" if "train" in listing.parts else ALL, label)
        has = f"class {listing.classes[label]!r} has {counted(int((labels == label).sum()), 'image')}{few}"
        raise DataError(
            f"{place}: {has}, too few to split off {name}", "add images, remove the class, or make the splits yourself"
        )
    return indices[taken], indices[~taken]


def _one_sided(listing: Listing, labels: np.ndarray, taken: np.ndarray) -> int | None:
    """The first of the classes without an image in the part or in the rest; None of findings and numbers."""
    classes = () if listing.outputs else range(len(listing.classes))
    return next((k for k in classes if len(np.unique(taken[labels == k])) < 2), None)


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
    """(N,) int64: what no split divides, as numbers from 0: patients by name, else copies, else single images."""
    if listing.groups is not None:
        return np.unique([listing.groups[i] for i in indices.tolist()], return_inverse=True)[1]
    if listing.first_copy is not None:
        return np.unique(listing.first_copy[indices], return_inverse=True)[1]
    return np.arange(len(indices))


def _findings_of(listing: Listing, indices: np.ndarray) -> np.ndarray | None:
    """(N, F) findings of these images; None for a number."""
    return None if listing.targets is None or listing.target.kind == "number" else listing.targets[indices]


def with_first_copy(first: np.ndarray, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(N,) `values` of the images at (N,) `indices`, where a copy takes the value of the first copy among them."""
    _, begin, where = np.unique(first[indices], return_index=True, return_inverse=True)
    return values[begin[where]]


def patient_share(labels: np.ndarray, codes: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Positions of about `fraction` of the images, by patient; empty if no such share has every class.

    This is a fold of a stratified k-fold over patients with every class in the fold and in the rest: the first one
    with at least half the share of every class's patients, and with two of them where there are `SPREAD`. In
    proportion by images alone, one patient with many images can be all of a class. If no fold has so many, the one that
    comes closest is taken. If no fold has every class, as with few patients who have one class each, fewer and larger
    folds are tried.
    """
    classes = np.unique(labels)
    most = min(max(2, round(1 / fraction)), int(codes.max(initial=0)) + 1, int(np.bincount(labels).max(initial=0)))
    for folds in range(most, 1, -1):
        number = grouped_folds(labels, codes, folds, seed)
        parts = [number == fold for fold in range(folds)]
        if whole := [p for p in parts if len(np.unique(labels[p])) == len(np.unique(labels[~p])) == len(classes)]:
            return np.flatnonzero(max(whole, key=lambda part: _enough_patients(labels, codes, part, fraction)))
    return np.empty(0, dtype=np.int64)


def _enough_patients(labels: np.ndarray, codes: np.ndarray, part: np.ndarray, fraction: float) -> float:
    """For the class where it is smallest: its patients in a part, for each that it needs there; at most 1."""

    def patients(of: np.ndarray) -> np.ndarray:
        return np.bincount(np.unique(np.stack([labels[of], codes[of]]), axis=1)[0], minlength=int(labels.max()) + 1)

    every = patients(np.ones_like(part))
    needed = np.maximum(np.where(every < SPREAD, 1, 2), np.ceil(every * fraction / 2))
    return float(np.min(patients(part)[every > 0] / needed[every > 0], initial=1.0))


def grouped_folds(labels: np.ndarray, codes: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """(S,) int64: the fold of every image, 0 to folds - 1, by patient, with classes in proportion."""
    if int(codes.max()) + 1 > MANY:
        pairs, shares = (np.arange(len(labels)), labels), np.full(folds, 1 / folds)
        return balanced_parts(codes, pairs, shares, seed, by_size=True)[codes]
    from sklearn.model_selection import StratifiedGroupKFold

    number = np.empty(len(labels), dtype=np.int64)
    kfold = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer images than folds; the caller checks
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

    From the patient with most of what is rare down, each goes to a part that has room for at least half of their
    images, and of these to the one where the imbalance grows least. The imbalance is the sum, over parts and kinds, of
    the squared share of a kind in a part, divided by the share that the part should get. A patient with c_k images of
    kind k adds sum_k (2 n_k + c_k) c_k / N_k^2 / share to it in a part that has n_k of N_k. So a patient with one of
    few images of a kind goes where that kind is missing most, as in iterative stratification. Returns (P,) int64, the
    part of every patient.
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
    mixed = np.random.default_rng([seed, parts]).permutation(len(size))
    order = mixed[np.argsort(-size[mixed], kind="stable")]
    if kept is not None:
        order = np.concatenate([order[kept[order]], order[~kept[order]]])
    held = [[0] * parts for _ in range(types)]
    equal, per_share = bool(np.all(shares == shares[0])), (1 / shares).tolist()
    room = (shares * len(codes)).tolist()
    number = np.empty(len(size), dtype=np.int64)
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
    """Images and kinds for `balanced_parts`: the findings of an image, else its stratum; and that it is an image.

    `labels` (S,) are strata; `targets` of findings (S, F), else None.
    """
    every = np.arange(len(labels))
    rows, kinds = (every, labels) if targets is None else np.nonzero(targets == 1)
    bare = every[:0] if targets is None else np.flatnonzero(~(targets == 1).any(axis=1))
    most = int(labels.max()) if targets is None else targets.shape[1]
    kinds = np.concatenate([kinds, np.full(len(bare), most), np.full(len(every), most + 1)])
    return np.concatenate([rows, bare, every]), kinds


def folds_by_kind(
    labels: np.ndarray, targets: np.ndarray | None, codes: np.ndarray, folds: int, seed: int
) -> np.ndarray:
    """(S,) int64: the fold of every image, 0 to folds - 1, otherwise as `share_by_kind`."""
    return balanced_parts(codes, kinds_of(labels, targets), np.full(folds, 1 / folds), seed)[codes]


def share_by_kind(
    labels: np.ndarray, targets: np.ndarray | None, codes: np.ndarray, fraction: float, seed: int
) -> np.ndarray:
    """(S,) bool: about `fraction` of the images, by patient, with findings, or the ranges of a number, in proportion.

    The rest keeps an image with and one without every finding, where there are such.
    """
    size = np.bincount(codes)
    columns = () if targets is None else [column == value for column in targets.T for value in (1, 0)]
    holders = [np.unique(codes[has]) for has in columns]
    kept = np.isin(np.arange(len(size)), [patients[0] for patients in holders if len(patients) == 1])
    part = balanced_parts(codes, kinds_of(labels, targets), np.array([fraction, 1 - fraction]), seed, kept=kept)
    for patients in holders:
        if len(patients) and not part[patients].any():
            part[patients[size[patients].argmin()]] = 1
    return part[codes] == 0


def unlearnable(targets: np.ndarray, folds: np.ndarray | None) -> np.ndarray:
    """(F,) bool: findings (S, F) without a known positive, or without a known negative, where a model is trained: on
    the rest of each fold (S,), or with None on all images."""
    rests = [np.ones(len(targets), bool)] if folds is None else [folds != fold for fold in np.unique(folds)]
    return np.any([~((targets[rest] == value).any(axis=0)) for rest in rests for value in (1, 0)], axis=0)
