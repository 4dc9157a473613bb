"""Whether the grades and the readers' answers of a table fit the classes."""

from __future__ import annotations

from collections.abc import Sequence

from vitmed.core.train_config import EvaluateConfig
from vitmed.data.samples import Sample
from vitmed.metrics.kinds.grades import grades_of
from vitmed.metrics.readers import check_scores, read_scores, readings


def check_readers(
    config: EvaluateConfig, samples: Sequence[Sample], columns: Sequence[str], classes: Sequence[str]
) -> None:
    """Raises UsageError or DataError if grades or readers' answers do not fit the classes: now, not after hours."""
    grades_of(config.ordinal, classes)
    for name in config.raters:
        place = columns.index(name)
        readings([sample.columns[place] for sample in samples], classes, [sample.path for sample in samples], name)
    check_scores(config.rater_scores, classes)
    for name in config.rater_scores:
        place = columns.index(name)
        read_scores([sample.columns[place] for sample in samples], [sample.path for sample in samples], name)
