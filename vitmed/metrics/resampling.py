"""Bootstrap: the images of each resample, and the interval of their values.

Percentile bootstrap: Efron & Tibshirani, An Introduction to the Bootstrap (1993), chapter 13; resamples of whole
groups: Field & Welsh, J. R. Stat. Soc. B 69 (2007) 369. With few groups its interval is too narrow: `widened_level`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np

CHUNK = 2**19  # image weights held at once (4 MB): larger is slower, because it leaves the processor's cache


def bootstrap_weights(units: np.ndarray, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Draw units with replacement, as many as there are, `resamples` times.

    Args:
        units: (S,) int64, the unit (image or group) of each image, 0..G-1.

    Yields:
        (r, S) float64 weights, how often each image was drawn; the r add up to `resamples`, and r x S is bounded.
    """
    rng = np.random.default_rng(seed)
    size = int(units.max()) + 1
    rows = max(1, CHUNK // max(1, len(units)))
    for start in range(0, resamples, rows):
        r = min(rows, resamples - start)
        drawn = rng.integers(size, size=(r, size)) + size * np.arange(r)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=r * size).reshape(r, size).astype(np.float64)  # (r, G)
        yield counts.take(units, axis=1)  # (r, S)


def percentile_interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The middle `level` of the defined values; (NaN, NaN) where there are none."""
    values = values[np.isfinite(values)]
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def group_index(groups: Sequence[str] | None, size: int) -> np.ndarray:
    """(S,) int64 number of each image's group; without groups, and where its name is empty, each is its own."""
    if groups is None:
        return np.arange(size)
    numbers: dict[tuple[str, int], int] = {}
    keys = [(name, -1 if name else i) for i, name in enumerate(groups)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def widened_level(level: float, degrees: float) -> float:
    """The level of a percentile interval that corrects for few units: Hesterberg, Am. Stat. 69 (2015) 371.

    A resample varies less than the sample, and the variance is uncertain; at 9 degrees 0.95 becomes 0.983.
    """
    from scipy.special import stdtrit  # imported here: predict starts without it

    reach = float(stdtrit(degrees, (1 + level) / 2)) * ((degrees + 1) / degrees) ** 0.5
    return 2 * NormalDist().cdf(reach) - 1
