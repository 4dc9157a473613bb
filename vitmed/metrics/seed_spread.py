"""How much a number varies between trainings that differ by their seed only, apart from its interval over patients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.text import listed
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.metric_table import Metric


class SeedNumber(Frozen):
    """A number over several trainings.

    `mean`, `sd` (n - 1 in the denominator), `smallest` and `largest` are over seeds. `low` and `high` are the mean ends
    of the intervals of the single runs, which say how the number of one run varies with other patients; None where a
    run has no interval.
    """

    mean: float
    sd: float
    smallest: float
    largest: float
    low: float | None
    high: float | None


class SeedSpread(Frozen):
    """Runs that differ by their seed only: model -> seed, and the numbers that are defined for all of them."""

    seeds: dict[str, int]
    numbers: dict[str, SeedNumber]
    text: str


def seed_spread(
    seeds: Mapping[str, int],
    overall: Sequence[Mapping[str, Estimate]],
    unit: str,
    metrics: Mapping[str, Metric],
    first: Sequence[str],
) -> SeedSpread:
    """The spread of every number over seeds.

    Args:
        seeds: model -> seed, at least two.
        overall: the numbers of each of these models, by the names in `metrics`.
        unit: "patient" or "image", of the intervals.
        first: the text is about the first of these numbers that is defined.
    """
    numbers = {}
    for name in overall[0]:
        estimates = [of_run[name] for of_run in overall if name in of_run]
        values, lows, highs = (
            [end for estimate in estimates if (end := getattr(estimate, part)) is not None]
            for part in ("value", "low", "high")
        )
        if len(values) < len(overall):
            continue
        known = len(lows) == len(highs) == len(overall)
        ends = {"low": float(np.mean(lows)), "high": float(np.mean(highs))} if known else {"low": None, "high": None}
        spread = {"sd": float(np.std(values, ddof=1)), "smallest": min(values), "largest": max(values)}
        numbers[name] = SeedNumber(mean=float(np.mean(values)), **spread, **ends)
    text = f"{listed(list(seeds))} differ by the training seed only ({listed([str(seed) for seed in seeds.values()])})"
    name = next((name for name in first if name in numbers), "")
    if not name:
        return SeedSpread(seeds=dict(seeds), numbers=numbers, text=f"{text}: no number is defined for all of them")
    number = numbers[name]
    text += f": {metrics[name].phrase} mean {number.mean:.3f}, SD over {len(seeds)} seeds {number.sd:.3f}"
    if number.low is not None and number.high is not None:
        text += f"; 95 % interval of one run over {unit}s [{number.low:.3f}, {number.high:.3f}] on average"
    return SeedSpread(seeds=dict(seeds), numbers=numbers, text=text)
