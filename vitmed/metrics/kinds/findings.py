"""Findings, each of which an image has or has not: what a model predicts, and every number that judges it.

Of each finding it is the prediction of two classes: `of` returns it as `Predictions`, and every metric, decision and
figure of two classes applies to it. Unknown labels are left out everywhere. Letters: S images, F findings.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from vitmed.core.base_models import NO_FINDING, UNKNOWN, Kind
from vitmed.core.text import counted, counted_doing, listed
from vitmed.metrics.areas import Area
from vitmed.metrics.estimates import FEWEST, Estimate, Numbers, Sample, estimate, of_share
from vitmed.metrics.intervals import NONE, Part, mean_interval, rates_of, ratio, share
from vitmed.metrics.kinds.classes import LOSSES, PreparedPredictions
from vitmed.metrics.kinds.prepared import Gap, Prepared, below_chance
from vitmed.metrics.metric_table import AREAS, FINDING_METRICS, Metric
from vitmed.metrics.paired_comparison import ClassDifference, area_gap, gap_estimate, share_difference
from vitmed.metrics.predictions import LEAST, Predictions, is_called, known_labels, softmax
from vitmed.metrics.predictions_csv import BETWEEN, LABEL, LOGIT, PROB, Table, as_number


class FindingPredictions(Predictions):
    """What a model predicts of F findings: labels are (S, F) int8, 1, 0 or `UNKNOWN`; the sigmoid of a logit is a
    probability; `decided` is (S, F) bool, and `members` are the findings that cannot be excluded.

    Its table has the columns `path, group, prediction`, of each finding `label_<finding>` (1, 0 or empty: unknown),
    `prob_<finding>` and `logit_<finding>`, then any further columns. `prediction` joins the findings that are called by
    " | ", or is "no finding".
    """

    kind: ClassVar[Kind] = "findings"
    UNLABELLED: ClassVar[str] = "give a table with the findings of each image"
    LABEL_COLUMN: ClassVar[tuple[str, str]] = f"{LABEL}<finding>", "give 1 or 0 where a finding is known"
    LOGS: ClassVar[str] = "log odds"
    CALLS: ClassVar[str] = f"the findings that are called, between them '{BETWEEN}'; or '{NO_FINDING}'"
    FIRST: ClassVar[tuple[str, ...]] = ("path", "group", "prediction")
    DECIDING: ClassVar[dict[str, Any]] = {"thresholds": ()}
    EXCLUSIVE: ClassVar[bool] = False

    @cached_property
    def margins(self) -> np.ndarray:
        return self.probabilities - self.limits

    @cached_property
    def probabilities(self) -> np.ndarray:
        """(S, F) float64, 0..1: calibrated where there is a calibration, else the sigmoid of the logits."""
        if self.calibrated is not None:
            return self.calibrated
        pairs = np.stack([np.zeros_like(self.logits), self.logits], axis=-1).reshape(-1, 2)
        return softmax(pairs)[:, 1].reshape(self.logits.shape)  # to the bit those of `of`, so that a tie is one in both

    @cached_property
    def limits(self) -> np.ndarray:
        """(F,) the probabilities from which a finding is called."""
        return np.array([0.5 if limit is None else limit for limit in self.thresholds or (None,) * len(self.classes)])

    @cached_property
    def predicted(self) -> np.ndarray:
        """(S, F) bool: the findings that are called."""
        return is_called(self.probabilities, self.limits) if self.decided is None else self.decided

    @cached_property
    def confidence(self) -> np.ndarray:
        raise AttributeError("findings have no one confidence: `probabilities` holds that of each finding")

    @cached_property
    def explained(self) -> np.ndarray:
        """(S,) int64: which finding it explains, unless you name another: the likeliest, beside its threshold."""
        return (self.probabilities / np.maximum(self.limits, LEAST)).argmax(axis=1).astype(np.int64)

    @cached_property
    def outcomes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return known_labels(self) == 1, known_labels(self) != UNKNOWN, self.predicted

    @cached_property
    def right(self) -> np.ndarray:
        """(S,) bool: whether any label is known, and each known one is right."""
        truth, known, called = self.outcomes
        return np.asarray(known.any(axis=1) & ((called == truth) | ~known).all(axis=1))

    def mistakes(self) -> np.ndarray:
        """(N,) the rows whose `explained` finding is wrong, the most confident first; unknown labels do not count."""
        if self.labels is None:
            return np.arange(0)
        each = np.arange(len(self)), self.explained
        truth, called, chance = self.labels[each], self.predicted[each], self.probabilities[each]
        wrong = np.flatnonzero((truth != UNKNOWN) & (called != (truth == 1)))
        return wrong[np.argsort(-np.where(called, chance, 1 - chance)[wrong], kind="stable")]

    def of(self, finding: str) -> Predictions:
        """The prediction of one finding as two classes, of the images whose label is known; all where none are."""
        f = self.classes.index(finding)
        rows = np.arange(len(self)) if self.labels is None else np.flatnonzero(self.labels[:, f] != UNKNOWN)
        part = self.take(rows)
        logits = part.logits[:, f]
        chances = None if part.calibrated is None else part.calibrated[:, f]
        return Predictions(
            classes=(absence(finding), finding),
            paths=part.paths,
            groups=part.groups,
            labels=None if part.labels is None else part.labels[:, f].astype(np.int64),
            logits=np.stack([np.zeros_like(logits), logits], axis=1),
            positive=finding,
            columns=part.columns,
            threshold=self.thresholds[f] if self.thresholds else None,
            named=self.named,
            calibrated=None if chances is None else np.stack([1 - chances, chances], axis=1),
            decided=None if part.decided is None else part.decided[:, f].astype(np.int64),
        )

    def cells(self) -> dict[str, list[str] | np.ndarray]:
        labels = np.full(self.logits.shape, UNKNOWN) if self.labels is None else self.labels
        called = (BETWEEN.join(self.classes[f] for f in np.flatnonzero(row)) or NO_FINDING for row in self.predicted)
        groups = list(self.groups or [""] * len(self))
        cells: dict[str, Any] = {"path": list(self.paths), "group": groups, "prediction": list(called)}
        for f, name in enumerate(self.classes):
            cells[LABEL + name] = [{1: "1", 0: "0", UNKNOWN: ""}[label] for label in labels[:, f].tolist()]
            cells[PROB + name], cells[LOGIT + name] = self.probabilities[:, f], self.logits[:, f]
        return cells

    @classmethod
    def _labels(cls, table: Table, classes: tuple[str, ...]) -> np.ndarray | None:
        """(S, F) int8; None where none is known."""
        columns = [LABEL + name for name in classes]
        values = table.floats(columns)
        known = np.array([[bool((row.get(name) or "").strip()) for name in columns] for row in table.rows], dtype=bool)
        known = known.reshape(values.shape)
        good = ~known | (values == 0) | (values == 1)
        table.check(columns, good, "1 (present), 0 (absent) or an empty cell (unknown)")
        return np.where(known, values, UNKNOWN).astype(np.int8) if known.any() else None

    @staticmethod
    def logs(chances: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(chances, LEAST)) - np.log(np.maximum(1 - chances, LEAST))

    def _calls(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        place, calls = (
            {name: f for f, name in enumerate(self.classes)},
            np.zeros((len(table.rows), self.logits.shape[1]), bool),
        )
        valid = np.ones(len(table.rows), bool)
        for i, cell in enumerate(table.cells("prediction")):
            names = [] if cell == NO_FINDING else [cell] if cell in place else cell.split(BETWEEN)
            valid[i] = set(names) <= set(place)
            calls[i, [place[name] for name in names if name in place]] = True
        return calls, valid


def is_of_findings(header: Sequence[str], rows: Sequence[Mapping[str, str]] = ()) -> bool:
    """Whether the columns, as `Table.header` names them, are those of findings. A table of classes may have further
    columns `label_<class>` beside `label`: not of each class, or 1 in each row for the class that `label` names."""
    names = {name.removeprefix(kind) for name in header for kind in (PROB, LOGIT) if name.startswith(kind)}
    labelled = [LABEL + name in header for name in names]
    held = ([name for name in names if as_number(row.get(LABEL + name)) == 1] == [row.get("label")] for row in rows)
    one_hot = len(names) > 1 and bool(rows) and all(held)
    return bool(labelled) and not one_hot and (all(labelled) if "label" in header else any(labelled))


def absence(finding: str) -> str:
    """The name of the class of images without a finding."""
    return f"no {finding}"


MEANS = {  # a mean over findings -> what it is the mean of
    **{name: (name,) for name in AREAS},
    "balanced_accuracy": ("sensitivity", "specificity"),
    **{f"{kind}_macro": (kind,) for kind in ("sensitivity", "specificity", "ppv", "npv", "f1")},
}
POOLED = (*AREAS, "sensitivity", "ppv", "f1")  # of all labels together


def fewer_holders(predictions: Predictions) -> np.ndarray:
    """(F,) how many patients (or images, where patients are unknown) have a finding, or have an image without it: the
    fewer of the two. Below `FEWEST`, little can be said of the finding."""
    labels, units = known_labels(predictions), predictions.units
    held = [[np.count_nonzero(np.bincount(units[of == value])) for value in (1, 0)] for of in labels.T]
    return np.array(held).reshape(-1, 2).min(axis=1)


def in_means(predictions: Predictions) -> np.ndarray:
    """(F,) bool: the findings of the means over findings.

    At least `FEWEST` patients (or images, where patients are unknown) have the finding, and as many have an image
    without it. If no finding has, every finding with an image of either kind counts.
    """
    least = fewer_holders(predictions)
    return np.asarray(least >= FEWEST if (least >= FEWEST).any() else least > 0)


def images_without(labels: np.ndarray) -> np.ndarray:
    """(S,) bool: any label is known, and each known one is absent."""
    return np.asarray((labels == 0).any(axis=1) & (labels != 1).all(axis=1))


def pooled(predictions: Predictions) -> Predictions:
    """All known labels of all findings, by image, as one prediction of two classes: the micro means are the numbers of
    the second class. Grouped by patients, and by images where those are unknown."""
    labels = known_labels(predictions)
    known = labels != UNKNOWN
    chances, logits = predictions.probabilities[known], predictions.logits[known]
    return Predictions(
        classes=("absent", "present"),
        paths=("",) * len(logits),
        groups=tuple(str(unit) for unit in predictions.units[np.nonzero(known)[0]]),
        labels=labels[known].astype(np.int64),
        logits=np.stack([np.zeros_like(logits), logits], axis=1),
        positive="present",
        calibrated=np.stack([1 - chances, chances], axis=1),
        decided=predictions.predicted[known].astype(np.int64),
    )


class PreparedFindings(Prepared):
    """One set of predictions of findings.

    A mean over the findings of `in_means` has the interval of a mean over classes: from the intervals of its
    parts, whose errors are correlated because several findings are read in the same images and patients. A number of
    all labels together (micro) has the interval of two classes, each label an image of its patient; without patients
    the labels of an image stay together.
    """

    metrics: ClassVar[dict[str, Metric]] = FINDING_METRICS
    tested: ClassVar[tuple[str, ...]] = ("auroc", "subset_accuracy", "average_precision")
    unbounded: ClassVar[tuple[str, ...]] = ("log_loss",)

    def __init__(self, predictions: FindingPredictions):
        super().__init__(predictions)
        self.known = self.labels != UNKNOWN  # (S, F) bool
        self.read = self.known.any(axis=1)  # (S,) bool: any label is known
        self.right = predictions.right
        self.in_means = in_means(predictions)
        self.means = np.flatnonzero(self.in_means)
        self.each = [PreparedPredictions(predictions.of(name)) for name in predictions.classes]  # as two classes

    @cached_property
    def cells(self) -> PreparedPredictions:
        """All known labels together, each an image of its patient."""
        return PreparedPredictions(pooled(self.predictions))

    @cached_property
    def summands(self) -> np.ndarray:
        """(S, 4 F + 6): hits, false calls, misses and right absences of each finding; then what is counted by image."""
        labels, called = self.labels, self.predictions.predicted
        present, absent, empty = labels == 1, labels == 0, images_without(labels)
        rows, size = np.nonzero(self.known)[0], len(labels)
        losses = [np.bincount(rows, loss, minlength=size) for loss in self.cells.losses.T]
        counts = present & called, absent & called, present & ~called, absent & ~called
        by_image = self.right, self.read, self.right & empty, empty
        return np.column_stack([*counts, *by_image, *losses]).astype(np.float64)

    def of_sums(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        counts, (right, images, clear, empty, log_loss, brier) = sums[..., :-6], np.moveaxis(sums[..., -6:], -1, 0)
        tp, fp, fn, tn = np.moveaxis(counts.reshape(*sums.shape[:-1], 4, len(self.in_means)), -2, 0)  # (..., F)
        each, means = rates_of(tp, fp, fn, tn), [name for name in MEANS if name not in AREAS]
        each["balanced_accuracy"] = (each["sensitivity"] + each["specificity"]) / 2
        parts = (each[name.removesuffix("_macro")][..., self.in_means] for name in means)
        macro = {name: ratio(part.sum(axis=-1), self.in_means.sum()) for name, part in zip(means, parts, strict=True)}
        tp, fp, fn, tn = (count.sum(axis=-1) for count in (tp, fp, fn, tn))
        known, micro = tp + fp + fn + tn, rates_of(tp, fp, fn, tn)
        both = np.where((tp + fn > 0) & (fp + tn > 0), 1.0, np.nan)  # else PPV and F1 do not depend on the model
        return macro | {
            "sensitivity_micro": micro["sensitivity"],
            "ppv_micro": both * micro["ppv"],
            "f1_micro": both * micro["f1"],
            "hamming_loss": ratio(fp + fn, known),
            "log_loss": ratio(log_loss, known),
            "brier": ratio(brier, known),
            "subset_accuracy": ratio(right, images),
            "no_finding_specificity": ratio(clear, empty),
        }

    @cached_property
    def overall_areas(self) -> dict[str, Area]:
        """Means over findings, their influence leveraged, NaN where undefined; then those of all labels together."""
        areas, rows = dict[str, Area](), np.nonzero(self.known)[0]
        for name in AREAS:
            mean = Area(0.0 if len(self.means) else np.nan, np.zeros(len(self.labels)))
            for f in self.means:
                area = self.each[f].overall_areas[name]
                influence = self._of_images(f, self.each[f].leveraged(area))
                mean = mean.plus(Area(area.value, influence), 1 / len(self.means))
            areas[name] = mean
        for name, area in self.cells.overall_areas.items():
            influence = np.bincount(rows, self.cells.leveraged(area), minlength=len(self.labels))
            areas[f"{name}_micro"] = Area(area.value, influence)
        return areas

    def details(self) -> dict[str, Any]:
        right, names = share(self.right, self.read, self.units), self.predictions.classes
        return {
            "sample": Sample.of(self.units, self.patients, right, [finding.class_shares[1] for finding in self.each]),
            "per_class": {c: two.numbers.per_class[c] for c, two in zip(names, self.each, strict=True)},
        }

    @cached_property
    def overall(self) -> dict[str, Estimate]:
        micro, present = self.cells.overall, self.cells.per_class[1]
        overall = dict[str, Estimate]()
        for name, kinds in MEANS.items():
            weight = 1 / max(1, len(self.means) * len(kinds))
            pairs = [(f, kind) for f in self.means for kind in kinds]
            entries = [self.each[f].per_class[1][kind] for f, kind in pairs]
            value = weight * sum(np.nan if entry.value is None else entry.value for entry in entries)
            if not entries or any(entry.low is None for entry in entries):
                overall[name] = estimate(value if entries else np.nan, *NONE, "wilson-mean")
                continue
            each = ((f, self.each[f].part(1, kind, weight)) for f, kind in pairs)
            parts = list[Part]()
            for f, part in each:
                influence, images = self._of_images(f, part.influence), self._of_images(f, part.images)
                parts.append(part._replace(influence=influence, images=images))
            overall[name] = estimate(value, *mean_interval(value, parts, self.units), "wilson-mean")
        overall |= {f"{name}_micro": present[name] for name in POOLED} | {name: micro[name] for name in LOSSES}
        right = self.cells.accuracy
        overall["hamming_loss"] = estimate(1 - right.value, 1 - right.high, 1 - right.low, right.method)
        by_image = {"subset_accuracy": self.read, "no_finding_specificity": images_without(self.labels)}
        overall |= {name: of_share(share(self.right, images, self.units)) for name, images in by_image.items()}
        return {name: overall[name] for name in FINDING_METRICS}

    def _of_images(self, f: np.integer, influence: np.ndarray) -> np.ndarray:
        """(S,) the influence of the images whose label of a finding is known, 0 for the others."""
        influences = np.zeros(len(self.labels))
        influences[self.known[:, f]] = influence
        return influences

    def parts(self, name: str, entry: Estimate) -> list[str]:
        return [f"{kind} of {self.predictions.classes[f]}" for f in self.means for kind in MEANS.get(name, ())]

    def why(self, name: str, entry: Estimate, numbers: Numbers) -> str:
        """Why, as for two classes, of a finding or of the mean of all findings."""
        _, _, finding = name.partition(" of ")
        of_two = self.each[numbers.classes.index(finding)].numbers if finding else None
        lone = f"the images that it counts come from fewer than 2 {self.unit}s"
        if entry.value is not None:
            if self.units.count < 2:
                return ""
            if of_two is not None:
                return of_two.no_interval.get(name, lone)
            if name == "auroc_micro" and min(self.cells.holders) > 1 and self.units.count > 2:
                return f"no {self.unit} changes it, so its variance is unknown"
            if entry.method != "influence":
                return lone
            for value, what in ((1, "with"), (0, "without")):  # a loss, or an average precision, of all labels
                held = len(np.unique(self.units.index[(self.labels == value).any(axis=1)]))
                if held < FEWEST:
                    return f"too few to say: {counted(held, self.unit)} {what} a finding"
            return "all images agree, so the variance is unknown"
        if of_two is not None:
            return of_two.undefined[name] if of_two.n else f"no label of '{finding}' is known"
        if not self.known.any():
            return "no label is known" if len(self.labels) else "there are no images"
        if name in MEANS:
            return "no finding has images with it and images without it"
        if name == "no_finding_specificity":
            return "every image has a finding"
        if not (self.labels == 1).any():
            return "no image has a finding"
        return "no finding was called" if (self.labels == 0).any() else "every known finding is present"

    def notes(self, numbers: Numbers) -> list[str]:
        unknown, notes = (~self.known).sum(axis=0), []
        if unknown.any():
            most = f"{unknown.max():,} of '{numbers.classes[unknown.argmax()]}'"
            total = counted_doing(int(unknown.sum()), "label")
            notes = [f"{total} not known, of {self.labels.size:,} ({most}): every number counts the known labels only."]
        left = [f"'{c}'" for f, c in enumerate(numbers.classes) if f not in self.means]
        if left and len(self.means):
            why = "no image has it, or every image has it"
            if all(min(self.each[f].holders) >= FEWEST for f in self.means):
                why = f"fewer than {FEWEST} {self.unit}s have it, or fewer than {FEWEST} lack it"
            notes.append(f"Means over findings leave out {counted(len(left), 'finding')}: {listed(left)} ({why}).")
        holders = {c: finding.holders[1] for c, finding in zip(numbers.classes, self.each, strict=True)}
        notes += self.few_notes(numbers, holders, "finding")
        return [*notes, *below_chance(numbers, "findings")]

    def gaps(self, other: "PreparedFindings") -> dict[str, Gap]:
        gaps = super().gaps(other)
        gaps["subset_accuracy"] = share_difference(self.right, other.right, self.read, self.units)
        for name in AREAS:
            for key, mine, yours in ((name, self, other), (f"{name}_micro", self.cells, other.cells)):
                ends = self.overall[key], other.overall[key]
                gaps[key] = area_gap(mine.overall_areas[name], yours.overall_areas[name], ends, None, mine.units)
        return gaps

    def class_gaps(self, other: "PreparedFindings") -> dict[str, dict[str, ClassDifference]]:
        """Differences in AUROC and average precision, on the images whose label is known. Interval and p need at least
        `FEWEST` patients (or images) with the finding, and as many without it."""
        gaps: dict[str, dict[str, ClassDifference]] = {name: {} for name in AREAS}
        for finding, first, second in zip(self.predictions.classes, self.each, other.each, strict=True):
            for name, (reach, test) in first.area_gaps(second).items():
                same = first.predictions.same_as(second.predictions)
                difference = gap_estimate(first.point[name] - second.point[name], reach, test, same=same)
                gap = ClassDifference(**dict(difference), p=test.p)
                known = min(first.holders) >= FEWEST
                gaps[name][finding] = gap if known else gap.model_copy(update=dict.fromkeys(("low", "high", "p")))
        return gaps
