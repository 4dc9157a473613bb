"""Calibration: a change of the logits, fitted on validation, so that a probability of 0.9 is right 9 times in 10.

Temperature scaling divides all logits by one number; vector scaling multiplies each by its own and adds a bias (Guo et
al., ICML 2017, arXiv 1706.04599, section 4.2). Both are convex in what is fitted, so there is one answer. Fitting
takes scipy; applying takes numpy alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field, PlainSerializer, model_validator

from vitmed.core.base_models import Floats, Stored
from vitmed.core.text import counted_doing
from vitmed.metrics.intervals import Units, spread
from vitmed.metrics.predictions import Predictions, softmax

FEWEST = 50  # validation images below which nothing is fitted
FEWEST_OF_CLASS = 10  # of the rarest class, for vector scaling
MOST_CLASSES = 50  # that vector scaling is tried for
FOLDS = 10
LARGE = 2**19  # images x classes of validation above which two folds are enough, and ten slow
STANDARD_ERRORS = {"temperature": 1, "vector": 2}  # that the gain must exceed; vector scaling can change the prediction
LOWEST, HIGHEST = 0.05, 20.0  # of 1 / temperature
PRIOR = 0.2  # of the logarithm of a temperature below 1, the standard deviation before validation is seen


class Trial(Stored):
    """A calibration method against a simpler one, `than`, on validation images that its fit did not see: by how many
    nats the log loss of an image is lower on average (`gain`), and the standard error of that (`error`)."""

    method: str
    than: str
    gain: float
    error: float

    @property
    def text(self) -> str:
        """The gain as a clause."""
        names = {"none": "the uncalibrated probabilities", "temperature": "temperature scaling"}
        verb = "lowers" if self.gain > 0 else "raises"
        needed = STANDARD_ERRORS[self.method] * self.error
        error = f"standard error {self.error:.3f}; more than {needed:.3f} is needed"
        return f"{self.method} scaling {verb} the log loss by {abs(self.gain):.3f} from {names[self.than]} ({error})"


def why_chosen(method: str, trials: Sequence[Trial]) -> str:
    """Why cross-validation chose this method, as a sentence."""
    if method != "none":
        further = any(trial.than == method for trial in trials)
        also = "; vector scaling does not clearly lower it further" if further else ""
        return f"{method.capitalize()} scaling was chosen because it clearly lowers the log loss{also}."
    if len(trials) == 1:
        return f"{trials[0].method.capitalize()} scaling does not clearly lower the log loss, so it is not used."
    return "Neither temperature nor vector scaling clearly lowers the log loss, so neither is used."


class Calibration(Stored):
    """calibrated logits = scale * logits + bias, K numbers each; every scale is above 0.

    The method is "none", "temperature" (one scale for all, no bias) or "vector", chosen by the `trials`; none where it
    was asked for. The `note` is what a reader must know about the fit; "" if nothing.
    """

    method: str
    scale: Floats
    bias: Floats
    note: str = ""
    trials: Annotated[tuple[Trial, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _fits(self) -> "Calibration":
        if len(self.scale) != len(self.bias) or not all(value > 0 for value in self.scale):
            raise ValueError(f"scale {self.scale} and bias {self.bias} do not form a calibration")
        return self

    @classmethod
    def none(cls, classes: int, note: str = "") -> "Calibration":
        """The logits as they are."""
        return cls(method="none", scale=(1.0,) * classes, bias=(0.0,) * classes, note=note)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """(S, K) -> (S, K) float32; unchanged where the method is none."""
        if self.method == "none":
            return logits.astype(np.float32, copy=False)
        return (logits.astype(np.float64) * self.scale + self.bias).astype(np.float32)

    def calibrate(self, predictions: Predictions) -> Predictions:
        """Undecided predictions with calibrated probabilities; without a calibration the softmax of the logits."""
        calibrated = None if self.method == "none" else softmax(self.apply(predictions.logits))
        return replace(predictions.undecided(), calibrated=calibrated)


# As a part of metrics.json: lists for tuples
CalibrationResult = Annotated[Calibration, PlainSerializer(lambda known: known.model_dump(mode="json"))]


def fit_calibration(logits: np.ndarray, labels: np.ndarray, method: str, units: Units) -> Calibration:
    """The calibration with the lowest log loss on validation, from raw logits (S, K) and labels (S,) int64. `method` is
    a key of `METHODS`, "none", or "auto" to choose one by cross-validation: see `_choose`.

    If validation is too small or uniform (fewer than 50 images, one class alone, logits that do not differ), the logits
    stay as they are and the note gives the reason. A temperature below 1 raises confidence, which few images, or
    none with an error, hardly justify: its logarithm has a normal prior of mean 0 and standard deviation `PRIOR`.
    """
    size, classes = logits.shape
    counts = np.bincount(labels, minlength=classes)
    if method == "none":
        return Calibration.none(classes, "switched off")
    if size < FEWEST:
        few = counted_doing(size, "validation image", "is", "are")
        return Calibration.none(classes, f"{few} too few to fit a calibration (at least {FEWEST})")
    if (counts > 0).sum() < 2:
        return Calibration.none(classes, "validation holds images of one class alone")
    if not np.ptp(logits, axis=1).any():
        return Calibration.none(classes, "the logits of every validation image are the same for all classes")
    if method == "auto" and units.count < 2:
        return Calibration.none(classes, "validation holds one patient, so no calibration can be cross-validated")
    logits = logits.astype(np.float64)
    return METHODS[method](logits, labels) if method != "auto" else _choose(logits, labels, units)


def _choose(logits: np.ndarray, labels: np.ndarray, units: Units) -> Calibration:
    """No calibration, temperature or vector scaling: the simplest that a more complex one does not clearly improve on.

    Each is fitted on all but one of up to `FOLDS` parts of the patients and measured on that part. The next more
    complex one replaces the best so far if the log loss falls by more than `STANDARD_ERRORS`, between patients: for
    temperature the rule of one standard error (Breiman et al., Classification and Regression Trees (1984), section
    3.4.3), for vector scaling two, since a fit to few patients can spoil the predicted classes too.
    """
    size, classes = logits.shape
    folds = FOLDS if logits.size <= LARGE else 2
    part = np.random.default_rng(0).permutation(units.count)[units.index] % folds  # (S,)
    rarest = np.bincount(labels, minlength=classes).min()
    chosen, lowest, trials = "none", _nats(logits, labels), []
    for method, fit in METHODS.items():
        if method == "vector" and (rarest < FEWEST_OF_CLASS or classes > MOST_CLASSES):
            continue
        nats = np.empty(size)
        for held in (part == fold for fold in range(folds) if (part == fold).any()):
            nats[held] = _nats(fit(logits[~held], labels[~held]).apply(logits[held]), labels[held])
        gain = float((lowest - nats).mean())
        error = spread((lowest - nats - gain) / size, units).variance ** 0.5
        trials.append(Trial(method=method, than=chosen, gain=gain, error=error))
        if gain > STANDARD_ERRORS[method] * error:
            chosen, lowest = method, nats
    calibration = METHODS[chosen](logits, labels) if chosen != "none" else Calibration.none(classes)
    return calibration.model_copy(update={"trials": tuple(trials)})


def _nats(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    chances = softmax(logits)[np.arange(len(labels)), labels]
    return np.asarray(-np.log(np.maximum(chances, np.finfo(np.float64).eps)))


def _temperature(logits: np.ndarray, labels: np.ndarray) -> Calibration:
    from scipy.optimize import brentq

    size, classes = logits.shape
    logits = logits - logits.max(axis=1, keepdims=True)  # (S, K), the largest 0: nothing overflows
    true = float(logits[np.arange(size), labels].mean())

    def slope(scale: float) -> float:
        """Derivative of the mean log loss by the scale, 1 / temperature; it rises, since the loss is convex."""
        return float((softmax(scale * logits) * logits).sum(axis=1).mean()) - true

    def penalised_slope(x: float) -> float:
        """Derivative of the summed log loss and the penalty of the prior by the logarithm of the scale."""
        return float(size * np.exp(x) * slope(np.exp(x)) + x / PRIOR**2)

    note, edges = "", np.linspace(0.0, np.log(HIGHEST), 61)  # the minimum next to 1 counts
    if slope(LOWEST) >= 0:
        scale, note = LOWEST, "the logits do not predict the label, so they were made as flat as possible"
    elif slope(1.0) >= 0:
        scale = float(brentq(slope, LOWEST, 1.0, xtol=1e-12))
    elif (end := next((k for k, x in enumerate(edges) if penalised_slope(x) > 0), None)) is not None:
        scale = float(np.exp(brentq(penalised_slope, edges[end - 1], edges[end], xtol=1e-12)))
    else:
        scale, note = HIGHEST, "validation cannot show how sure the model may be; bounded"
    return Calibration(method="temperature", scale=(scale,) * classes, bias=(0.0,) * classes, note=note)


def _vector(logits: np.ndarray, labels: np.ndarray) -> Calibration:
    """Log loss plus a penalty (of one image's weight) on the distance from temperature scaling, so a minimum exists."""
    from scipy.optimize import minimize

    size, classes = logits.shape
    start = _temperature(logits, labels)
    rarest = int(np.bincount(labels, minlength=classes).min())
    if rarest < FEWEST_OF_CLASS:
        note = f"a class has {rarest} validation images, too few for vector scaling (at least {FEWEST_OF_CLASS})"
        return start.model_copy(update={"note": f"{note}; temperature scaling instead"})
    truth, rows = np.eye(classes)[labels], np.arange(size)
    first = np.append(start.scale, start.bias)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        scale, bias = x[:classes], x[classes:]
        chances = softmax(logits * scale + bias)
        off = x - first
        nats = -np.log(np.maximum(chances[rows, labels], np.finfo(np.float64).tiny)).mean()
        wrong = (chances - truth) / size  # (S, K)
        slope = np.append((wrong * logits).sum(axis=0), wrong.sum(axis=0))
        return float(nats + off @ off / (2 * size)), slope + off / size

    bounds = [(LOWEST, HIGHEST)] * classes + [(None, None)] * classes
    options = {"maxiter": 500, "ftol": 1e-12, "gtol": 1e-8}
    fitted = tuple(minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x.tolist())
    return Calibration(method="vector", scale=fitted[:classes], bias=fitted[classes:], note=start.note)


METHODS: dict[str, Callable[[np.ndarray, np.ndarray], Calibration]] = {"temperature": _temperature, "vector": _vector}
