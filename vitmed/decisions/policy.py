"""`DecisionPolicy`: everything that validation chooses about the use of a model; here that of classes and grades.

It is chosen once, after the training, on what best.pt predicts for the validation images; the checkpoint stores it, and
every prediction of the checkpoint goes through it. Choosing takes scipy and scikit-learn; applying takes numpy alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from pydantic import JsonValue, ValidationError

from vitmed.core import upgrade
from vitmed.core.base_models import Frozen, Numbers, Stored
from vitmed.core.train_config import EvaluateConfig
from vitmed.decisions.calibration import Calibration, fit_calibration
from vitmed.decisions.conformal import SetThresholds, fit_sets, prediction_sets
from vitmed.decisions.operating_points import PolicyPoints, apply_point, choose_points
from vitmed.decisions.out_of_distribution import OodScore, scores_of
from vitmed.decisions.selective_prediction import Abstention, certainty, choose_abstention
from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.intervals import Units
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.predictions_csv import ANSWER, BETWEEN, BLANK, NO, OOD_SCORE, SET, WRITTEN, YES

UNLIKE, SEVERAL, UNSURE = "unlike the training images", "classes are possible", "too unsure for the chosen risk"
CHOOSING = {  # fields of `evaluate` that change what is chosen
    "calibration",
    "youden",
    "balanced",
    "target_sensitivity",
    "target_specificity",
    "cost",
    "prevalence",
    "coverage",
    "max_risk",
}


class DecisionPolicy(Stored):
    """What validation chooses, whatever the kind of label."""

    asked: dict[str, JsonValue]  # the fields `CHOOSING` of the configuration
    n: int  # validation images
    weights_hash: str | None = None  # None: not known
    ood_score: OodScore | None = None  # None where it could not be fitted
    other_scores: Numbers = ()  # OOD scores of the images that `--unlike` names
    known_logits: Numbers = ()  # (K,) of `Preprocessing.drawn` in fp32, for a self-test; (): not known

    @property
    def summary(self) -> str:
        """What was chosen, in a line."""
        raise NotImplementedError

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know before believing the numbers."""
        return ()

    def apply(self, predictions: Any) -> Any:
        """Calibrate and decide. Applying the policy twice changes nothing."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Plain types for metrics.json, without the arrays."""
        return self.model_dump(mode="json", exclude={"ood_score": {"means", "precision"}})

    def check_classes(self, classes: Sequence[str]) -> None:
        """Raises ValueError if the policy does not fit the classes, findings, grades or number."""
        raise NotImplementedError

    @classmethod
    def of(cls, content: Mapping[str, Any], classes: Sequence[str]) -> Self:
        """Read what a checkpoint or a metrics.json holds, for a model of these classes.

        Raises:
            ValueError: it is not such a policy; the message names the part and the expected content.
        """
        try:
            policy = cls.model_validate(upgrade.policy(content))
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        except AttributeError:
            raise ValueError(f"expected a decision policy, found {type(content).__name__}") from None
        policy.check_classes(classes)
        return policy


def answers_of(predictions: AnyPredictions, further: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The cells of the column `answer`: "yes", or "no: " and why.

    Args:
        predictions: whose column `answer` may name images without content; further: other reasons of each image.
    """
    blank = (BLANK in cell for cell in predictions.columns.get(ANSWER, [""] * len(predictions)))
    unlike, reasons = unlike_training(predictions), list[list[str]]()
    for empty, strange, others in zip(blank, unlike, further, strict=True):
        reasons.append([BLANK] * empty + [UNLIKE] * bool(strange) + list(others))
    return tuple(NO + ", ".join(why) if why else YES for why in reasons)


def with_columns(own: Mapping[str, tuple[str, ...]], ours: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The columns of a table with those of a policy, which stand first and replace those of an earlier one."""
    first = {OOD_SCORE: own[OOD_SCORE]} if OOD_SCORE in own else {}
    return {**first, **ours, **{name: own[name] for name in own if name not in (OOD_SCORE, SET, ANSWER)}}


class ClassPolicy(DecisionPolicy):
    """What validation chooses for classes and grades."""

    calibration: Calibration  # of the raw logits; everything else is chosen on calibrated probabilities
    operating: PolicyPoints
    prediction_sets: SetThresholds | None  # None where validation has too few images
    abstention: Abstention | None  # None without a limit of the risk

    def apply(self, predictions: Predictions) -> Predictions:
        """Calibrate the probabilities, decide, and add the columns `set` and `answer`.

        Applying the policy twice changes nothing.
        """
        decided = replace(apply_point(self.calibration.calibrate(predictions), self.operating), members=None)
        ours, sizes = dict[str, tuple[str, ...]](), np.ones(len(decided), int)
        if self.prediction_sets is not None:
            inside = prediction_sets(decided, self.prediction_sets)
            decided, sizes = replace(decided, members=inside), inside.sum(axis=1)
            ours[SET] = tuple(BETWEEN.join(decided.set_of(row)) for row in range(len(decided)))
        ours[ANSWER] = self._answers(decided, sizes)
        return replace(decided, columns=with_columns(decided.columns, ours))

    def _answers(self, predictions: Predictions, sizes: np.ndarray) -> tuple[str, ...]:
        """ "yes", or "no: " and why, for each image, from the sizes (S,) of the prediction sets."""
        unsure = np.zeros(len(predictions), bool)
        if self.abstention is not None:  # without `least`, no certainty is enough for the limit of the risk
            least = self.abstention.least
            unsure = certainty(predictions) < (np.inf if least is None else least)
        several = [[f"{size} {SEVERAL}"] * bool(size > 1) for size in sizes]
        further = [[*many, *[UNSURE] * bool(one)] for many, one in zip(several, unsure, strict=True)]
        return answers_of(predictions, further)

    @property
    def summary(self) -> str:
        known, operating = self.calibration, self.operating
        names = {
            "none": "are not calibrated",
            "temperature": f"are calibrated by temperature {1 / known.scale[0]:.3g}",
            "vector": "are calibrated by vector scaling",
        }
        text = f"the probabilities {names[known.method]}" + (f": {known.note}" if known.note else "")
        if known.trials:
            gains = [f"{one.method} scaling {-one.gain:+.3f} (standard error {one.error:.3f})" for one in known.trials]
            text += f" (change of the log loss in cross-validation: {', '.join(gains)})"
        if operating.threshold is not None:
            text += f"; {operating.positive!r} is predicted from a probability of {operating.threshold:.3g}"
        elif operating.chosen == "default":
            text += "; the likeliest class is predicted"
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


def unlike_training(predictions: AnyPredictions) -> np.ndarray:
    """(S,) bool: images whose OOD score is above 1; none where the score is not known."""
    scores = scores_of(predictions)
    return np.zeros(len(predictions), bool) if scores is None else scores > 1


def count_answers(predictions: Predictions) -> AnswerCounts | None:
    """The counts of the column `answer`; None without images, or where no policy wrote the column."""
    cells = predictions.columns.get(ANSWER, ())
    if not cells:
        return None
    answered, boot = np.array([cell == YES for cell in cells]), Bootstrap.of(predictions, 0)
    reasons = [reason for cell in cells if cell != YES for reason in cell.removeprefix(NO).split(", ")]
    why = Counter(SEVERAL if reason.endswith(SEVERAL) else reason for reason in reasons)
    wrong = predictions.predicted != known_labels(predictions)
    share = boot.proportion(answered, np.ones(len(cells), bool))
    errors = {"wrong_answered": boot.proportion(wrong, answered), "wrong_unanswered": boot.proportion(wrong, ~answered)}
    unanswered = dict(why.most_common())
    return AnswerCounts(n=len(cells), n_answered=int(answered.sum()), answered=share, **errors, unanswered=unanswered)


def own_columns(predictions: AnyPredictions) -> tuple[str, ...]:
    """The columns of the user's table, in its order."""
    return tuple(name for name in predictions.columns if name not in WRITTEN)


def policy_settings(config: EvaluateConfig) -> dict[str, Any]:
    """The fields of the configuration that change what is chosen."""
    asked = config.model_dump(include=CHOOSING)
    return asked if config.cost is not None else asked | {"prevalence": None}  # without costs it changes no choice


def choose_policy(
    validation: Predictions, config: EvaluateConfig, ood_score: OodScore | None = None, weights_hash: str | None = None
) -> ClassPolicy:
    """Choose everything on what a model predicts for its validation images.

    Args:
        validation: with labels; `positive` as in the configuration of the run.
        ood_score: fitted before, since it needs features.
        weights_hash: of the model.

    Raises:
        UsageError: an operating point that does not fit the number of classes, or two points.
    """
    units = Units.of(validation)
    calibration = fit_calibration(validation.logits, known_labels(validation), config.calibration, units)
    plain = calibration.calibrate(validation)
    operating = choose_points(plain, config)
    return ClassPolicy(
        asked=policy_settings(config), n=len(validation), weights_hash=weights_hash,
        calibration=calibration, operating=operating,
        prediction_sets=fit_sets(plain, config.coverage),
        abstention=choose_abstention(apply_point(plain, operating), config.max_risk), ood_score=ood_score,
    )  # fmt: skip


def notes_of(policy: DecisionPolicy | None) -> list[str]:
    """What a reader must know before believing the numbers."""
    if policy is None:
        return [
            "This checkpoint holds no decision policy: its probabilities are raw, and there are no operating point and "
            "no prediction sets. (best.pt of a run of this version has them.)"
        ]
    return list(policy.notes)
