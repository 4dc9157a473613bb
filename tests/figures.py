"""What several tests of figures share: predictions to draw, and the texts and the PNG file of a figure."""

from __future__ import annotations

import warnings

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text

from vitmed.metrics.predictions import Predictions
from vitmed.report.plots.drawing import png


def of_patients(classes: int = 2, size: int = 400, patients: int = 25, signal: float = 1.5) -> Predictions:
    """Images of patients of two wards; paths and patients are secrets, which no figure may show."""
    rng = np.random.default_rng(classes)
    labels, owner = rng.integers(classes, size=size), rng.integers(patients, size=size)
    logits = 2 * rng.normal(size=(size, classes))
    logits[np.arange(size), labels] += signal
    names = ("infected", "uninfected") if classes == 2 else tuple(f"${i} <a> {'long ' * 20}{i}" for i in range(classes))
    return Predictions(
        names, tuple(f"secret/{i}.png" for i in range(size)), tuple(f"PATIENT_{i}" for i in owner), labels,
        logits.astype(np.float32), columns={"ward": tuple("AB"[i % 2] for i in owner)},
    )  # fmt: skip


def texts(figure: Figure) -> list[str]:
    return [item.get_text() for item in figure.findobj(Text) if item.get_text()]


def is_png(figure: Figure | None) -> bool:
    """It draws without a warning."""
    assert figure is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return png(figure).startswith(b"\x89PNG")
