"""How far a model does worse on one group of images than on another: site, scanner, sex, age.

Each stratum of a column is evaluated alone. A gap is the best stratum minus the worst, of an error the worst minus the
best. Between two it has the interval of a difference. Of more, the two are picked for being far apart, and no interval
of the two holds the truth at its level; then `by_chance` is how often strata dealt to the patients at random are as far
apart: a permutation test of the largest difference (Westfall & Young, Resampling-Based Multiple Testing, 1993). Each
difference is divided by its error in that shuffle, or strata unlike only in images per patient would seem to differ
(Chung & Romano, Ann. Stat. 41 (2013) 484); at least by that of independent images, as few show no variance.

Letters: S images, K classes, R shuffles, G strata.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.errors import UsageError, unknown_key
from vitmed.core.text_files import BLANKS
from vitmed.metrics import estimates, metric_table
from vitmed.metrics.estimates import Estimate, difference, of_share
from vitmed.metrics.intervals import Units, ratio, share
from vitmed.metrics.kinds.classes import MANY_CLASSES, PreparedPredictions
from vitmed.metrics.kinds.grades import PreparedGrades, grade_costs, kappa_of_sums, kappa_summands
from vitmed.metrics.kinds.number import NumberPredictions, PreparedNumbers
from vitmed.metrics.kinds.prepared import Prepared
from vitmed.metrics.predictions import Predictions, known_labels, positive_index
from vitmed.metrics.predictions_csv import as_number

FEWEST = 10  # images, and patients, below which a stratum is not evaluated: it may identify someone
MANY_VALUES = 8  # numbers of more values than this are cut at their quartiles
MOST = 20  # strata of a column that are reported, the largest
SHUFFLES, FEWER = 500, 99
PAIRS = 2**22  # pairs of patients x classes; of more, which take long, there are `FEWER` shuffles
EMPTY = "not stated"
AMOUNT = re.compile(r"[<>]?-?\d+([.,]\d+)?\+?")  # a number, or one that a person wrote
OF_CLASSES = ("auroc", "balanced_accuracy", "accuracy", "mcc")
HEADLINE: dict[type[Prepared], tuple[str, ...]] = {  # the numbers of a stratum
    PreparedPredictions: OF_CLASSES,
    PreparedGrades: ("quadratic_kappa", "grade_error", *OF_CLASSES),
    PreparedNumbers: ("mae", "bias", "coverage"),
}
COMPARED = ("quadratic_kappa", "auroc", "balanced_accuracy", "accuracy", "sensitivity", "specificity", "mae")
TITLES = {name: metric_table.TITLES[name] for name in COMPARED}
PARTS = {2: "median", 3: "tertiles", 4: "quartiles", 5: "quintiles"}  # into how many parts numbers are cut
NO_GAP: dict[str, Any] = dict.fromkeys(("value", "low", "high", "method"))
STEP = 1e-6  # of a sum, by which the slope of a number is found
Compared = Callable[[np.ndarray], dict[str, np.ndarray]]  # atoms that are inside, (R, A) of 0 and 1 -> name -> (N, R)


@dataclass(frozen=True)
class Strata:
    """A column cut into G strata."""

    names: tuple[str, ...]  # in the order in which they are shown
    of: np.ndarray  # (S,) int64 stratum of each image, 0..G-1
    cut: str = ""  # how numbers were cut, in words; "" where each value is a stratum
    why: str = ""  # why there are no strata; else ""


class Stratum(Frozen):
    """The headline numbers of one stratum; a `suppressed` one has only its name, and an `n` of "<10"."""

    name: str
    n: int | str
    suppressed: bool = False
    n_groups: int | None = None  # patients; None where they are unknown
    n_positive: int | None = None  # unset without a positive class
    overall: dict[str, Estimate] = {}
    notes: list[str] = []


class Gap(Estimate):
    """How far the best stratum and the worst are apart, of one metric; `reason` where it is undefined.

    `by_chance` is None beside an interval, with patients in several strata, and where no shuffle compares as many.
    """

    metric: str | None = None
    best: str | None = None
    worst: str | None = None
    compared: int | None = None  # strata
    by_chance: float | None = None  # share as far apart, of the shuffles that compare as many strata
    reason: str | None = None


class Subgroups(Frozen):
    """The strata of one column, and the gaps between them; `reason` where there are no strata or no gaps."""

    cut: str  # as in `Strata`
    strata: list[Stratum]
    further: int  # strata beyond `MOST`
    too_small: int  # strata that are not evaluated; one with a single patient or image is not even named
    gaps: dict[str, Gap]
    worst: dict[str, str]  # metric -> the worst stratum, where there is a gap
    shuffles: int | None = None  # None where patients are in several strata
    reason: str | None = None


def check_columns(asked: Iterable[str], columns: Iterable[str], flag: str = "--subgroup") -> None:
    """Raises UsageError, with the columns of the table, if it lacks one that is asked for."""
    columns = tuple(columns)
    for name in asked:
        if not columns:
            fix = "add --labels TABLE, a table that has the column; docs/subgroups.md"
            raise UsageError(f"{flag} {name}: these images have no further columns", fix)
        if name not in columns:
            raise unknown_key(f"column for {flag}", name, columns)


def subgroups(
    predictions: Predictions, columns: Sequence[str], kind: type[Prepared] = PreparedPredictions
) -> dict[str, Subgroups] | None:
    """The strata, and the gaps between them, of each of these `predictions.columns`; None where none is asked for.
    `kind` is a key of `HEADLINE`. Raises UsageError if there is no such column."""
    check_columns(columns, predictions.columns)
    if not columns or not len(predictions):
        return None
    return {name: evaluate_strata(predictions, predictions.columns[name], kind) for name in columns}


def error_by_range(predictions: NumberPredictions) -> Subgroups:
    """The error between the quintiles of the true number, or in fewer parts where patients are few."""
    cells = [repr(number) for number in known_labels(predictions).tolist()]
    for parts in sorted(PARTS, reverse=True):
        errors = evaluate_strata(predictions, cells, PreparedNumbers, parts=parts)
        if errors.strata:
            break
    return errors


def compared(columns: Mapping[str, Subgroups] | None) -> bool:
    """Whether any column has numbers of at least two strata."""
    return any(sum(bool(s.overall) for s in column.strata) > 1 for column in (columns or {}).values())


def strata(cells: Sequence[str], units: Sequence[Hashable], unit: str, parts: int = 4) -> Strata:
    """A column cut into strata: one per value, or `parts` quantiles of the images where it holds many numbers.

    Empty cells are a stratum of their own, the last. Where fewer than `FEWEST` patients lie in a quartile, its edges
    would disclose one of them; then there are no strata, nor where a few of many cells are no numbers. `units` are the
    patients (or images) of the cells, `unit` is what they are called.
    """
    cells = [cell.strip() for cell in cells]
    parsed = np.array([as_number(cell) for cell in cells], dtype=np.float64)
    parsed[~np.isfinite(parsed)] = np.inf  # no number
    numbers = np.where([cell.lower() in BLANKS for cell in cells], np.nan, parsed)
    given, cut = np.isfinite(numbers), ""
    values = np.unique(numbers[given])
    words = {cell for cell, number in zip(cells, numbers.tolist(), strict=True) if number == np.inf}
    amounts = {cell for cell in cells if AMOUNT.fullmatch(cell)}
    if words and len(amounts) > max(MANY_VALUES, 10 * len(words - amounts)):
        why = "most of its cells are numbers, but not all (such as 90+ or 61,5); write numbers, or groups of your own"
        return Strata((), np.zeros(len(cells), np.int64), why=why)
    if len(values) > MANY_VALUES and not words:
        edges = np.unique(np.quantile(numbers[given], np.arange(1, parts) / parts, method="higher"))
        edges = edges[edges > values[0]] if edges[-1] > values[0] else values[1:2]
        of = np.searchsorted(edges, numbers, side="right")
        members = {(int(g), owner) for g, owner, known in zip(of, units, given, strict=True) if known}
        if min(np.bincount([g for g, _ in members], minlength=len(edges) + 1)) < FEWEST:
            lie = f"fewer than {FEWEST} {unit} lie in one of the parts cut at the {PARTS[parts]} of its numbers"
            why = f"{lie}; write groups of your own into a column, such as under 50"
            return Strata((), np.zeros(len(cells), np.int64), why=why)
        digits = next(d for d in range(6, 18) if len({f"{edge:.{d}g}" for edge in edges}) == len(edges))
        shown = [f"{edge:.0f}" if edge.is_integer() else f"{edge:.{digits}g}" for edge in edges]
        between = [f"{low} to under {high}" for low, high in itertools.pairwise(shown)]
        names = [f"under {shown[0]}", *between, f"{shown[-1]} and above"]
        cut = f"cut at the {PARTS[parts]} of the images: " + ", ".join(shown)
    else:
        number_of = dict(zip(cells, parsed.tolist(), strict=True))
        same = {cell: number if number < np.inf else cell.casefold() for cell, number in number_of.items()}
        usual = {same[cell]: cell for cell, _ in reversed(Counter(cells).most_common())}
        cells = [usual[same[cell]] for cell in cells]  # F and f, or 1 and 1.0, are one stratum
        given = np.array(cells, dtype=str) != ""
        names = sorted({cell for cell in cells if cell}, key=lambda cell: (number_of[cell], cell))
        index = {name: i for i, name in enumerate(names)}
        of = np.array([index.get(cell, -1) for cell in cells], dtype=np.int64)
    if not given.all():
        of[~given] = len(names)
        names = [*names, EMPTY]
    return Strata(tuple(names), of.astype(np.int64), cut)


def evaluate_strata(predictions: Predictions, cells: Sequence[str], kind: type[Prepared], parts: int = 4) -> Subgroups:
    """Each stratum of a column alone, the largest `MOST`, and the gaps between them. `cells` and `parts` are as for
    `strata`, and `kind` as for `subgroups`."""
    column = strata(cells, predictions.units.tolist(), "images" if predictions.groups is None else "patients", parts)
    images = np.bincount(column.of, minlength=len(column.names))
    patients = np.array([len(np.unique(predictions.units[column.of == g])) for g in range(len(column.names))])
    why = column.why
    if column.names == (EMPTY,):
        why = "the column is empty for all images"
    elif len(column.names) > 1 and patients.max() == 1:
        why = "each value belongs to one patient (or image), so it may name them"
    if why:
        return Subgroups(cut=column.cut, strata=[], further=0, too_small=0, gaps={}, worst={}, reason=why)
    large = (images >= FEWEST) & (patients >= FEWEST)
    shown = [int(g) for g in np.argsort(-images, kind="stable") if large[g]][:MOST]
    few, listed = int((~large).sum()), list[Stratum]()
    for g, name in enumerate(column.names):
        if g in shown:
            listed.append(_stratum(name, predictions.take(np.flatnonzero(column.of == g)), kind))
        elif not large[g] and patients[g] > 1 and few <= MOST:
            listed.append(Stratum(name=name, n=f"<{FEWEST}", suppressed=True))
    gaps: dict[str, Any] = {"gaps": {}, "worst": {}, "reason": "fewer than two strata are large enough to be compared"}
    among = [g for g in sorted(shown) if column.names[g] != EMPTY]
    if len(among) > 1:
        evaluated = [stratum for stratum in listed if not stratum.suppressed and stratum.name != EMPTY]
        gaps = _gaps(predictions, column, among, evaluated, kind)
    gaps["further"] = int(large.sum()) - len(shown)
    return Subgroups(cut=column.cut, strata=listed, too_small=few, **gaps)


def _stratum(name: str, part: Predictions, kind: type[Prepared]) -> Stratum:
    patients = None if part.groups is None else len(set(part.units))
    head: dict[str, Any] = {"name": name, "n": len(part), "n_groups": patients}
    if len(part.classes) > MANY_CLASSES:
        return Stratum(**head, overall={"accuracy": of_share(share(part.right, None, Units(part.units)))}, notes=[])
    numbers = kind.evaluate(part)
    overall = {metric: numbers.overall[metric] for metric in HEADLINE[kind] if metric in numbers.overall}
    if numbers.positive_class is not None:
        of_positive = numbers.per_class[numbers.positive_class]
        overall |= {metric: of_positive[metric] for metric in ("sensitivity", "specificity", "ppv", "npv")}
        head["n_positive"] = of_positive.n
    return Stratum(**head, overall=overall, notes=numbers.notes)


def _gaps(
    predictions: Predictions, column: Strata, among: list[int], evaluated: Sequence[Stratum], kind: type[Prepared]
) -> dict[str, Any]:
    """The fields of `Subgroups` from `gaps` on: the larger minus the smaller of each number, of the best and the worst.
    The strata `among` are compared; `evaluated` are they, with their own intervals."""
    inside = np.flatnonzero(np.isin(column.of, among))
    part, of = predictions.take(inside), column.of[inside]
    _, owner = np.unique(predictions.units[inside], return_inverse=True)
    pairs, atoms = np.unique(owner * len(column.names) + of, return_inverse=True)  # a patient's images in one stratum
    home = pairs % len(column.names)  # (A,)
    numbers, slow = _comparing(part, atoms, kind)
    dealt = home[None]  # (1 + R, A), the first row as they are
    if len(pairs) == owner.max() + 1:  # each patient is in one stratum
        shuffles = np.tile(home, (FEWER if slow else SHUFFLES, 1))
        dealt = np.concatenate([dealt, np.random.default_rng(0).permuted(shuffles, axis=1)])
    of_stratum = [numbers((dealt == g).astype(float)) for g in among]
    whole = _comparing(part, np.arange(len(part)), kind)[0](np.ones((1, len(part))))  # as if images were patients
    gaps = dict[str, Gap]()
    for name in [name for name in TITLES if name in whole]:
        values, variances, rarity = np.stack([each[name] for each in of_stratum], axis=1)  # (G, 1 + R) each
        _, variance, usual = whole[name]
        gaps[name] = _gap(name, values, np.maximum(variances, variance / usual * rarity), evaluated)
    worst = {name: gap.worst for name, gap in gaps.items() if gap.value}
    return {"gaps": gaps, "worst": worst, "shuffles": len(dealt) - 1 or None}


def _gap(name: str, values: np.ndarray, variances: np.ndarray, strata: Sequence[Stratum]) -> Gap:
    """The gap of a number, from its values (G, 1 + R): in each stratum, NaN where it has too few images, then in each
    of R shuffles, which count only if as many strata have a value."""
    count = np.isfinite(values).sum(axis=0)
    if count[0] < 2:
        many = f"{FEWEST} images of each class or grade that it needs, from {estimates.FEWEST} patients"
        return Gap(**NO_GAP, metric=name, reason=f"fewer than two groups have {many}")
    most, least = (strata[int(pick(values[:, 0]))] for pick in (np.nanargmax, np.nanargmin))
    best, worst = (least, most) if name == "mae" else (most, least)
    apart = np.abs(values[:, None] - values)[..., count == count[0]]  # (G, G, 1 + R), NaN where one has no value
    apart = np.where(apart > 1e-12, apart, 0.0)
    gap, by_chance = dict(NO_GAP), None
    if count[0] == 2:
        gap = dict(difference(most.overall[name], least.overall[name]))
    elif apart.shape[-1] > 1:
        errors = np.sqrt(variances[:, None] + variances)[..., count == count[0]]
        furthest = np.nan_to_num(ratio(apart, errors)).max(axis=(0, 1))
        by_chance = float(np.mean(furthest >= furthest[0] - 1e-12))
    gap |= {"value": float(apart[..., 0].max()), "compared": int(count[0]), "by_chance": by_chance}
    return Gap(**gap, metric=name, best=best.name, worst=worst.name)


def _comparing(predictions: Any, atoms: np.ndarray, kind: type[Prepared]) -> tuple[Compared, bool]:
    """The numbers that strata are compared by, of the images in some atoms: the images of one patient in one stratum;
    and whether they take long. NaN where a number is undefined, or made of fewer than `FEWEST` images of a class, or of
    fewer than 5 patients. All but AUROC are functions of sums over atoms."""
    labels, size = known_labels(predictions), int(atoms.max()) + 1
    of_numbers = predictions.kind == "number"
    single = of_numbers or len(predictions.classes) > MANY_CLASSES  # a mean over all images is all that is compared
    scores = np.abs(predictions.values - labels) if of_numbers else predictions.right
    k, of = (1, np.zeros(len(labels), np.int64)) if single else (len(predictions.classes), labels)
    each, held = (np.bincount(atoms * k + of, w, size * k).reshape(size, k) for w in (np.ones(len(labels)), scores))
    positive = None if single else positive_index(predictions)
    ranked = [] if single else [positive] if positive is not None else list(range(k))
    needed = {} if single else {"balanced_accuracy": list(range(k))}  # classes
    if positive is not None:
        needed |= {"sensitivity": [positive], "specificity": [1 - positive]}
    rankings = []  # of a class the atoms, and those of the others, by rising probability; of each image how many of the
    for c in ranked:  # other kind lie below, and up to
        p = predictions.probabilities[:, c]
        kinds = [mask[np.argsort(p[mask], kind="stable")] for mask in map(np.flatnonzero, (labels == c, labels != c))]
        ends = [np.searchsorted(p[a], p[b], end) for b, a in (kinds, kinds[::-1]) for end in ("left", "right")]
        rankings.append((*(atoms[mask] for mask in kinds), *ends))

    def means(sums: np.ndarray) -> dict[str, np.ndarray]:
        support, hits = np.split(sums, 2, axis=-1)
        values = {"mae" if of_numbers else "accuracy": ratio(hits.sum(axis=-1), support.sum(axis=-1))}
        return values | {name: ratio(hits, support)[..., of].mean(axis=-1) for name, of in needed.items()}

    of_sums = [(np.hstack([each, held]), means)]
    if kind is PreparedGrades and not single:
        costs = grade_costs(k, "squared")
        summands = Units(atoms).sums(kappa_summands(labels, predictions.predicted, costs))
        of_sums.append((summands, lambda sums: {"quadratic_kappa": kappa_of_sums(sums, costs)}))

    def area(inside: np.ndarray) -> tuple[float, float]:
        value, pull = 0.0, np.zeros(size)
        for own, others, below, up_to, under, through in rankings:
            hits, misses = (np.append(0, np.cumsum(inside[of])) for of in (own, others))
            right = (misses[below] + misses[up_to]) / (2 * misses[-1])  # a tie counts half
            wrong = (hits[under] + hits[through]) / (2 * hits[-1])
            one = float(inside[own] @ right / hits[-1])
            value += one / len(rankings)
            gained, lost = np.bincount(own, right - one, size), np.bincount(others, wrong + one - 1, size)
            pull += gained / hits[-1] - lost / misses[-1]
        return value, float(inside @ (pull / len(rankings)) ** 2)

    def numbers(inside: np.ndarray) -> dict[str, np.ndarray]:
        support = inside @ each  # (R, K)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = {name: each for summed in of_sums for name, each in _spread(inside, *summed).items()}
            if ranked:
                values["auroc"] = np.transpose([area(row) for row in inside])
        enough = (support >= FEWEST) & (inside @ (each > 0) >= estimates.FEWEST)  # images, and patients who have them
        for name, (value, variance) in values.items():
            images = support.sum(axis=1, keepdims=True)
            if of := needed.get("balanced_accuracy" if name == "auroc" else name):
                images, value = support[:, of], np.where(enough[:, of].all(axis=1), value, np.nan)
            values[name] = np.stack([value, variance, (1 / np.maximum(images, 1)).mean(axis=1)])
        return values

    return numbers, len(ranked) * size**2 > PAIRS


def _spread(inside: np.ndarray, summands: np.ndarray, of_sums: Compared) -> dict[str, np.ndarray]:
    """Numbers of sums over the atoms inside, and their variance by the influence of each atom: (2, R) by name."""
    sums, step = inside @ summands, STEP * np.maximum(1, summands.sum(axis=0))
    ends = (of_sums(sums[:, None] + way * np.diag(step)) for way in (1, -1))
    values, (more, less) = of_sums(sums), ends
    pulls = {name: (more[name] - less[name]) / (2 * step) @ summands.T for name in values}  # (R, A)
    variances = {name: np.einsum("ra,ra,ra->r", inside, pull, pull) for name, pull in pulls.items()}
    return {name: np.stack([value, variances[name]]) for name, value in values.items()}
