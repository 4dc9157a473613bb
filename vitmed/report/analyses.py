"""What a report finds beyond the numbers of `evaluate_predictions`: one function for each part, one table of them.

An analysis is a pure function of `Material`; what it returns stands in `Results` under its key, and the section
and the figures of the report are drawn from there. So a report is made again from its folder alone.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitmed.core.base_models import Frozen
from vitmed.core.config import EvaluateConfig
from vitmed.decisions.conformal import report_sets
from vitmed.decisions.evaluation_folder import Folds, by_fold
from vitmed.decisions.operating_points import TITLES, OperatingPoint, PolicyPoints, reached_by, report_points
from vitmed.decisions.out_of_distribution import detection_auroc, report_ood_scores, scores_of
from vitmed.decisions.policy import DecisionPolicy, count_answers
from vitmed.decisions.reliability import report_calibration
from vitmed.decisions.selective_prediction import report_abstention
from vitmed.explanation.results import Maps
from vitmed.metrics.areas import fixed_rates
from vitmed.metrics.clinical_utility import decision_curve, prevalence_table
from vitmed.metrics.estimates import Numbers, difference, estimate
from vitmed.metrics.kinds.classes import PreparedPredictions
from vitmed.metrics.kinds.grades import grade_results
from vitmed.metrics.kinds.number import bland_altman
from vitmed.metrics.kinds.prepared import Prepared
from vitmed.metrics.mistakes import finding_errors, label_errors, mistakes
from vitmed.metrics.patient_level import patient_level, per_patient
from vitmed.metrics.predictions import Predictions, positive_index
from vitmed.metrics.readers import ReaderComparison, agreement, compare_with_readers
from vitmed.metrics.subgroups import Subgroups, error_by_range, subgroups
from vitmed.report.plots.pictures import Read
from vitmed.report.results import Beside, BesideEstimates, External, Flow, Shift


@dataclass(frozen=True)
class Extra:
    """What a report is made from beside predictions and configuration. None leaves out what would be drawn from it."""

    flow: Flow | None = None  # where the images come from
    weights_hash: str | None = None  # None where there are no weights, or several
    internal: Predictions | None = None  # of the same model and policy, for its own test, where others are evaluated
    baselines: Mapping[str, Predictions] = field(default_factory=dict)  # key in `write.BASELINES` -> of the same images
    policy: DecisionPolicy | None = None  # as it was applied to the predictions
    folds: Folds | None = None  # of pooled folds, what each has
    parts: Mapping[str, Frozen | None] = field(default_factory=dict)  # attention, robustness, external: found elsewhere
    maps: Maps | None = None  # attention maps of some of the images
    read: Read | None = None  # path of an image as in `predictions.paths` -> uint8 (H, W) or (H, W, 3)
    records: Sequence[Mapping[str, Any]] | None = None  # of metrics.jsonl, for the training curves
    figures: Collection[str] | None = None  # names in `plots` that are drawn; None: all that have something to show


@dataclass(frozen=True)
class Material:
    """What an analysis is made from: predictions of a kind of label, their numbers, the configuration, and the rest."""

    predictions: Any
    metrics: Numbers
    config: EvaluateConfig = field(default_factory=EvaluateConfig)
    extra: Extra = field(default_factory=Extra)
    kind: type[Prepared] = PreparedPredictions  # which the numbers are of

    def chosen(self, part: str) -> Any:
        """A part of the decision policy; None without a policy."""
        return getattr(self.extra.policy, part, None)


Analysis = Callable[[Material], Frozen | dict[str, Subgroups] | list[ReaderComparison] | None]


def points_of(material: Material) -> Frozen | None:
    """`report_points`; of pooled folds the likeliest class, and the decisions of each fold at its own threshold."""
    predictions, folds, config = material.predictions, material.extra.folds, material.config
    if folds is None:
        return report_points(predictions, material.chosen("operating"), config)
    asked, positive = folds.asked, positive_index(predictions)
    if positive is None:
        costs = None if folds.costs is None else [tuple(row) for row in folds.costs]
        operating = PolicyPoints(positive=None, chosen=asked, points={}, costs=costs, notes=())
        return report_points(predictions, operating, config)
    report = report_points(predictions, None, config)
    if not by_fold(folds) or report is None:
        return report
    reached = reached_by(predictions, predictions.predicted, folds.costs, config)
    head = dict[str, Any](title=TITLES[asked], promised=None, threshold=None, asked=folds.target, why="")
    points = {**report.points, asked: OperatingPoint(**head, reached=reached)}
    return report.model_copy(update={"chosen": asked, "by_fold": [f.threshold for f in folds.each], "points": points})


OVERALL = ("quadratic_kappa", "grade_error", "auroc", "balanced_accuracy", "accuracy", "mcc", "log_loss", "brier")


def compare_with_own_test(material: Material) -> External | None:
    """Compare the evaluated images with the run's own test, at the same calibration and operating point, as item 33 of
    CLAIM 2024, 16 and 20c of TRIPOD+AI and 29 of STARD-AI ask.

    Both are taken as independent samples, so the interval of a difference comes from those of both (MOVER: Zou &
    Donner, Stat. Med. 27 (2008) 1693; of two proportions it is Newcombe's of 1998). There is no comparison without
    `extra.internal`, or where it has other classes.
    """
    predictions, metrics, internal = material.predictions, material.metrics, material.extra.internal
    if internal is None or not len(internal) or internal.classes != predictions.classes:
        return None
    own = material.kind.evaluate(internal)
    pairs = {name: (own.overall[name], metrics.overall[name]) for name in OVERALL if name in own.overall}
    absent = [c for c in own.classes if (own.per_class[c].n > 0) != (metrics.per_class[c].n > 0)]
    nothing, prevalence = estimate(float("nan"), float("nan"), float("nan"), "mover"), None
    if own.positive_class is not None:
        here, there = metrics.per_class[own.positive_class], own.per_class[own.positive_class]
        # PPV and NPV follow the prevalence, and so differ anyway
        pairs |= {name: (there[name], here[name]) for name in ("sensitivity", "specificity")}
        prevalence = Beside(internal=there.n / own.n, external=here.n / metrics.n)
    numbers = {}
    for name, (a, b) in pairs.items():  # a mean over other classes is another number
        gap = nothing if absent and name in OVERALL else difference(b, a)
        numbers[name] = BesideEstimates(internal=a, external=b, difference=gap)
    shift, scores, own_scores = None, scores_of(predictions), scores_of(internal)
    if scores is not None and own_scores is not None:
        flagged = Beside(internal=float((own_scores > 1).mean()), external=float((scores > 1).mean()))
        shift = Shift(auroc=detection_auroc(own_scores, internal.groups, scores, predictions.groups), flagged=flagged)
    return External(
        n=own.n,
        n_groups=own.n_groups,
        prevalence=prevalence,
        numbers=numbers,
        absent=absent,
        patients_in_both=len(set(internal.groups or ()) & set(predictions.groups or ()) - {""}),
        shift=shift,
    )


BY_FOLD: dict[str, Any] = {"method": "by fold", "scale": None, "bias": None, "note": ""}  # of pooled folds
OF_EVERY_KIND: dict[str, Analysis] = {
    "out_of_distribution": lambda m: report_ood_scores(m.predictions, m.chosen("ood_score")),
}
CLASS_ANALYSES: dict[str, Analysis] = {
    "external": compare_with_own_test,
    "patient_level": lambda m: patient_level(m.predictions),
    "per_patient": lambda m: per_patient(m.predictions),
    "subgroups": lambda m: subgroups(m.predictions, m.config.subgroups, m.kind),
    "agreement": lambda m: agreement(m.predictions, m.config, m.metrics.overall["cohen_kappa"]),
    "readers": lambda m: compare_with_readers(m.predictions, m.config),
    "errors": lambda m: mistakes(m.predictions),
    "label_errors": lambda m: label_errors(m.predictions, m.metrics),
    "calibration": lambda m: report_calibration(m.predictions, m.chosen("calibration"), m.config).model_copy(
        update={} if m.extra.folds is None else BY_FOLD | {"folds": [fold.calibration for fold in m.extra.folds.each]}
    ),
    "operating_points": points_of,
    "prevalence": lambda m: prevalence_table(m.predictions, m.config),
    "decision_curve": lambda m: decision_curve(m.predictions, m.config),
    "fixed_rates": lambda m: fixed_rates(m.predictions, m.config),
    "conformal": lambda m: report_sets(m.predictions, m.chosen("prediction_sets"), m.config),
    "abstention": lambda m: (
        None
        if m.extra.folds is not None and (by_fold(m.extra.folds) or m.config.max_risk is not None)
        else report_abstention(m.predictions, m.chosen("abstention"), m.config)
    ),
    "answers": lambda m: count_answers(m.predictions),
    **OF_EVERY_KIND,
}

ANALYSES: dict[str, dict[str, Analysis]] = {  # kind of label -> field of `Results` -> what finds it, or None
    "classes": CLASS_ANALYSES,
    "grades": {
        **CLASS_ANALYSES,
        "agreement": lambda m: CLASS_ANALYSES["agreement"](m) if m.config.raters else None,
        "grades": lambda m: grade_results(m.predictions),
    },
    "findings": {**OF_EVERY_KIND, "finding_errors": lambda m: finding_errors(m.predictions)},
    "number": {
        **OF_EVERY_KIND,
        "bland_altman": lambda m: bland_altman(m.predictions),
        "error_by_range": lambda m: error_by_range(m.predictions),
        "subgroups": CLASS_ANALYSES["subgroups"],
    },
}
