"""What 16-bit floats change in the decisions of a network, compared with fp32 on validation images."""

from __future__ import annotations

import math

import numpy as np

from vitmed.core.base_models import Stored
from vitmed.core.text import counted, counted_doing
from vitmed.decisions.out_of_distribution import scores_of
from vitmed.metrics.predictions import Predictions

MOST_MOVED = 1e-3  # of a probability, where reduced precision is accepted
FASTER = 1.1  # than fp32, at least; else the comparison is not made


class ReducedPrecision(Stored):
    """The comparison of a reduced precision with fp32, made once, after training.

    Attributes:
        precision: "bf16" or "fp16"; device: the kind that computed it, "cpu" or "cuda".
        speedup: how many times as fast as fp32.
        images: of validation that were compared; 0 where `speedup` is below `FASTER`.
        flipped: images with another decision: the class that the policy predicts, or the likeliest one, or whether the
            image is unlike the training images.
        largest: the largest change of a calibrated probability; largest_raw: of a raw one.
        accepted: no decision flips, and no calibrated probability moves by more than `MOST_MOVED`.
    """

    precision: str
    device: str
    speedup: float
    images: int = 0
    flipped: int = 0
    largest: float = 0.0
    largest_raw: float = 0.0
    accepted: bool = False

    @property
    def in_words(self) -> str:
        """What was found, such as "on 240 validation images no decision flips and ..."."""
        faster = f"{self.precision} is {self.speedup:.1f} times as fast as fp32"
        if not self.images:
            return f"{faster}, so the decisions were not compared"
        flips = counted_doing(self.flipped, "decision", "flips", "flip") if self.flipped else "no decision flips"
        moved = f"{'and' if self.flipped else 'but'} a probability moves by {self.largest:.2g} (limit {MOST_MOVED:g})"
        if self.accepted:
            moved = f"and no probability moves by more than {math.ceil(1e4 * self.largest) / 1e4:g}"
        return f"on {counted(self.images, 'validation image')} {flips} {moved}; {faster}"

    @property
    def choice(self) -> str:
        """The precision to use on this kind of device, and why."""
        choice = f"{self.precision} instead of fp32" if self.accepted else f"fp32, not {self.precision}"
        return f"{choice}: {self.in_words}"


def compare_precision(found: ReducedPrecision, exact: Predictions, reduced: Predictions) -> ReducedPrecision:
    """`found` with the differences between two predictions of the same images, to both of which the policy is applied.

    Args:
        exact: in fp32.
        reduced: in the precision of `found`.
    """
    flips = exact.predicted != reduced.predicted
    flips |= exact.likeliest != reduced.likeliest
    scores = scores_of(exact), scores_of(reduced)
    if scores[0] is not None and scores[1] is not None:
        # One validation image is the edge itself, with a score of 1; any rounding would flip it.
        flips |= ((scores[0] > 1) != (scores[1] > 1)) & (scores[0] != 1)
    moved = np.abs(exact.probabilities - reduced.probabilities).max(initial=0)
    raw = np.abs(exact.undecided().probabilities - reduced.undecided().probabilities).max(initial=0)
    return found.model_copy(
        update={
            "images": len(exact),
            "flipped": int(flips.sum()),
            "largest": float(moved),
            "largest_raw": float(raw),
            "accepted": bool(len(exact) and not flips.any() and moved <= MOST_MOVED),
        }
    )
