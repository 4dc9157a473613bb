"""What validation says of how a model is to be used: calibration, operating point, sets, answers, familiarity.

It is made once, after the training, from what best.pt says of the validation images; it is stored in the checkpoint as
one plain dict and applied to everything that this checkpoint says. Making it may take scipy and scikit-learn; applying
it is numpy alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from vitmed.core.config import EvaluateConfig
from vitmed.core.frozen import Frozen
from vitmed.decisions.calibration import Calibration, fit_calibration
from vitmed.decisions.conformal import fit_sets, prediction_sets
from vitmed.decisions.operating_points import apply_point, choose_points
from vitmed.decisions.out_of_distribution import Familiarity, scores_of
from vitmed.decisions.selective_prediction import certainty, choose_answers
from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.positive_class import finding
from vitmed.metrics.predictions import UNFAMILIARITY, Predictions
from vitmed.metrics.scoring import known_labels

SET, ANSWER = "set", "answer"  # columns of predictions.csv
YES, NO = "yes", "no: "
UNLIKE, SEVERAL, UNSURE = "unlike the training images", "classes are possible", "too unsure for the chosen risk"
MOST_NAMES = 20  # classes that the cell of a set names
# Fields of `evaluate` that change what is chosen.
CHOOSING = (
    "calibration", "youden", "target_sensitivity", "target_specificity", "cost", "prevalence", "coverage", "max_risk",
)  # fmt: skip


@dataclass(frozen=True)
class Judgement:
    """All that is chosen on validation.

    Attributes:
        asked: the fields `CHOOSING` of the configuration that it was made for.
        n: validation images.
        calibration: of the logits.
        operating: from `operating.choose_points`, of the calibrated.
        sets: from `conformal.fit_sets`; None where validation has too few images.
        answers: from `abstention.choose_answers`; None where no risk was chosen.
        familiarity: None where it could not be fitted.
        unlike: scores of images that are no such images, with which an evaluation was asked to compare.
    """

    asked: Mapping[str, Any]
    n: int
    calibration: Calibration
    operating: Mapping[str, Any]
    sets: Mapping[str, Any] | None
    answers: Mapping[str, Any] | None
    familiarity: Familiarity | Mapping[str, Any] | None = None
    unlike: tuple[float, ...] = ()

    def apply(self, raw: Predictions) -> Predictions:
        """Calibrate the logits, decide, and add the columns."""
        return self.decide(replace(raw, logits=self.calibration.apply(raw.logits)))

    def decide(self, calibrated: Predictions) -> Predictions:
        """Decide of calibrated logits, and add the columns `set` and `answer`; a user's column of that name stays."""
        decided = apply_point(calibrated, self.operating)
        own = {name: cells for name, cells in decided.columns.items() if name not in _ours(decided)}
        ours: dict[str, tuple[str, ...]] = {}
        inside = None if self.sets is None else prediction_sets(decided, self.sets)
        if inside is not None:
            ours[SET] = tuple(self._names(decided.classes, np.flatnonzero(row)) for row in inside)
        ours[ANSWER] = tuple(self._answers(decided, inside))
        score = {UNFAMILIARITY: own.pop(UNFAMILIARITY)} if UNFAMILIARITY in own else {}
        return replace(decided, columns={**score, **{name: ours[name] for name in ours if name not in own}, **own})

    @staticmethod
    def _names(classes: tuple[str, ...], members: np.ndarray) -> str:
        further = f" | and {len(members) - MOST_NAMES} more" if len(members) > MOST_NAMES else ""
        return " | ".join(classes[k] for k in members[:MOST_NAMES]) + further

    def _answers(self, predictions: Predictions, inside: np.ndarray | None) -> list[str]:
        """ "yes", or "no: " and why, for each image."""
        scores = scores_of(predictions)
        sizes = np.ones(len(predictions), int) if inside is None else inside.sum(axis=1)
        least = None if self.answers is None else self.answers["least"]
        unsure = np.zeros(len(predictions), bool) if least is None else certainty(predictions) < least
        if self.answers is not None and least is None:
            unsure[:] = True  # no certainty is enough for the risk that was asked for
        answers = []
        for row, size in enumerate(sizes):
            reasons = [UNLIKE] if scores is not None and scores[row] > 1 else []
            reasons += [f"{size} {SEVERAL}"] if size > 1 else []
            reasons += [UNSURE] if unsure[row] else []
            answers.append(NO + ", ".join(reasons) if reasons else YES)
        return answers

    def raw(self, calibrated: Predictions) -> Predictions:
        """The predictions as the network gave them, undecided."""
        logits = self.calibration.undo(calibrated.logits)
        return replace(calibrated, logits=logits, threshold=None, costs=None, decided=None)

    def to_dict(self, arrays: bool = True) -> dict[str, Any]:
        """Plain types and numpy arrays, for a checkpoint; without the arrays for metrics.json."""
        known = self.familiarity
        if isinstance(known, Familiarity):
            stored: dict[str, Any] | None = {"n": known.n, "scale": known.scale}
            if arrays and stored is not None:
                stored |= {"means": known.means, "precision": known.precision}
        else:
            stored = None if known is None else dict(known)
        content: dict[str, Any] = {
            "asked": dict(self.asked),
            "n": self.n,
            "calibration": self.calibration.to_dict(),
            "operating": dict(self.operating),
            "sets": None if self.sets is None else dict(self.sets),
            "answers": None if self.answers is None else dict(self.answers),
            "familiarity": stored,
        }
        return content if arrays or not self.unlike else {**content, "unlike": list(self.unlike)}

    @classmethod
    def of(cls, content: Mapping[str, Any], classes: Sequence[str]) -> Judgement:
        """From what `to_dict` gave, with the arrays or without, for a model of these classes.

        Raises:
            ValueError: it is something else; says which part, and what was expected there.
        """
        _check(content, classes)
        known = content["familiarity"]
        if known is not None and "means" in known:
            means, precision = (np.asarray(known[key], dtype=np.float32) for key in ("means", "precision"))
            known = Familiarity(means, precision, float(known["scale"]), int(known["n"]))
        return cls(
            asked=dict(content["asked"]),
            n=int(content["n"]),
            calibration=Calibration.of(content["calibration"]),
            operating=dict(content["operating"]),
            sets=None if content["sets"] is None else dict(content["sets"]),
            answers=None if content["answers"] is None else dict(content["answers"]),
            familiarity=known,
            unlike=tuple(float(score) for score in content.get("unlike", ())),
        )


class AnswerCounts(Frozen):
    """How many of `n` images are answered, and why the others are not.

    Attributes:
        answered: the share that is.
        wrong_answered, wrong_unanswered: the share of errors among the answered and among the others.
        unanswered: reason -> images; an image with two reasons counts at both.
    """

    n: int
    n_answered: int
    answered: Estimate
    wrong_answered: Estimate
    wrong_unanswered: Estimate
    unanswered: dict[str, int]


def count_answers(predictions: Predictions) -> AnswerCounts | None:
    """The counts of the column `answer`; None without images, or where no judgement wrote the column."""
    cells = predictions.columns.get(ANSWER, ())
    if not cells or not all(cell == YES or cell.startswith(NO) for cell in cells):
        return None
    answered = np.array([cell == YES for cell in cells])
    why = Counter(
        SEVERAL if reason.endswith(SEVERAL) else reason
        for cell in cells
        if cell != YES
        for reason in cell.removeprefix(NO).split(", ")
    )
    boot = Bootstrap.of(predictions, 0)
    wrong = predictions.predicted != known_labels(predictions)
    return AnswerCounts(
        n=len(cells),
        n_answered=int(answered.sum()),
        answered=boot.proportion(answered, np.ones(len(cells), bool)),
        wrong_answered=boot.proportion(wrong, answered),
        wrong_unanswered=boot.proportion(wrong, ~answered),
        unanswered=dict(why.most_common()),
    )


class _Plain(BaseModel):
    """A dict as it was stored: every key that is used later, of its type; further ones may be there."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, arbitrary_types_allowed=True)
    __pydantic_extra__: dict[str, JsonValue]


Numbers = list[float] | tuple[float, ...]


class _Entry(_Plain):
    value: float | None
    low: float | None
    high: float | None


class _Counts(_Plain):
    tp: int
    fp: int
    fn: int
    tn: int


class _Promised(_Plain):
    counts: _Counts
    sensitivity: _Entry
    specificity: _Entry
    ppv: _Entry
    npv: _Entry
    f1: _Entry
    lr_plus: _Entry
    lr_minus: _Entry


class _Point(_Plain):
    threshold: float | None
    asked: JsonValue
    why: str
    promised: _Promised | None = None


class _Operating(_Plain):
    positive: str | None
    chosen: str
    notes: list[str]
    costs: list[Numbers] | None
    points: dict[str, _Point]


class _Calibration(_Plain):
    method: str
    scale: Numbers
    bias: Numbers


class _Sets(_Plain):
    coverage: float
    by: str
    note: str
    least: Numbers
    units: list[int]
    without: list[str]


class _Answers(_Plain):
    max_risk: float
    least: float | None
    why: str


class _Familiarity(_Plain):
    n: int
    scale: float = Field(gt=0)
    means: np.ndarray | None = None
    precision: np.ndarray | None = None


class _Stored(_Plain):
    asked: dict[str, JsonValue]
    n: int
    calibration: _Calibration
    operating: _Operating
    sets: _Sets | None
    answers: _Answers | None
    familiarity: _Familiarity | None
    unlike: Numbers = ()


def _check(content: Any, classes: Sequence[str]) -> None:
    """Raises ValueError where a stored judgement lacks anything that is used later, or does not fit the classes."""
    try:
        _Stored.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    k, operating, sets, known = len(classes), content["operating"], content["sets"], content["familiarity"]
    point = operating["points"].get(operating["chosen"])
    costs, answers = operating["costs"], content["answers"]
    for good, problem in (
        (len(content["calibration"]["scale"]) == k, "calibration: it is of other classes"),
        (operating["positive"] in (classes if k == 2 else [None]), "operating.positive: it is of other classes"),
        (point is not None, f"operating.chosen: there is no point {operating['chosen']!r}"),
        (costs is None or np.shape(costs) == (k, k), "operating.costs: they are of other classes"),
        (
            operating["chosen"] == "default"
            or (costs is not None if k != 2 else point is not None and point["threshold"] is not None),
            "operating.points: the point that was chosen has neither a threshold nor costs",
        ),
        (sets is None or {len(sets["least"]), len(sets["units"])} == {k}, "sets: they are of other classes"),
        (answers is None or answers["least"] is not None or answers["why"], "answers.why: it is empty"),
    ):
        if not good:
            raise ValueError(problem)
    if known is not None and {"means", "precision"} & set(known):
        means, precision = (np.asarray(known.get(name, ())) for name in ("means", "precision"))
        width = means.shape[1] if means.ndim == 2 else 0
        if not width or precision.shape != (width * (width + 1) // 2,):
            raise ValueError("familiarity: means and precision do not fit each other, or one is missing")


def _ours(predictions: Predictions) -> set[str]:
    """Which of the columns an earlier judgement wrote, told by what stands in them."""
    cells = predictions.columns.get(ANSWER, ("",))
    return {SET, ANSWER} if all(cell == YES or cell.startswith(NO) for cell in cells) else set()


def own_columns(predictions: Predictions) -> tuple[str, ...]:
    """The columns that a user's table brought, in its order."""
    return tuple(name for name in predictions.columns if name not in {UNFAMILIARITY, *_ours(predictions)})


def asked_of(config: EvaluateConfig) -> dict[str, Any]:
    """The fields of the configuration that change what is chosen."""
    asked = config.model_dump(include=set(CHOOSING))
    return asked if config.cost is not None else asked | {"prevalence": None}  # which then changes no choice


def make_judgement(
    raw: Predictions, config: EvaluateConfig, familiarity: Familiarity | Mapping[str, Any] | None = None
) -> Judgement:
    """Choose everything on what a model said of its validation images.

    Args:
        raw: its logits, with labels; `positive` as in the configuration of the run.
        familiarity: fitted before, since it needs features.

    Raises:
        UsageError: an operating point that these classes do not have, or two of them.
    """
    labels = known_labels(raw)
    calibration = fit_calibration(raw.logits, labels, config.calibration)
    calibrated = replace(raw, logits=calibration.apply(raw.logits), threshold=None, costs=None)
    positive = finding(calibrated)
    if positive is not None:
        calibrated = replace(calibrated, positive=calibrated.classes[positive])
    operating = choose_points(calibrated, config)
    decided = apply_point(calibrated, operating)
    return Judgement(
        asked=asked_of(config),
        n=len(raw),
        calibration=calibration,
        operating=operating,
        sets=fit_sets(calibrated, config.coverage),
        answers=choose_answers(decided, config.max_risk),
        familiarity=familiarity,
    )


def notes_of(judgement: Judgement | None) -> list[str]:
    """What must be known before the numbers are believed."""
    if judgement is None:
        return [
            "This checkpoint holds nothing that was chosen on validation: its probabilities are raw, and there are no "
            "operating point and no prediction sets. (best.pt of a run of this version has them.)"
        ]
    notes = [str(note) for note in judgement.operating["notes"]]
    if judgement.answers is not None and judgement.answers["least"] is None:
        notes.append(f"No image is answered: {judgement.answers['why']}.")
    return notes
