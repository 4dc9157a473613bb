"""Every number of a set of predictions with its interval.

Each number has the formula whose measured coverage is nearest to its level (benchmarks/coverage.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vitmed.core.errors import DataError
from vitmed.metrics.estimates import (
    ClassSampleSizes,
    Estimate,
    ImagesPerPatient,
    Numbers,
    Sample,
    SampleSize,
    sample_size,
)
from vitmed.metrics.intervals import (
    LEVEL,
    Share,
    Units,
)
from vitmed.metrics.predictions import Predictions


def check_finite(values: np.ndarray, what: str = "score that is not a finite number") -> None:
    """Raise DataError where a value, (S, K), is no finite number."""
    broken = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(broken):
        problem = f"{len(broken):,} of {len(values):,} rows have a {what}, the first is row {broken[0] + 1}"
        raise DataError(problem, "predict these images again, or leave them out")


def numbers_of(
    predictions: Predictions,
    overall: dict[str, Estimate],
    resamples: int,
    accuracy: SampleSize,
    shares: Sequence[Mapping[str, Share]] = (),
) -> Numbers:
    """The numbers of predictions of any kind, without classes and reasons.

    Args:
        accuracy: the sample behind the accuracy, or what takes its place; shares: of each class, of `class_shares`.
    """
    units, grouped, counts = Units.of(predictions), predictions.groups is not None, None
    if grouped and len(predictions):
        sizes = np.bincount(units.index)
        counts = ImagesPerPatient(min=int(sizes.min()), median=float(np.median(sizes)), max=int(sizes.max()))
    rates, patients = ("sensitivity", "specificity"), units.count if grouped else None
    return Numbers(
        n=len(predictions),
        n_groups=patients,
        resampling="by patient" if grouped else "by image",
        resamples=resamples,
        level=LEVEL,
        classes=list(predictions.classes),
        positive_class=None,
        overall=overall,
        per_class={},
        confusion_matrix=[],
        sample=Sample(
            n_images=len(predictions),
            n_patients=patients,
            images_per_patient=counts,
            accuracy=accuracy,
            classes=[ClassSampleSizes(**{name: sample_size(own[name]) for name in rates}) for own in shares],
        ),
    )
