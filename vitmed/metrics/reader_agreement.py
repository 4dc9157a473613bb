"""How far several readers of the images agree, with each other, with the reference and with the model; and by how many
grades an answer is off where the classes are grades.

Kappa: Cohen, Educ. Psychol. Meas. 20 (1960) 37; with quadratic weights Cohen, Psychol. Bull. 70 (1968) 213: 1 minus
the disagreement that is seen over that of two who read at random, each as often a class as they do. Of grades a
disagreement counts as the square of how many grades it spans.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from vitmed.core.errors import DataError, UsageError
from vitmed.core.frozen import Frozen
from vitmed.metrics.bootstrap import LEVEL, Bootstrap, ratio
from vitmed.metrics.estimates import Estimate, estimate
from vitmed.metrics.intervals import NONE, student, within
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.scoring import known_labels

REFERENCE, MODEL = "the reference", "the model"
MOST = 6  # readers
UNREAD = -1


class PairAgreement(Frozen):
    """Two of readers, reference and model, on the `n` images that both have read.

    Attributes:
        why: why kappa is undefined or has no interval; "" where it has one.
    """

    first: str
    second: str
    n: int
    agreement: Estimate
    kappa: Estimate
    why: str


class Grades(Frozen):
    """How far the model is off, in grades.

    Attributes:
        order: the grades, from the lowest.
        off: mean number of grades by which the model is off.
        within_one: share of the images on which it is off by one at most.
    """

    order: list[str]
    off: Estimate
    within_one: Estimate


class Agreement(Frozen):
    """Readers with each other, with the reference and with the model; last the model with the reference.

    Attributes:
        weights: of the disagreements, "none" or "quadratic".
        grades: None where the classes are no grades.
    """

    weights: str
    grades: Grades | None
    pairs: list[PairAgreement]


def grades_of(ordinal: Sequence[str], classes: Sequence[str]) -> np.ndarray | None:
    """(K,) int64 grade of each class, 0 the lowest, by the classes in order; None where none was given.

    Raises:
        UsageError: they are not the classes, each once.
    """
    if not ordinal:
        return None
    if sorted(ordinal) != sorted(classes):
        raise UsageError(
            f"--ordinal {','.join(ordinal)}: expected each class once, from the lowest grade to the highest",
            f"the classes are {', '.join(classes)}",
        )
    return np.array([list(ordinal).index(name) for name in classes])


def readings(cells: Sequence[str], classes: Sequence[str], paths: Sequence[str], column: str) -> np.ndarray:
    """(S,) int64 class that a reader saw in each image, `UNREAD` where the cell is empty.

    Args:
        cells: S, of a column of the table; paths: of the images, and column: its name, for the error.

    Raises:
        DataError: a cell is no class.
    """
    index = {name: k for k, name in enumerate(classes)} | {"": UNREAD}
    for path, cell in zip(paths, cells, strict=True):
        if cell.strip() not in index:
            raise DataError(
                f"{path}: '{cell.strip()}' in the column {column} is no class",
                f"a reader's cell is one of {', '.join(classes)}, or empty where the image was not read",
            )
    return np.array([index[cell.strip()] for cell in cells], dtype=np.int64)


def agreement(
    predictions: Predictions,
    raters: Sequence[str],
    ordinal: Sequence[str] = (),
    resamples: int = 2000,
    kappa: Estimate | None = None,
) -> Agreement | None:
    """Every two of readers, reference and model compared; and by how many grades the model is off.

    Args:
        predictions: with labels.
        raters: columns of what readers saw.
        kappa: of the model with the reference, where it is known already; of more than two grades it is another.
        ordinal: the classes from the lowest grade to the highest; () where they are no grades.

    Returns:
        None where neither readers nor grades were asked for.

    Raises:
        UsageError, DataError: of `grades_of` and `readings`, or more readers than `MOST`.
    """
    if not raters and not ordinal:
        return None
    if len(raters) > MOST:
        raise UsageError(f"--rater: {len(raters)} columns, and at most {MOST} readers are compared", "name fewer")
    grades = grades_of(ordinal, predictions.classes)
    boot, labels = Bootstrap.of(predictions, resamples), known_labels(predictions)
    seen = {name: readings(predictions.columns[name], predictions.classes, predictions.paths, name) for name in raters}
    both = {REFERENCE: labels, MODEL: predictions.predicted}
    couples = [*itertools.combinations(seen, 2), *itertools.product(seen, both), (MODEL, REFERENCE)]
    everyone = both | seen
    pairs = [_pair(a, b, everyone, len(predictions.classes), grades, boot) for a, b in couples]
    if kappa is not None and (grades is None or len(predictions.classes) == 2):
        pairs[-1] = pairs[-1].model_copy(update={"kappa": kappa})
    if grades is None:
        return Agreement(weights="none", grades=None, pairs=pairs)
    off = np.abs(grades[predictions.predicted] - grades[labels])
    whole, drawn = boot.sums(np.stack([off, np.ones(len(off))], axis=1))
    told = Grades(
        order=list(ordinal),
        off=boot.estimate(float(ratio(whole[0], whole[1])), ratio(drawn[:, 0], drawn[:, 1])),
        within_one=boot.proportion(off <= 1, np.ones(len(off), bool)),
    )
    return Agreement(weights="quadratic", grades=told, pairs=pairs)


def _pair(
    a: str, b: str, everyone: Mapping[str, np.ndarray], k: int, grades: np.ndarray | None, boot: Bootstrap
) -> PairAgreement:
    first, second = everyone[a], everyone[b]  # (S,) each
    read = (first != UNREAD) & (second != UNREAD)
    weights = 1.0 - np.eye(k) if grades is None else (grades[:, None] - grades).astype(np.float64) ** 2  # (K, K)
    one, two = (np.eye(k)[np.where(read, seen, 0)] * read[:, None] for seen in (first, second))  # (S, K)
    apart = np.where(read, weights[first, second], 0.0)
    whole, drawn = boot.sums(np.concatenate([read[:, None], apart[:, None], one, two], axis=1))

    def kappa(sums: np.ndarray) -> np.ndarray:
        by_chance = np.einsum("...i,ij,...j->...", sums[..., 2 : 2 + k], weights, sums[..., 2 + k :])
        return 1 - ratio(sums[..., 0] * sums[..., 1], by_chance)

    value, why = float(kappa(whole)), ""
    if not read.any():
        why = "no image was read by both"
    elif not np.isfinite(value):
        why = "both saw one class alone"
    elif value == 1:
        why = "no disagreement was seen, so the resamples have none either"
    found = kappa(drawn)
    found = found[np.isfinite(found)]
    variance = float(found.var()) * boot.size / max(1, boot.size - 1) if 2 * len(found) > len(drawn) else 0.0
    interval = NONE
    if not why and variance > 0 and -1 < value < 1:  # as that of the same number among all numbers
        interval = within(value, -1.0, variance, student(LEVEL, max(1.0, boot.size - 1)))
    elif not why:
        why = "the resamples do not vary"
    return PairAgreement(
        first=a,
        second=b,
        n=int(read.sum()),
        agreement=boot.proportion(first == second, read),
        kappa=estimate(value, *interval, "bootstrap"),
        why=why,
    )
