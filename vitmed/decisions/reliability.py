"""Measures of calibration, before and after the fitted calibration.

With two classes, the probability of the positive class is compared with how often the class is there. With more, the
confidence in the predicted class is compared with how often it is right, and each class with the rest.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from vitmed.core.base_models import Frozen
from vitmed.core.config import EvaluateConfig
from vitmed.core.text import counted_doing
from vitmed.decisions.calibration import Calibration, CalibrationResult, Trial
from vitmed.metrics.bootstrap import Bootstrap, percentile_interval
from vitmed.metrics.estimates import FEWEST, Estimate, of_mean
from vitmed.metrics.intervals import Units, correlation, quantile
from vitmed.metrics.kinds.classes import PreparedPredictions, image_losses
from vitmed.metrics.predictions import Predictions, known_labels, positive_index

BINS = 15  # of equal numbers of images (Nguyen & O'Connor, EMNLP 2015); those of Guo et al. have equal widths
PER_BIN = 10  # images that a bin has at least, where there are few
CLASSES = 30  # the commonest are measured one by one
NOTHING = Estimate(value=None, low=None, high=None, method="sandwich")
NO_ENDS: dict[str, Any] = {"low": None, "high": None}
WORK = 2**24  # draws x images
LEAST_DRAWS = 40
STEPS, FARTHEST = 50, 50.0  # of Newton's method; a slope beyond this counts as infinite
SURE = 36.0  # log odds of a probability that is 0 or 1, as in the log loss


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


class IfRight(Frozen):
    """What a calibration error would be if every probability were right: the mean, and the middle 95 %, low to high.

    Of labels drawn from the probabilities; not a confidence interval of the error.
    """

    mean: float
    low: float
    high: float


class Reliability(Frozen):
    """Every measure of calibration; `undefined` gives the reasons for those without a value.

    A calibration error is never below 0, so it is too large on average and no resample says by how much: it has no
    interval, and beside it stands what right probabilities would give (`IfRight`; None where it is not known).

    `brier_skill` is 1 - Brier score / Brier score of always predicting how common each class is.
    """

    undefined: dict[str, str]
    log_loss: Estimate
    brier: Estimate
    brier_skill: Estimate
    ece: Estimate
    ece_if_right: IfRight | None = None
    curve: list[Bin]
    per_class: dict[str, ClassReliability]


class CalibrationReport(Frozen):
    """The fitted `Calibration`, and every measure before and after it; `about` is the probability that is measured.

    The method may also be "by fold", with neither scale nor bias, and the calibration of each of pooled `folds`. The
    `change` is after minus before, of the same images, for `log_loss` and `brier`; none without a calibration.
    """

    method: str
    scale: list[float] | None
    bias: list[float] | None
    note: str
    trials: tuple[Trial, ...] = ()
    about: str
    before: Reliability | None  # None without a calibration
    after: Reliability
    change: dict[str, Estimate] = {}
    folds: list[CalibrationResult] | None = None


def report_calibration(
    predictions: Predictions, calibration: Calibration | None, config: EvaluateConfig
) -> CalibrationReport:
    """Every measure of calibration, with intervals, and the calibration of these predictions; None: not known."""
    fitted = calibration or Calibration.none(len(predictions.classes), "no calibration is known for these predictions")
    positive, before, change = positive_index(predictions), None, dict[str, Estimate]()
    if fitted.method != "none":
        raw = replace(predictions, calibrated=None)
        before = _measures(raw, config)
        gaps = zip(("log_loss", "brier"), image_losses(predictions), image_losses(raw), strict=True)
        change = {name: of_mean(now - former, Units(predictions.units)) for name, now, former in gaps}
        if (predictions.probabilities.argmax(axis=1) == known_labels(predictions)).all():  # an error's cost is unseen
            change = {name: difference.model_copy(update=NO_ENDS) for name, difference in change.items()}
    about = (
        "confidence in the likeliest class" if positive is None else f"probability of {predictions.classes[positive]}"
    )
    after = _measures(predictions, config)
    measured: dict[str, Any] = {"before": before, "after": after, "change": change}
    return CalibrationReport(**dict(fitted), about=about, **measured)


def _measures(predictions: Predictions, config: EvaluateConfig) -> Reliability:
    labels, chances = known_labels(predictions), predictions.probabilities
    (size, classes), positive = chances.shape, positive_index(predictions)
    boot = Bootstrap.of(predictions, config.resamples)
    if positive is None:
        scores, events = chances.max(axis=1), chances.argmax(axis=1) == labels
        shown = sorted(np.argsort(-np.bincount(labels, minlength=classes), kind="stable")[:CLASSES].tolist())
    else:
        scores, events, shown = chances[:, positive], labels == positive, [positive]
    scores = scores.round(6)  # 1e-14 and 1e-13 are one probability: they stay in one bin, apart from 1
    prepared = PreparedPredictions(predictions)
    undefined, numbers = dict[str, str](), dict[str, Any](prepared.mean_losses, brier_skill=_brier_skill(prepared))
    if numbers["brier_skill"].value is None:
        undefined["brier_skill"] = "all images are of one class" if size else "there are no images"
    if size < 2 * PER_BIN:
        seen = counted_doing(size, "image", "is evaluated", "are evaluated")
        undefined["ece"] = f"it needs two bins of {PER_BIN} images, and only {seen}"
        numbers["ece"] = Estimate(value=None, low=None, high=None)
    else:
        numbers |= _calibration_error(scores, events, boot)
    place, curve = np.searchsorted(bin_edges(scores), scores, side="right"), []
    for inside in (place == i for i in np.unique(place)):
        said, ends = scores[inside], {"from": float(scores[inside].min()), "to": float(scores[inside].max())}
        curve.append(Bin(said=float(said.mean()), seen=boot.proportion(events, inside), n=len(said), **ends))
    per_class, why = _against_the_rest(predictions, shown, boot)
    return Reliability(undefined=undefined | why, **numbers, curve=curve, per_class=per_class)


def _brier_skill(prepared: PreparedPredictions) -> Estimate:
    """1 - R, where R is the Brier score over that of always predicting how common each class is."""
    common, squares = prepared.support / max(1, len(prepared.labels)), image_losses(prepared.predictions)[1]
    alike, counted = float(common @ common), 1 if prepared.positive is None else 2  # of two classes one is counted
    constant = (1 - alike) / counted
    if len(np.flatnonzero(common)) < 2:
        return Estimate(value=None, low=None, high=None, method="influence")
    value = float(squares.mean()) / constant
    moved = 2 * value * (common[prepared.labels] - alike) / counted  # by the image's share in `constant`
    rest = prepared.mean_loss(value, (squares + moved) / constant)
    low, high = (None if end is None else 1 - end for end in (rest.high, rest.low))
    return rest.model_copy(update={"value": 1 - value, "low": low, "high": high})


def bin_edges(scores: np.ndarray) -> np.ndarray:
    """(B - 1,) inner edges of bins with about equally many images; equal scores stay together, so B may be below 15."""
    size = len(scores)
    bins = int(np.clip(size // PER_BIN, 1, BINS))
    ordered = np.sort(scores)
    edges = np.unique(ordered[np.arange(1, bins) * size // bins])
    return edges[edges > ordered[:1]]


def _calibration_error(scores: np.ndarray, events: np.ndarray, boot: Bootstrap) -> dict[str, Any]:
    """The expected calibration error of a probability (S,), from whether it comes true, (S,) bool: the mean over the
    images of |seen - said| of their bin. Bins hold about equally many images, not equal widths (Guo et al., ICML 2017).

    And what it would be if the probabilities were right, by consistency resampling: Broecker & Smith, Weather and
    Forecasting 22 (2007) 651. Events are drawn by a normal copula, whose correlation gives a probability of one half
    the intraclass correlation of `events - scores` within a unit.
    """
    from scipy.special import ndtr  # imported here: predict starts without it

    units, place, size, alike = boot.units, np.searchsorted(bin_edges(scores), scores, side="right"), len(scores), 0.0
    if units.clustered and units.count > 1:
        gap = events - scores
        icc = correlation(units.sums(np.ones(size)), units.sums(gap), units.sums(gap**2))
        alike = float(np.sin(np.pi / 2 * np.clip(np.nan_to_num(icc), 0, 1)))

    def error(of: np.ndarray) -> float:
        return float(np.abs(np.bincount(place, of - scores)).sum()) / size

    rng, redrawn = np.random.default_rng(0), list[float]()
    for _ in range(min(boot.resamples, max(LEAST_DRAWS, WORK // size))):
        of_units, of_images = rng.normal(size=units.count)[units.index], rng.normal(size=size)
        redrawn.append(error(ndtr(alike**0.5 * of_units + (1 - alike) ** 0.5 * of_images) < scores))
    numbers: dict[str, Any] = {"ece": Estimate(value=error(events), low=None, high=None)}
    if redrawn:
        low, high = percentile_interval(np.array(redrawn))
        numbers["ece_if_right"] = IfRight(mean=float(np.mean(redrawn)), low=low, high=high)
    return numbers


def _against_the_rest(
    predictions: Predictions, shown: list[int], boot: Bootstrap
) -> tuple[dict[str, ClassReliability], dict[str, str]]:
    """O:E, calibration in the large (intercept) and slope of each class; and why one is undefined, "slope of ill".

    Logistic recalibration (Cox, Biometrika 45 (1958) 562; Van Calster et al., BMC Medicine 17 (2019) 230): the truth on
    the log odds of the probability. The slope is 1 and the intercept, with the slope held at 1, is 0 where the
    probabilities are right. A slope below 1: they are too extreme. Intervals from the sandwich variance summed by unit
    (Liang & Zeger, Biometrika 73 (1986) 13), corrected for the leverage of each unit (Mancl & DeRouen, Biometrics 57
    (2001) 126), and Student's t with Satterthwaite's degrees of freedom.
    """
    chances = predictions.probabilities[:, shown]  # (S, J)
    odds = np.clip(class_log_odds(predictions.calibrated_logits)[:, shown], -SURE, SURE)
    events = known_labels(predictions)[:, None] == np.array(shown)
    ratios = boot.ratios(events, chances)
    per_class, why = dict[str, ClassReliability](), dict[str, str]()
    for j, c in enumerate(shown):
        name, of_class = predictions.classes[c], events[:, j]
        # of all or no images, O:E depends on their number alone
        o_e = ratios[j] if 0 < of_class.sum() < len(of_class) else boot.estimate(float("nan"), np.empty(0))
        intercept, slope, reason = _line(odds[:, j], of_class, boot)
        numbers = {"o_e": o_e, "intercept": intercept, "slope": slope}
        if boot.units.fewer(of_class) < FEWEST:
            numbers = {key: number.model_copy(update=NO_ENDS) for key, number in numbers.items()}
        per_class[name] = ClassReliability(**numbers)
        why |= {f"{key} of {name}": reason for key, number in numbers.items() if reason and number.value is None}
    return per_class, why


def class_log_odds(logits: np.ndarray) -> np.ndarray:
    """(S, K) log of p / (1 - p) of every class, exact also where p is almost 1."""
    z = logits.astype(np.float64)
    z = z - z.max(axis=1, keepdims=True)
    parts, likeliest = np.exp(z), np.eye(z.shape[1], dtype=bool)[z.argmax(axis=1)]
    rest = parts.sum(axis=1, keepdims=True) - parts  # of the others; for the likeliest class summed without it
    rest[likeliest] = np.where(likeliest, 0, parts).sum(axis=1)
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
    ends = {name: getattr(slope, name) for name in ("value", "low", "high")}
    slope = slope.model_copy(update={name: None if end is None else end / spread for name, end in ends.items()})
    return intercept, slope, "" if slope.value is not None else "the fit does not converge"


def _recalibrate(x: np.ndarray, offset: np.ndarray, events: np.ndarray, boot: Bootstrap) -> Estimate:
    """The first coefficient of a logistic regression of events (S,) on x (S, F) with an offset, by Newton's method;
    `NOTHING` where it does not converge."""
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
    if boot.units.count >= 2:
        bread, scores = np.linalg.inv(curvature), boot.units.sums(x * (events - p)[:, None])  # (F, F), (G, F)
        curves = boot.units.sums((x[:, :, None] * x[:, None] * (p * (1 - p))[:, None, None]).reshape(len(x), -1))
        rest = np.eye(len(bread)) - curves.reshape(-1, *bread.shape) @ bread  # (G, F, F)
        try:
            pulls = np.linalg.solve(rest, scores[:, :, None])[:, :, 0] @ bread[0]  # (G,)
        except np.linalg.LinAlgError:  # one patient alone decides
            return NOTHING.model_copy(update={"value": value})
        degrees = boot.units.degrees((x * (events - p)[:, None]) @ bread[0])
        if x.shape[1] > 1:  # a slope rests on the patients of the rarer class
            degrees = min(degrees, max(1, boot.units.fewer(events) - 1))
        half = quantile(degrees) * float(np.sqrt((pulls**2).sum()))
        low, high = value - half, value + half
    return Estimate(value=value, low=low, high=high, method="sandwich")
