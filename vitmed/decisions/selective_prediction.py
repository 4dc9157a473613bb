"""Selective prediction: the model abstains where it is unsure; the risk that is left, by the share answered."""

import math

import numpy as np

from vitmed.core.base_models import Frozen, Stored
from vitmed.core.config import EvaluateConfig
from vitmed.core.text import counted
from vitmed.metrics.bootstrap import Bootstrap, bootstrap_weights
from vitmed.metrics.estimates import Estimate, estimate
from vitmed.metrics.intervals import NONE, Spread, influence_spread, log_interval, ratio
from vitmed.metrics.predictions import Predictions, known_labels

DOUBT = 0.05  # chance that the bound on the risk does not hold
SHOWN = 30  # classes whose share of answered images the report shows
GRID = 101  # points of the curve
LEVELS = 20  # certainties that are tested as limits
FEW = 10  # patients with an error, below which they do not show how alike the errors of a patient are


class Abstention(Stored):
    """The `least` certainty with which the model answers, so that at most a share `max_risk` of the answers is wrong;
    if None, it never answers, and `why` gives the reason. Of validation, the share answered (`coverage`), its share of
    errors (`risk`), and the upper `bound` of that."""

    max_risk: float
    least: float | None
    why: str
    coverage: float | None = None
    risk: float | None = None
    bound: float | None = None


class RiskCoverage(Frozen):
    """The share of errors among the answered, `risk` with its interval, for each share answered, `coverage`."""

    coverage: list[float]
    risk: list[float | None]
    low: list[float | None]
    high: list[float | None]


class Answered(Frozen):
    """`n` answered images, their share in all and by class, and the risk of the answers."""

    n: int
    coverage: Estimate
    risk: Estimate
    per_class: dict[str, Estimate]


class SelectivePrediction(Frozen):
    """The risk-coverage curve, and what the chosen certainty reaches.

    `error_rate` is that with every image answered, `area` the mean risk over all shares answered, where images of equal
    certainty share their errors. `chosen` and `reached` are None without a limit of the risk, `reached` also where no
    image is answered.
    """

    error_rate: Estimate
    area: Estimate
    curve: RiskCoverage
    chosen: Abstention | None
    reached: Answered | None


def certainty(predictions: Predictions) -> np.ndarray:
    """(S,) float64 in 0..1: the probability of the predicted class; with a threshold, the distance from it in log odds,
    written as a probability."""
    if predictions.threshold is None or predictions.positive is None:
        return predictions.confidence
    c = predictions.classes.index(predictions.positive)
    z = predictions.calibrated_logits
    t = min(max(predictions.threshold, 1e-12), 1 - 1e-12)
    return 1 / (1 + np.exp(-np.abs(z[:, c] - z[:, 1 - c] - math.log(t / (1 - t)))))


def choose_abstention(validation: Predictions, max_risk: float | None) -> Abstention | None:
    """The certainty from which the model answers and keeps its share of errors below `max_risk`; None without a limit.

    Selection with guaranteed risk (Geifman & El-Yaniv, NeurIPS 2017): at most `LEVELS` certainties, which answer equal
    steps of the validation images, are tested at 0.05 / `LEVELS` each by the upper end of an exact binomial interval,
    and the lowest that passes is taken. Images of one patient are no independent trials, so their number is divided by
    the design effect of the errors (Korn & Graubard, Survey Methodology 24 (1998) 193), of the answered or of all
    images, whichever is larger. `validation` is calibrated and decided.
    """
    if max_risk is None:
        return None
    labels, sure = known_labels(validation), certainty(validation)
    if not len(sure):
        return Abstention(max_risk=max_risk, least=None, why="there are no validation images")
    wrong, order = ~validation.right, np.argsort(-sure, kind="stable")
    distinct = np.unique(sure)[::-1]  # (T,), from high to low
    answered = np.searchsorted(-sure[order], -distinct, side="right")  # (T,) images at and above each
    levels = np.unique(np.searchsorted(answered, np.arange(1, LEVELS + 1) * len(sure) // LEVELS))
    of_all = design_effect(wrong, validation.units)
    for level in levels[::-1]:  # from all images on
        rows = order[: answered[level]]
        errors, effect = wrong[rows], max(of_all, design_effect(wrong[rows], validation.units[rows]))
        bound = upper_bound(errors, effect, DOUBT / LEVELS)
        if bound <= max_risk:
            least, coverage, risk = float(distinct[level]), len(errors) / len(labels), float(errors.mean())
            return Abstention(max_risk=max_risk, least=least, why="", coverage=coverage, risk=risk, bound=bound)
    images = counted(len(labels), "image")
    why = f"no certainty keeps the share of errors below {max_risk:g} with confidence on {images}"
    return Abstention(max_risk=max_risk, least=None, why=why)


def design_effect(wrong: np.ndarray, units: np.ndarray) -> float:
    """Variance of the share of errors over patients / binomial variance (Kish, Survey Sampling, 1965, section 8.2), at
    least 1. Without an error it is unknown; then each patient counts as one trial, and the fewer of `FEW` patients have
    an error, the nearer to that it stays. Errors and patients are (S,)."""
    size, share = len(wrong), float(wrong.mean())
    names, place = np.unique(units, return_inverse=True)
    if share in (0, 1) or len(names) < 2:
        return size / len(names)
    gaps = np.bincount(place, weights=wrong - share)  # (G,) residuals summed by patient
    variance = float(gaps @ gaps) / size**2 * len(names) / (len(names) - 1)
    shown = max(1.0, variance / (share * (1 - share) / size))
    known = min(1.0, len(np.unique(units[wrong])) / FEW)
    return max(shown, known * shown + (1 - known) * size / len(names))


def upper_bound(wrong: np.ndarray, effect: float, doubt: float) -> float:
    """Upper end of an exact one-sided interval for the share of errors (S,) bool, at confidence 1 - doubt."""
    from scipy.stats import beta

    trials, errors = len(wrong) / effect, wrong.sum() / effect
    return 1.0 if errors >= trials else float(beta.ppf(1 - doubt, errors + 1, trials - errors))


def report_abstention(
    predictions: Predictions, chosen: Abstention | None, config: EvaluateConfig
) -> SelectivePrediction:
    """The risk-coverage curve with its area (El-Yaniv & Wiener, J. Mach. Learn. Res. 11 (2010) 1605), and what the
    chosen certainty reaches."""
    labels, sure = known_labels(predictions), certainty(predictions)
    wrong, boot = ~predictions.right, Bootstrap.of(predictions, config.resamples)
    reached, (area, curve) = None, _curve(sure, wrong, boot)
    if chosen is not None and chosen.least is not None and (answered := sure >= chosen.least).any():
        coverage, risk = boot.proportion(answered), boot.proportion(wrong, answered)
        per_class = {name: boot.proportion(answered, labels == c) for c, name in enumerate(predictions.classes[:SHOWN])}
        reached = Answered(n=int(answered.sum()), coverage=coverage, risk=risk, per_class=per_class)
    rate = boot.proportion(wrong)
    return SelectivePrediction(error_rate=rate, area=area, curve=curve, chosen=chosen, reached=reached)


def _curve(sure: np.ndarray, wrong: np.ndarray, boot: Bootstrap) -> tuple[Estimate, RiskCoverage]:
    """The area, and the curve at `GRID` shares of the images, from the most certain on.

    Images of equal certainty share their errors evenly, because they have no order. The interval of the area is on the
    scale of its logarithm. It has at most as many degrees of freedom as images, or patients, with an error: the others
    hardly change the area.
    """
    if not len(sure):
        return estimate(float("nan"), *NONE, "influence"), RiskCoverage(coverage=[], risk=[], low=[], high=[])
    order = np.argsort(-sure, kind="stable")
    _, tie, count = np.unique(-sure, return_inverse=True, return_counts=True)
    errors = (np.bincount(tie, weights=wrong) / count)[tie[order]]  # (S,) in that order
    shares = np.linspace(0, 1, GRID)[1:]
    place = np.clip(np.ceil(shares * len(sure) - 1e-9).astype(int) - 1, 0, len(sure) - 1)
    risks = np.cumsum(errors) / np.arange(1, len(sure) + 1)
    resampled = [np.empty((0, len(shares)))]
    if boot.units.count >= 2 and boot.resamples:
        for weights in bootstrap_weights(boot.units.index, boot.resamples, seed=0):
            w = weights.take(order, axis=1)  # (r, S)
            answered = np.cumsum(w, axis=1)
            risk = ratio(np.cumsum(w * errors, axis=1), answered)  # NaN before the first image that was drawn
            ends = [np.searchsorted(row, shares * row[-1] - 1e-9) for row in answered]  # where so many are answered
            resampled.append(np.take_along_axis(risk, np.minimum(ends, len(sure) - 1), axis=1))
    drawn = np.concatenate(resampled)
    points = [boot.estimate(float(risks[i]), drawn[:, j]) for j, i in enumerate(place)]
    ends_of = {name: [point[name] for point in points] for name in ("low", "high")}
    curve = RiskCoverage(coverage=shares.tolist(), risk=risks[place].tolist(), **ends_of)
    influence, with_error = np.empty(len(sure)), len(np.unique(boot.units.index[wrong]))
    influence[order] = area_influence(errors, risks, wrong[order], tie[order])
    limits, value, of_area = NONE, float(risks.mean()), influence_spread(influence, boot.units)
    if with_error >= 2:
        limits = log_interval(value, Spread(of_area.variance, min(of_area.degrees, with_error - 1)), most=1.0)
    return estimate(value, *limits, "influence"), curve


def area_influence(errors: np.ndarray, risks: np.ndarray, wrong: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """The derivative (S,) of the area by the weight of each image, from its error, the risk with all up to it answered,
    whether it is wrong, and the number of its certainty (images of one number share their errors). All are (S,) in the
    order of certainty."""
    n = len(errors)
    per_place = 1 / np.arange(1, n + 1)
    later = [values[::-1].cumsum()[::-1] for values in (per_place, risks * per_place)]
    shared = (np.bincount(tie, weights=later[0]) / np.maximum(np.bincount(tie), 1))[tie]
    return (risks - risks.mean() + errors * later[0] + (wrong - errors) * shared - later[1]) / n
