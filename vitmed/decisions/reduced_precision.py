"""What 16-bit floats change in the decisions and numbers of a network, compared with fp32 on validation images."""

from __future__ import annotations

import math

import numpy as np

from vitmed.core.base_models import Stored
from vitmed.core.text import counted, counted_doing
from vitmed.decisions.out_of_distribution import scores_of
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions, known_labels

MOST_MOVED = 1e-3  # of a probability, where reduced precision is accepted
MOST_OF_ERROR = 0.01  # the same of a predicted number, as a share of the mean absolute error
FASTER = 1.1  # than fp32, at least; else the comparison is not made


class ReducedPrecision(Stored):
    """The comparison of a reduced precision with fp32, made once, after training.

    Attributes:
        precision: "bf16" or "fp16"; device: the kind that computed it, "cpu" or "cuda".
        speedup: how many times as fast as fp32.
        images: of validation that were compared; 0 where `speedup` is below `FASTER`.
        flipped: images with another decision: the class that the policy predicts, or the likeliest one, or whether the
            image is unlike the training images; of a number only the last.
        largest: the largest change of a calibrated probability; of a number, that of a prediction or of an end of its
            interval, in the unit.
        largest_raw: of a raw probability, or of a predicted number.
        mae: of a number, its mean absolute error on these images in fp32; None for other kinds. unit: of the number.
        finite: whether the outputs are finite in this precision; otherwise nothing was compared.
        accepted: no decision flips, and `largest` is at most `limit`.
    """

    precision: str
    device: str
    speedup: float
    images: int = 0
    flipped: int = 0
    largest: float = 0.0
    largest_raw: float = 0.0
    mae: float | None = None
    unit: str = ""
    finite: bool = True
    accepted: bool = False

    @property
    def limit(self) -> float:
        """What `largest` may be."""
        return MOST_MOVED if self.mae is None else MOST_OF_ERROR * self.mae

    @property
    def in_words(self) -> str:
        """What was found, such as "on 240 validation images no decision flips and ..."."""
        faster = f"{self.precision} is {self.speedup:.1f} times as fast as fp32"
        if not self.images:
            return f"{faster}, so the decisions were not compared"
        start = f"on {counted(self.images, 'validation image')}"
        if not self.finite:
            return f"{start} the outputs are not finite in {self.precision}; {faster}"
        if self.mae is None:
            what, limit = "probability", f"{MOST_MOVED:g}"
            far = f"{math.ceil(1e4 * self.largest) / 1e4:g}" if self.accepted else f"{self.largest:.2g}"
            flips = counted_doing(self.flipped, "decision", "flips", "flip") if self.flipped else "no decision flips"
            flips += " and " if self.flipped or self.accepted else " but "
        else:
            what, limit = "number", f"{100 * MOST_OF_ERROR:g} %"
            far = f"{self.largest:.2g}{f' {self.unit}' * bool(self.unit)}"
            far += f", {100 * self.largest / (self.mae or math.nan):.2g} % of the mean absolute error"
            flips = counted_doing(self.flipped, "out-of-distribution flag", "changes", "change") + " and "
            flips *= bool(self.flipped)
        moved = f"no {what} moves by more than {far}" if self.accepted else f"a {what} moves by {far} (limit {limit})"
        return f"{start} {flips}{moved}; {faster}"

    @property
    def choice(self) -> str:
        """The precision to use on this kind of device, and why."""
        choice = f"{self.precision} instead of fp32" if self.accepted else f"fp32, not {self.precision}"
        return f"{choice}: {self.in_words}"


def compare_precision(found: ReducedPrecision, exact: AnyPredictions, reduced: AnyPredictions) -> ReducedPrecision:
    """`found` with the differences between two predictions of the same images, to both of which the policy is applied.

    Args:
        exact: in fp32.
        reduced: in the precision of `found`.
    """
    flips = np.zeros(len(exact), bool)
    if isinstance(exact, NumberPredictions):
        error = np.abs(exact.values - known_labels(exact)).mean()
        found = found.model_copy(update={"mae": float(error), "unit": exact.target.unit})
    elif isinstance(exact, Predictions) and isinstance(reduced, Predictions):
        flips = (exact.predicted != reduced.predicted) | (exact.likeliest != reduced.likeliest)
    elif isinstance(exact, FindingPredictions) and isinstance(reduced, FindingPredictions):
        flips = np.any(exact.predicted != reduced.predicted, axis=1)
    scores = scores_of(exact), scores_of(reduced)
    if scores[0] is not None and scores[1] is not None:
        # One validation image is the edge itself, with a score of 1; any rounding would flip it.
        flips |= ((scores[0] > 1) != (scores[1] > 1)) & (scores[0] != 1)
    moved = np.abs(_amounts(exact) - _amounts(reduced)).max(initial=0)
    raw = np.abs(_amounts(exact.undecided()) - _amounts(reduced.undecided())).max(initial=0)
    return found.model_copy(
        update={
            "images": len(exact),
            "flipped": int(flips.sum()),
            "largest": float(moved),
            "largest_raw": float(raw),
            "accepted": bool(len(exact) and not flips.any() and moved <= found.limit),
        }
    )


def _amounts(predictions: AnyPredictions) -> np.ndarray:
    """(S, ...) float64: the probabilities; of a number the predictions and the ends of their intervals, in the unit."""
    if not isinstance(predictions, NumberPredictions):
        return predictions.probabilities
    ends = () if predictions.intervals is None else predictions.intervals.T
    return np.stack([predictions.values, *ends], axis=1)
