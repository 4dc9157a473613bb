"""How well the disagreement of the members of an ensemble shows which predictions are wrong."""

from __future__ import annotations

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.metrics.areas import class_areas
from vitmed.metrics.estimates import Estimate, of_auroc
from vitmed.metrics.intervals import Units
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.predictions_csv import DISAGREEMENT


class MemberDisagreement(Frozen):
    """The disagreement of members beside the confidence of their mean, each as a sign of an error.

    Attributes:
        n: images; n_wrong: of which the prediction is wrong.
        disagreement, confidence: AUROC with which it separates wrong from right predictions.
    """

    n: int
    n_wrong: int
    disagreement: Estimate
    confidence: Estimate


def report_disagreement(predictions: Predictions) -> MemberDisagreement | None:
    """None without the column of an ensemble, and where all predictions are right, or all wrong."""
    try:
        spread = np.array([float(cell) for cell in predictions.columns[DISAGREEMENT]])
    except (KeyError, ValueError):
        return None
    wrong = predictions.predicted != known_labels(predictions)
    if wrong.all() or not wrong.any() or not np.isfinite(spread).all():
        return None
    units, found = Units.of(predictions), []
    for signs in (spread, -predictions.confidence):
        found.append(of_auroc(class_areas(signs, wrong)[0], wrong, units))
    return MemberDisagreement(n=len(wrong), n_wrong=int(wrong.sum()), disagreement=found[0], confidence=found[1])
