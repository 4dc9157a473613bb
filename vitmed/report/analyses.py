"""What a report finds beyond the numbers of `evaluate_predictions`: one function for each part, one table of them.

An analysis is a pure function of `Material`; what it returns stands in `Results` under its key, and the section
and the figures of the report are drawn from there. So a report is made again from its folder alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitmed.core.config import EvaluateConfig
from vitmed.core.frozen import Frozen
from vitmed.decisions.conformal import report_sets
from vitmed.decisions.operating_points import Folds, by_fold, report_fold_points, report_points
from vitmed.decisions.out_of_distribution import report_familiarity
from vitmed.decisions.policy import Judgement, count_answers
from vitmed.decisions.reliability import CalibrationReport, FittedCalibration, report_calibration
from vitmed.decisions.selective_prediction import report_answers
from vitmed.metrics.clinical_utility import decision_curve, prevalence_table
from vitmed.metrics.confusions import mistakes
from vitmed.metrics.estimates import Numbers
from vitmed.metrics.label_errors import label_errors
from vitmed.metrics.patient_level import patient_level
from vitmed.metrics.per_patient import per_patient
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.reader_agreement import agreement
from vitmed.metrics.subgroups import Subgroups, subgroups
from vitmed.report.external_data import beside_internal


@dataclass(frozen=True)
class Material:
    """What an analysis is made from.

    Attributes:
        predictions: what is judged, with labels.
        metrics: `evaluate_predictions` of them.
        validation: what the same model said of the validation images: whatever is chosen, is chosen on them. None
            where they are not known, or are the ones that are judged.
        internal: what the same model said of its own test, where other images are judged; else None.
        config: what was asked for.
        judgement: what was chosen on validation, with which `predictions` were made; None where nothing was.
        folds: of pooled folds what each has; None of one model.
    """

    predictions: Predictions
    metrics: Numbers
    validation: Predictions | None = None
    internal: Predictions | None = None
    config: EvaluateConfig = field(default_factory=EvaluateConfig)
    judgement: Judgement | None = None
    folds: Folds | None = None

    def chosen(self, part: str) -> Mapping[str, Any] | None:
        """A part of the judgement as a plain dict: operating, sets, answers or familiarity."""
        if self.judgement is None:
            return None
        content = self.judgement.to_dict(arrays=False)
        found = content[part]
        return {**found, "unlike": content.get("unlike")} if part == "familiarity" and found else found


Analysis = Callable[[Material], Frozen | dict[str, Subgroups] | None]


def _calibration(m: Material) -> CalibrationReport:
    """`report_calibration`, with the intervals that the headline gives the same numbers."""
    found = report_calibration(m.predictions, m.judgement.calibration if m.judgement else None, m.config)
    same = {name: m.metrics.overall[name] for name in ("log_loss", "brier")}
    found = found.model_copy(update={"after": found.after.model_copy(update=same)})
    if m.folds is None:
        return found
    by_fold = FittedCalibration(method="by fold", scale=None, bias=None, note="")
    return found.model_copy(update={**dict(by_fold), "folds": [fold.calibration for fold in m.folds.each]})


ANALYSES: dict[str, Analysis] = {  # field of `Results` -> what finds it; None where there is nothing to say
    "external": lambda m: beside_internal(m.predictions, m.metrics, m.internal, m.config.resamples),
    "patient_level": lambda m: patient_level(m.predictions, m.validation, m.config.resamples),
    "per_patient": lambda m: per_patient(m.predictions),
    "subgroups": lambda m: subgroups(m.predictions, m.config.subgroups, m.config.resamples),
    "agreement": lambda m: agreement(
        m.predictions, m.config.raters, m.config.ordinal, m.config.resamples, m.metrics.overall["cohen_kappa"]
    ),
    "errors": lambda m: mistakes(m.predictions),
    "label_errors": lambda m: label_errors(m.predictions),
    "calibration": _calibration,
    "operating_points": lambda m: (
        report_points(m.predictions, m.chosen("operating"), m.config)
        if m.folds is None
        else report_fold_points(m.predictions, m.folds, m.config)
    ),
    "prevalence": lambda m: prevalence_table(m.predictions, m.config),
    "decision_curve": lambda m: decision_curve(m.predictions, m.config),
    "conformal": lambda m: report_sets(m.predictions, m.chosen("sets"), m.config),
    "abstention": lambda m: (
        None
        if m.folds is not None and (by_fold(m.folds) or m.config.max_risk is not None)
        else report_answers(m.predictions, m.chosen("answers"), m.config)
    ),
    "answers": lambda m: count_answers(m.predictions),
    "familiarity": lambda m: report_familiarity(m.predictions, m.chosen("familiarity"), m.config),
}
