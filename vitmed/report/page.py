"""report.html: one file that needs nothing else. A section is a line in `SECTIONS`, a template and its figures.

The template of a section sees `metrics` (the `Results`), `facts`, and the ways to write an estimate:
`value(entry)`, `interval(entry)`, `signed(entry)`, `share(entry)`; and `number(float or None)`,
`counted(n, noun)`, `chance(probability)`, `reasons({name: reason})`. It may hold neither style attributes nor scripts:
the page's Content-Security-Policy lets only its own through.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vitmed.core.text import LISTED, by_reason, chance, counted, listed
from vitmed.metrics.estimates import Estimate, Numbers
from vitmed.metrics.notes import FEW_GROUPS
from vitmed.metrics.subgroups import TITLES as GAP_TITLES
from vitmed.metrics.table import METRICS, PER_CLASS
from vitmed.report.checklists import checklists
from vitmed.report.limitations import limitations
from vitmed.report.plots.drawing import Drawn, plain
from vitmed.report.plots.table import PLOTS
from vitmed.report.results import Results
from vitmed.report.slider import Slider, at, rows

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
    metrics: Results,
    figures: Mapping[str, Drawn],
    *,
    title: str,
    facts: Mapping[str, str],
    slider: Slider | None = None,
    linked: bool = False,
) -> str:
    """The text of report.html: one file that loads nothing and runs one script, its own.

    Args:
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
        "overall": [(metric, metrics.overall[name]) for name, metric in METRICS.items()],
        "class_titles": [(name, CLASS_TITLES[name]) for name in PER_CLASS],
        "metric_titles": {name: metric.title for name, metric in METRICS.items()},
        "gap_titles": GAP_TITLES,
        "few_groups": FEW_GROUPS,
        "point_titles": POINT_TITLES,
        "calibration_titles": CALIBRATION_TITLES,
        "compared": [(name, METRICS[name].title) for name in HEADLINE[:3]],
        "signed": lambda entry: "undefined" if entry.value is None else f"{entry.value:+.3f}",
        "value": value,
        "interval": interval,
        "number": number,
        "counted": counted,
        "chance": chance,
        "share": share,
        "reasons": reasons,
        "slider": slider,
        "slider_rows": rows(slider.classes[0], slider.decided) if slider else [],
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


def headline_of(metrics: Results) -> list[tuple[str, str, Estimate]]:
    """The first numbers: (key, title, number); of two classes also those of the positive one."""
    found = [(name, METRICS[name].title, metrics.overall[name]) for name in HEADLINE]
    if metrics.positive_class is not None:
        of_class = metrics.per_class[metrics.positive_class]
        found += [(name, CLASS_TITLES[name], of_class[name]) for name in ("sensitivity", "specificity", "ppv", "npv")]
    return found


def value(found: Estimate) -> str:
    """The value of an estimate, three digits."""
    return number(found.value)


def interval(found: Estimate) -> str:
    """`0.911 to 0.934`; "" where there is none."""
    return "" if found.low is None else f"{found.low:.3f} to {found.high:.3f}"


def share(found: Estimate) -> str:
    """`0.911 (0.900 to 0.934)`: a value with its interval, inside a sentence."""
    return value(found) if found.value is None else f"{value(found)} ({interval(found) or 'no interval'})"


def reasons(found: Mapping[str, str]) -> list[str]:
    """`why: a, b and 3 more` for each of the first reasons, and a line for all the others."""
    grouped = by_reason(found)
    lines = [f"{why}: {listed(names)}" for why, names in grouped.items()]
    rest = sum(len(names) for names in list(grouped.values())[LISTED:])
    return [*lines[:LISTED], *([f"and {counted(rest, 'number')} more, in metrics.json"] if rest else [])]


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


AREAS_BY = {  # method of an AUROC -> in words
    "delong": "by DeLong",
    "obuchowski": "by Obuchowski",
    "influence": "by how much each image pulls at it",
}


def sampling_of(metrics: Numbers) -> str:
    """How the intervals came about, for a reader who knows none of the methods."""
    level, sizes = f"{metrics.level:.0%} intervals", metrics.sample.images_per_patient
    by_patient = metrics.resampling == "by patient"
    units = metrics.n if metrics.n_groups is None else metrics.n_groups
    if units < 2:
        unit = "patient" if by_patient else "image"
        return (
            f"No intervals: one {unit} cannot tell how much others would differ." if units else "There are no images."
        )
    drawn = f"the rest from {metrics.resamples:,} resamples (bootstrap)."
    rest = drawn if metrics.resamples else "the rest has none, as no resamples were asked for."
    single = {AREAS_BY[own.auroc.method or ""] for own in metrics.per_class.values()}
    mean = AREAS_BY[metrics.overall["auroc"].method or ""]
    area = f"of AUROC {mean}"
    if mean not in single:
        areas = " or ".join(sorted(single))
        area = f"of AUROC of a class {areas}, of its mean over the classes {mean}"
    if not by_patient:
        return (
            f"{level}: of proportions by Wilson, {area}, {rest} Each image counts as independent. The patients are "
            "unknown: if they have several images each, the intervals are too narrow."
        )
    if not sizes or sizes.max == 1:
        return f"{level}: of proportions by Wilson, {area}, {rest} Each patient has one image."
    return (
        f"{level}, by patient: of proportions by Wilson for the effective number of images, {area}, {rest} They show "
        "how the numbers would differ with other patients."
    )


def worth(metrics: Numbers) -> str:
    """What the sample is worth, in words: patients, images of each, and how many independent images they equal."""
    sample, right = metrics.sample, metrics.sample.accuracy
    sizes, patients = sample.images_per_patient, sample.n_patients
    if sizes is None or patients is None:
        return ""
    each = f"{sizes.min:,} to {sizes.max:,} of each, in the median {sizes.median:,.4g}"
    each = f"{sizes.max:,} of each" if sizes.min == sizes.max else each
    told = f"{counted(sample.n_images, 'image')} of {counted(patients, 'patient')}"
    told += f", {each}." if patients > 1 else "."
    if sizes.max == 1 or right.effective_n is None:
        return told
    if right.design_effect is None:
        seen = "No error was seen" if metrics.overall["accuracy"].value else "Nothing was right"
        return f"{told} {seen}, so nothing tells how alike a patient's images are: each patient counts once."
    alike = "" if right.icc is None else f"intraclass correlation of being right {right.icc:.2f}, "
    how = f"{alike}design effect {right.design_effect:.1f}"
    if right.design_effect <= 1:
        how = "images of one patient are not seen to be alike in being right"
    parts = [f"{right.effective_n:,.0f} independent images for the accuracy ({how})"]
    if metrics.positive_class is not None:
        own = metrics.per_class[metrics.positive_class]
        for name, one in sample.classes[metrics.classes.index(metrics.positive_class)]:
            if one.effective_n is not None:
                once = " (all are right" if own[name].value == 1 else " (all are wrong"
                once = f"{once}, so each patient counts once)" if one.design_effect is None else ""
                parts.append(f"{one.effective_n:,.0f} for the {name}{once}")
    return f"{told} They are worth {', '.join(parts)}."


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
