"""Whether a model is better or worse than readers who read the same images.

The model is compared with the mean of the readers by the method of Obuchowski & Rockette, Commun. Stat. Simul. Comput.
24 (1995) 285, with the degrees of freedom of Hillis, Stat. Med. 26 (2007) 596. The model is no sample of anything, so
each reader has one difference from it, and these differences are analysed as one modality (Chakraborty, Observer
Performance Methods for Diagnostic Imaging (2017), chapter 22). Covariances come from the influence of each image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.errors import DataError, UsageError
from vitmed.metrics.areas import Area, area_spread, class_areas
from vitmed.metrics.estimates import Estimate, estimate, finite
from vitmed.metrics.intervals import NONE, Spread, Units, quantile, spread
from vitmed.metrics.predictions import Predictions, known_labels, positive_index
from vitmed.metrics.readers import MOST, UNREAD, readings

RANDOM, FIXED = "obuchowski-rockette", "fixed-readers"


class ReaderTest(Frozen):
    """The difference, model minus mean of the readers, and the test of no difference; None where it is undefined.

    `degrees` are those of Student's t; None stands for the normal distribution.
    """

    difference: Estimate
    statistic: float | None
    degrees: float | None
    p: float | None


class ReaderComparison(Frozen):
    """The model and readers by one number, on the `n` images that count for it and that all of them have read.

    Attributes:
        number: "auroc", "sensitivity", "specificity", or of more than two classes "accuracy".
        model, mean: of the model, and the mean of the readers; None where undefined.
        readers: column -> number.
        random_readers: for readers like these; None with one reader. fixed_readers: for these readers alone.
    """

    number: str
    n: int
    model: float | None
    mean: float | None
    readers: dict[str, float | None]
    random_readers: ReaderTest | None
    fixed_readers: ReaderTest


class Variances(NamedTuple):
    """The spread of a mean of differences over readers."""

    random: Spread  # with other readers and other patients
    fixed: Spread  # with the same readers and other patients


def compare_with_readers(
    predictions: Predictions, raters: Sequence[str] = (), rater_scores: Sequence[str] = ()
) -> list[ReaderComparison] | None:
    """The model against readers by AUROC (scores) and by sensitivity and specificity (calls); None without readers.

    Args:
        predictions: with labels.
        raters: columns with the classes that readers gave; of more than two classes they are compared by accuracy.
        rater_scores: columns with numbers, higher where the reader rather thinks of the positive class.

    Raises:
        UsageError: scores, and not two classes; or too many readers. DataError: a cell is no class or no number.
    """
    labels, positive, found = known_labels(predictions), positive_index(predictions), []
    if rater_scores:
        check_scores(rater_scores, predictions.classes)
        scores = np.stack([read_scores(predictions.columns[c], predictions.paths, c) for c in rater_scores])  # (J, S)
        found.append(_by_auroc(predictions, list(rater_scores), scores, labels == positive))
    if raters:
        calls = np.stack([readings(predictions.columns[c], predictions.classes, predictions.paths, c) for c in raters])
        everyone = (calls != UNREAD).all(axis=0)
        kinds = {"accuracy": everyone}
        if positive is not None:
            kinds = {"sensitivity": everyone & (labels == positive), "specificity": everyone & (labels != positive)}
        right = np.concatenate([[predictions.predicted], calls]) == labels  # (1 + J, S)
        found += [
            _by_share(name, list(raters), right[:, rows], _units(predictions, rows)) for name, rows in kinds.items()
        ]
    return found or None


def check_scores(columns: Sequence[str], classes: Sequence[str]) -> None:
    """Raises UsageError where there are not two classes, or more readers than can be compared."""
    if columns and len(classes) != 2:
        raise UsageError(
            f"--rater-score: a score is for two classes, and there are {len(classes)}",
            "give the classes that readers saw with --rater",
        )
    if len(columns) > MOST:
        raise UsageError(
            f"--rater-score: {len(columns)} columns, and at most {MOST} readers are compared", "name fewer"
        )


def read_scores(cells: Sequence[str], paths: Sequence[str], column: str) -> np.ndarray:
    """(S,) float64 scores of a reader from the S cells of a column; NaN where a cell is empty.

    Raises:
        DataError: a cell is no number.
    """
    found = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        try:
            found[i] = float(cell) if cell.strip() else np.nan
        except ValueError:
            found[i] = np.inf
        if np.isinf(found[i]) or (cell.strip() and np.isnan(found[i])):
            raise DataError(
                f"{paths[i]}: '{cell.strip()}' in the column {column} is no number",
                "a reader's score is a number, or empty where the image was not read",
            )
    return found


def reader_variances(
    values: np.ndarray, influences: np.ndarray, spread_of: Callable[[np.ndarray], Spread]
) -> Variances:
    """The spread of the mean of a number over J readers.

    With random readers the variance is (MS + J max(Cov, 0)) / J: MS is the variance of the values between readers, Cov
    the mean covariance of two readers. Hillis' degrees of freedom are (MS + J max(Cov, 0))^2 (J - 1) / MS^2; where
    patients have several images, at most those of the variance between patients.

    Args:
        values: (J,) the number for each reader.
        influences: (J, S) influence of each image on it.
        spread_of: influence (S,) -> variance of such a number, and its degrees of freedom.
    """
    j, fixed = len(values), spread_of(influences.mean(axis=0))
    if j < 2:
        return Variances(Spread(*NONE), fixed)
    own = sum(spread_of(influence).variance for influence in influences)
    between = float(values.var(ddof=1))
    alike = max(0.0, (j**2 * fixed.variance - own) / (j * (j - 1)))
    total = between + j * alike
    degrees = total**2 * (j - 1) / between**2 if between > 0 else np.inf
    return Variances(Spread(total / j, min(degrees, fixed.degrees)), fixed)


def _by_auroc(
    predictions: Predictions, columns: list[str], scores: np.ndarray, positive: np.ndarray
) -> ReaderComparison:
    rows = np.isfinite(scores).all(axis=0)
    truth, units = positive[rows], _units(predictions, rows)
    model = predictions.probabilities[:, positive_index(predictions)]
    areas = [class_areas(score, truth)[0] for score in (model[rows], *scores[:, rows])]
    return _comparison("auroc", columns, areas, lambda influence: area_spread(influence, truth, units))


def _by_share(name: str, columns: list[str], right: np.ndarray, units: Units) -> ReaderComparison:
    n = right.shape[1]
    means = right.mean(axis=1) if n else np.full(len(right), np.nan)
    areas = [Area(float(mean), (own - mean) / max(1, n)) for own, mean in zip(right, means, strict=True)]
    return _comparison(name, columns, areas, lambda influence: spread(influence, units))


def _comparison(
    name: str, columns: list[str], areas: list[Area], spread_of: Callable[[np.ndarray], Spread]
) -> ReaderComparison:
    """From the number of the model and then of each reader, with the influence of each image on them."""
    model, *readers = areas
    gaps = [model.plus(reader, -1) for reader in readers]
    values = np.array([gap.value for gap in gaps])
    found = reader_variances(values, np.stack([gap.influence for gap in gaps]), spread_of)
    gap = float(values.mean())
    own = {column: finite(reader.value) for column, reader in zip(columns, readers, strict=True)}
    return ReaderComparison(
        number=name, n=len(model.influence), model=finite(model.value), readers=own,
        mean=finite(float(np.mean([reader.value for reader in readers]))),
        random_readers=_test(gap, found.random, RANDOM) if len(readers) > 1 else None,
        fixed_readers=_test(gap, found.fixed, FIXED),
    )  # fmt: skip


def _test(gap: float, found: Spread, method: str) -> ReaderTest:
    from scipy.special import stdtr  # imported here: predict starts without it

    if not np.isfinite([gap, found.variance]).all() or found.variance <= 0:
        return ReaderTest(difference=estimate(gap, *NONE, method), statistic=None, degrees=None, p=None)
    reach, statistic = quantile(found.degrees) * found.variance**0.5, gap / found.variance**0.5
    difference = estimate(gap, max(-1.0, gap - reach), min(1.0, gap + reach), method)
    p = float(2 * stdtr(min(found.degrees, 1e9), -abs(statistic)))
    return ReaderTest(difference=difference, statistic=statistic, degrees=finite(found.degrees), p=p)


def _units(predictions: Predictions, rows: np.ndarray) -> Units:
    """The units of some of the images, (S,) bool, numbered anew."""
    return Units(np.unique(predictions.units[rows], return_inverse=True)[1])
