"""One prediction per patient: the images of a patient combined, and every number again with the patient as the unit;
and the performance on each patient: the spread over patients, the worst of them.

Letters: S images, P patients, K classes.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.metrics.estimates import ClassNumbers, Estimate
from vitmed.metrics.intervals import Units
from vitmed.metrics.kinds.classes import MANY_CLASSES, evaluate_predictions
from vitmed.metrics.predictions import Predictions, known_labels, positive_index

FEWEST_KNOWN = 5  # patients with a label, of more than two classes


class ByPatient(Frozen, extra="ignore"):  # until 0.3.0 it had all of `Numbers`
    """`Numbers` with each patient a unit, for one way of combining their images; or the reason why there are none."""

    text: str
    overall: dict[str, Estimate] = {}
    per_class: dict[str, ClassNumbers] = {}
    undefined: dict[str, str] = {}
    no_interval: dict[str, str] = {}
    reason: str | None = None


class PatientLevel(Frozen):
    """The numbers by patient, for each of `WAYS`; `reason` where there are none."""

    n: int  # patients
    labelled: int
    mixed: int  # with images of several classes
    left_out: int
    threshold: float | None = None  # of the images; None: patients are decided at one half
    rule: str  # how a patient gets a label
    notes: list[str]
    reason: str | None = None
    mean: ByPatient | None = None
    max: ByPatient | None = None


def patient_labels(predictions: Predictions) -> tuple[np.ndarray, int]:
    """The label of each patient, (P,) int64 by first appearance, and how many have images of several classes.

    It is the class of all their images, or where the images differ, of two classes the positive one (one infected cell
    makes an infected patient), of more classes none, -1. An image without a patient is one of its own.
    Raises DataError without labels.
    """
    labels, positive = known_labels(predictions), positive_index(predictions)
    order, starts = Units(predictions.units).ordered
    lowest, highest = (f.reduceat(labels[order], starts) for f in (np.minimum, np.maximum))
    mixed = lowest != highest
    return np.where(mixed, -1 if positive is None else positive, lowest), int(mixed.sum())


def combine(predictions: Predictions, way: str) -> np.ndarray:
    """Log-probabilities (P, K) float64 of each patient, from those of their images; rows as in `patient_labels`. The
    way is a key of `WAYS`. "max" of more than two classes is scaled to sum to 1."""
    p, positive = predictions.probabilities, positive_index(predictions)
    order, starts = Units(predictions.units).ordered
    if way == "mean" or (way == "max" and positive is None):
        joined = (np.add if way == "mean" else np.maximum).reduceat(p[order], starts, axis=0)
        return np.log(np.maximum(joined / joined.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny))
    none = np.log1p(-np.minimum(p[order, positive], 1 - 1e-16))  # ln of the chance that the image is not positive
    none = np.minimum(np.minimum.reduceat(none, starts), -np.finfo(np.float64).tiny)
    with np.errstate(divide="ignore"):  # of what is not chosen
        some = np.where(none > -np.log(2), np.log(-np.expm1(none)), np.log1p(-np.exp(none)))  # right near both ends
    return np.stack([some, none] if positive == 0 else [none, some], axis=1)


def patient_predictions(predictions: Predictions, way: str) -> Predictions:
    """The prediction for each patient that has a label, one row each, named patient 1, ...; decided by the threshold or
    costs of the images. Where each fold decided its images by its own threshold, patients are decided at one half."""
    labels, _ = patient_labels(predictions)
    known = np.flatnonzero(labels >= 0)
    names = tuple(f"patient {i + 1}" for i in known)
    logits = combine(predictions, way)[known].astype(np.float32)
    combined = Predictions(predictions.classes, names, names, labels[known], logits, positive=predictions.positive)
    return replace(combined, threshold=predictions.threshold, costs=predictions.costs)


def patient_level(predictions: Predictions) -> PatientLevel | None:
    """Every number of `evaluate_predictions` with each patient a unit, for each of `WAYS`; None where patients are
    unknown."""
    if predictions.groups is None or not len(predictions):
        return None
    (labels, mixed), two = patient_labels(predictions), positive_index(predictions) is not None
    labelled, n = labels[labels >= 0], len(labels)
    notes, classes = list[str](), len(predictions.classes)
    level = dict[str, Any](n=n, labelled=len(labelled), mixed=mixed, left_out=n - len(labelled))
    level |= {"rule": RULES[two], "notes": notes, "threshold": predictions.threshold}
    if why := _undefined(predictions, labels, mixed):
        return PatientLevel(**level, reason=why)
    for way, text in WAYS.items():
        if way != "mean" and classes > MANY_CLASSES:
            why = f"with more than {MANY_CLASSES} classes only the mean is evaluated"
            level[way] = ByPatient(text=text, reason=why)
            continue
        combined = patient_predictions(predictions, way)
        numbers = evaluate_predictions(combined)
        about = [note for note in numbers.notes if not note.startswith("All images of")]  # may be of more patients
        words = {"There is no image of": "There is no patient of", " has only ": " is the label of only "}
        for image, person in words.items():
            about = [note.replace(image, person) for note in about]
        notes += [note for note in about if note not in notes]
        kept = ["overall"] if classes > MANY_CLASSES else ["overall", "per_class", "undefined", "no_interval"]
        level[way] = ByPatient(text=text, **{name: numbers[name] for name in kept})
    return PatientLevel(**level)


def _undefined(predictions: Predictions, labels: np.ndarray, mixed: int) -> str | None:
    labelled = labels[labels >= 0]
    if len(labels) == len(predictions):
        return "each patient has one image, so the numbers by patient are those by image"
    if not len(labelled):
        return "every patient has images of several classes, so none has a label"
    if len(labelled) < FEWEST_KNOWN and mixed and positive_index(predictions) is None:
        have = f"{len(labels)} patients {'has' if len(labelled) == 1 else 'have'}"
        return f"only {len(labelled)} of {have} images of one class alone; the others have no label"
    if len(np.unique(labelled)) == 1:
        who = f"all {len(labelled)} patients count" if len(labelled) > 1 else "the one patient counts"
        both = "with" if len(labelled) == 1 else f"{mixed} of them have"
        what = f"as '{predictions.classes[labelled[0]]}'"
        if mixed and len(predictions.classes) > 2:
            return f"all {len(labelled)} patients with images of one class alone count {what}; the others have no label"
        return f"{who} {what}" + (f" ({both} images of both classes)" if mixed else "")
    return None


WAYS = {"mean": "mean probability of the images", "max": "largest probability of any image"}
RULES = {
    True: "A patient with images of both classes counts as positive, as one positive image is enough.",
    False: "A patient with images of several classes has no label and is left out.",
}


WORST = 10  # patients that are listed


class Patient(Frozen):
    """A patient by their number: the first of predictions.csv is 1."""

    patient: int
    n: int
    errors: int
    accuracy: float


class PerPatient(Frozen):
    """The patients with the most errors; `reason` where errors are not counted by patient."""

    n_patients: int
    errors: int
    reason: str | None = None
    worst: list[Patient] = []  # those with the most errors, at most `WORST`


def shares(predictions: Predictions) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name -> images (P,) and right ones among them (P,), int64, per patient by first appearance. The names: accuracy;
    of two classes also sensitivity and specificity. Raises DataError without labels."""
    labels, units = known_labels(predictions), predictions.units
    size, right, positive = units.max(initial=-1) + 1, predictions.right, positive_index(predictions)
    kinds = {"accuracy": np.ones(len(labels), bool)}
    if positive is not None:
        kinds |= {"sensitivity": labels == positive, "specificity": labels != positive}
    return {
        name: (np.bincount(units[images], minlength=size), np.bincount(units[images & right], minlength=size))
        for name, images in kinds.items()
    }


def outside(images: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(P,) bool: patients in a tail of 2.5 % of the binomial, beyond what chance explains if all patients were alike.
    The limits of a funnel plot (Spiegelhalter, Stat. Med. 24 (2005) 1185), exact instead of approximate."""
    from scipy.stats import binom  # imported here: predict starts without it

    overall = right.sum() / max(1, images.sum())
    low, high = binom.cdf(right, images, overall) < 0.025, binom.sf(right - 1, images, overall) < 0.025
    return (low | high) & (images > 0)


def per_patient(predictions: Predictions) -> PerPatient | None:
    """The patients with the most errors; None where patients are unknown."""
    if predictions.groups is None or not len(predictions):
        return None
    images, right = shares(predictions)["accuracy"]
    errors = images - right
    total, size = int(errors.sum()), len(images)
    if size == 1 or images.max() == 1:
        why = "there is one patient" if size == 1 else "each patient has one image"
        return PerPatient(n_patients=size, errors=total, reason=why)
    ranked = np.lexsort([images, -errors])  # with as many errors, first those with fewer images
    worst = [
        Patient(patient=i + 1, n=int(images[i]), errors=int(errors[i]), accuracy=float(right[i] / images[i]))
        for i in map(int, ranked[:WORST])
        if errors[i]
    ]
    return PerPatient(n_patients=size, errors=total, worst=worst)
