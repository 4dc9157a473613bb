"""Classes, of which an image has one: every number of a set of predictions with its interval, and two models compared.

Each number has the formula whose measured coverage is nearest to its level (benchmarks/coverage.py). A value that
cannot be computed is NaN (null in JSON, with the reason beside it).

Letters: S images, K classes, C cells of the confusion matrix that are in use, R sets of sums.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from vitmed.core.text import counted, listed
from vitmed.metrics import intervals
from vitmed.metrics.areas import Area, area_interval, class_areas
from vitmed.metrics.estimates import FEWEST, ClassNumbers, Estimate, Numbers, Sample, estimate, of_share, of_shares
from vitmed.metrics.intervals import NONE, Part, Share, Units, ratio
from vitmed.metrics.kinds.prepared import AreaGap, Gap, Prepared, below_chance
from vitmed.metrics.metric_table import AREAS, METRICS, Metric
from vitmed.metrics.paired_comparison import ClassDifference, area_gap, gap_estimate, share_difference
from vitmed.metrics.predictions import Predictions, known_labels, positive_index

LOSSES = ("log_loss", "brier")  # in the order of `losses`
MANY_CLASSES = 50  # with more, each class alone would take too long or too much room in comparisons, strata, patients


class PreparedPredictions(Prepared):
    """One set of predictions of classes."""

    metrics: ClassVar[dict[str, Metric]] = METRICS
    tested: ClassVar[tuple[str, ...]] = ("auroc", "accuracy")
    unbounded: ClassVar[tuple[str, ...]] = ("mcc", "cohen_kappa", "log_loss", "brier")
    predictions: Predictions

    def __init__(self, predictions: Predictions):
        super().__init__(predictions)
        self.predicted, self.probabilities = predictions.predicted, predictions.probabilities
        self.size = k = len(predictions.classes)
        self.classes, self.positive = range(k), positive_index(predictions)
        # The cells of the confusion matrix that hold an image, (C,), and which of them holds each image, (S,).
        self.cells, self.cell = np.unique(self.labels * k + self.predicted, return_inverse=True)
        self.support = np.bincount(self.labels, minlength=k)  # (K,)
        self.losses = np.stack(image_losses(predictions), axis=1)  # (S, 2)
        # How many units have an image of each class.
        self.holders = [len(np.unique(self.units.index[self.labels == c])) for c in self.classes]
        self.accuracy = intervals.share(self.labels == self.predicted, None, self.units)
        likeliest = predictions.likeliest if predictions.at_point else self.predicted
        self.mistaken = bool((self.labels != likeliest).any())  # else no image shows what an error costs
        # Whether fewer than `FEWEST` images, or patients, have the most common class, or any other.
        self.too_few = self.units.fewer(self.labels == self.support.argmax()) < FEWEST

    def correlation_influence(self) -> dict[str, np.ndarray]:
        """The influence (S,) of each image on MCC and kappa: their derivatives by its weight, which sum to 0."""
        k, n, t, c = self.size, float(len(self.labels)), self.labels, self.predicted
        support, called = (np.bincount(of, minlength=k).astype(np.float64) for of in (t, c))
        hits = float((t == c).sum())
        varied_truth, varied_calls, left = n**2 - support @ support, n**2 - called @ called, n**2 - support @ called
        above = hits * n - support @ called  # chance
        moved_chance = called[t] + support[c]
        moved = (t == c) * n + hits - moved_chance
        mcc = ratio(above, np.sqrt(varied_truth * varied_calls))
        both = ratio(n - support[t], varied_truth) + ratio(n - called[c], varied_calls)
        kappa = ratio(moved - ratio(above, left) * (2 * n - moved_chance), left)
        return {"mcc": ratio(moved, np.sqrt(varied_truth * varied_calls)) - mcc * both, "cohen_kappa": kappa}

    def summed(self, units: Units) -> np.ndarray:
        """(G, C + 2): images in each cell of the confusion matrix that is in use, and the sums of the losses."""
        size = (units.count, len(self.cells))
        held = np.bincount(units.index * size[1] + self.cell, minlength=size[0] * size[1]).reshape(size)
        return np.column_stack([held, units.sums(self.losses)])

    def of_sums(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        shape, sums, k = sums.shape[:-1], sums.reshape(-1, sums.shape[-1]), self.size
        cells, lost = sums[:, :-2], sums[:, -2:]  # (R, C), (R, 2)
        truth, call = self.cells // k, self.cells % k  # (C,)
        support, called, tp = (  # (R, K) each: images of a class, those predicted as it, both
            np.stack([cells[:, of == c].sum(axis=1) for c in self.classes], axis=1)
            for of in (truth, call, np.where(truth == call, truth, -1))
        )
        total = cells.sum(axis=1)  # (R,)
        others = total[:, None] - support
        per_class = intervals.rates_of(tp, called - tp, support - tp, others - called + tp)
        for name in ("ppv", "npv", "f1"):  # without images of the class, or of others, they do not depend on the model
            per_class[name] = np.where((support > 0) & (others > 0), per_class[name], np.nan)
        # A class without a value makes plain means undefined: the mean over the others is another quantity. That is a
        # class without images, also without a patient, and one that is never predicted, which would reward ignoring it.
        means = {name: (1 / k * values).sum(axis=1) for name, values in per_class.items()}  # (R,)
        losses = ratio(lost, total[:, None])  # (R, 2)
        hits = tp.sum(axis=1)
        chance = (support * called).sum(axis=1)  # total^2 x agreement by chance
        varied_truth = total**2 - (support**2).sum(axis=1)
        varied_calls = total**2 - (called**2).sum(axis=1)
        # Gorodkin, Comput. Biol. Chem. 28 (2004) 367. A constant prediction has covariance 0: MCC is 0, its limit.
        mcc = ratio(hits * total - chance, np.sqrt(varied_truth) * np.sqrt(np.where(varied_calls > 0, varied_calls, 1)))
        overall = {
            "accuracy": ratio(hits, total),
            "balanced_accuracy": means["sensitivity"],
            "mcc": np.where(varied_truth > 0, mcc, np.nan),
            "cohen_kappa": np.where(varied_truth > 0, ratio(hits * total - chance, total**2 - chance), np.nan),
            "log_loss": losses[:, 0],
            "brier": losses[:, 1],
        }
        overall |= {f"{name}_macro": mean for name, mean in means.items()}
        return {name: values.reshape(shape) for name, values in overall.items()}

    def without(self, units: Units) -> dict[str, np.ndarray]:
        """As `Prepared.without`; of three classes or more, a number that is undefined without a patient, such as the
        only one of a class, is the same without that patient. In simulated comparisons its interval held the truth in
        89 to 97 of 100 then; of two classes it would have in 43 to 88, so there is none."""
        left, point = super().without(units), self.point
        if self.size > 2:
            known = {name: np.isfinite(left[name]) for name in METRICS}
            left |= {name: np.where(known[name], left[name], point[name]) for name in METRICS if known[name].any()}
        return left

    def leveraged(self, area: Area) -> np.ndarray:
        return self.units.leveraged(area.influence, self.labels)

    @cached_property
    def class_shares(self) -> list[dict[str, Share]]:
        return [intervals.class_shares(self.labels == c, self.predicted == c, self.units) for c in self.classes]

    @cached_property
    def areas(self) -> list[tuple[Area, Area]]:
        """AUROC and average precision of each class against the rest."""
        return [class_areas(self.probabilities[:, c], self.labels == c) for c in self.classes]

    @cached_property
    def overall_areas(self) -> dict[str, Area]:
        """The areas of all classes together, by the names in `AREAS`."""
        if self.positive is not None:
            return dict(zip(AREAS, self.areas[self.positive], strict=True))
        means = [Area(0.0, np.zeros(len(self.labels)))] * len(AREAS)
        for areas in self.areas:
            means = [mean.plus(area, 1 / self.size) for mean, area in zip(means, areas, strict=True)]
        return dict(zip(AREAS, means, strict=True))

    @cached_property
    def per_class(self) -> list[dict[str, Estimate]]:
        per_class = []
        for c, (area, precision) in enumerate(self.areas):
            truth, numbers, interval = self.labels == c, of_shares(self.class_shares[c]), NONE
            numbers["auroc"] = estimate(area.value, *area_interval(area, truth, self.units))
            if self.units.fewer(truth) >= FEWEST:  # on the logit scale; a perfect one varies no more than a proportion
                influence = self.units.leveraged(precision.influence, truth * 1)
                variance, degrees = intervals.influence_spread(influence, self.units)
                if 0 < precision.value < 1 and variance > 0:
                    low, high = intervals.logit_interval(precision.value, variance**0.5, intervals.quantile(degrees))
                    interval = min(low, self._flawless(truth)[0]), high  # an error makes no number surer
                elif precision.value == 1 and not truth.all():
                    interval = self._flawless(truth)
            numbers["average_precision"] = estimate(precision.value, *interval, "influence")
            per_class.append(numbers)
        return per_class

    def _flawless(self, images: np.ndarray) -> tuple[float, float]:
        """The interval of a number within 0..1 that is 1, if it varies no more than a proportion of these images."""
        sizes, _, _ = self.units.moments(images, images)
        effective = sizes.sum() / intervals.assumed_effect(sizes, intervals.LIKENESS)
        degrees = intervals.satterthwaite(sizes, intervals.LIKENESS) if self.units.clustered else self.units.count - 1
        low, _ = intervals.wilson(1.0, effective, intervals.quantile(degrees))
        return low, 1.0

    def details(self) -> dict[str, Any]:
        k, names, support = self.size, self.predictions.classes, self.support.tolist()
        counts = np.bincount(self.labels * k + self.predicted, minlength=k**2).reshape(k, k)
        return {
            "sample": Sample.of(self.units, self.patients, self.accuracy, self.class_shares),
            "positive_class": None if self.positive is None else names[self.positive],
            "per_class": {name: ClassNumbers(n=support[c], **self.per_class[c]) for c, name in enumerate(names)},
            "confusion_matrix": counts.tolist(),
        }

    def parts(self, name: str, entry: Estimate) -> list[str]:
        base = "sensitivity" if name == "balanced_accuracy" else name.removesuffix("_macro")
        one = entry.value is None and self.positive is not None and name in AREAS  # it is that of the positive class
        return [f"{base} of {c}" for k, c in enumerate(self.predictions.classes) if not one or k == self.positive]

    def why(self, name: str, entry: Estimate, numbers: Numbers) -> str:
        kind, _, c = name.partition(" of ")
        if entry.value is None:
            if not numbers.n:
                return "there are no images"
            if not c:  # MCC or kappa, which need two classes and not the numbers of each
                return "all images are of one class"
            if (held := numbers.per_class[c].n) in (0, numbers.n):
                return f"every image is of class '{c}'" if held else f"there is no image of class '{c}'"
            return f"{'no' if kind == 'ppv' else 'every'} image was predicted as '{c}'"
        if self.units.count < 2:  # which `few_notes` reports
            return ""
        if entry.method == "influence":
            holders = zip(numbers.classes, self.holders, strict=True)
            few = {c: f"too few to say: {counted(n, self.unit)} of class '{c}'" for c, n in holders if 0 < n < FEWEST}
            of_two = next(iter(few.values()), None) if self.size == 2 else None
            if kind in LOSSES and not (self.mistaken or of_two):
                return "no image is wrong, so none shows what an error costs"
            rare = f"too few to say: fewer than {FEWEST} {self.unit}s have the most common class, or any other"
            return few.get(c) or of_two or (rare if self.too_few else "all images agree, so the variance is unknown")
        area = kind in AREAS
        if area and min(n for n in self.holders if n) > 1 and self.units.count > 2:
            return f"no {self.unit} changes it, so its variance is unknown"
        return f"the images {'of one kind' if area else 'that it counts'} come from fewer than 2 {self.unit}s"

    def notes(self, numbers: Numbers) -> list[str]:
        notes, holders = list[str](), dict(zip(numbers.classes, self.holders, strict=True))
        if numbers.n and (absent := [f"'{c}'" for c, entry in numbers.per_class.items() if not entry.n]):
            missing = f"There is no image of class {listed(absent)}: "
            notes.append(f"{missing}numbers that need one, such as balanced accuracy, are undefined.")
        notes += self.few_notes(numbers, holders)
        if self.units.count < 2:
            return notes
        single = [f"'{c}'" for c, count in holders.items() if count == 1]
        if single and self.unit == "patient":
            whose = (
                "class {} come from one patient: its" if len(single) == 1 else "each of {} come from one patient: their"
            )
            notes.append(f"All images of {whose.format(listed(single))} intervals do not hold for other patients.")
        return [*notes, *below_chance(numbers)]

    @cached_property
    def overall(self) -> dict[str, Estimate]:
        positive = self.positive
        overall = {"accuracy": of_share(self.accuracy), "balanced_accuracy": self._mean("sensitivity")}
        overall["sensitivity_macro"] = overall["balanced_accuracy"]
        overall |= {f"{kind}_macro": self._mean(kind) for kind in ("specificity", "ppv", "npv", "f1")}
        overall |= {kind: self._mean(kind) if positive is None else self.per_class[positive][kind] for kind in AREAS}
        overall |= self.mean_losses
        for name in ("mcc", "cohen_kappa"):
            value = min(self.point[name], 1.0)  # a rounding error may lie above
            overall[name] = estimate(value, *self._correlation_interval(name), "influence")
        return {name: overall[name] for name in METRICS}

    @property
    def mean_losses(self) -> dict[str, Estimate]:
        worst = -np.log(np.finfo(np.float64).eps), 1.0 if self.positive is not None else 2.0  # of one image
        losses = zip(LOSSES, self.losses.T, worst, strict=True)
        return {name: self.mean_loss(self.point[name], loss, most) for name, loss, most in losses}

    def mean_loss(self, value: float, losses: np.ndarray, most: float = np.inf) -> Estimate:
        """The mean of losses (S,), `value`, with its interval, which ends at `most`, the loss of the worst image; none
        where the likeliest class is right of all, so that no image shows what an error costs."""
        interval = NONE
        if self.mistaken and not self.too_few:
            influence = self.units.leveraged((losses - losses.mean()) / len(losses), self.labels)
            between = intervals.influence_spread(influence, self.units)
            interval = intervals.log_interval(float(losses.mean()), between, most)
        return estimate(value, *interval, "influence")

    def _mean(self, kind: str) -> Estimate:
        entries = [self.per_class[c][kind] for c in self.classes]
        values = np.array([np.nan if entry.value is None else entry.value for entry in entries])
        value = float((1 / self.size * values).sum())
        if any(entry.low is None for entry in entries):
            return estimate(value, *NONE, "wilson-mean")
        parts = (self.part(c, kind, 1 / self.size) for c in self.classes)
        return estimate(value, *intervals.mean_interval(value, parts, self.units, 1 + (kind == "f1")), "wilson-mean")

    def part(self, c: int, kind: str, weight: float) -> Part:
        """A number of a class that has an interval, as a part of a mean."""
        entry = self.per_class[c][kind]
        assert entry.value is not None and entry.low is not None and entry.high is not None
        if kind in self.class_shares[c]:
            hits, counted = intervals.class_masks(self.labels == c, self.predicted == c)[kind]
            influence = np.where(counted, hits - self.class_shares[c][kind].value, 0.0)
        else:
            influence, counted = self.areas[c][kind == "average_precision"].influence, self.labels == c
        return Part(entry.value, entry.low, entry.high, influence, weight, counted)

    def _correlation_interval(self, name: str) -> tuple[float, float]:
        """The interval of MCC or kappa on -1..1: Wilson's, with the number of images at which a proportion has their
        variance. Without an error: the interval of the accuracy, with two classes on the images of the rarer one, on
        which both numbers rest, with more on all, corrected for chance. No interval reaches further up."""
        value = self.point[name]
        if not np.isfinite(value) or self.units.count < 2 or self.too_few:
            return NONE
        images, chance = np.ones(len(self.labels), bool), float(((self.support / self.support.sum()) ** 2).sum())
        if self.size == 2:
            rarest = min(np.flatnonzero(self.support), key=lambda c: self.holders[c], default=-1)  # the fewest patients
            images, chance = self.labels == rarest, 0.5
        flawless = (self._flawless(images)[0] - chance) / (1 - chance) if chance < 1 else -1.0
        if abs(value - 1) < 1e-12:
            return flawless, 1.0
        number = Area(value, self.correlation_influence()[name])
        low, high = interval_of(number, -1.0, self.labels, self.labels == self.predicted, self.units)
        return min(low, flawless), high  # NaN where it does not vary

    def gaps(self, other: "PreparedPredictions") -> dict[str, Gap]:
        return super().gaps(other) | self.area_gaps(other) | self.share_gaps(other)

    def area_gaps(self, other: "PreparedPredictions") -> dict[str, AreaGap]:
        """How the areas of all classes together differ."""
        kinds = None if self.positive is None else self.labels == self.positive
        (auroc, precision), (other_auroc, other_precision) = (m.overall_areas.values() for m in (self, other))
        both = [area._replace(influence=self.leveraged(area)) for area in (precision, other_precision)]
        ends = {name: (self.overall[name], other.overall[name]) for name in AREAS}
        return {
            "auroc": area_gap(auroc, other_auroc, ends["auroc"], kinds, self.units),
            "average_precision": area_gap(both[0], both[1], ends["average_precision"], None, self.units),
        }

    def share_gaps(self, other: "PreparedPredictions") -> dict[str, Gap]:
        """How the proportions of two models, and means of them, differ."""
        labels, present = self.labels, np.flatnonzero(self.support)
        mine, yours = labels == self.predicted, labels == other.predicted
        accuracy, test = share_difference(mine, yours, np.ones(len(labels), bool), self.units)
        truths, gap = [labels == c for c in present], mine.astype(np.float64) - yours
        parts = []
        for truth in truths:
            of_class = share_difference(mine, yours, truth, self.units)[0]
            influence = np.where(truth, gap - of_class.value, 0.0)
            parts.append(Part(of_class.value, of_class.low, of_class.high, influence, 1 / len(present)))
        low, high = intervals.mean_gap_interval(parts, self.units)
        means = ("balanced_accuracy", "sensitivity_macro", "specificity_macro")  # of two classes all three are the same
        mean = replace(accuracy, low=low, high=high, method="mover")  # of Tango's intervals
        gaps = {"accuracy": accuracy} | dict.fromkeys(means[:2] if self.positive is None else means, mean)
        return {name: (replace(gap, value=self.point[name] - other.point[name]), test) for name, gap in gaps.items()}

    def class_gaps(self, other: "PreparedPredictions") -> dict[str, dict[str, ClassDifference]]:
        """In AUROC, of up to `MANY_CLASSES`; of two classes with a positive one in its sensitivity and specificity."""
        same = self.predictions.same_as(other.predictions)
        if self.positive is not None:
            rates = dict[str, dict[str, ClassDifference]]()
            mine, yours = self.labels == self.predicted, self.labels == other.predicted
            positive, title = self.labels == self.positive, self.predictions.classes[self.positive]
            for name, counted in (("sensitivity", positive), ("specificity", ~positive)):
                rate, test = share_difference(mine, yours, counted, self.units)
                rate = replace(rate, low=0.0, high=0.0) if same else rate
                rates[name] = {title: ClassDifference(**dict(of_share(rate)), p=test.p)}
            return rates
        if not 2 < self.size <= MANY_CLASSES:
            return {}
        areas, of = zip(self.predictions.classes, self.classes, self.areas, other.areas, strict=True), {}
        for name, c, (a, _), (b, _) in areas:
            ends = self.per_class[c]["auroc"], other.per_class[c]["auroc"]
            reach, test = area_gap(a, b, ends, self.labels == c, self.units)
            gap = gap_estimate(a.value - b.value, reach, test, same=same)
            of[name] = ClassDifference(**dict(gap), p=test.p)
        return {"auroc": of}


def interval_of(number: Area, least: float, kinds: np.ndarray, alike: np.ndarray, units: Units) -> tuple[float, float]:
    """Wilson's interval on least..1 by the influence of each image, as leaving out its unit shows it among images of
    its kind, (S,) int64; with the degrees of freedom of being `alike`, (S,) bool. NaN where the number does not vary.
    """
    variance, _ = intervals.spread(units.leveraged(number.influence, kinds), units)
    if not (variance > intervals.ROUNDING**2 and number.value > least):
        return NONE
    return intervals.within(number.value, least, variance, intervals.quantile(units.degrees(alike * 1.0)))


evaluate_predictions = PreparedPredictions.evaluate
metric_values = PreparedPredictions.values


def image_losses(predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """-ln of the probability of the label, and squared error (Brier), (S,) each. Raises DataError without labels."""
    labels, chances = known_labels(predictions), predictions.probabilities
    tiny = np.finfo(np.float64).eps  # as scikit-learn: a certain error costs 36, not infinity
    given = chances[np.arange(len(labels)), labels]
    many = (chances**2).sum(axis=1) - 2 * given + 1  # sum over classes of (probability - truth)^2
    brier = many if positive_index(predictions) is None else (1 - given) ** 2
    return -np.log(np.clip(given, tiny, 1 - tiny)), brier
