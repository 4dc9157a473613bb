"""How a model does on other images beside its own held-out test: each number here and there, and the difference.

Item 33 of CLAIM 2024, 16 and 20c of TRIPOD+AI and 29 of STARD-AI ask for it.
"""

from __future__ import annotations

from vitmed.core.base_models import Frozen
from vitmed.decisions.out_of_distribution import detection_auroc, scores_of
from vitmed.metrics.estimates import Estimate, Numbers, difference, estimate
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.predictions import Predictions

OVERALL = ("auroc", "balanced_accuracy", "accuracy", "mcc", "log_loss", "brier")
OF_POSITIVE_CLASS = ("sensitivity", "specificity")  # PPV and NPV follow the prevalence, and so differ anyway


class Beside(Frozen):
    """A share of the run's own test, and of the evaluated images."""

    internal: float
    external: float


class BesideEstimates(Frozen):
    """A number of the run's own test, of the evaluated images, and external minus internal."""

    internal: Estimate
    external: Estimate
    difference: Estimate


class Shift(Frozen):
    """Whether the images are of another kind: how well the out-of-distribution score separates them from the own test,
    and the share of each that is unlike the training images.
    """

    auroc: Estimate
    flagged: Beside


class External(Frozen):
    """The evaluated images beside the run's own test.

    Attributes:
        n, n_groups: images and patients of the own test.
        prevalence: of the positive class; None of more than two classes.
        absent: classes that only one of the two has; then only sensitivity and specificity have a difference.
        shift: None where there are no scores.
    """

    n: int
    n_groups: int | None
    prevalence: Beside | None
    numbers: dict[str, BesideEstimates]
    absent: list[str]
    patients_in_both: int
    shift: Shift | None


def compare_with_own_test(
    predictions: Predictions, metrics: Numbers, internal: Predictions | None, resamples: int = 2000
) -> External | None:
    """Compare the evaluated images with the run's own test, at the same calibration and operating point.

    Both are taken as independent samples, so the interval of a difference comes from those of both (MOVER: Zou &
    Donner, Stat. Med. 27 (2008) 1693; of two proportions it is Newcombe's of 1998). There is no comparison without
    `internal`, or where it has other classes.
    """
    if internal is None or not len(internal) or internal.classes != predictions.classes:
        return None
    own = evaluate_predictions(internal, resamples)
    numbers = {name: _pair(own.overall[name], metrics.overall[name]) for name in OVERALL}
    absent = [c for c in own.classes if (own.per_class[c].n > 0) != (metrics.per_class[c].n > 0)]
    if absent:  # a mean over other classes is another number
        nothing = estimate(float("nan"), float("nan"), float("nan"), "mover")
        numbers = {name: pair.model_copy(update={"difference": nothing}) for name, pair in numbers.items()}
    prevalence = None
    if own.positive_class is not None:
        here, there = metrics.per_class[own.positive_class], own.per_class[own.positive_class]
        numbers |= {name: _pair(there[name], here[name]) for name in OF_POSITIVE_CLASS}
        prevalence = Beside(internal=there.n / own.n, external=here.n / metrics.n)
    shift, scores, own_scores = None, scores_of(predictions), scores_of(internal)
    if scores is not None and own_scores is not None:
        flagged = Beside(internal=float((own_scores > 1).mean()), external=float((scores > 1).mean()))
        auroc = detection_auroc(own_scores, internal.groups, scores, predictions.groups)
        shift = Shift(auroc=auroc, flagged=flagged)
    return External(
        n=own.n,
        n_groups=own.n_groups,
        prevalence=prevalence,
        numbers=numbers,
        absent=absent,
        patients_in_both=len(set(internal.groups or ()) & set(predictions.groups or ()) - {""}),
        shift=shift,
    )


def _pair(own: Estimate, other: Estimate) -> BesideEstimates:
    return BesideEstimates(internal=own, external=other, difference=difference(other, own))
