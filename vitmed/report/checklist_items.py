"""The items of three reporting guidelines in our own short words: what each asks, what answers it, what is left.

The wording is not that of the guidelines; for a journal, fill in the originals:

- CLAIM 2024: Tejani et al., Radiol. Artif. Intell. 6 (2024) e240300, doi 10.1148/ryai.240300; 44 items.
- TRIPOD+AI: Collins et al., BMJ 385 (2024) e078378; 27 items, some with parts.
- STARD-AI: Sounderajah et al., Nat. Med. 31 (2025) 3283, doi 10.1038/s41591-025-03953-8; 40 items, some with parts.
"""

from __future__ import annotations

from typing import NamedTuple


class Item(NamedTuple):
    """One line of a checklist.

    Attributes:
        topics: keys of `checklists.TOPICS` that answer it, or part of it.
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
            "18",
            "agreement between annotators",
            ("agreement", "label_errors"),
            "that of one reader; how disputes ended",
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
        Item("37", "performance on all splits, against the reference", ("results", "confusion")),
        Item("38", "accuracy and its precision", ("intervals", "roc", "precision_recall")),
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
        Item("12e", "measures, calibration among them", ("results", "calibration", "decision_curve")),
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
        Item("23a", "performance with intervals, also in groups", ("intervals", "subgroups")),
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
        Item("18", "methods of estimating and comparing", ("intervals", "baselines")),
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
        Item("31", "accuracy and its precision", ("intervals",)),
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
