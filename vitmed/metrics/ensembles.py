"""Predictions of several models joined: of different images in one table, of the same images averaged."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.errors import DataError
from vitmed.metrics.areas import class_areas
from vitmed.metrics.estimates import Estimate, of_auroc
from vitmed.metrics.intervals import Units
from vitmed.metrics.predictions import LEAST, Predictions, known_labels
from vitmed.metrics.predictions_csv import DISAGREEMENT


class MemberDisagreement(Frozen):
    """The disagreement of members beside the confidence of their mean, each as a sign of an error.

    Attributes:
        n: images; n_wrong: of which the prediction is wrong.
        disagreement, confidence: AUROC with which it separates wrong from right predictions.
    """

    n: int
    n_wrong: int
    disagreement: Estimate
    confidence: Estimate


def pool(parts: Sequence[Any]) -> Any:
    """Join the predictions of several models on different images; each keeps its probabilities, decision and intervals.

    Numbers and scales stay the same in the unit; all are standardised by the mean centre and spread of the models.
    """
    kind, own = parts[0].kind, dict[str, Any]()
    if kind == "number":
        ends = [part.intervals for part in parts if part.intervals is not None]
        own = {"reach": None, "decided": np.concatenate(ends) if len(ends) == len(parts) else None}
        centre, spread = (statistics.mean(getattr(p.target, name) for p in parts) for name in ("centre", "spread"))
        parts = [part.standardised(centre, spread) for part in parts]
    else:
        settings = {"thresholds": ()} if kind == "findings" else {"threshold": None, "costs": None}
        limits = [limit for p in parts for limit in (p.thresholds if kind == "findings" else (p.threshold, p.costs))]
        raw, usual = all(p.calibrated is None for p in parts), all(limit is None for limit in limits)
        own = {**settings, "members": None}
        own["calibrated"] = None if raw else np.concatenate([part.probabilities for part in parts])
        own["decided"] = None if usual else np.concatenate([part.predicted for part in parts])
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
        **own,
    )


def out_of_fold(tests: Sequence[Predictions], folds: int) -> Predictions:
    """What models say of images that they never saw: the tests of folds, pooled, averaged over repeats of all
    folds. `tests` are of the folds of each repeat in turn."""
    repeats = aligned([pool(tests[start : start + folds]) for start in range(0, len(tests), folds)])
    if len(repeats) == 1:
        return repeats[0]
    mean, decided = averaged(repeats), [part.decided for part in repeats]
    if any(each is None for each in decided):
        return mean
    if mean.kind == "classes":
        votes = np.stack([np.sum(np.equal(decided, k), axis=0) for k in range(len(mean.classes))], axis=1)
        return replace(mean, decided=(votes + mean.probabilities / 2).argmax(axis=1))  # the likelier class of a tie
    middle = np.mean(decided, axis=0)
    return replace(mean, decided=middle if mean.kind == "number" else middle >= 0.5)


def aligned(parts: Sequence[Any]) -> list[Any]:
    """Predictions of the same images with rows and classes in the order of the first.

    Raises DataError where images, classes or labels differ.
    """
    first, found = parts[0], [parts[0]]
    place = {path: row for row, path in enumerate(first.paths)}
    for other in parts[1:]:
        if set(other.classes) != set(first.classes) or other.kind != first.kind:
            raise DataError(
                f"models of different classes: {', '.join(first.classes)}, and {', '.join(other.classes)}",
                "join models of the same classes",
            )
        rows = {path: row for row, path in enumerate(other.paths)}
        if rows.keys() != place.keys():
            alone = sorted(rows.keys() ^ place.keys())
            raise DataError(
                f"{len(alone):,} images have predictions of some models only, the first is {alone[0]}",
                "join models that were evaluated on the same images",
            )
        other = other.take(np.array([rows[path] for path in first.paths], dtype=np.int64)).like(first)
        if first.labels is not None and other.labels is not None and not np.array_equal(first.labels, other.labels):
            raise DataError("the same images have different labels in two runs", "join models of the same data")
        found.append(other)
    return found


def averaged(parts: Sequence[Predictions], weights: Sequence[float] | np.ndarray | None = None) -> Predictions:
    """The mean of several models for the same images: one prediction, as if of one model.

    Of classes, grades and findings it is the mean of the calibrated probabilities; the logits are their logarithms, or
    log odds. Of a number it is the mean and the variance of the mixture of the models (Lakshminarayanan et al.,
    NeurIPS 2017, arXiv 1612.01474). What each model decided is left out.

    Args:
        parts: as `aligned` returns them; weights: of each, summing to 1; default equal ones.
    """
    first = parts[0]
    shares = np.full(len(parts), 1 / len(parts)) if weights is None else np.asarray(weights, dtype=np.float64)
    if first.kind == "number":
        values, scales = (np.stack([getattr(part, name) for part in parts]) for name in ("values", "scales"))
        mean = np.einsum("m,ms->s", shares, values)
        variance = np.einsum("m,ms->s", shares, scales**2 + values**2) - mean**2
        target = first.target
        scale = np.sqrt(np.maximum(variance, np.einsum("m,ms->s", shares, scales) ** 2 * 1e-12))
        logits = np.stack([(mean - target.centre) / target.spread, np.log(scale / target.spread)], axis=1)
        return replace(first.undecided(), logits=logits.astype(np.float32))
    mean = sum(share * part.probabilities for share, part in zip(shares, parts, strict=True))
    return replace(first.undecided(), logits=first.logs(mean).astype(np.float32))


def disagreement(parts: Sequence[Any], weights: Sequence[float] | np.ndarray | None = None) -> np.ndarray:
    """(S,) float64, 0 or more: how much the models disagree on each image.

    Of classes it is the mutual information of class and model in nats, the entropy of the mean less the mean of the
    entropies (Houlsby et al. 2011, arXiv 1112.5745); of findings the largest of theirs; of a number the standard
    deviation of the predicted values, in the unit.
    """
    shares = np.full(len(parts), 1 / len(parts)) if weights is None else np.asarray(weights, dtype=np.float64)
    if parts[0].kind == "number":
        values = np.stack([part.values for part in parts])
        return np.sqrt(np.maximum(0, np.einsum("m,ms->s", shares, (values - shares @ values) ** 2)))
    each = np.stack([part.probabilities for part in parts])  # (M, S, K)
    if parts[0].kind == "findings":
        each = np.stack([each, 1 - each], axis=-1)  # (M, S, F, 2)
    found = _entropy(np.einsum("m,m...->...", shares, each)) - np.einsum("m,m...->...", shares, _entropy(each))
    return np.maximum(0, found if found.ndim == 1 else found.max(axis=1))


def _entropy(probabilities: np.ndarray) -> np.ndarray:
    """Of the last axis, in nats."""
    return -np.sum(probabilities * np.log(np.maximum(probabilities, LEAST)), axis=-1)


def report_disagreement(predictions: Predictions) -> MemberDisagreement | None:
    """None without the column of an ensemble, and where all predictions are right, or all wrong."""
    try:
        spread = np.array([float(cell) for cell in predictions.columns[DISAGREEMENT]])
    except (KeyError, ValueError):
        return None
    wrong, units = predictions.predicted != known_labels(predictions), Units.of(predictions)
    if wrong.all() or not wrong.any() or not np.isfinite(spread).all():
        return None
    signs = {"disagreement": spread, "confidence": -predictions.confidence}
    areas = {name: of_auroc(class_areas(sign, wrong)[0], wrong, units) for name, sign in signs.items()}
    return MemberDisagreement(n=len(wrong), n_wrong=int(wrong.sum()), **areas)
