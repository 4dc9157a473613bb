"""report.html: one file that needs nothing else. A section is a line in `SECTIONS`, a template and its figures.

The template of a section sees `metrics` (all that metrics.json holds), `facts`, and the ways to write an entry of
{value, low, high}: `value(entry)`, `interval(entry)`, `signed(entry)`; and `number(float or None)`. It may hold neither
style attributes nor scripts: the page's Content-Security-Policy lets only its own through.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vitmed.metrics import FEW_GROUPS, METRICS, PER_CLASS
from vitmed.plots import PLOTS, Drawn
from vitmed.plots.drawing import plain
from vitmed.report.checklists import checklists
from vitmed.report.limitations import limitations
from vitmed.report.slider import at, rows
from vitmed.subgroups import TITLES as GAP_TITLES

FOLDER = Path(__file__).parent
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

POINT_TITLES = {
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "f1": "F1",
    "lr_plus": "LR+",
    "lr_minus": "LR-",
}
CALIBRATION_TITLES = {
    "log_loss": "Log loss",
    "brier": "Brier score",
    "brier_skill": "Brier skill",
    "ece": "ECE",
    "ece_classwise": "Class-wise ECE",
}


def render(
    metrics: Mapping[str, Any],
    figures: Mapping[str, Drawn],
    *,
    title: str,
    facts: Mapping[str, str],
    slider: Mapping[str, Any] | None = None,
    linked: bool = False,
) -> str:
    """The text of report.html: one file that loads nothing and runs one script, its own.

    Args:
        metrics: all that metrics.json holds.
        figures: name in `PLOTS`, or training_curves -> the figure.
        slider: of `slider.slider_data`.
        linked: name the PNG files beside the page instead of holding the figures, for Markdown.
    """
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda x: plain(x) if type(x) is str else x,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    context = {
        "title": title,
        "facts": facts,
        "metrics": metrics,
        "titles": SECTIONS,
        "headline": [(title, entry) for _, title, entry in headline_of(metrics)],
        "sampling": sampling_of(metrics),
        "worth": worth(metrics),
        "overall": [(metric, metrics["overall"][name]) for name, metric in METRICS.items()],
        "class_titles": [(name, CLASS_TITLES[name]) for name in PER_CLASS],
        "metric_titles": {name: metric.title for name, metric in METRICS.items()},
        "gap_titles": GAP_TITLES,
        "few_groups": FEW_GROUPS,
        "point_titles": POINT_TITLES,
        "calibration_titles": CALIBRATION_TITLES,
        "compared": [(name, METRICS[name].title) for name in HEADLINE[:3]],
        "signed": lambda entry: "undefined" if entry["value"] is None else f"{entry['value']:+.3f}",
        "value": value,
        "interval": interval,
        "number": number,
        "slider": slider,
        "slider_rows": rows(slider["classes"][0], slider["decided"]) if slider else [],
        "at": at,
        "limitations": limitations(metrics),
    }
    sections: list[dict[str, Any]] = []
    for key, heading in SECTIONS.items():
        context["checklists"] = checklists(metrics, [section["key"] for section in sections])
        text = environment.get_template(f"sections/{key}.html.j2").render(context).strip()
        shown = [_figure(name, figure, linked) for name, figure in figures.items() if _section(name) == key]
        if text or shown:
            sections.append({"key": key, "title": heading, "text": Markup(text), "figures": shown})
    style, script = (Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    policy = {"style": _hash(style), "script": _hash(script)}
    page = environment.get_template("report.html.j2")
    return page.render(context, sections=sections, style=style, script=script, policy=policy)


def headline_of(metrics: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """The first numbers: (key, title, entry); of two classes also those of the positive one."""
    found = [(name, METRICS[name].title, metrics["overall"][name]) for name in HEADLINE]
    if metrics["positive_class"] is not None:
        of_class = metrics["per_class"][metrics["positive_class"]]
        found += [(name, CLASS_TITLES[name], of_class[name]) for name in ("sensitivity", "specificity", "ppv", "npv")]
    return found


def value(entry: Mapping[str, Any]) -> str:
    """The value of an entry, three digits."""
    return number(entry["value"])


def interval(entry: Mapping[str, Any]) -> str:
    """`0.911 to 0.934`; "" where there is none."""
    return "" if entry["low"] is None else f"{entry['low']:.3f} to {entry['high']:.3f}"


def number(x: float | None) -> str:
    """Three digits; "undefined" for None."""
    return "undefined" if x is None else f"{x:.3f}"


def _hash(text: str) -> str:
    """What a Content-Security-Policy names an inline style or script by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _section(figure: str) -> str:
    return PLOTS[figure].section if figure in PLOTS else "training"


def _figure(name: str, figure: Drawn, linked: bool) -> dict[str, str]:
    known = PLOTS.get(name)
    data = f"data:{figure.kind};base64," + base64.b64encode(figure.small).decode()
    title = known.title if known else "Training"
    return {
        "title": title,
        "text": known.text if known else "Loss, validation metrics and learning rate by epoch.",
        "source": f"{name}.png" if linked else data,
        "alt": f"{title}. {figure.text}",
    }


def sampling_of(metrics: Mapping[str, Any]) -> str:
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
    worth = f"{told} They are worth {', '.join(parts)}"
    if right["design_effect"] <= 1:
        return f"{worth} (images of one patient are not seen to be alike in being right)."
    alike = "" if right["icc"] is None else f"intraclass correlation of being right {right['icc']:.2f}, "
    return f"{worth} ({alike}design effect {right['design_effect']:.1f})."


SECTIONS: dict[str, str] = {  # key, and name of its template in sections/ -> heading; one without content is left out
    "flow": "Images and patients",
    "results": "Results",
    "folds": "Folds",
    "external": "Beside the run's own test",
    "operating": "Operating points",
    "slider": "Another threshold",
    "calibration": "Calibration",
    "patients": "Patients",
    "subgroups": "Subgroups",
    "agreement": "Readers and grades",
    "uncertainty": "When not to answer",
    "errors": "Errors",
    "attention": "Attention",
    "robustness": "Robustness",
    "training": "Data, model and training",
    "limitations": "Limitations",
    "checklists": "Checklists",
}
