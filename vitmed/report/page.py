"""report.html: one file that needs nothing else. A section is a line in `SECTIONS`, a template and its figures.

The template of a section sees `metrics` (all that metrics.json holds), `facts`, and the ways to write an entry of
{value, low, high}: `value(entry)`, `interval(entry)`, `signed(entry)`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vitmed.metrics import FEW_GROUPS, METRICS, PER_CLASS
from vitmed.plots import PLOTS

HEADLINE = ("auroc", "balanced_accuracy", "accuracy", "mcc")  # after them, of two classes, those of the positive one
CLASS_TITLES = {
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "f1": "F1",
    "auroc": "AUROC",
    "average_precision": "Average precision",
}


def render(metrics: Mapping[str, Any], figures: Mapping[str, bytes], *, title: str, facts: Mapping[str, str]) -> str:
    """The text of report.html: one file without scripts, that loads nothing.

    Args:
        metrics: from `evaluate_predictions`.
        figures: name in `PLOTS`, or training_curves -> PNG.
    """
    positive = metrics["positive_class"]
    headline = [(METRICS[name].title, metrics["overall"][name]) for name in HEADLINE]
    if positive is not None:
        names = ("sensitivity", "specificity", "ppv", "npv")
        headline += [(CLASS_TITLES[name], metrics["per_class"][positive][name]) for name in names]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    context = {
        "title": title,
        "facts": facts,
        "metrics": metrics,
        "headline": headline,
        "sampling": _sampling(metrics),
        "overall": [(metric, metrics["overall"][name]) for name, metric in METRICS.items()],
        "class_titles": [(name, CLASS_TITLES[name]) for name in PER_CLASS],
        "few_groups": FEW_GROUPS,
        "compared": [(name, METRICS[name].title) for name in HEADLINE[:3]],
        "signed": lambda entry: "undefined" if entry["value"] is None else f"{entry['value']:+.3f}",
        "value": lambda entry: "undefined" if entry["value"] is None else f"{entry['value']:.3f}",
        "interval": lambda entry: "" if entry["low"] is None else f"{entry['low']:.3f} to {entry['high']:.3f}",
    }
    sections = []
    for key, heading in SECTIONS.items():
        text = environment.get_template(f"sections/{key}.html.j2").render(context).strip()
        shown = [_figure(name, data) for name, data in figures.items() if _section(name) == key]
        if text or shown:
            sections.append({"key": key, "title": heading, "text": Markup(text), "figures": shown})
    return environment.get_template("report.html.j2").render(context, sections=sections)


def _section(figure: str) -> str:
    return PLOTS[figure].section if figure in PLOTS else "training"


def _figure(name: str, data: bytes) -> dict[str, str]:
    known = PLOTS.get(name)
    return {
        "title": known.title if known else "Training",
        "text": known.text if known else "Loss, validation metrics and learning rate by epoch.",
        "source": "data:image/png;base64," + base64.b64encode(data).decode(),
    }


def _sampling(metrics: Mapping[str, Any]) -> str:
    """How the intervals came about, in a sentence for a reader who does not know the bootstrap."""
    what = f"{metrics['level']:.0%} intervals: the middle of {metrics['resamples']:,} resamples (percentile bootstrap)."
    if metrics["resampling"] == "by patient":
        return (
            f"{what} Each resample draws {metrics['n_groups']:,} of the {metrics['n_groups']:,} patients with "
            "replacement, each with all images, so the intervals show how the numbers would differ with other patients."
        )
    return (
        f"{what} Each resample draws {metrics['n']:,} of the {metrics['n']:,} images with replacement. The patients "
        "are unknown: if they have several images each, the intervals are too narrow."
    )


SECTIONS: dict[str, str] = {  # key, and name of its template in sections/ -> heading; one without content is left out
    "results": "Results",
    "errors": "Errors",
    "attention": "Attention",
    "robustness": "Robustness",
    "training": "Data, model and training",
}
