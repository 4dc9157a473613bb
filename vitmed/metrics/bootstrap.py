"""Resampled sums of predictions, for the interval of any function of sums over images.

A resample draws whole patients where they are known, else images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitmed.metrics.estimates import Estimate, estimate, of_share
from vitmed.metrics.evaluation import ALIKE
from vitmed.metrics.intervals import NONE, Units, share
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.ranking import ratio as ratio
from vitmed.metrics.resampling import bootstrap_weights, group_index, percentile_interval, widened_level

MOST = 500  # resamples behind a curve: with more, the ends of an interval move by a tenth of its width
LEVEL = 0.95
Z = 1.959963984540054  # of the normal distribution, for LEVEL


@dataclass(frozen=True)
class Bootstrap:
    """How images are resampled; fewer than two units are not."""

    units: np.ndarray  # (S,) int64, the patient of each image, or its own number
    resamples: int
    clustered: bool  # whether the units are patients

    @classmethod
    def of(cls, predictions: Predictions, resamples: int) -> Bootstrap:
        """By the groups of the predictions, with at most `MOST` resamples."""
        units = group_index(predictions.groups, len(predictions))
        return cls(units, min(resamples, MOST), predictions.groups is not None)

    @property
    def size(self) -> int:
        """The number of units."""
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
        whole, table = values.sum(axis=0, dtype=np.float64), self.per_unit(values)  # (F,), (G, F)
        if self.size < 2 or self.resamples < 1:
            return whole, np.empty((0, values.shape[1]))
        drawn = [weights @ table for weights in bootstrap_weights(np.arange(self.size), self.resamples, seed=0)]
        return whole, np.concatenate(drawn)

    def proportion(self, hits: np.ndarray, counted: np.ndarray) -> Estimate:
        """The share of hits (S,) bool among the counted images (S,) bool, as in `evaluate_predictions`."""
        return of_share(share(hits, counted, Units(self.units, LEVEL)))

    def estimate(self, value: float, drawn: np.ndarray) -> Estimate:
        """A number with the percentile interval of its resamples, widened for few units; none if they do not vary."""
        low, high = percentile_interval(drawn, widened_level(LEVEL, max(1.0, self.size - 1)))
        return estimate(value, *((low, high) if high - low > ALIKE else NONE), "bootstrap")
