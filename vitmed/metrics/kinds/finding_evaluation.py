"""Every number of predictions of findings with its interval; of each finding those of two classes.

A mean over findings has the interval of a mean over classes: from those of its parts (MOVER), whose errors are
correlated because several findings are read in the same images and patients. A number of all labels together (micro)
has that of two classes, each label an image of its patient; without patients the labels of an image stay together.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from vitmed.core.targets import UNKNOWN
from vitmed.core.text import counted, counted_doing, listed
from vitmed.metrics.areas import Area
from vitmed.metrics.estimates import Estimate, Numbers, check_finite, estimate, of_share
from vitmed.metrics.evaluation import describe_sample
from vitmed.metrics.intervals import LEVEL, NONE, Part, Units, mean_interval, quantile, share
from vitmed.metrics.kinds.classes import LOSSES, PreparedPredictions
from vitmed.metrics.kinds.findings import FindingPredictions, images_right, images_without, in_means, pooled
from vitmed.metrics.metric_table import FINDING_METRICS, PER_CLASS
from vitmed.metrics.notes import FEWEST, below_chance, few_notes
from vitmed.metrics.predictions import known_labels

MEANS = {  # a mean over findings -> what it is the mean of
    "auroc": ("auroc",),
    "average_precision": ("average_precision",),
    "balanced_accuracy": ("sensitivity", "specificity"),
    **{f"{kind}_macro": (kind,) for kind in ("sensitivity", "specificity", "ppv", "npv", "f1")},
}
POOLED = ("auroc", "average_precision", "sensitivity", "ppv", "f1")  # of all labels together


def evaluate_findings(predictions: FindingPredictions, resamples: int = 2000) -> Numbers:
    """Every number of `FINDING_METRICS`, and of each finding, with its interval; as `evaluate_predictions`.

    `n` of a finding is the number of images that have it. There is no confusion matrix.

    Raises:
        DataError: the predictions have no labels, or a score that is no finite number.
    """
    return PreparedFindings(predictions).numbers(resamples)


class PreparedFindings:
    """One set of predictions of findings, with everything that its intervals need."""

    def __init__(self, predictions: FindingPredictions):
        self.predictions, self.labels = predictions, known_labels(predictions)
        check_finite(predictions.logits)
        self.units, self.known = Units(predictions.units), self.labels != UNKNOWN
        self.each = [PreparedPredictions(predictions.of(name)) for name in predictions.classes]
        self.means = np.flatnonzero(in_means(predictions))

    def numbers(self, resamples: int) -> Numbers:
        """As `evaluate_findings`."""
        p, units, own = self.predictions, self.units, [one.numbers(0) for one in self.each]
        right, some = images_right(self.labels, p.predicted), self.known.any(axis=1)
        correct, empty = share(right, some, units), share(right, images_without(self.labels), units)
        overall = {name: self.mean(name) for name in MEANS} | self._pooled()
        overall |= {"subset_accuracy": of_share(correct), "no_finding_specificity": of_share(empty)}
        found = Numbers(
            n=len(p),
            n_groups=None if p.groups is None else units.count,
            resampling="by image" if p.groups is None else "by patient",
            resamples=resamples,
            level=LEVEL,
            classes=list(p.classes),
            positive_class=None,
            overall={name: overall[name] for name in FINDING_METRICS},
            per_class={name: one.per_class[name] for name, one in zip(p.classes, own, strict=True)},
            confusion_matrix=[],
            sample=describe_sample(units, p.groups is not None, correct, [one.shares[1] for one in self.each]),
        )
        undefined, no_interval = self._reasons(found, own)
        return found.model_copy(
            update={"undefined": undefined, "no_interval": no_interval, "notes": self._notes(found)}
        )

    def mean(self, name: str) -> Estimate:
        """A mean over findings, by its name in `MEANS`."""
        weight = 1 / max(1, len(self.means) * len(MEANS[name]))
        pairs = [(f, kind) for f in self.means for kind in MEANS[name]]
        entries = [self.each[f].per_class[1][kind] for f, kind in pairs]
        if not entries or any(entry.value is None for entry in entries):
            return estimate(float("nan"), *NONE, "mover")
        value = weight * sum(entry.value for entry in entries if entry.value is not None)
        if any(entry.low is None for entry in entries):
            return estimate(value, *NONE, "mover")
        parts = (self._part(int(f), kind, weight) for f, kind in pairs)
        return estimate(value, *mean_interval(parts, np.zeros(len(self.labels)), quantile(), self.units), "mover")

    def _part(self, f: int, kind: str, weight: float) -> Part:
        """A number of a finding; images whose label is unknown have no influence."""
        part, influence = self.each[f].part(1, kind, weight), np.zeros(len(self.labels))
        influence[self.known[:, f]] = part.influence
        return part._replace(influence=influence)

    def mean_area(self, name: str) -> Area:
        """The mean AUROC or average precision over findings, its influence leveraged; NaN where it is undefined."""
        mean, weight = Area(0.0 if len(self.means) else np.nan, np.zeros(len(self.labels))), 1 / max(1, len(self.means))
        for f in self.means:
            one, influence = self.each[f], np.zeros(len(self.labels))
            own = one.overall_areas[name]
            influence[self.known[:, f]] = one.units.leveraged(own.influence, one.labels)
            mean = mean.plus(Area(own.value, influence), weight)
        return mean

    @cached_property
    def cells(self) -> PreparedPredictions:
        """All known labels together, each an image of its patient."""
        names = [str(unit) for unit in self.units.index]
        groups = tuple(names[i] for i in np.nonzero(self.known)[0])
        return PreparedPredictions(replace(pooled(self.predictions), groups=groups))

    def _pooled(self) -> dict[str, Estimate]:
        """The numbers of all known labels together."""
        overall, (_, present) = self.cells.estimates()
        found = {f"{name}_micro": present[name] for name in POOLED} | {name: overall[name] for name in LOSSES}
        return found | {"hamming_loss": _complement(overall["accuracy"])}

    def _reasons(self, found: Numbers, own: list[Numbers]) -> tuple[dict[str, str], dict[str, str]]:
        """Why numbers have no value, and why those with a value have no interval; of each finding as of two classes."""
        undefined: dict[str, str] = {}
        no_interval: dict[str, str] = {}
        lone = f"the images that it counts come from fewer than 2 {self._unit}s"
        for c, of_two in zip(found.classes, own, strict=True):
            for key, entry in ((f"{kind} of {c}", found.per_class[c][kind]) for kind in PER_CLASS):
                if entry.value is None:
                    undefined[key] = of_two.undefined[key] if of_two.n else f"no label of '{c}' is known"
                elif entry.low is None and self.units.count > 1:
                    no_interval[key] = of_two.no_interval.get(key, lone)
        for name, entry in found.overall.items():
            keys = [f"{kind} of {found.classes[f]}" for f in self.means for kind in MEANS.get(name, ())]
            if entry.value is None:
                undefined[name] = next((undefined[key] for key in keys if key in undefined), self._why_undefined(name))
            elif entry.low is None and self.units.count > 1:
                why = self._why_unsure() if entry.method == "influence" else lone
                no_interval[name] = next((no_interval[key] for key in keys if key in no_interval), why)
        return undefined, no_interval

    def _why_undefined(self, name: str) -> str:
        """Why a number of `overall` has no value, unless it is that of a finding."""
        if not self.known.any():
            return "no label is known" if len(self.labels) else "there are no images"
        if name in MEANS:
            return "no finding has images with it and images without it"
        if name == "no_finding_specificity":
            return "every image has a finding"
        if not (self.labels == 1).any():
            return "no image has a finding"
        return "no finding was called" if (self.labels == 0).any() else "every known finding is present"

    def _why_unsure(self) -> str:
        """Why a loss, or an average precision, of all labels has no interval."""
        for value, what in ((1, "with"), (0, "without")):
            held = len(np.unique(self.units.index[(self.labels == value).any(axis=1)]))
            if held < FEWEST:
                return f"too few to say: {counted(held, self._unit)} {what} a finding"
        return "no image shows how much it varies"

    def _notes(self, found: Numbers) -> list[str]:
        """What a reader must know about the numbers."""
        unknown, notes = (~self.known).sum(axis=0), []
        if unknown.any():
            most = f"{unknown.max():,} of '{found.classes[unknown.argmax()]}'"
            total = counted_doing(int(unknown.sum()), "label")
            notes = [f"{total} not known, of {self.labels.size:,} ({most}): every number counts the known labels only."]
        left = [f"'{c}'" for f, c in enumerate(found.classes) if f not in self.means]
        if left and len(self.means):
            few = f"fewer than {FEWEST} {self._unit}s have it, or fewer have images without it"
            why = few if self._solid else "no image has it, or every image has it"
            notes.append(f"Means over findings leave out {counted(len(left), 'finding')}: {listed(left)} ({why}).")
        holders = {c: one.holders[1] for c, one in zip(found.classes, self.each, strict=True)}
        notes += few_notes(found, holders, self.units.count, self.predictions.groups, "finding")
        return [*notes, *below_chance(found, "findings")]

    @property
    def _unit(self) -> str:
        return "image" if self.predictions.groups is None else "patient"

    @property
    def _solid(self) -> bool:
        """Whether the findings of the means have at least `FEWEST` patients of either kind."""
        return all(min(self.each[f].holders) >= FEWEST for f in self.means)


def _complement(found: Estimate) -> Estimate:
    """1 minus a number."""
    value, low, high = (np.nan if x is None else 1 - x for x in (found.value, found.high, found.low))
    return estimate(value, low, high, found.method or "")
