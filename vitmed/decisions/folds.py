"""Pooled folds: the numbers and the policy of each, as typed results, and what a reader must know about them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from vitmed.core.base_models import Frozen
from vitmed.core.config import EvaluateConfig
from vitmed.decisions.calibration import Calibration, CalibrationResult
from vitmed.decisions.operating_points import TITLES, asked_point, target_of
from vitmed.decisions.policy import ClassPolicy, DecisionPolicy
from vitmed.metrics.estimates import Estimate, Numbers

NOTICEABLE = 0.01  # difference between the pooled AUROC and the mean of the folds
OF_POSITIVE = ("sensitivity", "specificity")  # reported for each fold of two classes


class Fold(Frozen):
    """One fold: its numbers; of classes also its calibration, the key of the `point` that decides, and its threshold.

    `why` is the reason why the point that you asked for does not decide; "" where it does.
    """

    images: int
    patients: int | None
    numbers: dict[str, Estimate]
    calibration: CalibrationResult | None = None
    point: str = "default"
    threshold: float | None = None
    why: str = ""


class FoldsAuroc(Frozen):
    """AUROC of the pooled images, and the mean over the folds; None where undefined."""

    pooled: float | None
    mean: float | None


class Folds(Frozen):
    """Pooled folds: the key of the operating point that was `asked` for, its target and the costs, and `each` fold.

    `findings` has the same of each finding.
    """

    asked: str
    target: float | str | list[list[float]] | None
    costs: list[list[float]] | None
    each: list[Fold]
    auroc: FoldsAuroc | None = None
    findings: dict[str, Folds] = {}


def folds_of_classes(
    results: Sequence[Numbers],
    policies: Sequence[DecisionPolicy | None],
    names: Sequence[str],
    auroc: float,
    config: EvaluateConfig,
) -> Folds:
    """Folds of classes, or of one finding.

    Args:
        results, policies: the numbers of each fold on its test, and its policy.
        names: of the numbers that are kept.
        auroc: of the pooled images; NaN where undefined.
        config: of the evaluation.
    """
    k, each, costs = len(results[0].classes), list[Fold](), None
    asked = asked_point(config, k)
    for result, policy in zip(results, policies, strict=True):
        numbers = {name: result.overall[name] for name in names}
        if result.positive_class is not None:
            numbers |= {name: result.per_class[result.positive_class][name] for name in OF_POSITIVE}
        decided: dict[str, Any] = {
            "why": "",
            "calibration": Calibration.none(k, "no calibration is known for these predictions"),
            "point": "default",
            "threshold": None,
        }
        if policy is not None:
            assert isinstance(policy, ClassPolicy)
            operating = policy.operating
            costs = operating.model_dump(mode="json")["costs"] if not each else costs
            decided = {"calibration": policy.calibration, "point": operating.chosen, "threshold": operating.threshold}
            decided["why"] = operating.points[asked].why if asked in operating.points else ""
        each.append(Fold(images=result.n, patients=result.n_groups, numbers=numbers, **decided))
    areas = known_values(each, "auroc")
    mean = statistics.mean(areas) if len(areas) == len(each) else None  # of classes undefined in one fold, so in all
    areas_of = FoldsAuroc(pooled=auroc if math.isfinite(auroc) else None, mean=mean)
    return Folds(asked=asked, target=target_of(config, asked), costs=costs, each=each, auroc=areas_of)


def by_fold(folds: Folds | None) -> bool:
    """Whether a fold decides at a point of its own validation and not by the likeliest class."""
    if folds is None:
        return False
    return any(fold.point != "default" for fold in folds.each) or any(map(by_fold, folds.findings.values()))


def fold_notes(folds: Folds) -> list[str]:
    """What must be known before the pooled numbers are believed."""
    notes = [
        f"Pooled over {len(folds.each)} models, one for each fold; no model has seen its test images.",
        "The intervals of the pooled numbers describe chance among the tested patients or images. The spread over "
        "folds (±, one standard deviation) describes how models and their tests differ.",
    ]
    if folds.asked != "default":
        notes.append(_decisions(folds))
    pooled, mean = (None, None) if folds.auroc is None else (folds.auroc.pooled, folds.auroc.mean)
    if pooled is not None and mean is not None and abs(pooled - mean) >= NOTICEABLE:
        notes.append(
            f"The pooled AUROC is {pooled:.3f}; the folds have {spread_of(folds.each, 'auroc')}. Within a fold one "
            "model ranks the images. The pooled AUROC ranks images of different models against each other, and the "
            "same probability from two models need not mean the same. The mean of the folds shows how well one model "
            "separates the classes."
        )
    return [*notes, *undefined_notes(folds)]


def undefined_notes(folds: Folds) -> list[str]:
    """A note on each finding that a fold says nothing about."""
    notes = []
    for name, of_finding in (folds.findings or {"the finding": folds}).items():
        numbers = [fold.numbers.get("auroc") for fold in of_finding.each]
        lacking = [str(k) for k, auroc in enumerate(numbers, 1) if auroc is not None and auroc.value is None]
        if lacking:
            where = f"fold{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}"
            notes.append(f"The AUROC of {name} is undefined in {where}: no test image has it, or every one has it.")
    return notes


def _decisions(folds: Folds) -> str:
    """What decides, where you asked for more than the likeliest class."""
    asked = TITLES[folds.asked].lower() + ("" if folds.target is None else f" {folds.target}")
    if folds.findings:
        return f"Each fold calls each finding from its own threshold, chosen on its validation ({asked})."
    thresholds = [fold.threshold for fold in folds.each]
    if folds.costs is not None and all(limit is None for limit in thresholds) and by_fold(folds):
        return "Each fold predicts the class with the lowest expected cost, by the costs of the configuration."
    if folds.asked == "balanced":
        return "Each fold predicts the class with the largest ratio of probability to prevalence in its validation."
    texts = numbered(["the likelier class" if limit is None else f"from {limit:.3g}" for limit in thresholds])
    return f"Each fold decides at its own threshold, chosen on its validation ({asked}): {texts}."


def known_values(each: Sequence[Fold], name: str) -> list[float]:
    """The number of each fold, without those where it is undefined."""
    return [value for fold in each if (value := fold.numbers[name].value) is not None]


def spread_of(each: Sequence[Fold], name: str) -> str:
    """Mean and standard deviation over folds, and each value: `0.911 ± 0.012 (0.903, 0.919)`."""
    values = [fold.numbers[name].value for fold in each]
    texts = ", ".join("undefined" if value is None else f"{value:.3f}" for value in values)
    known = known_values(each, name)
    if len(known) < len(each):
        return texts
    return f"{statistics.mean(known):.3f} ± {statistics.stdev(known):.3f} ({texts})"


def numbered(texts: Sequence[str], between: str = ", ") -> str:
    """`fold 1: a, fold 2: b`."""
    return between.join(f"fold {number}: {text}" for number, text in enumerate(texts, 1))
