"""What `vitmed monitor` finds, as typed fields: the content of monitoring.json."""

from __future__ import annotations

from vitmed.core.base_models import Frozen
from vitmed.core.text import counted, listed
from vitmed.metrics.control_charts import Side
from vitmed.metrics.estimates import Estimate


class Alarm(Frozen):
    """The first image at which a sum is above its limit.

    Attributes:
        row: of the table, from 1; time: of that row, if the table has times.
        since_row, since_time: the first image after the sum was last 0, about where the change began (Page 1954).
    """

    side: Side
    row: int
    time: str | None
    since_row: int
    since_time: str | None


class Chart(Frozen):
    """One CUSUM chart.

    Attributes:
        n: images of the newest period that count.
        reference, now, difference: the mean, or the share; now minus reference.
        sides: of the mean that give an alarm.
        limit: of the sum, in standard deviations of the reference.
        last, peak: the sum after the last image, and the highest; of two sides the larger.
        found_shift: the mean after the smallest shift that the chart is made for; delay: after how many images that
            count it is seen, at the median; None: not within a period.
        why_not: why nothing is watched; then `limit` and what follows from it is None.
    """

    name: str
    n: int
    reference: Estimate
    now: Estimate
    difference: Estimate
    sides: list[Side]
    limit: float | None = None
    last: float | None = None
    peak: float | None = None
    found_shift: float | None = None
    delay: int | None = None
    alarm: Alarm | None = None
    why_not: str = ""


class FalseAlarms(Frozen):
    """`asked`: the share of periods without a change that may give an alarm; `found`: in simulated periods."""

    asked: float
    period: int
    found: float
    simulated: int


class Monitoring(Frozen):
    """The content of monitoring.json.

    Attributes:
        run: name of the run folder; weights_hash: of the model.
        split, reference_images, reference_patients: of the reference; None: patients are unknown.
        images, labelled: new images, and those with a label; patients: None: unknown.
        first, last: times of the first and the last new image.
        shift: of a mean, in standard deviations, that the charts find soonest.
    """

    run: str
    weights_hash: str | None
    created: str
    split: str
    reference_images: int
    reference_patients: int | None
    images: int
    labelled: int
    patients: int | None
    first: str | None
    last: str | None
    shift: float
    false_alarms: FalseAlarms | None
    charts: list[Chart]
    notes: list[str]

    @property
    def alarms(self) -> list[Chart]:
        """The charts with an alarm, the earliest first."""
        return sorted((one for one in self.charts if one.alarm is not None), key=lambda one: one.alarm.row)  # type: ignore[union-attr]

    @property
    def verdict(self) -> str:
        """What was found, in a sentence."""
        watched = [one for one in self.charts if not one.why_not]
        if not self.alarms:
            return f"no alarm: {counted(self.images, 'image')}, {counted(len(watched), 'chart')}"
        return f"alarm: {listed([alarm_text(one) for one in self.alarms], 4, '; ')}"


def alarm_text(chart: Chart) -> str:
    """`sensitivity falls at image 212 (2026-03-02), since about 2026-02-20`"""
    alarm = chart.alarm
    assert alarm is not None
    if alarm.time is None:
        return f"{chart.name} {alarm.side}s after {counted(alarm.row, 'image')}"
    return f"{chart.name} {alarm.side}s at image {alarm.row:,} ({alarm.time}), since about {alarm.since_time}"
