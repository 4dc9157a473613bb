"""Grades with intervals: agreement and distance, and each cut of the grades as two classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.estimates import ClassNumbers, Estimate, Numbers, estimate, of_mean
from vitmed.metrics.intervals import NONE, influence_spread, log_interval, quantile, within
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.kinds.grades import (
    grade_costs,
    kappa_of_sums,
    kappa_summands,
    predictions_at_cut,
    ranked_probability_scores,
)
from vitmed.metrics.metric_table import GRADE_METRICS
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.ranking import ratio


class Grades(Frozen):
    """The error of the model in grades."""

    order: list[str]  # the grades, from the lowest
    off: Estimate  # mean absolute error
    within_one: Estimate  # share of the images with an error of one grade at most


class Distance(Frozen):
    """The images whose predicted grade is so many grades above the true one; below: negative."""

    grades: int
    n: int
    share: Estimate


class GradeResults(Grades):
    """How the grades agree, and what each cut of them is worth.

    Attributes:
        signed: the mean error, predicted minus true; above 0 the grades are too high.
        rps: the mean ranked probability score, 0..1.
        distances: from the lowest error to the highest, without those that no image has.
        cuts: "KL2 or higher" and the like, as the positive one of two classes, decided as the grades are.
        why: why a number has no value or no interval, by its name.
    """

    quadratic_kappa: Estimate
    linear_kappa: Estimate
    signed: Estimate
    rps: Estimate
    distances: list[Distance]
    cuts: dict[str, ClassNumbers]
    why: dict[str, str] = {}


def grade_results(predictions: Predictions, resamples: int = 2000) -> GradeResults:
    """Everything that judges grades beyond `evaluate_predictions`, by patient where patients are known.

    Args:
        predictions: the classes are the grades, from the lowest.

    Raises:
        DataError: the predictions have no labels.
    """
    labels, boot, k = known_labels(predictions), Bootstrap.of(predictions, resamples), len(predictions.classes)
    off, n, every = predictions.predicted - labels, len(labels), np.ones(len(labels), bool)
    kappas = _kappas(predictions, boot)
    scores = ranked_probability_scores(predictions)
    mean = float(scores.mean()) if n else np.nan
    interval = log_interval(mean, influence_spread((scores - mean) / n, boot.units)) if boot.units.count > 1 else NONE
    errors = grade_errors(off, predictions.classes, boot)
    views = [predictions_at_cut(predictions, cut) for cut in range(1, k)]
    return GradeResults(
        **dict(errors),
        quadratic_kappa=kappas["quadratic_kappa"][0],
        linear_kappa=kappas["linear_kappa"][0],
        signed=of_mean(off.astype(np.float64), boot.units),
        rps=estimate(mean, *interval, "influence"),
        distances=[
            Distance(grades=d, n=int((off == d).sum()), share=boot.proportion(off == d, every))
            for d in np.unique(off).tolist()
        ],
        cuts={view.classes[1]: evaluate_predictions(view).per_class[view.classes[1]] for view in views},
        why={name: why for name, (_, why) in kappas.items() if why},
    )


def evaluate_grades(predictions: Predictions, resamples: int = 2000) -> Numbers:
    """`evaluate_predictions`, with all of `GRADE_METRICS`; the arguments and errors are the same."""
    found, boot = evaluate_predictions(predictions, resamples), Bootstrap.of(predictions, resamples)
    own, why = grade_estimates(predictions, boot)
    overall = found.overall | own
    missing = {name: reason for name, reason in why.items() if overall[name].low is None and boot.units.count > 1}
    undefined = {name: reason for name, reason in missing.items() if overall[name].value is None}
    return found.model_copy(
        update={
            "overall": {name: overall[name] for name in GRADE_METRICS},
            "undefined": found.undefined | undefined,
            "no_interval": found.no_interval | {name: missing[name] for name in missing if name not in undefined},
        }
    )


def grade_estimates(predictions: Predictions, boot: Bootstrap) -> tuple[dict[str, Estimate], dict[str, str]]:
    """Both kappas and the error in grades; and why a number has no value or no interval, by its name."""
    off, kappas = predictions.predicted - known_labels(predictions), _kappas(predictions, boot)
    error = grade_errors(off, predictions.classes, boot).off
    why = {name: why for name, (_, why) in kappas.items() if why} | {"grade_error": "all resamples gave the same"}
    return {name: one for name, (one, _) in kappas.items()} | {"grade_error": error}, why


def grade_errors(off: np.ndarray, order: Sequence[str], boot: Bootstrap) -> Grades:
    """The error in grades, from predicted minus true grade (S,) of each image."""
    size, every = np.abs(off), np.ones(len(off), bool)
    whole, drawn = boot.sums(np.stack([size, every], axis=1))
    mean = boot.estimate(float(ratio(whole[0], whole[1])), ratio(drawn[:, 0], drawn[:, 1]))
    return Grades(order=list(order), off=mean, within_one=boot.proportion(size <= 1, every))


def kappa_estimate(
    first: np.ndarray, second: np.ndarray, weights: np.typing.ArrayLike, boot: Bootstrap, read: np.ndarray | None = None
) -> tuple[Estimate, str]:
    """Kappa with its interval, and why it has none, or no value; "" where it has both.

    Args:
        first, second: (S,) int64, two readings.
        weights: (K, K) of the disagreements.
        read: (S,) bool, the images that both have read; None: all.
    """
    known = np.ones(len(first), bool) if read is None else read
    summands = kappa_summands(np.where(known, first, 0), np.where(known, second, 0), weights)
    whole, drawn = boot.sums(summands * known[:, None])
    value, units = float(kappa_of_sums(whole, weights)), boot.units.count
    found = kappa_of_sums(drawn, weights)
    found = found[np.isfinite(found)]
    variance = float(found.var()) * units / max(1, units - 1) if 2 * len(found) > len(drawn) else 0.0
    why, interval = "", NONE
    if not known.any():
        why = "no image was read by both"
    elif not np.isfinite(value):
        why = "both gave the same class to every image"
    elif value == 1:
        why = "there is no disagreement, so the resamples have none either"
    elif variance == 0 or value <= -1:
        why = "the resamples do not vary"
    else:  # as that of the same number among all numbers
        interval = within(value, -1.0, variance, quantile(max(1.0, units - 1)))
    return estimate(value, *interval, "wilson-bootstrap", len(drawn)), why


def _kappas(predictions: Predictions, boot: Bootstrap) -> dict[str, tuple[Estimate, str]]:
    """Both weighted kappas of prediction and truth, as `kappa_estimate`."""
    labels, predicted, k = known_labels(predictions), predictions.predicted, len(predictions.classes)
    return {
        "quadratic_kappa": kappa_estimate(labels, predicted, grade_costs(k, "squared"), boot),
        "linear_kappa": kappa_estimate(labels, predicted, grade_costs(k, "absolute"), boot),
    }
