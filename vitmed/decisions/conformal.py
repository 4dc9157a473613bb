"""Split conformal prediction, for any model: sets of classes, and intervals around a number, that hold the truth with a
chosen probability.

A class with a higher probability enters the set earlier (LAC: Sadinle, Lei & Wasserman, J. Am. Stat. Assoc. 114 (2019)
223). Each class has a threshold of its own (label-conditional: Vovk, Machine Learning 92 (2013) 349). An interval
reaches as many predicted scales up and down (Lei, G'Sell, Rinaldo, Tibshirani & Wasserman, J. Am. Stat. Assoc. 113
(2018) 1094, section 5.2). Where patients are known, each counts once, its images sharing its weight (Lee, Barber &
Willett, arXiv 2306.06342, HCP).

Guaranteed: if you take one image of a class from each new patient of the same population as validation, at least the
chosen share of these images have the true class in their set, on average over validation sets. Not guaranteed: the same
for one patient, a subgroup, another hospital or one particular validation set. The guarantee is approximate, because
validation also chose the epoch and the calibration. For intervals it holds on average over all numbers, so in some
ranges or subgroups they may hold fewer.
"""

from typing import Any

import numpy as np

from vitmed.core.base_models import Floats, Frozen, Ints, Names, Stored
from vitmed.core.config import EvaluateConfig
from vitmed.core.text import counted
from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions, known_labels

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
    """How often the sets hold the truth, and how large they are: the coverage that was `asked` for, `by` "patient" or
    "image", the numbers of all images and of the first `SHOWN` classes, and the classes `without` a guarantee."""

    asked: float
    by: str
    note: str
    overall: SetNumbers
    per_class: dict[str, ClassSets]
    without: list[str]


class Guarantee(Stored):
    """What sets or intervals promise."""

    coverage: float  # how often they are to hold the truth
    by: str  # "patient" or "image", the unit of the guarantee
    note: str  # what a reader must know about the guarantee; "" if nothing


class SetThresholds(Guarantee):
    """From which score a class belongs to the set of an image."""

    least: Floats  # K scores, one threshold for each class
    units: Ints  # K counts of patients or images behind the thresholds
    without: Names  # classes without a guarantee of their own


class IntervalReach(Guarantee):
    """How far intervals reach."""

    reach: float  # predicted scales up and down
    units: int  # patients or images of validation behind it


def fit_sets(validation: Predictions, coverage: float) -> SetThresholds | None:
    """Choose the thresholds; None where validation has too few images for any guarantee.

    The unit is the patient where patients are known and there are at least coverage / (1 - coverage) of them; else the
    image, and the note gives the reason. A class with too few patients takes the threshold of all classes together, and
    has no guarantee of its own. Each lies midway to the next lower probability of its class in validation: no set there
    changes, no rounding moves an image across it, and coverage can only rise. `validation` is calibrated.
    """
    labels = known_labels(validation)
    true = validation.probabilities[np.arange(len(labels)), labels]
    pooled, units, head = _guarantee(true, validation, coverage)
    if pooled is None:
        return None
    least, counts, without = list[float](), list[int](), list[str]()
    for c, name in enumerate(validation.classes):
        score = least_score(true[labels == c], units[labels == c], coverage)
        edge, chances = pooled if score is None else score, validation.probabilities[:, c]
        least.append((edge + float(chances[chances < edge].max(initial=0))) / 2)
        counts.append(len(np.unique(units[labels == c])))
        without += [name] * (score is None)
    return SetThresholds(**head, least=tuple(least), units=tuple(counts), without=tuple(without))


def fit_intervals(validation: NumberPredictions, coverage: float) -> IntervalReach | None:
    """Choose how far intervals reach; None where validation has too few images for any guarantee."""
    residuals = np.abs(known_labels(validation) - validation.values) / validation.scales
    least, units, head = _guarantee(-residuals, validation, coverage)
    return None if least is None else IntervalReach(**head, reach=-least, units=len(np.unique(units)))


def _guarantee(true: np.ndarray, validation: Any, coverage: float) -> tuple[float | None, np.ndarray, dict[str, Any]]:
    """`least_score` of the scores (S,) of the truth, by patient, or by image where patients are unknown or too few;
    the units (S,); and the fields of `Guarantee`."""
    units, by, note = validation.units, "image" if validation.groups is None else "patient", ""
    pooled = least_score(true, units, coverage)
    if pooled is None and by == "patient":
        few = f"validation has {counted(len(np.unique(units)), 'patient')}, too few to guarantee {coverage:g} for new"
        note = f"{few} patients; the guarantee holds for new images of the same patients at best"
        units, by = np.arange(len(true)), "image"
        pooled = least_score(true, units, coverage)
    return pooled, units, {"coverage": coverage, "by": by, "note": note}


def least_score(true: np.ndarray, units: np.ndarray, coverage: float) -> float | None:
    """The largest q such that the true class of a new unit has a score of at least q with chance `coverage`; None for
    too few units. The scores of the true class, and the units, are (S,).

    Each of the G units has weight 1 / (G + 1), spread over its images; the rest stands for the new one, which may lie
    anywhere. With one image for each unit, q is the floor((G + 1) (1 - coverage))-th smallest score.
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
    size_of = boot.ratios(of * sizes[:, None], of)
    numbers = list[dict[str, Any]]()
    for counted_in, size in zip(of.T, size_of, strict=True):
        coverage, single = (boot.proportion(hits, counted_in) for hits in (held, sizes == 1))
        numbers.append({"n": int(counted_in.sum()), "coverage": coverage, "size": size, "single": single})
    per_class = dict[str, ClassSets]()
    for name, of_class, least, units in zip(shown, numbers[1:], fitted.least, fitted.units, strict=False):
        promised = name not in fitted.without
        per_class[name] = ClassSets(**of_class, least=least, calibrated_on=units, promised=promised)
    overall, without = SetNumbers(**numbers[0]), list(fitted.without)
    promise: dict[str, Any] = {"asked": fitted.coverage, "by": fitted.by, "note": fitted.note}
    return PredictionSets(**promise, overall=overall, per_class=per_class, without=without)
