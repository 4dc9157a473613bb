"""Reports of predictions, in one call."""

from pathlib import Path
from typing import Any

from vitmed.core.config import EvaluateConfig
from vitmed.metrics.predictions import Predictions
from vitmed.report.analyses import Extra
from vitmed.report.results import Origin, Results
from vitmed.report.write import Report


def write_report(
    folder: str | Path, predictions: Predictions, config: EvaluateConfig | None = None, **given: Any
) -> Results:
    """Write a report; `given` are the fields of `Origin` and of `Extra`."""
    origin = Origin(**{name: given.pop(name) for name in Origin.model_fields if name in given and name != "policy"})
    return Report.of(predictions, origin, config, Extra(**given)).write(folder)
