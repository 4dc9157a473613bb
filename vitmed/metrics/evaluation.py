"""Every number of a set of predictions with its interval.

Each number has the interval whose measured coverage is nearest to its level (benchmarks/coverage.py): a formula for
proportions, their means and the areas under curves; for the rest the percentile bootstrap of whole patients.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from vitmed.core.errors import DataError
from vitmed.metrics.bootstrap import ALIKE, bootstrap_weights, percentile_interval, widened_level
from vitmed.metrics.estimates import (
    ClassNumbers,
    ClassSampleSizes,
    Estimate,
    ImagesPerPatient,
    Numbers,
    Sample,
    estimate,
    of_auroc,
    of_f1,
    of_share,
    sample_size,
)
from vitmed.metrics.intervals import (
    LEVEL,
    NONE,
    Area,
    Units,
    area_interval,
    class_areas,
    class_shares,
    logit_interval,
    quantile,
    share,
    share_mean,
    spread,
    wilson,
    within,
)
from vitmed.metrics.metric_table import METRICS
from vitmed.metrics.notes import notes, undefined, without_interval
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.scoring import Scorer

AREAS = ("auroc", "auroc_weighted", "average_precision", "average_precision_weighted")
LOSSES = ("log_loss", "brier")
SAME = "all resamples give the same value"
SIGNED = ("mcc", "cohen_kappa")  # from -1 to 1, the other bootstrapped ones from 0


def evaluate_predictions(predictions: Predictions, resamples: int = 2000, seed: int = 0) -> Numbers:
    """Every number with its interval; the units are patients where they are known.

    Raises:
        DataError: the predictions have no labels, or a score that is no finite number.
    """
    labels, classes = known_labels(predictions), predictions.classes
    evaluation = PreparedPredictions(predictions)
    overall, per_class = evaluation.estimates(bootstrap([evaluation], resamples, seed)[0])
    support, size = np.bincount(labels, minlength=len(classes)), len(classes)
    confusion = np.bincount(labels * size + predictions.predicted, minlength=size**2)
    grouped, positive = predictions.groups is not None, evaluation.scorer.positive
    found = Numbers(
        n=len(labels),
        n_groups=evaluation.units.count if grouped else None,
        resampling="by patient" if grouped else "by image",
        resamples=resamples,
        level=LEVEL,
        classes=list(classes),
        positive_class=None if positive is None else classes[positive],
        overall=overall,
        per_class={c: ClassNumbers(n=int(support[k]), **per_class[k]) for k, c in enumerate(classes)},
        confusion_matrix=confusion.reshape(size, size).tolist(),
        sample=evaluation.sample(grouped),
    )
    reasons = {"undefined": undefined(found), "no_interval": without_interval(found, evaluation.why)}
    found_notes = notes(found, labels, evaluation.units.index, predictions.groups)
    return found.model_copy(update={**reasons, "notes": found_notes})


class PreparedPredictions:
    """One set of predictions, with everything about its intervals that does not depend on resamples."""

    def __init__(self, predictions: Predictions):
        labels = known_labels(predictions)
        broken = np.flatnonzero(~np.isfinite(predictions.logits).all(axis=1))
        if len(broken):
            problem = f"{len(broken):,} of {len(labels):,} rows have a score that is not a finite number, the first is "
            raise DataError(f"{problem}row {broken[0] + 1}", "predict these images again, or leave them out")
        self.labels, self.units = labels, Units.of(predictions)
        self.why: dict[str, str] = {}  # number that is resampled -> why it has no interval
        self.scorer = scorer = Scorer(labels, predictions)
        self.point = {name: float(v[0]) for name, v in scorer.counted(np.ones((1, len(labels))))[0].items()}
        self.classes = range(scorer.size)
        self.shares = [class_shares(labels == c, scorer.predicted == c, self.units) for c in self.classes]
        self.accuracy = share(labels == scorer.predicted, np.ones(len(labels), bool), self.units)
        self.overall_areas = {name: Area(0.0, np.zeros(len(labels))) for name in AREAS}
        self.areas = [self._areas(c) for c in self.classes]

    def _areas(self, c: int) -> dict[str, Estimate]:
        """The areas of a class, which are also added to the overall areas."""
        truth, positive = self.labels == c, self.scorer.positive
        area, precision = class_areas(self.scorer.probabilities[:, c], truth)
        for kind, own in (("auroc", area), ("average_precision", precision)):
            if positive == c:
                self.overall_areas[kind] = own
            elif positive is None and self.scorer.present[c]:
                self.overall_areas[kind] = self.overall_areas[kind].plus(own, self.scorer.even[c])
            if self.scorer.present[c]:
                weighted = self.overall_areas[f"{kind}_weighted"].plus(own, float(truth.mean()))
                drawn = (truth - truth.mean()) * own.value / len(truth)  # how common a class is was drawn too
                self.overall_areas[f"{kind}_weighted"] = Area(weighted.value, weighted.influence + drawn)
        average = self._of_area(precision, "average_precision", truth)
        return {"auroc": of_auroc(area, truth, self.units), "average_precision": average}

    def estimates(self, draws: dict[str, np.ndarray]) -> tuple[dict[str, Estimate], list[dict[str, Estimate]]]:
        """All numbers, overall and of each class, from the draws (R,) of the overall numbers."""
        positive = self.scorer.positive
        per_class = [
            {name: (of_f1 if name == "f1" else of_share)(found) for name, found in shares.items()} | areas
            for shares, areas in zip(self.shares, self.areas, strict=True)
        ]
        overall = {"accuracy": of_share(self.accuracy), "balanced_accuracy": self._balanced()}
        overall |= {"sensitivity_weighted": overall["accuracy"], "sensitivity_macro": overall["balanced_accuracy"]}
        for name in AREAS:
            kind = name.removesuffix("_weighted")
            if positive is not None and (kind == "auroc" or name == kind):  # both of two have the same AUROC
                overall[name] = per_class[positive][kind]
            else:
                overall[name] = self._of_area(self.overall_areas[name], kind, self.rarest)
        for name in METRICS.keys() - overall:  # those without a formula
            overall[name] = self._drawn(name, draws[name])
        if positive is not None and self.scorer.present.all():
            overall["specificity_macro"] = overall["balanced_accuracy"]  # the same number
        return {name: overall[name] for name in METRICS}, per_class

    def _of_area(self, area: Area, kind: str, images: np.ndarray) -> Estimate:
        """Of any area by its influence; where that is 0, of a perfect area, by the number of `images`, of one class."""
        found, interval, method = spread(area.influence, self.units), NONE, "influence"
        if 0 < area.value < 1 and found.variance > 0:
            interval = logit_interval(area.value, found.variance**0.5, quantile(found.degrees))
        elif area.value == 1 and np.isfinite(found.variance) and not images.all():
            if kind == "auroc":
                interval, method = area_interval(1.0, found, images, self.units), "newcombe"
            else:  # a mean of values within 0..1 varies no more than a proportion
                interval, method = wilson(1.0, self._units_with(images), quantile()), "wilson-units"
        return estimate(area.value, *interval, method)

    def _drawn(self, name: str, drawn: np.ndarray) -> Estimate:
        """A number with the interval that its draws (R,) give.

        The losses have the percentile interval. That of a number near 1 is far too narrow when errors are few, so a
        number within 0..1 has Wilson's interval, for as many images as give a proportion the variance of the draws;
        without an error, for as many patients as the smallest class has. MCC and kappa likewise, on -1..1.
        """
        value, units, asked, drawn = self.point[name], self.units.count, len(drawn), drawn[np.isfinite(drawn)]
        value = 1.0 if abs(value - 1) < 1e-12 else value  # a correlation of 1 may be a rounding error above it
        method = "bootstrap" if name in LOSSES else "wilson-bootstrap"

        def nothing(why: str) -> Estimate:
            self.why[name] = why
            return estimate(value, *NONE, method, asked)

        if units < 2 or not asked:
            return nothing("resampling is off")
        if 2 * len(drawn) < asked:  # a biased choice
            return nothing("fewer than half of the resamples give it a value")
        variance = float(drawn.var()) * units / (units - 1)
        if name in LOSSES and self.accuracy.value == 1:
            return nothing("no image is wrong, so no resample shows what an error costs")
        if name in LOSSES:
            low, high = percentile_interval(drawn, widened_level(self.degrees))
            return estimate(value, low, high, method, asked) if high - low > ALIKE else nothing(SAME)
        lowest = -1.0 if name in SIGNED else 0.0
        value = lowest if abs(value - lowest) < 1e-12 else value
        if lowest < value < 1 and variance > 0:
            return estimate(value, *within(value, lowest, variance, quantile(self.degrees)), method, asked)
        if value != 1:
            return nothing(SAME if value > lowest else "it has the lowest value that is possible")
        counted = units if name.endswith("_weighted") else self._units_with(self.rarest)
        low, _ = wilson(1.0, counted, quantile())
        return estimate(1.0, lowest + (1 - lowest) * low, 1.0, "wilson-units")

    @cached_property
    def rarest(self) -> np.ndarray:
        """(S,) bool, the images of the class with the fewest patients; none without images."""
        found = (self.labels == c for c in self.classes if self.scorer.present[c])
        return min(found, key=self._units_with, default=np.zeros(len(self.labels), bool))

    def _units_with(self, images: np.ndarray) -> int:
        return len(np.unique(self.units.index[images]))

    def _balanced(self) -> Estimate:
        present = np.flatnonzero(self.scorer.present)
        found, truths = [self.shares[c]["sensitivity"] for c in present], [self.labels == c for c in present]
        interval = share_mean(found, truths, self.labels == self.scorer.predicted, self.units)
        return estimate(self.point["balanced_accuracy"], *interval, "mover" if len(found) > 1 else self.accuracy.method)

    @property
    def degrees(self) -> float:
        """Degrees of freedom of the variance between units, for the bootstrap."""
        return self.units.degrees((self.labels == self.scorer.predicted) * 1.0) if self.units.count > 1 else 1.0

    def sample(self, grouped: bool) -> Sample:
        """The sample sizes behind the numbers."""
        sizes, counts = np.bincount(self.units.index), None
        if grouped and len(sizes):
            counts = ImagesPerPatient(min=int(sizes.min()), median=float(np.median(sizes)), max=int(sizes.max()))
        rates = ("sensitivity", "specificity")
        return Sample(
            n_images=len(self.labels),
            n_patients=self.units.count if grouped else None,
            images_per_patient=counts,
            accuracy=sample_size(self.accuracy),
            classes=[ClassSampleSizes(**{name: sample_size(own[name]) for name in rates}) for own in self.shares],
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
