"""Every number of `METRICS` for one set of predictions, at once for many resamples.

One implementation serves the point estimate and the bootstrap: every value is computed from image weights
(R, S), where R is the number of resamples. The point estimate is one row of ones; a resample holds how often
each image was drawn. A value that cannot be computed is NaN (null in JSON, with the reason beside it).

Letters: S images, K classes, R resamples, P images of one class.
"""

from __future__ import annotations

import numpy as np

from vitmed.errors import DataError
from vitmed.metrics.naming import finding
from vitmed.metrics.ranking import Ranking, ratio
from vitmed.predictions import Predictions


def metric_values(predictions: Predictions) -> dict[str, float]:
    """Every number of `METRICS`, without intervals; NaN where it is undefined. Milliseconds for 5,000 images.

    Raises:
        DataError: the predictions have no labels.
    """
    labels = known_labels(predictions)
    overall, _, _ = Scorer(labels, predictions).values(np.ones((1, len(labels))))
    return {name: float(values[0]) for name, values in overall.items()}


def known_labels(predictions: Predictions) -> np.ndarray:
    """(S,) int64, the true classes. Raises DataError where they are unknown."""
    if predictions.labels is None:
        raise DataError(
            "these predictions have no labels, so nothing can be measured", "evaluate images in class folders"
        )
    return predictions.labels


class Scorer:
    """Everything about one set of predictions that does not depend on the weights, computed once."""

    def __init__(self, labels: np.ndarray, predictions: Predictions):
        probabilities, predicted = predictions.probabilities, predictions.predicted
        self.size = k = len(predictions.classes)
        self.positive = finding(predictions)
        cells = labels * k + predicted
        self.order = np.argsort(cells, kind="stable")
        self.cells, self.starts = np.unique(cells[self.order], return_index=True)
        truth = np.eye(k)[labels]  # (S, K)
        present = (np.bincount(labels, minlength=k) > 0).astype(float)
        self.even = ratio(present, present.sum())  # (K,) weights of a plain mean over the classes with images
        tiny = np.finfo(np.float64).eps  # as scikit-learn: a certain error costs 36, not infinity
        log_loss = -np.log(np.clip(probabilities[np.arange(len(labels)), labels], tiny, 1 - tiny))
        squares = (probabilities - truth) ** 2
        brier = squares.sum(axis=1) if self.positive is None else squares[:, self.positive]
        self.losses = np.stack([log_loss, brier], axis=1)  # (S, 2)
        self.rankings = [Ranking(probabilities[:, c], labels == c) for c in range(k)]

    def values(self, weights: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
        """All numbers for image weights (R, S).

        Returns:
            overall: name -> (R,); per class: name -> (R, K); confusion matrix (R, K, K), rows are the truth.
        """
        r, k = len(weights), self.size
        cells = np.zeros((r, k * k))
        if len(self.cells):
            cells[:, self.cells] = np.add.reduceat(weights.take(self.order, axis=1), self.starts, axis=1)
        matrix = cells.reshape(r, k, k)
        total = matrix.sum(axis=(1, 2))  # (R,)
        support, called = matrix.sum(axis=2), matrix.sum(axis=1)  # (R, K): truly and predicted of the class
        tp = np.diagonal(matrix, axis1=1, axis2=2)  # (R, K)
        others, elsewhere = total[:, None] - support, total[:, None] - called
        tn = others - called + tp
        ranks = [ranking.scores(weights) for ranking in self.rankings]
        per_class = {
            "sensitivity": ratio(tp, support),
            "specificity": ratio(tn, others),
            "ppv": ratio(tp, called),
            "npv": ratio(tn, elsewhere),
            "f1": ratio(2 * tp, support + called),
            "auroc": np.stack([auroc for auroc, _ in ranks], axis=1),
            "average_precision": np.stack([precision for _, precision in ranks], axis=1),
        }
        # Averages leave out a class without images. One that has images and no value makes them undefined: a
        # class that is never predicted has no PPV, and leaving it out would reward ignoring it.
        share = ratio(support, total[:, None])
        # So is a resample that happens to have none of a class: its mean over the others is another quantity.

        def mean(name: str, weight: np.ndarray) -> np.ndarray:
            return np.where(weight == 0, 0, weight * per_class[name]).sum(axis=1)

        losses = ratio(weights @ self.losses, total[:, None])  # (R, 2)
        right = tp.sum(axis=1)
        chance = (support * called).sum(axis=1)  # total^2 x agreement by chance
        varied_truth = total**2 - (support**2).sum(axis=1)
        varied_calls = total**2 - (called**2).sum(axis=1)
        # Gorodkin, Comput. Biol. Chem. 28 (2004) 367. A constant prediction has covariance 0: MCC is 0, its limit.
        mcc = ratio(
            right * total - chance, np.sqrt(varied_truth) * np.sqrt(np.where(varied_calls > 0, varied_calls, 1))
        )
        overall = {
            "accuracy": ratio(right, total),
            "balanced_accuracy": mean("sensitivity", self.even),
            "mcc": np.where(varied_truth > 0, mcc, np.nan),
            "cohen_kappa": ratio(right * total - chance, total**2 - chance),
            "log_loss": losses[:, 0],
            "brier": losses[:, 1],
        }
        for name in ("auroc", "average_precision"):
            overall[name] = mean(name, self.even) if self.positive is None else per_class[name][:, self.positive]
            overall[f"{name}_weighted"] = mean(name, share)
        for name in ("sensitivity", "specificity", "ppv", "npv", "f1"):
            overall[f"{name}_macro"] = mean(name, self.even)
            overall[f"{name}_weighted"] = mean(name, share)
        return overall, per_class, matrix
