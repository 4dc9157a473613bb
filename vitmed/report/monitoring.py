"""What `vitmed monitor` finds: monitoring.json as typed fields, the page, and a file of metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.files import write_bytes, write_json, write_text
from vitmed.core.text import NOTICE, counted, listed
from vitmed.metrics.control_charts import Side
from vitmed.metrics.estimates import Estimate
from vitmed.report.page import data_uri, fill
from vitmed.report.plots.drawing import png
from vitmed.report.plots.monitoring import control_charts

NUMBERS, PAGE, PICTURE, METRICS = "monitoring.json", "monitoring.html", "monitoring.png", "monitoring.prom"


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
        n: new images that count.
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


def write_monitoring(folder: Path, found: Monitoring, sums: Mapping[str, Mapping[Side, np.ndarray]]) -> None:
    """Every file of the folder.

    Args:
        sums: chart -> side -> (S,) the sum after each image.
    """
    write_json(folder / NUMBERS, found.to_dict())
    write_text(folder / METRICS, prometheus(found))
    figure = control_charts(found.charts, sums)
    picture = None if figure is None else png(figure)
    if picture is not None:
        write_bytes(folder / PICTURE, picture)
    page = fill(
        "monitoring.html.j2",
        found=found,
        alarms=[alarm_text(one) for one in found.alarms],
        watched=[one for one in found.charts if not one.why_not],
        left_out=[one for one in found.charts if one.why_not],
        picture=None if picture is None else data_uri(picture),
        notice=NOTICE,
    )
    write_text(folder / PAGE, page)


def prometheus(found: Monitoring) -> str:
    """The charts in Prometheus' text format, for the textfile collector of its node exporter."""
    rows: dict[tuple[str, str], list[str]] = {}
    for chart in found.charts:
        if chart.why_not:
            continue
        labels = f'{{model="{(found.weights_hash or "")[:12]}",chart="{_escaped(chart.name)}"}}'
        values = {
            ("cusum", "Sum of the deviations from the reference, in its standard deviations."): chart.last,
            ("cusum_limit", "Limit of the sum."): chart.limit,
            ("alarm", "Whether the sum has been above its limit."): float(chart.alarm is not None),
            ("mean", "Mean, or share, of the new images."): chart.now.value,
        }
        for key, value in values.items():
            if value is not None:
                rows.setdefault(key, []).append(f"vitmed_monitor_{key[0]}{labels} {value!r}")
    of_model = f'{{model="{(found.weights_hash or "")[:12]}"}}'
    rows[("images", "New images.")] = [f"vitmed_monitor_images{of_model} {found.images}"]
    lines = []
    for (name, text), own in rows.items():
        lines += [f"# HELP vitmed_monitor_{name} {text}", f"# TYPE vitmed_monitor_{name} gauge", *own]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """A value of a label: https://prometheus.io/docs/instrumenting/exposition_formats/"""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
