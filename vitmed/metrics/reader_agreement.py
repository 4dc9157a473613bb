"""How far readers of the images agree with each other, the reference and the model; and the error in grades.

Kappa: Cohen, Educ. Psychol. Meas. 20 (1960) 37; a disagreement in grades counts as the square of their distance.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.errors import DataError, UsageError
from vitmed.core.text import listed
from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.kinds.grades import Grades, grade_errors, grades_of, kappa_estimate
from vitmed.metrics.predictions import Predictions, known_labels

REFERENCE, MODEL = "the reference", "the model"
MOST = 6  # readers
UNREAD = -1


class PairAgreement(Frozen):
    """Two of readers, reference and model, on the `n` images that both have read."""

    first: str
    second: str
    n: int
    agreement: Estimate
    kappa: Estimate
    why: str  # why kappa is undefined or has no interval; "" where it has one


class Agreement(Frozen):
    """Readers with each other, with the reference and with the model; last the model with the reference."""

    weights: str  # of the disagreements, "none" or "quadratic"
    grades: Grades | None  # None where the classes are no grades
    pairs: list[PairAgreement]


def readings(cells: Sequence[str], classes: Sequence[str], paths: Sequence[str], column: str) -> np.ndarray:
    """(S,) int64 class that a reader gave each image, from the S cells of a column; `UNREAD` where a cell is empty.

    Raises:
        DataError: a cell is no class.
    """
    index = {name: k for k, name in enumerate(classes)} | {"": UNREAD}
    for path, cell in zip(paths, cells, strict=True):
        if cell.strip() not in index:
            raise DataError(
                f"{path}: '{cell.strip()}' in the column {column} is no class",
                f"a reader's cell is one of {listed(classes)}, or empty where the image was not read",
            )
    return np.array([index[cell.strip()] for cell in cells], dtype=np.int64)


def agreement(
    predictions: Predictions,
    raters: Sequence[str],
    ordinal: Sequence[str] = (),
    resamples: int = 2000,
    kappa: Estimate | None = None,
) -> Agreement | None:
    """Agreement of every two of readers, reference and model, and the error in grades; None if neither is asked for.

    Args:
        predictions: with labels.
        raters: columns with the classes that readers gave.
        ordinal: the classes from the lowest grade to the highest; () where they are no grades.
        kappa: of the model with the reference, if known already; not used for more than two grades.

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
    off = grades[predictions.predicted] - grades[labels]
    return Agreement(weights="quadratic", grades=grade_errors(off, ordinal, boot), pairs=pairs)


def _pair(
    a: str, b: str, everyone: Mapping[str, np.ndarray], k: int, grades: np.ndarray | None, boot: Bootstrap
) -> PairAgreement:
    first, second = everyone[a], everyone[b]  # (S,) each
    read = (first != UNREAD) & (second != UNREAD)
    weights = 1.0 - np.eye(k) if grades is None else (grades[:, None] - grades).astype(np.float64) ** 2  # (K, K)
    beyond, why = kappa_estimate(first, second, weights, boot, read)
    same = boot.proportion(first == second, read)
    return PairAgreement(first=a, second=b, n=int(read.sum()), agreement=same, kappa=beyond, why=why)
