"""The generic methods of `vitmed.metrics.kinds.prepared`, for predictions of one kind of label."""

from typing import Any

import numpy as np

from vitmed.metrics.kinds.classes import PreparedPredictions
from vitmed.metrics.kinds.findings import PreparedFindings
from vitmed.metrics.kinds.grades import PreparedGrades
from vitmed.metrics.kinds.number import PreparedNumbers
from vitmed.metrics.kinds.prepared import Prepared

compare_predictions = PreparedPredictions.compare
evaluate_findings = PreparedFindings.evaluate
compare_findings = PreparedFindings.compare
finding_values = PreparedFindings.values
evaluate_grades = PreparedGrades.evaluate
compare_grades = PreparedGrades.compare
grade_values = PreparedGrades.values
evaluate_number = PreparedNumbers.evaluate
compare_numbers = PreparedNumbers.compare
number_values = PreparedNumbers.values


def redrawn(kind: type[Prepared], predictions: Any, weights: np.ndarray) -> dict[str, np.ndarray]:
    """A bootstrap by hand: every number, (R,) each, of the images repeated as often as (R, S) say."""
    rows = [np.repeat(np.arange(len(predictions)), often.astype(int)) for often in weights]
    values = [kind.values(predictions.take(row)) for row in rows]
    return {name: np.array([of[name] for of in values]) for name in values[0]}
