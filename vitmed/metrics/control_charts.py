"""CUSUM charts: since when, and how surely, what a model does on new images differs from a reference.

Each chart watches one value of an image, such as its probability, or whether a positive image was called. It adds up
how far the values lie from the mean of the reference, less an allowance, and never falls below 0 (Page, Biometrika 41
(1954) 100; Hawkins & Olwell, Cumulative Sum Charts, 1998). A sum above its limit is an alarm. A chart that ran on would
give a false alarm at some time for certain, so each starts anew with the newest period, whose share is known.

The limits are simulated, not taken from a table: values are skewed, the images of a patient are alike, the reference
is small, and several charts are read together. Each simulation draws a population from the reference, by patient, and
a period of new images from the population; the limits are such that in a given share of these periods any chart gives
an alarm.

Letters: S images, C charts, N images of a period, R simulations.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.text import counted, listed
from vitmed.metrics.estimates import Estimate

MOST = 3.0  # standard deviations
FEWEST = 10  # values of the reference below which nothing is watched
Side = Literal["rise", "fall"]
BOTH: tuple[Side, ...] = ("rise", "fall")


@dataclass(frozen=True)
class Stream:
    """What a chart watches."""

    values: np.ndarray  # (S,) float64, of each image in order; NaN: does not count, as a negative for sensitivity
    sides: tuple[Side, ...] = BOTH  # whether a rise of the mean, a fall, or either gives an alarm
    share: bool = False  # whether the values are 0 and 1, and their mean is a share
    ends: tuple[float, float] = (-np.inf, np.inf)  # of what the mean can be
    least: float = 0.0  # the smallest standard deviation that counts: no shift too small to matter is an alarm

    def why_not(self, shift: float) -> str:
        """Why charts for this shift cannot watch the values, in words; "" if they can."""
        known = self.values[np.isfinite(self.values)]
        if len(known) < FEWEST:
            return f"the reference has {len(known)} such images, and {FEWEST} are needed"
        if self.share:
            p = (known.sum() + 1) / (len(known) + 2)  # as in `Reference`
            farthest = max(p if side == "fall" else 1 - p for side in self.sides) / np.sqrt(p * (1 - p))
            never = f"the reference is {known.mean():.3g}: no {' or '.join(self.sides)} can give an alarm"
            never += "; a smaller --shift watches it" * bool(0 < known.mean() < 1)
            return "" if farthest > shift / 2 else never
        return "" if self.least or np.ptp(known) > 0 else "the reference has one value for all images"


class Reference(NamedTuple):
    """The values of C streams, standardised by the mean and the standard deviation of the reference.

    Values beyond `MOST` standard deviations count as `MOST`, so that no single image is an alarm (Lucas & Crosier,
    Commun. Stat. Theory Methods 11 (1982) 2669). A share has no such limit, but two images more, one of either kind,
    so that what the reference lacks can happen (Agresti & Coull, Am. Stat. 52 (1998) 119). So have values that vary
    less than `least`, at `MOST` on either side: those known may all lie within the allowance.
    """

    streams: dict[str, Stream]
    raw: np.ndarray  # (S + 2, C) float64; NaN where an image does not count
    units: np.ndarray  # (S + 2,) int64 patients; an added image is one of its own
    centre: np.ndarray  # (C,)
    spread: np.ndarray  # (C,)
    most: np.ndarray  # (C,) standard deviations
    sizes: np.ndarray | None = None  # (P,) int64 images of each new patient; None: unknown

    @classmethod
    def of(cls, streams: Mapping[str, Stream], units: np.ndarray, sizes: np.ndarray | None = None) -> "Reference":
        """The reference of streams that can be watched; `units` (S,) int64 are the patients of their images."""
        watched = streams.values()
        added = [(1.0, 0.0) if stream.share else (np.nan, np.nan) for stream in watched]
        values = np.concatenate([np.stack([stream.values for stream in watched], axis=1), np.transpose(added)])
        centre = np.nanmean(values, axis=0)
        spread = np.maximum(np.nanstd(values, axis=0), [stream.least for stream in watched])
        quiet = np.nanstd(values, axis=0) < spread
        values[-2:, quiet] = centre[quiet] + np.outer([MOST, -MOST], spread[quiet])
        most = np.array([np.inf if stream.share else MOST for stream in watched])
        return cls(dict(streams), values, np.append(units, units.max() + np.arange(1, 3)), centre, spread, most, sizes)

    def standardised(self, new: Mapping[str, Stream] | None = None) -> np.ndarray:
        """(T, C) float64: new values in standard deviations from the mean of the reference; None: its own, (S + 2,
        C)."""
        values = self.raw if new is None else np.stack([new[name].values for name in self.streams], axis=1)
        before, after = (np.clip((x - self.centre) / self.spread, -self.most, self.most) for x in (self.raw, values))
        return after - np.nanmean(before, axis=0)


def newest(stream: Stream, period: int) -> Stream:
    """The period of images that ends with the last one that counts; those before do not count."""
    values = stream.values.astype(np.float64)
    last = np.flatnonzero(np.isfinite(values))[-1:]
    values[: max(0, int(last.sum()) + 1 - period)] = np.nan
    return replace(stream, values=values)


def sums(values: np.ndarray, allowance: float) -> np.ndarray:
    """(..., N) -> (..., N): the sum of what exceeds the allowance, never below 0; NaN adds nothing."""
    total = np.cumsum(np.where(np.isnan(values), 0.0, values - allowance), axis=-1)
    return total - np.minimum(0.0, np.minimum.accumulate(total, axis=-1))


def highest(values: np.ndarray, sides: tuple[Side, ...], allowance: float) -> np.ndarray:
    """(..., N) standardised -> (..., N): the larger sum of these sides."""
    return np.maximum.reduce([sums(values if side == "rise" else -values, allowance) for side in sides])


def choose_limits(
    reference: Reference, shift: float, period: int, false_alarms: float, simulations: int = 2000, seed: int = 0
) -> tuple[np.ndarray, int]:
    """Limits with which a share `false_alarms` of periods of N images without a change gives any alarm.

    The charts find a `shift` of the mean, in standard deviations, soonest; the allowance is half of it. `simulations`
    choose the limits of the sums, (C,); of as many others, the second result gives an alarm.
    """
    draw, sides = _periods(reference, period, seed), [stream.sides for stream in reference.streams.values()]
    pairs = (zip(next(draw).T, sides, strict=True) for _ in range(2 * simulations))
    peaks = np.array([[highest(values, of, shift / 2).max() for values, of in each] for each in pairs])
    chosen, others = np.split(peaks, 2)  # (R, C) each
    # how rare the rarest of the C peaks of a period is: at one rarity for all charts, the share of periods is as asked
    ordered = np.sort(chosen, axis=0)
    below = [np.searchsorted(ordered[:, c], chosen[:, c], side="left") for c in range(chosen.shape[1])]
    level = float(np.quantile((1 - np.stack(below, axis=1) / len(chosen)).min(axis=1), false_alarms))
    limits = np.quantile(chosen, 1 - level, axis=0, method="higher")
    return limits, int((others > limits).any(axis=1).sum())


def _periods(reference: Reference, period: int, seed: int) -> Iterator[np.ndarray]:
    """Draw periods (N, C) of standardised values without a change, of patients like those of the reference; one with
    more images than there has some of them again, as if they were as alike as can be."""
    rng, standardised = np.random.default_rng(seed), reference.standardised()
    _, index = np.unique(reference.units, return_inverse=True)
    order, count = np.argsort(index, kind="stable"), np.bincount(index)  # images of each patient
    start, size = np.cumsum(count) - count, len(count)
    sizes = count if reference.sizes is None else reference.sizes
    while True:
        everyone = rng.integers(size, size=size - 2)  # bootstrap: as many as the reference has, without the added
        rows: list[np.ndarray] = []
        while sum(map(len, rows)) < period:
            weight = np.where(everyone < size - 2, count[everyone], sizes.mean())  # the added images come alone
            drawn = rng.choice(everyone, size=int(period / sizes.mean()) + 1, p=weight / weight.sum())
            owner = np.repeat(drawn, np.where(drawn < size - 2, rng.choice(sizes, size=len(drawn)), 1))
            rows.append(order[start[owner] + np.arange(len(owner)) % count[owner]])
        yield standardised[np.concatenate(rows)[:period]]


class Alarm(Frozen):
    """The first image at which a sum is above its limit."""

    side: Side
    row: int  # from 1, in the order of time
    time: str | None  # of that row, if the table has times
    since_row: int  # the first image after the sum was last 0, about where the change began (Page 1954)
    since_time: str | None


class Chart(Frozen):
    """One CUSUM chart; `why_not`: why nothing is watched; then `limit` and what follows from it is None."""

    name: str
    n: int  # images of the newest period that count
    reference: Estimate  # the mean, or the share
    now: Estimate
    difference: Estimate  # now minus reference
    sides: list[Side]  # of the mean that give an alarm
    limit: float | None = None  # of the sum, in standard deviations of the reference
    last: float | None = None  # the sum after the last image; of two sides the larger
    peak: float | None = None  # the highest sum
    found_shift: float | None = None  # the mean after the smallest shift that the chart is made for
    alarm: Alarm | None = None
    why_not: str = ""


class FalseAlarms(Frozen):
    """`asked`: the share of periods without a change that may give an alarm; `found`: in simulated periods."""

    asked: float
    period: int
    found: float
    simulated: int


class Monitoring(Frozen):
    """The content of monitoring.json."""

    run: str  # name of the run folder
    weights_hash: str | None
    created: str
    split: str  # of the reference
    reference_images: int
    reference_patients: int | None  # None: patients are unknown
    images: int  # new
    labelled: int  # of them with a label
    patients: int | None
    first: str | None  # times of the first and the last new image
    last: str | None
    shift: float  # of a mean, in standard deviations, that the charts find soonest
    false_alarms: FalseAlarms | None
    charts: list[Chart]
    notes: list[str]

    @property
    def alarms(self) -> list[Chart]:
        """The charts with an alarm, the earliest first."""
        rows = [(chart.alarm.row, chart) for chart in self.charts if chart.alarm is not None]
        return [chart for _, chart in sorted(rows, key=lambda pair: pair[0])]

    @property
    def verdict(self) -> str:
        """What was found, in a sentence."""
        if self.alarms:
            return f"alarm: {listed([alarm_text(chart) for chart in self.alarms], 4, '; ')}"
        watched = sum(not chart.why_not for chart in self.charts)
        return f"no alarm: {counted(self.images, 'image')}, {counted(watched, 'chart')}"


def alarm_text(chart: Chart) -> str:
    """`sensitivity falls at image 212 (2026-03-02), since about 2026-02-20`"""
    alarm = chart.alarm
    assert alarm is not None
    if alarm.time is None:
        return f"{chart.name} {alarm.side}s after {counted(alarm.row, 'image')}"
    return f"{chart.name} {alarm.side}s at image {alarm.row:,} ({alarm.time}), since about {alarm.since_time}"
