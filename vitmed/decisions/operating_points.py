"""Operating points: from which probability an image is predicted positive; chosen on validation, evaluated elsewhere.

Of two classes a point is a threshold. Of more, a matrix of costs decides instead, by the lowest expected cost of the
calibrated probabilities (Elkan, IJCAI 2001, equation 1). A threshold lies in the middle between two neighbouring
probabilities of validation, so that it does not depend on the last digit of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import JsonValue

from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import UsageError
from vitmed.core.frozen import Frozen, Names, Numbers, Stored
from vitmed.core.text import counted
from vitmed.decisions.reliability import FittedCalibration
from vitmed.metrics.bootstrap import Bootstrap, ratio
from vitmed.metrics.estimates import Estimate, estimate, of_f1, of_share
from vitmed.metrics.evaluation import class_shares
from vitmed.metrics.intervals import Units, share_ratio
from vitmed.metrics.positive_class import positive_index
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.ranking import threshold_counts
from vitmed.metrics.scoring import known_labels

FEW = 10  # positive or negative images, or patients, below which what validation promises is worth little
MOST_SHOWN = 6  # classes of which an example of a matrix is shown


class Counts(Frozen):
    """True positive, false positive, false negative and true negative images."""

    tp: int
    fp: int
    fn: int
    tn: int


class Rates(Frozen):
    """What decisions at a threshold reach."""

    sensitivity: Estimate
    specificity: Estimate
    ppv: Estimate
    npv: Estimate
    f1: Estimate
    lr_plus: Estimate
    lr_minus: Estimate
    counts: Counts


class Reached(Frozen):
    """What decisions reach: the rates of two classes, and where costs were given what they cost (see `spent`)."""

    sensitivity: Estimate | None = None
    specificity: Estimate | None = None
    ppv: Estimate | None = None
    npv: Estimate | None = None
    f1: Estimate | None = None
    lr_plus: Estimate | None = None
    lr_minus: Estimate | None = None
    counts: Counts | None = None
    expected_cost: Estimate | None = None
    normalised_cost: Estimate | None = None
    accuracy: Estimate | None = None


class OperatingPoint(Frozen):
    """One operating point.

    Attributes:
        promised: what validation gave; None where it gave nothing.
        threshold: None where the likelier class decides, or the lowest expected cost.
        asked: what was to be reached.
        why: why the point could not be chosen; "" where it could.
        reached: on the evaluated images; None where the point could not be chosen.
    """

    title: str
    promised: Rates | None = None
    threshold: float | None
    asked: float | str | list[list[float]] | None
    why: str
    reached: Reached | None


class OperatingPoints(Frozen):
    """Every operating point by its key in `TITLES`, and which is `chosen`: it decides.

    Attributes:
        positive: the positive class; None of more than two classes.
        by_fold: of pooled folds, the threshold of each.
    """

    positive: str | None
    chosen: str
    threshold: float | None
    points: dict[str, OperatingPoint]
    notes: list[str]
    by_fold: list[float | None] | None = None


class Fold(Frozen):
    """What one fold is: its calibration, the key of the point that decides, and its numbers.

    Attributes:
        patients: None where they are unknown.
        why: why another point than the one that was asked for decides; "" where it does not.
    """

    images: int
    patients: int | None
    calibration: FittedCalibration
    point: str
    threshold: float | None
    why: str
    numbers: dict[str, Estimate]


class FoldsAuroc(Frozen):
    """AUROC of the pooled images, and the mean over the folds; None where undefined."""

    pooled: float | None
    mean: float | None


class Folds(Frozen):
    """Pooled folds.

    Attributes:
        asked: key of the operating point that was asked for; target: what it is to reach; costs: the matrix.
    """

    asked: str
    target: float | str | list[list[float]] | None
    costs: list[list[float]] | None
    each: list[Fold]
    auroc: FoldsAuroc | None = None


class PolicyPoint(Stored):
    """A threshold.

    Attributes:
        threshold: probability of the positive class from which an image is predicted positive; None: the likeliest
            class is predicted.
        asked: what the point is to reach, such as a sensitivity of 0.95; None if nothing.
        why: why there is no such threshold; "" where there is one.
        promised: what it reaches on validation.
    """

    threshold: float | None
    asked: JsonValue
    why: str
    promised: Rates | None = None


class PolicyPoints(Stored):
    """Every operating point that validation gives, and the one that decides.

    Attributes:
        positive: name of the positive class; None of more than two classes.
        chosen: key in `points` of the one that decides.
        points: by key in `TITLES`.
        costs: K x K, the cost of predicting the column's class for an image of the row's; None if none were given.
        notes: what makes the choice doubtful.
        positives, negatives: validation images of two classes.
    """

    positive: str | None
    chosen: str
    points: dict[str, PolicyPoint]
    costs: list[Numbers] | None
    notes: Names
    positives: int = 0
    negatives: int = 0

    @property
    def threshold(self) -> float | None:
        """That of the point that decides."""
        return self.points[self.chosen].threshold


def asked_point(config: EvaluateConfig, classes: int) -> str:
    """The key of the point that is to decide; "default" if none was asked for.

    Raises:
        UsageError: two points at once, or one that so many classes do not have.
    """
    wishes = {
        "youden": config.youden,
        "target_sensitivity": config.target_sensitivity is not None,
        "target_specificity": config.target_specificity is not None,
        "cost": config.cost is not None,
    }
    given = [key for key, wished in wishes.items() if wished]
    flags = ", ".join(f"--{key.replace('_', '-')}" for key in given)
    if len(given) > 1:
        raise UsageError(f"{flags}: only one of them can decide", "keep one; Youden's is reported beside it anyway")
    if given and given[0] != "cost" and classes != 2:
        raise UsageError(
            f"{flags}: a threshold decides between two classes, and there are {classes}",
            f"leave it out, or give what each error costs: --cost '{example(classes)}'",
        )
    if given == ["cost"]:
        cost_matrix(config, classes, 0)
    return given[0] if given else "default"


def cost_matrix(config: EvaluateConfig, classes: int, positive: int | None) -> np.ndarray | None:
    """(K, K) float64, the cost of predicting the column's class for an image of the row's. None: no costs were given.

    Raises:
        UsageError: it does not fit the number of classes, or an error costs nothing more than being right.
    """
    if config.cost is None:
        return None
    if isinstance(config.cost, str):
        if classes != 2 or positive is None:
            raise UsageError(
                f"--cost {config.cost}: two costs are for two classes, and there are {classes}",
                f"give a matrix, the row being the truth: --cost '{example(classes)}'",
            )
        missed, false_alarm = (float(part) for part in config.cost.split(":"))
        costs = np.zeros((2, 2))
        costs[positive, 1 - positive], costs[1 - positive, positive] = missed, false_alarm
        return costs
    costs = np.array(config.cost, dtype=np.float64)
    if costs.shape != (classes, classes):
        raise UsageError(
            f"--cost {config.cost}: {costs.shape[0]} x {costs.shape[0]} costs, and there are {classes} classes",
            f"give a row and a column for each class: --cost '{example(classes)}'",
        )
    if (np.diag(costs) > costs.min(axis=1)).any():
        raise UsageError(
            f"--cost {config.cost}: being right costs more than an error in some row",
            "the row is the true class, the column the predicted one; being right costs 0",
        )
    return costs


def example(classes: int) -> str:
    """A matrix in which every error costs 1."""
    rows = ["[" + ",".join(str(int(row != column)) for column in range(classes)) + "]" for row in range(classes)]
    return f"[{','.join(rows)}]" if classes <= MOST_SHOWN else "[[0,1,...],...]"


def choose_points(validation: Predictions, config: EvaluateConfig) -> PolicyPoints:
    """Every operating point that validation gives, and which of them decides.

    Args:
        validation: calibrated, with labels.
    """
    classes, labels = validation.classes, known_labels(validation)
    asked, positive = asked_point(config, len(classes)), positive_index(validation)
    costs = cost_matrix(config, len(classes), positive)
    stored = None if costs is None else costs.tolist()
    likeliest = PolicyPoint(threshold=None, asked=None, why="")
    if positive is None:
        points = dict.fromkeys(("default", asked), likeliest)
        return PolicyPoints(positive=None, chosen=asked, points=points, costs=stored, notes=())
    truth = labels == positive
    scores = validation.probabilities[:, positive]
    points, units = {"default": likeliest}, Units.of(validation)
    counts = {"positives": int(truth.sum()), "negatives": int((~truth).sum())}
    for key, target in _targets(config, asked).items():
        absent = classes[positive if not truth.any() else 1 - positive]
        threshold, why = None, f"validation holds no image of class '{absent}'"
        if all(counts.values()):
            tp, fp = threshold_counts(scores, truth)
            threshold, why = _threshold(key, target, scores, tp, fp, costs, positive, config.prevalence)
        points[key] = PolicyPoint(threshold=threshold, asked=target, why=why)
    for key, point in points.items():
        if point.threshold is not None or not point.why:
            promised = rates(_is_called(scores, point.threshold), truth, units)
            points[key] = point.model_copy(update={"promised": promised})
    chosen, notes = asked, []
    if points[asked].why:
        chosen = "default"
        notes.append(
            f"The operating point that was asked for could not be chosen: {points[asked].why}. The likeliest class "
            "decides instead."
        )
    if chosen != "default" and all(counts.values()):
        notes += _weak(counts, units, truth, config)
    return PolicyPoints(
        positive=classes[positive], chosen=chosen, points=points, costs=stored, notes=tuple(notes), **counts
    )


def _targets(config: EvaluateConfig, asked: str) -> dict[str, Any]:
    """Key -> what is to be reached, of the points that are looked for."""
    targets: dict[str, Any] = {"youden": None}
    if asked not in ("default", "youden"):
        targets[asked] = getattr(config, asked)
    return targets


def _threshold(
    key: str,
    target: Any,
    scores: np.ndarray,
    tp: np.ndarray,
    fp: np.ndarray,
    costs: np.ndarray | None,
    positive: int,
    prevalence: float | None,
) -> tuple[float | None, str]:
    """The threshold of a point, or None and why there is none.

    Args:
        tp, fp: (T + 1,) from `threshold_counts`: called positive at and above each distinct score, from high to low.
    """
    sensitivity, specificity = tp / tp[-1], 1 - fp / fp[-1]
    last = len(tp) - 1  # calling every image positive; 0 calls none
    if key == "youden":  # Youden, Cancer 3 (1950) 32
        best = int(np.argmax(np.round(sensitivity + specificity, 12)))
        if best in (0, last):
            return None, "no threshold separates the classes better than guessing"
    elif key == "target_sensitivity":
        best = int(np.argmax(sensitivity >= target - 1e-12))
        if best == last:
            return None, f"a sensitivity of {target:g} is reached only by calling every image positive"
    elif key == "target_specificity":
        best = int(np.flatnonzero(specificity >= target - 1e-12)[-1])
        if best == 0:
            return None, f"a specificity of {target:g} is reached only by calling no image positive"
    else:
        assert costs is not None
        common = tp[-1] / (tp[-1] + fp[-1]) if prevalence is None else prevalence
        missed, found = costs[positive, 1 - positive], costs[positive, positive]
        alarm, right = costs[1 - positive, positive], costs[1 - positive, 1 - positive]
        expected = common * (missed * (1 - sensitivity) + found * sensitivity)
        expected = expected + (1 - common) * (alarm * (1 - specificity) + right * specificity)
        best = int(np.argmin(np.round(expected, 12)))
        if best in (0, last):
            return None, f"at these costs it is cheapest to call {'no' if best == 0 else 'every'} image positive"
    distinct = np.unique(scores)[::-1]  # (T,), from high to low
    high, low = float(distinct[best - 1]), float(distinct[best])
    middle = (high + low) / 2
    return (middle if middle > low else high), ""


def _weak(counts: Mapping[str, int], units: Units, truth: np.ndarray, config: EvaluateConfig) -> list[str]:
    """What makes the choice of a threshold doubtful."""
    notes, few = [], []
    for name, chosen, target in (
        ("positive", truth, config.target_sensitivity),
        ("negative", ~truth, config.target_specificity),
    ):
        images, patients = counts[f"{name}s"], len(np.unique(units.index[chosen]))
        what = counted(images, f"{name} image") + (f" of {counted(patients, 'patient')}" if units.clustered else "")
        if min(images, patients) < FEW:
            few.append(what)
        elif target is not None and images * (1 - target) < 1:
            notes.append(f"Validation has {what}, so {target:g} means that not one of them may be missed.")
    if few:
        notes.append(f"The threshold rests on {' and '.join(few)} in validation; what it promises is worth little.")
    return notes


def _is_called(scores: np.ndarray, threshold: float | None) -> np.ndarray:
    """(S,) bool: predicted positive. Without a threshold the likelier class, so a probability above one half."""
    return scores > 0.5 if threshold is None else scores >= threshold


def rates(called: np.ndarray, truth: np.ndarray, units: Units) -> Rates:
    """The rates with intervals and the counts, of decisions (S,) bool against the truth (S,) bool."""
    shares = class_shares(truth, called, units)
    cells = {"tp": truth & called, "fp": ~truth & called, "fn": truth & ~called, "tn": ~truth & ~called}
    return Rates(
        sensitivity=of_share(shares["sensitivity"]),
        specificity=of_share(shares["specificity"]),
        ppv=of_share(shares["ppv"]),
        npv=of_share(shares["npv"]),
        f1=of_f1(shares["f1"]),
        lr_plus=estimate(*share_ratio(truth, ~truth, called, units), "mover"),
        lr_minus=estimate(*share_ratio(truth, ~truth, ~called, units), "mover"),
        counts=Counts(**{name: int(cell.sum()) for name, cell in cells.items()}),
    )


def apply_point(predictions: Predictions, operating: PolicyPoints) -> Predictions:
    """The predictions, decided at the point that `choose_points` chose."""
    if operating.chosen == "default":
        return predictions
    if operating.positive is None:
        assert operating.costs is not None
        return replace(predictions, costs=tuple(operating.costs))
    return replace(predictions, positive=operating.positive, threshold=operating.threshold)


def report_points(
    predictions: Predictions, operating: PolicyPoints | None, config: EvaluateConfig
) -> OperatingPoints | None:
    """What each operating point reaches on the evaluated images, beside what it reaches on validation.

    Without operating points, the likeliest class alone is reported. None of more than two classes without costs.
    """
    positive, labels = positive_index(predictions), known_labels(predictions)
    if positive is None:
        return _report_costs(predictions, operating, config)
    if operating is None or operating.positive != predictions.classes[positive]:
        likeliest = PolicyPoint(threshold=None, asked=None, why="")
        operating = PolicyPoints(positive=None, chosen="default", points={"default": likeliest}, costs=None, notes=())
    units, truth = Units.of(predictions), labels == positive
    points = {}
    for key, point in operating.points.items():
        reached = None
        if point.threshold is not None or not point.why:
            called = _is_called(predictions.probabilities[:, positive], point.threshold)
            reached = Reached(**dict(rates(called, truth, units)))
            if operating.costs:
                taken = np.where(called, positive, 1 - positive)
                reached = reached.model_copy(update=spent(operating.costs, predictions, taken, config))
        points[key] = OperatingPoint(title=TITLES[key], **dict(point), reached=reached)
    return OperatingPoints(
        positive=predictions.classes[positive],
        chosen=operating.chosen,
        threshold=predictions.threshold,
        points=points,
        notes=list(operating.notes),
    )


def by_fold(folds: Folds | None) -> bool:
    """Whether pooled folds decided otherwise than by the likeliest class, each at what its own validation chose."""
    return folds is not None and any(fold.point != "default" for fold in folds.each)


def report_fold_points(predictions: Predictions, folds: Folds, config: EvaluateConfig) -> OperatingPoints | None:
    """`report_points` of pooled folds: the likeliest class, and the decisions of each fold at its own threshold.

    Args:
        predictions: as the folds `decided`.
    """
    asked, positive = folds.asked, positive_index(predictions)
    if not by_fold(folds) or positive is None:
        rows = None if folds.costs is None else [tuple(row) for row in folds.costs]
        costs = PolicyPoints(positive=None, chosen=asked, points={}, costs=rows, notes=())
        return report_points(predictions, costs, config)
    found = report_points(replace(predictions, decided=None), None, config)
    assert found is not None
    truth, units = known_labels(predictions) == positive, Units.of(predictions)
    reached = Reached(**dict(rates(predictions.predicted == positive, truth, units)))
    if folds.costs:
        reached = reached.model_copy(update=spent(folds.costs, predictions, predictions.predicted, config))
    point = OperatingPoint(
        title=TITLES[asked], promised=None, threshold=None, asked=folds.target, why="", reached=reached
    )
    thresholds = [fold.threshold for fold in folds.each]
    return found.model_copy(update={"chosen": asked, "by_fold": thresholds, "points": {**found.points, asked: point}})


def _report_costs(
    predictions: Predictions, operating: PolicyPoints | None, config: EvaluateConfig
) -> OperatingPoints | None:
    if operating is None or not operating.costs:
        return None
    points = {}
    for key, called in (("default", predictions.likeliest), ("cost", predictions.predicted)):
        reached = Reached.model_validate(spent(operating.costs, predictions, called, config))
        points[key] = OperatingPoint(title=TITLES[key], threshold=None, asked=None, why="", reached=reached)
    return OperatingPoints(positive=None, chosen=operating.chosen, threshold=None, points=points, notes=[])


def spent(costs: Any, predictions: Predictions, called: np.ndarray, config: EvaluateConfig) -> dict[str, Estimate]:
    """What decisions cost, as fields of `Reached`, and their accuracy on these images.

    `expected_cost` is by image; `normalised_cost` is over that of the cheapest single class for all (Ferrer, arXiv
    2209.05355: above 1 the model is worth less than no model).

    Of two classes the costs are those at `config.prevalence`, where it is given; else classes are as common as here.

    Args:
        costs: K x K; called: (S,) int64, the class that is taken.
    """
    matrix, labels = np.array(costs, dtype=np.float64), known_labels(predictions)
    boot, positive, k = (
        Bootstrap.of(predictions, config.resamples),
        positive_index(predictions),
        len(predictions.classes),
    )
    kinds = np.eye(k)[labels]  # (S, K)
    whole, drawn = boot.sums(np.concatenate([kinds, kinds * matrix[labels, called][:, None]], axis=1))

    def common(sums: np.ndarray) -> np.ndarray:
        """(..., K) how common each class is."""
        if positive is None or config.prevalence is None:
            return ratio(sums[..., :k], sums[..., :k].sum(axis=-1, keepdims=True))
        return np.broadcast_to(
            np.where(np.arange(2) == positive, config.prevalence, 1 - config.prevalence), sums[..., :k].shape
        )

    def expected(sums: np.ndarray) -> np.ndarray:
        shares = common(sums)
        return np.where(shares > 0, shares * ratio(sums[..., k:], sums[..., :k]), 0.0).sum(axis=-1)

    def normalised(sums: np.ndarray) -> np.ndarray:
        return ratio(expected(sums), (common(sums) @ matrix).min(axis=-1))

    return {
        "expected_cost": boot.estimate(float(expected(whole)), expected(drawn)),
        "normalised_cost": boot.estimate(float(normalised(whole)), normalised(drawn)),
        "accuracy": boot.proportion(called == labels, np.ones(len(labels), bool)),
    }


TITLES = {
    "default": "Likeliest class",
    "youden": "Youden index",
    "target_sensitivity": "Target sensitivity",
    "target_specificity": "Target specificity",
    "cost": "Lowest expected cost",
}
