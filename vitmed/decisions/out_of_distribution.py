"""Out-of-distribution (OOD) score: how unlike the training images an image is.

The score is the Mahalanobis distance of the features, the least over the classes, with one covariance for all (Lee et
al., NeurIPS 2018, arXiv 1807.03888, without the noise and the layers). On malaria cells, CIFAR-10 and MNIST it detects
other images as well as the nearest neighbour in the same features, or better, and takes a tenth of the space; see
docs/decisions.md. A low score says that an image is like those of training, not that the model is right about it.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from threading import Lock
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from vitmed.core.base_models import Frozen, Stored
from vitmed.metrics.areas import area_interval, class_areas
from vitmed.metrics.estimates import Estimate, estimate, of_share
from vitmed.metrics.intervals import Units, share
from vitmed.metrics.predictions import Predictions, group_index
from vitmed.metrics.predictions_csv import OOD_SCORE, as_number

QUANTILE = 0.99  # of validation: an image above it counts as unlike the training images
FEWEST = 20  # training images
MOST_CLASSES = 100  # with a mean of their own; of more there is one mean for all
LOCK = Lock()  # two threads that limit at once would leave the limit behind
MOST_FITTED = 2000  # training images that the score is fitted on
# of a file, where it is a tensor
Array = Annotated[np.ndarray | None, BeforeValidator(lambda value: None if value is None else np.asarray(value))]


class OodScore(Stored):
    """Where the features of the training images lie; a metrics.json leaves out means and precision."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    n: int  # training images that it was fitted on
    scale: float = Field(gt=0)  # squared distance of the validation quantile, where the score is 1
    means: Array = None  # (M, D) float32, of each class
    precision: Array = None  # (D (D + 1) / 2,) float32, the lower triangle of the inverse covariance

    @model_validator(mode="after")
    def _fits(self) -> "OodScore":
        if self.means is None and self.precision is None:
            return self
        width = self.means.shape[1] if self.means is not None and self.means.ndim == 2 else 0
        if not width or self.precision is None or self.precision.shape != (width * (width + 1) // 2,):
            raise ValueError("means and precision do not fit each other, or one is missing")
        return self

    def score(self, features: np.ndarray) -> np.ndarray:
        """(S, D) -> (S,) float32: distance / the limit of validation, see `fit_ood_score`; above 1 is unlike."""
        means, full, centre = self.matrices
        x = features.astype(np.float64)
        with LOCK, blas().limit(limits=1):  # its threads would spin on, and take the cores from the network's
            moved = x @ full  # (S, D)
            across = -2 * moved @ means.T
        lengths = np.einsum("sd,sd->s", moved, x)[:, None]
        return np.sqrt(np.maximum((lengths + across + centre).min(axis=1), 0) / self.scale).astype(np.float32)

    @cached_property
    def matrices(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The means (M, D), the inverse covariance (D, D), and the square of the means by it (M,), in float64."""
        assert self.means is not None and self.precision is not None
        means, width = self.means.astype(np.float64), self.means.shape[1]
        full = np.zeros((width, width))
        full[np.tril_indices(width)] = self.precision
        full = full + np.tril(full, -1).T
        return means, full, np.einsum("md,de,me->m", means, full, means)


@cache
def blas() -> Any:
    """The threads of numpy's matrix products."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def fit_ood_score(train: np.ndarray, labels: np.ndarray, validation: np.ndarray) -> OodScore | None:
    """Fit on features (S, D) of training images with labels (S,), and (V, D) of validation. None for too few images.

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
    unscaled = OodScore(n=len(train), scale=1.0, means=means.astype(np.float32), precision=packed)
    # (n + 1)-quantile: at most a hundredth of new images of the same kind is unlike; below 200 images the largest
    level = min(1.0, QUANTILE * (len(validation) + 1) / len(validation))
    edge = float(np.quantile(unscaled.score(validation).astype(np.float64) ** 2, level, method="higher"))
    return unscaled.model_copy(update={"scale": edge}) if edge > 0 else None


class OutOfDistribution(Frozen):
    """How many of the evaluated images are unlike the training images, by a score that `n` training images gave.

    `n_above` images have a score above 1, a share `flagged`. The error rates are the shares of errors among images with
    a score up to 1, and above.
    """

    n: int
    n_above: int
    flagged: Estimate
    error_rate_below: Estimate | None = None
    error_rate_above: Estimate | None = None


def report_ood_scores(predictions: Predictions, fitted: OodScore | None) -> OutOfDistribution | None:
    """How many of the evaluated images are unlike the training images, and of classes how often their predictions are
    wrong; None where the predictions hold no scores."""
    scores = scores_of(predictions)
    if scores is None or fitted is None or not len(scores):
        return None
    units, above, errors = Units(predictions.units), scores > 1, dict[str, Any]()
    if predictions.kind == "classes" and predictions.labels is not None:
        parts = {"below": ~above, "above": above}
        errors = {f"error_rate_{name}": of_share(share(~predictions.right, of, units)) for name, of in parts.items()}
    flagged = of_share(share(above, None, units))
    return OutOfDistribution(n=fitted.n, n_above=int(above.sum()), flagged=flagged, **errors)


def detection_auroc(
    scores: np.ndarray, groups: Sequence[str] | None, others: np.ndarray, other_groups: Sequence[str] | None = None
) -> Estimate:
    """AUROC with which the score separates other images, (T,), from the evaluated, (S,); no patient is in both."""
    units, more = group_index(groups, len(scores)), group_index(other_groups, len(others))
    other = np.repeat([False, True], [len(scores), len(others)])
    area = class_areas(np.concatenate([scores, others]), other)[0]
    joined = Units(np.concatenate([units, more + units.max(initial=-1) + 1]))
    return estimate(area.value, *area_interval(area, other, joined))


def scores_of(predictions: Predictions) -> np.ndarray | None:
    """(S,) float64 from the column of the table; None where the column is missing or holds something else."""
    scores = np.array([as_number(cell) for cell in predictions.columns.get(OOD_SCORE, ("",))], dtype=np.float64)
    return scores if np.isfinite(scores).all() else None
