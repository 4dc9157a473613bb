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
    seeds: Mapping[str, int], overall: Sequence[Mapping[str, Estimate]], unit: str, metrics: Mapping[str, Metric],
    first: Sequence[str],
) -> SeedSpread:  # fmt: skip
    """The spread of every number over seeds.

    Args:
        seeds: model -> seed, at least two.
        overall: the numbers of each of these models, by the names in `metrics`.
        unit: "patient" or "image", of the intervals.
        metrics: of the kind of label.
        first: the text is about the first of these numbers that is defined.
    """
    numbers = {}
    for name in overall[0]:
        if not all(name in own for own in overall):
            continue
        found = [own[name] for own in overall]
        values = [one.value for one in found if one.value is not None]
        if len(values) < len(found):
            continue
        lows, highs = [e.low for e in found if e.low is not None], [e.high for e in found if e.high is not None]
        known = len(lows) == len(highs) == len(found)
        numbers[name] = SeedNumber(
            mean=float(np.mean(values)), sd=float(np.std(values, ddof=1)), smallest=min(values), largest=max(values),
            low=float(np.mean(lows)) if known else None, high=float(np.mean(highs)) if known else None,
        )  # fmt: skip
    return SeedSpread(seeds=dict(seeds), numbers=numbers, text=_text(seeds, numbers, unit, metrics, first))


def _text(
    seeds: Mapping[str, int], numbers: Mapping[str, SeedNumber], unit: str, metrics: Mapping[str, Metric],
    first: Sequence[str],
) -> str:  # fmt: skip
    runs = f"{listed(list(seeds))} differ by the training seed only ({listed([str(seed) for seed in seeds.values()])})"
    name = next((name for name in first if name in numbers), None)
    if name is None:
        return f"{runs}: no number is defined for all of them"
    found = numbers[name]
    text = f"{runs}: {metrics[name].phrase} mean {found.mean:.3f}, SD over {len(seeds)} seeds {found.sd:.3f}"
    if found.low is None or found.high is None:
        return text
    return f"{text}; 95 % interval of one run over {unit}s [{found.low:.3f}, {found.high:.3f}] on average"
