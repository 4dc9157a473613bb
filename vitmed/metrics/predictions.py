"""`Predictions`: what a model predicts for a set of images.

Validation, evaluation and prediction produce one; every metric, figure and report is a pure function of it.
`predictions.csv` holds it completely, so a report can be rebuilt without a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from vitmed.core.base_models import Kind
from vitmed.core.errors import DataError
from vitmed.metrics.predictions_csv import (
    FIXED_COLUMNS,
    LOGIT,
    NEAR,
    PROB,
    Table,
    read_table,
    rounded_note,
    rounding,
    table_text,
)

LEAST = float(np.finfo(np.float32).tiny)  # stands for a probability of 0
NEGATIONS = {"no", "non", "not", "without"}
PREFIXES = ("no", "non", "not", "un")
NEGATIVES = {
    *("normal", "healthy", "negative", "neg", "benign", "uninfected", "unaffected", "control", "controls"),
    *("absent", "clean", "none", "false", "0"),
}


def group_index(groups: Sequence[str] | None, size: int) -> np.ndarray:
    """(S,) int64 number of each image's group; without groups, and where its name is empty, each is its own."""
    if groups is None:
        return np.arange(size)
    numbers: dict[tuple[str, int], int] = {}
    keys = [(name, -1 if name else i) for i, name in enumerate(groups)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def softmax(logits: np.ndarray) -> np.ndarray:
    """(S, K) -> (S, K) float64 probabilities; rows sum to 1."""
    z = logits.astype(np.float64)
    z = np.exp(z - z.max(axis=1, keepdims=True, initial=-np.inf))
    return z / z.sum(axis=1, keepdims=True)


def is_called(scores: np.ndarray, threshold: float | np.ndarray | None) -> np.ndarray:
    """(S,) bool: whether a probability of the positive class is the threshold or more; without one, one half or more.

    The only place that compares a probability with a threshold, so that all parts of a report treat a tie alike.
    """
    return scores >= (0.5 if threshold is None else threshold)


class PerImage:
    """What the predictions of every kind of label share: S images, and the arrays that have a row for each."""

    BY_ROW: ClassVar[tuple[str, ...]] = ("labels", "logits", "calibrated", "decided", "members")  # None, or of S rows
    UNLABELLED: ClassVar[str]  # what to do about unknown labels
    classes: tuple[str, ...]
    members: np.ndarray | None = None  # (S, K) bool: the classes or findings in the prediction set of each image
    paths: tuple[str, ...]
    groups: tuple[str, ...] | None
    labels: np.ndarray | None
    columns: dict[str, tuple[str, ...]]
    errors: tuple[tuple[str, str], ...]
    named: bool
    header: Callable[[], list[str]]
    rows: Callable[[], list[list[str]]]

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, row: int) -> str:
        """The name of an image in a report: "row 7" for the seventh; its path if the user asks for paths."""
        return self.paths[row] if self.named else f"row {row + 1}"

    def set_of(self, row: int) -> tuple[str, ...]:
        """The classes or findings in the prediction set of an image; none where there are no sets."""
        return () if self.members is None else tuple(self.classes[k] for k in np.flatnonzero(self.members[row]))

    def to_csv(self, errors: bool = False) -> str:
        """The text of `predictions.csv`; see `vitmed.core.csv_files` for cells that a spreadsheet would run.

        Args:
            errors: add a column `error`, and a row with path and error for every unreadable image.
        """
        return table_text(self.header(), self.rows(), self.errors if errors else None)

    def take(self, rows: np.ndarray) -> Self:
        """The given rows, in that order; without the unreadable images."""
        own: dict[str, Any] = {name: getattr(self, name) for name in self.BY_ROW}
        return replace(  # type: ignore[type-var]  # every kind is a dataclass
            self,
            paths=tuple(self.paths[i] for i in rows),
            groups=None if self.groups is None else tuple(self.groups[i] for i in rows),
            columns={name: tuple(cells[i] for i in rows) for name, cells in self.columns.items()},
            errors=(),
            **{name: None if values is None else values[rows] for name, values in own.items()},
        )

    @cached_property
    def units(self) -> np.ndarray:
        """(S,) int64: the number of each image's patient, by first appearance; an unknown patient is one of its own."""
        return group_index(self.groups, len(self))


@dataclass(frozen=True)
class Predictions(PerImage):
    """What a model predicts for S images; the table does not keep `notes` and `named`."""

    classes: tuple[str, ...]  # K names, in the model's order
    paths: tuple[str, ...]  # S, relative to the data root, with forward slashes
    groups: tuple[str, ...] | None  # S group (patient) names; None: unknown
    labels: np.ndarray | None  # (S,) int64 indices into `classes`; None: unknown
    logits: np.ndarray  # (S, K) float32, the raw output of the network
    errors: tuple[tuple[str, str], ...] = ()  # path and problem of each unreadable image, which has no row here
    positive: str | None = None  # of two classes the positive one; None: the names of the classes decide
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)  # further columns of the table: name -> S cells
    threshold: float | None = None  # of two classes, the probability from which an image is predicted positive
    costs: tuple[tuple[float, ...], ...] | None = None  # K x K, of predicting the column's class for the row's
    notes: tuple[str, ...] = ()  # what a reader must know about the table
    decided: np.ndarray | None = None  # (S,) int64 predicted classes, where each of several models has its own policy
    named: bool = False  # whether figures and tables may show paths
    calibrated: np.ndarray | None = None  # (S, K) float64 probabilities; None: the softmax of the logits
    members: np.ndarray | None = None  # (S, K) bool: the prediction sets that a policy made; the table has their names

    kind: ClassVar[Kind] = "classes"  # a key of `TARGETS`
    UNLABELLED: ClassVar[str] = "evaluate images in class folders"

    def __post_init__(self) -> None:
        size = len(self.paths)
        assert self.logits.shape == (size, len(self.classes)), self.logits.shape
        assert self.calibrated is None or self.calibrated.shape == self.logits.shape
        assert self.labels is None or self.labels.shape == (size,)
        assert self.groups is None or len(self.groups) == size
        assert all(len(cells) == size for cells in self.columns.values())
        assert self.threshold is None or (len(self.classes) == 2 and self.positive in self.classes)
        assert self.decided is None or self.decided.shape == (size,)
        assert self.costs is None or np.shape(self.costs) == (len(self.classes),) * 2

    def like(self, other: Predictions) -> Predictions:
        """With the classes, which must be the same, in the order of another."""
        order = [self.classes.index(name) for name in other.classes]
        place = np.argsort(order)  # class number here -> in the other
        return replace(
            self,
            classes=other.classes,
            labels=None if self.labels is None else place[self.labels],
            logits=self.logits[:, order],
            calibrated=None if self.calibrated is None else self.calibrated[:, order],
            decided=None if self.decided is None else place[self.decided],
            members=None if self.members is None else self.members[:, order],
            costs=None if self.costs is None else tuple(tuple(self.costs[i][j] for j in order) for i in order),
        )

    @cached_property
    def probabilities(self) -> np.ndarray:
        """(S, K) float64, rows sum to 1: calibrated where there is a calibration, else the softmax of the logits."""
        return softmax(self.logits) if self.calibrated is None else self.calibrated

    @cached_property
    def calibrated_logits(self) -> np.ndarray:
        """(S, K) float64: their softmax is `probabilities`."""
        if self.calibrated is None:
            return self.logits.astype(np.float64)
        return np.log(np.maximum(self.calibrated, np.finfo(np.float64).tiny))

    @cached_property
    def likeliest(self) -> np.ndarray:
        """(S,) int64: the class with the largest probability; of equal ones the positive of two, else the first."""
        if len(self.classes) == 2:
            return self._of_two(None)
        return self.calibrated_logits.argmax(axis=1).astype(np.int64)  # they part what rounds to one probability

    @cached_property
    def predicted(self) -> np.ndarray:
        """(S,) int64: the predicted class: as `decided`, by `threshold`, the first of the cheapest by `costs`, or the
        likeliest.
        """
        if self.decided is not None:
            return self.decided
        if self.threshold is not None:
            return self._of_two(self.threshold)
        if self.costs is not None:
            return (self.probabilities @ np.array(self.costs, dtype=np.float64)).argmin(axis=1).astype(np.int64)
        return self.likeliest

    def _of_two(self, threshold: float | None) -> np.ndarray:
        positive = positive_index(self)
        assert positive is not None
        return np.where(is_called(self.probabilities[:, positive], threshold), positive, 1 - positive).astype(np.int64)

    @cached_property
    def confidence(self) -> np.ndarray:
        """(S,) float64: the probability of the predicted class."""
        return self.probabilities[np.arange(len(self)), self.predicted]

    @property
    def answers(self) -> tuple[str, ...]:
        """What an attention map can explain."""
        return self.classes

    @property
    def explained(self) -> np.ndarray:
        """(S,) int64: which of `answers` it explains, unless you name another."""
        return self.predicted

    def mistakes(self) -> np.ndarray:
        """(N,) the rows whose `explained` answer is wrong, the most confident first."""
        wrong = np.flatnonzero(self.predicted != known_labels(self))
        return wrong[np.argsort(-self.confidence[wrong], kind="stable")]

    def undecided(self) -> Predictions:
        """The raw logits alone: without calibration and decisions."""
        return replace(self, calibrated=None, threshold=None, costs=None, decided=None, members=None)

    def header(self) -> list[str]:
        """Column names of `predictions.csv`, in order; those of `columns` stand at the end."""
        own = [kind + name for kind in (PROB, LOGIT) for name in self.classes]
        return [*FIXED_COLUMNS, *own, *self.columns]

    def rows(self) -> list[list[str]]:
        """One row of text per image; floats are written so that they read back to the same bits."""
        rows = []
        for i, path in enumerate(self.paths):
            label = "" if self.labels is None else self.classes[self.labels[i]]
            group = "" if self.groups is None else self.groups[i]
            numbers = float(self.confidence[i]), *self.probabilities[i].tolist(), *self.logits[i].tolist()
            row = [path, label, group, self.classes[self.predicted[i]], *map(repr, numbers)]  # a float32 is exact here
            rows.append([*row, *(cells[i] for cells in self.columns.values())])
        return rows

    def numbers(self) -> dict[str, np.ndarray]:
        """The columns of `predictions.csv` that hold numbers of the images, (S,) float64, or float32 of the network."""
        return {
            "confidence": self.confidence,
            **{PROB + name: self.probabilities[:, k] for k, name in enumerate(self.classes)},
            **{LOGIT + name: self.logits[:, k] for k, name in enumerate(self.classes)},
        }

    @classmethod
    def from_csv(
        cls,
        file: str | Path | Table,
        labelled: bool = False,
        as_decided: bool = False,
        calibrate: Callable[[Predictions], Predictions] | None = None,
    ) -> Predictions:
        """Read a `predictions.csv` back; labels, groups, logits and probabilities come out with the same bits.

        Without `calibrate` the probabilities of the table count where they differ from the softmax of its logits. In a
        table without logits, the logarithms of the probabilities replace them. A row with an `error` is an
        image that could not be read. `notes` names contradictions and missing parts.

        Args:
            labelled: whether every image must have a label.
            as_decided: keep the predicted classes and probabilities of the table, which several models made.
            calibrate: adds the probabilities of the decision policy that made the table.

        Raises:
            DataError: the file is missing, lacks a column, or holds a value that is not what it must be.
        """
        table = read_table(file)
        kind, classes = table.scored(least=2)
        scores, shown = ([column + name for name in classes] for column in (LOGIT, PROB))
        chances = table.probabilities(classes) if kind == PROB else None
        logits = table.logits(scores) if chances is None else np.log(np.maximum(chances, LEAST))
        labels, paths, (groups, joined) = table.labels(classes), table.paths(), table.patients()
        if labelled and labels is None:
            raise table.unlabelled("label", "label" in table.header, "give the true class of every image")
        read = cls(
            classes=classes,
            paths=paths,
            groups=groups,
            labels=labels,
            logits=logits.astype(np.float32),
            errors=table.errors,
            columns=table.further([*FIXED_COLUMNS, *scores, *shown], classes),
        )
        if calibrate is not None and not as_decided:
            read = calibrate(read)
        elif kind == LOGIT and _is_calibrated(table, read, as_decided):
            read = replace(read, calibrated=table.probabilities(classes))
        decided = table.decided(classes) if as_decided else None
        return replace(read, notes=(*joined, *_notes(table, read, kind, as_decided)), decided=decided)


def known_labels(predictions: PerImage) -> np.ndarray:
    """The true (S,) classes, (S,) numbers or (S, F) findings. Raises DataError where they are unknown."""
    if predictions.labels is None:
        raise DataError("these predictions have no labels, so nothing can be measured", predictions.UNLABELLED)
    return predictions.labels


def positive_index(predictions: Predictions) -> int | None:
    """Index of the positive class of two: the one in `positive`, else by the names. None for more classes."""
    classes = predictions.classes
    if len(classes) != 2:
        return None
    return positive_class(classes) if predictions.positive is None else classes.index(predictions.positive)


def positive_class(classes: Sequence[str]) -> int:
    """Which of two classes is the positive one: the one whose name is not that of an absence, else the last.

    `normal`, `no_tumor`, `NOT INFECTED`, `uninfected`, `0` are names of an absence; `abnormal` is not.
    """
    absent = [_names_absence(name, classes) for name in classes]
    return absent.index(False) if absent.count(False) == 1 else len(classes) - 1


def _names_absence(name: str, classes: Sequence[str]) -> bool:
    words = [word for word in re.split(r"[\W_]+", name.lower()) if word]
    if words and words[0] in NEGATIONS:
        return not _names_absence(" ".join(words[1:]), classes)
    if any(word in NEGATIVES for word in words):
        return True
    joined = "".join(words)
    others = {"".join(re.split(r"[\W_]+", c.lower())) for c in classes} - {joined, ""}
    return any(joined == prefix + other and other not in NEGATIVES for other in others for prefix in PREFIXES)


def _is_calibrated(table: Table, read: Predictions, known: bool) -> bool:
    """Whether the table has probabilities that differ from the softmax of its logits; if `known`, any at all.

    A row with an edited probability does not sum to 1, and does not count. A difference may be due to rounding.
    """
    columns = [PROB + name for name in read.classes]
    if not set(columns) <= set(table.header) or not table.has(columns):
        return False
    if known:
        return True
    chances = table.floats(columns)
    whole = np.abs(chances.sum(axis=1) - 1) < 1e-6
    return bool((np.abs(chances - read.probabilities) > NEAR + rounding(table.digits(columns)))[whole].any())


def _notes(table: Table, found: Predictions, kind: str, as_decided: bool) -> list[str]:
    """Notes on cells that contradict the logits (or probabilities), rounded cells, and bad OOD scores."""
    source, near = ("logits", NEAR) if kind == LOGIT else ("probabilities", 1e-3)
    notes = [] if kind == LOGIT else ["The table has no logits: the logarithms of its probabilities replace them."]
    chances, predicted = found.probabilities, table.class_indices("prediction", found.classes)
    columns = [PROB + name for name in found.classes if PROB + name in table.header]
    far, said = np.zeros((len(found), 1), bool), table.floats(columns)
    place = [found.classes.index(name.removeprefix(PROB)) for name in columns]
    digits = table.digits(columns) if table.has(columns) else None
    if digits is not None and (kind == PROB or (np.abs(said - softmax(found.logits)[:, place]) > near).any()):
        near += rounding(digits)
        notes.append(rounded_note(digits, counted=kind == PROB or found.calibrated is not None))
    if kind == LOGIT and table.has(columns):
        far = ~(np.abs(said - chances[:, place]) <= near)
    off: dict[str, np.ndarray] = {"probability": np.any(far, axis=1)}  # what contradicts -> (S,) bool
    close = np.abs(chances - table.floats(["confidence"])) <= near  # (S, K)
    if table.has(["confidence"]):
        off["confidence"] = ~close.any(axis=1)
    if table.has(["prediction"]):  # any class may be right, as a threshold may have decided
        other = close.any(axis=1) & ~close[np.arange(len(found)), predicted]  # the confidence is that of another class
        edited = (predicted < 0) | other | (~as_decided & _no_threshold(found, predicted))
        notes += table.prediction_note(edited, source)
    return [*notes, *table.number_note(off, columns, far, kind), *table.ood_note()]


def _no_threshold(found: Predictions, predicted: np.ndarray) -> np.ndarray:
    """(S,) bool: of two classes, if no threshold explains the predictions (S,), those of the less likely class."""
    score, one = found.calibrated_logits[:, -1] - found.calibrated_logits[:, 0], predicted == 1
    ordered = len(found.classes) != 2 or score[one].min(initial=np.inf) >= score[~one].max(initial=-np.inf)
    return np.zeros(len(found), bool) if ordered else predicted != found.likeliest
