"""How unlike the training images an image is: the Mahalanobis distance of its features (Lee et al., NeurIPS 2018,
arXiv 1807.03888, without the noise and the layers): the least over the classes, one covariance for all.

On malaria cells, CIFAR-10 and MNIST it told other images apart as well as the nearest neighbour in the same features,
or better, and needs a tenth of the room; see docs/decisions.md. A known image is one like those of training; that is
not one that the model gets right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitmed.core.config import EvaluateConfig
from vitmed.core.frozen import Frozen
from vitmed.metrics.area_intervals import pulled_areas
from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.estimates import Estimate, of_share
from vitmed.metrics.evaluation import of_auroc
from vitmed.metrics.intervals import Units, share
from vitmed.metrics.predictions import UNFAMILIARITY, Predictions
from vitmed.metrics.resampling import group_index

QUANTILE = 0.99  # of validation: above it an image is called unlike the training ones
FEWEST = 20  # training images
MOST_CLASSES = 100  # with a mean of their own; of more there is one mean for all
MOST_FITTED = 2000  # training images that are looked at


@dataclass(frozen=True)
class Familiarity:
    """Where the features of the training images lie.

    Attributes:
        means: (M, D) float32, of each class.
        precision: (D (D + 1) / 2,) float32, the lower triangle of the inverse covariance.
        scale: distance (squared) of the validation quantile; a score of 1 lies there.
        n: training images that it was fitted on.
    """

    means: np.ndarray
    precision: np.ndarray
    scale: float
    n: int

    def score(self, features: np.ndarray) -> np.ndarray:
        """(S, D) -> (S,) float32: distance / the 99th percentile of validation; above 1 is unlike."""
        width = self.means.shape[1]
        full = np.zeros((width, width))
        full[np.tril_indices(width)] = self.precision
        full = full + np.tril(full, -1).T
        x = features.astype(np.float64)
        moved = x @ full  # (S, D)
        own = np.einsum("sd,sd->s", moved, x)[:, None]
        across = -2 * moved @ self.means.T.astype(np.float64)
        centre = np.einsum("md,de,me->m", self.means, full, self.means)
        squared = np.maximum((own + across + centre).min(axis=1), 0)
        return np.sqrt(squared / self.scale).astype(np.float32)


def fit_familiarity(train: np.ndarray, labels: np.ndarray, validation: np.ndarray) -> Familiarity | None:
    """From features (S, D) of training images with labels (S,), and of validation (V, D). None of too few images.

    The covariance is shrunk to a multiple of the identity (Ledoit & Wolf, J. Multivar. Anal. 88 (2004) 365), so that it
    can be inverted whatever the number of images.
    """
    if len(train) < FEWEST or not len(validation):
        return None
    from sklearn.covariance import ledoit_wolf

    x, present = train.astype(np.float64), np.unique(labels)
    if len(present) > MOST_CLASSES:
        labels, present = np.zeros_like(labels), np.zeros(1, np.int64)
    means = np.stack([x[labels == c].mean(axis=0) for c in present])
    centred = x - means[np.searchsorted(present, labels)]
    covariance, _ = ledoit_wolf(centred, assume_centered=True)
    size = float(np.trace(covariance)) / len(covariance)
    if not np.isfinite(size) or size <= 0:
        return None  # features that never differ
    precision = np.linalg.inv(covariance + 1e-6 * size * np.eye(len(covariance)))
    packed = precision[np.tril_indices(len(precision))].astype(np.float32)
    unscaled = Familiarity(means.astype(np.float32), packed, 1.0, len(train))
    # (n + 1)-quantile, so that a new image of the same kind is called unlike in at most a hundredth of the cases
    level = min(1.0, QUANTILE * (len(validation) + 1) / len(validation))
    edge = float(np.quantile(unscaled.score(validation).astype(np.float64) ** 2, level, method="higher"))
    return Familiarity(unscaled.means, packed, edge, len(train)) if edge > 0 else None


class Unlike(Frozen):
    """`n` other images: how well the score tells them apart, the share that is noticed, and their scores."""

    n: int
    auroc: Estimate
    flagged: Estimate
    scores: list[float]


class OutOfDistribution(Frozen):
    """How many of the evaluated images are unlike the training images.

    Attributes:
        n: training images behind the score.
        n_unfamiliar: images with a score above 1; flagged: their share.
        quantiles: of the scores, at 5, 25, 50, 75 and 95 %.
        unlike: other images; None where none were given.
    """

    n: int
    n_unfamiliar: int
    flagged: Estimate
    quantiles: list[float]
    unlike: Unlike | None
    error_rate_familiar: Estimate | None = None
    error_rate_unfamiliar: Estimate | None = None


def report_familiarity(
    predictions: Predictions, stored: Mapping[str, Any] | None, config: EvaluateConfig
) -> OutOfDistribution | None:
    """How many of the judged images are unlike the training ones, whether errors are among them, and other images.

    Args:
        stored: n and, where other images were given, unlike: their scores.

    Returns:
        None where the predictions hold no scores.
    """
    scores = scores_of(predictions)
    if scores is None or stored is None or not len(scores):
        return None
    boot, above = Bootstrap.of(predictions, config.resamples), scores > 1
    unlike, others = None, np.array(stored.get("unlike") or (), dtype=np.float64)
    if len(others):
        unlike = Unlike(
            n=len(others),
            auroc=told_apart(scores, predictions.groups, others),
            flagged=of_share(share(others > 1, np.ones(len(others), bool), Units(np.arange(len(others))))),
            scores=[float(f"{score:.5g}") for score in others],
        )
    found = OutOfDistribution(
        n=int(stored["n"]),
        n_unfamiliar=int(above.sum()),
        flagged=boot.proportion(above, np.ones(len(above), bool)),
        quantiles=np.quantile(scores, [0.05, 0.25, 0.5, 0.75, 0.95]).tolist(),
        unlike=unlike,
    )
    if predictions.labels is None:
        return found
    wrong = predictions.predicted != predictions.labels
    parts = {"error_rate_familiar": ~above, "error_rate_unfamiliar": above}
    return found.model_copy(update={name: boot.proportion(wrong, part) for name, part in parts.items()})


def told_apart(
    scores: np.ndarray, groups: Sequence[str] | None, others: np.ndarray, other_groups: Sequence[str] | None = None
) -> Estimate:
    """AUROC with which the score tells other images, (T,), from the judged, (S,); no patient has images of both."""
    names = [
        name and f"{kind} {name}"
        for kind, part, n in (("judged", groups, len(scores)), ("other", other_groups, len(others)))
        for name in (part if part is not None else [""] * n)
    ]
    other = np.arange(len(names)) >= len(scores)
    area = pulled_areas(np.concatenate([scores, others]), other)[0]
    return of_auroc(area, other, Units(group_index(names, len(names))))


def scores_of(predictions: Predictions) -> np.ndarray | None:
    """(S,) float64 from the column of the table; None where it is not there or holds something else."""
    try:
        scores = np.array([float(cell) for cell in predictions.columns[UNFAMILIARITY]])
    except (KeyError, ValueError):
        return None
    return scores if np.isfinite(scores).all() else None
