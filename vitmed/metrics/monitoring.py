"""What `vitmed monitor` finds, as typed fields: the content of monitoring.json."""

from __future__ import annotations

from vitmed.core.base_models import Frozen
from vitmed.core.text import counted, listed
from vitmed.metrics.control_charts import Side
from vitmed.metrics.estimates import Estimate


class Alarm(Frozen):
    """The first image at which a sum is above its limit."""

    side: Side
    row: int  # of the table, from 1
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
    delay: int | None = None  # after how many images that count it is seen, at the median; None: not within a period
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
