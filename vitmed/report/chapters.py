"""The chapters of a report and their figures, as blocks; and report.html, one file that needs nothing else.

A chapter is an entry of chapters.yaml, which has its words and its figures, and a template in sections/; one named as a
field of `Results` sees it as `found`, and is left out where it is None. A figure is an entry there, and its function in
`DRAWN`. Pictures are labelled by their row in `predictions.csv` (the first image is row 1), never by a file name,
which may contain the name of a patient.

The last chapter says which items of CLAIM 2024, TRIPOD+AI and STARD-AI a report answers, where, and which not. The
items, and what a report may contain, are in checklists.yaml; here is when it contains it.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from markupsafe import Markup
from matplotlib.figure import Figure

from vitmed.core.base_models import Frozen
from vitmed.core.text import csp_hash
from vitmed.inference.ensemble import MEAN
from vitmed.metrics.subgroups import compared
from vitmed.report import participant_flow
from vitmed.report.blocks import ROWS, Block, Chapter, Document, Group, Picture, Text, html
from vitmed.report.methods_text import methods_text
from vitmed.report.plots import analyses, curves, evaluation, pictures
from vitmed.report.plots.drawing import Drawn
from vitmed.report.results import Results
from vitmed.report.templates import FOLDER, blocks_of, environment, fill

MANY = 12  # own reports of findings, beyond which each has the figures in `MAIN` alone: drawing takes 2 s a report
MAIN = ("roc", "precision_recall", "reliability")
KINDS = ("classes", "grades")  # of labels that have a chapter or a figure where it names none


class Plot(NamedTuple):
    """A figure of the report."""

    title: str
    text: str  # one to three sentences below it, for a first reader of such a figure; a template
    draw: Callable[..., Figure | None]  # of the predictions and `Results`, or `pictures`, or `maps`
    pictures: bool = False  # it shows the images themselves, which `draw` gets as a function that reads them
    maps: bool = False  # it shows attention maps, which `draw` gets
    kinds: tuple[str, ...] = KINDS  # of labels that have it, keys of `TARGETS`


class Section(NamedTuple):
    """What a chapter is: see `Chapter`; its figures; and the kinds of labels that have it, keys of `TARGETS`."""

    title: str
    question: str
    part: str
    figures: Mapping[str, Plot]
    kinds: tuple[str, ...] = KINDS


DRAWN: dict[str, Callable[..., Figure | None]] = {
    "flow": participant_flow.flow,
    "by_finding": evaluation.by_finding,
    "worst_errors": pictures.finding_errors,
    "predicted_and_true": evaluation.predicted_and_true,
    "bland_altman": evaluation.bland_altman,
    "confusion_matrix": evaluation.confusion_matrix,
    "roc": evaluation.roc,
    "precision_recall": evaluation.precision_recall,
    "per_patient": analyses.patient_spread,
    "subgroups": analyses.forest,
    "decision_curve": analyses.decision_curve,
    "reliability": analyses.reliability,
    "risk_coverage": analyses.risk_coverage,
    "out_of_distribution": analyses.out_of_distribution,
    "errors": pictures.errors,
    "errors_by_pair": pictures.errors_by_pair,
    "suspected_labels": pictures.suspected_labels,
    "grid": pictures.grid,
    "attention_maps": pictures.attention_maps,
    "robustness": lambda predictions, metrics: curves.stress_curves(metrics.robustness, metrics.unit),
    "training_curves": curves.training_curves,
}


@cache
def sections() -> dict[str, Section]:
    """The chapters in their order, by key."""
    found = {}
    for key, section in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items():
        figures = {name: Plot(draw=DRAWN[name], **figure) for name, figure in section.pop("figures", {}).items()}
        found[key] = Section(**section, figures=figures)
    return found


def plots() -> dict[str, Plot]:
    """The figures that are drawn from predictions, by name; training curves are drawn from the records of training."""
    figures = (figure for section in sections().values() for figure in section.figures.items())
    return {name: plot for name, plot in figures if name != "training_curves"}


FEW_PATIENTS = 50  # below, an interval by patient is wide, and a subgroup has hardly anyone
FEW_IMAGES = 100  # of a class: below, its sensitivity is known to about 10 points at best


def document(metrics: Results, figures: Mapping[str, Drawn]) -> Document:
    """Make the head of a report and its chapters, with figures by their name in chapters.yaml."""
    context = {"metrics": metrics, "limitations": limitations(metrics), "many_findings": MANY}
    chapters: list[Chapter] = []
    for key, section in sections().items():
        if metrics.target.kind not in section.kinds:
            continue
        blocks: list[Block] = []
        if found := metrics[key] if key in Results.model_fields else True:
            lists = checklists(metrics, [chapter.key for chapter in chapters]) if key == "checklists" else []
            more = {"found": found, "checklists": lists, "chapters": sections(), "methods_text": methods_text}
            blocks = blocks_of(f"sections/{key}.html.j2", **context, **more)
        caption = environment().from_string
        drawn = [(name, section.figures[name]) for name in section.figures if name in figures]
        shown = [Picture(name, of.title, caption(of.text).render(metrics=metrics), figures[name]) for name, of in drawn]
        if key == "summary":  # a wide confusion matrix (many classes) goes below the ROC curve
            shown.sort(key=lambda picture: picture.wide)
        blocks += [Group(shown, "figures")] if shown else []
        if blocks:
            chapters.append(Chapter(key, section.title, section.question, section.part, blocks))
    return Document(blocks_of("sections/head.html.j2", metrics=metrics), chapters)


def first_sentence(metrics: Results) -> str:
    """What a report begins with: what the model reached, and at which threshold."""
    key = next(key for key, section in sections().items() if metrics.target.kind in section.kinds)
    context = {"metrics": metrics, "limitations": [""], "many_findings": MANY, "found": True}
    groups = [block for block in blocks_of(f"sections/{key}.html.j2", **context) if isinstance(block, Group)]
    texts = [block for group in groups if group.css == "verdict" for block in group.blocks if isinstance(block, Text)]
    return text_of(texts[0].words)


def baseline_verdicts(metrics: Results) -> list[str]:
    """Whether the model is better than each baseline, as the first screen of a report says."""
    made = (blocks_of("sections/baseline.html.j2", metrics=metrics, baseline=b)[0] for b in metrics.baselines.values())
    return [text_of(block.words) for block in made if isinstance(block, Text)]


def text_of(words: Markup) -> str:
    """The text of words in one line, without elements."""
    return " ".join(words.striptags().split())


def render(metrics: Results, content: Document) -> str:
    """The text of report.html: one file that loads nothing and runs one script, its own."""
    style, script = (Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    policy = {"style": csp_hash(style), "script": csp_hash(script)}
    parts = list(dict.fromkeys(section.part for section in sections().values()))
    furniture = {"parts": parts, "style": style, "script": script, "policy": policy, "rows": ROWS}
    return fill("report.html.j2", metrics=metrics, head=content.head, chapters=content.chapters, html=html, **furniture)


def limitations(metrics: Results) -> list[str]:
    """What a report cannot show because something is missing: sentences, the most serious first."""
    few = [f"'{c}' ({own.n:,})" for c, own in metrics.per_class.items() if 0 < own.n < FEW_IMAGES]
    context = {"few": few, "few_patients": FEW_PATIENTS, "has_subgroups": compared(metrics.subgroups)}
    context["noun"] = "finding" if metrics.target.kind == "findings" else "class"
    return fill("limitations.txt.j2", metrics=metrics, **context).strip("\n").split("\n")


class Item(Frozen):
    """One line of a checklist: the topics that answer it, or part of it, and what only the author knows."""

    number: str
    asks: str
    topics: tuple[str, ...] = ()
    author: str = ""


class Guideline(Frozen):
    """A checklist: its name, its reference and its lines."""

    name: str
    source: str
    items: tuple[Item, ...]


class Topic(Frozen):
    """Something that a report may contain: its chapter, what it is, and what it is of pooled folds and of an ensemble.

    It is there with its `fact` or its `part`, or as `THERE` says. An item can be answered without an `optional` topic.
    """

    section: str
    text: str
    folds: str = ""
    ensemble: str = ""
    optional: bool = False
    fact: str = ""
    part: str = ""


class Content(Frozen):
    """What checklists.yaml holds; an item whose author must add `demography` names what no column gives."""

    topics: dict[str, Topic]
    author: dict[str, str]
    traits: dict[str, tuple[str, ...]]  # of patients that they ask for -> other words in the name of a column
    guidelines: tuple[Guideline, ...]


@cache
def content() -> Content:
    """What checklists.yaml holds, read once."""
    return Content.model_validate(yaml.safe_load((FOLDER / "checklists.yaml").read_text(encoding="utf-8")))


class Line(NamedTuple):
    """One item as the report answers it, its `state` "answered", "in part" or "not supplied".

    `answers` are the topics that are there; `missing` is what is left to the author, "" for nothing.
    """

    item: Item
    state: str
    answers: tuple[Topic, ...]
    missing: str


def checklists(metrics: Results, shown: Collection[str]) -> list[tuple[Guideline, list[Line]]]:
    """The guidelines, filled in as far as this report goes; `shown` are the keys of its chapters."""
    lists = [(each, list[Line]()) for each in content().guidelines]
    for item, lines in ((item, lines) for each, lines in lists for item in each.items):
        there, absent = [], []
        for name in item.topics:
            topic = content().topics[name]
            if metrics.folds is not None and topic.folds:
                topic = topic.model_copy(update={"text": topic.folds})
            elif topic.ensemble and metrics.report.facts.get("Model", "").startswith(MEAN):
                topic = topic.model_copy(update={"text": topic.ensemble})
            has: Any = name not in THERE or THERE[name](metrics)
            if topic.fact or topic.part:
                has = topic.fact in metrics.report.facts if topic.fact else metrics[topic.part]
            if has and topic.section in shown:
                there.append(topic)
            elif not topic.optional:
                absent.append(f"{topic.text}: not in this report")
        left = item.author
        if left == content().author["demography"]:  # what no column says about the patients of each split
            columns = metrics.flow.characteristics if metrics.flow else {}
            words = {word for name, of in columns.items() if of.rows for word in re.split("[^a-z]+", name.lower())}
            traits = ", ".join(name for name, others in content().traits.items() if not words & {name, *others})
            left = f"{traits} of the patients of each split" if traits else ""
        missing = "; ".join([*absent, *([left] if left else [])])
        state = "not supplied" if not there else "in part" if missing else "answered"
        lines.append(Line(item, state, tuple(there), missing))
    return lists


def _evaluated(metrics: Results, split: str | None) -> bool:
    """Whether the report is about this split of the run; None: about other images, not all of which are of the run."""
    evaluated = None if metrics.flow is None else metrics.flow.evaluated
    if evaluated is None or evaluated.split != split:
        return False
    return split is not None or (evaluated.seen.images or 0) + (evaluated.seen.test or 0) < metrics.n


THERE: dict[str, Callable[[Results], Any]] = {  # topic without a fact or part -> whether a report has it; else always
    **dict.fromkeys(("size", "intervals"), lambda m: any(number.low is not None for number in m.overall.values())),
    "characteristics": lambda m: m.flow and any(table.rows for table in m.flow.characteristics.values()),
    "internal": lambda m: _evaluated(m, "test") or m.external,
    "external": lambda m: _evaluated(m, None),
    "operating": lambda m: m.operating_points and m.operating_points.chosen != "default",
    "prevalence": lambda m: m.prevalence and m.prevalence.rows,
    "decision_curve": lambda m: m.decision_curve and m.decision_curve.thresholds,
    "patient_level": lambda m: m.patient_level and m.patient_level.mean,
    "subgroups": lambda m: compared(m.subgroups),
    "uncertainty": lambda m: m.conformal or m.abstention,
    "label_errors": lambda m: m.label_errors and m.label_errors.reason is None,
    "agreement": lambda m: m.agreement and len(m.agreement.pairs) > 1,
}
