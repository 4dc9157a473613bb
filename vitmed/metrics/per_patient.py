"""How the model does on each patient: the spread over patients, the worst of them, and how far errors come in heaps."""

from __future__ import annotations

import numpy as np

from vitmed.core.frozen import Frozen
from vitmed.metrics.positive_class import positive_index
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.resampling import group_index
from vitmed.metrics.scoring import known_labels

ENOUGH = 5  # images of a kind that a patient needs for a share to say anything
WORST = 10  # patients that are listed
HEAP = 5  # "the worst five patients hold ... of the errors"
SHUFFLES = 200


class Spread(Frozen):
    """A share over the `n` patients with at least `ENOUGH` images of the kind; or the reason why there is no spread.

    Attributes:
        outside: patients that chance would hardly give, see `outside`.
        overall: the share of all images.
    """

    n: int
    min: float | None = None
    q1: float | None = None
    median: float | None = None
    q3: float | None = None
    max: float | None = None
    outside: int | None = None
    overall: float | None = None
    reason: str | None = None


class Patient(Frozen):
    """A patient by their number: the first of predictions.csv is 1."""

    patient: int
    n: int
    errors: int
    accuracy: float


class ErrorConcentration(Frozen):
    """The share of the errors that the worst patients hold, of which share of the images.

    Attributes:
        by_chance: the share that they would hold if errors fell on images at random.
    """

    patients: int
    share: float
    images: float
    by_chance: float


class PerPatient(Frozen):
    """How the errors are spread over patients; `reason` where there is nothing to spread.

    Attributes:
        enough: `ENOUGH`.
        spread: by number.
        worst: the patients with the most errors, at most `WORST`.
        heap: unset without errors, and where there are no more than `HEAP` patients.
    """

    n_patients: int
    errors: int
    enough: int
    reason: str | None = None
    spread: dict[str, Spread] = {}
    worst: list[Patient] = []
    heap: ErrorConcentration | None = None


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


def per_patient(predictions: Predictions) -> PerPatient | None:
    """The spread of the numbers over patients, and of the errors; None where patients are unknown."""
    if predictions.groups is None or not len(predictions):
        return None
    kinds = shares(predictions)
    images, right = kinds["accuracy"]
    errors = images - right
    total, size = int(errors.sum()), len(images)
    found = PerPatient(n_patients=size, errors=total, enough=ENOUGH)
    if size == 1:
        return found.model_copy(update={"reason": "there is one patient"})
    if images.max() == 1:
        return found.model_copy(update={"reason": "each patient has one image"})
    ranked = np.lexsort([images, -errors])  # of as many errors, first who has fewer images
    worst = [
        Patient(patient=i + 1, n=int(images[i]), errors=int(errors[i]), accuracy=float(right[i] / images[i]))
        for i in map(int, ranked[:WORST])
        if errors[i]
    ]
    found = found.model_copy(update={"spread": {name: _spread(*kinds[name]) for name in kinds}, "worst": worst})
    if not total or size <= HEAP:
        return found
    rng = np.random.default_rng(0)
    drawn = rng.multivariate_hypergeometric(images, total, size=SHUFFLES, method="marginals")
    by_chance = np.sort(drawn, axis=1)[:, -HEAP:].sum(axis=1) / total
    heap = ErrorConcentration(
        patients=HEAP,
        share=float(errors[ranked[:HEAP]].sum() / total),
        images=float(images[ranked[:HEAP]].sum() / images.sum()),
        by_chance=float(by_chance.mean()),
    )
    return found.model_copy(update={"heap": heap})


def _spread(images: np.ndarray, right: np.ndarray) -> Spread:
    """Quartiles of the share over the patients who have enough images of the kind."""
    enough = images >= ENOUGH
    n = int(enough.sum())
    if n < 2:
        return Spread(n=n, reason=f"fewer than two patients have {ENOUGH} such images")
    low, q1, median, q3, high = map(float, np.quantile(right[enough] / images[enough], [0, 0.25, 0.5, 0.75, 1]))
    far = int(outside(images[enough], right[enough]).sum())
    overall = float(right.sum() / images.sum())
    return Spread(n=n, min=low, q1=q1, median=median, q3=q3, max=high, outside=far, overall=overall)
