"""Judge frozen features by images that fitted nothing: linear models and nearest neighbours, by patient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

import vitmed
from vitmed.core.data_config import DataConfig
from vitmed.core.errors import DataError
from vitmed.core.targets import Kind
from vitmed.core.text import counted
from vitmed.core.ui import Ui
from vitmed.data.loading import Images, targets_of
from vitmed.data.read_images import read_splits
from vitmed.data.samples import Splits
from vitmed.data.scan_cache import ScanCache, digests_of, hash_files
from vitmed.data.stratify import folds_by_kind, grouped_folds
from vitmed.data.thread_batches import Progress
from vitmed.imaging.decode import decoding_version
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.predictions import group_index
from vitmed.training.feature_cache import FeatureCache, Features
from vitmed.training.learning import LEARNING

ENOUGH = 1000  # validation images, from which they are held out once; fewer: cross-validation with train
FOLDS = (5, 4, 3)  # as many as the rarest class allows

Compute = Callable[[Images, Sequence[int]], tuple[np.ndarray, float, float]]  # -> features, seconds per image, bytes


class Round(NamedTuple):
    """Rows of the images that fit a classifier, choose its penalty or its k, and are held out; no patient is in two."""

    fit: np.ndarray
    choose: np.ndarray
    held: np.ndarray


class Pool:
    """The images of train and validation as one list; the test is not in it, and its files are not opened.

    Attributes:
        samples: train, then validation.
        labels: (S,) int64, classes or strata. targets: as `targets_of`.
        hashes: sha256 of each file. digests: (S, 32) uint8.
        known: (S,) bool, the images whose features are known for all networks so far.
    """

    def __init__(self, splits: Splits, data: DataConfig, ui: Ui):
        self.samples = (*splits.samples["train"], *splits.samples["val"])
        self.splits, self.data, self.ui = replace(splits, samples={"train": self.samples}), data, ui
        self.is_val = np.arange(len(self.samples)) >= len(splits.samples["train"])
        self.labels = np.array([sample.label for sample in self.samples], dtype=np.int64)
        self.targets = targets_of(self.samples, splits.target).numpy()
        files = [str((splits.root / sample.path).absolute()) for sample in self.samples]
        with ui.bar("looking for known images", unit="files") as advance:
            self.hashes = hash_files(files, ScanCache.open(keep=data.cache), advance)
        self.digests = digests_of(self.hashes, files)
        self.known = np.ones(len(files), dtype=bool)

    def features(self, how: Preprocessing, content: Mapping[str, Any], compute: Compute) -> tuple[np.ndarray, Features]:
        """(S,) row of each image in the features, -1 where it has none, and the features; the cache keeps them.

        Args:
            how: makes the squares; content: all else that decides the features.
            compute: called with the images and the rows of those that the cache lacks.

        Raises:
            DataError: files that cannot be used, unless they are to be skipped.
        """
        versions = {"vitmed": vitmed.__version__, "torch": str(torch.__version__), "decoders": decoding_version()}
        cache = FeatureCache({**content, "preprocessing": how.to_dict(), "versions": versions}, self.data.cache)
        found = cache.load()
        rows = np.full(len(self.samples), -1) if found is None else found.rows(self.digests)
        if (rows < 0).any():
            read = read_splits(self.splits, how, self.data, self.ui, records=False)
            images = read.images["train"]
            missing = {self.samples[row].path: row for row in np.flatnonzero(rows < 0)}
            new = [i for i, sample in enumerate(images.samples) if sample.path in missing]
            if new:
                values, seconds, memory = compute(images, new)
                digests = self.digests[[missing[images.samples[i].path] for i in new]]
                if found is None:
                    found = Features(digests, values, seconds, memory)
                else:
                    both = np.concatenate([found.digests, digests]), np.concatenate([found.values, values])
                    found = replace(found, digests=both[0], values=both[1])
                cache.save(found, self.ui)
                rows = found.rows(self.digests)
        assert found is not None  # else `read_splits` raises
        self.known &= rows >= 0
        return rows, found

    def rounds(self, seed: int) -> list[Round]:
        """How the images take turns: validation is held out where it is large, else each fold once.

        Raises:
            DataError: a class has too few patients, or images where patients are unknown.
        """
        part = np.flatnonzero(self.known)
        groups = [sample.group or "" for sample in self.samples] if self.splits.grouped else self.hashes  # copies
        units = group_index([groups[i] for i in part], len(part))
        if self.holds_out:
            rest = np.flatnonzero(~self.is_val[part])
            fold = self._folds(part[rest], units[rest], seed)
            return [Round(part[rest[fold != 0]], part[rest[fold == 0]], part[self.is_val[part]])]
        fold = self._folds(part, units, seed)
        count = int(fold.max()) + 1
        turns = [(i, (i + 1) % count) for i in range(count)]
        return [Round(part[(fold != i) & (fold != j)], part[fold == j], part[fold == i]) for i, j in turns]

    @property
    def holds_out(self) -> bool:
        """Whether validation is large enough to be held out."""
        return int((self.known & self.is_val).sum()) >= ENOUGH

    def _folds(self, rows: np.ndarray, units: np.ndarray, seed: int) -> np.ndarray:
        """(N,) int64: the fold of each image; every class is in every fold, findings and numbers are in proportion."""
        units, classes, labels = np.unique(units, return_inverse=True)[1], self.splits.classes, self.labels[rows]
        if self.splits.bins:
            targets = self.targets[rows] if self.splits.target.kind == "findings" else None
            return folds_by_kind(labels, targets, units, self._most_folds(int(units.max(initial=-1)) + 1), seed)
        held = [len(np.unique(units[labels == c])) for c in range(len(classes))]
        rarest = int(np.argmin(held))
        for folds in FOLDS:
            if held[rarest] >= folds:
                number = grouped_folds(labels, units, folds, seed)
                if len(np.unique(number * len(classes) + labels)) == folds * len(classes):
                    return number
        raise self._too_few(held[rarest], f"class {classes[rarest]!r} has", "add images of it, or leave the class out")

    def _most_folds(self, units: int) -> int:
        """How many folds so many patients allow; DataError where it is none."""
        for folds in FOLDS:
            if units >= folds:
                return folds
        raise self._too_few(units, "there are", f"add {self.splits.unit}s")

    def _too_few(self, count: int, which: str, fix: str) -> DataError:
        what = counted(count, self.splits.unit)
        return DataError(
            f"{self.splits.root}: {which} {what} outside the test, expected {FOLDS[-1]} or more to fit a model, to "
            "choose its penalty, and to hold out",
            fix,
        )


def held_out_logits(
    features: np.ndarray, targets: np.ndarray, rounds: Sequence[Round], outputs: int,
    progress: Progress | None = None, kind: Kind = "classes",
) -> dict[str, np.ndarray]:  # fmt: skip
    """Logits (S, K) float32 of a linear model and of nearest neighbours for the images that a round holds out.

    The penalty and k have the lowest loss on the images of the round that choose. Other rows are NaN.

    Args:
        features: (S, D); targets: as `targets_of`.
        outputs: K.
        kind: of labels.
    """
    learning = LEARNING[kind]
    found = {name: np.full((len(targets), outputs), np.nan, np.float32) for name in ("logistic", "neighbours")}
    for done, (fit, choose, held) in enumerate(rounds, 1):
        train, val = ((features[rows], targets[rows]) for rows in (fit, choose))
        found["logistic"][held] = learning.fit_head(train, val, outputs).logits(features[held])
        found["neighbours"][held] = learning.fit_neighbours(train, val, outputs)[1](features[held])
        if progress is not None:
            progress(done, len(rounds))
    return found


def describe_rounds(pool: Pool, rounds: Sequence[Round]) -> str:
    """How the images were held out, in words."""
    by = pool.splits.unit
    if pool.holds_out:
        return f"{counted(len(rounds[0].held), 'validation image')} held out, by {by}"
    held = sum(len(one.held) for one in rounds)
    return f"{len(rounds)}-fold cross-validation by {by} of {counted(held, 'image')} of train and validation"
