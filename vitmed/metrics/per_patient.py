"""The performance on each patient: the spread over patients, the worst of them, and how concentrated the errors are."""

from __future__ import annotations

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.metrics.predictions import Predictions, known_labels, positive_index

ENOUGH = 5  # images of a kind that a patient needs for a share to be counted
WORST = 10  # patients that are listed
FEW = 5  # "the worst five patients hold ... of the errors"
SHUFFLES = 200


class Spread(Frozen):
    """A share over the `n` patients with at least `ENOUGH` images of the kind; or the reason why there is no spread."""

    n: int
    min: float | None = None
    q1: float | None = None
    median: float | None = None
    q3: float | None = None
    max: float | None = None
    outside: int | None = None  # patients beyond what chance explains, see `outside`
    overall: float | None = None  # the share of all images
    reason: str | None = None


class Patient(Frozen):
    """A patient by their number: the first of predictions.csv is 1."""

    patient: int
    n: int
    errors: int
    accuracy: float


class ErrorConcentration(Frozen):
    """The share of the errors, and of the images, that the worst patients hold."""

    patients: int
    share: float
    images: float
    by_chance: float  # the share of the errors that they would hold if errors fell on images at random


class PerPatient(Frozen):
    """How the errors are spread over patients; `reason` where there is no spread."""

    n_patients: int
    errors: int
    enough: int  # `ENOUGH`
    reason: str | None = None
    spread: dict[str, Spread] = {}  # by number
    worst: list[Patient] = []  # those with the most errors, at most `WORST`
    heap: ErrorConcentration | None = None  # unset without errors, and where there are no more than `FEW` patients


def shares(predictions: Predictions) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name -> images (P,) and right ones among them (P,), int64, per patient by first appearance.

    The names: accuracy; of two classes also sensitivity and specificity.

    Raises:
        DataError: the predictions have no labels.
    """
    labels, units = known_labels(predictions), predictions.units
    size, right, positive = units.max(initial=-1) + 1, predictions.predicted == labels, positive_index(predictions)
    kinds = {"accuracy": np.ones(len(labels), bool)}
    if positive is not None:
        kinds |= {"sensitivity": labels == positive, "specificity": labels != positive}
    return {
        name: (np.bincount(units[own], minlength=size), np.bincount(units[own & right], minlength=size))
        for name, own in kinds.items()
    }


def outside(images: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(P,) bool: patients in a tail of 2.5 % of the binomial, beyond what chance explains if all patients were alike.

    The limits of a funnel plot (Spiegelhalter, Stat. Med. 24 (2005) 1185), exact instead of approximate.
    """
    from scipy.stats import binom  # imported here: predict starts without it

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
    if size == 1 or images.max() == 1:
        why = "there is one patient" if size == 1 else "each patient has one image"
        return PerPatient(n_patients=size, errors=total, enough=ENOUGH, reason=why)
    ranked = np.lexsort([images, -errors])  # with as many errors, first those with fewer images
    worst = [
        Patient(patient=i + 1, n=int(images[i]), errors=int(errors[i]), accuracy=float(right[i] / images[i]))
        for i in map(int, ranked[:WORST])
        if errors[i]
    ]
    spread = {name: _spread(*kind) for name, kind in kinds.items()}
    numbers = PerPatient(n_patients=size, errors=total, enough=ENOUGH, spread=spread, worst=worst)
    if not total or size <= FEW:
        return numbers
    hardest, rng = ranked[:FEW], np.random.default_rng(0)
    drawn = rng.multivariate_hypergeometric(images, total, size=SHUFFLES, method="marginals")
    heap = ErrorConcentration(
        patients=FEW,
        share=float(errors[hardest].sum() / total),
        images=float(images[hardest].sum() / images.sum()),
        by_chance=float((np.sort(drawn, axis=1)[:, -FEW:].sum(axis=1) / total).mean()),
    )
    return numbers.model_copy(update={"heap": heap})


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
