"""Which items of CLAIM 2024, TRIPOD+AI and STARD-AI a report answers, where, and which it does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from vitmed.metrics.subgroups import compared
from vitmed.report.checklist_items import DEMOGRAPHY, GUIDELINES, Guideline, Item
from vitmed.report.results import Results

TRAITS = {  # of patients that the guidelines ask for -> other words in the name of a column
    "age": ("ages", "years"),
    "sex": ("gender",),
    "site": ("hospital", "centre", "center", "clinic", "institution"),
    "device": ("scanner", "camera", "microscope", "machine"),
    "severity": ("stage", "grade"),
}


class Topic(NamedTuple):
    """Something that a report may contain: its chapter (key in `page.SECTIONS`), what it is, whether it is there."""

    section: str
    text: str
    there: Callable[[Results], Any]


class Line(NamedTuple):
    """One item as the report answers it.

    Attributes:
        state: "answered", "in part" or "not supplied".
        answers: the topics that are there.
        missing: what is left to the author; "" for nothing.
    """

    item: Item
    state: str
    answers: tuple[Topic, ...]
    missing: str


def checklists(metrics: Results, shown: Collection[str]) -> list[tuple[Guideline, list[Line]]]:
    """The guidelines, filled in as far as this report goes; `shown` are the keys of its chapters."""
    return [(guideline, [_line(item, metrics, shown) for item in guideline.items]) for guideline in GUIDELINES]


def _line(item: Item, metrics: Results, shown: Collection[str]) -> Line:
    known = TOPICS if metrics.folds is None else TOPICS | OF_FOLDS
    topics = [known[name] for name in item.topics]
    there = tuple(topic for topic in topics if topic.section in shown and topic.there(metrics))
    absent = [f"{topic.text}: not in this report" for topic in topics if topic not in there]
    left = missing_traits(metrics) if item.author == DEMOGRAPHY else item.author
    missing = "; ".join([*absent, *([left] if left else [])])
    return Line(item, "not supplied" if not there else "in part" if missing else "answered", there, missing)


def missing_traits(metrics: Results) -> str:
    """What no column says about the patients of each split."""
    words = {word for column in characteristics(metrics) for word in re.split("[^a-z]+", column.lower())}
    left = [name for name, others in TRAITS.items() if not words & {name, *others}]
    return f"{', '.join(left)} of the patients of each split" if left else ""


def _fact(name: str) -> Callable[[Results], bool]:
    return lambda results: name in results.report.facts


def _flow(results: Results) -> bool:
    return results.flow is not None


def _evaluated(results: Results, split: str | None) -> bool:
    """Whether the report is about this split of the run; None: about other images."""
    evaluated = None if results.flow is None else results.flow.evaluated
    return evaluated is not None and evaluated.split == split


def _intervals(results: Results) -> bool:
    """Whether numbers have intervals, also those by bootstrap; one patient gives none."""
    return bool(results.resamples) and results.overall["accuracy"].low is not None


def _chosen(results: Results) -> bool:
    """Whether a threshold was chosen on validation, or costs decide."""
    found = results.operating_points
    return found is not None and (found.threshold is not None or found.chosen == "cost")


def characteristics(results: Results) -> list[str]:
    """The columns by which the patients of the splits are described."""
    found = {} if results.flow is None else results.flow.characteristics
    return [column for column, table in found.items() if table.rows]


def _always(results: Results) -> bool:
    return True


TOPICS: dict[str, Topic] = {
    "research": Topic("limitations", "for research only; not a medical device", _always),
    "data": Topic("flow", "the data folder and how it was split", _flow),
    "flow": Topic("flow", "files found, left out, and assigned to the splits", _flow),
    "splits": Topic("flow", "sizes of the splits and how they were made", _flow),
    "level": Topic("flow", "the level at which splits are disjoint, with its proof", _flow),
    "classes": Topic("flow", "images (and patients, where known) of each class in each split", _flow),
    "characteristics": Topic("flow", "patients of each split by the columns given", characteristics),
    "unreadable": Topic("flow", "unreadable files; training stops if there are any", _flow),
    "size": Topic("results", "how precise the numbers are with so many images and patients", _intervals),
    "results": Topic("results", "every measure, overall and by class", _always),
    "confusion": Topic("summary", "confusion matrix", _always),
    "roc": Topic("summary", "ROC curve", _always),
    "precision_recall": Topic("results", "precision and recall", _always),
    "intervals": Topic("results", "intervals and how they are computed", _intervals),
    "baselines": Topic("results", "baselines on the same images", lambda m: m.baselines),
    "preprocessing": Topic("training", "preprocessing by vitmed", _fact("Preprocessing")),
    "model": Topic("training", "the network; it sees only pixels", _fact("Model")),
    "pixels": Topic("training", "the network sees only pixels", _fact("Model")),
    "one_model": Topic("training", "one network, no ensemble", _fact("Model choice")),
    "started": Topic("training", "the weights that training began with, and their licence", _fact("Started from")),
    "training": Topic("training", "optimiser, rates, augmentation, seed", _fact("Optimisation")),
    "balance": Topic("training", "whether classes were balanced in training", _fact("Optimisation")),
    "choice": Topic("training", "how the weights were chosen; not on the test set", _fact("Model choice")),
    "software": Topic("training", "versions and device; more in environment.json", _fact("Versions")),
    "config": Topic("training", "all settings in config.yaml, membership in splits.csv", _fact("Versions")),
    "outputs": Topic("results", "predictions.csv contains every output", _always),
    "internal": Topic("results", "the held-out test set of the run", lambda m: _evaluated(m, "test") or m.external),
    "external": Topic("results", "images from elsewhere", lambda m: _evaluated(m, None)),
    "difference": Topic("external", "the same numbers on the held-out test set of the run", lambda m: m.external),
    "calibration": Topic("calibration", "calibration", lambda m: m.calibration),
    "operating": Topic("operating", "a threshold chosen on validation, or costs, and the results", _chosen),
    "prevalence": Topic("operating", "PPV and NPV by prevalence", lambda m: m.prevalence and m.prevalence.rows),
    "decision_curve": Topic("operating", "net benefit", lambda m: m.decision_curve and m.decision_curve.thresholds),
    "patient_level": Topic("patients", "results by patient", lambda m: m.patient_level and m.patient_level.mean),
    "subgroups": Topic("subgroups", "results by subgroup", lambda m: compared(m.subgroups)),
    "uncertainty": Topic("uncertainty", "when the model abstains", lambda m: m.conformal or m.abstention),
    "out_of_distribution": Topic("uncertainty", "images unlike the training images", lambda m: m.out_of_distribution),
    "label_errors": Topic("errors", "doubtful labels", lambda m: m.label_errors and m.label_errors.reason is None),
    "agreement": Topic(
        "agreement", "agreement of readers, reference and model", lambda m: m.agreement and len(m.agreement.pairs) > 1
    ),
    "errors": Topic("errors", "the most confident errors", _always),
    "attention": Topic("attention", "attention maps, and whether they explain anything", lambda m: m.attention),
    "robustness": Topic("robustness", "results on corrupted images", lambda m: m.robustness),
    "limitations": Topic("limitations", "limitations that vitmed can see", _always),
}

IN_FOLDS = "in the folder of each fold (fold-1, fold-2, ...)"
OF_FOLDS = {  # of pooled folds
    name: TOPICS[name]._replace(text=text)
    for name, text in {
        "splits": "size of the test set of each fold and how it was made",
        "level": "the level at which the test sets of the folds are disjoint, with its proof",
        "classes": "images (and patients, where known) of each class in the test set of each fold",
        "characteristics": "patients of the test set of each fold by the columns given",
        "flow": "files found, left out, and assigned to the test sets of the folds",
        "one_model": "one network for each fold, no ensemble: one network predicts each image",
        "software": f"versions and device; more in environment.json, {IN_FOLDS}",
        "config": f"all settings in config.yaml, membership in splits.csv, both {IN_FOLDS}",
        "internal": "the held-out test sets of the folds",
        "operating": "thresholds that each fold chose on its validation images, and the results",
    }.items()
}
