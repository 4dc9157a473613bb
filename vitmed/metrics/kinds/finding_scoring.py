"""Every number of `FINDING_METRICS` for predictions of findings, without intervals: fast enough for every epoch.

Unknown labels are left out everywhere. Letters: S images, F findings.
"""

from __future__ import annotations

import numpy as np

from vitmed.core.targets import UNKNOWN
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.metric_table import FINDING_METRICS
from vitmed.metrics.notes import FEWEST
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.ranking import ratio, weighted_areas
from vitmed.metrics.scoring import image_losses


def finding_values(predictions: FindingPredictions) -> dict[str, float]:
    """Every number of `FINDING_METRICS`; NaN where it is undefined. Raises DataError without labels."""
    labels, cells = known_labels(predictions), pooled(predictions)
    known, means, present = labels != UNKNOWN, in_means(predictions), labels == 1
    found = {name: float(value) for name, value in of_sums(summands(predictions).sum(axis=0), means).items()}
    areas = np.array([_areas(predictions.probabilities[own, f], present[own, f]) for f, own in enumerate(known.T)])
    for name, own in zip(("auroc", "average_precision"), areas.reshape(-1, 2).T, strict=True):
        found[name] = float(own[means].mean()) if means.any() else float("nan")
    found["auroc_micro"], found["average_precision_micro"] = _areas(cells.probabilities[:, 1], labels[known] == 1)
    return {name: found[name] for name in FINDING_METRICS}


def drawn_findings(predictions: FindingPredictions, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers by name, (R,) each, for image weights (R, S): those of `of_sums`, areas, and "auroc of <finding>".

    The latter of the findings of the means; where a resample lacks one of them, the mean is that of the others.
    """
    labels, means = known_labels(predictions), in_means(predictions)
    found = of_sums(weights @ summands(predictions), means)
    each: dict[str, list[np.ndarray]] = {"auroc": [], "average_precision": []}
    for f in np.flatnonzero(means):
        own = labels[:, f] != UNKNOWN
        areas = weighted_areas(predictions.probabilities[own, f], labels[own, f] == 1, weights[:, own])
        for name, area in zip(each, areas, strict=True):
            each[name].append(area)
        found[f"auroc of {predictions.classes[f]}"] = areas[0]
    for name, of_findings in each.items():
        values = np.array(of_findings).reshape(-1, len(weights))
        found[name] = ratio(np.nansum(values, axis=0), np.isfinite(values).sum(axis=0))
    return found


def summands(predictions: FindingPredictions) -> np.ndarray:
    """(S, 4 F + 6) float64: of each image what `of_sums` takes the sums of."""
    labels, called = known_labels(predictions), predictions.predicted
    known, present, absent = labels != UNKNOWN, labels == 1, labels == 0
    right, empty = images_right(labels, called), images_without(labels)
    rows, size = np.nonzero(known)[0], len(labels)
    losses = [np.bincount(rows, own, minlength=size) for own in image_losses(pooled(predictions))]
    counts = present & called, absent & called, present & ~called, absent & ~called
    return np.column_stack([*counts, right, known.any(axis=1), right & empty, empty, *losses]).astype(np.float64)


def of_sums(sums: np.ndarray, means: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers by name, (...) each, from the sums (..., 4 F + 6) of `summands`: all but areas under curves.

    Args:
        means: (F,) bool, the findings of the means.
    """
    counts, (right, images, clear, empty, log_loss, brier) = sums[..., :-6], np.moveaxis(sums[..., -6:], -1, 0)
    tp, fp, fn, tn = np.moveaxis(counts.reshape(*sums.shape[:-1], 4, -1), -2, 0)  # (..., F) each
    sensitivity, specificity = ratio(tp, tp + fn), ratio(tn, tn + fp)
    each = {
        "balanced_accuracy": (sensitivity + specificity) / 2,
        "sensitivity_macro": sensitivity,
        "specificity_macro": specificity,
        "ppv_macro": ratio(tp, tp + fp),
        "npv_macro": ratio(tn, tn + fn),
        "f1_macro": ratio(2 * tp, 2 * tp + fp + fn),
    }
    found = {name: ratio(values[..., means].sum(axis=-1), means.sum()) for name, values in each.items()}
    tp, fp, fn, tn = (count.sum(axis=-1) for count in (tp, fp, fn, tn))
    known = tp + fp + fn + tn
    both = np.where((tp + fn > 0) & (fp + tn > 0), 1.0, np.nan)  # else PPV and F1 do not depend on the model
    return found | {
        "sensitivity_micro": ratio(tp, tp + fn),
        "ppv_micro": both * ratio(tp, tp + fp),
        "f1_micro": both * ratio(2 * tp, 2 * tp + fp + fn),
        "hamming_loss": ratio(fp + fn, known),
        "log_loss": ratio(log_loss, known),
        "brier": ratio(brier, known),
        "subset_accuracy": ratio(right, images),
        "no_finding_specificity": ratio(clear, empty),
    }


def in_means(predictions: FindingPredictions) -> np.ndarray:
    """(F,) bool: the findings of the means over findings.

    At least `FEWEST` patients (or images, where patients are unknown) have the finding, and as many have an image
    without it. Where no finding has so many: those with an image of either kind.
    """
    least = fewer_holders(predictions)
    enough = least >= FEWEST
    return np.asarray(enough if enough.any() else least > 0)


def fewer_holders(predictions: FindingPredictions) -> np.ndarray:
    """(F,) how many patients (or images, where patients are unknown) have a finding, or have an image without it: the
    fewer of the two. Below `FEWEST`, little can be said of the finding."""
    labels, units = known_labels(predictions), predictions.units
    return np.minimum(_holders(labels == 1, units), _holders(labels == 0, units))


def pooled(predictions: FindingPredictions) -> Predictions:
    """All known labels of all findings, by image, as one prediction of two classes without groups.

    The micro means are the numbers of the second class.
    """
    labels = known_labels(predictions)
    known = labels != UNKNOWN
    chances, logits = predictions.probabilities[known], predictions.logits[known]
    return Predictions(
        classes=("absent", "present"),
        paths=("",) * len(logits),
        groups=None,
        labels=labels[known].astype(np.int64),
        logits=np.stack([np.zeros_like(logits), logits], axis=1),
        positive="present",
        calibrated=np.stack([1 - chances, chances], axis=1),
        decided=predictions.predicted[known].astype(np.int64),
    )


def images_right(labels: np.ndarray, called: np.ndarray) -> np.ndarray:
    """(S,) bool: any label is known, and each known one is right; labels and calls are (S, F)."""
    known = labels != UNKNOWN
    return np.asarray(known.any(axis=1) & ((called == labels) | ~known).all(axis=1))


def images_without(labels: np.ndarray) -> np.ndarray:
    """(S,) bool: any label is known, and each known one is absent."""
    return np.asarray((labels == 0).any(axis=1) & (labels != 1).all(axis=1))


def _areas(scores: np.ndarray, present: np.ndarray) -> tuple[float, float]:
    """AUROC and average precision of scores (S,)."""
    auroc, precision = weighted_areas(scores, present, np.ones((1, len(scores))))
    return float(auroc[0]), float(precision[0])


def _holders(images: np.ndarray, units: np.ndarray) -> np.ndarray:
    """(F,) how many units, (S,), have one of the images, (S, F) bool."""
    count, size = int(units.max(initial=-1)) + 1, images.shape[1]
    rows, columns = np.nonzero(images)
    held = np.bincount(units[rows] * size + columns, minlength=count * size)
    return np.asarray((held.reshape(count, size) > 0).sum(axis=0))
