"""`FindingPolicy`: what validation chooses for a model of several findings, for each as for two classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from vitmed.core.base_models import Names
from vitmed.core.text import listed
from vitmed.core.train_config import EvaluateConfig
from vitmed.decisions.out_of_distribution import OodScore
from vitmed.decisions.policy import (
    UNSURE,
    ClassPolicy,
    DecisionPolicy,
    answers_of,
    choose_policy,
    policy_settings,
    with_columns,
)
from vitmed.metrics.kinds.findings import FindingPredictions, absence, fewer_holders
from vitmed.metrics.notes import FEWEST
from vitmed.metrics.predictions_csv import ANSWER, BETWEEN, SET

USUAL = EvaluateConfig(calibration="none")


class FindingPolicy(DecisionPolicy):
    """What validation chooses for findings: a policy for each. In validation, fewer than `FEWEST` of `unit` have those
    in `few`, or have images without them; they are decided at a raw probability of 0.5."""

    findings: dict[str, ClassPolicy]
    few: Names = ()
    unit: Literal["patients", "images"] = "images"  # images where patients are unknown

    def apply(self, predictions: FindingPredictions) -> FindingPredictions:
        """Calibrate the probabilities, decide, and add the columns `set` and `answer`.

        The set of an image names the findings that cannot be excluded at the coverage that was asked for. An image is
        not answered if it is unlike those of training, or if a finding is too unsure for the risk that was asked for.
        """
        raw = replace(predictions.undecided(), labels=None)
        views = [self.findings[name].apply(raw.of(name)) for name in predictions.classes]
        unsure = [
            [f"{view.classes[1]} is {UNSURE}" for view in views if UNSURE in view.columns[ANSWER][row]]
            for row in range(len(raw))
        ]
        possible = [view.predicted == 1 if view.members is None else view.members[:, 1] for view in views]
        decided = replace(predictions.undecided(), members=np.stack(possible, axis=1))
        sets = tuple(BETWEEN.join(decided.set_of(row)) for row in range(len(raw)))
        ours = {SET: sets, ANSWER: answers_of(raw, unsure)}
        return replace(
            decided,
            calibrated=np.stack([view.probabilities[:, 1] for view in views], axis=1),
            thresholds=tuple(view.threshold for view in views),
            columns=with_columns(raw.columns, ours),
        )

    @property
    def summary(self) -> str:
        calibrated = sum(one.calibration.method != "none" for one in self.findings.values())
        text = f"{calibrated} of {len(self.findings)} findings calibrated"
        moved = {name: one.operating.threshold for name, one in self.findings.items()}
        thresholds = [f"{name} {at:.3g}" for name, at in moved.items() if at is not None]
        return text + (f"; called at a probability of: {listed(thresholds)}" if thresholds else "")

    @property
    def notes(self) -> tuple[str, ...]:
        found = [f"{name}: {note}" for name, one in self.findings.items() for note in one.notes]
        if self.few:
            found.append(
                f"Validation has fewer than {FEWEST} {self.unit} with, or without, {listed(self.few)}: a raw "
                "probability of 0.5 decides there, and no threshold was chosen."
            )
        return tuple(found)

    def check_classes(self, classes: Sequence[str]) -> None:
        if list(self.findings) != list(classes):
            raise ValueError(f"findings: expected {listed(classes)}, found {listed(list(self.findings))}")
        for name, policy in self.findings.items():
            policy.check_classes((absence(name), name))


def choose_finding_policy(
    validation: FindingPredictions,
    config: EvaluateConfig,
    ood_score: OodScore | None = None,
    weights_hash: str | None = None,
) -> FindingPolicy:
    """Choose everything on what a model predicts for its validation images; the arguments are those of `choose_policy`.

    Raises:
        UsageError: an operating point that does not fit two classes, or two points.
    """
    names, held = validation.classes, fewer_holders(validation)
    few = [name for name, count in zip(names, held, strict=True) if count < FEWEST]
    findings = {name: choose_policy(validation.of(name), USUAL if name in few else config) for name in names}
    return FindingPolicy(
        asked=policy_settings(config), n=len(validation), weights_hash=weights_hash, findings=findings,
        few=tuple(few), unit="images" if validation.groups is None else "patients", ood_score=ood_score,
    )  # fmt: skip
