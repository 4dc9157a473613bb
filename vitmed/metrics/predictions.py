"""`Predictions`: what a model predicts for a set of images.

Validation, evaluation and prediction produce one; every metric, figure and report is a pure function of it.
`predictions.csv` holds it completely, so a report can be rebuilt without a model.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from vitmed.core.base_models import CLASSES, Kind, Target
from vitmed.core.errors import DataError
from vitmed.core.text import counted_doing, listed, quoted
from vitmed.core.text_files import csv_text
from vitmed.metrics.predictions_csv import FIXED_COLUMNS, LOGIT, PROB, ROUNDED, Table, read_table

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
    The only place that compares a probability with a threshold, so that all parts of a report treat a tie alike."""
    return scores >= (0.5 if threshold is None else threshold)


@dataclass(frozen=True)
class Predictions:
    """What a model predicts for S images, each of one of K classes; the table does not keep `notes` and `named`. Other
    kinds of label are subclasses, which say what the same fields mean: `FindingPredictions`, `NumberPredictions`."""

    classes: tuple[str, ...]  # K names of classes or findings, in the model's order; the name of a number alone
    paths: tuple[str, ...]  # S, relative to the data root, with forward slashes
    groups: tuple[str, ...] | None  # S group (patient) names; None: unknown
    labels: np.ndarray | None  # (S,) int64 indices into `classes`, (S, F) int8 or (S,) float64; None: unknown
    logits: np.ndarray  # (S, K) float32, the raw output of the network; (S, 2) of a number
    errors: tuple[tuple[str, str], ...] = ()  # path and problem of each unreadable image, which has no row here
    positive: str | None = None  # of two classes the positive one; None: the names of the classes decide
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)  # further columns of the table: name -> S cells
    threshold: float | None = None  # of two classes, the probability from which an image is predicted positive
    costs: tuple[tuple[float, ...], ...] | None = None  # K x K, of predicting the column's class for the row's
    notes: tuple[str, ...] = ()  # what a reader must know about the table
    decided: np.ndarray | None = None  # `predicted`, or ends of intervals, of several models, each with its own policy
    named: bool = False  # whether figures and tables may show paths
    calibrated: np.ndarray | None = None  # (S, K) float64 probabilities; None: those of the logits
    members: np.ndarray | None = None  # (S, K) bool: the prediction sets that a policy made; the table has their names
    thresholds: tuple[float | None, ...] = ()  # F probabilities from which a finding is called; None, and (): 0.5
    target: Target = CLASSES  # of a number: unit, centre and spread
    reach: float | None = None  # of a number: half its interval, in scales; None: no interval

    kind: ClassVar[Kind] = "classes"  # a key of `TARGETS`
    UNLABELLED: ClassVar[str] = "evaluate images in class folders"  # what to do about unknown labels
    LABEL_COLUMN: ClassVar[tuple[str, str]] = "label", "give the true class of every image"  # and what to do without
    LOGS: ClassVar[str] = "logarithms"  # what `logs` returns
    CALLS: ClassVar[str] = "one of {}"  # what the column `prediction` must hold; {}: the classes
    FIRST: ClassVar[tuple[str, ...]] = FIXED_COLUMNS  # of the table
    DECIDING: ClassVar[dict[str, Any]] = {"threshold": None, "costs": None}  # fields that decide, and what is usual
    EXCLUSIVE: ClassVar[bool] = True  # whether the probabilities of an image sum to 1
    BY_ROW: ClassVar[tuple[str, ...]] = ("labels", "logits", "calibrated", "decided", "members")  # None, or of S rows

    def __post_init__(self) -> None:
        for values in (self.groups, *self.columns.values(), *self.arrays.values()):
            assert values is None or len(values) == len(self.paths)
        assert self.calibrated is None or self.calibrated.shape == self.logits.shape
        assert self.threshold is None or (len(self.classes) == 2 and self.positive in self.classes)
        assert self.costs is None or np.shape(self.costs) == (len(self.classes),) * 2
        assert len(self.thresholds) in (0, len(self.classes))

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, row: int) -> str:
        """The name of an image in a report: "row 7" for the seventh; its path if the user asks for paths."""
        return self.paths[row] if self.named else f"row {row + 1}"

    def set_of(self, row: int) -> tuple[str, ...]:
        """The classes or findings in the prediction set of an image; none where there are no sets."""
        return () if self.members is None else tuple(self.classes[k] for k in np.flatnonzero(self.members[row]))

    @cached_property
    def units(self) -> np.ndarray:
        """(S,) int64: the number of each image's patient, by first appearance; an unknown patient is one of its own."""
        return group_index(self.groups, len(self))

    @property
    def arrays(self) -> dict[str, Any]:
        """The fields of `BY_ROW` that are known, by name."""
        return {name: values for name in self.BY_ROW if (values := getattr(self, name)) is not None}

    def take(self, rows: np.ndarray) -> Self:
        """The given rows, in that order; without the unreadable images."""
        return replace(
            self,
            paths=tuple(self.paths[i] for i in rows),
            groups=None if self.groups is None else tuple(self.groups[i] for i in rows),
            columns={name: tuple(cells[i] for i in rows) for name, cells in self.columns.items()},
            errors=(),
            **{name: values[rows] for name, values in self.arrays.items()},
        )

    def at(self, paths: Sequence[str]) -> Self:
        """The rows of these images, in that order. Raises KeyError for a path that is not there."""
        rows = {path: row for row, path in enumerate(self.paths)}
        return self.take(np.array([rows[path] for path in paths], dtype=np.int64))

    def like(self, other: Self) -> Self:
        """With the classes, or findings, which must be the same, in the order of another; a number standardised as
        another."""
        order = [self.classes.index(name) for name in other.classes]
        place = np.argsort(order)  # class number here -> in the other
        ours = {name: of[:, order] if of.ndim == 2 else place[of] for name, of in self.arrays.items()}
        return replace(
            self,
            classes=other.classes,
            costs=None if self.costs is None else tuple(tuple(self.costs[i][j] for j in order) for i in order),
            thresholds=tuple(self.thresholds[k] for k in order) if self.thresholds else (),
            **ours,
        )

    def undecided(self) -> Self:
        """The raw logits alone: without calibration and decisions."""
        return replace(
            self, calibrated=None, threshold=None, costs=None, decided=None, members=None, thresholds=(), reach=None
        )

    @property
    def at_point(self) -> bool:
        """Whether an operating point decides, and not the likeliest class."""
        unset = (None,) * len(self.classes)
        usual = all(getattr(self, name) in (value, unset) for name, value in self.DECIDING.items())
        return not usual or self.decided is not None

    def without_point(self) -> Self:
        """As decided by the likeliest class."""
        return replace(self, decided=None, **self.DECIDING)

    def parts_of(self, positive: str) -> list[str]:
        """The classes that "KL4" or "KL3,KL4" names, in the order of the model; then those that do not exist."""
        named = [positive] if positive in self.classes else [name.strip() for name in positive.split(",")]
        return sorted({*named}, key=(*self.classes, *named).index)

    def against_rest(self, positive: str) -> "Predictions":
        """One class, or several as one, and the rest as two classes, undecided; so are the columns of readers. The
        calibration stays."""
        parts, logits, chances = self.parts_of(positive), self.logits.astype(np.float64), self.probabilities
        name = " or ".join(parts)
        both, inside = (f"not ({name})" if parts[1:] else f"not {name}", name), np.isin(self.classes, parts)
        two = [np.logaddexp.reduce(logits[:, of], axis=1) for of in (~inside, inside)]  # (S,) each
        calibrated = np.stack([chances[:, of].sum(axis=1) for of in (~inside, inside)], axis=1)
        answers = {
            column: tuple(cell and both[cell in parts] for cell in cells)
            for column, cells in self.columns.items()
            if {*cells} <= {*self.classes, ""}
        }
        return replace(
            self.undecided(),
            classes=both,
            labels=None if self.labels is None else inside[self.labels].astype(np.int64),
            logits=np.stack(two, axis=1).astype(np.float32),
            calibrated=None if self.calibrated is None else calibrated,
            positive=name,
            columns={**self.columns, **answers},
        )

    def pooled(self, parts: Sequence[Self]) -> tuple[Sequence[Self], dict[str, Any]]:
        """Predictions of several models on different images as they can be joined, and the fields that decide."""
        raw = all(part.calibrated is None for part in parts)
        usual = not any(part.at_point for part in parts)
        return parts, {
            **self.DECIDING,
            "members": None,
            "calibrated": None if raw else np.concatenate([part.probabilities for part in parts]),
            "decided": None if usual else np.concatenate([part.predicted for part in parts]),
        }

    def mean_of(self, parts: Sequence[Self], shares: np.ndarray) -> Self:
        """The weighted mean of several models on the same images, whose first this is; see `averaged`."""
        mean = sum(share * part.probabilities for share, part in zip(shares, parts, strict=True))
        return replace(self.undecided(), logits=self.logs(np.asarray(mean)).astype(np.float32))

    @cached_property
    def margins(self) -> np.ndarray:
        """(S, K) float64, -1..1: how far a model prefers each class, by its threshold, costs or probabilities."""
        if self.threshold is not None:
            positive = np.arange(2) == positive_index(self)
            return self.probabilities - np.where(positive, self.threshold, 1 - self.threshold)
        if self.costs is not None:
            return -self.probabilities @ np.array(self.costs) / np.max(self.costs)
        return self.probabilities

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
        return self.without_point().predicted

    @cached_property
    def predicted(self) -> np.ndarray:
        """(S,) int64: the predicted class: as `decided`, by `threshold`, the first of the cheapest, or the
        likeliest."""
        if self.decided is not None:
            return self.decided
        if self.costs is not None and self.threshold is None:
            return (self.probabilities @ np.array(self.costs, dtype=np.float64)).argmin(axis=1).astype(np.int64)
        if (positive := positive_index(self)) is not None:
            called = is_called(self.probabilities[:, positive], self.threshold)
            return np.where(called, positive, 1 - positive).astype(np.int64)
        return self.calibrated_logits.argmax(axis=1).astype(np.int64)  # they part what rounds to one probability

    @cached_property
    def confidence(self) -> np.ndarray:
        """(S,) float64: the probability of the predicted class."""
        return self.probabilities[np.arange(len(self)), self.predicted]

    def same_as(self, other: "Predictions") -> bool:
        """Whether another model says the same of all images."""
        pairs = (self.amounts, other.amounts), (self.predicted, other.predicted)
        return all(np.array_equal(mine, yours) for mine, yours in pairs)

    @cached_property
    def intervals(self) -> np.ndarray | None:
        """(S, 2) float64: ends of the prediction intervals of a number; None where there are none."""
        return None

    @cached_property
    def right(self) -> np.ndarray:
        """(S,) bool: whether the predicted class is the true one."""
        return np.asarray(self.predicted == known_labels(self))

    @cached_property
    def amounts(self) -> np.ndarray:
        """(S, ...) float64: the probabilities; of a number predictions and ends of intervals, in the unit."""
        return self.probabilities

    @property
    def answers(self) -> tuple[str, ...]:
        """What an attention map can explain."""
        return self.classes

    @property
    def explained(self) -> np.ndarray:
        """(S,) int64: which of `answers` it explains, unless you name another."""
        return self.predicted

    @cached_property
    def outcomes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """3 x (S, K) bool, of each class or finding: an image has it; that is known; it is predicted."""
        each = np.arange(len(self.classes))
        truth = known_labels(self)[:, None] == each
        return truth, np.ones_like(truth), self.predicted[:, None] == each

    def mistakes(self) -> np.ndarray:
        """(N,) the rows whose `explained` answer is wrong, the most confident first."""
        wrong = np.flatnonzero(~self.right)
        return wrong[np.argsort(-self.confidence[wrong], kind="stable")]

    def cells(self) -> dict[str, list[str] | np.ndarray]:
        """The columns of `predictions.csv` before `columns`, in order: texts, or numbers (S,), masked where empty.
        Numbers are float64, or float32 of the network."""
        return {
            "path": list(self.paths),
            "label": [""] * len(self) if self.labels is None else [self.classes[k] for k in self.labels],
            "group": list(self.groups or [""] * len(self)),
            "prediction": [self.classes[k] for k in self.predicted],
            "confidence": self.confidence,
            **{PROB + name: self.probabilities[:, k] for k, name in enumerate(self.classes)},
            **{LOGIT + name: self.logits[:, k] for k, name in enumerate(self.classes)},
        }

    def header(self) -> list[str]:
        """Column names of `predictions.csv`; those of `columns` stand at the end."""
        return [*self.cells(), *self.columns]

    def rows(self) -> list[list[str]]:
        """One row of text per image; floats are written so that they read back to the same bits."""
        texts = [
            column if isinstance(column, list) else ["" if value is None else repr(value) for value in column.tolist()]
            for column in self.cells().values()
        ]
        return [list(row) for row in zip(*texts, *self.columns.values(), strict=True)]

    def to_csv(self, errors: bool = False) -> str:
        """The text of `predictions.csv`; see `vitmed.core.text_files` for cells that a spreadsheet would run.

        Args:
            errors: add a column `error`, and a row with path and error for every unreadable image.
        """
        header, rows = self.header(), self.rows()
        if not errors:
            return csv_text([header, *rows])
        unread = ([path, *[""] * (len(header) - 1), problem] for path, problem in self.errors)
        return csv_text([[*header, "error"], *([*row, ""] for row in rows), *unread])

    @classmethod
    def from_csv(
        cls,
        file: str | Path | Table,
        labelled: bool = False,
        as_decided: bool = False,
        calibrate: Callable[[Self], Self] | None = None,
        target: Target | None = None,
    ) -> Self:
        """Read a `predictions.csv` back; labels, groups, logits and probabilities come out with the same bits.

        Without `calibrate` the probabilities of the table count where they differ from those of its logits. In a
        table without logits, the logarithms (of findings the log odds) of the probabilities replace them. A row with an
        `error` is an image that could not be read. `notes` names contradictions and missing parts.

        Args:
            labelled: whether every image must have a label; of findings, any of them.
            as_decided: keep the decisions and probabilities of the table, which several models made.
            calibrate: adds the probabilities, or intervals, of the decision policy that made the table.
            target: what is known of a number; None: the table states it.

        Raises:
            DataError: the file is missing, lacks a column, or holds a value that is not what it must be.
        """
        table = read_table(file)
        fields = cls._fields(table, target)
        groups, joined = table.patients()
        read = cls(paths=table.paths(), groups=groups, errors=table.errors, **fields)
        if labelled and read.labels is None:
            column, fix = cls.LABEL_COLUMN
            there = any(column.replace("<finding>", name) in table.header for name in read.classes)
            why = f"its column {column} is empty" if there else f"it has no column {column}"
            if not table.rows:
                why = f"none of its {len(table.errors):,} images could be read" if table.errors else "it has no rows"
                fix = "give a row for every image"
            else:
                fix += f"; or name a table that has it: vitmed evaluate {quoted(table.file)} --labels TABLE"
            raise DataError(f"{table.file}: nothing can be evaluated, since {why}", fix)
        read = calibrate(read) if calibrate is not None and not as_decided else read._as_shown(table, as_decided)
        read = replace(read, decided=read._decided(table)) if as_decided else read
        return replace(read, notes=(*joined, *read._notes(table)))

    @classmethod
    def _fields(cls, table: Table, target: Target | None) -> dict[str, Any]:
        """What the columns of the kind of label say: classes, labels, logits, and further columns."""
        kind, classes = table.scored(least=2 if cls.EXCLUSIVE else 1)
        scores, shown = ([column + name for name in classes] for column in (LOGIT, PROB))
        logits = table.logits(scores) if kind == LOGIT else cls.logs(table.probabilities(classes, cls.EXCLUSIVE))
        labels = cls._labels(table, classes)
        of_labels = (cls.LABEL_COLUMN[0].replace("<finding>", name) for name in classes)
        columns = table.further([*cls.FIRST, *scores, *shown, *of_labels], classes)
        return {"classes": classes, "labels": labels, "logits": logits.astype(np.float32), "columns": columns}

    @classmethod
    def _labels(cls, table: Table, classes: tuple[str, ...]) -> np.ndarray | None:
        """(S,) int64; None where no image has one."""
        labels, cells = table.class_indices("label", classes), table.cells("label")
        for row in (row for row in np.flatnonzero(labels < 0) if cells[row]):
            kind = LOGIT if any(name.startswith(LOGIT) for name in table.header) else PROB
            expected = f"expected one of {listed(classes)} (or the table lacks the column {kind}{cells[row]})"
            fix = "correct the label, or write the table again with vitmed evaluate"
            raise table.error(row, f"the label '{cells[row]}', {expected}", fix)
        if (labels < 0).all():
            return None
        if (labels < 0).any():
            raise table.some_unlabelled(labels.argmin())
        return labels

    @staticmethod
    def logs(chances: np.ndarray) -> np.ndarray:
        """(S, K) float64 logits with these probabilities."""
        return np.log(np.maximum(chances, LEAST))

    def _as_shown(self, table: Table, as_decided: bool) -> Self:
        """With the probabilities of the table where they differ from those of its logits by more than rounding, or it
        has no logits."""
        columns = [PROB + name for name in self.classes]
        by_logits = table.scored()[0] == LOGIT
        if by_logits and (not set(columns) <= set(table.header) or not table.has(columns)):
            return self
        if by_logits and not as_decided and (np.abs(table.floats(columns) - self.probabilities) <= ROUNDED).all():
            return self
        chances = table.probabilities(self.classes, one=self.EXCLUSIVE)  # not those of `logits`, which are rounded
        return replace(self, calibrated=chances)

    def _calls(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """What the column `prediction` says, as `predicted`; and where it says nothing else, (S,) bool."""
        classes = table.class_indices("prediction", self.classes)
        return classes, classes >= 0

    def _decided(self, table: Table) -> np.ndarray | None:
        decided, valid = self._calls(table)
        table.check(["prediction"], valid[:, None], self.CALLS.format(listed(self.classes)))
        return decided

    def notes_on_decisions(self, table: Table, by_policy: bool) -> list[str]:
        """A note where the `table` that these were read from decides otherwise; `by_policy`: whether a decision policy
        decides here."""
        if self.kind == "number" or not table.has(["prediction"]):
            return []
        place = {path: row for row, path in enumerate(table.paths())}
        rows = [place[path] for path in self.paths]  # images without a known label may be left out
        calls, valid = (of_table[rows] for of_table in self._calls(table))
        differs = (calls != self.predicted).reshape(len(self), -1).any(axis=1) | ~valid
        if not differs.any():
            return []
        have = counted_doing(int(differs.sum()), "prediction", "in the table was", "in the table were")
        way = "by the largest probability" if self.EXCLUSIVE else "at a probability of 0.5"
        way = "by the decision policy" if by_policy else way
        first = table.numbers[rows[int(differs.argmax())]]
        return [f"{have} decided otherwise, the first in row {first}; these numbers decide {way}."]

    def _notes(self, table: Table) -> list[str]:
        """Notes on cells that contradict the logits (or probabilities), and bad OOD scores."""
        source, notes = "logits", list[str]()
        off: dict[str, np.ndarray] = {}  # column -> (S,) bool, what contradicts
        if table.scored()[0] == PROB:
            source = "probabilities"
            notes = [f"The table has no logits: the {self.LOGS} of its probabilities replace them."]
        else:
            for k, name in enumerate(self.classes):
                if table.has([PROB + name]):
                    gap = np.abs(table.floats([PROB + name])[:, 0] - self.probabilities[:, k])
                    off[PROB + name] = np.asarray(~(gap <= ROUNDED))  # also an empty cell
        if "confidence" in self.FIRST and table.has(["confidence"]):
            chances = self.probabilities  # those of the table may have been scaled to sum to 1
            chances = table.floats([PROB + name for name in self.classes]) if source == "probabilities" else chances
            off["confidence"] = ~(np.abs(chances - table.floats(["confidence"])) <= ROUNDED).any(axis=1)
        return [*notes, *table.contradictions(off, source)]


def known_labels(predictions: Predictions) -> np.ndarray:
    """The true (S,) classes, (S,) numbers or (S, F) findings. Raises DataError where they are unknown."""
    if predictions.labels is None:
        raise DataError("these predictions have no labels, so nothing can be measured", predictions.UNLABELLED)
    return predictions.labels


def target_of(predictions: Predictions, ordinal: Sequence[str] = ()) -> Target:
    """What the labels are: grades, where `ordinal` names the classes in their order."""
    if predictions.kind == "number":
        return predictions.target
    return Target(kind="grades" if tuple(ordinal) == predictions.classes else predictions.kind)


def positive_index(predictions: Predictions) -> int | None:
    """Index of the positive class of two: the one in `positive`, else by the names. None for more, and of findings."""
    classes = predictions.classes
    if len(classes) != 2 or not predictions.EXCLUSIVE:
        return None
    return positive_class(classes) if predictions.positive is None else classes.index(predictions.positive)


def positive_class(classes: Sequence[str]) -> int:
    """Which of two classes is the positive one: the one whose name does not say that something is absent, else the
    last. `normal`, `no_tumor`, `NOT INFECTED`, `uninfected`, `0` say so; `abnormal` does not."""
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
