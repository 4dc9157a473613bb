"""Every number of `METRICS` for one set of predictions, at once for many resamples.

One implementation serves the point estimate and the bootstrap: every value is computed from image weights
(R, S), where R is the number of resamples. The point estimate is one row of ones; a resample holds how often
each image was drawn. A value that cannot be computed is NaN (null in JSON, with the reason beside it).

Letters: S images, K classes, R resamples, P images of one class.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vitmed.metrics.areas import weighted_areas
from vitmed.metrics.intervals import ratio
from vitmed.metrics.metric_table import METRICS, PER_CLASS
from vitmed.metrics.predictions import Predictions, known_labels, positive_index


def metric_values(predictions: Predictions) -> dict[str, float]:
    """Every number of `METRICS`, without intervals; NaN where it is undefined. Milliseconds for 5,000 images.

    Raises:
        DataError: the predictions have no labels.
    """
    labels = known_labels(predictions)
    overall, _ = Scorer(labels, predictions).values(np.ones((1, len(labels))))
    return {name: float(values[0]) for name, values in overall.items()}


def image_losses(predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """-ln of the probability of the label, and the squared error as in the Brier score, of each image: (S,) twice.

    Raises:
        DataError: the predictions have no labels.
    """
    labels, chances = known_labels(predictions), predictions.probabilities
    tiny = np.finfo(np.float64).eps  # as scikit-learn: a certain error costs 36, not infinity
    given = chances[np.arange(len(labels)), labels]
    many = (chances**2).sum(axis=1) - 2 * given + 1  # sum over classes of (probability - truth)^2
    brier = many if positive_index(predictions) is None else (1 - given) ** 2
    return -np.log(np.clip(given, tiny, 1 - tiny)), brier


class Scorer:
    """Everything about one set of predictions that does not depend on the weights, computed once."""

    def __init__(self, labels: np.ndarray, predictions: Predictions):
        self.labels, self.predicted, self.probabilities = labels, predictions.predicted, predictions.probabilities
        self.size = k = len(predictions.classes)
        self.positive = positive_index(predictions)
        # The cells of the confusion matrix that hold an image, (C,), and which of them holds each image, (S,).
        self.cells, self.cell = np.unique(labels * k + self.predicted, return_inverse=True)
        self.present = np.bincount(labels, minlength=k) > 0
        self.even = np.full(k, 1 / k)  # (K,) weights of a plain mean
        self.losses = np.stack(image_losses(predictions), axis=1)  # (S, 2)

    def values(self, weights: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """All numbers for image weights (R, S): overall, name -> (R,), and of each class, name -> (R, K)."""
        overall, per_class = self.counted(weights)
        truths = [self.labels == c for c in range(self.size)]
        areas = [weighted_areas(self.probabilities[:, c], truth, weights) for c, truth in enumerate(truths)]
        share = np.stack([weights @ truth for truth in truths], axis=1)
        share = ratio(share, share.sum(axis=1, keepdims=True))
        for name, of_classes in zip(("auroc", "average_precision"), zip(*areas, strict=True), strict=True):
            values = per_class[name] = np.stack(of_classes, axis=1)
            overall[name] = mean(values, self.even) if self.positive is None else values[:, self.positive]
            overall[f"{name}_weighted"] = mean(values, share)
        return {name: overall[name] for name in METRICS}, {name: per_class[name] for name in PER_CLASS}

    def counted(self, weights: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """As `values`, without AUROC and average precision, which take most of the time."""
        return self._numbers(_grouped(weights, self.cell, len(self.cells)), weights @ self.losses)

    def summed(self, units: np.ndarray) -> Callable[[np.ndarray], tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """`counted` for weights of whole units, (R, G), units being the number (S,) of each image's: much faster."""
        count = int(units.max()) + 1
        held = np.bincount(units * len(self.cells) + self.cell, minlength=count * len(self.cells))
        held = held.reshape(count, -1).astype(np.float64)  # (G, C)
        losses = np.stack([np.bincount(units, column, minlength=count) for column in self.losses.T], axis=1)
        return lambda weights: self._numbers(weights @ held, weights @ losses)

    def correlation_influence(self) -> dict[str, np.ndarray]:
        """The influence (S,) of each image on MCC and kappa: their derivatives by its weight, which sum to 0."""
        k, n, t, c = self.size, float(len(self.labels)), self.labels, self.predicted
        support, called = (np.bincount(of, minlength=k).astype(np.float64) for of in (t, c))
        hits = float((t == c).sum())
        varied_truth, varied_calls, left = n**2 - support @ support, n**2 - called @ called, n**2 - support @ called
        above = hits * n - support @ called  # chance
        moved_chance = called[t] + support[c]
        moved = (t == c) * n + hits - moved_chance
        mcc = ratio(above, np.sqrt(varied_truth * varied_calls))
        both = ratio(n - support[t], varied_truth) + ratio(n - called[c], varied_calls)
        kappa = ratio(moved - ratio(above, left) * (2 * n - moved_chance), left)
        return {"mcc": ratio(moved, np.sqrt(varied_truth * varied_calls)) - mcc * both, "cohen_kappa": kappa}

    def _numbers(self, cells: np.ndarray, lost: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Of the images in each cell of the confusion matrix that is in use, (R, C), and the summed losses, (R, 2)."""
        r, k = len(cells), self.size
        support = _grouped(cells, self.cells // k, k)  # (R, K) truly of the class
        called = _grouped(cells, self.cells % k, k)  # (R, K) predicted as it
        tp, right = np.zeros((r, k)), self.cells // k == self.cells % k
        tp[:, self.cells[right] % k] = cells[:, right]
        total = cells.sum(axis=1)  # (R,)
        others, elsewhere = total[:, None] - support, total[:, None] - called
        tn = others - called + tp
        both = (support > 0) & (others > 0)  # else PPV, NPV and F1 do not depend on the model
        per_class = {
            "sensitivity": ratio(tp, support),
            "specificity": ratio(tn, others),
            "ppv": np.where(both, ratio(tp, called), np.nan),
            "npv": np.where(both, ratio(tn, elsewhere), np.nan),
            "f1": np.where(both, ratio(2 * tp, support + called), np.nan),
        }
        # A class without a value makes plain means undefined: the mean over the others is another quantity. That is a
        # class without images, also in a resample, and one that is never predicted, which would reward ignoring it.
        share = ratio(support, total[:, None])
        losses = ratio(lost, total[:, None])  # (R, 2)
        hits = tp.sum(axis=1)
        chance = (support * called).sum(axis=1)  # total^2 x agreement by chance
        varied_truth = total**2 - (support**2).sum(axis=1)
        varied_calls = total**2 - (called**2).sum(axis=1)
        # Gorodkin, Comput. Biol. Chem. 28 (2004) 367. A constant prediction has covariance 0: MCC is 0, its limit.
        mcc = ratio(hits * total - chance, np.sqrt(varied_truth) * np.sqrt(np.where(varied_calls > 0, varied_calls, 1)))
        overall = {
            "accuracy": ratio(hits, total),
            "balanced_accuracy": mean(per_class["sensitivity"], self.even),
            "mcc": np.where(varied_truth > 0, mcc, np.nan),
            "cohen_kappa": np.where(varied_truth > 0, ratio(hits * total - chance, total**2 - chance), np.nan),
            "log_loss": losses[:, 0],
            "brier": losses[:, 1],
        }
        for name, values in per_class.items():
            overall[f"{name}_macro"] = mean(values, self.even)
            overall[f"{name}_weighted"] = mean(values, share)
        return overall, per_class


def mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(R,) weighted sums of values (R, K); what has weight 0 is left out even where it is NaN."""
    return np.where(weights == 0, 0, weights * values).sum(axis=1)


def _grouped(values: np.ndarray, kinds: np.ndarray, k: int) -> np.ndarray:
    """(R, K) sums over those of the values (R, N) that are of each kind, (N,) int64, 0..K-1."""
    sums, order = np.zeros((len(values), k)), np.argsort(kinds, kind="stable")
    there, starts = np.unique(kinds[order], return_index=True)
    if len(there):
        sums[:, there] = np.add.reduceat(values.take(order, axis=1), starts, axis=1)
    return sums
