"""Where a report answers the items of CLAIM 2024, TRIPOD+AI and STARD-AI; and, said honestly, where it does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from vitmed.metrics.subgroups import compared
from vitmed.report.checklist_items import DEMOGRAPHY, GUIDELINES, Item
from vitmed.report.results import Results

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
        there: whether it is there; what it gives counts as true or false.
    """

    section: str
    told: str
    there: Callable[[Results], Any]


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


def checklists(metrics: Results, shown: Collection[str]) -> list[Checklist]:
    """The guidelines, filled in as far as this report goes.

    Args:
        shown: keys of the sections that the report has; a pointer leads to no other.
    """
    return [Checklist(g.name, g.source, tuple(_line(item, metrics, shown) for item in g.items)) for g in GUIDELINES]


def _line(item: Item, metrics: Results, shown: Collection[str]) -> Line:
    known = TOPICS if metrics.folds is None else TOPICS | OF_FOLDS
    topics = [known[name] for name in item.topics]
    there = [topic for topic in topics if topic.section in shown and topic.there(metrics)]
    answers = tuple((topic.section, topic.told) for topic in there)
    absent = [f"{topic.told}: not in this report" for topic in topics if topic not in there]
    left = unsaid(metrics) if item.author == DEMOGRAPHY else item.author
    missing = "; ".join([*absent, *([left] if left else [])])
    state = "not supplied" if not there else "in part" if missing else "answered"
    return Line(item.number, item.asks, state, answers, missing)


def unsaid(metrics: Results) -> str:
    """What is left to say of the patients of each split: whatever no column of the table gives."""
    words = {word for column in characteristics(metrics) for word in re.split("[^a-z]+", column.lower())}
    left = [name for name, others in TRAITS.items() if not words & {name, *others}]
    return f"{', '.join(left)} of the patients of each split" if left else ""


def _fact(name: str) -> Callable[[Results], bool]:
    return lambda results: name in results.report.facts


def _flow(results: Results) -> bool:
    return results.flow is not None


def _of_own_test(results: Results) -> bool:
    judged = None if results.flow is None else results.flow.judged
    return judged is not None and judged.split == "test"


def _of_others(results: Results) -> bool:
    judged = None if results.flow is None else results.flow.judged
    return judged is not None and judged.split is None


def _compared(results: Results) -> bool:
    """Whether subgroups were judged, and not only asked for."""
    return compared(results.subgroups)


def _intervals(results: Results) -> bool:
    """Whether numbers have intervals, the bootstrapped among them; one patient gives none."""
    return bool(results.resamples) and results.overall["accuracy"].low is not None


def _chosen(results: Results) -> bool:
    """Whether a threshold was chosen on validation, or costs decide."""
    found = results.operating_points
    return found is not None and (found.threshold is not None or found.chosen == "cost")


def characteristics(results: Results) -> list[str]:
    """The columns by which the patients of the splits are described."""
    found = {} if results.flow is None else results.flow.characteristics
    return [column for column, table in found.items() if table.rows]


def _readers(results: Results) -> bool:
    """Whether more than the reference and the model are compared."""
    return results.agreement is not None and len(results.agreement.pairs) > 1


def always(results: Results) -> bool:
    """What every report has."""
    return True


TOPICS: dict[str, Topic] = {
    "research": Topic("limitations", "for research only; no medical device", always),
    "data": Topic("flow", "the data folder and how it was split", _flow),
    "flow": Topic("flow", "files found, left out, and dealt to the splits", _flow),
    "splits": Topic("flow", "sizes of the splits and how they were made", _flow),
    "level": Topic("flow", "the level at which splits are disjoint, with its proof", _flow),
    "classes": Topic("flow", "images (and patients, where known) of each class in each split", _flow),
    "characteristics": Topic("flow", "patients of each split by the columns given", characteristics),
    "unreadable": Topic("flow", "unreadable files; training takes none", _flow),
    "size": Topic("results", "how precise these numbers of images and patients make it", _intervals),
    "results": Topic("results", "every measure, overall and by class", always),
    "confusion": Topic("results", "confusion matrix", always),
    "roc": Topic("results", "ROC, precision and recall", always),
    "intervals": Topic("results", "intervals and how they came about", _intervals),
    "baselines": Topic("results", "what needs no training, beside the model", lambda m: m.baselines),
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
    "internal": Topic("results", "the held-out test of the run", lambda m: _of_own_test(m) or m.external is not None),
    "external": Topic("results", "images from elsewhere", _of_others),
    "difference": Topic("external", "those numbers beside the held-out test of the run", lambda m: m.external),
    "calibration": Topic("calibration", "calibration", lambda m: m.calibration),
    "operating": Topic("operating", "a threshold chosen on validation, or costs, and what is reached", _chosen),
    "prevalence": Topic(
        "operating", "PPV and NPV by how common the finding is", lambda m: m.prevalence and m.prevalence.rows
    ),
    "decision_curve": Topic("operating", "net benefit", lambda m: m.decision_curve and m.decision_curve.thresholds),
    "patient_level": Topic("patients", "results by patient", lambda m: m.patient_level and m.patient_level.mean),
    "subgroups": Topic("subgroups", "results by subgroup", _compared),
    "uncertainty": Topic("uncertainty", "when not to answer", lambda m: m.conformal or m.abstention),
    "out_of_distribution": Topic("uncertainty", "images unlike those of training", lambda m: m.out_of_distribution),
    "label_errors": Topic(
        "errors", "labels that may be wrong", lambda m: m.label_errors and m.label_errors.reason is None
    ),
    "agreement": Topic("agreement", "agreement between readers, reference and model", _readers),
    "errors": Topic("errors", "the most confident errors", always),
    "attention": Topic("attention", "maps, and the check whether they explain anything", lambda m: m.attention),
    "robustness": Topic("robustness", "corrupted images", lambda m: m.robustness),
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
