"""Sets of classes that hold the truth with a chosen probability, however good the model is (split conformal).

The score of an image is 1 - the probability of its true class (LAC: Sadinle, Lei & Wasserman, J. Am. Stat. Assoc. 114
(2019) 223), with a threshold of its own for each class (Mondrian: Vovk, Ann. Math. Artif. Intell. 74 (2015) 9). Where
patients are known, each counts once, its images sharing its weight (Lee, Barber & Willett, arXiv 2306.06342, HCP).

What is guaranteed: of images of one class, one from each new patient of the same kind as those of validation, at least
the chosen share have the truth in their set, on average over validation sets. What is not: that for one patient, for a
subgroup, for another hospital, or for one certain validation set; and it holds only nearly, since validation also chose
the epoch and the calibration.
"""

from __future__ import annotations

import numpy as np

from vitmed.core.config import EvaluateConfig
from vitmed.core.frozen import Counts, Frozen, Names, Numbers, Stored
from vitmed.metrics.bootstrap import Bootstrap, ratio
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.resampling import group_index
from vitmed.metrics.scoring import known_labels

SHOWN = 30  # classes whose coverage and set size the report shows


class SetNumbers(Frozen):
    """Of `n` images: how often the set holds the truth, how many classes it has, and how often it has only one."""

    n: int
    coverage: Estimate
    size: Estimate
    single: Estimate


class ClassSets(SetNumbers):
    """The sets of the images of one class.

    Attributes:
        least: from which probability the class belongs to a set.
        calibrated_on: patients (or images) of validation.
        promised: False where these are too few for a promise.
    """

    least: float
    calibrated_on: int
    promised: bool


class PredictionSets(Frozen):
    """How often the sets hold the truth, and how large they are.

    Attributes:
        asked: how often they are to hold the truth.
        by: "patient" or "image".
        per_class: of the first `SHOWN` classes.
        sizes: how many images have a set of 0, 1, 2, ... classes.
        without: classes for which nothing is promised.
    """

    asked: float
    by: str
    note: str
    overall: SetNumbers
    per_class: dict[str, ClassSets]
    sizes: list[int]
    without: list[str]


class SetThresholds(Stored):
    """From which probability a class belongs to the set of an image.

    Attributes:
        coverage: how often the set is to hold the truth.
        by: "patient" or "image", the unit of the promise.
        note: what a reader must know about the promise; "" if nothing.
        least: K probabilities, one threshold for each class.
        units: K counts of patients or images behind the thresholds.
        without: names of the classes for which nothing is promised.
    """

    coverage: float
    by: str
    note: str
    least: Numbers
    units: Counts
    without: Names


def fit_sets(validation: Predictions, coverage: float) -> SetThresholds | None:
    """Choose the thresholds; None where validation has too few images for any promise.

    By patient where they are known and there are enough of them, coverage / (1 - coverage) or more; else by image, and
    the note gives the reason. A class with too few patients of its own takes the threshold of all classes together, and
    nothing is promised for it alone.

    Args:
        validation: calibrated, with labels.
        coverage: how often the set is to hold the truth.
    """
    labels = known_labels(validation)
    true = validation.probabilities[np.arange(len(labels)), labels]
    units, by, note = group_index(validation.groups, len(labels)), "patient", ""
    pooled = least_probability(true, units, coverage)
    if validation.groups is None:
        by = "image"
    elif pooled is None:
        note = (
            f"validation has {len(np.unique(units))} patients, too few to promise {coverage:g} for new ones; so it "
            "holds for new images of the same patients at best"
        )
        by, units = "image", np.arange(len(labels))
        pooled = least_probability(true, units, coverage)
    if pooled is None:
        return None
    least: list[float] = []
    counts, without = [], []
    for c, name in enumerate(validation.classes):
        chosen = labels == c
        own = least_probability(true[chosen], units[chosen], coverage)
        counts.append(len(np.unique(units[chosen])))
        if own is None:
            without.append(name)
        least.append(pooled if own is None else own)
    return SetThresholds(
        coverage=coverage, by=by, note=note, least=tuple(least), units=tuple(counts), without=tuple(without)
    )


def least_probability(true: np.ndarray, units: np.ndarray, coverage: float) -> float | None:
    """The largest q such that the true class of a new unit has a probability of at least q with chance `coverage`.

    Each of the G units has weight 1 / (G + 1), spread over its images; the rest stands for the new one, which may lie
    anywhere. With one image for each unit, q is the floor((G + 1) (1 - coverage))-th smallest probability.

    Args:
        true: (S,) probability of the true class; units: (S,) int64.

    Returns:
        None: there are too few units for any q above 0.
    """
    names, place, sizes = np.unique(units, return_inverse=True, return_counts=True)
    weight = 1 / (len(names) + 1) / sizes[place] if len(names) else np.empty(0)
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
    """How often the sets hold the truth, and how large they are, in all and by class. None where nothing was fitted."""
    if fitted is None:
        return None
    labels, boot = known_labels(predictions), Bootstrap.of(predictions, config.resamples)
    inside = prediction_sets(predictions, fitted)
    held, sizes = inside[np.arange(len(labels)), labels], inside.sum(axis=1)
    shown = predictions.classes[:SHOWN]
    of = np.concatenate([np.ones((len(labels), 1), bool), labels[:, None] == np.arange(len(shown))], axis=1)  # (S, 1+C)
    single = sizes == 1
    whole, drawn = (np.split(sums, 2, axis=-1) for sums in boot.sums(np.concatenate([of, of * sizes[:, None]], axis=1)))

    def numbers(i: int) -> SetNumbers:
        n = whole[0][i]
        return SetNumbers(
            n=int(n),
            coverage=boot.proportion(held, of[:, i]),
            size=boot.estimate(float(ratio(whole[1][i], n)), ratio(drawn[1][:, i], drawn[0][:, i])),
            single=boot.proportion(single, of[:, i]),
        )

    per_class = {
        name: ClassSets(
            **dict(numbers(1 + c)),
            least=fitted.least[c],
            calibrated_on=fitted.units[c],
            promised=name not in fitted.without,
        )
        for c, name in enumerate(shown)
    }
    return PredictionSets(
        asked=fitted.coverage,
        by=fitted.by,
        note=fitted.note,
        overall=numbers(0),
        per_class=per_class,
        sizes=np.bincount(sizes, minlength=1).tolist() if len(sizes) else [],
        without=list(fitted.without),
    )
