"""What a report finds beyond the numbers of `evaluate_predictions`: one function for each part, one table of them.

An analysis is a pure function of `Material`; what it returns stands in `Results` under its key, and the section
and the figures of the report are drawn from there. So a report is made again from its folder alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitmed.core.base_models import Frozen
from vitmed.core.config import EvaluateConfig
from vitmed.decisions.conformal import report_intervals, report_sets
from vitmed.decisions.evaluation_folder import Folds, by_fold, report_fold_points
from vitmed.decisions.operating_points import report_points
from vitmed.decisions.out_of_distribution import report_ood_scores
from vitmed.decisions.policy import count_answers
from vitmed.decisions.reliability import CalibrationReport, report_calibration
from vitmed.decisions.selective_prediction import report_abstention
from vitmed.explanation.results import Maps
from vitmed.metrics.clinical_utility import decision_curve, one_against_rest, prevalence_table
from vitmed.metrics.confusions import co_occurrence, finding_errors, label_errors, mistakes
from vitmed.metrics.ensembles import report_disagreement
from vitmed.metrics.estimates import Numbers
from vitmed.metrics.kinds.grades import grade_results
from vitmed.metrics.number_agreement import (
    LevelCoverage,
    bland_altman,
    calibration_of_intervals,
    error_by_range,
    error_by_subgroup,
)
from vitmed.metrics.patient_level import patient_level, per_patient
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.readers import ReaderComparison, agreement, compare_with_readers
from vitmed.metrics.roc import fixed_rates
from vitmed.metrics.subgroups import Subgroups, subgroups
from vitmed.report.plots.pictures import Read


@dataclass(frozen=True)
class Extra:
    """What a report is made from beside the predictions and their configuration; all of one kind of label.

    Attributes:
        validation: what the same model predicts for the validation images, on which everything is chosen.
        internal: where other images are evaluated, what the same model and policy predict for its own test.
        baselines: what they say of the same images, by their key in `write.BASELINES`; kept as baseline_<key>.csv.
        policy: the decision policy, as it was applied to the predictions; None where there is none.
        folds: of pooled folds, what each has; None of one model.
        parts: attention, robustness or external -> what was found with the model itself, or with other tables.
        maps: attention maps of some of the images; None leaves their figure out.
        read: path of an image as in `predictions.paths` -> uint8 (H, W) or (H, W, 3); None leaves pictures out.
        records: of metrics.jsonl, for the training curves; None or empty leaves them out.
        figures: the names in `PLOTS` that are drawn; None draws all that have something to show.
    """

    validation: Any = None
    internal: Any = None
    baselines: Mapping[str, Predictions] = field(default_factory=dict)
    policy: Any = None
    folds: Folds | None = None
    parts: Mapping[str, Frozen | None] = field(default_factory=dict)
    maps: Maps | None = None
    read: Read | None = None
    records: Sequence[Mapping[str, Any]] | None = None
    figures: Collection[str] | None = None


@dataclass(frozen=True)
class Material:
    """What an analysis is made from: predictions, their numbers, the configuration, and what else there is."""

    predictions: Any
    metrics: Numbers
    config: EvaluateConfig = field(default_factory=EvaluateConfig)
    extra: Extra = field(default_factory=Extra)


Analysis = Callable[[Material], Frozen | dict[str, Subgroups] | list[ReaderComparison] | list[LevelCoverage] | None]


def _calibration(m: Material) -> CalibrationReport:
    """`report_calibration`, with the intervals that the headline gives the same numbers."""
    found = report_calibration(m.predictions, m.extra.policy and m.extra.policy.calibration, m.config)
    same = {name: m.metrics.overall[name] for name in ("log_loss", "brier")}
    found = found.model_copy(update={"after": found.after.model_copy(update=same)})
    if m.extra.folds is None:
        return found
    by_fold = {"method": "by fold", "scale": None, "bias": None, "note": ""}
    return found.model_copy(update={**by_fold, "folds": [fold.calibration for fold in m.extra.folds.each]})


OF_EVERY_KIND: dict[str, Analysis] = {
    "out_of_distribution": lambda m: (
        report_ood_scores(m.predictions, m.extra.policy.ood_score, m.extra.policy.other_scores, m.config)
        if m.extra.policy
        else None
    ),
}
CLASS_ANALYSES: dict[str, Analysis] = {
    "external": lambda m: compare_with_own_test(m.predictions, m.metrics, m.extra.internal, m.config.resamples),
    "patient_level": lambda m: patient_level(m.predictions, m.extra.validation, m.config.resamples),
    "per_patient": lambda m: per_patient(m.predictions),
    "subgroups": lambda m: subgroups(m.predictions, m.config.subgroups, m.config.resamples),
    "agreement": lambda m: agreement(
        m.predictions, m.config.raters, m.config.ordinal, m.config.resamples, m.metrics.overall["cohen_kappa"]
    ),
    "readers": lambda m: compare_with_readers(m.predictions, m.config.raters, m.config.rater_scores),
    "errors": lambda m: mistakes(m.predictions),
    "label_errors": lambda m: label_errors(m.predictions, m.metrics),
    "calibration": _calibration,
    "operating_points": lambda m: (
        report_points(m.predictions, m.extra.policy and m.extra.policy.operating, m.config)
        if m.extra.folds is None
        else report_fold_points(m.predictions, m.extra.folds, m.config)
    ),
    "prevalence": lambda m: prevalence_table(m.predictions, m.config),
    "decision_curve": lambda m: decision_curve(m.predictions, m.config),
    "one_against_rest": lambda m: one_against_rest(m.predictions),
    "fixed_rates": lambda m: fixed_rates(m.predictions, m.config),
    "conformal": lambda m: report_sets(m.predictions, m.extra.policy and m.extra.policy.prediction_sets, m.config),
    "abstention": lambda m: (
        None
        if m.extra.folds is not None and (by_fold(m.extra.folds) or m.config.max_risk is not None)
        else report_abstention(m.predictions, m.extra.policy and m.extra.policy.abstention, m.config)
    ),
    "answers": lambda m: count_answers(m.predictions),
    **OF_EVERY_KIND,
    "member_disagreement": lambda m: report_disagreement(m.predictions),
}
ANALYSES: dict[str, dict[str, Analysis]] = {  # kind of label -> field of `Results` -> what finds it, or None
    "classes": CLASS_ANALYSES,
    "grades": {
        **CLASS_ANALYSES,
        "agreement": lambda m: CLASS_ANALYSES["agreement"](m) if m.config.raters else None,
        "grades": lambda m: grade_results(m.predictions, m.config.resamples),
    },
    "findings": {
        **OF_EVERY_KIND,
        "co_occurrence": lambda m: co_occurrence(m.predictions),
        "finding_errors": lambda m: finding_errors(m.predictions),
    },
    "number": {
        **OF_EVERY_KIND,
        "bland_altman": lambda m: bland_altman(m.predictions),
        "intervals": lambda m: report_intervals(m.predictions, m.extra.policy and m.extra.policy.intervals),
        "interval_levels": lambda m: calibration_of_intervals(m.predictions),
        "error_by_range": lambda m: error_by_range(m.predictions),
        "subgroups": lambda m: {name: error_by_subgroup(m.predictions, name) for name in m.config.subgroups} or None,
    },
}
