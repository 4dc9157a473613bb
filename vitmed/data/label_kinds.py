"""What you ask of the labels of images, and what was read: classes, findings, grades or a number."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from vitmed.core.base_models import Target
from vitmed.core.data_config import DataConfig
from vitmed.core.errors import UsageError

MISSING = {"", "nan", "na", "n/a", "null", "unknown", "?"}  # cells of which the label is not known


class Asked(NamedTuple):
    """What you ask of the labels: fields of `DataConfig`; the grades in order; the outputs of a model to evaluate.

    The findings of a model that a table lacks are not known; other findings of the table do not count. A card may name
    the columns of the table.
    """

    kind: str = "auto"
    findings: tuple[str, ...] = ()
    uncertain: str = "ignore"
    unit: str = ""
    order: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    card: str | None = None

    @classmethod
    def of(cls, config: DataConfig, ordinal: Sequence[str] = ()) -> Asked:
        """As configured. Raises UsageError for fields that do not go together."""
        kind: str = config.target
        for flag, given, needed in (
            ("--finding", config.findings, "findings"),
            ("--unit", config.unit, "number"),
            ("--ordinal", ordinal, "grades"),
        ):
            if given and kind not in ("auto", needed) and (flag, kind) != ("--ordinal", "classes"):
                raise UsageError(f"{flag} is for --target {needed}, not for --target {kind}", f"omit {flag}")
            kind = needed if given and kind == "auto" else kind
        order = tuple(ordinal) if kind == "grades" else ()
        return cls(kind, tuple(config.findings), config.uncertain, config.unit, order, card=config.card)

    def check_folders(self) -> None:
        """Raises UsageError for labels that no folder can name."""
        if self.kind in ("findings", "number"):
            raise UsageError(f"--target {self.kind}: folders name one class of an image", "add --labels TABLE")


@dataclass(frozen=True)
class Read:
    """The labels of R rows, or of R images.

    Attributes:
        target: what they are.
        labels: names of the class, the grade, or the stratum of each; "" where nothing is known.
        classes: these names in order.
        outputs: names of the findings, or of the number; () for classes and grades.
        values: of findings (R, F) 1, 0 or `UNKNOWN`, of a number (R, 1); None for classes and grades.
        source: what was recognised, in words.
        notes: warnings for the user.
        used: the columns that hold the labels.
    """

    target: Target
    labels: list[str]
    classes: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    values: np.ndarray | None = None
    source: str = ""
    notes: tuple[str, ...] = ()
    used: tuple[int, ...] = ()

    def of_rows(self, rows: Sequence[int]) -> Read:
        """The same of these rows, in this order."""
        values = None if self.values is None else self.values[list(rows)]
        return replace(self, labels=[self.labels[row] for row in rows], values=values)


def number_in(cell: str) -> float | None:
    """The number in a cell, NaN for an empty one; None for anything else."""
    if cell.lower() in MISSING:
        return math.nan
    with contextlib.suppress(ValueError):
        return float(cell) if "_" not in cell else None
    return None
