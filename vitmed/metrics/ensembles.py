"""Predictions of several models joined: of different images in one table, of the same images averaged."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vitmed.core.errors import DataError
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import WRITTEN


def pool(parts: Sequence[Any]) -> Any:
    """Join the predictions of several models on different images; each keeps its probabilities, decision and intervals.
    Numbers and scales stay the same in the unit; all are standardised by the mean centre and spread of the models."""
    parts, decision = parts[0].pooled(parts)
    first = parts[0]
    shared = [name for name in first.columns if all(name in part.columns for part in parts)]
    known = all(part.groups is not None for part in parts)
    labels = [part.labels for part in parts if part.labels is not None]
    return replace(
        first,
        paths=tuple(path for part in parts for path in part.paths),
        groups=tuple(group for part in parts for group in part.groups) if known else None,
        labels=np.concatenate(labels) if len(labels) == len(parts) else None,
        logits=np.concatenate([part.logits for part in parts]),
        columns={name: tuple(c for p in parts for c in p.columns[name]) for name in shared},
        errors=(),
        notes=(),
        **decision,
    )


def out_of_fold(tests: Sequence[Predictions], folds: int) -> Predictions:
    """What models say of images that they never saw: the tests of folds, pooled, averaged over repeats of all
    folds. `tests` are of the folds of each repeat in turn."""
    repeats = aligned([pool(tests[start : start + folds]) for start in range(0, len(tests), folds)])
    if len(repeats) == 1:
        return repeats[0]
    mean, decided = averaged(repeats), [part.decided for part in repeats]
    if all(each is None for each in decided) or (mean.kind == "number" and any(each is None for each in decided)):
        return mean
    shown = [part.predicted if part.decided is None else part.decided for part in repeats]
    if mean.kind == "number":
        return replace(mean, decided=np.mean(shown, axis=0))
    margins = dict[str, Any]()  # most of the models decide; of a tie, the mean of their margins
    for test in tests:
        for path, row in zip(test.paths, test.margins / len(repeats), strict=True):
            margins[path] = margins.get(path, 0) + row
    prefers = np.array([margins[path] for path in mean.paths]) / 4
    if not mean.EXCLUSIVE:
        return replace(mean, decided=np.sum(shown, axis=0) - len(shown) / 2 + prefers >= 0)
    votes = np.stack([np.sum(np.equal(shown, k), axis=0) for k in range(len(mean.classes))], axis=1)
    return replace(mean, decided=(votes + prefers).argmax(axis=1))


def aligned(parts: Sequence[Any]) -> list[Any]:
    """Put rows and classes in the order of the first. Raises DataError where images, classes or labels differ."""
    first, in_order = parts[0], [parts[0]]
    for other in parts[1:]:
        if set(other.classes) != set(first.classes) or other.kind != first.kind:
            problem = f"models of different classes: {', '.join(first.classes)}, and {', '.join(other.classes)}"
            raise DataError(problem, "join models of the same classes")
        if alone := sorted({*other.paths} ^ {*first.paths}):
            problem = f"{len(alone):,} images have predictions of some models only, the first is {alone[0]}"
            raise DataError(
                problem, "join models that were evaluated on the same images (folds: vitmed cross-validate)"
            )
        other = other.at(first.paths).like(first)
        if first.labels is not None and other.labels is not None and not np.array_equal(first.labels, other.labels):
            raise DataError("the same images have different labels in two runs", "join models of the same data")
        in_order.append(other)
    return in_order


def averaged(parts: Sequence[Predictions], weights: Sequence[float] | np.ndarray | None = None) -> Predictions:
    """The mean of several models for the same images: one prediction, as if of one model.

    Of classes, grades and findings it is the mean of the calibrated probabilities; the logits are their logarithms, or
    log odds. Of a number it is the mean and the variance of the mixture of the models (Lakshminarayanan et al.,
    NeurIPS 2017, arXiv 1612.01474). What each model decided is left out.

    Args:
        parts: as `aligned` returns them; weights: of each, summing to 1; default equal ones.
    """
    weights = [1 / len(parts)] * len(parts) if weights is None else weights
    mean = parts[0].mean_of(parts, np.asarray(weights, dtype=np.float64))
    return replace(mean, columns={name: cells for name, cells in mean.columns.items() if name not in WRITTEN})
