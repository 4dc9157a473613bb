"""Classes, of which an image has one: every number of a set of predictions with its interval, and two models compared.

Each number has the formula whose measured coverage is nearest to its level (benchmarks/coverage.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from vitmed.metrics.areas import Area, class_areas
from vitmed.metrics.bootstrap import bootstrap_weights, percentile_interval, widened_level
from vitmed.metrics.estimates import (
    FEWEST,
    ClassNumbers,
    Estimate,
    Numbers,
    check_finite,
    estimate,
    notes,
    numbers_of,
    of_auroc,
    of_f1,
    of_share,
    sample_size,
    undefined,
    without_interval,
)
from vitmed.metrics.intervals import (
    LIKENESS,
    NONE,
    Part,
    Share,
    Units,
    assumed_effect,
    class_masks,
    class_shares,
    influence_spread,
    log_interval,
    logit_interval,
    mean_interval,
    quantile,
    share,
    spread,
    wilson,
    within,
)
from vitmed.metrics.metric_table import METRICS
from vitmed.metrics.paired_comparison import (
    ClassDifference,
    ComparisonTest,
    PairedComparison,
    area_gap,
    check_alike,
    class_difference,
    gap_estimate,
    right_difference,
    same_answers,
    share_difference,
)
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.scoring import Scorer

AREAS = ("auroc", "auroc_weighted", "average_precision", "average_precision_weighted")
LOSSES = ("log_loss", "brier")  # in the order of `Scorer.losses`
MANY_CLASSES = 50


def evaluate_predictions(predictions: Predictions, resamples: int = 2000) -> Numbers:
    """Every number with its interval; the units are patients where they are known.

    `resamples` is only recorded: those of the rest of a report. The intervals of these numbers need none.

    Raises:
        DataError: the predictions have no labels, or a score that is no finite number.
    """
    return PreparedPredictions(predictions).numbers(resamples)


class PreparedPredictions:
    """One set of predictions, with everything about its intervals that does not depend on resamples."""

    def __init__(self, predictions: Predictions):
        labels = known_labels(predictions)
        check_finite(predictions.logits)
        self.predictions, self.labels, self.units = predictions, labels, Units.of(predictions)
        self.scorer = scorer = Scorer(labels, predictions)
        self.point = {name: float(v[0]) for name, v in scorer.counted(np.ones((1, len(labels))))[0].items()}
        self.classes = range(scorer.size)
        self.holders = [self._held(labels == c) for c in self.classes]
        self.shares = [class_shares(labels == c, scorer.predicted == c, self.units) for c in self.classes]
        self.accuracy = share(labels == scorer.predicted, np.ones(len(labels), bool), self.units)
        self.overall_areas = {name: Area(0.0, np.zeros(len(labels))) for name in AREAS}
        self.areas = [class_areas(scorer.probabilities[:, c], labels == c) for c in self.classes]
        for c in self.classes:
            self._add_areas(c)
        self.per_class = [self._of_class(c) for c in self.classes]

    def _add_areas(self, c: int) -> None:
        """Add the areas of a class to the overall areas."""
        truth, positive = self.labels == c, self.scorer.positive
        for kind, area in zip(("auroc", "average_precision"), self.areas[c], strict=True):
            if positive == c:
                self.overall_areas[kind] = area
            elif positive is None:
                self.overall_areas[kind] = self.overall_areas[kind].plus(area, self.scorer.even[c])
            if self.scorer.present[c]:
                weighted = self.overall_areas[f"{kind}_weighted"].plus(area, float(truth.mean()))
                drawn = (truth - truth.mean()) * area.value / len(truth)  # how common a class is was drawn too
                self.overall_areas[f"{kind}_weighted"] = Area(weighted.value, weighted.influence + drawn)

    def _of_class(self, c: int) -> dict[str, Estimate]:
        """The numbers of a class."""
        area, precision = self.areas[c]
        shares = {name: (of_f1 if name == "f1" else of_share)(value) for name, value in self.shares[c].items()}
        return shares | {
            "auroc": of_auroc(area, self.labels == c, self.units),
            "average_precision": estimate(precision.value, *self._precision_interval(c), "influence"),
        }

    def _precision_interval(self, c: int) -> tuple[float, float]:
        """The interval of an average precision, on the logit scale; a perfect one varies no more than a proportion."""
        precision, truth = self.areas[c][1], self.labels == c
        if min(self.holders[c], self._held(~truth)) < FEWEST:
            return NONE
        variance, degrees = influence_spread(self.units.leveraged(precision.influence, truth * 1), self.units)
        if 0 < precision.value < 1 and variance > 0:
            return logit_interval(precision.value, variance**0.5, quantile(degrees))
        return self._flawless(truth) if precision.value == 1 and not truth.all() else NONE

    def _flawless(self, images: np.ndarray) -> tuple[float, float]:
        """The interval of a number within 0..1 that is 1, if it varies no more than a proportion of these images."""
        sizes = self.units.sums(images.astype(np.float64))
        sizes = sizes[sizes > 0]
        low, _ = wilson(1.0, sizes.sum() / assumed_effect(sizes, LIKENESS), quantile(self.degrees))
        return low, 1.0

    def numbers(self, resamples: int) -> Numbers:
        """As `evaluate_predictions`."""
        classes, size, positive = self.predictions.classes, len(self.classes), self.scorer.positive
        support = np.bincount(self.labels, minlength=size).tolist()
        confusion = np.bincount(self.labels * size + self.scorer.predicted, minlength=size**2)
        accuracy = sample_size(self.accuracy)
        numbers = numbers_of(self.predictions, self.estimates()[0], resamples, accuracy, self.shares).model_copy(
            update={
                "positive_class": None if positive is None else classes[positive],
                "per_class": {c: ClassNumbers(n=support[k], **self.per_class[k]) for k, c in enumerate(classes)},
                "confusion_matrix": confusion.reshape(size, size).tolist(),
            }
        )
        holders = dict(zip(classes, self.holders, strict=True))
        reasons = {"undefined": undefined(numbers), "no_interval": without_interval(numbers, holders)}
        more = notes(numbers, holders, self.units.count, self.predictions.groups)
        return numbers.model_copy(update={**reasons, "notes": more})

    def estimates(self) -> tuple[dict[str, Estimate], list[dict[str, Estimate]]]:
        """All numbers, overall and of each class."""
        positive = self.scorer.positive
        overall = {"accuracy": of_share(self.accuracy), "balanced_accuracy": self._mean("sensitivity", weighted=False)}
        overall |= {"sensitivity_weighted": overall["accuracy"], "sensitivity_macro": overall["balanced_accuracy"]}
        for kind in ("specificity", "ppv", "npv", "f1"):
            overall |= {f"{kind}_macro": self._mean(kind, weighted=False)}
            overall |= {f"{kind}_weighted": self._mean(kind, weighted=True)}
        for kind in ("auroc", "average_precision"):
            alone = None if positive is None else self.per_class[positive][kind]
            overall[kind] = alone or self._mean(kind, weighted=False)
            same = alone if kind == "auroc" else None  # both of two have the same AUROC
            overall[f"{kind}_weighted"] = same or self._mean(kind, weighted=True)
        for column, name in enumerate(LOSSES):
            overall[name] = estimate(self.point[name], *self._loss_interval(column), "influence")
        for name in ("mcc", "cohen_kappa"):
            value = min(self.point[name], 1.0)  # a rounding error may lie above
            overall[name] = estimate(value, *self._correlation_interval(name), "influence")
        return {name: overall[name] for name in METRICS}, self.per_class

    def _mean(self, kind: str, weighted: bool) -> Estimate:
        """The mean of a number over all classes, or weighted by class size over those that have images."""
        size = max(1, len(self.labels))
        means = np.bincount(self.labels, minlength=len(self.classes)) / size
        weights, value = (means if weighted else self.scorer.even), float("nan")
        entries = {int(c): self.per_class[c][kind] for c in np.flatnonzero(weights)}
        values = np.full(len(self.classes), np.nan)
        for c, entry in entries.items():
            values[c] = np.nan if entry.value is None else entry.value
        if entries:
            value = float((weights * values)[list(entries)].sum())
        if any(entry.low is None for entry in entries.values()) or not entries:
            return estimate(value, *NONE, "mover")
        drift = (values[self.labels] - value) / size if weighted else np.zeros(len(self.labels))
        parts = (self.part(c, kind, float(weights[c])) for c in entries)
        return estimate(value, *mean_interval(parts, drift, quantile(self.degrees), self.units), "mover")

    def part(self, c: int, kind: str, weight: float) -> Part:
        """A number of a class that has an interval, as a part of a mean."""
        entry = self.per_class[c][kind]
        assert entry.value is not None and entry.low is not None and entry.high is not None
        if kind in self.shares[c]:
            hits, counted = class_masks(self.labels == c, self.scorer.predicted == c)[kind]
            influence = np.where(counted, hits - self.shares[c][kind].value, 0.0)
        else:
            influence = self.areas[c][kind == "average_precision"].influence
        return Part(entry.value, entry.low, entry.high, influence, weight)

    def _loss_interval(self, column: int) -> tuple[float, float]:
        """The interval of a mean loss; none without an error, as no image shows what one costs."""
        loss = self.scorer.losses[:, column]
        if self.accuracy.value == 1 or not len(loss) or self.too_few:
            return NONE
        influence = self.units.leveraged((loss - loss.mean()) / len(loss), self.labels)
        return log_interval(float(loss.mean()), influence_spread(influence, self.units))

    def _correlation_interval(self, name: str) -> tuple[float, float]:
        """The interval of MCC or kappa on -1..1: Wilson's, of as many images as give a proportion their variance.

        Without an error it is that of the rarest class, and no interval reaches further up.
        """
        value = self.point[name]
        if not np.isfinite(value) or self.units.count < 2 or self.too_few:
            return NONE
        present = [c for c in self.classes if self.scorer.present[c]]
        rarest = min(present, key=lambda c: self.holders[c], default=-1)  # the class with the fewest patients
        flawless = 2 * self._flawless(self.labels == rarest)[0] - 1
        if abs(value - 1) < 1e-12:
            return flawless, 1.0
        influence = self.units.leveraged(self.scorer.correlation_influence()[name], self.labels)
        variance, _ = spread(influence, self.units)
        if not (variance > 0 and value > -1):
            return NONE
        low, high = within(value, -1.0, variance, quantile(self.degrees))
        return min(low, flawless), high

    @property
    def too_few(self) -> bool:
        """Whether fewer than `FEWEST` images, or patients, have the most common class, or any other."""
        common = self.labels == np.bincount(self.labels, minlength=len(self.classes)).argmax()
        return min(self._held(common), self._held(~common)) < FEWEST

    def _held(self, images: np.ndarray) -> int:
        """How many units have one of the images, (S,) bool."""
        return len(np.unique(self.units.index[images]))

    @cached_property
    def degrees(self) -> float:
        """Degrees of freedom of the variance of being right between units."""
        return self.units.degrees((self.labels == self.scorer.predicted) * 1.0) if self.units.count > 1 else 1.0


def compare_predictions(predictions: Predictions, other: Predictions, resamples: int = 2000) -> PairedComparison:
    """The numbers of the other model, and the differences, first minus other, on the same images.

    The interval of a difference is paired, so narrower than the intervals of the two numbers suggest: by
    `share_difference` for accuracy and balanced accuracy, by `area_gap` for AUROC and average precision, and for the
    rest from resamples in which both models are evaluated. Predictions that are all the same differ by exactly 0.

    Raises:
        DataError: not the same images, labels or classes in the same order; or no labels.
    """
    labels = known_labels(predictions)
    check_alike(predictions, other)
    first, second = PreparedPredictions(predictions), PreparedPredictions(other)
    second.units = first.units
    draws = bootstrap([first, second], resamples, 0)
    ours, theirs = (evaluation.estimates()[0] for evaluation in (first, second))
    positive = None if first.scorer.positive is None else labels == first.scorer.positive
    areas = {}
    for name in AREAS:
        kind, kinds = positive if name == "auroc" else None, labels if name == "average_precision" else None
        areas[name] = area_gap(first.overall_areas[name], second.overall_areas[name], kind, first.units, kinds)
    accuracy, shares = _share_differences(first, second)
    widen = widened_level(min(first.degrees, second.degrees))
    same = same_answers(predictions, other)
    difference: dict[str, Estimate] = {}
    for name in ours:
        one, two = ours[name].value, theirs[name].value
        if one is None or two is None:
            difference[name] = estimate(float("nan"), *NONE, "bootstrap", resamples)
        elif name in AREAS:
            reach, test = areas[name]
            difference[name] = gap_estimate(one - two, reach, test)
        elif name in shares:
            gap = shares[name]
            low, high = (0.0, 0.0) if same else (gap.low, gap.high)
            difference[name] = estimate(one - two, low, high, gap.method)
        else:
            drawn = draws[0][name] - draws[1][name]
            enough = len(drawn) > 0 and np.isfinite(drawn).mean() >= 0.5
            interval = percentile_interval(drawn, widen) if enough else NONE
            difference[name] = estimate(one - two, *interval, "bootstrap", len(drawn))
    return PairedComparison(
        overall=theirs, difference=difference, tests={"auroc": areas["auroc"][1], "accuracy": accuracy}
    )


def bootstrap(several: list[PreparedPredictions], resamples: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Overall numbers (R,) of each in the same resamples; the units are those of the first."""
    draws: list[dict[str, list[np.ndarray]]] = [{name: [] for name in evaluation.point} for evaluation in several]
    units = several[0].units
    if units.count > 1:
        whole = 2 * units.count < len(units.index)  # few patients with many images: their sums are enough
        index = np.arange(units.count) if whole else units.index
        ways = [evaluation.scorer.summed(units.index) if whole else evaluation.scorer.counted for evaluation in several]
        for weights in bootstrap_weights(index, resamples, seed):
            for way, drawn in zip(ways, draws, strict=True):
                for name, values in way(weights)[0].items():
                    drawn[name].append(values)
    return [{name: np.concatenate(v) if v else np.empty(0) for name, v in drawn.items()} for drawn in draws]


def _share_differences(
    first: PreparedPredictions, second: PreparedPredictions
) -> tuple[ComparisonTest, dict[str, Share]]:
    """The test of accuracy, and the differences of the overall numbers that are proportions or means of them."""
    labels, units, present = first.labels, first.units, np.flatnonzero(first.scorer.present)
    right, other = labels == first.scorer.predicted, labels == second.scorer.predicted
    accuracy, test = right_difference(right, other, np.ones(len(labels), bool), units)
    truths = [labels == c for c in present]
    of_classes = [share_difference(right, other, truth, units).found for truth in truths]
    gap = right.astype(np.float64) - other
    parts = (
        Part(one.value, one.low, one.high, np.where(truth, gap - one.value, 0.0), 1 / len(present))
        for one, truth in zip(of_classes, truths, strict=True)
    )
    low, high = mean_interval(parts, np.zeros(len(labels)), quantile(), units, lowest=-1.0)
    balanced = replace(accuracy, low=low, high=high)
    shares = {"accuracy": accuracy, "sensitivity_weighted": accuracy}
    shares |= {"balanced_accuracy": balanced, "sensitivity_macro": balanced}
    if first.scorer.positive is not None:
        shares["specificity_macro"] = balanced  # the same number
    return test, shares


def compare_classes(predictions: Predictions, other: Predictions) -> dict[str, dict[str, ClassDifference]]:
    """The difference in AUROC of each class against the rest: `{"auroc": {class: difference}}`; {} of two classes, and
    of more than `MANY_CLASSES`.

    Raises:
        DataError: no labels. The images must be the same, as for `compare_predictions`.
    """
    labels, units = known_labels(predictions), Units.of(predictions)
    if not 2 < len(predictions.classes) <= MANY_CLASSES:
        return {}
    gaps: dict[str, ClassDifference] = {}
    for c, name in enumerate(predictions.classes):
        first, second = (class_areas(p.probabilities[:, c], labels == c)[0] for p in (predictions, other))
        gaps[name] = class_difference(first, second, labels == c, units)
    return {"auroc": gaps}
