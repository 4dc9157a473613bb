"""Numbers about predictions, each with an interval: pure functions of `Predictions`, in numpy alone.

One implementation serves the point estimate and the bootstrap: every value is computed from image weights
(R, S), where R is the number of resamples. The point estimate is one row of ones; a resample holds how often
each image was drawn. A value that cannot be computed is NaN (null in JSON, with the reason beside it).

Letters: S images, K classes, R resamples, P images of one class.

The percentile bootstrap is that of Efron & Tibshirani, An Introduction to the Bootstrap (1993), chapter 13;
whole groups are drawn as in Field & Welsh, J. R. Stat. Soc. B 69 (2007) 369. With a few groups it is known to
be too narrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitmed.errors import DataError
from vitmed.predictions import Predictions

FEW_GROUPS = 10  # below this many groups the spread between them is itself hardly known
CHUNK = 2**19  # image weights held at once (4 MB): larger is slower, because it leaves the processor's cache
PER_CLASS = ("sensitivity", "specificity", "ppv", "npv", "f1", "auroc", "average_precision")
NEGATIONS = {"no", "non", "not", "without"}
PREFIXES = ("no", "non", "not", "un")
NEGATIVES = {
    *("normal", "healthy", "negative", "neg", "benign", "uninfected", "unaffected", "control", "controls"),
    *("absent", "clean", "none", "false", "0"),
}


@dataclass(frozen=True)
class Metric:
    """A number that can choose the best epoch (`train.monitor`) or be a gate (`--fail-under`).

    Attributes:
        title: as it stands in a report.
        higher_is_better: False for losses.
        text: one sentence that says what it is.
    """

    title: str
    higher_is_better: bool
    text: str


def positive_class(classes: Sequence[str]) -> int:
    """Which of two classes is the finding: the one that is not named like its absence, else the last.

    `normal`, `no_tumor`, `NOT INFECTED`, `uninfected`, `0` are names of an absence; `abnormal` is not.
    """
    absent = [_names_absence(name, classes) for name in classes]
    return absent.index(False) if absent.count(False) == 1 else len(classes) - 1


def finding(predictions: Predictions) -> int | None:
    """Index of the positive class of two: as was said, else by its name. None for more classes."""
    classes = predictions.classes
    if len(classes) != 2:
        return None
    return positive_class(classes) if predictions.positive is None else classes.index(predictions.positive)


def metric_values(predictions: Predictions) -> dict[str, float]:
    """Every number of `METRICS`, without intervals; NaN where it is undefined. Milliseconds for 5,000 images.

    Raises:
        DataError: the predictions have no labels.
    """
    labels = known_labels(predictions)
    overall, _, _ = _Scorer(labels, predictions).values(np.ones((1, len(labels))))
    return {name: float(values[0]) for name, values in overall.items()}


def evaluate_predictions(
    predictions: Predictions, resamples: int = 2000, seed: int = 0, level: float = 0.95
) -> dict[str, Any]:
    """Every number with its percentile bootstrap interval; whole groups are drawn where groups are known.

    Args:
        predictions: with labels.
        resamples: how many times to draw.
        seed: of the draws.
        level: share of the resamples that lies inside an interval, 0..1.

    Returns:
        A dict that JSON can hold (no NaN): n, n_groups (None if unknown), resampling ("by patient" or
        "by image"), resamples, level, classes, positive_class (its name; None unless there are two classes),
        overall {name: {value, low, high}}, per_class {class: {n, name: {value, low, high}}},
        confusion_matrix (K x K counts, rows are the truth), undefined {name: reason}, notes [sentence].

    Raises:
        DataError: the predictions have no labels.
    """
    labels, classes = known_labels(predictions), predictions.classes
    scorer = _Scorer(labels, predictions)
    point, point_classes, confusion = scorer.values(np.ones((1, len(labels))))
    units = group_index(predictions.groups, len(labels))
    n_units = int(units.max()) + 1 if len(units) else 0

    draws: dict[str, list[np.ndarray]] = {name: [] for name in point}
    draws_classes: dict[str, list[np.ndarray]] = {name: [] for name in point_classes}
    if n_units > 1:
        for weights in bootstrap_weights(units, resamples, seed):
            overall, per_class, _ = scorer.values(weights)
            for name, values in overall.items():
                draws[name].append(values)
            for name, values in per_class.items():
                draws_classes[name].append(values)

    def entry(value: float, drawn: list[np.ndarray]) -> dict[str, float | None]:
        return _entry(value, np.concatenate(drawn) if drawn else np.empty(0), level)

    grouped = predictions.groups is not None
    support = confusion[0].sum(axis=1)
    result: dict[str, Any] = {
        "n": len(labels),
        "n_groups": n_units if grouped else None,
        "resampling": "by patient" if grouped else "by image",
        "resamples": resamples,
        "level": level,
        "classes": list(classes),
        "positive_class": None if scorer.positive is None else classes[scorer.positive],
        "overall": {name: entry(float(values[0]), draws[name]) for name, values in point.items()},
        "per_class": {
            c: {
                "n": int(support[k]),
                **{m: entry(v[0, k], [d[:, k] for d in draws_classes[m]]) for m, v in point_classes.items()},
            }
            for k, c in enumerate(classes)
        },
        "confusion_matrix": confusion[0].astype(int).tolist(),
    }
    result["undefined"] = _undefined(result)
    result["notes"] = _notes(result, labels, units, predictions.groups)
    return result


def compare_predictions(
    predictions: Predictions, other: Predictions, resamples: int = 2000, seed: int = 0, level: float = 0.95
) -> dict[str, Any]:
    """Two models on the same images: the numbers of the other, and by how much the first is above it.

    Both are judged in the same resamples (paired bootstrap), so the interval of a difference is that of the
    difference, narrower than those of the two numbers suggest.

    Returns:
        overall {name: {value, low, high}} of `other`, and difference {name: {value, low, high}}, first - other.

    Raises:
        DataError: not the same images, labels or classes in the same order; or no labels.
    """
    labels = known_labels(predictions)
    if predictions.paths != other.paths or predictions.classes != other.classes:
        raise DataError("the two predictions are not of the same images and classes", "predict the same images")
    if not np.array_equal(labels, known_labels(other)):
        raise DataError("the two predictions have different labels for the same images", "predict the same images")
    scorers = [_Scorer(labels, predictions), _Scorer(labels, other)]
    units = group_index(predictions.groups, len(labels))
    whole = [scorer.values(np.ones((1, len(labels))))[0] for scorer in scorers]
    draws: list[list[dict[str, np.ndarray]]] = [[], []]
    if len(labels) and units.max() > 0:
        for weights in bootstrap_weights(units, resamples, seed):
            for scorer, drawn in zip(scorers, draws, strict=True):
                drawn.append(scorer.values(weights)[0])
    result: dict[str, Any] = {"overall": {}, "difference": {}}
    for name in whole[0]:
        first, second = (np.concatenate([d[name] for d in drawn]) if drawn else np.empty(0) for drawn in draws)
        values = float(whole[0][name][0]), float(whole[1][name][0])
        result["overall"][name] = _entry(values[1], second, level)
        result["difference"][name] = _entry(values[0] - values[1], first - second, level)
    return result


def _entry(value: float, drawn: np.ndarray, level: float) -> dict[str, float | None]:
    """A number and its interval, for JSON; null where it is undefined."""
    low, high = percentile_interval(drawn, level)
    defined = np.isfinite(value)
    return {"value": _json(value), "low": _json(low) if defined else None, "high": _json(high) if defined else None}


def bootstrap_weights(units: np.ndarray, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Draw units with replacement, as many as there are, `resamples` times.

    Args:
        units: (S,) int64, the unit (image or group) of each image, 0..G-1.

    Yields:
        (r, S) float64 weights, how often each image was drawn; the r add up to `resamples`, and r x S is bounded.
    """
    rng = np.random.default_rng(seed)
    size = int(units.max()) + 1
    rows = max(1, CHUNK // max(1, len(units)))
    for start in range(0, resamples, rows):
        r = min(rows, resamples - start)
        drawn = rng.integers(size, size=(r, size)) + size * np.arange(r)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=r * size).reshape(r, size).astype(np.float64)  # (r, G)
        yield counts.take(units, axis=1)  # (r, S)


def percentile_interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The middle `level` of the defined values; (NaN, NaN) where there are none."""
    values = values[np.isfinite(values)]
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def group_index(groups: Sequence[str] | None, size: int) -> np.ndarray:
    """(S,) int64 number of each image's group; without groups, and where its name is empty, each is its own."""
    if groups is None:
        return np.arange(size)
    numbers: dict[tuple[str, int], int] = {}
    keys = [(name, -1 if name else i) for i, name in enumerate(groups)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def threshold_counts(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many positives and negatives score at least t, for every distinct score t from high to low.

    Args:
        scores: (S,) float.
        positive: (S,) bool.

    Returns:
        true and false positives, (T + 1,) int64 each, opened by 0: T distinct scores.
    """
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)[: len(scores)]  # the last image of each tie
    hits = np.cumsum(positive[order])[last]
    seen = np.flatnonzero(last) + 1
    return np.concatenate([[0], hits]), np.concatenate([[0], seen - hits])


class _Ranking:
    """Images in the order of one class's score, so that a resample needs sums and no sorting.

    For the i-th image of the class, counting from the highest score: how many images, and how many of the
    class, stand above it (`*_above`) and above or level with it (`*_to`).
    """

    def __init__(self, scores: np.ndarray, positive: np.ndarray):
        self.order = np.argsort(-scores, kind="stable")  # (S,)
        ranked, hit = scores[self.order], positive[self.order]
        new = np.append(True, np.diff(ranked) != 0)[: len(ranked)]  # the first image of each tie
        tie = np.cumsum(new) - 1
        first = np.flatnonzero(new)
        after = np.append(first[1:], len(ranked))
        hits = np.append(0, np.cumsum(hit))
        self.positives = self.order[hit]  # (P,)
        self.above, self.to = first[tie[hit]], after[tie[hit]]
        self.hits_above, self.hits_to = hits[self.above], hits[self.to]

    def scores(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """AUROC and average precision, (R,) each, of image weights (R, S).

        AUROC is the share of (positive, negative) pairs in the right order, a tie counting half (Mann-Whitney).
        Average precision is the sum of precision x step of recall over distinct scores, without interpolation.
        """
        w = weights.take(self.positives, axis=1)  # (R, P)
        every = _running(weights.take(self.order, axis=1))  # (R, S + 1)
        hits = _running(w)  # (R, P + 1)
        positives, negatives = hits[:, -1], every[:, -1] - hits[:, -1]
        every_to, hits_to = every.take(self.to, axis=1), hits.take(self.hits_to, axis=1)
        misses = every_to - hits_to + every.take(self.above, axis=1) - hits.take(self.hits_above, axis=1)
        auroc = _ratio(np.einsum("rp,rp->r", w, negatives[:, None] - misses / 2), positives * negatives)
        precision = np.divide(hits_to, every_to, out=np.zeros_like(every_to), where=every_to > 0)
        return auroc, _ratio(np.einsum("rp,rp->r", w, precision), positives)


def rank_auroc(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """AUROC of scores (S, K), the mean of each class against the rest, for image weights (R, S): (R,).

    A class without images in a resample makes it undefined there: NaN. Of two classes both give the same.
    """
    classes = range(1, 2) if scores.shape[1] == 2 else range(scores.shape[1])
    return np.mean([_Ranking(scores[:, c], labels == c).scores(weights)[0] for c in classes], axis=0)


class _Scorer:
    """Everything about one set of predictions that does not depend on the weights, computed once."""

    def __init__(self, labels: np.ndarray, predictions: Predictions):
        probabilities, predicted = predictions.probabilities, predictions.predicted
        self.size = k = len(predictions.classes)
        self.positive = finding(predictions)
        cells = labels * k + predicted
        self.order = np.argsort(cells, kind="stable")
        self.cells, self.starts = np.unique(cells[self.order], return_index=True)
        truth = np.eye(k)[labels]  # (S, K)
        present = (np.bincount(labels, minlength=k) > 0).astype(float)
        self.even = _ratio(present, present.sum())  # (K,) weights of a plain mean over the classes with images
        tiny = np.finfo(np.float64).eps  # as scikit-learn: a certain error costs 36, not infinity
        log_loss = -np.log(np.clip(probabilities[np.arange(len(labels)), labels], tiny, 1 - tiny))
        squares = (probabilities - truth) ** 2
        brier = squares.sum(axis=1) if self.positive is None else squares[:, self.positive]
        self.losses = np.stack([log_loss, brier], axis=1)  # (S, 2)
        self.rankings = [_Ranking(probabilities[:, c], labels == c) for c in range(k)]

    def values(self, weights: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
        """All numbers for image weights (R, S).

        Returns:
            overall: name -> (R,); per class: name -> (R, K); confusion matrix (R, K, K), rows are the truth.
        """
        r, k = len(weights), self.size
        cells = np.zeros((r, k * k))
        if len(self.cells):
            cells[:, self.cells] = np.add.reduceat(weights.take(self.order, axis=1), self.starts, axis=1)
        matrix = cells.reshape(r, k, k)
        total = matrix.sum(axis=(1, 2))  # (R,)
        support, called = matrix.sum(axis=2), matrix.sum(axis=1)  # (R, K): truly and predicted of the class
        tp = np.diagonal(matrix, axis1=1, axis2=2)  # (R, K)
        others, elsewhere = total[:, None] - support, total[:, None] - called
        tn = others - called + tp
        ranks = [ranking.scores(weights) for ranking in self.rankings]
        per_class = {
            "sensitivity": _ratio(tp, support),
            "specificity": _ratio(tn, others),
            "ppv": _ratio(tp, called),
            "npv": _ratio(tn, elsewhere),
            "f1": _ratio(2 * tp, support + called),
            "auroc": np.stack([auroc for auroc, _ in ranks], axis=1),
            "average_precision": np.stack([precision for _, precision in ranks], axis=1),
        }
        # Averages leave out a class without images. One that has images and no value makes them undefined: a
        # class that is never predicted has no PPV, and leaving it out would reward ignoring it.
        share = _ratio(support, total[:, None])
        # So is a resample that happens to have none of a class: its mean over the others is another quantity.

        def mean(name: str, weight: np.ndarray) -> np.ndarray:
            return np.where(weight == 0, 0, weight * per_class[name]).sum(axis=1)

        losses = _ratio(weights @ self.losses, total[:, None])  # (R, 2)
        right = tp.sum(axis=1)
        chance = (support * called).sum(axis=1)  # total^2 x agreement by chance
        varied_truth = total**2 - (support**2).sum(axis=1)
        varied_calls = total**2 - (called**2).sum(axis=1)
        # Gorodkin, Comput. Biol. Chem. 28 (2004) 367. A constant prediction has covariance 0: MCC is 0, its limit.
        mcc = _ratio(
            right * total - chance, np.sqrt(varied_truth) * np.sqrt(np.where(varied_calls > 0, varied_calls, 1))
        )
        overall = {
            "accuracy": _ratio(right, total),
            "balanced_accuracy": mean("sensitivity", self.even),
            "mcc": np.where(varied_truth > 0, mcc, np.nan),
            "cohen_kappa": _ratio(right * total - chance, total**2 - chance),
            "log_loss": losses[:, 0],
            "brier": losses[:, 1],
        }
        for name in ("auroc", "average_precision"):
            overall[name] = mean(name, self.even) if self.positive is None else per_class[name][:, self.positive]
            overall[f"{name}_weighted"] = mean(name, share)
        for name in ("sensitivity", "specificity", "ppv", "npv", "f1"):
            overall[f"{name}_macro"] = mean(name, self.even)
            overall[f"{name}_weighted"] = mean(name, share)
        return overall, per_class, matrix


def _running(values: np.ndarray) -> np.ndarray:
    """Running sums along the rows, opened by 0: (R, N) -> (R, N + 1)."""
    sums = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """top / bottom, NaN where bottom is not above 0."""
    top, bottom = np.broadcast_arrays(top, bottom)
    return np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)


def known_labels(predictions: Predictions) -> np.ndarray:
    """(S,) int64, the true classes. Raises DataError where they are unknown."""
    if predictions.labels is None:
        raise DataError(
            "these predictions have no labels, so nothing can be measured", "evaluate images in class folders"
        )
    return predictions.labels


def _json(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _names_absence(name: str, classes: Sequence[str]) -> bool:
    words = [word for word in re.split(r"[\W_]+", name.lower()) if word]
    if words and words[0] in NEGATIONS:
        return not _names_absence(" ".join(words[1:]), classes)
    if any(word in NEGATIVES for word in words):
        return True
    joined = "".join(words)
    others = {"".join(re.split(r"[\W_]+", c.lower())) for c in classes} - {joined, ""}
    return any(joined == prefix + other and other not in NEGATIVES for other in others for prefix in PREFIXES)


def _undefined(result: dict[str, Any]) -> dict[str, str]:
    """Why each null value of the result is one."""
    n, classes, per_class = result["n"], result["classes"], result["per_class"]
    reasons: dict[str, str] = {}
    by_class: dict[tuple[str, str], str] = {}
    for c in classes:
        for name in PER_CLASS:
            if per_class[c][name]["value"] is not None:
                continue
            if not n:
                why = "there are no images"
            elif name == "ppv":
                why = f"no image was predicted as '{c}'"
            elif name == "npv":
                why = f"every image was predicted as '{c}'"
            else:
                why = (
                    f"every image is of class '{c}'" if per_class[c]["n"] == n else f"there is no image of class '{c}'"
                )
            by_class[name, c] = reasons[f"{name} of {c}"] = why
    for name, entry in result["overall"].items():
        if entry["value"] is not None:
            continue
        base = re.sub("_(macro|weighted)$", "", name)
        if name in ("auroc", "average_precision") and result["positive_class"]:
            counted = [result["positive_class"]]
        else:
            counted = [c for c in classes if per_class[c]["n"]]
        whys = [by_class[base, c] for c in counted if (base, c) in by_class]
        # without one it is MCC or kappa, which need two classes and not the numbers of each
        reasons[name] = whys[0] if whys else "all images are of one class" if n else "there are no images"
    return reasons


def _notes(result: dict[str, Any], labels: np.ndarray, units: np.ndarray, groups: Sequence[str] | None) -> list[str]:
    """What a reader must know before believing the numbers."""
    notes = []
    n_units = int(units.max()) + 1 if len(units) else 0
    unit = "image" if groups is None else "patient"
    absent = [f"'{c}'" for c, entry in result["per_class"].items() if not entry["n"]]
    if absent and result["n"]:
        notes.append(f"There is no image of class {', '.join(absent)}: averages over classes leave it out.")
    if n_units < 2:
        notes.append(f"There is no interval: it needs at least 2 {unit}s and there is {n_units or 'none'}.")
        return notes
    if n_units < FEW_GROUPS:
        notes.append(
            f"There are only {n_units} {unit}s: the intervals themselves are unreliable, and likely too narrow."
        )
    unknown = sum(1 for name in groups or () if not name)
    if unknown:
        notes.append(f"{unknown} images have no patient; each was drawn as a patient of its own.")
    lonely = [f"'{c}'" for k, c in enumerate(result["classes"]) if len(np.unique(units[labels == k])) == 1]
    if lonely and groups is not None:
        of = ", ".join(lonely)
        notes.append(f"All images of class {of} come from one patient: its intervals say nothing of other patients.")
    entries = [*result["overall"].values(), *(e[m] for e in result["per_class"].values() for m in PER_CLASS)]
    if any(entry["low"] is not None and entry["low"] == entry["high"] for entry in entries):
        notes.append(
            "Where an interval has no width, every resample gave the same value (often because no error was seen); "
            "that does not show that the value is certain."
        )
    return notes


METRICS: dict[str, Metric] = {
    "accuracy": Metric("Accuracy", True, "Share of images whose class is right."),
    "balanced_accuracy": Metric(
        "Balanced accuracy", True, "Mean over classes of the share found; blind to prevalence."
    ),
    "mcc": Metric("MCC", True, "Matthews correlation of truth and prediction, -1 to 1; 0 is chance."),
    "cohen_kappa": Metric("Cohen's kappa", True, "Agreement beyond chance, unweighted, -1 to 1; 0 is chance."),
    "log_loss": Metric("Log loss", False, "Mean -ln of the probability given to the true class."),
    "brier": Metric(
        "Brier score", False, "Mean squared error of the probability; more than two classes: summed over them."
    ),
    "auroc": Metric("AUROC", True, "Area under the ROC curve; more than two classes: one against the rest, mean."),
    "auroc_weighted": Metric("AUROC, weighted", True, "AUROC one against the rest, weighted by class size."),
    "average_precision": Metric(
        "Average precision", True, "Precision averaged over recall; more than two classes: one against the rest, mean."
    ),
    "average_precision_weighted": Metric(
        "Average precision, weighted", True, "Average precision one against the rest, weighted by class size."
    ),
    "sensitivity_macro": Metric("Sensitivity, macro", True, "Share of a class that is found, mean over classes."),
    "sensitivity_weighted": Metric("Sensitivity, weighted", True, "The same weighted by class size: the accuracy."),
    "specificity_macro": Metric("Specificity, macro", True, "Share of the other classes kept out, mean over classes."),
    "specificity_weighted": Metric("Specificity, weighted", True, "The same weighted by class size."),
    "ppv_macro": Metric("PPV, macro", True, "Share of a class's predictions that are right, mean over classes."),
    "ppv_weighted": Metric("PPV, weighted", True, "The same weighted by class size."),
    "npv_macro": Metric("NPV, macro", True, "Share of predictions of other classes that are right, mean over classes."),
    "npv_weighted": Metric("NPV, weighted", True, "The same weighted by class size."),
    "f1_macro": Metric("F1, macro", True, "Harmonic mean of sensitivity and PPV, mean over classes."),
    "f1_weighted": Metric("F1, weighted", True, "The same weighted by class size."),
}
