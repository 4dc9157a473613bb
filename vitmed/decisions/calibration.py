"""Calibration: a change of the logits, fitted on validation, so that a probability of 0.9 is right 9 times in 10.

Temperature scaling divides all logits by one number (Guo et al., ICML 2017, arXiv 1706.04599, section 4.2). The log
loss is convex in its inverse, so there is one answer. Fitting takes scipy; applying takes numpy alone.
"""

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field, PlainSerializer, model_validator

from vitmed.core.base_models import Floats, Stored
from vitmed.core.text import counted_doing
from vitmed.metrics.intervals import Units, spread
from vitmed.metrics.predictions import Predictions, softmax

FEWEST = 50  # validation images below which nothing is fitted
FOLDS = 10
LARGE = 2**19  # images x classes of validation above which two folds are enough, and ten slow
LOWEST, HIGHEST = 0.05, 20.0  # of 1 / temperature
PRIOR = 0.2  # of the logarithm of a temperature below 1, the standard deviation before validation is seen


class Trial(Stored):
    """A calibration method against a simpler one, `than`, on validation images that its fit did not see: by how many
    nats the log loss of an image is lower on average (`gain`), and the standard error of that (`error`). Today it is
    temperature scaling against none; 0.2.0 also tried vector scaling."""

    method: str
    than: str
    gain: float
    error: float

    @property
    def text(self) -> str:
        """The gain as a clause."""
        names = {"none": "the uncalibrated probabilities", "temperature": "temperature scaling"}
        verb = "lowers" if self.gain > 0 else "raises"
        needed = self.error * (2 if self.method == "vector" else 1)
        error = f"standard error {self.error:.3f}; more than {needed:.3f} is needed"
        return f"{self.method} scaling {verb} the log loss by {abs(self.gain):.3f} from {names[self.than]} ({error})"


class Calibration(Stored):
    """calibrated logits = scale * logits + bias, K numbers each; every scale is above 0.

    The method is "none", "temperature" (one scale for all, no bias) or, of 0.2.0, "vector", chosen by the `trials`;
    none where it was asked for. The `note` is what a reader must know about the fit; "" if nothing.
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
        return (logits.astype(np.float64) * self.scale + self.bias).astype(np.float32)

    def calibrate(self, predictions: Predictions) -> Predictions:
        """Undecided predictions with calibrated probabilities; without a calibration the softmax of the logits."""
        calibrated = None if self.method == "none" else softmax(self.apply(predictions.logits))
        return replace(predictions.undecided(), calibrated=calibrated)


# As a part of metrics.json: lists for tuples
CalibrationResult = Annotated[Calibration, PlainSerializer(lambda known: known.model_dump(mode="json"))]


def fit_calibration(logits: np.ndarray, labels: np.ndarray, method: str, units: Units) -> Calibration:
    """The calibration with the lowest log loss on validation, from raw logits (S, K) and labels (S,) int64. `method` is
    "temperature", "none", or "auto": temperature scaling where it clearly lowers the log loss.

    For "auto" it is fitted on all but one of up to `FOLDS` parts of the patients and measured on that part. The log
    loss must fall by more than one standard error, between patients (Breiman et al., Classification and Regression
    Trees (1984), section 3.4.3).

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
    if method == "temperature":
        return _temperature(logits, labels)
    folds = FOLDS if logits.size <= LARGE else 2
    part = np.random.default_rng(0).permutation(units.count)[units.index] % folds  # (S,)
    calibrated = np.empty(logits.shape)  # (S, K), each image as the others calibrate it
    for held in (part == fold for fold in range(folds) if (part == fold).any()):
        calibrated[held] = _temperature(logits[~held], labels[~held]).apply(logits[held])
    before, after = (softmax(of)[np.arange(size), labels] for of in (logits, calibrated))
    least = np.finfo(np.float64).eps
    gains = np.log(np.maximum(after, least)) - np.log(np.maximum(before, least))  # nats
    gain = float(gains.mean())
    error = spread((gains - gain) / len(gains), units).variance ** 0.5
    chosen = _temperature(logits, labels) if gain > error else Calibration.none(classes)
    return chosen.model_copy(update={"trials": (Trial(method="temperature", than="none", gain=gain, error=error),)})


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
