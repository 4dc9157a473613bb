"""How often the 95 % interval of the sensitivity at a fixed specificity holds the truth, in simulated tests.

    python benchmarks/fixed_rates.py              # 500 tests of each kind, about 6 minutes on one core
    python benchmarks/fixed_rates.py --tests 100

Scores are drawn from two normal distributions. With patients, a share of 0.15 of the variance is the patient's own, and
each image belongs to any patient. A cell is the share of the tests that have an interval whose interval held the truth;
"-": fewer than half of the tests have one, because too few images lie beyond the threshold.
"""

from __future__ import annotations

import argparse
from statistics import NormalDist

import numpy as np

from vitmed.metrics.areas import LEVELS, reached_at
from vitmed.metrics.intervals import Units

NORMAL, LIKENESS = NormalDist(), 0.15
DESIGNS = (  # positive and negative images, patients (0: each image is one)
    *((50, 50, 0), (200, 200, 0), (50, 500, 0), (10, 300, 0), (500, 50, 0), (20, 1000, 0)),
    *((100, 100, 20), (400, 400, 40), (300, 3000, 60)),
)


def held(positives: int, negatives: int, patients: int, apart: float, rng: np.random.Generator) -> list[float]:
    """For each level 1 or 0, NaN without an interval."""
    size = positives + negatives
    truth, unit, own = np.arange(size) < positives, np.arange(size), np.zeros(size)
    if patients:
        _, unit = np.unique(rng.integers(patients, size=size), return_inverse=True)
        own = np.sqrt(LIKENESS) * rng.normal(size=patients)[unit]
    scores = apart * truth + own + np.sqrt(1 - LIKENESS * bool(patients)) * rng.normal(size=size)
    found = []
    for one in reached_at(scores, truth, LEVELS, Units(unit), 300):
        true, (low, high) = 1 - NORMAL.cdf(NORMAL.inv_cdf(one.fixed) - apart), (one.reached.low, one.reached.high)
        found.append(float("nan") if low is None or high is None else float(low <= true <= high))
    return found


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print("| positive | negative | patients | AUROC | " + " | ".join(f"at {level:g}" for level in LEVELS) + " |")
    print("| --- " * (4 + len(LEVELS)) + "|")
    for number, (positives, negatives, patients) in enumerate(DESIGNS):
        for area in (0.8, 0.95):
            rng, apart = np.random.default_rng([asked.seed, number, int(100 * area)]), 2**0.5 * NORMAL.inv_cdf(area)
            tests = np.array([held(positives, negatives, patients, apart, rng) for _ in range(asked.tests)])
            cells = ["-" if np.isnan(t).mean() > 0.5 else f"{100 * np.nanmean(t):.1f}" for t in tests.T]
            print(f"| {positives} | {negatives} | {patients or '-'} | {area} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
