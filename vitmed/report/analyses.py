"""What a report finds beyond the numbers of `evaluate_predictions`: one function for each part, one table of them.

An analysis is a pure function of `Material`; what it returns stands in metrics.json under its key, and the section
and the figures of the report are drawn from there. So a report is made again from its folder alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitmed.config import EvaluateConfig
from vitmed.label_errors import label_errors
from vitmed.mistakes import mistakes
from vitmed.patient_level import patient_level
from vitmed.per_patient import per_patient
from vitmed.predictions import Predictions
from vitmed.subgroups import subgroups


@dataclass(frozen=True)
class Material:
    """What an analysis is made from.

    Attributes:
        predictions: what is judged, with labels.
        metrics: `evaluate_predictions` of them, and what the analyses before this one have found.
        validation: what the same model said of the validation images: whatever is chosen, is chosen on them. None
            where they are not known, or are the ones that are judged.
        config: what was asked for.
        others: what else was said of the same images: key in `BASELINES` -> predictions.
    """

    predictions: Predictions
    metrics: Mapping[str, Any]
    validation: Predictions | None = None
    config: EvaluateConfig = field(default_factory=EvaluateConfig)
    others: Mapping[str, Predictions] = field(default_factory=dict)


Analysis = Callable[[Material], dict[str, Any] | None]

ANALYSES: dict[str, Analysis] = {  # key in metrics.json -> what finds it; None where there is nothing to say
    "patient_level": lambda m: patient_level(m.predictions, m.validation, m.config.resamples),
    "per_patient": lambda m: per_patient(m.predictions),
    "subgroups": lambda m: subgroups(m.predictions, m.config.subgroups, m.config.resamples),
    "errors": lambda m: mistakes(m.predictions),
    "label_errors": lambda m: label_errors(m.predictions),
}
