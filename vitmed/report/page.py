"""report.html: one file that needs nothing else. Its chapters are in chapters.yaml.

The first chapter, the summary, is open and fits one screen; the others fold. A chapter named as a field of `Results`
sees it as `found`, and is left out where it is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from vitmed.core.text import counted, csp_hash
from vitmed.metrics.sample_size import Goal, patients_for_rate
from vitmed.metrics.subgroups import compared
from vitmed.report.blocks import data_uri
from vitmed.report.chapters import MANY, PLOTS, SECTIONS, TRAINING_CURVES, Plot
from vitmed.report.checklists import checklists
from vitmed.report.plots.drawing import Drawn
from vitmed.report.results import Results
from vitmed.report.slider import Slider
from vitmed.report.templates import FOLDER, fill

WIDE = 1000  # px; a wider figure takes the whole width of the page instead of one column of two
FEW_PATIENTS = 50  # below, an interval by patient is wide, and a subgroup has hardly anyone
PRECISE = 0.05  # half the width of an interval that is narrow enough for most uses
FEW_IMAGES = 100  # of a class: below, its sensitivity is known to about 10 points at best


def render(
    metrics: Results, figures: Mapping[str, Drawn], slider: Slider | None = None, *, linked: bool = False
) -> str:
    """The text of report.html: one file that loads nothing and runs one script, its own.

    Args:
        metrics: `metrics.report` has the heading of the page and the table about data, model and training.
        figures: name in `PLOTS`, or training_curves -> the figure.
        slider: from `slider.slider_data`.
        linked: link to the PNG files beside the page instead of embedding the figures; for Markdown.
    """
    context: dict[str, Any] = {"metrics": metrics, "limitations": limitations(metrics), "slider": slider}
    context |= {"chapters": SECTIONS, "many_findings": MANY}
    plots = {name: PLOTS.get(name, TRAINING_CURVES) for name in figures}
    sections: list[dict[str, Any]] = []
    for key, chapter in SECTIONS.items():
        if metrics.target.kind not in chapter.kinds:
            continue
        context["found"] = metrics[key] if key in Results.model_fields else True
        context["checklists"] = checklists(metrics, [section["key"] for section in sections])
        text = fill(f"sections/{key}.html.j2", **context).strip() if context["found"] else ""
        shown = [_figure(name, plots[name], figures[name], linked) for name in figures if plots[name].section == key]
        if key == "summary":  # a wide confusion matrix (many classes) goes below the ROC curve
            shown.sort(key=lambda figure: figure["wide"])
        if text or shown:
            sections.append({"key": key, **chapter._asdict(), "text": Markup(text), "figures": shown})
    style, script = (Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    policy = {"style": csp_hash(style), "script": csp_hash(script)}
    parts = list(dict.fromkeys(chapter.part for chapter in SECTIONS.values()))
    return fill("report.html.j2", **context, sections=sections, parts=parts, style=style, script=script, policy=policy)


def _figure(name: str, plot: Plot, figure: Drawn, linked: bool) -> dict[str, Any]:
    return {
        "title": plot.title,
        "text": plot.text,
        "source": f"{name}.png" if linked else data_uri(figure.small, figure.kind),
        "alt": f"{plot.title}. {figure.text}",
        "wide": int.from_bytes(figure.png[16:20]) > WIDE,  # bytes 16 to 19 of a PNG file: its width
    }


def limitations(metrics: Results) -> list[str]:
    """What a report cannot show because something is missing: sentences, the most serious first."""
    few = [f"'{c}' ({own.n:,})" for c, own in metrics.per_class.items() if 0 < own.n < FEW_IMAGES]
    context = {"few": few, "few_patients": FEW_PATIENTS, "has_subgroups": compared(metrics.subgroups)}
    text = fill("limitations.txt.j2", metrics=metrics, more=more_images(metrics), **context)
    return text.strip("\n").split("\n")


def more_images(metrics: Results) -> str | None:
    """With how many images the interval of the sensitivity would reach `PRECISE` to either side, in a sentence.

    Of two classes the sensitivity of the positive one, else the one with the widest interval. The number is that of
    `vitmed sample-size`, with the design effect of these images. None where the interval is that narrow, or unknown.
    """

    def half_width(name: str) -> float:
        found = metrics.per_class[name].sensitivity
        return -1.0 if found.low is None or found.high is None else (found.high - found.low) / 2

    if not metrics.per_class:  # of a number
        return None
    name = metrics.positive_class or max(metrics.classes, key=half_width)
    value, sample = metrics.per_class[name].sensitivity.value, metrics.sample.classes[metrics.classes.index(name)]
    own, reach = sample.sensitivity, half_width(name)
    if value is None or reach <= PRECISE:
        return None
    each = own.n / own.units
    effect = (
        each if own.design_effect is None else max(1.0, own.design_effect)
    )  # without errors each patient counts once
    needed = patients_for_rate(value, Goal(half_width=PRECISE), each, effect)
    if needed is None:
        return None
    have, more = (
        f"{n:,} images" + (f" from {counted(patients, metrics.unit)}" if each > 1 else "")
        for n, patients in ((own.n, own.units), (round(needed * each), needed))
    )
    return (
        f"With {have} of class '{name}', the interval of its sensitivity reaches {reach:.3f} to either side on "
        f"average. About {more} of this class would narrow it to {PRECISE}, at the same sensitivity."
    )
