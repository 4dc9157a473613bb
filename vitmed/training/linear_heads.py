"""Linear models of features: the heads of frozen networks, and of baselines. Every setting is chosen on validation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from vitmed.core.base_models import UNKNOWN
from vitmed.data.thread_batches import Progress

C_VALUES = tuple(10.0**exponent for exponent in range(-5, 3))  # inverse penalties, from strong to weak regularisation
NEIGHBOURS = (1, 3, 5, 10, 20, 50, 100)
LEAST = 1e-3  # probability of a class that no neighbour has
Part = tuple[np.ndarray, np.ndarray]  # features (S, D) and targets
Neighbours = tuple[int, Callable[[np.ndarray], np.ndarray]]  # k, and features (S, D) -> logits (S, K)


@dataclass(frozen=True)
class LinearHead:
    """Logits = features @ weight.T + bias.

    Attributes:
        weight: (K, D) float32; bias: (K,) float32.
        C: inverse strength of the L2 penalty, chosen on validation (scikit-learn's C, on standardised features); None
            where each finding has its own.
        val_loss: loss on validation: log loss in nats, or the mean absolute error of a standardised number.
    """

    weight: np.ndarray
    bias: np.ndarray
    C: float | None
    val_loss: float

    def logits(self, features: np.ndarray) -> np.ndarray:
        """(S, D) -> (S, K) float32."""
        return (features @ self.weight.T + self.bias).astype(np.float32)

    def state(self) -> dict[str, torch.Tensor]:
        return {"head.weight": torch.from_numpy(self.weight), "head.bias": torch.from_numpy(self.bias)}


def fit_head(train: Part, val: Part, classes: int, progress: Progress | None = None) -> LinearHead:
    """Multinomial logistic regression with the L2 penalty that has the lowest log loss on validation.

    Args:
        train, val: features (S, D) and labels (S,); both contain every class.
        classes: K.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    mean, std = train[0].mean(axis=0, dtype=np.float64), train[0].std(axis=0, dtype=np.float64)
    std = np.where(std > 1e-6 * (1 + np.abs(mean)), std, 1)  # a constant feature carries no information
    x, x_val = ((part[0] - mean) / std for part in (train, val))
    model = LogisticRegression(warm_start=True, max_iter=500, tol=1e-6)  # each fit starts from the one before

    def fit(C: float) -> tuple[float, Part]:
        model.C = C
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a penalty too weak to converge is not chosen anyway
            model.fit(x, train[1])
        loss = float(log_loss(val[1], model.predict_proba(x_val), labels=np.arange(classes)))
        return loss, (model.coef_.astype(np.float64), model.intercept_.astype(np.float64))

    loss, C, (weight, bias) = _best_penalty(fit, progress)
    if classes == 2:  # scikit-learn keeps the difference of two logits
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    weight = weight / std
    return LinearHead(weight.astype(np.float32), (bias - weight @ mean).astype(np.float32), C, loss)


def fit_finding_head(train: Part, val: Part, findings: int, progress: Progress | None = None) -> LinearHead:
    """`fit_head` for each finding, on the images whose label is known.

    Args:
        train, val: features (S, D) and labels (S, F): 1, 0 or `UNKNOWN`.
        findings: F.
    """
    weights, biases, losses = [], [], []
    for f in range(findings):
        (x, y), labelled = (_labelled(part, f) for part in (train, val))
        if len(np.unique(y)) < 2:  # nothing to tell apart: the share in training
            share = (y.sum() + 0.5) / (len(y) + 1)
            weights.append(np.zeros(train[0].shape[1], np.float32))
            biases.append(float(np.log(share / (1 - share))))
        else:
            head = fit_head((x, y), labelled if len(labelled[1]) else (x, y), 2)
            weights.append(head.weight[1] - head.weight[0])
            biases.append(float(head.bias[1] - head.bias[0]))
            losses.append(head.val_loss)
        if progress is not None:
            progress(f + 1, findings)
    loss = float(np.mean(losses)) if losses else float("nan")
    return LinearHead(np.stack(weights), np.array(biases, np.float32), None, loss)


def _labelled(part: Part, f: int) -> Part:
    """Features and labels (S,) int64 of the images whose label of a finding is known."""
    rows = part[1][:, f] != UNKNOWN
    return part[0][rows], part[1][rows, f].astype(np.int64)


def fit_number_head(train: Part, val: Part, outputs: int, progress: Progress | None = None) -> LinearHead:
    """Ridge regression with the penalty of the lowest mean absolute error on validation, which is also its one scale.

    Args:
        train, val: features (S, D) and standardised numbers (S,).
        outputs: 2, location and log scale.
    """
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(train[0].astype(np.float64))
    x, x_val = (scaler.transform(part[0].astype(np.float64)) for part in (train, val))

    def fit(C: float) -> tuple[float, Part]:
        model = Ridge(alpha=1 / C).fit(x, train[1])
        return float(np.abs(model.predict(x_val) - val[1]).mean()), (model.coef_, model.intercept_)

    error, C, (weight, bias) = _best_penalty(fit, progress)
    weight = weight / scaler.scale_
    rows = np.stack([weight, np.zeros_like(weight)]).astype(np.float32)
    location_and_scale = [bias - weight @ scaler.mean_, np.log(max(error, 1e-6))]
    return LinearHead(rows, np.array(location_and_scale, np.float32), C, error)


def _best_penalty(fit: Callable[[float], tuple[float, Part]], progress: Progress | None) -> tuple[float, float, Part]:
    """The lowest loss on validation, its C, and weights and bias; `fit` returns loss, weights and bias for a C."""
    best: tuple[float, float, Part] | None = None
    for done, C in enumerate(C_VALUES, 1):
        loss, found = fit(C)
        if best is None or loss < best[0]:
            best = loss, C, found
        if progress is not None:
            progress(done, len(C_VALUES))
    assert best is not None
    return best


def fit_neighbours(train: Part, val: Part, classes: int) -> Neighbours:
    """k nearest neighbours by cosine, weighted by similarity, with the k of the lowest log loss on validation.

    Returns:
        k, and a function from features (S, D) to logits (S, K): logarithms of each class's share, at least LEAST.
    """

    def answer(targets: np.ndarray, weight: np.ndarray) -> np.ndarray:
        votes = np.stack([(weight * (targets == c)).sum(axis=1) for c in range(classes)], axis=1)
        return np.log(np.maximum(votes / votes.sum(axis=1, keepdims=True), LEAST))

    def loss(logits: np.ndarray, targets: np.ndarray) -> float:
        chances = np.exp(logits)
        return float(-np.log(chances[np.arange(len(targets)), targets] / chances.sum(axis=1)).mean())

    return _nearest(train, val, answer, loss)[:2]


def fit_finding_neighbours(train: Part, val: Part, findings: int) -> Neighbours:
    """As `fit_neighbours`, with one k for all findings; neighbours whose label is unknown do not vote.

    Returns:
        k, and a function from features (S, D) to logits (S, F), the log odds of each finding's share of the votes, at
        least LEAST; where no neighbour has a vote, those of the share in training.
    """
    share = (train[1] == 1).sum(axis=0) / np.maximum((train[1] != UNKNOWN).sum(axis=0), 1)  # (F,)

    def answer(targets: np.ndarray, weight: np.ndarray) -> np.ndarray:  # (S, k, F), (S, k)
        votes, yes = ((weight[..., None] * part).sum(axis=1) for part in (targets != UNKNOWN, targets == 1))
        chances = np.clip(np.where(votes > 0, yes / np.where(votes > 0, votes, 1), share), LEAST, 1 - LEAST)
        return np.log(chances) - np.log1p(-chances)

    def loss(logits: np.ndarray, targets: np.ndarray) -> float:
        right = np.where(targets == 1, logits, -logits)[targets != UNKNOWN]
        return float(np.logaddexp(0, -right).mean()) if len(right) else 0.0

    return _nearest(train, val, answer, loss)[:2]


def fit_number_neighbours(train: Part, val: Part, outputs: int) -> Neighbours:
    """As `fit_neighbours`, of standardised numbers: their weighted mean, with the k of the lowest mean absolute error.

    Returns:
        k, and a function from features (S, D) to (S, 2): location, and the log of that error as the one scale.
    """
    mean = lambda targets, weight: ((weight * targets).sum(axis=1) / weight.sum(axis=1))[:, None]  # noqa: E731
    k, near, error = _nearest(train, val, mean, lambda found, targets: float(np.abs(found[:, 0] - targets).mean()))
    scale = np.float32(np.log(max(error, 1e-6)))
    return k, lambda features: np.concatenate([near(features), np.full((len(features), 1), scale)], axis=1)


def _nearest(
    train: Part, val: Part, answer: Callable[..., np.ndarray], loss: Callable[[np.ndarray, np.ndarray], float]
) -> tuple[int, Callable[[np.ndarray], np.ndarray], float]:
    """k of the lowest loss on validation, what `answer` finds for features (S, D), and that loss.

    Args:
        answer: targets (S, k, ...) of the neighbours and their weights (S, k) -> (S, K).
    """
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(metric="cosine", algorithm="brute").fit(train[0])

    def found(features: np.ndarray, k: int) -> np.ndarray:
        distance, rows = index.kneighbors(features, n_neighbors=k)  # (S, k) each
        weight = 1 / (distance + 1e-3)  # bounds the weight of an identical image at 1000
        return answer(train[1][rows], weight).astype(np.float32)

    losses = {k: loss(found(val[0], k), val[1]) for k in NEIGHBOURS if k <= len(train[1])}
    best = min(losses, key=losses.__getitem__)
    return best, lambda features: found(features, best), losses[best]
