"""The files of `vitmed monitor`: monitoring.json, the charts, the page, and metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vitmed.core.files import write_bytes, write_json, write_text
from vitmed.core.text import NOTICE
from vitmed.metrics.control_charts import Side
from vitmed.metrics.monitoring import Monitoring, alarm_text
from vitmed.report.page import data_uri, fill
from vitmed.report.plots.drawing import png
from vitmed.report.plots.monitoring import control_charts

NUMBERS, PAGE, PICTURE, METRICS = "monitoring.json", "monitoring.html", "monitoring.png", "monitoring.prom"


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
