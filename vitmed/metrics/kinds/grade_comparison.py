"""Two models of the same grades on the same images: the differences of their numbers, and the tests of none."""

from __future__ import annotations

import numpy as np

from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.intervals import Units
from vitmed.metrics.kinds.classes import compare_predictions
from vitmed.metrics.kinds.grade_evaluation import grade_estimates
from vitmed.metrics.kinds.grades import grade_costs, kappa_of_sums, kappa_summands
from vitmed.metrics.metric_table import GRADE_METRICS
from vitmed.metrics.paired_comparison import PairedComparison, gap_of, jackknifed_gaps
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.ranking import ratio
from vitmed.metrics.scoring import Scorer


def compare_grades(predictions: Predictions, other: Predictions, resamples: int = 2000) -> PairedComparison:
    """`compare_predictions`, with both kappas and the error in grades, whose intervals are by `jackknifed_gaps`.

    The quadratic kappa decides which model is better.

    Raises:
        DataError: not the same images, labels or grades in the same order; or no labels.
    """
    found, boot = compare_predictions(predictions, other, resamples), Bootstrap.of(other, resamples)
    own, theirs = (grade_estimates(one, boot)[0] for one in (predictions, other))
    gaps = jackknifed_gaps(_summands(predictions), _summands(other), _of_sums, Units.of(predictions))
    overall = found.overall | theirs
    difference = found.difference | {name: gap_of(own[name], theirs[name], gaps[name], np.inf) for name in own}
    return PairedComparison(
        overall={name: overall[name] for name in GRADE_METRICS},
        difference={name: difference[name] for name in GRADE_METRICS},
        tests={name: gaps[name][1] for name in ("quadratic_kappa", "grade_error")} | found.tests,
    )


def drawn_grades(predictions: Predictions, weights: np.ndarray) -> dict[str, np.ndarray]:
    """The numbers of classes and of grades, (R,) each, for image weights (R, S)."""
    counted = Scorer(known_labels(predictions), predictions).counted(weights)[0]
    return counted | _of_sums(weights @ _summands(predictions))


def _summands(predictions: Predictions) -> np.ndarray:
    """(S, 3 + 2 K) float64: the absolute error of each image, its squared error and, with it, what kappa sums."""
    labels, predicted, k = known_labels(predictions), predictions.predicted, len(predictions.classes)
    squared = kappa_summands(labels, predicted, grade_costs(k, "squared"))
    return np.column_stack([np.abs(predicted - labels), squared])


def _of_sums(sums: np.ndarray) -> dict[str, np.ndarray]:
    """The numbers of grades, (...) each, from sums (..., 3 + 2 K) over images."""
    absolute, squared = sums[..., 0], sums[..., 1:]
    k = (squared.shape[-1] - 2) // 2
    linear = np.concatenate([squared[..., :1], absolute[..., None], squared[..., 2:]], axis=-1)
    return {
        "quadratic_kappa": kappa_of_sums(squared, grade_costs(k, "squared")),
        "linear_kappa": kappa_of_sums(linear, grade_costs(k, "absolute")),
        "grade_error": ratio(absolute, squared[..., 0]),
    }
