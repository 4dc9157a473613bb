"""Operating points: from which probability an image is predicted positive; chosen on validation.

Two classes have a threshold. More classes have a matrix of costs: the class with the lowest expected cost of the
calibrated probabilities is predicted (Elkan, IJCAI 2001, equation 1). A threshold lies in the middle between two
neighbouring probabilities of validation, so that it does not depend on the last digit of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import JsonValue, PlainSerializer

from vitmed.core.base_models import Frozen, Names, Numbers, Stored
from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import UsageError
from vitmed.core.text import counted
from vitmed.metrics.estimates import Estimate, estimate, of_f1, of_share
from vitmed.metrics.intervals import Units, class_shares, share_ratio
from vitmed.metrics.predictions import Predictions, known_labels, positive_index
from vitmed.metrics.ranking import threshold_counts

FEW = 10  # positive or negative images, or patients, below which a choice on validation is unreliable
MOST_SHOWN = 6  # classes for which a message shows an example of a matrix


class Counts(Frozen):
    """True positive, false positive, false negative and true negative images."""

    tp: int
    fp: int
    fn: int
    tn: int


class Reached(Frozen):
    """What decisions reach: the rates of two classes (see `rates`), and their cost where costs are given."""

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


class PolicyPoint(Stored):
    """One operating point as it was chosen.

    Attributes:
        threshold: the probability from which an image is predicted positive; None: the likeliest class is predicted.
        asked: the target of the point, such as a sensitivity of 0.95; None if it has none.
        why: why there is no such threshold; "" where there is one.
        promised: what the point reaches on validation.
    """

    threshold: float | None
    asked: JsonValue
    why: str
    promised: Annotated[Reached, PlainSerializer(Reached.to_dict)] | None = None

    @property
    def usable(self) -> bool:
        """Whether the point decides at all: it has a threshold, or it is the likeliest class."""
        return self.threshold is not None or not self.why


LIKELIEST = PolicyPoint(threshold=None, asked=None, why="")


class PolicyPoints(Stored):
    """Every operating point that validation gives, by its key in `TITLES`; the `chosen` one decides.

    Attributes:
        positive: the positive class; None with more than two classes.
        costs: K x K, the cost of predicting the column's class for an image of the row's; None if none were given.
        notes: what makes the choice doubtful.
        positives, negatives: validation images, with two classes.
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
        """The threshold of the point that decides."""
        return self.points[self.chosen].threshold


def asked_point(config: EvaluateConfig, classes: int) -> str:
    """The key of the point that you asked for; "default" without one.

    Raises:
        UsageError: two points at once, or a point that does not fit the number of classes.
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
        UsageError: the costs do not fit the number of classes, or an error costs less than a right answer.
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
    if positive is None:
        points = dict.fromkeys(("default", asked), LIKELIEST)
        return PolicyPoints(positive=None, chosen=asked, points=points, costs=stored, notes=())
    truth = labels == positive
    scores = validation.probabilities[:, positive]
    points, units = {"default": LIKELIEST}, Units.of(validation)
    counts = {"positives": int(truth.sum()), "negatives": int((~truth).sum())}
    absent = classes[positive if not truth.any() else 1 - positive]
    for key, target in {"youden": None, asked: target_of(config, asked)}.items():
        if key == "default":
            continue
        threshold, why = None, f"validation holds no image of class '{absent}'"
        if all(counts.values()):
            tp, fp = threshold_counts(scores, truth)
            threshold, why = _threshold(key, target, scores, tp, fp, costs, positive, config.prevalence)
        points[key] = PolicyPoint(threshold=threshold, asked=target, why=why)
    for key, point in points.items():
        if point.usable:
            promised = rates(is_called(scores, point.threshold), truth, units)
            points[key] = point.model_copy(update={"promised": promised})
    chosen, notes = asked, []
    if why := points[asked].why:
        chosen = "default"
        notes = [
            f"The operating point that you asked for cannot be chosen: {why}. The likeliest class decides instead."
        ]
    if chosen != "default" and all(counts.values()):
        notes += _weak(counts, units, truth, config)
    return PolicyPoints(
        positive=classes[positive], chosen=chosen, points=points, costs=stored, notes=tuple(notes), **counts
    )


def target_of(config: EvaluateConfig, asked: str) -> Any:
    """What a point is to reach, such as a sensitivity of 0.95; None where it has no target."""
    return None if asked in ("default", "youden") else getattr(config, asked)


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
    """The threshold of a point, or None and the reason.

    Args:
        tp, fp: (T + 1,) from `threshold_counts`: predicted positive at and above each distinct score, from high to low.
    """
    sensitivity, specificity = tp / tp[-1], 1 - fp / fp[-1]
    last = len(tp) - 1  # every image is predicted positive; at 0 none is
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
    kinds = (("positive", truth, config.target_sensitivity), ("negative", ~truth, config.target_specificity))
    for name, chosen, target in kinds:
        images, patients = counts[f"{name}s"], len(np.unique(units.index[chosen]))
        what = counted(images, f"{name} image") + (f" of {counted(patients, 'patient')}" if units.clustered else "")
        if min(images, patients) < FEW:
            few.append(what)
        elif target is not None and images * (1 - target) < 1:
            notes.append(f"Validation has {what}, so {target:g} means that not one of them may be missed.")
    if few:
        notes.append(
            f"The threshold rests on {' and '.join(few)} in validation; its numbers on validation are unreliable."
        )
    return notes


def is_called(scores: np.ndarray, threshold: float | None) -> np.ndarray:
    """(S,) bool: predicted positive; without a threshold from a probability above one half."""
    return scores > 0.5 if threshold is None else scores >= threshold


def rates(called: np.ndarray, truth: np.ndarray, units: Units) -> Reached:
    """The rates with intervals and the counts, of decisions (S,) bool against the truth (S,) bool."""
    shares = class_shares(truth, called, units)
    cells = {"tp": truth & called, "fp": ~truth & called, "fn": truth & ~called, "tn": ~truth & ~called}
    proportions = {name: of_share(shares[name]) for name in ("sensitivity", "specificity", "ppv", "npv")}
    return Reached(
        **proportions,
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


TITLES = {
    "default": "Likeliest class",
    "youden": "Youden index",
    "target_sensitivity": "Target sensitivity",
    "target_specificity": "Target specificity",
    "cost": "Lowest expected cost",
}
