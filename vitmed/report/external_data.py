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
    """A share in the run's own test, and in the evaluated images."""

    internal: float
    external: float


class BesideEstimates(Frozen):
    """A number of the run's own test, of the evaluated images, and external minus internal."""

    internal: Estimate
    external: Estimate
    difference: Estimate


class Shift(Frozen):
    """Whether the images are of another kind.

    Attributes:
        auroc: how well the out-of-distribution score separates the images from those of the own test.
        flagged: the share of each that is unlike the training images.
    """

    auroc: Estimate
    flagged: Beside


class External(Frozen):
    """The evaluated images beside the run's own test.

    Attributes:
        n, n_groups: images and patients of the own test.
        prevalence: of the positive class; None of more than two classes.
        numbers: by name.
        absent: classes that only one of the two has; then only sensitivity and specificity have a difference.
        patients_in_both: by name.
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
    """The evaluated images compared with the run's own test, at the same calibration and operating point.

    Both are taken as independent samples, so the interval of a difference comes from those of both (MOVER: Zou &
    Donner, Stat. Med. 27 (2008) 1693; of two proportions it is Newcombe's of 1998).

    Args:
        predictions: of other images, with labels; metrics: `evaluate_predictions` of them.
        internal: what the same model predicts for its own test; None, or of other classes: there is no comparison.
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
    both = set(internal.groups or ()) & set(predictions.groups or ()) - {""}
    return External(
        n=own.n,
        n_groups=own.n_groups,
        prevalence=prevalence,
        numbers=numbers,
        absent=absent,
        patients_in_both=len(both),
        shift=_shift(internal, predictions),
    )


def _pair(own: Estimate, other: Estimate) -> BesideEstimates:
    return BesideEstimates(internal=own, external=other, difference=difference(other, own))


def _shift(internal: Predictions, external: Predictions) -> Shift | None:
    own, other = scores_of(internal), scores_of(external)
    if own is None or other is None:
        return None
    flagged = Beside(internal=float((own > 1).mean()), external=float((other > 1).mean()))
    return Shift(auroc=detection_auroc(own, internal.groups, other, external.groups), flagged=flagged)
