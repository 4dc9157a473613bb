"""Every number of a set of predictions with its interval, and of two sets their difference."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitmed.errors import DataError
from vitmed.metrics.notes import notes, undefined
from vitmed.metrics.resampling import bootstrap_weights, group_index, percentile_interval
from vitmed.metrics.scoring import Scorer, known_labels
from vitmed.predictions import Predictions


def evaluate_predictions(
    predictions: Predictions, resamples: int = 2000, seed: int = 0, level: float = 0.95
) -> dict[str, Any]:
    """Every number with its percentile bootstrap interval; whole groups are drawn where groups are known.

    Args:
        predictions: with labels.
        resamples: how many times to draw.
        seed: of the draws.
        level: share of the resamples that lies inside an interval, 0..1.

    Returns:
        A dict that JSON can hold (no NaN): n, n_groups (None if unknown), resampling ("by patient" or
        "by image"), resamples, level, classes, positive_class (its name; None unless there are two classes),
        overall {name: {value, low, high}}, per_class {class: {n, name: {value, low, high}}},
        confusion_matrix (K x K counts, rows are the truth), undefined {name: reason}, notes [sentence].

    Raises:
        DataError: the predictions have no labels.
    """
    labels, classes = known_labels(predictions), predictions.classes
    scorer = Scorer(labels, predictions)
    point, point_classes, confusion = scorer.values(np.ones((1, len(labels))))
    units = group_index(predictions.groups, len(labels))
    n_units = int(units.max()) + 1 if len(units) else 0

    draws: dict[str, list[np.ndarray]] = {name: [] for name in point}
    draws_classes: dict[str, list[np.ndarray]] = {name: [] for name in point_classes}
    if n_units > 1:
        for weights in bootstrap_weights(units, resamples, seed):
            overall, per_class, _ = scorer.values(weights)
            for name, values in overall.items():
                draws[name].append(values)
            for name, values in per_class.items():
                draws_classes[name].append(values)

    def entry(value: float, drawn: list[np.ndarray]) -> dict[str, float | None]:
        return _entry(value, np.concatenate(drawn) if drawn else np.empty(0), level)

    grouped = predictions.groups is not None
    support = confusion[0].sum(axis=1)
    result: dict[str, Any] = {
        "n": len(labels),
        "n_groups": n_units if grouped else None,
        "resampling": "by patient" if grouped else "by image",
        "resamples": resamples,
        "level": level,
        "classes": list(classes),
        "positive_class": None if scorer.positive is None else classes[scorer.positive],
        "overall": {name: entry(float(values[0]), draws[name]) for name, values in point.items()},
        "per_class": {
            c: {
                "n": int(support[k]),
                **{m: entry(v[0, k], [d[:, k] for d in draws_classes[m]]) for m, v in point_classes.items()},
            }
            for k, c in enumerate(classes)
        },
        "confusion_matrix": confusion[0].astype(int).tolist(),
    }
    result["undefined"] = undefined(result)
    result["notes"] = notes(result, labels, units, predictions.groups)
    return result


def compare_predictions(
    predictions: Predictions, other: Predictions, resamples: int = 2000, seed: int = 0, level: float = 0.95
) -> dict[str, Any]:
    """Two models on the same images: the numbers of the other, and by how much the first is above it.

    Both are judged in the same resamples (paired bootstrap), so the interval of a difference is that of the
    difference, narrower than those of the two numbers suggest.

    Returns:
        overall {name: {value, low, high}} of `other`, and difference {name: {value, low, high}}, first - other.

    Raises:
        DataError: not the same images, labels or classes in the same order; or no labels.
    """
    labels = known_labels(predictions)
    if predictions.paths != other.paths or predictions.classes != other.classes:
        raise DataError("the two predictions are not of the same images and classes", "predict the same images")
    if not np.array_equal(labels, known_labels(other)):
        raise DataError("the two predictions have different labels for the same images", "predict the same images")
    scorers = [Scorer(labels, predictions), Scorer(labels, other)]
    units = group_index(predictions.groups, len(labels))
    whole = [scorer.values(np.ones((1, len(labels))))[0] for scorer in scorers]
    draws: list[list[dict[str, np.ndarray]]] = [[], []]
    if len(labels) and units.max() > 0:
        for weights in bootstrap_weights(units, resamples, seed):
            for scorer, drawn in zip(scorers, draws, strict=True):
                drawn.append(scorer.values(weights)[0])
    result: dict[str, Any] = {"overall": {}, "difference": {}}
    for name in whole[0]:
        first, second = (np.concatenate([d[name] for d in drawn]) if drawn else np.empty(0) for drawn in draws)
        values = float(whole[0][name][0]), float(whole[1][name][0])
        result["overall"][name] = _entry(values[1], second, level)
        result["difference"][name] = _entry(values[0] - values[1], first - second, level)
    return result


def _entry(value: float, drawn: np.ndarray, level: float) -> dict[str, float | None]:
    """A number and its interval, for JSON; null where it is undefined."""
    low, high = percentile_interval(drawn, level)
    defined = np.isfinite(value)
    return {"value": _json(value), "low": _json(low) if defined else None, "high": _json(high) if defined else None}


def _json(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
