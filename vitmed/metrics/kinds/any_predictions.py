"""Predictions of any kind of label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.core.base_models import Target
from vitmed.metrics.kinds.findings import FindingPredictions, is_of_findings
from vitmed.metrics.kinds.number import NumberPredictions, is_of_number
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import Table, read_table

AnyPredictions = Predictions | FindingPredictions | NumberPredictions


def target_of(predictions: AnyPredictions, ordinal: Sequence[str] = ()) -> Target:
    """What the labels are: grades, where `ordinal` names the classes in their order."""
    if isinstance(predictions, NumberPredictions):
        return predictions.target
    return Target(kind="grades" if tuple(ordinal) == predictions.classes else predictions.kind)


def read_predictions(
    file: str | Path | Table,
    target: Target | None = None,
    labelled: bool = False,
    as_decided: bool = False,
    calibrate: Callable[[Any], Any] | None = None,
) -> AnyPredictions:
    """Read a predictions.csv; its columns say of which kind it is. The other arguments are those of `from_csv`."""
    header = read_table(file).header
    if is_of_findings(header):
        return FindingPredictions.from_csv(file, labelled, as_decided, calibrate)
    if is_of_number(header):
        return NumberPredictions.from_csv(file, labelled, as_decided, calibrate, target)
    return Predictions.from_csv(file, labelled, as_decided, calibrate)


def unlabelled(
    target: Target,
    classes: tuple[str, ...],
    paths: tuple[str, ...],
    logits: np.ndarray,
    errors: tuple[tuple[str, str], ...],
    columns: dict[str, tuple[str, ...]],
) -> AnyPredictions:
    """Logits of images without labels and patients as predictions; the arguments are their fields."""
    if target.kind == "number":
        return NumberPredictions(classes, paths, None, None, logits, target, errors, columns)
    if target.kind == "findings":
        return FindingPredictions(classes, paths, None, None, logits, errors, columns)
    return Predictions(classes, paths, None, None, logits, errors, columns=columns)
