"""Which findings occur together, in truth and in the calls, and which are called wrongly where another is present.

Images whose label of a finding is unknown count nowhere for it. Letters: S images, F findings.
"""

from __future__ import annotations

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.metrics.confusions import PAIRS
from vitmed.metrics.estimates import Estimate, of_share
from vitmed.metrics.intervals import Units, share
from vitmed.metrics.kinds.findings import FindingPredictions, images_right, images_without
from vitmed.metrics.predictions import known_labels
from vitmed.metrics.ranking import ratio

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
    known = labels >= 0
    truth, calls = _both(labels == 1, labels == 1), _both(called & known, called & known)
    shares = [
        [[None if np.isnan(x) else float(x) for x in row] for row in ratio(both, first)]
        for both, first in ((truth, _both(labels == 1, known)), (calls, _both(called & known, known)))
    ]
    counts = [found.astype(int).tolist() for found in (_both(known, known), truth, calls)]
    return CoOccurrence(
        findings=list(predictions.classes),
        known=counts[0],
        truth=counts[1],
        calls=counts[2],
        truth_share=shares[0],
        calls_share=shares[1],
    )


def finding_errors(predictions: FindingPredictions) -> FindingErrors:
    """The errors of each finding, and where they happen. Raises DataError without labels."""
    labels, called, classes = known_labels(predictions), predictions.predicted, predictions.classes
    present, absent = labels == 1, labels == 0
    kinds = present & called, present & ~called, absent & called, absent & ~called, labels < 0
    counts = np.stack([kind.sum(axis=0) for kind in kinds], axis=1).tolist()
    none = images_without(labels)
    empty = share(images_right(labels, called), none, Units(predictions.units))
    wrong = (called & absent & none[:, None]).sum(axis=0)
    worst = [[(rows[:WORST] + 1).tolist() for rows in wrong_rows(predictions, f)] for f in range(len(classes))]
    return FindingErrors(
        findings=[
            FindingCounts(
                finding=name,
                hits=own[0],
                misses=own[1],
                false_calls=own[2],
                right_absent=own[3],
                unknown=own[4],
                worst_misses=rows[0],
                worst_false_calls=rows[1],
            )
            for name, own, rows in zip(classes, counts, worst, strict=True)
        ],
        pairs=_false_calls(predictions, present, absent),
        without=WithoutFindings(
            n=int(none.sum()),
            specificity=of_share(empty),
            called={classes[f]: int(wrong[f]) for f in np.argsort(-wrong, kind="stable") if wrong[f]},
        ),
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
