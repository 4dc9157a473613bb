"""Grades: weighted kappa, the distance of predicted and true grade, and each cut of the grades as two classes.

Grades are classes in order, the lowest first. Kappa with weights: Cohen, Psychol. Bull. 70 (1968) 213: 1 minus the
disagreement over that expected by chance from how often each reader gives each class.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.errors import UsageError
from vitmed.core.text import listed
from vitmed.metrics.areas import Area
from vitmed.metrics.estimates import ClassNumbers, Estimate, Numbers, estimate, of_mean, of_share
from vitmed.metrics.intervals import Units, ratio, share
from vitmed.metrics.kinds.classes import PreparedPredictions, evaluate_predictions, interval_of
from vitmed.metrics.metric_table import GRADE_METRICS, METRICS, Metric
from vitmed.metrics.predictions import Predictions

KAPPAS = {"quadratic_kappa": "squared", "linear_kappa": "absolute"}  # the cost of a disagreement, of `GRADE_ERRORS`


def grade_costs(k: int, error: str) -> np.ndarray:
    """(K, K) float64, the cost of predicting the column's grade for the row's; `error` is one of `GRADE_ERRORS`.

    The cheapest grade is the median of the predicted distribution for absolute errors; for squared errors it is the
    grade nearest to its mean.
    """
    distance = np.abs(np.arange(k)[:, None] - np.arange(k)).astype(np.float64)
    return distance if error == "absolute" else distance**2


def grades_of(ordinal: Sequence[str], classes: Sequence[str]) -> np.ndarray | None:
    """(K,) int64 grade of each class, 0 the lowest, from the classes in order; None without an order. Raises
    UsageError where the order does not have each class once."""
    if ordinal and sorted(ordinal) != sorted(classes):
        problem = f"--ordinal {','.join(ordinal)}: expected each class once, from the lowest grade to the highest"
        two = f"leave it out: '{classes[0]}' and '{classes[-1]}' are two classes, which need no order"
        raise UsageError(problem, two if len(classes) == 2 else f"the classes are {listed(classes)}")
    return np.array([list(ordinal).index(name) for name in classes]) if ordinal else None


def kappa_summands(first: np.ndarray, second: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(S, 2 + 2 K) float64: of each image what `kappa_of_sums` takes the sums of."""
    one, two = (np.eye(len(weights))[seen] for seen in (first, second))
    return np.column_stack([np.ones(len(first)), weights[first, second], one, two])


def kappa_of_sums(sums: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(...) kappa, from sums (..., 2 + 2 K) over images."""
    rows, columns = np.split(sums[..., 2:], 2, axis=-1)
    by_chance = np.einsum("...i,ij,...j->...", rows, weights, columns)
    return np.asarray(1 - ratio(sums[..., 0] * sums[..., 1], by_chance))


def predictions_at_cut(predictions: Predictions, cut: int) -> Predictions:
    """Grades from number `cut`, 1..K-1, as the positive one of two classes, decided as the grades are. With
    `decided=None` the probability decides instead."""
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
    """The number `n` of images whose predicted grade is `grades` above the true one; below: negative."""

    grades: int
    n: int
    share: Estimate


class GradeResults(Grades):
    """How the grades agree, and what each cut of them is worth.

    Attributes:
        signed: the mean error, predicted minus true; above 0 the grades are too high.
        distances: from the lowest error to the highest, without those that no image has.
        cuts: "KL2 or higher" and the like, as the positive one of two classes, decided as the grades are.
        why: why a number has no value or no interval, by its name.
    """

    quadratic_kappa: Estimate
    linear_kappa: Estimate
    signed: Estimate
    distances: list[Distance]
    cuts: dict[str, ClassNumbers]
    why: dict[str, str] = {}


class PreparedGrades(PreparedPredictions):
    """One set of predictions of grades, which are the classes from the lowest."""

    metrics: ClassVar[dict[str, Metric]] = GRADE_METRICS
    tested: ClassVar[tuple[str, ...]] = ("quadratic_kappa", "grade_error", "auroc", "accuracy")
    unbounded: ClassVar[tuple[str, ...]] = (*PreparedPredictions.unbounded, *KAPPAS, "grade_error")

    def of_sums(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        numbers, cells = super().of_sums(sums), sums[..., :-2]  # (..., C)
        truth, call = np.divmod(self.cells, self.size)  # (C,) each
        for name, error in KAPPAS.items():
            costs = grade_costs(self.size, error)
            numbers[name] = kappa_of_sums(cells @ kappa_summands(truth, call, costs), costs)
        return numbers | {"grade_error": ratio(cells @ np.abs(truth - call), cells.sum(axis=-1))}

    @cached_property
    def kappas(self) -> tuple[dict[str, Estimate], dict[str, str]]:
        """Both weighted kappas of prediction and truth, and why one has no value or no interval."""
        kappas, reasons = dict[str, Estimate](), dict[str, str]()
        for name, error in KAPPAS.items():
            costs = grade_costs(self.size, error)
            kappas[name], reasons[name] = kappa_estimate(self.labels, self.predicted, costs, self.units)
        return kappas, {name: why for name, why in reasons.items() if why}

    @cached_property
    def overall(self) -> dict[str, Estimate]:
        errors = grade_errors(self.predicted - self.labels, self.predictions.classes, self.units)
        overall = super().overall | self.kappas[0] | {"grade_error": errors.off}
        return {name: overall[name] for name in GRADE_METRICS}

    def why(self, name: str, entry: Estimate, numbers: Numbers) -> str:
        if name in METRICS or name not in GRADE_METRICS:
            return super().why(name, entry, numbers)
        return self.kappas[1].get(name, "the error of every image is the same") if self.units.count > 1 else ""


def grade_errors(off: np.ndarray, order: Sequence[str], units: Units) -> Grades:
    """The error in grades, from predicted minus true grade (S,) of each image."""
    size, most, n = np.abs(off), max(1, len(order) - 1), np.array(float(len(off)))
    value = float(ratio(size.sum(), n))
    relative = Area(value / most, ratio(size - value, n * most))  # to the largest error
    low, high = interval_of(relative, 0.0, np.zeros_like(size), size == 0, units)
    mean = estimate(value, most * low, most * high, "influence")
    return Grades(order=list(order), off=mean, within_one=of_share(share(size <= 1, None, units)))


def weighted_kappa(first: np.ndarray, second: np.ndarray, weights: np.ndarray) -> Area:
    """Kappa of two readings, (S,) int64, and its derivative by the weight of each image."""
    summands = kappa_summands(first, second, weights)
    sums = summands.sum(axis=0)
    value, (rows, columns) = float(kappa_of_sums(sums, weights)), np.split(sums[2:], 2)
    chance = (1 - value) * ((weights @ columns)[first] + (rows @ weights)[second])
    return Area(value, ratio(chance - sums[0] * summands[:, 1] - sums[1], rows @ weights @ columns))


def kappa_estimate(first: np.ndarray, second: np.ndarray, weights: np.ndarray, units: Units) -> tuple[Estimate, str]:
    """Kappa of two readings, (S,) int64, with its interval, and why it has none, or no value; "" where it has both. The
    weights of the disagreements are (K, K)."""
    kappa, why = weighted_kappa(first, second, weights), ""
    interval = interval_of(kappa, -1.0, first, first == second, units)
    if not np.isfinite(kappa.value):
        why = "both gave the same class to every image" if len(first) else "no image was read by both"
    elif kappa.value == 1:
        why = "there is no disagreement, so no image shows how much kappa varies"
    elif np.isnan(interval[0]):
        why = "no image changes it, or all are of one patient, so its variance is unknown"
    return estimate(kappa.value, *interval, "influence"), why


def grade_results(predictions: Predictions) -> GradeResults:
    """Everything that judges grades, which are the classes from the lowest, beyond `evaluate_predictions`, by patient
    where patients are known. Raises DataError without labels."""
    prepared = PreparedGrades(predictions)
    off, (kappas, why), units = prepared.predicted - prepared.labels, prepared.kappas, prepared.units
    views = [predictions_at_cut(predictions, cut) for cut in range(1, len(predictions.classes))]
    return GradeResults(
        **dict(grade_errors(off, predictions.classes, units)),
        quadratic_kappa=kappas["quadratic_kappa"],
        linear_kappa=kappas["linear_kappa"],
        signed=of_mean(off.astype(np.float64), units),
        distances=[
            Distance(grades=d, n=int((off == d).sum()), share=of_share(share(off == d, None, units)))
            for d in np.unique(off).tolist()
        ],
        cuts={view.classes[1]: evaluate_predictions(view).per_class[view.classes[1]] for view in views},
        why=why,
    )
