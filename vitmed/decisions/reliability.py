"""How far the probabilities can be believed, before calibration and after it.

Of two classes the probability of the finding is held against how often it is there; of more, the confidence in the
class that is taken against how often it is right, and each class against the rest.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from pydantic import Field

from vitmed.core.config import EvaluateConfig
from vitmed.core.frozen import Frozen
from vitmed.decisions.calibration import Calibration
from vitmed.metrics.bootstrap import Bootstrap, Z, ratio
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.positive_class import positive_index
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.scoring import known_labels

BINS = 15  # of equal numbers of images, as Nguyen & O'Connor (EMNLP 2015) and most papers since
PER_BIN = 10  # images that a bin has at least, where there are few
CLASSES = 30  # the commonest are judged one by one
NOTHING = Estimate(value=None, low=None, high=None, method="sandwich")
STEPS, FARTHEST = 50, 50.0  # of Newton's method; a slope beyond this is one without end


class Bin(Frozen):
    """A bin of the reliability diagram: `n` images with a probability between `start` and `end`.

    Attributes:
        said: the mean probability.
        seen: the share of the images for which it is true.
    """

    said: float
    seen: Estimate
    n: int
    start: float = Field(alias="from")
    end: float = Field(alias="to")


class ClassReliability(Frozen):
    """O:E, calibration in the large (intercept) and slope of one class against the rest; see `_against_the_rest`."""

    o_e: Estimate
    intercept: Estimate
    slope: Estimate


class Reliability(Frozen):
    """Every measure of calibration.

    Attributes:
        undefined: measure -> why it has no value.
        brier_skill: 1 - Brier score / that of always giving how common each class is.
        curve: the bins.
    """

    undefined: dict[str, str]
    log_loss: Estimate
    brier: Estimate
    brier_skill: Estimate
    ece: Estimate
    ece_classwise: Estimate
    curve: list[Bin]
    per_class: dict[str, ClassReliability]


class FittedCalibration(Frozen):
    """A calibration as a report names it: "none", "temperature", "vector", or "by fold" with neither scale nor bias."""

    method: str
    scale: list[float] | None
    bias: list[float] | None
    note: str


class CalibrationReport(FittedCalibration):
    """How far the probabilities can be believed.

    Attributes:
        about: what the probabilities are of.
        before: None where there was no calibration.
        folds: of pooled folds, the calibration of each.
    """

    about: str
    before: Reliability | None
    after: Reliability
    folds: list[FittedCalibration] | None = None


def report_calibration(
    predictions: Predictions, calibration: Calibration | None, config: EvaluateConfig
) -> CalibrationReport:
    """Every measure of calibration, with intervals.

    Args:
        predictions: calibrated, with labels.
        calibration: with which their logits were made; None where nobody knows.
    """
    known = calibration or Calibration.none(len(predictions.classes), "this model holds no calibration")
    positive = positive_index(predictions)
    what = "confidence in the likeliest class"
    about = what if positive is None else f"probability of {predictions.classes[positive]}"
    before = None
    if known.method != "none":
        before = _measures(replace(predictions, calibrated=None), config)
    after, fitted = _measures(predictions, config), known.model_dump(mode="json")
    return CalibrationReport(**fitted, about=about, before=before, after=after)


def _measures(predictions: Predictions, config: EvaluateConfig) -> Reliability:
    labels, chances = known_labels(predictions), predictions.probabilities
    size, classes = chances.shape
    boot, positive, rows = Bootstrap.of(predictions, config.resamples), positive_index(predictions), np.arange(size)
    tiny = np.finfo(np.float64).eps
    true = np.clip(chances[rows, labels], tiny, 1 - tiny)
    if positive is None:
        scores, events = chances.max(axis=1), chances.argmax(axis=1) == labels
        squares = (chances**2).sum(axis=1) - 2 * chances[rows, labels] + 1
    else:
        scores, events = chances[:, positive], labels == positive
        squares = (scores - events) ** 2
    counts = np.eye(classes)[labels] if classes <= CLASSES else np.zeros((size, 0))
    bins = bin_edges(scores, size)
    place = np.searchsorted(bins, scores, side="right")
    binned = np.eye(len(bins) + 1)[place]  # (S, B)
    b = binned.shape[1]
    columns = [np.ones(size), -np.log(true), squares]
    values = np.concatenate(
        [np.stack(columns, axis=1), binned, binned * events[:, None], binned * scores[:, None], counts], axis=1
    )
    whole, drawn = boot.sums(values)
    found: dict[str, Estimate] = {}
    undefined: dict[str, str] = {}

    seen = chances.argmax(axis=1) != labels  # errors: where there are none, no resample knows what one would cost

    def put(name: str, of: Any) -> None:
        found[name] = boot.estimate(float(of(whole)), of(drawn if seen.any() else drawn[:0]))

    def skill(sums: np.ndarray) -> np.ndarray:
        share = ratio(sums[..., 3 + 3 * b :], sums[..., :1])
        if positive is not None:
            share = share[..., [positive]]
            return 1 - ratio(ratio(sums[..., 2], sums[..., 0]), (share * (1 - share))[..., 0])
        return 1 - ratio(ratio(sums[..., 2], sums[..., 0]), 1 - (share**2).sum(axis=-1))

    def error(sums: np.ndarray) -> np.ndarray:
        true, said = sums[..., 3 + b : 3 + 2 * b], sums[..., 3 + 2 * b : 3 + 3 * b]
        return ratio(np.abs(true - said).sum(axis=-1), sums[..., 0])

    put("log_loss", lambda sums: ratio(sums[..., 1], sums[..., 0]))
    put("brier", lambda sums: ratio(sums[..., 2], sums[..., 0]))
    if classes <= CLASSES:
        put("brier_skill", skill)
    else:
        share = np.bincount(labels, minlength=classes) / max(size, 1)
        value = 1 - squares.mean() / (1 - (share**2).sum()) if len(np.unique(labels)) > 1 else float("nan")
        found["brier_skill"] = boot.estimate(float(value), np.empty(0))
    if found["brier_skill"].value is None:
        undefined["brier_skill"] = "all images are of one class" if size else "there are no images"
    put("ece", error)
    found["ece_classwise"] = _classwise(chances, labels, boot)
    if size < 2 * PER_BIN:
        found |= dict.fromkeys(("ece", "ece_classwise"), boot.estimate(float("nan"), np.empty(0)))
        few = f"it needs two bins of {PER_BIN} images, and there are {size} images"
        undefined |= {"ece": few, "ece_classwise": few}
    elif classes > 100:
        undefined["ece_classwise"] = "it is left out of more than 100 classes"
    curve = [
        Bin.model_validate(
            {
                "said": float(whole[3 + 2 * b + i] / whole[3 + i]),
                "seen": boot.proportion(events, place == i),
                "n": int(whole[3 + i]),
                "from": float(scores[place == i].min()),
                "to": float(scores[place == i].max()),
            }
        )
        for i in range(b)
        if whole[3 + i]
    ]
    commonest = np.argsort(-np.bincount(labels, minlength=classes), kind="stable")[:CLASSES]
    judged = [positive] if positive is not None else sorted(int(c) for c in commonest)
    told, why = _against_the_rest(predictions, judged, boot)
    undefined |= {f"slope of {name}": text for name, text in why.items()}
    return Reliability(undefined=undefined, **found, curve=curve, per_class=told)


def bin_edges(scores: np.ndarray, size: int) -> np.ndarray:
    """(B - 1,) inner edges of bins with about equally many images; equal scores stay together, so B may be below 15."""
    bins = int(np.clip(size // PER_BIN, 1, BINS))
    if bins == 1:
        return np.empty(0)
    ordered = np.sort(scores)
    edges = np.unique(ordered[np.arange(1, bins) * size // bins])
    return edges[edges > ordered[0]]


def _classwise(chances: np.ndarray, labels: np.ndarray, boot: Bootstrap) -> Estimate:
    """Mean over the classes of the calibration error of each class's probability (Kull et al., NeurIPS 2019).

    The interval is left out of more classes than 10, and the number of more than 100.
    """
    size, classes = chances.shape
    if not size or classes > 100:
        return boot.estimate(float("nan"), np.empty(0))
    gaps, starts = [np.ones((size, 1))], [1]
    errors = []
    for c in range(classes):
        place = np.searchsorted(bin_edges(chances[:, c], size), chances[:, c], side="right")
        gap = (labels == c) - chances[:, c]  # (S,)
        errors.append(float(np.abs(np.bincount(place, weights=gap)).sum()) / size)
        if classes <= 10:
            gaps.append(np.eye(int(place.max()) + 1)[place] * gap[:, None])
            starts.append(starts[-1] + gaps[-1].shape[1])
    drawn = boot.sums(np.concatenate(gaps, axis=1))[1] if classes <= 10 else np.empty((0, 1))
    parts = [np.abs(drawn[:, a:b]).sum(axis=1) for a, b in pairwise(starts)]
    return boot.estimate(float(np.mean(errors)), ratio(np.mean(parts, axis=0), drawn[:, 0]) if parts else np.empty(0))


def _against_the_rest(
    predictions: Predictions, judged: list[int], boot: Bootstrap
) -> tuple[dict[str, ClassReliability], dict[str, str]]:
    """O:E, calibration in the large (intercept) and slope of classes; and by class why a slope is undefined.

    Logistic recalibration (Cox, Biometrika 45 (1958) 562; Van Calster et al., BMC Medicine 17 (2019) 230): the truth on
    the log odds of the probability. The slope is 1 and the intercept, with the slope held at 1, is 0 where the
    probabilities are right. A slope below 1: they are too extreme. Intervals from the sandwich variance summed by unit
    (Liang & Zeger, Biometrika 73 (1986) 13).
    """
    labels, chances = known_labels(predictions), predictions.probabilities
    odds = log_odds(predictions.calibrated_logits)[:, judged]  # (S, J)
    events = labels[:, None] == np.array(judged)
    whole, drawn = boot.sums(np.concatenate([events, chances[:, judged]], axis=1))
    seen, said = np.split(whole, 2), np.split(drawn, 2, axis=1)
    told: dict[str, ClassReliability] = {}
    why: dict[str, str] = {}
    for j, c in enumerate(judged):
        name = predictions.classes[c]
        ratios = float(ratio(seen[0][j], seen[1][j])), ratio(said[0][:, j], said[1][:, j])
        if events[:, j].all() or not events[:, j].any():  # then it says nothing but how many images there are
            ratios = float("nan"), np.empty(0)
        intercept, slope, reason = _line(odds[:, j], events[:, j], boot)
        told[name] = ClassReliability(
            o_e=boot.estimate(*ratios), intercept=intercept or NOTHING, slope=slope or NOTHING
        )
        if reason:
            why[name] = reason
    return told, why


def log_odds(logits: np.ndarray) -> np.ndarray:
    """(S, K) log of p / (1 - p) of every class, exact also where p is all but 1."""
    z = logits.astype(np.float64)
    z = z - z.max(axis=1, keepdims=True) if z.size else z
    parts = np.exp(z)
    rows, top = np.arange(len(z)), z.argmax(axis=1) if z.size else np.empty(0, np.int64)
    beside = parts.copy()
    beside[rows, top] = 0
    rest = parts.sum(axis=1, keepdims=True) - parts  # of the others; for the likeliest summed anew, without its 1
    rest[rows, top] = beside.sum(axis=1)
    return z - np.log(np.maximum(rest, np.finfo(np.float64).tiny))


def _line(odds: np.ndarray, events: np.ndarray, boot: Bootstrap) -> tuple[Estimate | None, Estimate | None, str]:
    """Intercept and slope of the log odds (S,) against the truth (S,) bool; and why one is undefined."""
    if events.all() or not events.any():
        return None, None, "all images are of one class" if events.any() else "there is no image of the class"
    intercept = _recalibrate(np.ones((len(odds), 1)), odds, events, boot)
    spread = float(odds.std())
    if spread < 1e-9:
        return intercept, None, "the probability is the same for all images"
    if odds[events].min() >= odds[~events].max():
        return intercept, None, "the classes are told apart without an error, so the slope has no end"
    line = np.stack([(odds - odds.mean()) / spread, np.ones(len(odds))], axis=1)
    slope = _recalibrate(line, np.zeros(len(odds)), events, boot)
    if slope is None:
        return intercept, None, "the fit finds no end"
    value, low, high = (None if part is None else part / spread for part in (slope.value, slope.low, slope.high))
    return intercept, Estimate(value=value, low=low, high=high, method=slope.method), ""


def _recalibrate(x: np.ndarray, offset: np.ndarray, events: np.ndarray, boot: Bootstrap) -> Estimate | None:
    """The first coefficient of a logistic regression of events (S,) on x (S, F) with an offset, by Newton's method."""
    weights = np.zeros(x.shape[1])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-np.clip(offset + x @ weights, -700, 700)))
        score, curvature = x.T @ (events - p), (x * (p * (1 - p))[:, None]).T @ x
        try:
            step = np.linalg.solve(curvature, score)
        except np.linalg.LinAlgError:
            return None
        step *= min(1.0, 4 / max(float(np.abs(step).max()), 1e-300))  # far from the end Newton's step overshoots
        weights = weights + step
        if not np.isfinite(weights).all() or np.abs(weights).max() > FARTHEST:
            return None
        if np.abs(step).max() < 1e-10:
            break
    else:
        return None
    low, high = None, None
    if boot.size >= 2 and boot.resamples:
        scores = boot.per_unit(x * (events - p)[:, None])  # (G, F)
        bread = np.linalg.inv(curvature)
        variance = bread @ (scores.T @ scores) @ bread * boot.size / (boot.size - 1)
        half = Z * float(np.sqrt(max(variance[0, 0], 0)))
        low, high = float(weights[0]) - half, float(weights[0]) + half
    return Estimate(value=float(weights[0]), low=low, high=high, method="sandwich")
