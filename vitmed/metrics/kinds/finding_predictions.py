"""`FindingPredictions`: what a model predicts of F findings, each of which an image has or has not.

Of each finding it is the prediction of two classes: `of` returns it as `Predictions`, and every metric, decision and
figure of two classes applies to it.

Its table has the columns `path, group, prediction`, then of each finding `label_<finding>` (1, 0 or empty: unknown),
`prob_<finding>` and `logit_<finding>`, then any further columns. `prediction` joins the findings that are called by
" | ", or is "no finding".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from vitmed.core.base_models import NO_FINDING, Kind
from vitmed.core.targets import UNKNOWN
from vitmed.metrics.predictions import LEAST, PerImage, Predictions, is_called, softmax
from vitmed.metrics.predictions_csv import (
    BETWEEN,
    LABEL,
    LOGIT,
    NEAR,
    PROB,
    Table,
    read_table,
    rounded_note,
    rounding,
)

OWN = ("path", "group", "prediction")  # columns of the table before those of the findings


@dataclass(frozen=True)
class FindingPredictions(PerImage):
    """What a model predicts of F findings for S images; the table does not keep `notes` and `named`."""

    classes: tuple[str, ...]  # F names, in the model's order
    paths: tuple[str, ...]  # S, relative to the data root, with forward slashes
    groups: tuple[str, ...] | None  # S group (patient) names; None: unknown
    labels: np.ndarray | None  # (S, F) int8: 1, 0 or `UNKNOWN`; None: unknown
    logits: np.ndarray  # (S, F) float32, the raw output of the network; its sigmoid is a probability
    errors: tuple[tuple[str, str], ...] = ()  # path and problem of each unreadable image, which has no row here
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)  # further columns of the table: name -> S cells
    thresholds: tuple[float | None, ...] = ()  # F probabilities from which a finding is called; None, and (): 0.5
    decided: np.ndarray | None = None  # (S, F) bool calls, where each of several models has its own thresholds
    notes: tuple[str, ...] = ()  # what a reader must know about the table
    named: bool = False  # whether figures and tables may show paths
    calibrated: np.ndarray | None = None  # (S, F) float64 probabilities; None: the sigmoid of the logits
    members: np.ndarray | None = None  # (S, F) bool: the findings that cannot be excluded; the table has their names

    kind: ClassVar[Kind] = "findings"  # a key of `TARGETS`
    UNLABELLED: ClassVar[str] = "give a table with the findings of each image"

    def __post_init__(self) -> None:
        shape = (len(self.paths), len(self.classes))
        assert self.logits.shape == shape, self.logits.shape
        assert self.labels is None or self.labels.shape == shape
        assert self.calibrated is None or self.calibrated.shape == shape
        assert self.decided is None or self.decided.shape == shape
        assert self.groups is None or len(self.groups) == shape[0]
        assert len(self.thresholds) in (0, shape[1])
        assert all(len(cells) == shape[0] for cells in self.columns.values())

    def like(self, other: FindingPredictions) -> FindingPredictions:
        """With the findings, which must be the same, in the order of another."""
        order = [self.classes.index(name) for name in other.classes]
        return replace(
            self,
            classes=other.classes,
            labels=None if self.labels is None else self.labels[:, order],
            logits=self.logits[:, order],
            thresholds=tuple(self.thresholds[f] for f in order) if self.thresholds else (),
            calibrated=None if self.calibrated is None else self.calibrated[:, order],
            decided=None if self.decided is None else self.decided[:, order],
            members=None if self.members is None else self.members[:, order],
        )

    @cached_property
    def probabilities(self) -> np.ndarray:
        """(S, F) float64, 0..1: calibrated where there is a calibration, else the sigmoid of the logits."""
        if self.calibrated is not None:
            return self.calibrated
        pairs = np.stack([np.zeros_like(self.logits), self.logits], axis=-1).reshape(-1, 2)
        return softmax(pairs)[:, 1].reshape(self.logits.shape)  # to the bit those of `of`, so that a tie is one in both

    @cached_property
    def predicted(self) -> np.ndarray:
        """(S, F) bool: the findings that are called."""
        if self.decided is not None:
            return self.decided
        limits = [0.5 if limit is None else limit for limit in self.thresholds or (None,) * len(self.classes)]
        return is_called(self.probabilities, np.array(limits))

    @property
    def answers(self) -> tuple[str, ...]:
        """What an attention map can explain."""
        return self.classes

    @cached_property
    def explained(self) -> np.ndarray:
        """(S,) int64: which finding it explains, unless you name another: the likeliest, beside its threshold."""
        limits = np.array([0.5 if limit is None else limit for limit in self.thresholds or (None,) * len(self.classes)])
        return (self.probabilities / np.maximum(limits, LEAST)).argmax(axis=1).astype(np.int64)

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
        part, positive = self.take(rows), finding
        logits = part.logits[:, f]
        chances = None if part.calibrated is None else part.calibrated[:, f]
        return Predictions(
            classes=(absence(finding), finding),
            paths=part.paths,
            groups=part.groups,
            labels=None if part.labels is None else part.labels[:, f].astype(np.int64),
            logits=np.stack([np.zeros_like(logits), logits], axis=1),
            positive=positive,
            columns=part.columns,
            threshold=self.thresholds[f] if self.thresholds else None,
            named=self.named,
            calibrated=None if chances is None else np.stack([1 - chances, chances], axis=1),
            decided=None if part.decided is None else part.decided[:, f].astype(np.int64),
        )

    def undecided(self) -> FindingPredictions:
        """The raw logits alone: without calibration and decisions."""
        return replace(self, calibrated=None, thresholds=(), decided=None, members=None)

    def header(self) -> list[str]:
        """Column names of `predictions.csv`, in order; those of `columns` stand at the end."""
        return [*OWN, *(kind + name for name in self.classes for kind in (LABEL, PROB, LOGIT)), *self.columns]

    def rows(self) -> list[list[str]]:
        """One row of text per image; floats are written so that they read back to the same bits."""
        labels = np.full(self.logits.shape, UNKNOWN) if self.labels is None else self.labels
        known = {1: "1", 0: "0", UNKNOWN: ""}
        rows = []
        for i, path in enumerate(self.paths):
            called = BETWEEN.join(self.classes[f] for f in np.flatnonzero(self.predicted[i])) or NO_FINDING
            row = [path, "" if self.groups is None else self.groups[i], called]
            numbers = labels[i].tolist(), self.probabilities[i].tolist(), self.logits[i].tolist()  # a float32 is exact
            for label, chance, logit in zip(*numbers, strict=True):
                row += [known[label], repr(chance), repr(logit)]
            rows.append([*row, *(cells[i] for cells in self.columns.values())])
        return rows

    def numbers(self) -> dict[str, np.ndarray]:
        """The columns of `predictions.csv` that hold numbers of the images, (S,) float64, or float32 of the network."""
        return {
            **{PROB + name: self.probabilities[:, f] for f, name in enumerate(self.classes)},
            **{LOGIT + name: self.logits[:, f] for f, name in enumerate(self.classes)},
        }

    @classmethod
    def from_csv(
        cls,
        file: str | Path | Table,
        labelled: bool = False,
        as_decided: bool = False,
        calibrate: Callable[[FindingPredictions], FindingPredictions] | None = None,
    ) -> FindingPredictions:
        """Read a `predictions.csv` of findings back, to the same bits; arguments and errors as `Predictions.from_csv`.

        `labelled`: any label of any finding must be known. Without `calibrate` the probabilities of the table count
        where they differ from the sigmoid of its logits and, of each finding, rise with them; else they are edited.
        """
        table = read_table(file)
        kind, classes = table.scored()
        shown = [PROB + name for name in classes]
        chances = table.probabilities(classes, one=False) if kind == PROB else None
        if chances is None:
            logits = table.logits([LOGIT + name for name in classes])
        else:
            logits = np.log(np.maximum(chances, LEAST)) - np.log(np.maximum(1 - chances, LEAST))
        labels, paths, (groups, joined) = _labels(table, classes), table.paths(), table.patients()
        if labelled and labels is None:
            there = any(LABEL + name in table.header for name in classes)
            raise table.unlabelled(f"{LABEL}<finding>", there, "give 1 or 0 where a finding is known")
        own = (kind + name for name in classes for kind in (LABEL, PROB, LOGIT))
        read = cls(
            classes=classes,
            paths=paths,
            groups=groups,
            labels=labels,
            logits=logits.astype(np.float32),
            errors=table.errors,
            columns=table.further([*OWN, *own], classes),
        )
        if calibrate is not None and not as_decided:
            read = calibrate(read)
        elif kind == LOGIT and set(shown) <= set(table.header) and table.has(shown):
            off = np.abs(table.floats(shown) - read.probabilities) > NEAR + rounding(table.digits(shown))
            if as_decided or (off.any() and _rise(table.floats(shown), read.logits)):
                read = replace(read, calibrated=table.probabilities(classes, one=False))
        decided = _decided(table, classes) if as_decided else None
        return replace(read, notes=(*joined, *_notes(table, read, kind, as_decided)), decided=decided)


def is_of_findings(header: Sequence[str]) -> bool:
    """Whether the columns, as `Table.header` names them, are those of findings.

    A table of classes may have a further column `label_<class>`, but beside the column `label`, and not of each class.
    """
    names = {name.removeprefix(kind) for name in header for kind in (PROB, LOGIT) if name.startswith(kind)}
    own = [LABEL + name in header for name in names]
    return bool(own) and (all(own) if "label" in header else any(own))


def _labels(table: Table, classes: Sequence[str]) -> np.ndarray | None:
    """(S, F) int8; None where none is known."""
    columns = [LABEL + name for name in classes]
    values = table.floats(columns)
    known = np.array([[bool((row.get(name) or "").strip()) for name in columns] for row in table.rows], dtype=bool)
    known = known.reshape(values.shape)
    wrong = np.argwhere(known & (values != 0) & (values != 1))
    if len(wrong):
        raise table.wrong(int(wrong[0][0]), columns[wrong[0][1]], "1 (present), 0 (absent) or an empty cell (unknown)")
    return np.where(known, values, UNKNOWN).astype(np.int8) if known.any() else None


def _calls(table: Table, classes: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The findings that the column `prediction` names, (S, F) bool, and where it names only such, (S,) bool."""
    place, calls = {name: f for f, name in enumerate(classes)}, np.zeros((len(table.rows), len(classes)), bool)
    valid = np.ones(len(table.rows), bool)
    for i, cell in enumerate(table.cells("prediction")):
        names = [] if cell == NO_FINDING else [cell] if cell in place else cell.split(BETWEEN)
        valid[i] = set(names) <= set(place)
        calls[i, [place[name] for name in names if name in place]] = True
    return calls, valid


def _decided(table: Table, classes: Sequence[str]) -> np.ndarray:
    """(S, F) bool, the column `prediction`; DataError where a cell names something else."""
    calls, valid = _calls(table, classes)
    for row in np.flatnonzero(~valid)[:1]:
        raise table.wrong(
            int(row), "prediction", f"the findings that are called, between them '{BETWEEN}'; or '{NO_FINDING}'"
        )
    return calls


def _rise(chances: np.ndarray, logits: np.ndarray) -> bool:
    """Whether, of each finding, no larger logit has a smaller probability; (S, F) each."""
    for own, by in zip(chances.T, logits.T, strict=True):
        order = np.lexsort((own, by))
        if (np.diff(own[order]) < -NEAR).any():
            return False
    return True


def _notes(table: Table, found: FindingPredictions, kind: str, as_decided: bool) -> list[str]:
    """Notes on cells that contradict the logits (or probabilities), rounded cells, and bad OOD scores."""
    notes = []
    if kind == PROB:
        notes = ["The table has no logits: the log odds of its probabilities replace them."]
    columns, chances = [PROB + name for name in found.classes if PROB + name in table.header], found.probabilities
    place = [found.classes.index(name.removeprefix(PROB)) for name in columns]
    said, near, far = table.floats(columns), NEAR, np.zeros((len(found), len(columns)), bool)
    digits = table.digits(columns) if table.has(columns) else None
    if digits is not None and (kind == PROB or (np.abs(said - found.undecided().probabilities[:, place]) > near).any()):
        near += rounding(digits)
        notes.append(rounded_note(digits, counted=kind == PROB or found.calibrated is not None))
    if kind == LOGIT and table.has(columns):
        far = ~(np.abs(said - chances[:, place]) <= near)
    if table.has(["prediction"]) and not as_decided:  # any threshold may have decided
        calls, valid = _calls(table, found.classes)
        low = np.where(calls, chances, np.inf).min(axis=0, initial=np.inf)
        high = np.where(calls, -np.inf, chances).max(axis=0, initial=-np.inf)
        crossed = (low < high) & (calls != is_called(chances, None))
        notes += table.prediction_note(~valid | crossed.any(axis=1), "logits" if kind == LOGIT else "probabilities")
    return [*notes, *table.number_note({"probability": np.any(far, axis=1)}, columns, far, kind), *table.ood_note()]


def absence(finding: str) -> str:
    """The name of the class of images without a finding."""
    return f"no {finding}"
