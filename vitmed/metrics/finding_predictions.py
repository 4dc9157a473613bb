"""`FindingPredictions`: what a model predicts of F findings, each of which an image has or has not.

Of each finding it is the prediction of two classes: `of` returns it as `Predictions`, and every metric, decision and
figure of two classes applies to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from vitmed.core.targets import UNKNOWN
from vitmed.metrics.predictions import Predictions, group_index, is_called


@dataclass(frozen=True)
class FindingPredictions:
    """What a model predicts of F findings for S images; the table does not keep `notes` and `named`."""

    classes: tuple[str, ...]  # F names, in the model's order
    paths: tuple[str, ...]  # S, relative to the data root, with forward slashes
    groups: tuple[str, ...] | None  # S group (patient) names; None: unknown
    labels: np.ndarray | None  # (S, F) int8: 1, 0 or `UNKNOWN`; None: unknown
    logits: np.ndarray  # (S, F) float32, the raw output of the network; its sigmoid is a probability
    errors: tuple[tuple[str, str], ...] = ()  # path and problem of each unreadable image, which has no row here
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)  # further columns of the table: name -> S cells
    thresholds: tuple[float | None, ...] = ()  # F probabilities from which a finding is called; None, and (): 0.5
    notes: tuple[str, ...] = ()  # what a reader must know about the table
    named: bool = False  # whether figures and tables may show paths
    calibrated: np.ndarray | None = None  # (S, F) float64 probabilities; None: the sigmoid of the logits

    kind: ClassVar[Kind] = "findings"  # a key of `TARGETS`

    def __post_init__(self) -> None:
        shape = (len(self.paths), len(self.classes))
        assert self.logits.shape == shape, self.logits.shape
        assert self.labels is None or self.labels.shape == shape
        assert self.calibrated is None or self.calibrated.shape == shape
        assert self.groups is None or len(self.groups) == shape[0]
        assert len(self.thresholds) in (0, shape[1])
        assert all(len(cells) == shape[0] for cells in self.columns.values())

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: np.ndarray) -> FindingPredictions:
        """The given rows, in that order; without the unreadable images."""
        return replace(
            self,
            paths=tuple(self.paths[i] for i in rows),
            groups=None if self.groups is None else tuple(self.groups[i] for i in rows),
            labels=None if self.labels is None else self.labels[rows],
            logits=self.logits[rows],
            calibrated=None if self.calibrated is None else self.calibrated[rows],
            columns={name: tuple(cells[i] for i in rows) for name, cells in self.columns.items()},
            errors=(),
        )

    @cached_property
    def units(self) -> np.ndarray:
        """(S,) int64: the number of each image's patient, by first appearance; an unknown patient is one of its own."""
        return group_index(self.groups, len(self))

    @cached_property
    def probabilities(self) -> np.ndarray:
        """(S, F) float64, 0..1: calibrated where there is a calibration, else the sigmoid of the logits."""
        if self.calibrated is not None:
            return self.calibrated
        return 0.5 * (1 + np.tanh(0.5 * self.logits.astype(np.float64)))

    @cached_property
    def predicted(self) -> np.ndarray:
        """(S, F) bool: the findings that are called."""
        limits = self.thresholds or (None,) * len(self.classes)
        return np.stack([is_called(self.probabilities[:, f], limit) for f, limit in enumerate(limits)], axis=1)

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
        )


def absence(finding: str) -> str:
    """The name of the class of images without a finding."""
    return f"no {finding}"
