"""Numbers of one class against the rest over all thresholds: AUROC and average precision."""

from __future__ import annotations

import numpy as np


def threshold_counts(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many positives and negatives score at least t, for every distinct score t from high to low: (T + 1,)
    int64 each, opened by 0. Scores and positive images are (S,)."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)[: len(scores)]  # the last image of each tie
    hits = np.cumsum(positive[order])[last]
    seen = np.flatnonzero(last) + 1
    return np.concatenate([[0], hits]), np.concatenate([[0], seen - hits])


def weighted_areas(scores: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AUROC and average precision, (R,) each, of scores (S,) and positive images, (S,) bool, for weights (R, S).

    AUROC is the share of (positive, negative) pairs in the right order, a tie counting half (Mann-Whitney).
    Average precision is the sum of precision x step of recall over distinct scores, without interpolation.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, hit = -scores[order], positive[order]
    # Of the P positives: images that score higher, and those that score as high or higher; then the positives of them.
    above, to = (np.searchsorted(ranked, ranked[hit], side) for side in ("left", "right"))
    hits_above, hits_to = (np.append(0, np.cumsum(hit))[place] for place in (above, to))
    w = weights.take(order[hit], axis=1)  # (R, P)
    every, hits = running(weights.take(order, axis=1)), running(w)  # (R, S + 1), (R, P + 1)
    positives, negatives = hits[:, -1], every[:, -1] - hits[:, -1]
    every_to, right = every.take(to, axis=1), hits.take(hits_to, axis=1)
    misses = every_to - right + every.take(above, axis=1) - hits.take(hits_above, axis=1)
    auroc = ratio(np.einsum("rp,rp->r", w, negatives[:, None] - misses / 2), positives * negatives)
    precision = np.divide(right, every_to, out=np.zeros_like(every_to), where=every_to > 0)
    average = ratio(np.einsum("rp,rp->r", w, precision), positives)
    return auroc, np.where(negatives > 0, average, np.nan)  # without a negative it is 1 whatever the scores


def rank_auroc(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """AUROC of scores (S, K), the mean of each class against the rest, for image weights (R, S): (R,).

    A class without images in a resample makes it undefined there: NaN. Of two classes both give the same.
    """
    classes = range(1, 2) if scores.shape[1] == 2 else range(scores.shape[1])
    return np.mean([weighted_areas(scores[:, c], labels == c, weights)[0] for c in classes], axis=0)


def running(values: np.ndarray) -> np.ndarray:
    """Running sums along the rows, opened by 0: (R, N) -> (R, N + 1)."""
    sums = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


def ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """top / bottom, NaN where bottom is not above 0."""
    top, bottom = np.broadcast_arrays(top, bottom)
    return np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)
