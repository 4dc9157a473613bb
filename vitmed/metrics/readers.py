"""Readers of the same images: how far they agree with each other, the reference and the model, and whether the model is
better or worse than they are.

Kappa: Cohen, Educ. Psychol. Meas. 20 (1960) 37; a disagreement in grades counts as the square of their distance.

The model is compared with the mean of the readers by the method of Obuchowski & Rockette, Commun. Stat. Simul. Comput.
24 (1995) 285, with the degrees of freedom of Hillis, Stat. Med. 26 (2007) 596. The model is no sample of anything, so
each reader has one difference from it, and these differences are analysed as one modality (Chakraborty, Observer
Performance Methods for Diagnostic Imaging (2017), chapter 22). Covariances come from the influence of each image.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.text import listed
from vitmed.metrics import intervals
from vitmed.metrics.areas import Area, area_interval, area_spread, class_areas
from vitmed.metrics.estimates import Estimate, difference, estimate, finite, of_share
from vitmed.metrics.intervals import NONE, Part, Spread, Units, influence_spread, share
from vitmed.metrics.kinds.grades import Grades, grade_errors, grades_of, kappa_estimate, weighted_kappa
from vitmed.metrics.paired_comparison import gap_estimate, tested
from vitmed.metrics.predictions import Predictions, known_labels, positive_index
from vitmed.metrics.predictions_csv import as_number

REFERENCE, MODEL = "the reference", "the model"
MOST = 6  # readers
UNREAD = -1
YES, NO = ("1", "yes", "true"), ("0", "no", "false")  # of a reader, for the positive class and the other
RANDOM, FIXED = "obuchowski-rockette", "fixed-readers"


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


def readings(
    cells: Sequence[str], classes: Sequence[str], paths: Sequence[str], column: str, positive: str | None = None
) -> np.ndarray:
    """(S,) int64 class that a reader gave each image, from the S cells of a column; `UNREAD` where a cell is empty. Of
    two classes with a `positive` one, `YES` and `NO` name them too, unless one is a class's name and means the other
    class. Raises DataError."""
    index, fix = {name: k for k, name in enumerate(classes)} | {"": UNREAD}, f"one of {listed(classes)}"
    calls = dict[str, int]()
    if positive is not None and len(classes) == 2:
        k = classes.index(positive)
        calls = dict.fromkeys(YES, k) | dict.fromkeys(NO, 1 - k)
        if all(calls.get(name.lower(), i) == i for i, name in enumerate(classes)):
            fix += f"; {listed(YES)} for {positive}; {listed(NO)} for {classes[1 - k]}"
        else:
            calls = {}
    fix = f"a reader's cell is {fix}; or empty where the image was not read"
    if positive is None:
        fix += "; or vitmed evaluate --positive CLASS, for calls of yes/no, 1/0 or true/false"
    names = [cell if cell in index else cell.removesuffix(".0") for cell in map(str.strip, cells)]  # pandas writes 2.0
    found = [index.get(name, calls.get(name.lower())) for name in names]
    for path, cell, named in zip(paths, cells, found, strict=True):
        if named is None:
            raise DataError(f"{path}: '{cell.strip()}' in the column {column} is no class", fix)
    return np.array(found, dtype=np.int64)


def agreement(predictions: Predictions, config: EvaluateConfig, kappa: Estimate | None = None) -> Agreement | None:
    """Agreement of every two of readers, reference and model, and the error in grades; None if neither is asked for.
    `kappa` is that of the model with the reference, if known already; not used for more than two grades. Raises
    UsageError for more readers than `MOST`, or a wrong order of grades, DataError for a cell that is no class."""
    raters, ordinal = config.raters, config.ordinal
    if not raters and not ordinal:
        return None
    _check_number("--rater", raters)
    grades = grades_of(ordinal, predictions.classes)
    units, labels, k = Units(predictions.units), known_labels(predictions), len(predictions.classes)
    weights = 1.0 - np.eye(k) if grades is None else (grades[:, None] - grades).astype(np.float64) ** 2  # (K, K)
    classes, paths, positive = predictions.classes, predictions.paths, predictions.positive
    seen = {name: readings(predictions.columns[name], classes, paths, name, positive) for name in raters}
    both = {REFERENCE: labels, MODEL: predictions.predicted}
    couples = [*itertools.combinations(seen, 2), *itertools.product(seen, both), (MODEL, REFERENCE)]
    everyone, pairs = both | seen, list[PairAgreement]()
    for a, b in couples:
        first, second = everyone[a], everyone[b]  # (S,) each
        read = (first != UNREAD) & (second != UNREAD)
        part = Units(np.unique(units.index[read], return_inverse=True)[1])
        orders = [(second, first), (first, second)] if b in seen else [(second, first)]  # the reference first
        found = [kappa_estimate(x[read], y[read], weights, part) for x, y in orders]
        beyond, why = max(found, key=lambda of: (of[0].high or 0) - (of[0].low or 0))  # the wider of two readers
        same = of_share(share(first[read] == second[read], None, part))
        pairs.append(PairAgreement(first=a, second=b, n=int(read.sum()), agreement=same, kappa=beyond, why=why))
    if kappa is not None and (grades is None or k == 2):
        pairs[-1] = pairs[-1].model_copy(update={"kappa": kappa, "why": ""})
    errors = None if grades is None else grade_errors(grades[predictions.predicted] - grades[labels], ordinal, units)
    return Agreement(weights="none" if grades is None else "quadratic", grades=errors, pairs=pairs)


class ReaderTest(Frozen):
    """The difference, model minus mean of the readers, and the test of no difference; None where it is undefined.
    `degrees` of freedom are for Student's t; None stands for the normal distribution."""

    difference: Estimate
    statistic: float | None
    degrees: float | None
    p: float | None


class ReaderComparison(Frozen):
    """The model and readers by one number, on the `n` images that count for it and that all of them have read.

    `number` is "auroc", "sensitivity" or "specificity"; with more than two classes "accuracy", and with grades also
    "quadratic_kappa" with the reference. `mean` is that of the readers, `readers` names each by its column; None where
    undefined. `random_readers` tests for readers like these (None with one reader), `fixed_readers` for these alone.
    """

    number: str
    n: int
    model: Estimate
    mean: float | None
    readers: dict[str, Estimate]
    random_readers: ReaderTest | None
    fixed_readers: ReaderTest


def compare_with_readers(predictions: Predictions, config: EvaluateConfig) -> list[ReaderComparison] | None:
    """The model against readers by AUROC (scores) and by sensitivity and specificity (calls); None without readers.
    Calls of more than two classes are compared by accuracy, and of more than two grades by quadratic kappa too.

    Raises:
        UsageError: scores, and not two classes; or too many readers. DataError: a cell is no class or no number.
    """
    raters, rater_scores, ordinal = config.raters, config.rater_scores, config.ordinal
    labels, positive, comparisons = known_labels(predictions), positive_index(predictions), list[ReaderComparison]()
    if rater_scores:
        _check_number("--rater-score", rater_scores, len(predictions.classes))
        scores = np.stack([read_scores(predictions.columns[c], predictions.paths, c) for c in rater_scores])  # (J, S)
        rows, model = np.isfinite(scores).all(axis=0), predictions.probabilities[:, positive]
        truth, units = (labels == positive)[rows], Units(np.unique(predictions.units[rows], return_inverse=True)[1])
        areas = [class_areas(score, truth)[0] for score in (model[rows], *scores[:, rows])]
        numbers = [estimate(area.value, *area_interval(area, truth, units)) for area in areas]
        spread_of = partial(area_spread, positive=truth, units=units)
        comparisons.append(_comparison("auroc", rater_scores, areas, numbers, spread_of, units))
    if raters:
        of = predictions.classes, predictions.paths
        calls = np.stack([readings(predictions.columns[c], *of, c, predictions.positive) for c in raters])
        grades, read = grades_of(ordinal, predictions.classes), np.flatnonzero((calls != UNREAD).all(axis=0))
        predictions, labels, calls = predictions.take(read), labels[read], calls[:, read]
        kinds = {"accuracy": np.ones(len(read), bool)}
        if positive is not None:
            kinds = {"sensitivity": labels == positive, "specificity": labels != positive}
        answers = np.concatenate([[predictions.predicted], calls])  # (1 + J, S)
        right, everyone = answers == labels, Units(predictions.units)
        if grades is not None and positive is None:
            costs = (grades[:, None] - grades).astype(np.float64) ** 2
            numbers = [kappa_estimate(labels, answer, costs, everyone)[0] for answer in answers]
            areas = [weighted_kappa(labels, answer, costs) for answer in answers]
            spread_of = partial(influence_spread, units=everyone)
            comparisons.append(_comparison("quadratic_kappa", raters, areas, numbers, spread_of, everyone))
        for name, rows in kinds.items():
            means = right[:, rows].mean(axis=1) if rows.any() else np.full(len(right), np.nan)
            influences = (right[:, rows] - means[:, None]) / max(1, int(rows.sum()))
            areas = [Area(float(mean), influence) for mean, influence in zip(means, influences, strict=True)]
            units = Units(np.unique(predictions.units[rows], return_inverse=True)[1])
            numbers = [of_share(share(of_one, rows, everyone)) for of_one in right]
            comparisons.append(_comparison(name, raters, areas, numbers, partial(influence_spread, units=units), units))
    return comparisons or None


def reversed_scores(comparisons: Sequence[ReaderComparison] | None) -> list[str]:
    """A note on each reader who ranks clearly worse than chance, which a reversed score explains best."""
    areas = [own for one in comparisons or () if one.number == "auroc" for own in one.readers.items()]
    return [
        f"The AUROC of the column {name} is {area.value:.3f} ({area.low:.3f} to {area.high:.3f}), clearly below 0.5: "
        "the two ends of its scale may be swapped."
        for name, area in areas
        if area.high is not None and area.high < 0.5
    ]


def _check_number(flag: str, columns: Sequence[str], classes: int = 2) -> None:
    if classes != 2:
        problem = f"{flag}: a score is for two classes, and there are {classes}"
        raise UsageError(problem, "give the classes that readers saw with --rater")
    if len(columns) > MOST:
        raise UsageError(f"{flag}: {len(columns)} columns, and at most {MOST} readers are compared", "name fewer")


def read_scores(cells: Sequence[str], paths: Sequence[str], column: str) -> np.ndarray:
    """(S,) float64 scores of a reader from the S cells of a column; NaN where a cell is empty. Raises DataError."""
    scores = np.array([as_number(cell) for cell in cells], dtype=np.float64)
    for path, cell, score in zip(paths, map(str.strip, cells), scores, strict=True):
        if cell and not np.isfinite(score):
            problem = f"{path}: '{cell}' in the column {column} is no number"
            raise DataError(problem, "a reader's score is a number, or empty where the image was not read")
    return scores


def reader_variances(
    values: np.ndarray, influences: np.ndarray, spread_of: Callable[[np.ndarray], Spread]
) -> tuple[Spread, Spread]:
    """The spread of the mean of a number over J readers: with other readers and patients, and with other patients.

    With random readers the variance is (MS + J max(Cov, 0)) / J: MS is the variance of the values between readers, Cov
    the mean covariance of two readers. Hillis' degrees of freedom are (MS + J max(Cov, 0))^2 (J - 1) / MS^2; where
    patients have several images, at most those of the variance between patients. The sum is at least J times the
    variance of fixed readers, in the degrees too: chance makes few readers look more alike than their errors allow.

    `values` are (J,), `influences` (J, S) for each image; `spread_of` gives the spread of such a number.
    """
    j, fixed = len(values), spread_of(influences.mean(axis=0))
    if j < 2:
        return Spread(*NONE), fixed
    own = sum(spread_of(influence).variance for influence in influences)
    between = float(values.var(ddof=1))
    alike = max(0.0, (j**2 * fixed.variance - own) / (j * (j - 1)))
    total = max(between + j * alike, j * fixed.variance)
    degrees = total**2 * (j - 1) / between**2 if between > 0 else np.inf
    return Spread(total / j, min(degrees, fixed.degrees)), fixed


def _comparison(
    name: str,
    columns: Sequence[str],
    areas: list[Area],
    numbers: list[Estimate],
    spread_of: Callable[[np.ndarray], Spread],
    units: Units,
) -> ReaderComparison:
    """From the areas and numbers of the model and then of each reader; an area has the influence of each image."""
    model, *readers = areas
    gaps = [model.plus(reader, -1) for reader in readers]
    values = np.array([gap.value for gap in gaps])
    random, fixed = reader_variances(values, np.stack([gap.influence for gap in gaps]), spread_of)
    own = np.array([[number.value, number.low, number.high] for number in numbers[1:]], dtype=float)  # NaN for None
    parts = [Part(v, low, high, r.influence, 1 / len(own)) for (v, low, high), r in zip(own, readers, strict=True)]
    alike = intervals.sum_correlation(model.influence, np.sum([part.influence for part in parts], axis=0), units)
    mean, gap = float(np.mean([reader.value for reader in readers])), float(values.mean())
    apart = difference(numbers[0], estimate(mean, *intervals.mean_gap_interval(parts, units), "mover"), alike)
    tests = dict[str, ReaderTest]()
    for method, over in ((RANDOM, random), (FIXED, fixed)):
        over = over if over.variance > 0 else Spread(*NONE)  # no image shows how much it varies
        reach, test = tested(gap, over, method, apart)
        shown, degrees = gap_estimate(gap, reach, test), finite(over.degrees)
        tests[method] = ReaderTest(difference=shown, statistic=test.statistic, degrees=degrees, p=test.p)
    return ReaderComparison(
        number=name,
        n=len(model.influence),
        model=numbers[0],
        mean=finite(mean),
        readers=dict(zip(columns, numbers[1:], strict=True)),
        random_readers=tests[RANDOM] if len(readers) > 1 else None,
        fixed_readers=tests[FIXED],
    )


def check_readers(
    config: EvaluateConfig, cells: Mapping[str, Sequence[str]], paths: Sequence[str], classes: Sequence[str]
) -> None:
    """Raises UsageError or DataError if grades or readers' answers do not fit the classes: now, not after hours.
    `cells` has each column of the table of labels, for the images of `paths`."""
    grades_of(config.ordinal, classes)
    for name in config.raters:
        readings(cells[name], classes, paths, name, classes[-1])  # the decision policy has a positive class of two
    if config.rater_scores:
        _check_number("--rater-score", config.rater_scores, len(classes))
    for name in config.rater_scores:
        read_scores(cells[name], paths, name)
