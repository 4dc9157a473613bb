"""`NumberPredictions`: what a model predicts of a quantity, such as an age, with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from vitmed.core.targets import Kind, Target
from vitmed.metrics.predictions import group_index


@dataclass(frozen=True)
class NumberPredictions:
    """What a model predicts of a number for S images; the table does not keep `notes` and `named`."""

    classes: tuple[str, ...]  # the name of the number alone
    paths: tuple[str, ...]  # S, relative to the data root, with forward slashes
    groups: tuple[str, ...] | None  # S group (patient) names; None: unknown
    labels: np.ndarray | None  # (S,) float64, in the unit; None: unknown
    logits: np.ndarray  # (S, 2) float32, the raw output of the network: location, log of the scale, both standardised
    target: Target  # unit, centre and spread of the number
    errors: tuple[tuple[str, str], ...] = ()  # path and problem of each unreadable image, which has no row here
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)  # further columns of the table: name -> S cells
    reach: float | None = None  # the interval reaches so many scales up and down; None: no interval
    notes: tuple[str, ...] = ()  # what a reader must know about the table
    named: bool = False  # whether figures and tables may show paths

    kind: ClassVar[Kind] = "number"  # a key of `TARGETS`

    def __post_init__(self) -> None:
        size = len(self.paths)
        assert self.logits.shape == (size, 2), self.logits.shape
        assert self.labels is None or self.labels.shape == (size,)
        assert self.groups is None or len(self.groups) == size
        assert all(len(cells) == size for cells in self.columns.values())

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: np.ndarray) -> NumberPredictions:
        """The given rows, in that order; without the unreadable images."""
        return replace(
            self,
            paths=tuple(self.paths[i] for i in rows),
            groups=None if self.groups is None else tuple(self.groups[i] for i in rows),
            labels=None if self.labels is None else self.labels[rows],
            logits=self.logits[rows],
            columns={name: tuple(cells[i] for i in rows) for name, cells in self.columns.items()},
            errors=(),
        )

    @cached_property
    def units(self) -> np.ndarray:
        """(S,) int64: the number of each image's patient, by first appearance; an unknown patient is one of its own."""
        return group_index(self.groups, len(self))

    @cached_property
    def values(self) -> np.ndarray:
        """(S,) float64: the predicted numbers, in the unit."""
        return self.target.centre + self.target.spread * self.logits[:, 0].astype(np.float64)

    @cached_property
    def scales(self) -> np.ndarray:
        """(S,) float64: the predicted scale of the error, in the unit; above 0."""
        return self.target.spread * np.exp(self.logits[:, 1].astype(np.float64))

    @cached_property
    def intervals(self) -> np.ndarray | None:
        """(S, 2) float64: lower and upper end of the prediction intervals, in the unit; None without `reach`."""
        if self.reach is None:
            return None
        return np.stack([self.values - self.reach * self.scales, self.values + self.reach * self.scales], axis=1)
