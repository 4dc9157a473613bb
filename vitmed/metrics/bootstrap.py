"""Resampled sums of predictions: whatever is a function of sums over images gets its interval from here.

The resamples are those of `metrics.bootstrap_weights`: whole patients where they are known, else images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitmed.metrics.estimates import Estimate, estimate, of_share
from vitmed.metrics.evaluation import ALIKE
from vitmed.metrics.intervals import NONE, Units, share
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.resampling import bootstrap_weights, group_index, percentile_interval, widened

MOST = 500  # resamples behind a curve: with more, the ends of an interval move by a tenth of its width
LEVEL = 0.95
Z = 1.959963984540054  # of the normal distribution, for LEVEL


@dataclass(frozen=True)
class Bootstrap:
    """How images are drawn again.

    Attributes:
        units: (S,) int64, the patient of each image, or its own number.
        resamples: how many; none are drawn of fewer than two units.
        clustered: whether the units are patients.
    """

    units: np.ndarray
    resamples: int
    clustered: bool

    @classmethod
    def of(cls, predictions: Predictions, resamples: int) -> Bootstrap:
        """As the groups of the predictions say, with at most `MOST` resamples."""
        units = group_index(predictions.groups, len(predictions))
        return cls(units, min(resamples, MOST), predictions.groups is not None)

    @property
    def size(self) -> int:
        """How many units there are."""
        return int(self.units.max()) + 1 if len(self.units) else 0

    def per_unit(self, values: np.ndarray) -> np.ndarray:
        """Sums over the images of each unit, (S, F) -> (G, F)."""
        if not self.clustered or not len(values):
            return values.astype(np.float64)
        order = np.argsort(self.units, kind="stable")
        starts = np.searchsorted(self.units[order], np.arange(self.size))
        return np.add.reduceat(values[order].astype(np.float64), starts, axis=0)

    def sums(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums over all images, (F,), and in each resample, (R, F), of values (S, F); R is 0 where none are drawn."""
        table = self.per_unit(values)  # (G, F)
        if self.size < 2 or self.resamples < 1:
            return values.sum(axis=0, dtype=np.float64), np.empty((0, values.shape[1]))
        drawn = [weights @ table for weights in bootstrap_weights(np.arange(self.size), self.resamples, seed=0)]
        return values.sum(axis=0, dtype=np.float64), np.concatenate(drawn)

    def proportion(self, hits: np.ndarray, counted: np.ndarray) -> Estimate:
        """How many of the counted images (S,) bool are hits (S,) bool, with the interval of `evaluate_predictions`."""
        return of_share(share(hits, counted, Units(self.units, LEVEL)))

    def estimate(self, value: float, drawn: np.ndarray) -> Estimate:
        """A number and the middle of its resamples, wider where there are few units; null where undefined.

        Resamples that all give the same make no interval: they know nothing of what was not seen.
        """
        low, high = percentile_interval(drawn, widened(LEVEL, max(1.0, self.size - 1)))
        return estimate(value, *((low, high) if high - low > ALIKE else NONE), "bootstrap")


def ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """top / bottom; NaN where bottom is not above 0."""
    top, bottom = np.broadcast_arrays(top, bottom)
    return np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)
