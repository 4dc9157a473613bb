"""`DecisionPolicy`: everything that validation chooses about the use of a model, for each kind of predictions.

It is chosen once, after the training, on what best.pt predicts for the validation images; the checkpoint stores it, and
every prediction of the checkpoint goes through it. Choosing takes scipy and scikit-learn; applying takes numpy alone.
Beside it stands `ReducedPrecision`: whether 16-bit floats change a decision.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import JsonValue, ValidationError

from vitmed.core import upgrade
from vitmed.core.base_models import Floats, Frozen, Names, Stored
from vitmed.core.config import EvaluateConfig
from vitmed.core.text import counted, counted_doing, listed
from vitmed.decisions.calibration import Calibration, fit_calibration
from vitmed.decisions.conformal import IntervalReach, SetThresholds, fit_intervals, fit_sets, prediction_sets
from vitmed.decisions.operating_points import DECIDES, TITLES, PolicyPoints, apply_point, choose_points
from vitmed.decisions.out_of_distribution import OodScore, scores_of
from vitmed.decisions.selective_prediction import Abstention, certainty, choose_abstention
from vitmed.metrics.estimates import FEWEST, Estimate, of_share
from vitmed.metrics.intervals import Units, share
from vitmed.metrics.kinds.findings import FindingPredictions, absence, fewer_holders
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.predictions_csv import ANSWER, BETWEEN, BLANK, NO, OOD_SCORE, SET, YES

UNLIKE, SEVERAL, UNSURE = "unlike the training images", "classes are possible", "too unsure for the chosen risk"
NEXT = re.compile("|".join(f"(?<={end}), " for end in (BLANK, UNLIKE, SEVERAL, UNSURE)))  # a finding may have a comma
# fields of `evaluate` that change what is chosen
CHOOSING = {*TITLES, "calibration", "prevalence", "coverage", "max_risk"} - {"default"}
FASTER = 1.1  # than fp32, reduced precision at least; else it is not taken
MARGIN = 4.5  # standard deviations of rounding: as near to a border, an image is computed once more in fp32
TINY = np.finfo(np.float64).tiny


class DecisionPolicy(Stored):
    """What validation chooses, whatever the kind of label."""

    asked: dict[str, JsonValue]  # the fields `CHOOSING` of the configuration
    n: int  # validation images
    weights_hash: str | None = None  # None: not known
    ood_score: OodScore | None = None  # None where it could not be fitted
    other_scores: Floats = ()  # always (): it is in the hash of an ensemble
    known_logits: Floats = ()  # (K,) of `Preprocessing.drawn` in fp32, for a self-test; (): not known

    @classmethod
    def chosen(cls, validation: Any, config: EvaluateConfig) -> dict[str, Any]:
        """Choose the fields of a kind; see `choose_policy`."""
        raise NotImplementedError

    @property
    def summary(self) -> str:
        """What was chosen, in a line."""
        raise NotImplementedError

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know before believing the numbers."""
        return ()

    def calibrate(self, predictions: Any) -> Any:
        """Calibrate undecided predictions; the policy of findings or a number also decides."""
        return self.apply(predictions)

    def apply(self, predictions: Any) -> Any:
        """Calibrate and decide, and add the columns `set`, if there are prediction sets, and `answer`: "yes", or "no: "
        and why, such as an OOD score above 1. Applying the policy twice changes nothing."""
        decided, unsure = self._decided(predictions)
        columns, answers = decided.columns, list[str]()
        before = columns.get(ANSWER, ("",) * len(decided))
        for cell, strange, others in zip(before, unlike_training(decided), unsure, strict=True):
            why = [BLANK] * (BLANK in cell) + [UNLIKE] * bool(strange) + list(others)
            answers.append(NO + ", ".join(why) if why else YES)
        first = {name: columns[name] for name in (OOD_SCORE,) if name in columns}
        if decided.members is not None:
            first[SET] = tuple(BETWEEN.join(decided.set_of(row)) for row in range(len(decided)))
        rest = {name: columns[name] for name in columns if name not in (OOD_SCORE, SET, ANSWER)}
        return replace(decided, columns={**first, ANSWER: tuple(answers), **rest})

    def _decided(self, predictions: Any) -> tuple[Any, Sequence[Sequence[str]]]:
        """The predictions, calibrated and decided, and why each image is not answered, beside being blank or unlike the
        training images."""
        raise NotImplementedError

    def borders(self, predictions: Any) -> np.ndarray:
        """(S, B) float64: the signed distance of each image from each border of the policy: in log odds, for a tie of
        costs in their unit, and last the OOD score less 1, if known."""
        scores = scores_of(predictions)
        return np.empty((len(predictions), 0)) if scores is None else scores[:, None] - 1

    def near(self, predictions: Any, deviations: Sequence[float]) -> np.ndarray:
        """(S,) bool: images whose decision may be another in fp32; `deviations`: B, those of `ReducedPrecision`."""
        distances = self.borders(predictions)
        if distances.shape[1] != len(deviations):
            return np.ones(len(predictions), bool)
        return np.asarray((np.abs(distances) <= MARGIN * np.array(deviations)).any(axis=1))

    def to_json(self) -> dict[str, Any]:
        """Plain types for metrics.json, without the arrays."""
        return self.model_dump(mode="json", exclude={"ood_score": {"means", "precision"}})

    def check_classes(self, classes: Sequence[str]) -> None:
        """Raises ValueError if the policy does not fit the classes, findings, grades or number."""
        raise NotImplementedError


def limit_log_odds(limit: float | Sequence[float]) -> np.ndarray:
    """The log odds, (...), of a probability or several at which the policy decides."""
    at = np.clip(limit, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(at / (1 - at)))


class ClassPolicy(DecisionPolicy):
    """What validation chooses for classes and grades."""

    calibration: Calibration  # of the raw logits; everything else is chosen on calibrated probabilities
    operating: PolicyPoints
    prediction_sets: SetThresholds | None  # None where validation has too few images
    abstention: Abstention | None  # None without a limit of the risk

    @classmethod
    def chosen(cls, validation: Predictions, config: EvaluateConfig) -> dict[str, Any]:
        units, labels = Units(validation.units), known_labels(validation)
        calibration = fit_calibration(validation.logits, labels, config.calibration, units)
        plain = calibration.calibrate(validation)
        operating, sets = choose_points(plain, config), fit_sets(plain, config.coverage)
        abstention, doubts = choose_abstention(apply_point(plain, operating), config.max_risk), list(operating.notes)
        if config.calibration not in ("auto", "none", calibration.method):
            doubts.append(f"--calibration {config.calibration} took {calibration.method}: {calibration.note}.")
        if sets is None and config.coverage != EvaluateConfig().coverage:
            doubts.append(f"Validation has too few images for prediction sets at --coverage {config.coverage:g}.")
        operating = operating.model_copy(update={"notes": tuple(doubts)})
        return {"calibration": calibration, "operating": operating, "prediction_sets": sets, "abstention": abstention}

    def calibrate(self, predictions: Predictions) -> Predictions:
        return self.calibration.calibrate(predictions)

    def _decided(self, predictions: Predictions) -> tuple[Predictions, list[list[str]]]:
        decided = apply_point(self.calibrate(predictions), self.operating)
        inside = None if self.prediction_sets is None else prediction_sets(decided, self.prediction_sets)
        decided = replace(decided, members=inside, positive=decided.positive or self.operating.positive)
        sizes = np.ones(len(decided), int) if inside is None else inside.sum(axis=1)
        reasons = [[f"{size} {SEVERAL}"] * bool(size > 1) for size in sizes]
        if self.abstention is not None:  # without `least`, no certainty is enough for the limit of the risk
            least = np.inf if self.abstention.least is None else self.abstention.least
            for row in np.flatnonzero(certainty(decided) < least):
                reasons[row].append(UNSURE)
        return decided, reasons

    def borders(self, predictions: Predictions) -> np.ndarray:
        decided = apply_point(self.calibrate(predictions), self.operating)
        chances, least = decided.probabilities, None if self.abstention is None else self.abstention.least
        others = chances @ (1 - np.eye(chances.shape[1]))  # summed, since 1 - p cancels
        odds = np.log(np.maximum(chances, TINY)) - np.log(np.maximum(others, TINY))  # (S, K)
        sure = odds  # what `certainty` takes: of any class, since with costs that of the predicted one jumps
        if decided.threshold is not None and decided.positive is not None:
            called = odds[:, [decided.classes.index(decided.positive)]] - limit_log_odds(decided.threshold)
            borders, sure = [called], np.abs(called)
        else:  # how far each class is above the best of the others
            values = decided.calibrated_logits if decided.costs is None else -chances @ np.array(decided.costs)
            first, second = (np.sort(values, axis=1)[:, -k, None] for k in (1, 2))
            best = np.arange(values.shape[1]) == values.argmax(axis=1)[:, None]
            borders = [values - np.where(best, second, first)]
        if self.prediction_sets is not None:
            borders.append(odds - limit_log_odds(self.prediction_sets.least))
        if least is not None:
            borders.append(sure - limit_log_odds(least))
        return np.hstack([*borders, super().borders(predictions)])

    @property
    def summary(self) -> str:
        fitted, operating = self.calibration, self.operating
        names = {
            "none": "are not calibrated",
            "temperature": f"are calibrated by temperature {1 / fitted.scale[0]:.3g}",
            "vector": "are calibrated by vector scaling",
        }
        text = f"the probabilities {names[fitted.method]}" + (f": {fitted.note}" if fitted.note else "")
        if fitted.trials:
            gains = [f"{t.method} scaling {-t.gain:+.3f} (standard error {t.error:.3f})" for t in fitted.trials]
            text += f" (change of the log loss in cross-validation: {', '.join(gains)})"
        if operating.threshold is not None:
            text += f"; {operating.positive!r} is predicted from a probability of {operating.threshold:.3g}"
        else:
            way = DECIDES.get(operating.chosen)
            text += f"; the {f'class with the {way}' if way else 'likeliest class'} is predicted"
        return text

    @property
    def notes(self) -> tuple[str, ...]:
        if self.abstention is None or self.abstention.least is not None:
            return self.operating.notes
        return (*self.operating.notes, f"No image is answered: {self.abstention.why}.")

    def check_classes(self, classes: Sequence[str]) -> None:
        k, operating, sets, abstention = len(classes), self.operating, self.prediction_sets, self.abstention
        point, costs, other = operating.points.get(operating.chosen), operating.costs, "does not fit the classes"
        decides = point and point.threshold if k == 2 else costs if operating.chosen == "cost" else operating.expected
        good = {
            f"calibration: {other}": len(self.calibration.scale) == k,
            f"operating.positive: {other}": operating.positive in (classes if k == 2 else [None]),
            f"operating.chosen: there is no point {operating.chosen!r}": point is not None,
            f"operating.costs: {other}": costs is None or [len(row) for row in costs] == [k] * k,
            f"operating.expected: {other}": operating.expected is None or len(operating.expected) == k,
            "operating.points: the chosen point has neither a threshold nor costs nor prevalences": (
                operating.chosen == "default" or decides is not None
            ),
            f"prediction_sets: {other}": sets is None or (len(sets.least), len(sets.units)) == (k, k),
            "abstention.why: empty": abstention is None or abstention.least is not None or abstention.why,
        }
        if problems := [problem for problem, fits in good.items() if not fits]:
            raise ValueError(problems[0])


class FindingPolicy(DecisionPolicy):
    """What validation chooses for findings: a policy for each. Findings in `few` are decided at a raw probability of
    0.5: in validation fewer than `FEWEST` of `unit` have them, or have images without them."""

    findings: dict[str, ClassPolicy]
    few: Names = ()
    unit: Literal["patients", "images"] = "images"  # images where patients are unknown

    @classmethod
    def chosen(cls, validation: FindingPredictions, config: EvaluateConfig) -> dict[str, Any]:
        names, usual = validation.classes, EvaluateConfig(calibration="none", coverage=config.coverage)
        few = tuple(np.array(names)[fewer_holders(validation) < FEWEST].tolist())
        policies = {name: choose_policy(validation.of(name), usual if name in few else config) for name in names}
        for name, policy in policies.items():
            if (sets := policy.prediction_sets) is not None and name in sets.without:  # nothing excludes it
                sets = sets.model_copy(update={"least": (sets.least[0], 0.0)})
                policies[name] = policy.model_copy(update={"prediction_sets": sets})
        return {"findings": policies, "few": few, "unit": "images" if validation.groups is None else "patients"}

    def _decided(self, predictions: FindingPredictions) -> tuple[FindingPredictions, list[list[str]]]:
        """The set of an image names the findings that cannot be excluded at the chosen coverage. It is not answered if
        a finding is too unsure for the chosen risk."""
        raw, names = replace(predictions, labels=None), predictions.classes
        views, why = zip(*(self.findings[name]._decided(raw.of(name)) for name in names), strict=True)
        possible = [view.predicted == 1 if view.members is None else view.members[:, 1] for view in views]
        decided = replace(
            predictions.undecided(),
            calibrated=np.stack([view.probabilities[:, 1] for view in views], axis=1),
            thresholds=tuple(view.threshold for view in views),
            members=np.stack(possible, axis=1),
        )
        each = (zip(names, reasons, strict=True) for reasons in zip(*why, strict=True))
        return decided, [[f"{name} is {UNSURE}" for name, reasons in image if UNSURE in reasons] for image in each]

    def borders(self, predictions: FindingPredictions) -> np.ndarray:
        raw = replace(predictions, labels=None, columns={})
        each = [self.findings[name].borders(raw.of(name)) for name in predictions.classes]
        return np.hstack([*each, super().borders(predictions)])

    @property
    def summary(self) -> str:
        calibrated = sum(policy.calibration.method != "none" for policy in self.findings.values())
        limits = {name: policy.operating.threshold for name, policy in self.findings.items()}
        thresholds = [f"{name} {limit:.3g}" for name, limit in limits.items() if limit is not None]
        text = f"{calibrated} of {len(self.findings)} findings calibrated"
        return text + (f"; called at a probability of: {listed(thresholds)}" if thresholds else "")

    @property
    def notes(self) -> tuple[str, ...]:
        few = (
            f"For {listed(self.few)}, validation has fewer than {FEWEST} {self.unit} with the finding, or without it: "
            "no threshold was chosen, and a probability of 0.5 decides, without calibration."
        )
        if any(policy.abstention is not None for policy in self.findings.values()):
            few += " There --max-risk does not hold: they never count as too unsure."
        notes = [f"{name}: {note}" for name, policy in self.findings.items() for note in policy.notes]
        return (*notes, few) if self.few else tuple(notes)

    def check_classes(self, classes: Sequence[str]) -> None:
        if list(self.findings) != list(classes):
            raise ValueError(f"findings: expected {listed(classes)}, found {listed(list(self.findings))}")
        for name, policy in self.findings.items():
            policy.check_classes((absence(name), name))


class NumberPolicy(DecisionPolicy):
    """What validation chooses for a number: how far prediction intervals reach; None for too few images."""

    intervals: IntervalReach | None

    @classmethod
    def chosen(cls, validation: NumberPredictions, config: EvaluateConfig) -> dict[str, Any]:
        return {"intervals": fit_intervals(validation, config.coverage)}

    def _decided(self, predictions: NumberPredictions) -> tuple[NumberPredictions, Sequence[Sequence[str]]]:
        reach = None if self.intervals is None else self.intervals.reach
        return replace(predictions.undecided(), reach=reach), [()] * len(predictions)

    @property
    def summary(self) -> str:
        if self.intervals is None:
            return "no prediction intervals, since there are too few images"
        reach, coverage = self.intervals.reach, self.intervals.coverage
        return f"{100 * coverage:.3g} % prediction intervals reach {reach:.3g} predicted scales up and down"

    @property
    def notes(self) -> tuple[str, ...]:
        if self.intervals is None:
            return ("Validation has too few images for prediction intervals.",)
        return (f"Prediction intervals: {self.intervals.note}.",) if self.intervals.note else ()

    def check_classes(self, classes: Sequence[str]) -> None:
        if len(classes) != 1:
            raise ValueError(f"intervals: for one number, and there are {len(classes)} classes")


POLICIES: dict[str, type[DecisionPolicy]] = {  # by the kind of predictions
    "classes": ClassPolicy,
    "findings": FindingPolicy,
    "number": NumberPolicy,
}


def choose_policy(
    validation: Any, config: EvaluateConfig, ood_score: OodScore | None = None, weights_hash: str | None = None
) -> Any:
    """Choose everything on what a model predicts for its validation images, which have labels, and of two classes
    `positive` as in the configuration of the run. The `ood_score` is fitted before, since it needs features. Raises
    UsageError for an operating point that does not fit the number of classes, and for two points."""
    policy, settings = POLICIES[validation.kind], policy_settings(config)
    chosen = policy.chosen(validation, config)
    return policy(asked=settings, n=len(validation), weights_hash=weights_hash, **chosen, ood_score=ood_score)


def policy_of(content: Mapping[str, Any], classes: Sequence[str]) -> DecisionPolicy:
    """Read what a checkpoint or a metrics.json holds, for a model of these classes. Raises ValueError for anything
    else; the message names the part and the expected content."""
    if not isinstance(content, Mapping):
        raise ValueError(f"expected a decision policy, found {type(content).__name__}")
    kind = "findings" if "findings" in content else "number" if "intervals" in content else "classes"
    upgrade.check_policy(content)
    try:
        policy = POLICIES[kind].model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    policy.check_classes(classes)
    return policy


class AnswerCounts(Frozen):
    """How many of `n` images the model answers, and the share of errors among the answered and among the others.

    `unanswered` counts the images by reason; an image with two reasons counts twice.
    """

    n: int
    n_answered: int
    answered: Estimate
    wrong_answered: Estimate
    wrong_unanswered: Estimate
    unanswered: dict[str, int]


def unlike_training(predictions: Predictions) -> np.ndarray:
    """(S,) bool: images whose OOD score is above 1; none where the score is not known."""
    scores = scores_of(predictions)
    return np.zeros(len(predictions), bool) if scores is None else scores > 1


def count_answers(predictions: Predictions) -> AnswerCounts | None:
    """The counts of the column `answer`; None without images, or where no policy wrote the column."""
    cells = predictions.columns.get(ANSWER, ())
    if not cells:
        return None
    answered, units = np.array([cell == YES for cell in cells]), Units(predictions.units)
    reasons = [reason for cell in cells if cell != YES for reason in NEXT.split(cell.removeprefix(NO))]
    why = Counter(SEVERAL if reason.endswith(SEVERAL) else reason for reason in reasons)
    wrong = ~predictions.right
    return AnswerCounts(
        n=len(cells),
        n_answered=int(answered.sum()),
        answered=of_share(share(answered, None, units)),
        wrong_answered=of_share(share(wrong, answered, units)),
        wrong_unanswered=of_share(share(wrong, ~answered, units)),
        unanswered=dict(why.most_common()),
    )


def policy_settings(config: EvaluateConfig) -> dict[str, Any]:
    """The fields of the configuration that change what is chosen."""
    asked = config.model_dump(include=CHOOSING)
    return asked if config.cost is not None else asked | {"prevalence": None}  # without costs it changes no choice


def notes_of(policy: DecisionPolicy | None) -> list[str]:
    """What a reader must know before believing the numbers."""
    if policy is None:
        return [
            "This checkpoint holds no decision policy: its probabilities are raw, and there are no operating point and "
            "no prediction sets. (best.pt of a run of this version has them.)"
        ]
    return list(policy.notes)


class ReducedPrecision(Stored):
    """What 16-bit floats change in the decisions and numbers of a network: the comparison with fp32, made once, after
    training. Images near a border of the policy are computed once more in fp32, and that counts. A decision is what
    `changed` compares."""

    precision: str  # "bf16" or "fp16"
    device: str  # the kind that computed it, "cpu" or "cuda"
    speedup: float  # how many times as fast as fp32, with what is computed twice
    images: int = 0  # of validation that were compared; 0 where `speedup` is below `FASTER`
    flipped: int = 0  # images with another decision that are not computed twice
    twice: float = 0.0  # share of the images that are computed twice
    largest: float = 0.0  # change of a calibrated probability, or of a number or an end of its interval, in the unit
    unit: str = ""  # of the number
    number: bool = False  # whether it is a number that moves, not a probability
    finite: bool = True  # whether the outputs are finite in this precision; otherwise nothing was compared
    deviations: Floats | None = None  # (B,) of each border, their standard deviation, or largest / `MARGIN`
    accepted: bool = False  # no decision flips, and it is still faster by `FASTER`

    @property
    def in_words(self) -> str:
        """What was found, such as "on 240 validation images no decision flips, ..."."""
        faster = f"{self.precision} is {self.speedup:.1f} times as fast as fp32"
        if not self.images:
            return f"{faster}, so the decisions were not compared"
        start = f"on {counted(self.images, 'validation image')}"
        if not self.finite:
            return f"{start} the outputs are not finite in {self.precision}; {faster}"
        flips = counted_doing(self.flipped, "decision", "flips", "flip") if self.flipped else "no decision flips"
        far = f"{self.largest:.2g} {self.unit}".rstrip() if self.number else f"{np.ceil(1e4 * self.largest) / 1e4:g}"
        again = f"{100 * self.twice:.2g} % are near a border and computed again in fp32"
        moved = f"no {'number' if self.number else 'probability'} moves by more than {far}"
        return f"{start} {flips}, {again}, and {moved}; {faster}"

    @property
    def choice(self) -> str:
        """The precision to use on this kind of device, and why."""
        choice = f"{self.precision} instead of fp32" if self.accepted else f"fp32, not {self.precision}"
        return f"{choice}: {self.in_words}"


def changed(exact: Predictions, other: Predictions) -> np.ndarray:
    """(S,) bool: where two predictions of the same images, the policy applied to both, decide otherwise: the predicted
    class or findings, the prediction set, whether the image is answered and why not."""
    differ: np.ndarray = np.zeros(len(exact), bool)
    if exact.kind != "number":
        differ |= np.any(exact.predicted != other.predicted, axis=tuple(range(1, exact.predicted.ndim)))
    if exact.members is not None and other.members is not None:
        differ |= np.any(exact.members != other.members, axis=1)
    answers = [np.array(each.columns.get(ANSWER, ("",) * len(exact))) for each in (exact, other)]
    return np.asarray(differ | (answers[0] != answers[1]))


def compare_precision(
    measured: ReducedPrecision, policy: DecisionPolicy, exact: Predictions, reduced: Predictions
) -> ReducedPrecision:
    """`measured` with the differences of two predictions of the same images, to both of which the policy is applied:
    `exact` in fp32, `reduced` in the precision of `measured`."""
    moves = policy.borders(exact) - policy.borders(reduced)  # (S, B)
    spread = np.sqrt(np.square(moves).mean(axis=0)) if len(exact) else np.zeros(moves.shape[1])
    moved = np.maximum(spread, np.abs(moves).max(axis=0, initial=0) / MARGIN)
    near = policy.near(reduced, moved)
    flipped, twice = int((changed(exact, reduced) & ~near).sum()), float(near.mean()) if len(exact) else 0.0
    faster = round(1 / (1 / measured.speedup + twice), 2)
    update: dict[str, Any] = {"images": len(exact), "flipped": flipped, "twice": twice, "speedup": faster}
    largest = float(np.abs(exact.amounts - reduced.amounts).max(initial=0))
    update |= {"largest": largest, "deviations": tuple(moved.tolist())}
    update |= {"number": exact.kind == "number", "unit": exact.target.unit}
    return measured.model_copy(update=update | {"accepted": bool(len(exact)) and not flipped and faster >= FASTER})
