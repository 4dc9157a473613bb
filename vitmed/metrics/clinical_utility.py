"""What a result is worth where the finding is rarer or commoner than in the test, and whether acting on it pays."""

from __future__ import annotations

import numpy as np

from vitmed.core.config import EvaluateConfig
from vitmed.core.frozen import Frozen
from vitmed.metrics.estimates import Estimate, estimate, of_share
from vitmed.metrics.intervals import Units, share, share_gap, share_ratio
from vitmed.metrics.notes import FEW_GROUPS
from vitmed.metrics.positive_class import positive_index
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.scoring import known_labels

GRID = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)  # prevalences of a screening up to those of a reference centre
THRESHOLDS = tuple(i / 100 for i in range(1, 100))


class AtPrevalence(Frozen):
    """PPV and NPV at one prevalence."""

    prevalence: float
    ppv: Estimate
    npv: Estimate


class PrevalenceTable(Frozen):
    """PPV and NPV by prevalence.

    Attributes:
        intended: the prevalence that was asked for, or None.
        observed: that of these images.
        curve: as `rows`, for more prevalences.
        sentence: the row of 1 % or of the intended prevalence in words.
        why: why there is nothing; "" where there is something.
    """

    positive: str
    intended: float | None
    observed: float | None
    rows: list[AtPrevalence]
    curve: list[AtPrevalence]
    sentence: str
    why: str


class DecisionCurve(Frozen):
    """Net benefit at each of T thresholds; acting on none is 0 everywhere.

    Attributes:
        all: of acting on all images.
        useful: [low, high] of each run of thresholds at which the lower ends of the differences from both are above 0;
            None where fewer than `FEW_GROUPS` patients, or images, of either kind cannot tell.
        why: why there is nothing; "" where there is something.
    """

    positive: str
    prevalence: float | None = None
    thresholds: list[float]
    model: list[Estimate] = []
    all: list[float] = []
    useful: list[list[float]] | None = None
    why: str


def prevalence_table(predictions: Predictions, config: EvaluateConfig) -> PrevalenceTable | None:
    """PPV and NPV, as the predictions decide, over a grid of prevalences. None of more than two classes.

    By Bayes' theorem, sensitivity and specificity being taken to be the same at every prevalence. Both values are
    functions of one likelihood ratio, and have its interval.
    """
    positive, labels = positive_index(predictions), known_labels(predictions)
    if positive is None:
        return None
    truth, called = labels == positive, predictions.predicted == positive
    name = predictions.classes[positive]
    if truth.all() or not truth.any():
        why = "all images are of one class"
        return PrevalenceTable(
            positive=name, intended=config.prevalence, observed=None, rows=[], curve=[], sentence="", why=why
        )
    units, observed = Units.of(predictions), float(truth.mean())
    alarms = share_ratio(~truth, truth, called, units)  # 1 / LR+
    misses = share_ratio(truth, ~truth, ~called, units)  # LR-
    asked = {*GRID, observed, *([config.prevalence] if config.prevalence is not None else [])}
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
    told = config.prevalence if config.prevalence is not None else 0.01
    row = next(row for row in rows if row.prevalence == told)
    return PrevalenceTable(
        positive=name,
        intended=config.prevalence,
        observed=observed,
        rows=rows,
        curve=curve,
        sentence=in_words(row),
        why="",
    )


def _true_share(wrong: tuple[float, float, float], odds: float) -> Estimate:
    """Of the results of a kind the share that is true.

    Args:
        wrong: how much commoner the result is among the images that it is false of than among the others, with its
            interval.
        odds: how many images it is false of there are for each of the others.
    """
    value, high, low = (1 / (1 + odds * ratio) for ratio in wrong)
    return estimate(value, low, high, "mover")


def in_words(row: AtPrevalence) -> str:
    """A row of the table as a physician would say it."""
    where = f"at a prevalence of {100 * row.prevalence:.3g} %"
    parts = []
    for found, result in ((row.ppv, "positive"), (row.npv, "negative")):
        if found.value is None:
            parts.append(f"There are no {result} results to count {where}.")
        elif found.low is None or found.high is None:
            parts.append(f"So few images or patients cannot tell how many of 100 {result} results {where} are true.")
        else:
            plausible = f" ({_of_100(found.low)} to {_of_100(found.high)})"
            parts.append(f"Of 100 {result} results {where}, about {_of_100(found.value)}{plausible} are true.")
    return " ".join(parts)


def _of_100(share: float) -> str:
    """25, 99.7 or 0.4: never 100 or 0 for what is not."""
    text = f"{100 * share:.0f}"
    if (text == "100" and share < 1) or (text == "0" and share > 0):
        digits = next((d for d in range(1, 4) if f"{100 * share:.{d}f}" not in (f"{100:.{d}f}", f"{0:.{d}f}")), 4)
        return f"{100 * share:.{digits}f}"
    return text


def decision_curve(predictions: Predictions, config: EvaluateConfig) -> DecisionCurve | None:
    """Net benefit of acting on the model, on all and on none, over threshold probabilities. None of more classes.

    Vickers & Elkin, Med. Decis. Making 26 (2006) 565: NB = TP / n - FP / n * pt / (1 - pt), where an image is acted on
    if its probability is at least pt. Whoever acts at pt holds a missed finding to be (1 - pt) / pt times as bad as a
    needless action.
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
