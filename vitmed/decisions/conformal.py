"""Prediction sets: classes that include the true one with a chosen probability, for any model (split conformal).

A class with a higher probability enters the set earlier (LAC: Sadinle, Lei & Wasserman, J. Am. Stat. Assoc. 114 (2019)
223). Each class has a threshold of its own (Mondrian: Vovk, Ann. Math. Artif. Intell. 74 (2015) 9). Where patients are
known, each counts once, its images sharing its weight (Lee, Barber & Willett, arXiv 2306.06342, HCP).

Guaranteed: if you take one image of a class from each new patient of the same population as validation, at least the
chosen share of these images have the true class in their set, on average over validation sets. Not guaranteed: the same
for one patient, a subgroup, another hospital or one particular validation set. The guarantee is approximate, because
validation also chose the epoch and the calibration.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vitmed.core.base_models import Counts, Frozen, Names, Numbers, Stored
from vitmed.core.text import counted
from vitmed.core.train_config import EvaluateConfig
from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.ranking import ratio

SHOWN = 30  # classes whose coverage and set size the report shows


class SetNumbers(Frozen):
    """How often the sets of `n` images hold the truth, how many classes they have, and how often a single one."""

    n: int
    coverage: Estimate
    size: Estimate
    single: Estimate


class ClassSets(SetNumbers):
    """The sets of the images of one class; `least` is the score from which the class belongs to a set.

    `calibrated_on` counts patients (or images) of validation; `promised` is False where they are too few.
    """

    least: float
    calibrated_on: int
    promised: bool


class PredictionSets(Frozen):
    """How often the sets hold the truth, and how large they are.

    Attributes:
        asked: the coverage that was asked for, `by` "patient" or "image"; without: classes without a guarantee.
        per_class: the first `SHOWN` classes.
        sizes: how many images have a set of 0, 1, 2, ... classes.
    """

    asked: float
    by: str
    note: str
    overall: SetNumbers
    per_class: dict[str, ClassSets]
    sizes: list[int]
    without: list[str]


class SetThresholds(Stored):
    """From which score a class belongs to the set of an image."""

    coverage: float  # how often the set is to hold the truth
    by: str  # "patient" or "image", the unit of the guarantee
    note: str  # what a reader must know about the guarantee; "" if nothing
    least: Numbers  # K scores, one threshold for each class
    units: Counts  # K counts of patients or images behind the thresholds
    without: Names  # classes without a guarantee of their own


def fit_sets(validation: Predictions, coverage: float) -> SetThresholds | None:
    """Choose the thresholds; None where validation has too few images for any guarantee.

    The unit is the patient where patients are known and there are at least coverage / (1 - coverage) of them; else the
    image, and the note gives the reason. A class with too few patients takes the threshold of all classes together, and
    has no guarantee of its own.

    Args:
        validation: calibrated, with labels.
    """
    labels = known_labels(validation)
    true = validation.probabilities[np.arange(len(labels)), labels]
    pooled, units, by, note = guaranteed_score(true, validation, coverage)
    if pooled is None:
        return None
    rows = [labels == c for c in range(len(validation.classes))]
    own = [least_score(true[chosen], units[chosen], coverage) for chosen in rows]
    return SetThresholds(
        coverage=coverage, by=by, note=note,
        least=tuple(pooled if least is None else least for least in own),
        units=tuple(len(np.unique(units[chosen])) for chosen in rows),
        without=tuple(name for name, least in zip(validation.classes, own, strict=True) if least is None),
    )  # fmt: skip


def guaranteed_score(
    true: np.ndarray, validation: AnyPredictions, coverage: float
) -> tuple[float | None, np.ndarray, str, str]:
    """`least_score` by patient, or by image where patients are unknown or too few; None for too few images.

    Args:
        true: (S,) score of the truth of each validation image.

    Returns:
        the score; (S,) int64 units; "patient" or "image"; what a reader must know about the guarantee, or "".
    """
    units = validation.units
    pooled = least_score(true, units, coverage)
    if validation.groups is None:
        return pooled, units, "image", ""
    if pooled is not None:
        return pooled, units, "patient", ""
    patients = counted(len(np.unique(units)), "patient")
    few = f"validation has {patients}, too few to guarantee {coverage:g} for new patients"
    units = np.arange(len(true))
    note = f"{few}; the guarantee holds for new images of the same patients at best"
    return least_score(true, units, coverage), units, "image", note


def least_score(true: np.ndarray, units: np.ndarray, coverage: float) -> float | None:
    """The largest q such that the true class of a new unit has a score of at least q with chance `coverage`.

    Each of the G units has weight 1 / (G + 1), spread over its images; the rest stands for the new one, which may lie
    anywhere. With one image for each unit, q is the floor((G + 1) (1 - coverage))-th smallest score.

    Args:
        true: (S,) score of the true class; units: (S,) int64.

    Returns:
        None: there are too few units for any q.
    """
    names, place, sizes = np.unique(units, return_inverse=True, return_counts=True)
    weight = 1 / (len(names) + 1) / sizes[place]
    order = np.argsort(-true, kind="stable")
    reached = np.cumsum(weight[order]) >= coverage - 1e-12
    return float(true[order][np.argmax(reached)]) if reached.any() else None


def prediction_sets(predictions: Predictions, fitted: SetThresholds) -> np.ndarray:
    """(S, K) bool: the classes in the set of each image; the predicted class is always in it."""
    inside = predictions.probabilities >= np.array(fitted.least)
    inside[np.arange(len(predictions)), predictions.predicted] = True
    return inside


def report_sets(
    predictions: Predictions, fitted: SetThresholds | None, config: EvaluateConfig
) -> PredictionSets | None:
    """How often the sets hold the truth, and how large they are, in all and by class; None without thresholds."""
    if fitted is None:
        return None
    labels, boot = known_labels(predictions), Bootstrap.of(predictions, config.resamples)
    inside = prediction_sets(predictions, fitted)
    held, sizes = inside[np.arange(len(labels)), labels], inside.sum(axis=1)
    shown = predictions.classes[:SHOWN]
    of = np.concatenate([np.ones((len(labels), 1), bool), labels[:, None] == np.arange(len(shown))], axis=1)  # (S, 1+C)
    whole, drawn = (np.split(sums, 2, axis=-1) for sums in boot.sums(np.concatenate([of, of * sizes[:, None]], axis=1)))

    def numbers(i: int) -> dict[str, Any]:
        size = boot.estimate(float(ratio(whole[1][i], whole[0][i])), ratio(drawn[1][:, i], drawn[0][:, i]))
        coverage, single = (boot.proportion(hits, of[:, i]) for hits in (held, sizes == 1))
        return {"n": int(whole[0][i]), "coverage": coverage, "size": size, "single": single}

    per_class = {
        name: ClassSets(
            **numbers(1 + c), least=fitted.least[c], calibrated_on=fitted.units[c], promised=name not in fitted.without
        )
        for c, name in enumerate(shown)
    }
    return PredictionSets(
        asked=fitted.coverage, by=fitted.by, note=fitted.note, overall=SetNumbers(**numbers(0)), per_class=per_class,
        sizes=np.bincount(sizes).tolist(), without=list(fitted.without),
    )  # fmt: skip
