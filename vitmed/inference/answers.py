"""What a model says of an image, as cells of a table and as plain values."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitmed.core.base_models import NO_FINDING
from vitmed.core.text import NOTICE
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import OOD_SCORE


def ranking(predictions: Predictions | FindingPredictions, row: int, top_k: int) -> list[tuple[str, float]]:
    """The `top_k` most probable classes or findings of a row with their probabilities, the likeliest first."""
    order = np.argsort(-predictions.probabilities[row], kind="stable")[:top_k]
    return [(predictions.classes[k], float(predictions.probabilities[row, k])) for k in order]


def answer_columns(predictions: AnyPredictions) -> list[str]:
    """The headings of `answer_cells`; ">" stands before a column of numbers."""
    if isinstance(predictions, NumberPredictions):
        unit = predictions.target.unit
        named = predictions.classes[0] + (f" ({unit})" if unit else "")
        return [f">{named}", ">interval"]
    first = ["findings"] if isinstance(predictions, FindingPredictions) else ["class", ">probability"]
    return [*first, "next"]


def answer_cells(predictions: AnyPredictions, row: int, top_k: int) -> list[str]:
    """What the model says of an image: class, probability, runners-up; findings and the next; number and interval."""
    if isinstance(predictions, NumberPredictions):
        ends = predictions.intervals
        return [f"{predictions.values[row]:.4g}", "" if ends is None else f"{ends[row, 0]:.4g} to {ends[row, 1]:.4g}"]
    order = ranking(predictions, row, len(predictions.classes))
    if isinstance(predictions, FindingPredictions):
        called = {predictions.classes[f] for f in np.flatnonzero(predictions.predicted[row])}
        taken = [f"{name} {p:.3f}" for name, p in order if name in called]
        rest = [f"{name} {p:.3f}" for name, p in order if name not in called]
        return [", ".join(taken) or NO_FINDING, ", ".join(rest[:top_k])]
    own = predictions.classes[predictions.predicted[row]]  # with a threshold, not always the likeliest
    others = ", ".join(f"{name} {p:.3f}" for name, p in order[:top_k] if name != own)
    return [own, f"{predictions.confidence[row]:.3f}", others]


def answer_json(predictions: AnyPredictions, row: int, top_k: int) -> dict[str, Any]:
    """The same as plain values."""
    if isinstance(predictions, NumberPredictions):
        ends = predictions.intervals
        interval = None if ends is None else [float(ends[row, 0]), float(ends[row, 1])]
        return {"prediction": float(predictions.values[row]), "interval": interval}
    if isinstance(predictions, FindingPredictions):
        cells = zip(predictions.classes, predictions.probabilities[row], predictions.predicted[row], strict=True)
        found = [{"finding": name, "probability": float(p), "called": bool(called)} for name, p, called in cells]
        return {"prediction": [one["finding"] for one in found if one["called"]], "findings": found}
    return {
        "prediction": predictions.classes[predictions.predicted[row]],
        "confidence": float(predictions.confidence[row]),
        "top": [{"class": name, "probability": p} for name, p in ranking(predictions, row, top_k)],
    }


def predictions_json(predictions: AnyPredictions, top_k: int) -> dict[str, Any]:
    """One plain object: classes, one entry per image with its answer, and the unreadable with their problem."""
    images = [
        {
            "path": path,
            **answer_json(predictions, row, top_k),
            **{name: cells[row] for name, cells in predictions.columns.items()},
            **{name: float(cells[row]) for name, cells in predictions.columns.items() if name == OOD_SCORE},
        }
        for row, path in enumerate(predictions.paths)
    ]
    errors = [{"path": path, "error": problem} for path, problem in predictions.errors]
    decided: dict[str, Any] = {"threshold": predictions.threshold} if isinstance(predictions, Predictions) else {}
    if isinstance(predictions, FindingPredictions):
        decided["thresholds"] = list(predictions.thresholds)
    return {
        "classes": list(predictions.classes),
        **decided,
        "images": images,
        "errors": errors,
        "notice": NOTICE,
    }
