"""What several tests of predictions share: a table that another program has written, and numbers that give reasons."""

from __future__ import annotations

import csv
import io
import json
import math
import warnings
from collections.abc import Callable

from vitmed.metrics.estimates import Numbers
from vitmed.metrics.kinds.classes import evaluate_predictions, metric_values
from vitmed.metrics.metric_table import PER_CLASS
from vitmed.metrics.predictions import Predictions


def rewritten(
    predictions: Predictions,
    change: Callable[[dict[str, str]], None] = lambda row: None,
    separator: str = ",",
) -> str:
    """predictions.csv as another program writes it, each row changed."""
    rows = list(csv.DictReader(io.StringIO(predictions.to_csv(errors=True), newline="")))
    for row in rows:
        change(row)
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, list(rows[0]), delimiter=separator)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def assert_agree(found: str, expected: str) -> None:
    """Two tables have the same rows in the same order: numbers within 1e-5, and every other cell the same."""
    ours, theirs = (list(csv.reader(io.StringIO(text, newline=""))) for text in (found, expected))
    for row, other in zip(ours, theirs, strict=True):
        for cell, wanted in zip(row, other, strict=True):
            assert cell == wanted or math.isclose(float(cell), float(wanted), rel_tol=1e-5, abs_tol=1e-5), (row, other)


def quiet(p: Predictions) -> Numbers:
    """The numbers, without a warning and as JSON: what has no value, or no interval, says why."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric_values(p)
        result = evaluate_predictions(p)
    json.dumps(result.to_dict(), allow_nan=False)
    entries = dict(result.overall) | {f"{m} of {c}": result.per_class[c][m] for c in p.classes for m in PER_CLASS}
    for name, entry in entries.items():
        assert (entry.value is None) == (name in result.undefined), name
        if entry.value is not None and entry.low is None and result.n > 1:
            assert name in result.no_interval or "There is no interval" in " ".join(result.notes), name
        assert entry.low is None or entry.low <= entry.value <= entry.high, name
    return result
