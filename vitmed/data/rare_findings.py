"""Findings that are too rare: which ones are left out before the split, and which ones a note names after it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vitmed.core.data_config import DataConfig
from vitmed.core.errors import DataError
from vitmed.core.text import counted, counted_doing, listed
from vitmed.data.listing import ALL, Listing
from vitmed.data.samples import Splits
from vitmed.data.stratify import folds_by_kind, split_off, units_of, unlearnable

FEW = 5  # positives in train below which little is learned of a finding
ENOUGH = 0.8  # of the share of validation and test, below which rare findings are left out to reach it


def without_unlearnable(listing: Listing, config: DataConfig) -> Listing:
    """The listing without findings of which nothing can be learned. Raises DataError if none is left."""
    train = listing.parts["train"] if "train" in listing.parts else listing.parts[ALL]
    gone, given = list[str](), listing.outputs
    while True:
        assert listing.targets is not None
        useless = unlearnable(listing.targets[train], None)
        for repeat in range(0 if config.folds is None else config.repeats):
            assert config.folds is not None
            labels, codes, seed = listing.labels[train], units_of(listing, train), config.split_seed + repeat
            folds = folds_by_kind(labels, listing.targets[train], codes, config.folds, seed)
            useless |= unlearnable(listing.targets[train], folds)
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


def without_rarest(listing: Listing, config: DataConfig) -> Listing:
    """The listing without the rarest findings, where so many patients are needed to train on these that too few are
    left for validation and test: without those of one patient, then of fewer than 3, and so on up to `FEW`."""
    if ALL not in listing.parts or config.divided:
        return listing
    assert listing.targets is not None
    rows = listing.parts[ALL]
    codes = units_of(listing, rows)
    held = np.array([len(np.unique(codes[column == 1])) for column in listing.targets[rows].T])
    found, unit = listing, listing.unit
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


def notes_on_rare(splits: Splits) -> list[str]:
    """Notes on findings that are too rare to learn or to judge."""
    notes, train = [], (splits.targets("train") == 1).sum(axis=0).tolist()
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
