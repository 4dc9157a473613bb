"""Which class is confused with which: the wrong predictions counted by pair. Which findings are missed or called
wrongly; images whose label of a finding is unknown count nowhere for it.

Images with a doubtful label, by confident learning, on predictions of images that the model was not trained on:
Northcutt, Jiang & Chuang, J. Artif. Intell. Res. 70 (2021) 1373 (arXiv 1911.00068), section 3.1. An image counts for a
class whose probability is at least its mean among the images with that label, and for the likeliest of several such
classes (the confident joint). Suspects are the images off the diagonal of that count, ranked by the normalised margin
of the label. cleanlab 2.9.0, the authors' package, finds the same images in the same order
(`filter_by="confident_learning"`); it would bring pandas. A model that ranks by chance would doubt nearly half of the
labels: nothing is computed unless the interval of its AUROC, by patient where patients are known, lies above 0.5. Where
a class has no image, AUROC is undefined, and that of MCC must lie above 0.
"""

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.text_files import csv_text
from vitmed.metrics.estimates import Estimate, Numbers, of_share
from vitmed.metrics.intervals import Units, share
from vitmed.metrics.kinds.findings import FindingPredictions, images_without
from vitmed.metrics.predictions import Predictions, known_labels

PAIRS = 20  # the most frequent that are listed


class Confusion(Frozen):
    """Images of one class that were predicted as another."""

    truth: str
    predicted: str
    n: int
    share: float  # of the images of the true class
    patients: int | None  # None where they are unknown
    confidence: float  # the median


class Mistakes(Frozen):
    """`n` errors among all images, the `PAIRS` most frequent pairs, and the number of errors in further pairs."""

    n: int
    of: int
    pairs: list[Confusion]
    further: int


def error_pairs(predictions: Predictions) -> list[tuple[int, int, np.ndarray]]:
    """(truth, predicted, rows) by pair, most frequent first; the surest row first. Raises DataError without labels."""
    labels, predicted, size = known_labels(predictions), predictions.predicted, len(predictions.classes)
    wrong = predictions.mistakes()
    codes = labels[wrong] * size + predicted[wrong]
    pairs, counts = np.unique(codes, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:PAIRS]
    return [(int(code) // size, int(code) % size, wrong[codes == code]) for code in pairs[order]]


def mistakes(predictions: Predictions) -> Mistakes | None:
    """The number of errors, by pair; None without images."""
    if not len(predictions):
        return None
    labels, classes = known_labels(predictions), predictions.classes
    units, support = predictions.units, np.bincount(labels)
    pairs = [
        Confusion(
            truth=classes[truth],
            predicted=classes[predicted],
            n=len(rows),
            share=float(len(rows) / support[truth]),
            patients=None if predictions.groups is None else len(np.unique(units[rows])),
            confidence=float(np.median(predictions.confidence[rows])),
        )
        for truth, predicted, rows in error_pairs(predictions)
    ]
    wrong = int((~predictions.right).sum())
    return Mistakes(n=wrong, of=len(labels), pairs=pairs, further=wrong - sum(pair.n for pair in pairs))


WORST = 5  # images of each kind of error that are named


class FindingCounts(Frozen):
    """The calls of one finding by the truth, and the images in which it is unknown.

    `worst_misses` and `worst_false_calls` are rows of predictions.csv, from 1: the `WORST` images whose probability is
    furthest on the wrong side, the worst first.
    """

    finding: str
    hits: int
    misses: int
    false_calls: int
    right_absent: int
    unknown: int
    worst_misses: list[int]
    worst_false_calls: list[int]


class WithoutFindings(Frozen):
    """Images without any known finding: how many, in what share none is called, and which are, by falling number."""

    n: int
    specificity: Estimate
    called: dict[str, int]


class FindingErrors(Frozen):
    """Errors by finding, and in images without any."""

    findings: list[FindingCounts]
    without: WithoutFindings


def finding_errors(predictions: FindingPredictions) -> FindingErrors:
    """The errors of each finding, and where they happen. Raises DataError without labels."""
    labels, called, classes = known_labels(predictions), predictions.predicted, predictions.classes
    present, absent, none = labels == 1, labels == 0, images_without(labels)
    kinds = {
        "hits": present & called,
        "misses": present & ~called,
        "false_calls": absent & called,
        "right_absent": absent & ~called,
        "unknown": labels < 0,
    }
    counts = {kind: images.sum(axis=0).tolist() for kind, images in kinds.items()}
    wrong = (called & absent & none[:, None]).sum(axis=0)
    findings = []
    for f, name in enumerate(classes):
        misses, false_calls = ((rows[:WORST] + 1).tolist() for rows in wrong_rows(predictions, f))
        of_kinds = {kind: count[f] for kind, count in counts.items()}
        findings.append(FindingCounts(finding=name, **of_kinds, worst_misses=misses, worst_false_calls=false_calls))
    specificity = of_share(share(predictions.right, none, Units(predictions.units)))
    called_there = {classes[f]: int(wrong[f]) for f in np.argsort(-wrong, kind="stable") if wrong[f]}
    without = WithoutFindings(n=int(none.sum()), specificity=specificity, called=called_there)
    return FindingErrors(findings=findings, without=without)


def wrong_rows(predictions: FindingPredictions, f: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows where finding `f` is missed, by rising probability, and where it is a false alarm, by falling one."""
    labels, called, chances = known_labels(predictions)[:, f], predictions.predicted[:, f], predictions.probabilities
    missed, false = np.flatnonzero((labels == 1) & ~called), np.flatnonzero((labels == 0) & called)
    return tuple(rows[np.argsort(sign * chances[rows, f], kind="stable")] for rows, sign in ((missed, 1), (false, -1)))  # type: ignore[return-value]


class LabelErrors(Frozen):
    """`n` suspects `of` all images, which label_issues.csv lists; or the reason why there are none."""

    n: int | None = None
    of: int
    reason: str | None = None


def class_thresholds(predictions: Predictions) -> np.ndarray:
    """(K,) float64: the mean probability of each class among the images with its label; infinite without images."""
    labels, p = known_labels(predictions), predictions.probabilities
    size = p.shape[1]
    count = np.bincount(labels, minlength=size)
    total = np.bincount(labels, p[np.arange(len(labels)), labels], minlength=size)
    return np.divide(total, count, out=np.full(size, np.inf), where=count > 0)


def find_suspects(predictions: Predictions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the N images that count for another class than their label, and for which that class is likelier.

    Returns:
        (N,) each, the most doubtful first: int64 row from 0; int64 class that the image counts for; float64
        probability of the label minus the largest of another class, -1..0.
    """
    labels, p = known_labels(predictions), predictions.probabilities
    every = np.arange(len(labels))
    # 1e-6 for rounding, as in cleanlab: images of one probability reach their own mean
    passing = np.where(p >= class_thresholds(predictions) - 1e-6, p, -1.0)  # (S, K)
    counted = passing.argmax(axis=1) if p.size else labels
    others = p.copy()
    others[every, labels] = -1.0
    margin = p[every, labels] - others.max(axis=1, initial=-1.0)
    rows = np.flatnonzero((counted != labels) & (passing.max(axis=1, initial=-1.0) >= 0) & (margin < 0))
    rows = rows[np.argsort(margin[rows], kind="stable")]
    return rows, counted[rows].astype(np.int64), margin[rows]


def label_errors(predictions: Predictions, numbers: Numbers) -> LabelErrors | None:
    """The number of suspects, from predictions and their `numbers`; None without images."""
    if not len(predictions):
        return None
    labels, classes = known_labels(predictions), predictions.classes
    if len(np.unique(labels)) < 2:
        return LabelErrors(of=len(labels), reason=f"all images have the label '{classes[labels[0]]}'")
    name, chance = ("auroc", 0.5) if numbers.overall["auroc"].value is not None else ("mcc", 0.0)
    found = numbers.overall[name]
    least = found.value if found.low is None else found.low
    if least is None or least <= chance:
        interval = "" if found.low is None else f", interval {found.low:.3f} to {found.high:.3f}"
        shown = "" if found.value is None else f" ({name.upper()} {found.value:.3f}{interval})"
        return LabelErrors(of=len(labels), reason=f"the model is not shown to be better than chance{shown}")
    decided, guessed = numbers.overall["balanced_accuracy"], 1 / len(classes)
    if len(classes) > 2 and decided.low is not None and decided.low <= guessed:  # of two, a threshold may be why
        right = f"balanced accuracy {decided.value:.3f}, interval {decided.low:.3f} to {decided.high:.3f}"
        return LabelErrors(of=len(labels), reason=f"the classes are not decided better than by guessing ({right})")
    return LabelErrors(n=len(find_suspects(predictions)[0]), of=len(labels))


def issues_csv(predictions: Predictions) -> str:
    """The text of `label_issues.csv`: all suspects, the most doubtful first; row 1 is the first of predictions.csv."""
    labels = known_labels(predictions)
    rows: list[list[object]] = [["row", "path", "label", "suggested", "score"]]
    for row, other, score in zip(*find_suspects(predictions), strict=True):
        classes = predictions.classes[labels[row]], predictions.classes[other]
        rows.append([int(row) + 1, predictions.paths[row], *classes, f"{score:.6f}"])
    return csv_text(rows)
