"""Images with a doubtful label: confident learning, on predictions of images that the model was not trained on.

Northcutt, Jiang & Chuang, J. Artif. Intell. Res. 70 (2021) 1373 (arXiv 1911.00068), section 3.1: an image counts for a
class whose probability is at least its mean among the images with that label, and for the likeliest of several such
classes (the confident joint). Suspects are the images off the diagonal of that count, ranked by the normalised margin
of the label. cleanlab 2.9.0, the authors' package, finds the same images in the same order
(`filter_by="confident_learning"`); it would bring pandas.

A model that ranks by chance would doubt nearly half of the labels. So nothing is computed unless the interval of its
AUROC, by patient where patients are known, lies above 0.5.

No label is changed. A suspect is an image to look at: the model may be wrong, and often is if it makes many errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.text_files import csv_text
from vitmed.metrics.estimates import Numbers
from vitmed.metrics.predictions import Predictions, known_labels

LISTED = 50  # suspects in metrics.json; label_issues.csv has all
PAIRS = 20
HEADER = ("row", "path", "label", "suggested", "score")


@dataclass(frozen=True)
class Suspects:
    """N images with a doubtful label, the most doubtful first."""

    rows: np.ndarray  # (N,) int64, from 0
    suggested: np.ndarray  # (N,) int64 the class that they count for
    scores: np.ndarray  # (N,) float64 probability of the label minus the largest of another class, -1..0


class DoubtedPair(Frozen):
    """How many labels of one class may be of another."""

    label: str
    suggested: str
    n: int


class DoubtedLabel(Frozen):
    """An image of predictions.csv, by its row from 1; `score` as in `Suspects`."""

    row: int
    label: str
    suggested: str
    score: float


class LabelErrors(Frozen):
    """`n` suspects `of` all images: the most frequent `PAIRS`, the first `LISTED`; or the reason why there are none."""

    n: int | None = None
    of: int
    pairs: list[DoubtedPair] = []
    rows: list[DoubtedLabel] = []
    reason: str | None = None


def class_thresholds(predictions: Predictions) -> np.ndarray:
    """(K,) float64: the mean probability of each class among the images with its label; infinite without images."""
    labels, p = known_labels(predictions), predictions.probabilities
    size = p.shape[1]
    count = np.bincount(labels, minlength=size)
    total = np.bincount(labels, p[np.arange(len(labels)), labels], minlength=size)
    return np.divide(total, count, out=np.full(size, np.inf), where=count > 0)


def find_suspects(predictions: Predictions) -> Suspects:
    """The images that count for another class than their label, and for which that class is likelier."""
    labels, p = known_labels(predictions), predictions.probabilities
    every = np.arange(len(labels))
    passing = np.where(p >= class_thresholds(predictions), p, -1.0)  # (S, K)
    counted = passing.argmax(axis=1) if p.size else labels
    others = p.copy()
    others[every, labels] = -1.0
    margin = p[every, labels] - others.max(axis=1, initial=-1.0)
    rows = np.flatnonzero((counted != labels) & (passing.max(axis=1, initial=-1.0) >= 0) & (margin < 0))
    rows = rows[np.argsort(margin[rows], kind="stable")]
    return Suspects(rows, counted[rows].astype(np.int64), margin[rows])


def label_errors(predictions: Predictions, numbers: Numbers) -> LabelErrors | None:
    """The suspects for metrics.json, from predictions and their `numbers`; None without images."""
    if not len(predictions):
        return None
    labels, classes = known_labels(predictions), predictions.classes
    if len(np.unique(labels)) < 2:
        return LabelErrors(of=len(labels), reason=f"all images have the label '{classes[labels[0]]}'")
    area = numbers.overall["auroc"]
    least = area.value if area.low is None else area.low
    if least is None or least <= 0.5:
        interval = "" if area.low is None else f", interval {area.low:.3f} to {area.high:.3f}"
        shown = "" if area.value is None else f" (AUROC {area.value:.3f}{interval})"
        return LabelErrors(of=len(labels), reason=f"the model is not shown to be better than chance{shown}")
    suspects = find_suspects(predictions)
    pairs, counts = np.unique(labels[suspects.rows] * len(classes) + suspects.suggested, return_counts=True)
    frequent, listed = list[DoubtedPair](), list[DoubtedLabel]()
    for i in np.argsort(-counts, kind="stable")[:PAIRS]:
        label, other = (classes[k] for k in divmod(int(pairs[i]), len(classes)))
        frequent.append(DoubtedPair(label=label, suggested=other, n=int(counts[i])))
    for row, other, score in list(zip(suspects.rows, suspects.suggested, suspects.scores, strict=True))[:LISTED]:
        names = {"label": classes[labels[row]], "suggested": classes[other]}
        listed.append(DoubtedLabel(row=int(row) + 1, **names, score=float(score)))
    return LabelErrors(n=len(suspects.rows), of=len(labels), pairs=frequent, rows=listed)


def issues_csv(predictions: Predictions) -> str:
    """The text of `label_issues.csv`: all suspects, the most doubtful first; row 1 is the first of predictions.csv."""
    labels, found = known_labels(predictions), find_suspects(predictions)
    rows: list[Sequence[object]] = [HEADER]
    for row, other, score in zip(found.rows, found.suggested, found.scores, strict=True):
        own = (predictions.paths[row], predictions.classes[labels[row]], predictions.classes[other])
        rows.append([int(row) + 1, *own, f"{score:.6f}"])
    return csv_text(rows)
