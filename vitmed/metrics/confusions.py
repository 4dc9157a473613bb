"""Which class is confused with which: the wrong predictions counted by pair. Which findings occur together, and
which are called wrongly where another is present; images whose label of a finding is unknown count nowhere for it."""

from __future__ import annotations

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.metrics.estimates import Estimate, of_share
from vitmed.metrics.intervals import Units, ratio, share
from vitmed.metrics.kinds.findings import FindingPredictions, images_right, images_without
from vitmed.metrics.predictions import Predictions, known_labels

PAIRS = 20  # the most frequent that are listed


class Confusion(Frozen):
    """Images of one class that were predicted as another."""

    truth: str
    predicted: str
    n: int
    share: float  # of the images of the true class
    patients: int | None  # None where they are unknown
    confidence: float  # the median


class Mistakes(Frozen):
    """`n` errors among all images, the `PAIRS` most frequent pairs, and the number of errors in further pairs."""

    n: int
    of: int
    pairs: list[Confusion]
    further: int


def error_pairs(predictions: Predictions) -> list[tuple[int, int, np.ndarray]]:
    """(truth, predicted, rows) of each pair, the most frequent first; rows by falling confidence.

    Raises:
        DataError: the predictions have no labels.
    """
    labels, predicted, size = known_labels(predictions), predictions.predicted, len(predictions.classes)
    wrong = np.flatnonzero(labels != predicted)
    wrong = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")]
    codes = labels[wrong] * size + predicted[wrong]
    pairs, counts = np.unique(codes, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:PAIRS]
    return [(int(code) // size, int(code) % size, wrong[codes == code]) for code in pairs[order]]


def mistakes(predictions: Predictions) -> Mistakes | None:
    """The number of errors, by pair; None without images."""
    if not len(predictions):
        return None
    labels, classes = known_labels(predictions), predictions.classes
    units, support = predictions.units, np.bincount(labels)
    pairs = [
        Confusion(
            truth=classes[truth],
            predicted=classes[predicted],
            n=len(rows),
            share=float(len(rows) / support[truth]),
            patients=None if predictions.groups is None else len(np.unique(units[rows])),
            confidence=float(np.median(predictions.confidence[rows])),
        )
        for truth, predicted, rows in error_pairs(predictions)
    ]
    wrong = int(np.sum(labels != predictions.predicted))
    return Mistakes(n=wrong, of=len(labels), pairs=pairs, further=wrong - sum(pair.n for pair in pairs))


WORST = 5  # images of each kind of error that are named


class CoOccurrence(Frozen):
    """Images with two findings, of those in which both are known; F x F each, in the order of `findings`.

    `truth` and `calls` are counts. Their shares are conditional: of the images with the finding of the row, those that
    also have the finding of the column; None where no image has the former.
    """

    findings: list[str]
    known: list[list[int]]
    truth: list[list[int]]
    calls: list[list[int]]
    truth_share: list[list[float | None]]
    calls_share: list[list[float | None]]


class FindingCounts(Frozen):
    """The calls of one finding by the truth, and the images in which it is unknown.

    `worst_misses` and `worst_false_calls` are rows of predictions.csv, from 1: the `WORST` images whose probability is
    furthest on the wrong side, the worst first.
    """

    finding: str
    hits: int
    misses: int
    false_calls: int
    right_absent: int
    unknown: int
    worst_misses: list[int]
    worst_false_calls: list[int]


class FalseCall(Frozen):
    """A finding that is called where it is absent, in images that have another one."""

    called: str
    present: str
    n: int
    of: int  # images with `present` and without `called`
    share: float
    otherwise: float | None  # the same share of the images without either; None where there are none
    missed: int  # of `n`, those in which `present` is not called: one was taken for the other
    patients: int | None  # None where they are unknown


class WithoutFindings(Frozen):
    """Images without any known finding: how many, in what share none is called, and which are, by falling number."""

    n: int
    specificity: Estimate
    called: dict[str, int]


class FindingErrors(Frozen):
    """Errors by finding; the `PAIRS` pairs with most false calls beyond what is usual otherwise; images without any."""

    findings: list[FindingCounts]
    pairs: list[FalseCall]
    without: WithoutFindings


def co_occurrence(predictions: FindingPredictions) -> CoOccurrence:
    """How often findings occur together. Raises DataError without labels."""
    labels, called = known_labels(predictions), predictions.predicted
    known, present = labels >= 0, labels == 1
    truth, calls = _both(present, present), _both(called & known, called & known)
    shares = [
        [[None if np.isnan(x) else float(x) for x in row] for row in ratio(both, first)]
        for both, first in ((truth, _both(present, known)), (calls, _both(called & known, known)))
    ]
    counts = [pairs.astype(int).tolist() for pairs in (_both(known, known), truth, calls)]
    named = dict(zip(("known", "truth", "calls", "truth_share", "calls_share"), [*counts, *shares], strict=True))
    return CoOccurrence(findings=list(predictions.classes), **named)


def finding_errors(predictions: FindingPredictions) -> FindingErrors:
    """The errors of each finding, and where they happen. Raises DataError without labels."""
    labels, called, classes = known_labels(predictions), predictions.predicted, predictions.classes
    present, absent, none = labels == 1, labels == 0, images_without(labels)
    kinds = {
        "hits": present & called,
        "misses": present & ~called,
        "false_calls": absent & called,
        "right_absent": absent & ~called,
        "unknown": labels < 0,
    }
    counts = {kind: images.sum(axis=0).tolist() for kind, images in kinds.items()}
    wrong = (called & absent & none[:, None]).sum(axis=0)
    findings = []
    for f, name in enumerate(classes):
        misses, false_calls = ((rows[:WORST] + 1).tolist() for rows in wrong_rows(predictions, f))
        of_kinds = {kind: count[f] for kind, count in counts.items()}
        findings.append(FindingCounts(finding=name, **of_kinds, worst_misses=misses, worst_false_calls=false_calls))
    specificity = of_share(share(images_right(labels, called), none, Units.of(predictions)))
    called_there = {classes[f]: int(wrong[f]) for f in np.argsort(-wrong, kind="stable") if wrong[f]}
    return FindingErrors(
        findings=findings,
        pairs=_false_calls(predictions, present, absent),
        without=WithoutFindings(n=int(none.sum()), specificity=specificity, called=called_there),
    )


def wrong_rows(predictions: FindingPredictions, f: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows where finding `f` is missed, by rising probability, and where it is a false alarm, by falling one."""
    labels, called, chances = known_labels(predictions)[:, f], predictions.predicted[:, f], predictions.probabilities
    missed, false = np.flatnonzero((labels == 1) & ~called), np.flatnonzero((labels == 0) & called)
    return tuple(rows[np.argsort(sign * chances[rows, f], kind="stable")] for rows, sign in ((missed, 1), (false, -1)))  # type: ignore[return-value]


def _false_calls(predictions: FindingPredictions, present: np.ndarray, absent: np.ndarray) -> list[FalseCall]:
    """The pairs of `FindingErrors`; `present` and `absent` are (S, F) bool."""
    called, classes, units = predictions.predicted, predictions.classes, predictions.units
    wrong = called & absent
    n, of, missed = _both(present, wrong), _both(present, absent), _both(present & ~called, wrong)  # (F, F)
    otherwise = ratio(_both(absent, wrong), _both(absent, absent))
    np.fill_diagonal(otherwise, np.nan)
    excess = np.where(n > 0, n - of * np.nan_to_num(otherwise), 0)
    order = [np.unravel_index(i, excess.shape) for i in np.argsort(-excess, axis=None, kind="stable")[:PAIRS]]
    return [
        FalseCall(
            called=classes[f],
            present=classes[g],
            n=int(n[g, f]),
            of=int(of[g, f]),
            share=float(n[g, f] / of[g, f]),
            otherwise=None if np.isnan(otherwise[g, f]) else float(otherwise[g, f]),
            missed=int(missed[g, f]),
            patients=None if predictions.groups is None else len(np.unique(units[present[:, g] & wrong[:, f]])),
        )
        for g, f in order
        if excess[g, f] > 0
    ]


def _both(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(F, F) images with both, of (S, F) bool each; the row is that of the first."""
    return np.asarray(first.T.astype(np.float64) @ second.astype(np.float64))
