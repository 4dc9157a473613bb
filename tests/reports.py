"""Reports of predictions, in one call."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from vitmed.core.config import EvaluateConfig
from vitmed.metrics.predictions import Predictions
from vitmed.report.analyses import Extra
from vitmed.report.results import Results
from vitmed.report.write import About, Report


def write_report(
    folder: str | Path, predictions: Predictions, config: EvaluateConfig | None = None, **given: Any
) -> Results:
    """Write a report; `given` are the fields of `About` and of `Extra`."""
    about = About(**{field.name: given.pop(field.name) for field in fields(About) if field.name in given})
    return Report.of(predictions, about, config, Extra(**given)).write(folder)
