"""Bootstrap: the images of each resample, and the intervals of numbers that are computed in every resample.

A resample draws whole patients where they are known, else images. Percentile bootstrap: Efron & Tibshirani, An
Introduction to the Bootstrap (1993), chapter 13; resamples of whole groups: Field & Welsh, J. R. Stat. Soc. B 69 (2007)
369. With few groups its interval is too narrow: `widened_level`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from vitmed.metrics.estimates import Estimate, estimate, of_share
from vitmed.metrics.intervals import LEVEL, NONE, Units, quantile, ratio, share
from vitmed.metrics.predictions import Predictions

CHUNK = 2**19  # image weights held at once (4 MB): larger is slower, because it leaves the processor's cache
MOST = 500  # resamples behind a curve: with more, the ends of an interval move by a tenth of its width
ALIKE = 1e-12  # an interval no wider than this is none: all resamples gave the same


def bootstrap_weights(units: np.ndarray, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Draw units with replacement, as many as there are, `resamples` times, from the unit of each image, (S,) int64.

    Yields:
        (r, S) float64 weights, how often each image was drawn; the r add up to `resamples`, and r x S is bounded.
    """
    rng, size, rows = np.random.default_rng(seed), int(units.max()) + 1, max(1, CHUNK // max(1, len(units)))
    for start in range(0, resamples, rows):
        r = min(rows, resamples - start)
        drawn = rng.integers(size, size=(r, size)) + size * np.arange(r)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=r * size).reshape(r, size).astype(np.float64)  # (r, G)
        yield counts.take(units, axis=1)  # (r, S)


def percentile_interval(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The middle `level` of the defined values; (NaN, NaN) where there are none."""
    values = values[np.isfinite(values)]
    if not len(values):
        return NONE
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def widened_level(degrees: float) -> float:
    """The level of a percentile interval that corrects for few units: a resample varies less than the sample, and the
    variance is uncertain (Hesterberg, Am. Stat. 69 (2015) 371). At 9 degrees 0.95 becomes 0.983."""
    return 2 * NormalDist().cdf(quantile(degrees) * ((degrees + 1) / degrees) ** 0.5) - 1


@dataclass(frozen=True)
class Bootstrap:
    """Resampled sums over images, for the interval of any function of them; fewer than two units are not resampled."""

    units: Units
    resamples: int

    @classmethod
    def of(cls, predictions: Predictions, resamples: int) -> "Bootstrap":
        """By the groups of the predictions, with at most `MOST` resamples."""
        return cls(Units(predictions.units), min(resamples, MOST))

    def sums(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums over all images, (F,), and in each resample, (R, F), of values (S, F); R is 0 where none are drawn."""
        whole, table, count = values.sum(axis=0, dtype=np.float64), self.units.sums(values), self.units.count
        if count < 2 or self.resamples < 1:
            return whole, np.empty((0, values.shape[1]))
        drawn = [weights @ table for weights in bootstrap_weights(np.arange(count), self.resamples, seed=0)]
        return whole, np.concatenate(drawn)

    def ratios(self, top: np.ndarray, bottom: np.ndarray) -> list[Estimate]:
        """The sum of `top` over that of `bottom`, (S, J) each, by column, of the units that have any of `bottom`."""
        whole, drawn = (ratio(*np.split(both, 2, axis=-1)) for both in self.sums(np.concatenate([top, bottom], axis=1)))
        counts = (self.units.sums(bottom) > 0).sum(axis=0).tolist()
        return [self.estimate(float(x), column, n) for x, column, n in zip(whole, drawn.T, counts, strict=True)]

    def proportion(self, hits: np.ndarray, counted: np.ndarray | None = None) -> Estimate:
        """The share of hits (S,) bool among the counted images (S,) bool, or all, as in `evaluate_predictions`."""
        return of_share(share(hits, counted, self.units))

    def estimate(self, value: float, drawn: np.ndarray, count: int | None = None) -> Estimate:
        """A number with the percentile interval of its resamples, widened for few units (`count`, default all); none if
        they do not vary."""
        low, high = percentile_interval(drawn, widened_level(max(1.0, (count or self.units.count) - 1)))
        return estimate(value, *((low, high) if high - low > ALIKE else NONE), "bootstrap", len(drawn))
