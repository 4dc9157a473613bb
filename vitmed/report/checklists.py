"""Where a report answers the items of CLAIM 2024, TRIPOD+AI and STARD-AI; and, said honestly, where it does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from vitmed.metrics.subgroups import compared
from vitmed.report.checklist_items import DEMOGRAPHY, GUIDELINES, Item

TRAITS = {  # of patients that the guidelines ask for -> other words in the name of a column
    "age": ("ages", "years"),
    "sex": ("gender",),
    "site": ("hospital", "centre", "center", "clinic", "institution"),
    "device": ("scanner", "camera", "microscope", "machine"),
    "severity": ("stage", "grade"),
}


class Topic(NamedTuple):
    """Something that a report may hold.

    Attributes:
        section: key in `page.SECTIONS` where it stands.
        told: what it says.
        there: whether it is there: of all that metrics.json holds.
    """

    section: str
    told: str
    there: Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Line:
    """One item as the report answers it.

    Attributes:
        number, asks: of the item.
        state: "answered", "in part" or "not supplied".
        answers: (section, what it says) of what is there.
        missing: what the author has yet to say; "" for nothing.
    """

    number: str
    asks: str
    state: str
    answers: tuple[tuple[str, str], ...]
    missing: str


@dataclass(frozen=True)
class Checklist:
    """A guideline with its lines, and how many are in which state."""

    name: str
    source: str
    lines: tuple[Line, ...]

    def count(self, state: str) -> int:
        """How many lines are in a state."""
        return sum(line.state == state for line in self.lines)


def checklists(metrics: Mapping[str, Any], shown: Collection[str]) -> list[Checklist]:
    """The guidelines, filled in as far as this report goes.

    Args:
        metrics: all that metrics.json holds.
        shown: keys of the sections that the report has; a pointer leads to no other.
    """
    return [Checklist(g.name, g.source, tuple(_line(item, metrics, shown) for item in g.items)) for g in GUIDELINES]


def _line(item: Item, metrics: Mapping[str, Any], shown: Collection[str]) -> Line:
    known = TOPICS | OF_FOLDS if metrics.get("folds") else TOPICS
    topics = [known[name] for name in item.topics]
    there = [topic for topic in topics if topic.section in shown and topic.there(metrics)]
    answers = tuple((topic.section, topic.told) for topic in there)
    absent = [f"{topic.told}: not in this report" for topic in topics if topic not in there]
    left = unsaid(metrics) if item.author == DEMOGRAPHY else item.author
    missing = "; ".join([*absent, *([left] if left else [])])
    state = "not supplied" if not there else "in part" if missing else "answered"
    return Line(item.number, item.asks, state, answers, missing)


def unsaid(metrics: Mapping[str, Any]) -> str:
    """What is left to say of the patients of each split: whatever no column of the table gives."""
    words = {word for column in characteristics(metrics) for word in re.split("[^a-z]+", column.lower())}
    left = [name for name, others in TRAITS.items() if not words & {name, *others}]
    return f"{', '.join(left)} of the patients of each split" if left else ""


def _fact(*names: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda metrics: any(name in metrics["report"]["facts"] for name in names)


def _key(name: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda metrics: metrics.get(name)


def _judged(own: bool) -> Callable[[Mapping[str, Any]], Any]:
    """Whether the images judged here are the test of the run, or others."""

    def look(metrics: Mapping[str, Any]) -> bool:
        split = ((metrics.get("flow") or {}).get("judged") or {"split": "?"})["split"]
        return split == "test" if own else split is None

    return look


def _compared(metrics: Mapping[str, Any]) -> bool:
    """Whether subgroups were judged, and not only asked for."""
    return compared(metrics.get("subgroups"))


def _intervals(metrics: Mapping[str, Any]) -> bool:
    """Whether numbers have intervals, the bootstrapped among them; one patient gives none."""
    return bool(metrics["resamples"]) and metrics["overall"]["accuracy"]["low"] is not None


def _chosen(metrics: Mapping[str, Any]) -> bool:
    """Whether a threshold was chosen on validation, or costs decide."""
    found = metrics.get("operating_points") or {}
    return found.get("threshold") is not None or found.get("chosen") == "cost"


def _told(name: str, part: str) -> Callable[[Mapping[str, Any]], Any]:
    """Whether a key is there and holds something, and no mere reason why there is nothing."""
    return lambda metrics: (metrics.get(name) or {}).get(part)


def _characteristics(metrics: Mapping[str, Any]) -> bool:
    return bool(characteristics(metrics))


def characteristics(metrics: Mapping[str, Any]) -> list[str]:
    """The columns by which the patients of the splits are told."""
    found = (metrics.get("flow") or {}).get("characteristics") or {}
    return [column for column, table in found.items() if table["rows"]]


def _readers(metrics: Mapping[str, Any]) -> bool:
    """Whether more than the reference and the model are compared."""
    return len((metrics.get("agreement") or {"pairs": ()})["pairs"]) > 1


def always(metrics: Mapping[str, Any]) -> bool:
    """What every report has."""
    return True


TOPICS: dict[str, Topic] = {
    "research": Topic("limitations", "for research only; no medical device", always),
    "data": Topic("flow", "the data folder and how it was split", _key("flow")),
    "flow": Topic("flow", "files found, left out, and dealt to the splits", _key("flow")),
    "splits": Topic("flow", "sizes of the splits and how they were made", _key("flow")),
    "level": Topic("flow", "the level at which splits are disjoint, with its proof", _key("flow")),
    "classes": Topic("flow", "images (and patients, where known) of each class in each split", _key("flow")),
    "characteristics": Topic("flow", "patients of each split by the columns given", _characteristics),
    "unreadable": Topic("flow", "unreadable files; training takes none", _key("flow")),
    "size": Topic("results", "how precise these numbers of images and patients make it", _intervals),
    "results": Topic("results", "every measure, overall and by class", always),
    "confusion": Topic("results", "confusion matrix", always),
    "roc": Topic("results", "ROC, precision and recall", always),
    "intervals": Topic("results", "intervals and how they came about", _intervals),
    "baselines": Topic("results", "what needs no training, beside the model", lambda m: m.get("baselines")),
    "preprocessing": Topic("training", "preprocessing by vitmed", _fact("Preprocessing")),
    "model": Topic("training", "the network; it sees pixels and nothing else", _fact("Model")),
    "pixels": Topic("training", "the network sees pixels and nothing else", _fact("Model")),
    "one_model": Topic("training", "one network, no ensemble", _fact("Model choice")),
    "started": Topic("training", "the weights that training began with, and their licence", _fact("Started from")),
    "training": Topic("training", "optimiser, rates, augmentation, seed", _fact("Optimisation")),
    "balance": Topic("training", "whether classes were balanced in training", _fact("Optimisation")),
    "choice": Topic("training", "how the weights were chosen; the test took no part", _fact("Model choice")),
    "software": Topic("training", "versions and device; more in environment.json", _fact("Versions")),
    "config": Topic("training", "all settings in config.yaml, membership in splits.csv", _fact("Versions")),
    "outputs": Topic("results", "predictions.csv holds every output", always),
    "internal": Topic(
        "results", "the held-out test of the run", lambda m: _judged(own=True)(m) or m.get("external") is not None
    ),
    "external": Topic("results", "images from elsewhere", _judged(own=False)),
    "difference": Topic("external", "those numbers beside the held-out test of the run", _key("external")),
    "calibration": Topic("calibration", "calibration", _key("calibration")),
    "operating": Topic("operating", "a threshold chosen on validation, or costs, and what is reached", _chosen),
    "prevalence": Topic("operating", "PPV and NPV by how common the finding is", _told("prevalence", "rows")),
    "decision_curve": Topic("operating", "net benefit", _told("decision_curve", "thresholds")),
    "patient_level": Topic("patients", "results by patient", _told("patient_level", "mean")),
    "subgroups": Topic("subgroups", "results by subgroup", _compared),
    "uncertainty": Topic("uncertainty", "when not to answer", lambda m: m.get("conformal") or m.get("abstention")),
    "out_of_distribution": Topic("uncertainty", "images unlike those of training", _key("out_of_distribution")),
    "label_errors": Topic("errors", "labels that may be wrong", lambda m: "n" in (m.get("label_errors") or {})),
    "agreement": Topic("agreement", "agreement between readers, reference and model", _readers),
    "errors": Topic("errors", "the most confident errors", always),
    "attention": Topic("attention", "maps, and the check whether they explain anything", _key("attention")),
    "robustness": Topic("robustness", "corrupted images", _key("robustness")),
    "limitations": Topic("limitations", "limitations that vitmed can see", always),
}

IN_FOLDS = "in the folder of each fold (fold-1, fold-2, ...)"
OF_FOLDS = {  # what they are where folds are pooled
    name: TOPICS[name]._replace(told=told)
    for name, told in {
        "splits": "sizes of the test of each fold and how it was made",
        "level": "the level at which the tests of the folds are disjoint, with its proof",
        "classes": "images (and patients, where known) of each class in the test of each fold",
        "characteristics": "patients of the test of each fold by the columns given",
        "flow": "files found, left out, and dealt to the tests of the folds",
        "one_model": "one network for each fold, no ensemble: each image is judged by one",
        "software": f"versions and device; more in environment.json, {IN_FOLDS}",
        "config": f"all settings in config.yaml, membership in splits.csv, both {IN_FOLDS}",
        "internal": "the held-out tests of the folds",
        "operating": "thresholds, chosen by each fold on its validation, and what they reach",
    }.items()
}
