"""Predictive values at other prevalences than that of the test, and the net benefit of acting on the predictions."""

from itertools import groupby
from typing import Any

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.config import EvaluateConfig
from vitmed.metrics.estimates import FEW_GROUPS, FEWEST, Estimate, estimate, of_share
from vitmed.metrics.intervals import NONE, Units, share, share_gap, share_ratio
from vitmed.metrics.predictions import Predictions, is_called, known_labels, positive_index

GRID = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)  # prevalences of a screening up to those of a reference centre
ONE_CLASS = "all images are of one class"
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
    sentence: str  # the row of 1 % or of the intended prevalence in words
    why: str


class NetBenefit(Frozen):
    """Net benefit at each of T thresholds where the positive class has one prevalence; acting on none is 0 everywhere.

    `useful` is [low, high] of each run of thresholds at which the intervals of both differences, from acting on all and
    from acting on none, lie above 0; at `harmful` ones the interval of the latter lies below 0. Both are None with
    fewer than `FEW_GROUPS` patients (or images) of either class. `sentence` has them in words.
    """

    prevalence: float | None = None
    model: list[Estimate] = []
    all: list[float] = []  # of acting on all images
    useful: list[list[float]] | None = None
    harmful: list[list[float]] | None = None
    sentence: str = ""


class DecisionCurve(NetBenefit):
    """Net benefit among these images, and at the prevalence that was asked for. `why` it is undefined, or ""."""

    positive: str
    thresholds: list[float]
    intended: NetBenefit | None = None
    why: str


def prevalence_table(predictions: Predictions, config: EvaluateConfig) -> PrevalenceTable | None:
    """PPV and NPV of the predicted classes over a grid of prevalences. None with more than two classes.

    By Bayes' theorem, with the same sensitivity and specificity at every prevalence. Each value is a function of one
    likelihood ratio, and has its interval. At the prevalence of these images both are counted, as in the headline.
    """
    c, asked_for = positive_index(predictions), config.prevalence
    if c is None:
        return None
    truth, called = known_labels(predictions) == c, predictions.predicted == c
    head = dict[str, Any](positive=predictions.classes[c], intended=asked_for)
    if truth.all() or not truth.any():
        return PrevalenceTable(**head, observed=None, rows=[], sentence="", why=ONE_CLASS)
    units, observed = Units(predictions.units), float(truth.mean())
    alarms = share_ratio(~truth, truth, called, units)  # 1 / LR+
    misses = share_ratio(truth, ~truth, ~called, units)  # LR-
    rows = list[AtPrevalence]()
    for prevalence in sorted({*GRID, observed, *([] if asked_for is None else [asked_for])}):
        rates = dict[str, Estimate]()  # the shares of results that are true
        for name, wrong, odds in (
            ("ppv", alarms, (1 - prevalence) / prevalence),
            ("npv", misses, prevalence / (1 - prevalence)),
        ):
            value, high, low = (1 / (1 + odds * likelihood_ratio) for likelihood_ratio in wrong)
            rates[name] = estimate(value, low, high, "mover")
        rows.append(AtPrevalence(prevalence=prevalence, **rates))
    here = {"ppv": of_share(share(truth, called, units)), "npv": of_share(share(~truth, ~called, units))}
    rows = [row.model_copy(update=here) if row.prevalence == observed else row for row in rows]  # as in the report
    words = next(in_words(row) for row in rows if row.prevalence == (0.01 if asked_for is None else asked_for))
    return PrevalenceTable(**head, observed=observed, rows=rows, sentence=words, why="")


def in_words(row: AtPrevalence) -> str:
    """A row of the table in words."""
    where, rates = f"at a prevalence of {percentage(row.prevalence)}", {"positive": row.ppv, "negative": row.npv}
    few = " or ".join(result for result, rate in rates.items() if rate.value is not None and rate.low is None)
    parts = [f"So few images or patients cannot show how many of 100 {few} results {where} are true."] * bool(few)
    for result, rate in rates.items():
        if rate.value is None:
            parts.append(f"There are no {result} results to count {where}.")
        elif rate.low is not None and rate.high is not None:
            low, value, high = _of_100(rate.low, rate.value, rate.high)
            parts.append(f"Of 100 {result} results {where}, about {value} ({low} to {high}) are true.")
    return " ".join(parts)


def _of_100(*shares: float) -> list[str]:
    """The lower end, the value and the upper end, with as many decimals each: 25.1, 99.7 or 0.4, never rounded to 100
    or 0, or the ends to one another."""
    for digits in range(13):
        texts = [f"{100 * share:.{0 if share in (0, 1) else digits}f}" for share in shares]
        far = all(share in (0, 1) or float(text) not in (0, 100) for text, share in zip(texts, shares, strict=True))
        if far and (texts[0] != texts[-1] or shares[0] == shares[-1] or digits > 3):
            break
    return texts


def percentage(prevalence: float) -> str:
    """A prevalence as text: `0.1 %`."""
    return f"{_of_100(prevalence)[0]} %" if prevalence > 0.999 else f"{100 * prevalence:.3g} %"


def decision_curve(predictions: Predictions, config: EvaluateConfig) -> DecisionCurve | None:
    """Net benefit of acting on the model, on all and on none, over threshold probabilities. None with more classes.

    Vickers & Elkin, Med. Decis. Making 26 (2006) 565: NB = TP / n - FP / n * pt / (1 - pt), where you act on an image
    if its probability is at least pt. At pt, a missed positive is (1 - pt) / pt times as bad as a needless action.
    At an intended prevalence p it is sensitivity * p - (1 - specificity) * (1 - p) * pt / (1 - pt), with the
    sensitivity and specificity of the threshold pt on the probabilities as they are.
    """
    c, asked_for = positive_index(predictions), config.prevalence
    if c is None:
        return None
    truth, scores = known_labels(predictions) == c, predictions.probabilities[:, c]
    head = dict[str, Any](positive=predictions.classes[c])
    if truth.all() or not truth.any():
        return DecisionCurve(**head, thresholds=[], why=ONE_CLASS)
    units, every, here, there = Units(predictions.units), np.ones_like(truth), list[Net](), list[Net]()
    for _, run in groupby(THRESHOLDS, lambda pt: is_called(scores, pt).sum()):  # the same images are acted on
        pts = np.array([*run])
        acted, weights = is_called(scores, pts[0]), pts / (1 - pts)
        over_none = share_gap((acted & truth, every), (acted & ~truth, every), 1.0, weights, units)
        # over acting on all: this x weight
        spared = share_gap((~acted & ~truth, every), (~acted & truth, every), 1.0, 1 / weights, units)
        here += zip(zip(*over_none.tolist(), strict=True), spared[1] > 0, strict=True)
        if asked_for is not None:
            loss = (1 - asked_for) * weights
            net = share_gap((acted, truth), (acted, ~truth), asked_for, loss, units)
            there += zip(zip(*net.tolist(), strict=True), net[1] > asked_for - loss, strict=True)
    fewest = units.fewer(truth)
    prevalence, intended = float(truth.mean()), None
    where = f"Among these images ({percentage(prevalence)} {predictions.classes[c]})"
    if asked_for is not None:
        at = f"At the intended prevalence of {percentage(asked_for)}"
        intended = NetBenefit(**_summed_up(there, asked_for, fewest, at))
    observed = _summed_up(here, prevalence, fewest, where)
    return DecisionCurve(**head, **observed, thresholds=list(THRESHOLDS), intended=intended, why="")


Net = tuple[tuple[float, float, float], bool]  # net benefit, low and high; whether it is clearly above acting on all


def _summed_up(nets: list[Net], prevalence: float, fewest: int, where: str) -> dict[str, Any]:
    """The fields of `NetBenefit`, of images or patients of a class the `fewest`; `where` opens its sentence."""
    enough = fewest >= FEW_GROUPS
    useful = _runs([net[1] > 0 and over_all for net, over_all in nets]) if enough else None
    harmful = _runs([net[2] < 0 for net, _ in nets]) if enough else None
    than = "better than acting on all images or on none"
    if not enough:
        text = f"there are too few patients or images of a class to know whether acting on the model is {than}"
    elif useful:
        text = f"acting on the model is clearly {than}, if you act from a probability of {ranges(useful)}"
    else:
        text = f"acting on the model is not clearly {than}, at any threshold"
    if harmful:
        text += f"; it is clearly worse than acting on none from a probability of {ranges(harmful)}"
    text += " (each threshold on its own)" if useful or harmful else ""
    return {
        "prevalence": prevalence,
        "model": [estimate(*(net if fewest >= FEWEST else (net[0], *NONE)), "mover") for net, _ in nets],
        "all": [prevalence - (1 - prevalence) * pt / (1 - pt) for pt in THRESHOLDS],
        "useful": useful,
        "harmful": harmful,
        "sentence": f"{where}, {text}.",
    }


def ranges(runs: list[list[float]] | None) -> str:
    """Runs of thresholds as text, `4 to 60 % or 62 %`."""
    if not runs:
        return "too few to say" if runs is None else "none"
    parts = [f"{100 * low:.0f}" + (f" to {100 * high:.0f}" if high > low else "") + " %" for low, high in runs]
    return f"{', '.join(parts[:-1])} or {parts[-1]}" if len(parts) > 1 else parts[0]


def _runs(good: list[bool]) -> list[list[float]]:
    """The first and last threshold of each unbroken run."""
    pairs = groupby(zip(THRESHOLDS, good, strict=True), lambda pair: pair[1])
    runs = [[pt for pt, _ in run] for holds, run in pairs if holds]
    return [[run[0], run[-1]] for run in runs]
