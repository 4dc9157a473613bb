"""Grades: weighted kappa, the distance of predicted and true grade, and each cut of the grades as two classes.

Grades are classes in order, the lowest first. Kappa with weights: Cohen, Psychol. Bull. 70 (1968) 213: 1 minus the
disagreement over that expected by chance from how often each reader gives each class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.errors import UsageError
from vitmed.core.text import listed
from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.estimates import ClassNumbers, Estimate, Numbers, estimate, of_mean
from vitmed.metrics.intervals import NONE, Units, influence_spread, log_interval, quantile, ratio, within
from vitmed.metrics.kinds.classes import compare_predictions, evaluate_predictions, metric_values
from vitmed.metrics.metric_table import GRADE_METRICS
from vitmed.metrics.paired_comparison import PairedComparison, gap_of, jackknifed_gaps
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.scoring import Scorer


def grade_costs(k: int, error: str) -> tuple[tuple[float, ...], ...]:
    """K x K costs of predicting the column's grade for the row's, for `Predictions.costs`; a value of `GRADE_ERRORS`.

    The cheapest grade is the median of the predicted distribution for absolute errors; for squared errors it is the
    grade nearest to its mean.
    """
    distance = np.abs(np.arange(k)[:, None] - np.arange(k)).astype(np.float64)
    return tuple(map(tuple, (distance if error == "absolute" else distance**2).tolist()))


def grades_of(ordinal: Sequence[str], classes: Sequence[str]) -> np.ndarray | None:
    """(K,) int64 grade of each class, 0 the lowest, from the classes in order; None without an order.

    Raises:
        UsageError: the order does not have each class once.
    """
    if ordinal and sorted(ordinal) != sorted(classes):
        raise UsageError(
            f"--ordinal {','.join(ordinal)}: expected each class once, from the lowest grade to the highest",
            f"the classes are {listed(classes)}",
        )
    return np.array([list(ordinal).index(name) for name in classes]) if ordinal else None


def grade_values(predictions: Predictions) -> dict[str, float]:
    """Every number of `GRADE_METRICS`, without intervals; NaN where undefined. Raises DataError without labels."""
    of_grades = {name: float(value) for name, value in _of_sums(_summands(predictions).sum(axis=0)).items()}
    values = metric_values(predictions) | of_grades
    return {name: values[name] for name in GRADE_METRICS}


def kappa_summands(first: np.ndarray, second: np.ndarray, weights: np.typing.ArrayLike) -> np.ndarray:
    """(S, 2 + 2 K) float64: of each image what `kappa_of_sums` takes the sums of."""
    costs = np.asarray(weights, dtype=np.float64)
    one, two = (np.eye(len(costs))[seen] for seen in (first, second))
    return np.column_stack([np.ones(len(first)), costs[first, second], one, two])


def kappa_of_sums(sums: np.ndarray, weights: np.typing.ArrayLike) -> np.ndarray:
    """(...) kappa, from sums (..., 2 + 2 K) over images."""
    costs = np.asarray(weights, dtype=np.float64)
    rows, columns = np.split(sums[..., 2:], 2, axis=-1)
    by_chance = np.einsum("...i,ij,...j->...", rows, costs, columns)
    return np.asarray(1 - ratio(sums[..., 0] * sums[..., 1], by_chance))


def ranked_probability_scores(predictions: Predictions) -> np.ndarray:
    """(S,) 0..1, lower is better: the mean over cuts of the squared error of the probability to be above the cut.

    Epstein, J. Appl. Meteorol. 8 (1969) 985, divided by K - 1.
    """
    labels, k = known_labels(predictions), len(predictions.classes)
    below = np.cumsum(predictions.probabilities, axis=1)[:, :-1]  # (S, K - 1) of each cut
    return ((below - (labels[:, None] <= np.arange(k - 1))) ** 2).sum(axis=1) / max(1, k - 1)


def predictions_at_cut(predictions: Predictions, cut: int) -> Predictions:
    """Grades from number `cut`, 1..K-1, as the positive one of two classes, decided as the grades are.

    With `decided=None` the probability decides instead.
    """
    assert 0 < cut < len(predictions.classes), cut
    names = f"below {predictions.classes[cut]}", f"{predictions.classes[cut]} or higher"
    raw = predictions.logits.astype(np.float64)
    odds = np.logaddexp.reduce(raw[:, cut:], axis=1) - np.logaddexp.reduce(raw[:, :cut], axis=1)
    chances = predictions.calibrated
    above = None if chances is None else np.clip(chances[:, cut:].sum(axis=1), 0, 1)
    return replace(
        predictions,
        classes=names,
        labels=None if predictions.labels is None else (predictions.labels >= cut).astype(np.int64),
        logits=np.stack([np.zeros_like(odds), odds], axis=1).astype(np.float32),
        calibrated=None if above is None else np.stack([1 - above, above], axis=1),
        decided=(predictions.predicted >= cut).astype(np.int64),
        positive=names[1],
        threshold=None,
        costs=None,
    )


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
    labels, boot = known_labels(predictions), Bootstrap.of(predictions, resamples)
    off, n, every = predictions.predicted - labels, len(labels), np.ones(len(labels), bool)
    scores = ranked_probability_scores(predictions)
    mean = float(scores.mean()) if n else np.nan
    interval = log_interval(mean, influence_spread((scores - mean) / n, boot.units)) if boot.units.count > 1 else NONE
    kappas, why = _kappas(predictions, boot)
    views = [predictions_at_cut(predictions, cut) for cut in range(1, len(predictions.classes))]
    return GradeResults(
        **dict(grade_errors(off, predictions.classes, boot)),
        quadratic_kappa=kappas["quadratic_kappa"],
        linear_kappa=kappas["linear_kappa"],
        signed=of_mean(off.astype(np.float64), boot.units),
        rps=estimate(mean, *interval, "influence"),
        distances=[
            Distance(grades=d, n=int((off == d).sum()), share=boot.proportion(off == d, every))
            for d in np.unique(off).tolist()
        ],
        cuts={view.classes[1]: evaluate_predictions(view).per_class[view.classes[1]] for view in views},
        why=why,
    )


def evaluate_grades(predictions: Predictions, resamples: int = 2000) -> Numbers:
    """`evaluate_predictions`, with all of `GRADE_METRICS`; the arguments and errors are the same."""
    numbers, boot = evaluate_predictions(predictions, resamples), Bootstrap.of(predictions, resamples)
    of_grades, why = _grade_estimates(predictions, boot)
    overall = numbers.overall | of_grades
    unsure = {name: reason for name, reason in why.items() if overall[name].low is None and boot.units.count > 1}
    undefined = {name: reason for name, reason in unsure.items() if overall[name].value is None}
    return numbers.model_copy(
        update={
            "overall": {name: overall[name] for name in GRADE_METRICS},
            "undefined": numbers.undefined | undefined,
            "no_interval": numbers.no_interval | {name: unsure[name] for name in unsure if name not in undefined},
        }
    )


def _grade_estimates(predictions: Predictions, boot: Bootstrap) -> tuple[dict[str, Estimate], dict[str, str]]:
    """Both kappas and the error in grades; and why a number has no value or no interval, by its name."""
    kappas, why = _kappas(predictions, boot)
    off = predictions.predicted - known_labels(predictions)
    error = grade_errors(off, predictions.classes, boot).off
    return kappas | {"grade_error": error}, why | {"grade_error": "all resamples gave the same"}


def _kappas(predictions: Predictions, boot: Bootstrap) -> tuple[dict[str, Estimate], dict[str, str]]:
    """Both weighted kappas of prediction and truth, and why one has no value or no interval."""
    labels, predicted, k = known_labels(predictions), predictions.predicted, len(predictions.classes)
    costs = {"quadratic_kappa": grade_costs(k, "squared"), "linear_kappa": grade_costs(k, "absolute")}
    kappas = {name: kappa_estimate(labels, predicted, weights, boot) for name, weights in costs.items()}
    return {name: kappa for name, (kappa, _) in kappas.items()}, {name: why for name, (_, why) in kappas.items() if why}


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


def compare_grades(predictions: Predictions, other: Predictions, resamples: int = 2000) -> PairedComparison:
    """`compare_predictions`, with both kappas and the error in grades, whose intervals are by `jackknifed_gaps`.

    The quadratic kappa decides which model is better.

    Raises:
        DataError: not the same images, labels or grades in the same order; or no labels.
    """
    found, boot = compare_predictions(predictions, other, resamples), Bootstrap.of(other, resamples)
    own, theirs = (_grade_estimates(model, boot)[0] for model in (predictions, other))
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
