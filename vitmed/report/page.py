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
        "worth": worth(metrics),
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
    """How the intervals came about, for a reader who knows none of the methods."""
    level, sample = f"{metrics['level']:.0%} intervals", metrics["sample"]
    rest = f"the rest from {metrics['resamples']:,} resamples (bootstrap)."
    if metrics["resampling"] != "by patient":
        return (
            f"{level}: of proportions by Wilson, of AUROC by DeLong, {rest} Each image counts as independent. The "
            "patients are unknown: if they have several images each, the intervals are too narrow."
        )
    sizes = sample["images_per_patient"]
    if not sizes or sizes["max"] == 1:
        return f"{level}: of proportions by Wilson, of AUROC by DeLong, {rest} Each patient has one image."
    return (
        f"{level}, by patient: of proportions by Wilson for the effective number of images, of AUROC by Obuchowski, "
        f"{rest} They show how the numbers would differ with other patients."
    )


def worth(metrics: Mapping[str, Any]) -> str:
    """What the sample is worth, in words: patients, images of each, and how many independent images they equal."""
    sample, right = metrics["sample"], metrics["sample"]["accuracy"]
    sizes = sample["images_per_patient"]
    if sizes is None:
        return ""
    each = f"{sizes['min']:,} to {sizes['max']:,} of each, in the median {sizes['median']:,.4g}"
    each = f"{sizes['max']:,} of each" if sizes["min"] == sizes["max"] else each
    told = f"{sample['n_images']:,} images of {sample['n_patients']:,} patients, {each}."
    if sizes["max"] == 1 or right["effective_n"] is None:
        return told
    if right["design_effect"] is None:
        return f"{told} No error was seen, so nothing tells how alike a patient's images are: each patient counts once."
    parts = [f"{right['effective_n']:,.0f} independent images for the accuracy"]
    if metrics["positive_class"] is not None:
        found = sample["classes"][metrics["classes"].index(metrics["positive_class"])]
        known = [(name, one["effective_n"]) for name, one in found.items() if one["effective_n"] is not None]
        parts += [f"{number:,.0f} for the {name}" for name, number in known]
    alike = "" if right["icc"] is None else f"intraclass correlation of being right {right['icc']:.2f}, "
    return f"{told} They are worth {', '.join(parts)} ({alike}design effect {right['design_effect']:.1f})."


SECTIONS: dict[str, str] = {  # key, and name of its template in sections/ -> heading; one without content is left out
    "results": "Results",
    "errors": "Errors",
    "training": "Data, model and training",
}
