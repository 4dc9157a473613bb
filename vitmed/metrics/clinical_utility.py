"""Predictive values at other prevalences than that of the test, and the net benefit of acting on the predictions."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.config import EvaluateConfig
from vitmed.metrics.estimates import Estimate, estimate, of_share
from vitmed.metrics.intervals import Units, share, share_gap, share_ratio
from vitmed.metrics.notes import FEW_GROUPS
from vitmed.metrics.predictions import Predictions, known_labels, positive_index

GRID = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)  # prevalences of a screening up to those of a reference centre
THRESHOLDS = tuple(i / 100 for i in range(1, 100))


class AtPrevalence(Frozen):
    """PPV and NPV at one prevalence."""

    prevalence: float
    ppv: Estimate
    npv: Estimate


class PrevalenceTable(Frozen):
    """PPV and NPV by prevalence; `why` they are undefined, or ""."""

    positive: str
    intended: float | None  # the prevalence that was asked for
    observed: float | None  # that of these images
    rows: list[AtPrevalence]
    curve: list[AtPrevalence]  # as `rows`, for more prevalences
    sentence: str  # the row of 1 % or of the intended prevalence in words
    why: str


class DecisionCurve(Frozen):
    """Net benefit at each of T thresholds; acting on none is 0 everywhere. `why` it is undefined, or "".

    `useful` is [low, high] of each run of thresholds at which the intervals of the differences from acting on all and
    on none lie above 0; None with fewer than `FEW_GROUPS` patients (or images) of either class.
    """

    positive: str
    prevalence: float | None = None
    thresholds: list[float]
    model: list[Estimate] = []
    all: list[float] = []  # of acting on all images
    useful: list[list[float]] | None = None
    why: str


def prevalence_table(predictions: Predictions, config: EvaluateConfig) -> PrevalenceTable | None:
    """PPV and NPV of the predicted classes over a grid of prevalences. None with more than two classes.

    By Bayes' theorem, with the same sensitivity and specificity at every prevalence. Each value is a function of one
    likelihood ratio, and has its interval.
    """
    positive, labels = positive_index(predictions), known_labels(predictions)
    if positive is None:
        return None
    truth, called = labels == positive, predictions.predicted == positive
    asked_for = config.prevalence
    head = dict[str, Any](positive=predictions.classes[positive], intended=asked_for)
    if truth.all() or not truth.any():
        why = "all images are of one class"
        return PrevalenceTable(**head, observed=None, rows=[], curve=[], sentence="", why=why)
    units, observed = Units.of(predictions), float(truth.mean())
    alarms = share_ratio(~truth, truth, called, units)  # 1 / LR+
    misses = share_ratio(truth, ~truth, ~called, units)  # LR-
    asked = {*GRID, observed, *([] if asked_for is None else [asked_for])}
    curve = [
        AtPrevalence(
            prevalence=prevalence,
            ppv=_true_share(alarms, (1 - prevalence) / prevalence),
            npv=_true_share(misses, prevalence / (1 - prevalence)),
        )
        for prevalence in sorted({*asked, *np.geomspace(0.001, 0.9, 40).tolist()})
    ]
    rows = [row for row in curve if row.prevalence in asked]
    here = {"ppv": of_share(share(truth, called, units)), "npv": of_share(share(~truth, ~called, units))}
    rows = [row.model_copy(update=here) if row.prevalence == observed else row for row in rows]  # as in the report
    words = next(in_words(row) for row in rows if row.prevalence == (0.01 if asked_for is None else asked_for))
    return PrevalenceTable(**head, observed=observed, rows=rows, curve=curve, sentence=words, why="")


def _true_share(wrong: tuple[float, float, float], odds: float) -> Estimate:
    """The share of results that are true: `wrong` is a likelihood ratio and its interval, of where they are wrong."""
    value, high, low = (1 / (1 + odds * ratio) for ratio in wrong)
    return estimate(value, low, high, "mover")


def in_words(row: AtPrevalence) -> str:
    """A row of the table in words."""
    where = f"at a prevalence of {100 * row.prevalence:.3g} %"
    parts = []
    for found, result in ((row.ppv, "positive"), (row.npv, "negative")):
        if found.value is None:
            parts.append(f"There are no {result} results to count {where}.")
        elif found.low is None or found.high is None:
            parts.append(f"So few images or patients cannot show how many of 100 {result} results {where} are true.")
        else:
            plausible = f" ({_of_100(found.low)} to {_of_100(found.high)})"
            parts.append(f"Of 100 {result} results {where}, about {_of_100(found.value)}{plausible} are true.")
    return " ".join(parts)


def _of_100(share: float) -> str:
    """25, 99.7 or 0.4: never rounded to 100 or 0."""
    if share in (0, 1):
        return f"{100 * share:.0f}"
    digits = next((d for d in range(4) if f"{100 * share:.{d}f}" not in (f"{100:.{d}f}", f"{0:.{d}f}")), 4)
    return f"{100 * share:.{digits}f}"


def decision_curve(predictions: Predictions, config: EvaluateConfig) -> DecisionCurve | None:
    """Net benefit of acting on the model, on all and on none, over threshold probabilities. None with more classes.

    Vickers & Elkin, Med. Decis. Making 26 (2006) 565: NB = TP / n - FP / n * pt / (1 - pt), where you act on an image
    if its probability is at least pt. At pt, a missed positive is (1 - pt) / pt times as bad as a needless action.
    """
    positive, labels = positive_index(predictions), known_labels(predictions)
    if positive is None:
        return None
    truth, scores = labels == positive, predictions.probabilities[:, positive]
    if truth.all() or not truth.any():
        return DecisionCurve(positive=predictions.classes[positive], thresholds=[], why="all images are of one class")
    units, model, useful = Units.of(predictions), [], []
    for pt in THRESHOLDS:
        acted, weight = scores >= pt, pt / (1 - pt)
        over_none = share_gap(acted & truth, acted & ~truth, weight, units)
        spared = share_gap(~acted & ~truth, ~acted & truth, 1 / weight, units)  # over acting on all: this x weight
        model.append(estimate(*over_none, "mover"))
        useful.append(over_none[1] > 0 and spared[1] > 0)
    prevalence = float(truth.mean())
    enough = all(len(np.unique(units.index[kind])) >= FEW_GROUPS for kind in (truth, ~truth))
    return DecisionCurve(
        positive=predictions.classes[positive],
        prevalence=prevalence,
        thresholds=list(THRESHOLDS),
        model=model,
        all=[prevalence - (1 - prevalence) * pt / (1 - pt) for pt in THRESHOLDS],
        useful=_runs(useful) if enough else None,
        why="",
    )


def _runs(good: list[bool]) -> list[list[float]]:
    """The first and last threshold of each unbroken run."""
    runs: list[list[float]] = []
    for i, (threshold, holds) in enumerate(zip(THRESHOLDS, good, strict=True)):
        if holds and i and good[i - 1]:
            runs[-1][1] = threshold
        elif holds:
            runs.append([threshold, threshold])
    return runs
