"""Which items of CLAIM 2024, TRIPOD+AI and STARD-AI a report answers, where, and which it does not.

The items, and what a report may contain, are in checklists.yaml; here is when it contains it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from vitmed.core.base_models import Frozen
from vitmed.metrics.subgroups import compared
from vitmed.report.results import Results

TRAITS = {  # of patients that the guidelines ask for -> other words in the name of a column
    "age": ("ages", "years"),
    "sex": ("gender",),
    "site": ("hospital", "centre", "center", "clinic", "institution"),
    "device": ("scanner", "camera", "microscope", "machine"),
    "severity": ("stage", "grade"),
}


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
    """Something that a report may contain: its chapter, what it is, and what it is of pooled folds.

    It is there with its `fact` or its `part`, or as `THERE` says. An item can be answered without an `optional` topic.
    """

    section: str
    text: str
    folds: str = ""
    optional: bool = False
    fact: str = ""
    part: str = ""


class Content(Frozen):
    """What checklists.yaml holds; an item whose author must add `demography` names what no column gives."""

    topics: dict[str, Topic]
    author: dict[str, str]
    guidelines: tuple[Guideline, ...]


@cache
def content() -> Content:
    """What checklists.yaml holds, read once."""
    return Content.model_validate(yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")))


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
    return [
        (guideline, [_line(item, metrics, shown) for item in guideline.items]) for guideline in content().guidelines
    ]


def _line(item: Item, metrics: Results, shown: Collection[str]) -> Line:
    there, absent = [], []
    for name in item.topics:
        topic = content().topics[name]
        if metrics.folds is not None and topic.folds:
            topic = topic.model_copy(update={"text": topic.folds})
        has: Any = topic.section in shown
        if topic.fact or topic.part:
            has = has and (topic.fact in metrics.report.facts if topic.fact else metrics[topic.part])
        else:
            has = has and (name not in THERE or THERE[name](metrics))
        if has:
            there.append(topic)
        elif not topic.optional:
            absent.append(f"{topic.text}: not in this report")
    left = item.author
    if left == content().author["demography"]:  # what no column says about the patients of each split
        words = {word for column in _characteristics(metrics) for word in re.split("[^a-z]+", column.lower())}
        traits = ", ".join(name for name, others in TRAITS.items() if not words & {name, *others})
        left = f"{traits} of the patients of each split" if traits else ""
    missing = "; ".join([*absent, *([left] if left else [])])
    return Line(item, "not supplied" if not there else "in part" if missing else "answered", tuple(there), missing)


def _characteristics(metrics: Results) -> list[str]:
    columns = {} if metrics.flow is None else metrics.flow.characteristics
    return [column for column, table in columns.items() if table.rows]


def _evaluated(metrics: Results, split: str | None) -> bool:
    """Whether the report is about this split of the run; None: about other images."""
    evaluated = None if metrics.flow is None else metrics.flow.evaluated
    return evaluated is not None and evaluated.split == split


THERE: dict[str, Callable[[Results], Any]] = {  # topic without a fact or part -> whether a report has it; else always
    **dict.fromkeys(("size", "intervals"), lambda m: any(number.low is not None for number in m.overall.values())),
    "characteristics": _characteristics,
    "internal": lambda m: _evaluated(m, "test") or m.external,
    "external": lambda m: _evaluated(m, None),
    "operating": lambda m: (
        m.operating_points
        and (m.operating_points.threshold is not None or m.operating_points.chosen in ("balanced", "cost"))
    ),
    "prevalence": lambda m: m.prevalence and m.prevalence.rows,
    "decision_curve": lambda m: m.decision_curve and m.decision_curve.thresholds,
    "patient_level": lambda m: m.patient_level and m.patient_level.mean,
    "subgroups": lambda m: compared(m.subgroups),
    "uncertainty": lambda m: m.conformal or m.abstention,
    "label_errors": lambda m: m.label_errors and m.label_errors.reason is None,
    "agreement": lambda m: m.agreement and len(m.agreement.pairs) > 1,
}
