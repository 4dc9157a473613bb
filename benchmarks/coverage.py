"""How often the 95 % intervals of a report hold the truth: simulated tests with and without patients.

    python benchmarks/coverage.py            # 1,000 tests of each kind, about 15 minutes on one core
    python benchmarks/coverage.py --tests 200

Scores are drawn from two normal distributions d apart. Of a patient's scores a share `icc` of the variance is the
patient's own, so that some patients are hard; "sizes" says how many images a patient has: "one", "1-5" evenly, or
"malaria", drawn like those of the NIH malaria set (median 86, the largest several hundred). The truth of proportions
is the normal distribution function, and so is that of the AUROC, whose pairs are nearly all of two patients. "PPV at
1 %" is at that prevalence, and "net benefit" at a threshold of 20 %; both of the class "yes".

Each row is a design; a cell is the share of the tests whose interval held the truth. Beside AUROC and balanced
accuracy stands what the usual methods would have covered in the same tests: DeLong's interval without patients and
on the plain scale, and the percentile bootstrap of patients.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from math import log
from statistics import NormalDist

import numpy as np

from vitmed.core.config import EvaluateConfig
from vitmed.metrics.bootstrap import percentile_interval
from vitmed.metrics.clinical_utility import prevalence_table
from vitmed.metrics.estimates import Estimate, estimate
from vitmed.metrics.evaluation import PreparedPredictions, bootstrap
from vitmed.metrics.intervals import Units, area_spread, class_areas, share_gap
from vitmed.metrics.predictions import Predictions

NORMAL = NormalDist()
SHOWN = ("accuracy", "sensitivity", "specificity", "balanced_accuracy", "auroc", "mcc", "PPV at 1 %", "net benefit")
PREVALENCE, ACTING = 0.01, 0.2


@dataclass(frozen=True)
class Design:
    """One kind of test set: units (patients, or images), their sizes, accuracy at the middle, and likeness within."""

    units: int
    sizes: str
    accuracy: float
    icc: float
    pure: bool = False  # all images of a patient are of one class


DESIGNS = [
    *(Design(n, "one", a, 0.0) for n in (50, 200, 1000) for a in (0.85, 0.95, 0.98)),
    *(Design(g, "1-5", a, 0.2) for g in (10, 20, 50, 200) for a in (0.85, 0.95)),
    *(Design(g, "malaria", a, 0.1) for g in (10, 20, 50, 200) for a in (0.85, 0.95)),
    *(Design(g, "malaria", 0.95, 0.1, pure=True) for g in (20, 50, 200)),
    *(Design(5, sizes, 0.95, 0.1) for sizes in ("1-5", "malaria")),
]


def draw(design: Design, rng: np.random.Generator) -> Predictions:
    """One test set of a design, with half of the images positive."""
    g = design.units
    if design.sizes == "one":
        sizes = np.ones(g, dtype=int)
    elif design.sizes == "1-5":
        sizes = rng.integers(1, 6, g)
    else:
        sizes = np.clip(np.round(rng.lognormal(np.log(86), 0.95, g)), 10, 702).astype(int)
    patient = np.repeat(np.arange(g), sizes)
    labels = (rng.random(g) < 0.5)[patient] if design.pure else rng.random(len(patient)) < 0.5
    half = NORMAL.inv_cdf(design.accuracy)  # the two means are 2 * half apart, the threshold lies between
    own = np.sqrt(design.icc) * rng.normal(size=g)[patient]
    scores = np.where(labels, half, -half) + own + np.sqrt(1 - design.icc) * rng.normal(size=len(patient))
    logits = np.stack([np.zeros(len(scores)), scores], axis=1).astype(np.float32)
    groups = None if design.sizes == "one" else tuple(f"P{i}" for i in patient)
    return Predictions(("no", "yes"), ("x",) * len(scores), groups, labels.astype(np.int64), logits)


def held(found: tuple[float | None, float | None], truth: float) -> float:
    """1 or 0, NaN without an interval."""
    low, high = found
    return float("nan") if low is None or high is None or np.isnan(low) else float(low <= truth <= high)


def one_test(p: Predictions, truths: dict[str, float], resamples: int, seed: int) -> dict[str, float]:
    """Which intervals held the truth."""
    evaluation = PreparedPredictions(p)
    draws = bootstrap([evaluation], resamples, seed)[0]
    overall, per_class = evaluation.estimates(draws)
    elsewhere = prevalence_table(p, EvaluateConfig(prevalence=PREVALENCE))
    assert elsewhere is not None
    rows = [row.ppv for row in elsewhere.rows if row.prevalence == PREVALENCE]
    overall["PPV at 1 %"] = rows[0] if rows else Estimate(value=None, low=None, high=None)
    acted, truth = p.probabilities[:, 1] >= ACTING, evaluation.labels == 1
    net = share_gap(acted & truth, acted & ~truth, ACTING / (1 - ACTING), evaluation.units)  # as `decision_curve`
    overall["net benefit"] = estimate(*net, "mover")
    entries = {**overall, "sensitivity": per_class[1]["sensitivity"], "specificity": per_class[1]["specificity"]}
    found = {name: held((entries[name].low, entries[name].high), truths[name]) for name in SHOWN}
    positive = evaluation.labels == 1
    area = class_areas(p.probabilities[:, 1], positive)[0]
    error = area_spread(area.influence, positive, Units(np.arange(len(p)))).variance ** 0.5
    found["auroc, DeLong by image"] = held((area.value - 1.96 * error, area.value + 1.96 * error), truths["auroc"])
    found["balanced, percentile bootstrap"] = held(
        percentile_interval(draws["balanced_accuracy"]), truths["balanced_accuracy"]
    )
    return found


def truth_of(design: Design) -> dict[str, float]:
    """What the numbers would be of endlessly many patients."""
    right = design.accuracy
    area = NORMAL.cdf(2**0.5 * NORMAL.inv_cdf(right))
    same = dict.fromkeys(("accuracy", "sensitivity", "specificity", "balanced_accuracy"), right)
    ppv = PREVALENCE * right / (PREVALENCE * right + (1 - PREVALENCE) * (1 - right))
    half, edge = NORMAL.inv_cdf(right), log(ACTING / (1 - ACTING))  # scores are log odds
    gain = 0.5 * (1 - NORMAL.cdf(edge - half)) - ACTING / (1 - ACTING) * 0.5 * (1 - NORMAL.cdf(edge + half))
    return {**same, "auroc": area, "mcc": 2 * right - 1, "PPV at 1 %": ppv, "net benefit": gain}


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--resamples", type=int, default=400)
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first design")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    columns = [*SHOWN, "auroc, DeLong by image", "balanced, percentile bootstrap"]
    print("| units | images each | accuracy | likeness | " + " | ".join(columns) + " |")
    print("| --- " * (len(columns) + 4) + "|")
    for number, design in list(enumerate(DESIGNS))[asked.first :]:
        rng, truths = np.random.default_rng([asked.seed, number]), truth_of(design)
        tests = [one_test(draw(design, rng), truths, asked.resamples, i) for i in range(asked.tests)]
        cells = []
        for name in columns:
            values = np.array([test.get(name, np.nan) for test in tests])
            without = np.isnan(values).mean()
            cells.append("" if without == 1 else f"{100 * np.nanmean(values):.1f}" + ("*" if without > 0.01 else ""))
        kind = f"{design.sizes}{', one class' if design.pure else ''}"
        print(f"| {design.units} | {kind} | {design.accuracy} | {design.icc} | {' | '.join(cells)} |", flush=True)
    print(f"\n{asked.tests:,} tests each; standard error at 95 %: {100 * (0.95 * 0.05 / asked.tests) ** 0.5:.1f}.")
    print(
        "*: of more than 1 % of the tests there is no interval (a class is missing, or all its images one patient's)."
    )


if __name__ == "__main__":
    main()
