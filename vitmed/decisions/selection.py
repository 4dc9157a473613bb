"""Choosing the members of an ensemble on predictions of images that they never saw, and what having chosen costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitmed.decisions.targets import TARGETS
from vitmed.metrics.ensembles import averaged, pool
from vitmed.metrics.intervals import Units

ROUNDS = 25  # of greedy selection
PARTS = 5  # of the images, by patient, for the nested estimate


def loss_of(predictions: Any) -> float:
    """The loss that selection lowers, that of `TargetKind.val_loss`; infinite where it is undefined."""
    kind = TARGETS[predictions.kind]
    value = kind.values(predictions)[kind.val_loss]
    return value if math.isfinite(value) else math.inf


def greedy_selection(parts: Sequence[Any], rounds: int = ROUNDS) -> np.ndarray:
    """(M,) float64 shares of M models that sum to 1.

    Round by round the model is added, perhaps again, that lowers the loss of the mean most; the best of all rounds is
    taken (Caruana et al., ICML 2004, figure 1, with replacement). `parts` are predictions as `aligned` returns them.
    """
    counts, best, kept = np.zeros(len(parts)), math.inf, np.zeros(len(parts))
    for _ in range(rounds):
        trials = [counts + one for one in np.eye(len(parts))]
        losses = [loss_of(averaged(parts, trial / trial.sum())) for trial in trials]
        counts = trials[int(np.argmin(losses))]
        if min(losses) < best:
            best, kept = min(losses), counts
    return kept / kept.sum() if kept.any() else np.full(len(parts), 1 / len(parts))


def nested_predictions(parts: Sequence[Any]) -> Any | None:
    """The mean of selected models for every image, selected each time without the patient of the image.

    Its numbers are free of the optimism of selection. Images are in `PARTS` parts, by patient where known; None where
    there are too few patients. Arguments are those of `greedy_selection`.
    """
    units = Units.of(parts[0])
    if units.count < 2 * PARTS:
        return None
    part_of = np.random.default_rng(0).permutation(units.count)[units.index] % PARTS  # (S,)
    found = []
    for number in range(PARTS):
        rest, held = np.flatnonzero(part_of != number), np.flatnonzero(part_of == number)
        shares = greedy_selection([part.take(rest) for part in parts])
        found.append(averaged([part.take(held) for part in parts], shares))
    return pool(found)
