"""Which items of CLAIM 2024, TRIPOD+AI and STARD-AI a report answers, where, and which it does not.

The wording is not that of the guidelines; for a journal, fill in the originals:

- CLAIM 2024: Tejani et al., Radiol. Artif. Intell. 6 (2024) e240300, doi 10.1148/ryai.240300; 44 items.
- TRIPOD+AI: Collins et al., BMJ 385 (2024) e078378; 27 items, some with parts.
- STARD-AI: Sounderajah et al., Nat. Med. 31 (2025) 3283, doi 10.1038/s41591-025-03953-8; 40 items, some with parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from vitmed.metrics.subgroups import compared
from vitmed.report.results import Results

TRAITS = {  # of patients that the guidelines ask for -> other words in the name of a column
    "age": ("ages", "years"),
    "sex": ("gender",),
    "site": ("hospital", "centre", "center", "clinic", "institution"),
    "device": ("scanner", "camera", "microscope", "machine"),
    "severity": ("stage", "grade"),
}


class Item(NamedTuple):
    """One line of a checklist.

    Attributes:
        topics: keys of `TOPICS` that answer it, or part of it.
        author: what no program can know and the author must add; "" for nothing.
    """

    number: str
    asks: str
    topics: tuple[str, ...] = ()
    author: str = ""


class Guideline(NamedTuple):
    """A checklist: its name, its reference and its lines."""

    name: str
    source: str
    items: tuple[Item, ...]


class Topic(NamedTuple):
    """Something that a report may contain.

    Attributes:
        section: its chapter, a key in `page.SECTIONS`.
        text: what it is.
        there: whether it is there.
        optional: an item can be answered without it.
    """

    section: str
    text: str
    there: Callable[[Results], Any]
    optional: bool = False


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
    absent = [f"{topic.text}: not in this report" for topic in topics if topic not in there and not topic.optional]
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
    """Whether numbers have intervals; one patient gives none."""
    return any(found.low is not None for found in results.overall.values())


def _chosen(results: Results) -> bool:
    """Whether a threshold was chosen on validation, or costs or prevalences decide."""
    found = results.operating_points
    return found is not None and (found.threshold is not None or found.chosen in ("balanced", "cost"))


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
    "unreadable": Topic("flow", "unreadable files; training stops, or leaves them out if asked to", _flow),
    "size": Topic("results", "how precise the numbers are with so many images and patients", _intervals),
    "results": Topic("results", "every measure, overall and by class", _always),
    "confusion": Topic("summary", "confusion matrix", _always),
    "roc": Topic("summary", "ROC curve", _always),
    "precision_recall": Topic("results", "precision and recall", _always),
    "intervals": Topic("methods", "intervals, and the method and reference of each", _intervals),
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
    "fixed_rates": Topic("operating", "sensitivity at a fixed specificity", lambda m: m.fixed_rates, optional=True),
    "readers": Topic("readers", "the model compared with readers", lambda m: m.readers, optional=True),
    "prevalence": Topic(
        "operating", "PPV and NPV by prevalence", lambda m: m.one_against_rest or (m.prevalence and m.prevalence.rows)
    ),
    "decision_curve": Topic(
        "operating", "net benefit", lambda m: m.one_against_rest or (m.decision_curve and m.decision_curve.thresholds)
    ),
    "patient_level": Topic("patients", "results by patient", lambda m: m.patient_level and m.patient_level.mean),
    "subgroups": Topic("subgroups", "results by subgroup", lambda m: compared(m.subgroups)),
    "uncertainty": Topic("uncertainty", "when the model abstains", lambda m: m.conformal or m.abstention),
    "out_of_distribution": Topic("uncertainty", "images unlike the training images", lambda m: m.out_of_distribution),
    "label_errors": Topic("errors", "doubtful labels", lambda m: m.label_errors and m.label_errors.reason is None),
    "agreement": Topic(
        "agreement", "agreement of readers, reference and model", lambda m: m.agreement and len(m.agreement.pairs) > 1
    ),
    "errors": Topic("errors", "the most confident errors", _always),
    "attention": Topic("attention", "attention maps, and a test of them", lambda m: m.attention),
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

DESIGN = "whether images were collected for this study or before it"
ELIGIBLE = "who and which images were eligible, and how they were chosen"
PROTOCOL = "devices, protocols and settings of acquisition"
REFERENCE = "how the true label was found, in enough detail to repeat it"
ANNOTATORS = "who labelled, with what training and experience"
DEMOGRAPHY = "what the patients of each split are like"  # a report names what no column gives
REGISTERED = "registry and number, or that there is none"
FUNDING = "who paid, and the role of the funder"
MISSING = "what was missing at the source, and how it was handled"
EXCLUDED = "who was excluded before there was a data folder"
BEFORE_VITMED = "what was done to the images before vitmed"
SIZE = "how large the test set had to be, and why"
BLINDING = "what they knew when they labelled"
APPROVAL = "committee and number, or why none was needed"
OWN_LIMITS = "limitations that only the author knows"
USERS = "who would use it, and their expertise"

CLAIM = Guideline(
    "CLAIM 2024",
    "Tejani et al., Radiology: Artificial Intelligence 2024, 10.1148/ryai.240300",
    (
        Item("1", "title names AI and its kind", (), "a title; the kind is a Vision Transformer"),
        Item("2", "structured abstract", (), "an abstract"),
        Item("3", "background, intended use and role", ("research",), "the clinical question, the role of the model"),
        Item("4", "aims and hypotheses", (), "the aims"),
        Item("5", "prospective or retrospective", (), DESIGN),
        Item("6", "goal of the study", (), "what the study is to show"),
        Item("7", "sources of the data", ("data",), "where and when the images were taken; a link if public"),
        Item("8", "inclusion and exclusion", ("flow",), ELIGIBLE),
        Item("9", "preprocessing", ("preprocessing",), BEFORE_VITMED),
        Item("10", "selection of subsets of the data", ("flow",), "how regions or frames were cut, and by whom"),
        Item("11", "removal of identities", (), "how the images were de-identified"),
        Item("12", "missing data", ("unreadable",), MISSING),
        Item("13", "acquisition of the images", (), PROTOCOL),
        Item("14", "definition of the reference standard", ("classes",), REFERENCE),
        Item("15", "why this reference standard", (), "why this one and no other"),
        Item("16", "annotators", (), ANNOTATORS),
        Item("17", "annotation of the test set", (), "how the test images were labelled, with which tools"),
        Item(
            "18", "annotators' agreement", ("agreement", "label_errors"), "intra-reader agreement; how disputes ended"
        ),
        Item("19", "how data were assigned to splits", ("splits",)),
        Item("20", "level at which splits are disjoint", ("level",)),
        Item("21", "sample size and its reason", ("size",), SIZE),
        Item("22", "the model", ("model",)),
        Item("23", "software", ("software",)),
        Item("24", "initial weights", ("started",)),
        Item("25", "training", ("training",)),
        Item("26", "choice of the final model", ("choice",)),
        Item("27", "ensembles", ("one_model",)),
        Item("28", "measures of performance", ("results",), "why these, and what published models reach"),
        Item("29", "uncertainty and significance", ("intervals",)),
        Item("30", "robustness", ("robustness", "subgroups", "baselines")),
        Item("31", "explanations and their check", ("attention",)),
        Item("32", "test on internal data", ("internal",)),
        Item("33", "test on external data", ("external",)),
        Item("34", "registration of a trial", (), REGISTERED),
        Item("35", "flow of included and excluded", ("flow",), EXCLUDED),
        Item("36", "characteristics in each split", ("classes", "characteristics"), DEMOGRAPHY),
        Item("37", "performance on all splits, against the reference", ("results", "confusion", "readers")),
        Item("38", "accuracy and its precision", ("intervals", "roc", "fixed_rates", "precision_recall")),
        Item("39", "failures", ("errors", "confusion"), "what an expert sees in the errors"),
        Item("40", "limitations", ("limitations",), OWN_LIMITS),
        Item("41", "what it means for practice", ("prevalence",), "what would change in practice; objections"),
        Item("42", "full protocol", ("config",), "where the protocol is"),
        Item("43", "availability of software, model and data", ("config",), "where code, model and data are available"),
        Item("44", "funding", (), FUNDING),
    ),
)

TRIPOD = Guideline(
    "TRIPOD+AI",
    "Collins et al., BMJ 2024;385:e078378",
    (
        Item("1", "title names model, population and outcome", (), "a title"),
        Item("2", "abstract", (), "an abstract"),
        Item("3a", "context and rationale", (), "the clinical context and earlier models"),
        Item("3b", "target population, purpose and users", ("research",), "for whom, by whom and where it is used"),
        Item("3c", "known inequalities in health", (), "known inequalities between groups"),
        Item("4", "objectives", (), "whether it is development, evaluation or both"),
        Item("5a", "sources of the data", ("data",), "origin of the images; are they like the target population?"),
        Item("5b", "dates", (), "when the images were taken"),
        Item("6a", "setting", (), "kind, number and place of the sites"),
        Item("6b", "eligibility", (), ELIGIBLE),
        Item("6c", "treatments", (), "treatments, if they affect the images"),
        Item("7", "preparation of the data", ("preprocessing",), "what was done before vitmed, in each group"),
        Item("8a", "outcome and how it was assessed", ("classes",), REFERENCE),
        Item("8b", "assessors of the outcome", (), ANNOTATORS),
        Item("8c", "blinding of the assessors", (), BLINDING),
        Item("9a", "choice of predictors", ("model",)),
        Item("9b", "definition of predictors", ("preprocessing",), PROTOCOL),
        Item("9c", "assessors of predictors", (), "who took the images, if that needs judgement"),
        Item("10", "sample size", ("size",), SIZE),
        Item("11", "missing data", ("unreadable",), MISSING),
        Item("12a", "how the data were used", ("splits",)),
        Item("12b", "how predictors were handled", ("preprocessing",)),
        Item("12c", "kind of model, building, tuning, internal validation", ("model", "training", "choice")),
        Item("12d", "differences between clusters", ("subgroups",), "how sites or devices were compared"),
        Item(
            "12e",
            "measures, calibration among them",
            ("results", "intervals", "fixed_rates", "calibration", "decision_curve"),
        ),
        Item("12f", "updating of the model", ("calibration",), "whether anything else was updated"),
        Item("12g", "how predictions were made", ("config",)),
        Item("13", "class imbalance", ("balance",)),
        Item("14", "fairness", ("subgroups",), "what was done for fairness, and why"),
        Item("15", "output of the model, thresholds", ("operating",)),
        Item("16", "development and evaluation", ("splits", "external", "difference"), "setting, eligibility, outcome"),
        Item("17", "ethical approval", (), APPROVAL),
        Item("18a", "funding", (), FUNDING),
        Item("18b", "conflicts of interest", (), "conflicts of interest"),
        Item("18c", "protocol", (), "where the protocol is, or that there is none"),
        Item("18d", "registration", (), REGISTERED),
        Item("18e", "sharing of data", (), "whether and how the data are available"),
        Item("18f", "sharing of code", ("config",), "where the code is"),
        Item("19", "involvement of patients and public", (), "whether they were involved"),
        Item("20a", "flow of participants", ("flow",), EXCLUDED),
        Item("20b", "characteristics of participants", ("classes", "characteristics"), DEMOGRAPHY),
        Item("20c", "both compared", ("classes", "characteristics", "difference"), "how the patients differ"),
        Item("21", "participants and events in each analysis", ("classes",)),
        Item("22", "full model", ("config",), "whether the weights are available"),
        Item("23a", "performance with intervals, also in groups", ("results", "intervals", "readers", "subgroups")),
        Item("23b", "differences between clusters found", ("subgroups", "patient_level")),
        Item("24", "results of updating", ("calibration",)),
        Item("25", "interpretation", (), "what it means, compared with earlier studies and for fairness"),
        Item("26", "limitations", ("limitations",), OWN_LIMITS),
        Item("27a", "poor or missing input in use", ("out_of_distribution",), "what users do with such an image"),
        Item("27b", "what users must do and know", (), USERS),
        Item("27c", "next steps", (), "what should be studied next"),
    ),
)

STARD = Guideline(
    "STARD-AI",
    "Sounderajah et al., Nature Medicine 2025, 10.1038/s41591-025-03953-8",
    (
        Item("1", "title or abstract names AI and a measure of accuracy", (), "a title"),
        Item("2", "structured abstract", (), "an abstract"),
        Item("3", "background, intended use, workflow", ("research",), "the clinical question, the place of the model"),
        Item("4", "objectives and hypotheses", (), "the aims"),
        Item("5", "prospective or retrospective", (), DESIGN),
        Item("6", "ethical approval", (), APPROVAL),
        Item("7", "eligibility, of patients and of data", ("flow",), ELIGIBLE),
        Item("8", "how participants were found", (), "by symptoms, earlier tests, a registry"),
        Item("9", "setting, place, dates", (), "where and when"),
        Item("10", "consecutive, random or convenience", (), "which of them"),
        Item("11", "source of the data", ("data",), "whether routine, for the study, or public"),
        Item("12", "annotation", (), ANNOTATORS),
        Item("13", "devices and software", ("software",), "makers and models of the devices"),
        Item("14", "acquisition and preprocessing", ("preprocessing",), PROTOCOL),
        Item("15a", "index test", ("model", "preprocessing")),
        Item("15b", "how it was developed", ("training", "splits")),
        Item("15c", "cut-offs and their reason", ("operating",)),
        Item("15d", "users and their expertise", (), USERS),
        Item("16a", "reference standard", ("classes",), REFERENCE),
        Item("16b", "why this reference standard", (), "why this one and no other"),
        Item("16c", "cut-offs of the reference standard", (), "its cut-offs, and whether fixed beforehand"),
        Item("17a", "what was known to the index test", ("pixels",)),
        Item("17b", "what was known to the assessors of the reference", (), BLINDING),
        Item("18", "methods of estimating and comparing", ("intervals", "baselines", "readers")),
        Item("19", "indeterminate results", ("uncertainty",), "how undecided reference labels were handled"),
        Item("20", "missing data", ("unreadable",), MISSING),
        Item("21", "analyses of variability", ("subgroups", "patient_level", "robustness"), "which were planned"),
        Item("22", "sample size", ("size",), SIZE),
        Item("23", "analysis of errors, bias and fairness", ("errors", "subgroups")),
        Item("24", "flow diagram", ("flow",), EXCLUDED),
        Item("25", "characteristics in each split", ("classes", "characteristics"), DEMOGRAPHY),
        Item("26a", "severity in those with the condition", (), "how severe"),
        Item("26b", "other diagnoses in those without", (), "what else they had"),
        Item("27", "time between index test and reference", (), "how long, and what happened between"),
        Item("28", "are the data as in intended use", ("prevalence", "baselines"), "prevalence at the intended place"),
        Item("29", "how external data differ", ("external", "difference"), "how they differ from the development data"),
        Item("30", "cross-tabulation with the reference", ("confusion",)),
        Item("31", "accuracy and its precision", ("results", "intervals", "fixed_rates")),
        Item("32", "adverse events", (), "harm from the test or the reference, if any"),
        Item("33", "limitations", ("limitations",), OWN_LIMITS),
        Item("34", "what it means for practice", ("prevalence", "research"), "the intended use and role"),
        Item("35", "ethics and fairness in use", (), "ethical considerations and fairness"),
        Item("36", "registration", (), REGISTERED),
        Item("37", "protocol", (), "where the protocol is"),
        Item("38", "funding", (), FUNDING),
        Item("39", "commercial interests", (), "commercial interests"),
        Item("40a", "availability of data and code", ("config",), "whether they are available, on what terms"),
        Item("40b", "outputs stored and open to audit", ("outputs",)),
    ),
)

GUIDELINES = (CLAIM, TRIPOD, STARD)
