"""How the model does on each patient: the spread over patients, the worst of them, and how far errors come in heaps."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitmed.metrics.positive_class import positive_index
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.resampling import group_index
from vitmed.metrics.scoring import known_labels

ENOUGH = 5  # images of a kind that a patient needs for a share to say anything
WORST = 10  # patients that are told
HEAP = 5  # "the worst five patients hold ... of the errors"
SHUFFLES = 200


def shares(predictions: Predictions) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name -> images (P,) and right ones among them (P,), int64, per patient by first appearance.

    Of two classes sensitivity and specificity of the positive one, and accuracy; of more, accuracy.

    Raises:
        DataError: the predictions have no labels.
    """
    labels, units = known_labels(predictions), group_index(predictions.groups, len(predictions))
    size = int(units.max()) + 1 if len(units) else 0
    right = predictions.predicted == labels
    positive = positive_index(predictions)
    kinds = {"accuracy": np.ones(len(labels), bool)}
    if positive is not None:
        kinds |= {"sensitivity": labels == positive, "specificity": labels != positive}
    return {
        name: (np.bincount(units[own], minlength=size), np.bincount(units[own & right], minlength=size))
        for name, own in kinds.items()
    }


def outside(images: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(P,) bool: whom chance would hardly give, if all patients were alike: in a tail of 2.5 % of the binomial.

    The limits of a funnel plot (Spiegelhalter, Stat. Med. 24 (2005) 1185), exact instead of approximate.
    """
    from scipy.stats import binom  # here: predict must start without it

    overall = right.sum() / max(1, images.sum())
    low, high = binom.cdf(right, images, overall) < 0.025, binom.sf(right - 1, images, overall) < 0.025
    return (low | high) & (images > 0)


def per_patient(predictions: Predictions) -> dict[str, Any] | None:
    """The spread of the numbers over patients, and how the errors are shared out among them.

    Returns:
        A dict for JSON, None where patients are unknown. n_patients; reason, where there is nothing more; spread
        {name: {n, min, q1, median, q3, max, outside, expected_outside, overall}} over the patients with at least
        `ENOUGH` images of the kind, or {n, reason}; worst [{patient, n, errors, accuracy}], most errors first;
        errors; heap {patients, share, images, by_chance}: which share of the errors the worst `HEAP` patients hold,
        of how many of the images, and what it would be if errors fell on images at random.
    """
    if predictions.groups is None or not len(predictions):
        return None
    kinds = shares(predictions)
    images, right = kinds["accuracy"]
    errors = images - right
    total, size = int(errors.sum()), len(images)
    result: dict[str, Any] = {"n_patients": size, "errors": total, "enough": ENOUGH}
    if size == 1:
        return {**result, "reason": "there is one patient"}
    if images.max() == 1:
        return {**result, "reason": "each patient has one image"}
    result["spread"] = {name: _spread(*kinds[name]) for name in kinds}
    ranked = np.lexsort([images, -errors])  # of as many errors, first who has fewer images
    worst = [int(i) for i in ranked[:WORST] if errors[i]]
    result["worst"] = [
        {"patient": i + 1, "n": int(images[i]), "errors": int(errors[i]), "accuracy": float(right[i] / images[i])}
        for i in worst
    ]
    heap = min(HEAP, size)
    if total and size > HEAP:
        rng = np.random.default_rng(0)
        drawn = rng.multivariate_hypergeometric(images, total, size=SHUFFLES, method="marginals")
        by_chance = np.sort(drawn, axis=1)[:, -heap:].sum(axis=1) / total
        result["heap"] = {
            "patients": heap,
            "share": float(errors[ranked[:heap]].sum() / total),
            "images": float(images[ranked[:heap]].sum() / images.sum()),
            "by_chance": float(by_chance.mean()),
        }
    return result


def _spread(images: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """Quartiles of the share over the patients who have enough images of the kind."""
    enough = images >= ENOUGH
    n = int(enough.sum())
    if n < 2:
        return {"n": n, "reason": f"fewer than two patients have {ENOUGH} such images"}
    values = np.quantile(right[enough] / images[enough], [0, 0.25, 0.5, 0.75, 1])
    return {
        "n": n,
        **dict(zip(("min", "q1", "median", "q3", "max"), map(float, values), strict=True)),
        "outside": int(outside(images[enough], right[enough]).sum()),
        "overall": float(right.sum() / images.sum()),
    }
