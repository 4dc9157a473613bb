"""Operating points: from which probability an image is predicted positive; chosen on validation.

Two classes have a threshold. More classes have a matrix of costs: the class with the lowest expected cost of the
calibrated probabilities is predicted (Elkan, IJCAI 2001, equation 1). For balanced accuracy, missing a class costs the
inverse of its prevalence, which predicts the class of the largest probability / prevalence (Menon et al. 2021, arXiv
2007.07314, section 2). Of grades an error may cost its distance, or the square of it, which predicts the median of the
calibrated probabilities, or the grade nearest to their mean.

A threshold lies in the middle between two neighbouring probabilities of validation, so that it does not depend on the
last digit of one.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import ConfigDict

from vitmed.core.base_models import Floats, Frozen, Names, Stored
from vitmed.core.config import GRADE_ERRORS, EvaluateConfig
from vitmed.core.errors import UsageError
from vitmed.core.text import counted, listed
from vitmed.metrics.areas import threshold_after, threshold_counts, youden_threshold
from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.estimates import FEWEST, Estimate, estimate, of_shares
from vitmed.metrics.intervals import Units, class_shares, ratio, share_ratio
from vitmed.metrics.kinds.classes import PreparedPredictions
from vitmed.metrics.kinds.grades import grade_costs, grade_errors, grades_of
from vitmed.metrics.predictions import Predictions, is_called, known_labels, positive_index

FEW = 10  # positive or negative images, or patients, below which a choice on validation is unreliable
Costs = Sequence[Sequence[float]]  # K x K
MOST_SHOWN = 6  # classes for which a message shows an example of a matrix
# what the predicted class has, by the key of an operating point without a threshold; else the largest probability
DECIDES = {"cost": "lowest expected cost", "balanced": "largest probability relative to its mean on validation"}


class Counts(Frozen):
    """True positive, false positive, false negative and true negative images."""

    tp: int
    fp: int
    fn: int
    tn: int


class Rates(Frozen):
    """What decisions between two classes reach; see `rates`."""

    sensitivity: Estimate
    specificity: Estimate
    ppv: Estimate
    npv: Estimate
    f1: Estimate
    lr_plus: Estimate
    lr_minus: Estimate
    counts: Counts


class PolicyPoint(Stored):
    """One operating point as it was chosen."""

    threshold: float | None  # from which an image is predicted positive; None: the likeliest class, or the cheapest
    asked: float | str | list[list[float]] | None  # its target, such as a sensitivity of 0.95, or the costs
    why: str  # why there is no such threshold; "" where there is one
    promised: Rates | None = None  # what the point reaches on validation; None where that is not known


LIKELIEST = PolicyPoint(threshold=None, asked=None, why="")


class PolicyPoints(Stored):
    """Every operating point that validation gives, by its key in `TITLES`; the `chosen` one decides."""

    positive: str | None  # the positive class; None with more than two classes
    chosen: str
    points: dict[str, PolicyPoint]
    costs: list[Floats] | None  # K x K, of predicting the column's class for an image of the row's
    notes: Names  # what makes the choice doubtful
    expected: Floats | None = None  # of more classes the mean calibrated probability of each in validation
    positives: int = 0  # validation images, with two classes
    negatives: int = 0

    @property
    def threshold(self) -> float | None:
        """The threshold of the point that decides."""
        return self.points[self.chosen].threshold

    @property
    def decisive_costs(self) -> tuple[tuple[float, ...], ...] | None:
        """K x K; of more than two classes the one of the lowest expected cost is predicted. None: the likeliest is."""
        if self.positive is not None or self.chosen == "default":
            return None
        return costs_of_balance(self.expected or ()) if self.chosen == "balanced" else tuple(self.costs or ())


class DecisionCost(Frozen):
    """What decisions cost; see `decision_cost`."""

    expected_cost: Estimate
    normalised_cost: Estimate
    accuracy: Estimate


class DecisionShares(Frozen):
    """How often decisions between three classes or more are right: of all images, and on average over the classes."""

    accuracy: Estimate
    balanced_accuracy: Estimate


class SharesAndCost(DecisionCost, DecisionShares):
    """What decisions between three classes or more reach where costs are given."""


class RatesAndCost(DecisionCost, Rates):
    """What decisions between two classes reach where costs are given."""


class OperatingPoint(PolicyPoint):
    """One operating point: its `threshold` (None where the likelier class decides, or the lowest expected cost), the
    target that was `asked` for, `why` it cannot be chosen, or "", and what it `promised` on validation and `reached` on
    the evaluated images; None where that is not known, or it cannot be chosen."""

    model_config = ConfigDict(strict=False, extra="forbid")

    title: str
    reached: RatesAndCost | Rates | SharesAndCost | DecisionShares | DecisionCost | None


class OperatingPoints(Frozen):
    """Every operating point by its key in `TITLES`; the `chosen` one decides. Of two classes one is `positive`, and
    `by_fold` has the threshold of each of pooled folds."""

    positive: str | None
    chosen: str
    threshold: float | None
    points: dict[str, OperatingPoint]
    notes: list[str]
    by_fold: list[float | None] | None = None


def asked_point(config: EvaluateConfig, classes: int) -> str:
    """The key of the point that you asked for; "default" without one. Raises UsageError for two points at once, and
    for one that does not fit the number of classes."""
    given = [key for key, wish in config.model_dump(include=set(TITLES)).items() if wish]
    flags = ", ".join(f"--{key.replace('_', '-')}" for key in given)
    if len(given) > 1:
        raise UsageError(f"{flags}: only one of them can decide", "keep one; Youden's is reported beside it anyway")
    if given == ["balanced"] and classes == 2:
        raise UsageError("--balanced: decides between three classes or more", "of two classes --youden is the same aim")
    if given and given[0] not in ("balanced", "cost") and classes != 2:
        raise UsageError(
            f"{flags}: a threshold decides between two classes, and there are {classes}",
            "vitmed evaluate RUN --positive CLASS with it takes one class of a trained run against the rest; or "
            f"take --balanced, or give what each error costs: --cost '{example(classes)}'",
        )
    if given == ["cost"]:
        cost_matrix(config, classes, 0)
    return given[0] if given else "default"


def cost_matrix(
    config: EvaluateConfig, classes: int, positive: int | None, grades: np.ndarray | None = None
) -> np.ndarray | None:
    """(K, K) float64, the cost of predicting the column's class for an image of the row's. None: no costs were given.

    `positive` is the positive one of two classes. `grades` (K,) int64 are the grades of the classes; None: in order.
    Raises UsageError if the costs do not fit the number of classes, or an error costs less than a right answer."""
    if config.cost is None:
        return None
    if config.cost in GRADE_ERRORS:
        if len(config.ordinal) != classes:
            problem = f"--cost {config.cost}: is for grades, and these classes have no order"
            raise UsageError(problem, "name them from the lowest grade to the highest: --ordinal CLASS,CLASS,...")
        place = np.arange(classes) if grades is None else grades
        return grade_costs(classes, str(config.cost))[np.ix_(place, place)]
    if isinstance(config.cost, str):
        if classes != 2 or positive is None:
            problem = f"--cost {config.cost}: two costs are for two classes, and there are {classes}"
            raise UsageError(problem, f"give a matrix, the row being the truth: --cost '{example(classes)}'")
        missed, false_alarm = (float(part) for part in config.cost.split(":"))
        costs = np.zeros((2, 2))
        costs[positive, 1 - positive], costs[1 - positive, positive] = missed, false_alarm
        return costs
    costs = np.array(config.cost, dtype=np.float64)
    if costs.shape != (classes, classes):
        problem = f"--cost {config.cost}: {costs.shape[0]} x {costs.shape[0]} costs, and there are {classes} classes"
        raise UsageError(problem, f"give a row and a column for each class: --cost '{example(classes)}'")
    if (np.diag(costs) > costs.min(axis=1)).any():
        problem = f"--cost {config.cost}: being right costs more than an error in some row"
        raise UsageError(problem, "the row is the true class, the column the predicted one; being right costs 0")
    if (costs == np.diag(costs)[:, None]).all():
        problem = f"--cost {config.cost}: no error costs more than being right"
        raise UsageError(problem, f"a cost for each error, such as --cost '{example(classes)}'")
    return costs


def example(classes: int) -> str:
    """A matrix in which every error costs 1."""
    rows = ["[" + ",".join(str(int(row != column)) for column in range(classes)) + "]" for row in range(classes)]
    return f"[{','.join(rows)}]" if classes <= MOST_SHOWN else "[[0,1,...],...]"


def choose_points(validation: Predictions, config: EvaluateConfig) -> PolicyPoints:
    """Every operating point that calibrated validation gives, and which of them decides."""
    classes, labels = validation.classes, known_labels(validation)
    asked, positive = asked_point(config, len(classes)), positive_index(validation)
    costs = cost_matrix(config, len(classes), positive, grades_of(config.ordinal, classes))
    stored = None if costs is None else costs.tolist()
    if positive is None:
        points = dict.fromkeys(("default", "balanced", asked), LIKELIEST)
        # The mean of calibrated probabilities: as the share of the class, but never 0, and less noisy for a rare one.
        expected = tuple(validation.probabilities.mean(axis=0).tolist())
        counts = np.bincount(labels, minlength=len(classes))
        few = [f"{count} of {name}" for name, count in zip(classes, counts, strict=True) if count < FEW]
        note = f"Validation has few images of some classes ({listed(few)}); the decisions for these are unreliable."
        doubt = (note,) if few and asked == "balanced" else ()
        return PolicyPoints(positive=None, chosen=asked, points=points, costs=stored, expected=expected, notes=doubt)
    truth, scores, units = labels == positive, validation.probabilities[:, positive], Units(validation.units)
    ordered = costs if costs is None or positive == 0 else costs[::-1, ::-1]  # the positive class first
    absent = positive if not truth.any() else 1 - positive if truth.all() else None
    points = {}
    for key in dict.fromkeys(("default", "youden", asked)):
        threshold, why = None, ""
        if key != "default" and absent is not None:
            why = f"validation holds no image of class '{classes[absent]}'"
        elif key != "default":
            threshold, why = _threshold(key, scores, truth, config, ordered)
        promised = None if why else rates(is_called(scores, threshold), truth, units)
        points[key] = PolicyPoint(threshold=threshold, asked=target_of_point(config, key), why=why, promised=promised)
    chosen, notes = asked, [] if asked == "default" else _weak(truth, units, config)
    if why := points[asked].why:
        cannot = f"The operating point that you asked for cannot be chosen: {why}. The likeliest class decides instead."
        chosen, notes = "default", [cannot]
    return PolicyPoints(
        positive=classes[positive],
        chosen=chosen,
        points=points,
        costs=stored,
        notes=tuple(notes),
        positives=int(truth.sum()),
        negatives=int((~truth).sum()),
    )


def target_of_point(config: EvaluateConfig, asked: str) -> float | str | list[list[float]] | None:
    """What a point is to reach, such as a sensitivity of 0.95; None where it has no target."""
    return None if asked in ("default", "youden", "balanced") else getattr(config, asked)


def _threshold(
    key: str, scores: np.ndarray, truth: np.ndarray, config: EvaluateConfig, costs: np.ndarray | None
) -> tuple[float | None, str]:
    """The threshold of a point, or None and the reason, from the probability (S,) of the positive class and the truth
    (S,) bool. The costs (2, 2) have the positive class first."""
    if key == "youden":
        threshold = youden_threshold(scores, truth)
        return threshold, "no threshold separates the classes better than guessing" if threshold is None else ""
    tp, fp = threshold_counts(scores, truth)  # (T + 1,) at and above each distinct score, from high to low
    sensitivity, specificity = tp / tp[-1], 1 - fp / fp[-1]
    last = len(tp) - 1  # every image is predicted positive; at 0 none is
    if (target := config.target_sensitivity) is not None:
        best = int(np.argmax(sensitivity >= target - 1e-12))
        ends, why = (last, last), f"a sensitivity of {target:g} is reached only by calling every image positive"
    elif (target := config.target_specificity) is not None:
        best = int(np.flatnonzero(specificity >= target - 1e-12)[-1])
        ends, why = (0, 0), f"a specificity of {target:g} is reached only by calling no image positive"
    else:
        assert costs is not None
        common = truth.mean() if config.prevalence is None else config.prevalence
        (hit, missed), (alarm, right) = costs
        expected = common * (missed * (1 - sensitivity) + hit * sensitivity)
        expected = expected + (1 - common) * (alarm * (1 - specificity) + right * specificity)
        best, ends = int(np.argmin(np.round(expected, 12))), (0, last)
        why = f"at these costs it is cheapest to call {'no' if best == 0 else 'every'} image positive"
    return (None, why) if best in ends else (threshold_after(scores, best), "")


def _weak(truth: np.ndarray, units: Units, config: EvaluateConfig) -> list[str]:
    """What makes the choice of a threshold doubtful."""
    notes, few = [], []
    kinds = (("positive", truth, config.target_sensitivity), ("negative", ~truth, config.target_specificity))
    for name, chosen, target in kinds:
        images, patients = int(chosen.sum()), len(np.unique(units.index[chosen]))
        what = counted(images, f"{name} image") + (f" of {counted(patients, 'patient')}" if units.clustered else "")
        if min(images, patients) < FEW:
            few.append(what)
        elif target is not None and images * (1 - target) < 1 - 1e-9:
            notes.append(f"Validation has {what}, so {target:g} means that not one of them may be missed.")
    doubt = f"The threshold rests on {' and '.join(few)} in validation; its numbers on validation are unreliable."
    return [*notes, doubt] if few else notes


def rates(called: np.ndarray, truth: np.ndarray, units: Units) -> Rates:
    """The rates with intervals and the counts, of decisions (S,) bool against the truth (S,) bool."""
    cells = {"tp": truth & called, "fp": ~truth & called, "fn": truth & ~called, "tn": ~truth & ~called}
    return Rates(
        **of_shares(class_shares(truth, called, units)),
        lr_plus=estimate(*share_ratio(truth, ~truth, called, units), "mover"),
        lr_minus=estimate(*share_ratio(truth, ~truth, ~called, units), "mover"),
        counts=Counts(**{name: int(cell.sum()) for name, cell in cells.items()}),
    )


def costs_of_balance(expected: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    """K x K costs by which the class with the largest probability / `expected`, (K,), has the lowest expected cost."""
    k = len(expected)
    return tuple(tuple(0.0 if i == j else 1 / max(expected[i], 1e-300) for j in range(k)) for i in range(k))


def apply_point(predictions: Predictions, operating: PolicyPoints) -> Predictions:
    """The predictions, decided at the point that `choose_points` chose."""
    if operating.chosen == "default":
        return predictions
    if operating.positive is None:
        return replace(predictions, costs=operating.decisive_costs)
    return replace(predictions, positive=operating.positive, threshold=operating.threshold)


def report_points(
    predictions: Predictions, operating: PolicyPoints | None, config: EvaluateConfig
) -> OperatingPoints | None:
    """What each operating point reaches on the evaluated images, beside what it reaches on validation. Without
    operating points the likeliest class alone is reported. None with more than two classes and one way to decide."""
    positive = positive_index(predictions)
    name = None if positive is None else predictions.classes[positive]
    if operating is None or operating.positive != name:
        operating = PolicyPoints(positive=None, chosen="default", points={"default": LIKELIEST}, costs=None, notes=())
    if positive is None:
        ways = {"default": predictions.likeliest}
        if operating.expected is not None:
            ways["balanced"] = replace(predictions, costs=costs_of_balance(operating.expected), decided=None).predicted
        ways[operating.chosen] = predictions.predicted
        if len(ways) == 1:
            return None
        decisions = {key: (LIKELIEST, called) for key, called in ways.items()}
    else:
        scores = predictions.probabilities[:, positive]
        decisions = {
            key: (point, np.where(is_called(scores, point.threshold), positive, 1 - positive))
            for key, point in operating.points.items()
        }
    points = dict[str, OperatingPoint]()
    for key, (point, called) in decisions.items():
        reached = None if point.why else reached_by(predictions, called, operating.costs, config)
        points[key] = OperatingPoint(title=TITLES[key], **dict(point), reached=reached)
    threshold, notes = None if positive is None else predictions.threshold, list(operating.notes)
    return OperatingPoints(positive=name, chosen=operating.chosen, threshold=threshold, points=points, notes=notes)


def reached_by(
    predictions: Predictions, called: np.ndarray, costs: Costs | None, config: EvaluateConfig
) -> Rates | DecisionShares:
    """What decisions (S,) int64 reach, and their cost where costs are given."""
    positive, labels = positive_index(predictions), known_labels(predictions)
    if positive is not None:
        reached: Rates | DecisionShares = rates(called == positive, labels == positive, Units(predictions.units))
    else:
        overall = PreparedPredictions(replace(predictions, decided=called)).overall
        reached = DecisionShares(accuracy=overall["accuracy"], balanced_accuracy=overall["balanced_accuracy"])
    if not costs:
        return reached
    both = {**dict(decision_cost(costs, predictions, called, config)), **dict(reached)}
    return SharesAndCost(**both) if positive is None else RatesAndCost(**both)


def decision_cost(costs: Costs, predictions: Predictions, called: np.ndarray, config: EvaluateConfig) -> DecisionCost:
    """What decisions cost, and their accuracy on these images.

    `expected_cost` is by image; `normalised_cost` divides it by the expected cost of predicting the cheapest class for
    every image (Ferrer, arXiv 2209.05355: above 1 the model is worth less than no model). Two classes are as common as
    `config.prevalence` states, where it is given; else classes are as common as on these images. `called` (S,) int64 is
    the class that is predicted. The intervals are widened for the patients (or images) who have the commonest class, or
    any other, whichever are fewer; below `FEWEST` there is none.
    """
    matrix, labels = np.array(costs, dtype=np.float64), known_labels(predictions)
    boot, positive = Bootstrap.of(predictions, config.resamples), positive_index(predictions)
    kinds, costs_of = np.eye(len(matrix))[labels], list[dict[str, np.ndarray]]()  # (S, K); of all, of the resamples
    for sums in boot.sums(np.concatenate([kinds, kinds * matrix[labels, called][:, None]], axis=1)):  # (..., 2 K)
        images, lost = np.split(sums, 2, axis=-1)
        common = ratio(images, images.sum(axis=-1, keepdims=True))
        if positive is not None and config.prevalence is not None:
            common = np.where(np.arange(2) == positive, config.prevalence, 1 - config.prevalence) + 0 * images
        expected = np.where(common > 0, common * ratio(lost, images), 0.0).sum(axis=-1)
        normalised = ratio(expected, (common @ matrix).min(axis=-1))
        costs_of.append({"expected_cost": expected, "normalised_cost": normalised})
    whole, drawn = costs_of
    few = boot.units.fewer(labels == kinds.sum(axis=0).argmax())
    drawn = drawn if few >= FEWEST else dict.fromkeys(drawn, np.empty(0))
    costed = {name: boot.estimate(float(value), drawn[name], few) for name, value in whole.items()}
    if config.cost == "absolute" and positive is None:  # it is the error in grades, with the same interval
        costed["expected_cost"] = grade_errors(matrix[labels, called].astype(int), predictions.classes, boot.units).off
    return DecisionCost(**costed, accuracy=boot.proportion(called == labels))


TITLES = {
    "default": "Likeliest class",
    "youden": "Youden index",
    "balanced": "Balanced accuracy",
    "target_sensitivity": "Target sensitivity",
    "target_specificity": "Target specificity",
    "cost": "Lowest expected cost",
}
