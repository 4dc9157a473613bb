"""What validation says of how a model is to be used: calibration, operating point, sets, answers, familiarity.

It is made once, after the training, from what best.pt says of the validation images; it is stored in the checkpoint as
one plain dict and applied to everything that this checkpoint says. Making it may take scipy and scikit-learn; applying
it is numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitmed.abstention import certainty, choose_answers
from vitmed.calibration import Calibration, fit_calibration
from vitmed.config import EvaluateConfig
from vitmed.conformal import fit_sets, prediction_sets
from vitmed.familiarity import Familiarity, scores_of
from vitmed.metrics import finding, known_labels
from vitmed.operating import apply_point, choose_points
from vitmed.predictions import UNFAMILIARITY, Predictions

SET, ANSWER = "set", "answer"  # columns of predictions.csv
YES = "yes"
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
        own = {name: cells for name, cells in decided.columns.items() if name not in self._ours(decided)}
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

    def _ours(self, predictions: Predictions) -> set[str]:
        """Which of the columns an earlier judgement wrote, told by what stands in them."""
        cells = predictions.columns.get(ANSWER, ("",))
        return {SET, ANSWER} if all(cell == YES or cell.startswith("no: ") for cell in cells) else set()

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
            reasons = ["unlike the training images"] if scores is not None and scores[row] > 1 else []
            reasons += [f"{size} classes are possible"] if size > 1 else []
            reasons += ["too unsure for the chosen risk"] if unsure[row] else []
            answers.append(f"no: {', '.join(reasons)}" if reasons else YES)
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
    def of(cls, content: Mapping[str, Any]) -> Judgement:
        """From what `to_dict` gave, with the arrays or without.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
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
