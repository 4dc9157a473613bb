"""Measures of calibration, before and after the fitted calibration.

With two classes, the probability of the positive class is compared with how often the class is there. With more, the
confidence in the predicted class is compared with how often it is right, and each class with the rest.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from pydantic import Field

from vitmed.core.base_models import Frozen
from vitmed.core.config import EvaluateConfig
from vitmed.core.text import counted_doing
from vitmed.decisions.calibration import Calibration, CalibrationResult
from vitmed.metrics.bootstrap import Bootstrap, Z
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.predictions import Predictions, known_labels, positive_index
from vitmed.metrics.ranking import ratio

BINS = 15  # of equal numbers of images, as Nguyen & O'Connor (EMNLP 2015) and most papers since
PER_BIN = 10  # images that a bin has at least, where there are few
CLASSES = 30  # the commonest are measured one by one
NOTHING = Estimate(value=None, low=None, high=None, method="sandwich")
STEPS, FARTHEST = 50, 50.0  # of Newton's method; a slope beyond this counts as infinite


class Bin(Frozen):
    """A bin: `n` images with a probability between `start` and `end`, `said` on average, and how often it is true."""

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
    """Every measure of calibration; `undefined` gives the reasons for those without a value.

    `brier_skill` is 1 - Brier score / Brier score of always predicting how common each class is.
    """

    undefined: dict[str, str]
    log_loss: Estimate
    brier: Estimate
    brier_skill: Estimate
    ece: Estimate
    ece_classwise: Estimate
    curve: list[Bin]
    per_class: dict[str, ClassReliability]


class CalibrationReport(Frozen):
    """The fitted calibration, and every measure before and after it.

    Attributes:
        method: as in `Calibration`; or "by fold", with neither scale nor bias.
        about: which probability is measured.
        before: None without a calibration.
        folds: of pooled folds, the calibration of each.
    """

    method: str
    scale: list[float] | None
    bias: list[float] | None
    note: str
    about: str
    before: Reliability | None
    after: Reliability
    folds: list[CalibrationResult] | None = None


def report_calibration(
    predictions: Predictions, calibration: Calibration | None, config: EvaluateConfig
) -> CalibrationReport:
    """Every measure of calibration, with intervals.

    Args:
        predictions: calibrated, with labels.
        calibration: of these predictions; None where it is not known.
    """
    known = calibration or Calibration.none(len(predictions.classes), "this model holds no calibration")
    positive = positive_index(predictions)
    likeliest = "confidence in the likeliest class"
    about = likeliest if positive is None else f"probability of {predictions.classes[positive]}"
    before = None if known.method == "none" else _measures(replace(predictions, calibrated=None), config)
    after = _measures(predictions, config)
    return CalibrationReport(**dict(known), about=about, before=before, after=after)


def _measures(predictions: Predictions, config: EvaluateConfig) -> Reliability:
    labels, chances = known_labels(predictions), predictions.probabilities
    (size, classes), positive = chances.shape, positive_index(predictions)
    boot = Bootstrap.of(predictions, config.resamples)
    if positive is None:
        scores, events = chances.max(axis=1), chances.argmax(axis=1) == labels
        shown = sorted(np.argsort(-np.bincount(labels, minlength=classes), kind="stable")[:CLASSES].tolist())
    else:
        scores, events, shown = chances[:, positive], labels == positive, [positive]
    found, curve = _overall(predictions, scores, events, boot)
    found["ece_classwise"] = _classwise(chances, labels, boot)
    per_class, why = _against_the_rest(predictions, shown, boot)
    undefined: dict[str, str] = {}
    if found["brier_skill"].value is None:
        undefined["brier_skill"] = "all images are of one class" if size else "there are no images"
    if size < 2 * PER_BIN:
        seen = counted_doing(size, "image", "is evaluated", "are evaluated")
        few = f"it needs two bins of {PER_BIN} images, and only {seen}"
        for name in ("ece", "ece_classwise"):
            found[name], undefined[name] = boot.estimate(float("nan"), np.empty(0)), few
    elif classes > 100:
        undefined["ece_classwise"] = "it is left out of more than 100 classes"
    undefined |= {f"slope of {name}": text for name, text in why.items()}
    return Reliability(undefined=undefined, **found, curve=curve, per_class=per_class)


class Sums(NamedTuple):
    """Sums over all images, (F,), or of each resample, (R, F); B bins and K classes."""

    n: np.ndarray  # images
    nats: np.ndarray  # log loss
    squares: np.ndarray  # Brier score
    binned: np.ndarray  # B, images of each bin
    seen: np.ndarray  # B, events of each bin
    said: np.ndarray  # B, probabilities of each bin
    counts: np.ndarray  # K, images of each class

    def log_loss(self) -> np.ndarray:
        return ratio(self.nats, self.n)[..., 0]

    def brier(self) -> np.ndarray:
        return ratio(self.squares, self.n)[..., 0]

    def ece(self) -> np.ndarray:
        return ratio(np.abs(self.seen - self.said).sum(axis=-1), self.n[..., 0])

    def brier_skill(self, positive: int | None) -> np.ndarray:
        share = ratio(self.counts, self.n)
        constant = 1 - (share**2).sum(axis=-1) if positive is None else (share * (1 - share))[..., positive]
        return 1 - ratio(self.brier(), constant)


def _overall(
    predictions: Predictions, scores: np.ndarray, events: np.ndarray, boot: Bootstrap
) -> tuple[dict[str, Estimate], list[Bin]]:
    """Log loss, Brier score and skill, calibration error; and the bins of the reliability diagram.

    Args:
        scores: (S,) the probability that is measured; events: (S,) bool, whether it comes true.
    """
    labels, chances, positive = known_labels(predictions), predictions.probabilities, positive_index(predictions)
    size, classes = chances.shape
    edges = bin_edges(scores, size)
    binned = np.eye(len(edges) + 1)[np.searchsorted(edges, scores, side="right")]  # (S, B)
    true, tiny = chances[np.arange(size), labels], np.finfo(np.float64).eps
    nats = -np.log(np.clip(true, tiny, 1 - tiny))
    squares = (scores - events) ** 2 if positive is not None else (chances**2).sum(axis=1) - 2 * true + 1
    counts = np.eye(classes)[labels] if classes <= CLASSES else np.zeros((size, 0))
    seen, said = binned * events[:, None], binned * scores[:, None]
    parts = Sums(np.ones((size, 1)), nats[:, None], squares[:, None], binned, seen, said, counts)
    ends = np.cumsum([part.shape[1] for part in parts])[:-1]
    whole, drawn = (Sums(*np.split(sums, ends, axis=-1)) for sums in boot.sums(np.concatenate(parts, axis=1)))
    if not (chances.argmax(axis=1) != labels).any():  # without an error, no resample knows what one would cost
        drawn = Sums(*(sums[:0] for sums in drawn))
    measures = {"log_loss": Sums.log_loss, "brier": Sums.brier, "ece": Sums.ece}
    found = {name: boot.estimate(float(of(whole)), of(drawn)) for name, of in measures.items()}
    if classes <= CLASSES:
        found["brier_skill"] = boot.estimate(float(whole.brier_skill(positive)), drawn.brier_skill(positive))
    else:
        share = np.bincount(labels, minlength=classes) / max(size, 1)
        skill = 1 - squares.mean() / (1 - (share**2).sum()) if (share > 0).sum() > 1 else float("nan")
        found["brier_skill"] = boot.estimate(float(skill), np.empty(0))
    curve = []
    for i in np.flatnonzero(whole.binned):
        inside, mean = binned[:, i] > 0, float(whole.said[i] / whole.binned[i])
        ends_of = {"from": float(scores[inside].min()), "to": float(scores[inside].max())}
        curve.append(Bin(said=mean, seen=boot.proportion(events, inside), n=int(whole.binned[i]), **ends_of))
    return found, curve


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
    gaps, starts, errors = [np.ones((size, 1))], [1], []
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
    predictions: Predictions, shown: list[int], boot: Bootstrap
) -> tuple[dict[str, ClassReliability], dict[str, str]]:
    """O:E, calibration in the large (intercept) and slope of each class; and class -> why its slope is undefined.

    Logistic recalibration (Cox, Biometrika 45 (1958) 562; Van Calster et al., BMC Medicine 17 (2019) 230): the truth on
    the log odds of the probability. The slope is 1 and the intercept, with the slope held at 1, is 0 where the
    probabilities are right. A slope below 1: they are too extreme. Intervals from the sandwich variance summed by unit
    (Liang & Zeger, Biometrika 73 (1986) 13).
    """
    labels, chances = known_labels(predictions), predictions.probabilities[:, shown]
    odds = log_odds(predictions.calibrated_logits)[:, shown]  # (S, J)
    events = labels[:, None] == np.array(shown)
    whole, drawn = (np.split(sums, 2, axis=-1) for sums in boot.sums(np.concatenate([events, chances], axis=1)))
    found: dict[str, ClassReliability] = {}
    why: dict[str, str] = {}
    for j, c in enumerate(shown):
        o_e = float(ratio(whole[0][j], whole[1][j])), ratio(drawn[0][:, j], drawn[1][:, j])
        if events[:, j].all() or not events[:, j].any():  # then O:E depends on the number of images alone
            o_e = float("nan"), np.empty(0)
        intercept, slope, reason = _line(odds[:, j], events[:, j], boot)
        name = predictions.classes[c]
        found[name] = ClassReliability(o_e=boot.estimate(*o_e), intercept=intercept, slope=slope)
        why |= {name: reason} if reason else {}
    return found, why


def log_odds(logits: np.ndarray) -> np.ndarray:
    """(S, K) log of p / (1 - p) of every class, exact also where p is almost 1."""
    z = logits.astype(np.float64)
    z = z - z.max(axis=1, keepdims=True) if z.size else z
    parts = np.exp(z)
    rows, top = np.arange(len(z)), z.argmax(axis=1) if z.size else np.empty(0, np.int64)
    beside = parts.copy()
    beside[rows, top] = 0
    rest = parts.sum(axis=1, keepdims=True) - parts  # of the others; for the likeliest class summed without it
    rest[rows, top] = beside.sum(axis=1)
    return z - np.log(np.maximum(rest, np.finfo(np.float64).tiny))


def _line(odds: np.ndarray, events: np.ndarray, boot: Bootstrap) -> tuple[Estimate, Estimate, str]:
    """Intercept and slope of the log odds (S,) against the truth (S,) bool; and why one is undefined."""
    if events.all() or not events.any():
        return NOTHING, NOTHING, "all images are of one class" if events.any() else "there is no image of the class"
    intercept = _recalibrate(np.ones((len(odds), 1)), odds, events, boot)
    spread = float(odds.std())
    if spread < 1e-9:
        return intercept, NOTHING, "the probability is the same for all images"
    if odds[events].min() >= odds[~events].max():
        return intercept, NOTHING, "the classes are separated without an error, so the slope is infinite"
    line = np.stack([(odds - odds.mean()) / spread, np.ones(len(odds))], axis=1)
    slope = _recalibrate(line, np.zeros(len(odds)), events, boot)
    if slope.value is None:
        return intercept, slope, "the fit does not converge"
    value, low, high = (None if part is None else part / spread for part in (slope.value, slope.low, slope.high))
    return intercept, Estimate(value=value, low=low, high=high, method=slope.method), ""


def _recalibrate(x: np.ndarray, offset: np.ndarray, events: np.ndarray, boot: Bootstrap) -> Estimate:
    """The first coefficient of a logistic regression of events (S,) on x (S, F) with an offset, by Newton's method;
    `NOTHING` where it does not converge.
    """
    weights = np.zeros(x.shape[1])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-np.clip(offset + x @ weights, -700, 700)))
        score, curvature = x.T @ (events - p), (x * (p * (1 - p))[:, None]).T @ x
        try:
            step = np.linalg.solve(curvature, score)
        except np.linalg.LinAlgError:
            return NOTHING
        step *= min(1.0, 4 / max(float(np.abs(step).max()), 1e-300))  # far from the end Newton's step overshoots
        weights = weights + step
        if not np.isfinite(weights).all() or np.abs(weights).max() > FARTHEST:
            return NOTHING
        if np.abs(step).max() < 1e-10:
            break
    else:
        return NOTHING
    low, high, value = None, None, float(weights[0])
    if boot.units.count >= 2 and boot.resamples:
        scores = boot.per_unit(x * (events - p)[:, None])  # (G, F)
        bread = np.linalg.inv(curvature)
        variance = bread @ (scores.T @ scores) @ bread * boot.units.count / (boot.units.count - 1)
        half = Z * float(np.sqrt(max(variance[0, 0], 0)))
        low, high = value - half, value + half
    return Estimate(value=value, low=low, high=high, method="sandwich")
